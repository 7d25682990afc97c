"""The onnxruntime runner: threads, options, provider (B04), and a real measurement."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import runtime_bench
from runtime_bench import arrays, heap, providers
from runtime_bench.errors import BenchFailure, RuntimeMissing
from runtime_bench.runners import get
from runtime_bench.runners import onnxruntime as runner


def test_infer_and_bind(tiny_model: Path) -> None:
    loaded = runner.load(str(tiny_model), {"threads": 1, "session.intra_op.allow_spinning": "0"})
    x = np.arange(8, dtype=np.float32).reshape(1, 8)
    assert list(loaded.infer({"x": x})) == ["y"]
    np.testing.assert_array_equal(loaded.infer({"x": x})["y"], x[:, :5])
    assert loaded.bind({"x": x})()[0].shape == (1, 5)
    assert loaded.runtime == {
        "name": "onnxruntime",
        "version": onnxruntime.__version__,
        "provider": "CPUExecutionProvider",
        "asked": "CPUExecutionProvider",
        "spinning": False,
    }


def test_settings_reach_the_session(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}
    real = onnxruntime.InferenceSession

    def spy(path: str, settings: onnxruntime.SessionOptions, providers: list[str]) -> onnxruntime.InferenceSession:
        seen.update(
            intra=settings.intra_op_num_threads,
            inter=settings.inter_op_num_threads,
            entry=settings.get_session_config_entry("session.qdqisint8allowed"),
            providers=providers,
        )
        return real(path, settings, providers=providers)

    monkeypatch.setattr(onnxruntime, "InferenceSession", spy)
    runner.load(str(tiny_model), {"threads": 2, "session.qdqisint8allowed": 1})
    assert seen == {"intra": 2, "inter": 1, "entry": "1", "providers": ["CPUExecutionProvider"]}


def test_threads_are_set_whatever_the_affinity(tiny_model: Path) -> None:
    """B01: on one CPU of a larger machine the runtime pins nothing and says nothing."""
    code = (
        "import os, sys\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from runtime_bench.runners import onnxruntime\n"
        "onnxruntime.load(sys.argv[1], {'threads': 2})\n"
        "print(sum(1 for task in os.listdir('/proc/self/task')))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tiny_model)], capture_output=True, text=True, check=True)
    assert "affinity" not in done.stderr
    assert int(done.stdout) <= 4
    with pytest.raises(ValueError, match="threads must be at least 1, not 0"):
        runner.load(str(tiny_model), {"threads": 0})


@pytest.mark.parametrize("word", ["cpu", "CPU", "CPUExecutionProvider", "cpuexecutionprovider"])
def test_a_provider_may_be_short_and_in_any_case(tiny_model: Path, word: str) -> None:
    runtime = runner.load(str(tiny_model), {"provider": word}).runtime
    assert (runtime["provider"], runtime["asked"]) == ("CPUExecutionProvider", "CPUExecutionProvider")


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("cuda", "CUDAExecutionProvider"),
        ("TensorRT", "TensorrtExecutionProvider"),
        ("openvino", "OpenVINOExecutionProvider"),
        ("CoreML", "CoreMLExecutionProvider"),
        ("xnnpack", "XnnpackExecutionProvider"),
        ("DmlExecutionProvider", "DmlExecutionProvider"),
        ("special", "SpecialExecutionProvider"),  # only the installed package knows it
    ],
)
def test_names_of_providers(word: str, name: str) -> None:
    assert providers.full_name(word, ["SpecialExecutionProvider"]) == name


def test_every_provider_of_onnxruntime_has_a_short_name() -> None:
    known = set(onnxruntime.get_all_providers()) - {"JsExecutionProvider", "WebNNExecutionProvider"}  # browsers only
    assert known <= set(providers.SHORT.values())


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("cuda", "onnxruntime-gpu"),
        ("TensorrtExecutionProvider", "onnxruntime-gpu"),
        ("openvino", "onnxruntime-openvino"),
        ("xnnpack", "onnxruntime must be built with it"),
    ],
)
def test_b04_a_provider_that_is_not_there(tiny_model: Path, word: str, remedy: str) -> None:
    with pytest.raises(RuntimeMissing, match=r"asked for \S+, this onnxruntime has: .*CPUExecutionProvider") as caught:
        runner.load(str(tiny_model), {"provider": word})
    assert caught.value.code == 6
    assert remedy in str(caught.value)
    runtime = runner.load(str(tiny_model), {"provider": word, "allow_fallback": True}).runtime
    assert runtime["provider"] == "CPUExecutionProvider"
    assert runtime["asked"] == providers.full_name(word)
    found = runner.audit(
        str(tiny_model), {"provider": word, "allow_fallback": True}, {"x": np.ones((1, 8), np.float32)}
    )
    assert found["asked"] == providers.full_name(word)
    assert sum(entry["count"] for entry in found["outside"]) == found["nodes"] > 0


@pytest.mark.parametrize(
    ("word", "meant"), [("CUDAExecutionProviderr", "CUDAExecutionProvider"), ("cudaa", "cuda"), ("openvin", "openvino")]
)
def test_b04_a_misspelt_provider_is_an_error_even_where_a_fallback_is_allowed(
    tiny_model: Path, word: str, meant: str
) -> None:
    with pytest.raises(RuntimeMissing) as caught:
        runner.load(str(tiny_model), {"provider": word, "allow_fallback": True})
    assert f'no provider is called "{word}". Did you mean "{meant}"? This onnxruntime has: ' in str(caught.value)
    assert "CPUExecutionProvider" in str(caught.value)


def test_b04_a_session_that_fell_back_is_an_error(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["FastExecutionProvider"])
    real = onnxruntime.InferenceSession
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda path, settings, providers: real(path, settings))
    with pytest.raises(RuntimeMissing, match="asked for FastExecutionProvider, the session uses: CPUExecutionProvider"):
        runner.load(str(tiny_model), {"provider": "FastExecutionProvider"})
    runtime = runner.load(str(tiny_model), {"provider": "fast", "allow_fallback": True}).runtime
    assert (runtime["provider"], runtime["asked"]) == ("CPUExecutionProvider", "FastExecutionProvider")


def model(op: str, kind: int, opset: int = 13, ir_version: int = 8, domain: str = "") -> bytes:
    """One node with a constant second input."""
    weight = np.ones((4, 3, 3, 3), helper.tensor_dtype_to_np_dtype(kind))
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w"], ["y"], name='the "node"', domain=domain)],
        "g",
        [helper.make_tensor_value_info("x", kind, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    sets = [helper.make_opsetid("", opset), helper.make_opsetid("my.ops", 1)]
    return helper.make_model(graph, ir_version=ir_version, opset_imports=sets).SerializeToString()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (model("Conv", TensorProto.DOUBLE), r'^onnxruntime [\d.]+ has no kernel for Conv\(11\) \(node "the "node""\)$'),
        (
            model("Conv", TensorProto.FLOAT, opset=99),
            r"^the model has opset 99, onnxruntime [\d.]+ reads \d\d at most$",
        ),
        (
            model("Conv", TensorProto.FLOAT, ir_version=99),
            r"^the model has IR version 99, onnxruntime [\d.]+ reads \d\d at most$",
        ),
        (model("ConvInteger", TensorProto.FLOAT), r"^onnxruntime [\d.]+ refuses the model: "),
        (model("Blur", TensorProto.FLOAT), r"^onnxruntime [\d.]+ knows no operator Blur in opset 13$"),
        (model("Blur", TensorProto.FLOAT, domain="my.ops"), r"^onnxruntime [\d.]+ knows no operator my\.ops:Blur"),
        (b"no model", r"^onnxruntime [\d.]+ refuses the model: .*[Pp]rotobuf"),
    ],
)
def test_b05_a_model_that_the_runtime_refuses_is_one_clear_sentence(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    for call in (lambda: runner.load(str(path), {}), lambda: runner.audit(str(path), {}, {})):
        with pytest.raises(BenchFailure, match=words) as caught:
            call()
        assert caught.value.code == 8
        for noise in ("\n", "ONNXRuntimeError", "/onnxruntime_src", str(tmp_path)):
            assert noise not in str(caught.value)


def test_b05_convinteger_where_the_runtime_lacks_it() -> None:
    said = (
        "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for "
        "ConvInteger(10) node with name 'Conv_0_quant'"
    )
    words = 'onnxruntime 1.8.1 has no kernel for ConvInteger(10) (node "Conv_0_quant")'
    assert runner.refusal(said, "onnxruntime 1.8.1") == words


def test_unknown_runner_names_the_known_ones() -> None:
    with pytest.raises(RuntimeMissing, match="null, onnxruntime"):
        get("tpu")


def test_measure_a_real_model(tiny_model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((1, 8), np.float32))
    digest = hashlib.sha256(tiny_model.read_bytes()).hexdigest()
    subject = runtime_bench.Subject(name="float32", path=str(tiny_model), sha256=digest)
    told: list[str] = []
    samples = [{"x": str(tmp_path / "x.npy")}]
    measurement = runtime_bench.measure([subject], samples, seconds=1.0, memory=False, progress=told.append)
    entry = measurement["subjects"][0]
    assert entry["file"] == "tiny.onnx"
    assert entry["sha256"] == digest
    assert entry["runtime"]["version"] == onnxruntime.__version__
    assert all(record["phases_ns"]["import"] > record["phases_ns"]["first"] for record in entry["processes"])
    assert str(tmp_path) not in str(measurement)


def test_a_file_that_is_no_model_fails_with_the_runtimes_words(tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"not a model")
    subject = runtime_bench.Subject(name="bad", path=str(bad), sha256="0")
    with pytest.raises(runtime_bench.BenchFailure, match=r"bad: .*onnxruntime [\d.]+ refuses the model"):
        runtime_bench.measure([subject], [], seconds=0.5, memory=False)


def test_arrays_are_read_without_trust(tmp_path: Path) -> None:
    for values in (np.float32(3), np.zeros((0, 3)), np.arange(6, dtype=np.int64).reshape(2, 3)):
        np.save(tmp_path / "a.npy", values)
        found = arrays.load_array(str(tmp_path / "a.npy"))
        assert found.dtype == values.dtype
        np.testing.assert_array_equal(found, values)
    np.save(tmp_path / "pickle.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"(?i)object|pickle"):
        arrays.load_array(str(tmp_path / "pickle.npy"))
    np.save(tmp_path / "huge.npy", np.zeros(10))
    data = (tmp_path / "huge.npy").read_bytes().replace(b"(10,), }              ", b"(1000000000000000,), }")
    (tmp_path / "huge.npy").write_bytes(data)
    assert b"1000000000000000" in data
    with pytest.raises((ValueError, OSError)):
        arrays.load_array(str(tmp_path / "huge.npy"))


@pytest.mark.parametrize(("threads", "allow", "spins"), [(1, "1", False), (2, "1", True), (2, "0", False)])
def test_b01_whether_idle_threads_spin_is_told(tmp_path: Path, threads: int, allow: str, spins: bool) -> None:
    options = {"threads": threads, "session.intra_op.allow_spinning": allow}
    assert runner.load(runner.BASELINE, options).runtime["spinning"] is spins


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[ONNXRuntimeError] : 1 : FAIL : inference_session.cc:1147 LoadOrtModelWithLoader The ORT format model "
            "version [6] is not supported in this build 1.15.0. ",
            "the model is in .ort format 6, which onnxruntime 1.15.0 does not read",
        ),
        (
            "[ONNXRuntimeError] : 1 : FAIL : inference_session.cc:2238 operator() ORT model verification failed.",
            "onnxruntime 1.15.0 finds the .ort file damaged or cut off",
        ),
    ],
)
def test_refusals_of_the_runtimes_own_format_are_one_clear_sentence(text: str, words: str) -> None:
    assert runner.refusal(text, "onnxruntime 1.15.0") == words


@pytest.mark.parametrize("name", sorted(runner.SWITCHES))
def test_each_switch_takes_its_two_values_and_no_other(
    tiny_model: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heap, "keep_small", lambda: True)  # it would change this process
    for value in runner.SWITCHES[name]:
        runner.load(str(tiny_model), {name: value})
    with pytest.raises(BenchFailure, match=f'the option {name} is "'):
        runner.load(str(tiny_model), {name: "perhaps"})


def test_switches_reach_the_session(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    real = onnxruntime.InferenceSession

    def session(path: str, settings: onnxruntime.SessionOptions, **more: object) -> onnxruntime.InferenceSession:
        seen.append(settings)
        return real(path, settings, **more)

    monkeypatch.setattr(heap, "keep_small", lambda: seen.append("heap"))
    monkeypatch.setattr(heap, "trim", lambda: seen.append("trim"))
    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    runner.load(str(tiny_model), {})
    runner.load(str(tiny_model), {name: values[1] for name, values in runner.SWITCHES.items()})
    usual, before, other, after = seen
    assert (before, after) == ("heap", "trim")
    key = "session.disable_prepacking"
    assert (usual.enable_cpu_mem_arena, usual.enable_mem_pattern) == (True, True)
    assert (other.enable_cpu_mem_arena, other.enable_mem_pattern) == (False, False)
    assert usual.execution_order == onnxruntime.ExecutionOrder.DEFAULT
    assert other.execution_order == onnxruntime.ExecutionOrder.PRIORITY_BASED
    assert other.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert other.get_session_config_entry(key) == "1"
    with pytest.raises(RuntimeError, match=key):
        usual.get_session_config_entry(key)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_a_small_heap_gives_freed_blocks_back() -> None:
    """In a process of its own: 40 blocks of 1 MB that glibc would keep, because a larger one was freed before."""
    code = """
import ctypes, sys
from runtime_bench import heap, rss
if sys.argv[1] == "small" and not heap.keep_small():
    sys.exit(77)
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.free(libc.malloc(30 << 20))
blocks = [libc.malloc(1 << 20) for _ in range(40)]
for block in blocks:
    ctypes.memset(block, 1, 1 << 20)
before = rss.usage()["resident"]
for block in blocks[:-1]:
    libc.free(block)
print(before - rss.usage()["resident"])
"""
    freed = {}
    for kind in ("usual", "small"):
        done = subprocess.run([sys.executable, "-c", code, kind], capture_output=True, text=True, check=False)
        if done.returncode == 77:
            pytest.skip("no glibc here")
        freed[kind] = int(done.stdout)
    assert freed["small"] > 38 << 20
    assert freed["usual"] < 2 << 20
