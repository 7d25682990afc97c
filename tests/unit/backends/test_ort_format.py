"""The runtime's own format: the same bytes, fused, portable, and damage is said."""

from __future__ import annotations

import dataclasses
import hashlib
import platform
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper

from edgeopt import quantize
from edgeopt.backends import onnxruntime as backend
from edgeopt.backends.onnxruntime import ort_format
from edgeopt.errors import ModelError, TargetError, ToolchainError
from edgeopt.interpreter import Interpreter
from edgeopt.target import Target, load_target
from tests.unit.passes.helpers import build, from_proto

from .nets import rand, residual_net

X = np.random.default_rng(0).normal(size=(2, 1, 28, 28)).astype(np.float32)


def board(name: str = "raspberry-pi-5", **changes: object) -> Target:
    return dataclasses.replace(load_target(name), format="ort", **changes)


def quantized_net(target: Target):
    model = residual_net()
    calibrated = quantize.calibrate(model, backend.TABLE, target.int8, [{"x": X}], exclude=frozenset())
    assert calibrated is not None
    return model, quantize.quantize(calibrated, quantize.Choice())


@pytest.mark.parametrize("name", ["raspberry-pi-5", "x86-avx512-vnni"])
def test_a_float_network_runs_from_ort_as_from_onnx(name: str, tmp_path: Path) -> None:
    model, target = residual_net(), board(name)
    plain = backend.lower(model, dataclasses.replace(target, format="onnx"), tmp_path / "a.onnx", precision="float32")
    artifact = backend.lower(model, target, tmp_path / "b.onnx", precision="float32")
    assert (artifact.path.suffix, artifact.format) == (".ort", "ort")
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["a.onnx", "b.ort"]
    want, got = (Interpreter(a.path).run({"x": X})["y"] for a in (plain, artifact))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert backend.minimum(artifact.path) == {
        "onnxruntime": "1.17.0",
        "opset": 20,
        "ir_version": 9,
        "ort_format": "6",
    }


def test_int8_is_joined_in_the_file_because_loading_it_joins_nothing(tmp_path: Path) -> None:
    target = board()
    model, quantized = quantized_net(target)
    artifact = backend.lower(quantized.model, target, tmp_path / "q.onnx", precision="int8")
    ops = Counter(n.op for n in ort_format.read(artifact.path).nodes)
    assert ops["QLinearConv"] == 3
    assert ops["Conv"] == 0
    plain = backend.lower(
        quantized.model, dataclasses.replace(target, format="onnx"), tmp_path / "p.onnx", precision="int8"
    )
    want, got = (Interpreter(a.path).run({"x": X})["y"] for a in (plain, artifact))
    assert np.abs(want - got).max() <= 0.02 * np.abs(want).max()
    assert backend.fused(artifact.path, model, target, quantized).mismatches == ()


@pytest.mark.parametrize("name", ["raspberry-pi-5", "x86-avx512-vnni"])
def test_no_node_belongs_to_one_kind_of_processor(name: str, tmp_path: Path) -> None:
    artifact = backend.lower(residual_net(), board(name), tmp_path / "a.onnx", precision="float32")
    assert {n.domain for n in ort_format.read(artifact.path).nodes} <= {"", "com.microsoft"}


def test_layouts_of_one_processor_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted error: the level above writes them on x86."""
    monkeypatch.setattr(
        ort.GraphOptimizationLevel, "ORT_ENABLE_EXTENDED", ort.GraphOptimizationLevel.ORT_ENABLE_ALL, raising=True
    )
    model = residual_net(channels=32)
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("the layout is that of x86")
    with pytest.raises(ToolchainError, match=r"com\.microsoft\.nchwc"):
        backend.lower(model, board(), tmp_path / "a.onnx", precision="float32")
    assert list(tmp_path.iterdir()) == []


def test_the_same_model_gives_the_same_bytes_though_the_runtime_does_not(tmp_path: Path) -> None:
    target = board()
    model, quantized = quantized_net(target)
    for graph in (model, quantized.model):
        digests = {backend.lower(graph, target, tmp_path / f"{i}.onnx", precision="float32").sha256 for i in range(6)}
        assert len(digests) == 1


def written(folder: Path, name: str = "w.ort") -> bytes:
    """A file as the runtime writes it, with its index in the order of a hash table."""
    settings = ort.SessionOptions()
    settings.add_session_config_entry("session.save_model_format", "ORT")
    settings.optimized_model_filepath = str(folder / name)
    proto = ir.to_proto(residual_net().ir).SerializeToString()
    ort.InferenceSession(proto, settings, providers=["CPUExecutionProvider"])
    return (folder / name).read_bytes()


def test_the_index_holds_the_same_entries_in_order(tmp_path: Path) -> None:
    data = written(tmp_path)
    sorted_ = ort_format.ordered(data)

    def index(raw: bytes):
        root = ort_format._target(raw, 0)
        assert root is not None
        resolver = ort_format._target(raw, ort_format._field(raw, root, 3))
        assert resolver is not None
        return ort_format._read_index(raw, resolver)[0]

    assert index(sorted_) == sorted(index(data))
    assert ort_format.ordered(sorted_) == sorted_
    assert len(sorted_) % 64 == 0


@pytest.mark.parametrize("share", [0.001, 0.3, 0.7, 0.97])
def test_a_file_that_is_cut_off_is_said_to_be(share: float, tmp_path: Path) -> None:
    data = written(tmp_path)
    path = tmp_path / "cut.ort"
    path.write_bytes(data[: max(8, int(len(data) * share))])
    with pytest.raises(ModelError, match="damaged"):
        ort_format.read(path)


def test_damage_never_leads_outside_or_hangs(tmp_path: Path) -> None:
    data = bytearray(written(tmp_path))
    rng = np.random.default_rng(0)
    path = tmp_path / "bent.ort"
    for _ in range(300):
        bent = bytearray(data)
        for at in rng.integers(0, min(4000, len(bent)), 4):
            bent[at] = int(rng.integers(0, 256))
        bent[4:8] = b"ORTM"
        path.write_bytes(bent)
        try:
            ort_format.read(path)
        except ModelError:
            continue


def test_a_version_that_the_runtime_does_not_read_is_a_clear_refusal(tmp_path: Path) -> None:
    artifact = backend.lower(residual_net(), board(), tmp_path / "a.onnx", precision="float32")
    data = bytearray(artifact.path.read_bytes())
    place = data.index(b"\x01\0\0\x006\0", 0)
    data[place + 4] = ord("9")
    artifact.path.write_bytes(data)
    with pytest.raises(ModelError, match=r"\.ort|ORT format model version"):
        Interpreter(artifact.path)


def test_something_else_is_not_taken_for_it(tmp_path: Path) -> None:
    path = tmp_path / "a.ort"
    path.write_bytes(onnx.ModelProto(ir_version=8).SerializeToString() + bytes(16))
    assert not ort_format.is_ort(path)
    with pytest.raises(ModelError, match="no .ort file"):
        ort_format.read(path)


def test_subgraphs_are_read(tmp_path: Path) -> None:
    text = """g (float[2,4] x, bool c) => (float[2,4] y) {
        y = If(c) <
            then_branch = t () => (float[2,4] a) { a = Selu(x) },
            else_branch = e () => (float[2,4] b) { b = Softsign(x) }>
    }"""
    artifact = backend.lower(build(text), board(), tmp_path / "a.onnx", precision="float32")
    assert {"If", "Selu", "Softsign"} <= {n.op for n in ort_format.read(artifact.path).nodes}


def test_an_old_opset_is_converted_before_the_runtime_writes_it(tmp_path: Path) -> None:
    target = board(opset_max=19, runtime={"onnxruntime": "1.16.3"})
    model = build("g (float[1,3,6,6] x) => (float[1,2,4,4] y) { c = Conv(x, w) y = Mish(c) }", w=rand(0, 2, 3, 3, 3))
    artifact = backend.lower(model, target, tmp_path / "a.onnx", precision="float32")
    assert backend.minimum(artifact.path)["onnxruntime"] == "1.16.0"


def test_a_custom_operator_without_its_library_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("Plugin", ["x"], ["y"], domain="acme")
    x, y = (helper.make_tensor_value_info(n, 1, [2]) for n in "xy")
    sets = [helper.make_opsetid("", 20), helper.make_opsetid("acme", 1)]
    proto = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=sets, ir_version=9)
    with pytest.raises(ModelError, match="cannot write the model as .ort"):
        backend.lower(from_proto(proto), board(), tmp_path / "a.onnx", precision="float32")
    assert list(tmp_path.iterdir()) == []


def test_the_profile_asks_for_it(tmp_path: Path) -> None:
    from edgeopt.target import share_dir

    text = (share_dir("targets") / "raspberry-pi-5.toml").read_text()
    path = tmp_path / "board.toml"
    path.write_text(text.replace("threads = 4", 'threads = 4\nformat = "ort"'))
    assert load_target(str(path)).format == "ort"
    path.write_text(text.replace("threads = 4", 'threads = 4\nformat = "tflite"'))
    with pytest.raises(TargetError, match="format"):
        load_target(str(path))


def test_digest_is_of_the_file(tmp_path: Path) -> None:
    artifact = backend.lower(residual_net(), board(), tmp_path / "a.onnx", precision="float32")
    assert artifact.sha256 == hashlib.sha256(artifact.path.read_bytes()).hexdigest()
    assert artifact.bytes == artifact.path.stat().st_size
