"""bench: what is measured, where it runs, and what is said when it does not (B04, B05)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeopt.cli import bench
from runtime_bench import process, protocol, verify
from tests.unit.cli.conftest import Call, seal
from tests.unit.runtime_bench.conftest import Bundle

CPU = "CPUExecutionProvider"
SHORT = ("--seconds", "0.2", "-q")


def test_bench_a_bundle_against_its_way_back(call: Call, bundle: Bundle, tmp_path: Path) -> None:
    out_file = tmp_path / "mësure.json"
    code, out, err = call("bench", bundle.root, "--seconds", "0.2", "-o", out_file)
    assert (code, out) == (0, f"{out_file}\n")
    measurement = json.loads(out_file.read_text())
    assert measurement["schema"] == "edgeopt.measurement/2"
    assert [s["name"] for s in measurement["subjects"]] == ["float32", "int8"]
    assert measurement["order"][:2] == ["float32", "int8"]
    assert err.count("float32") >= 2
    assert "p99" in err
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".tmp"] == []
    code, out, err = call("bench", bundle.root, "--seconds", "0.2", "-o", out_file, "--json", "-q")
    assert code == 0
    assert json.loads(out) == json.loads(out_file.read_text())


def test_bench_prints_a_table_on_stdout(call: Call, model: Path) -> None:
    code, out, _ = call("bench", model, "--seconds", "0.1", "--threads", "1")
    assert code == 0
    assert "n/a (needs 3688)" in out
    assert "inputs: one sample of seeded random values" in out
    assert "grade: " in out
    assert "interpreter" in out
    assert "1 thread" in out


def test_bench_writes_over_nothing_that_is_no_measurement(call: Call, model: Path, tmp_path: Path) -> None:
    before = model.read_bytes()
    for target in (model, tmp_path, tmp_path / "no" / "such.json"):
        code, out, err = call("bench", model, "-o", target)
        assert (code, out) == (8, "")
        assert "error: " in err
    assert model.read_bytes() == before


def test_bench_of_a_model_with_dynamic_dims_asks_for_a_shape(call: Call, tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", "length"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", "length"])],
    )
    path = tmp_path / "d.onnx"
    path.write_bytes(
        helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()
    )
    code, out, err = call("bench", path)
    assert (code, out) == (3, "")
    assert "--shape x=" in err
    assert call("bench", path, "--shape", "x=1x16", "--seconds", "0.1")[0] == 0


def measured(call: Call, *args: Any) -> dict[str, Any]:
    """The measurement of a run that must succeed."""
    code, out, err = call("bench", *args, *SHORT, "--json")
    assert code == 0, err
    return dict(json.loads(out))


def failed(call: Call, *args: Any) -> tuple[int, str]:
    """Exit code and error of a run that must fail with nothing on stdout."""
    code, out, err = call("bench", *args, *SHORT)
    assert out == ""
    assert "Traceback" not in err
    return code, next(line for line in err.splitlines() if line.startswith("error: "))


def test_b04_a_provider_that_ran_nothing(call: Call, model: Path, tmp_path: Path) -> None:
    """The CPU wheel has an Azure provider; sessions name it first and run every node on the CPU."""
    target = tmp_path / "m.json"
    code, error = failed(call, model, "--provider", "azure", "-o", target)
    assert code == 8
    assert f"asked AzureExecutionProvider, got {CPU}: 2 of 2 nodes (100 % of the MACs) ran there" in error
    assert not target.exists()
    measurement = measured(call, model, "--provider", "azure", "--allow-fallback")
    subject = measurement["subjects"][0]
    assert (subject["runtime"]["provider"], subject["runtime"]["asked"]) == (CPU, "AzureExecutionProvider")
    assert subject["audit"]["providers"] == {CPU: 2}
    assert sum(entry["count"] for entry in subject["audit"]["outside"]) == 2
    reasons = [r["text"] for r in measurement["results"]["stability"]["reasons"] if r["code"].startswith("provider")]
    assert "AzureExecutionProvider" in reasons[0]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("cuda", 'pip install numpy "onnxruntime-gpu'),
        ("TensorRT", 'pip install numpy "onnxruntime-gpu'),
        ("openvino", 'pip install numpy "onnxruntime-openvino'),
        ("CUDAExecutionProviderr", 'Did you mean "CUDAExecutionProvider"?'),
        ("opnvino", 'Did you mean "openvino"?'),
    ],
)
def test_b04_a_provider_that_is_not_there(call: Call, model: Path, bundle: Bundle, word: str, said: str) -> None:
    for subject in (model, bundle.root):
        code, error = failed(call, subject, "--provider", word)
        assert (code, said in error) == (6, True), error
        assert CPU in error


def test_b04_a_fallback_that_is_allowed_says_what_ran(call: Call, bundle: Bundle) -> None:
    measurement = measured(call, bundle.root, "--provider", "cuda", "--allow-fallback")
    for subject in measurement["subjects"]:
        assert (subject["runtime"]["provider"], subject["runtime"]["asked"]) == (CPU, "CUDAExecutionProvider")
        assert subject["audit"]["providers"] == {CPU: subject["audit"]["nodes"]}


def test_load_and_pinning_are_recorded(call: Call, model: Path) -> None:
    measurement = measured(call, model, "--fps", "200", "--no-pin", "--provider", "CPU")
    assert measurement["load"] == {"kind": "periodic", "fps": 200.0, "period_ns": 5_000_000}
    assert measurement["affinity"] is None
    assert measured(call, model)["load"] == {"kind": "back_to_back"}


@pytest.mark.parametrize(
    "option", [("--fps", "0"), ("--fps", "0.01"), ("--fps", "nan"), ("--fps", "10001"), ("--seconds", "inf")]
)
def test_numbers_that_make_no_sense_are_wrong_usage(call: Call, model: Path, option: tuple[str, str]) -> None:
    code, out, err = call("bench", model, *option)
    assert (code, out) == (2, "")
    assert option[0] in err


def test_the_highest_rate_is_the_one_of_the_protocol() -> None:
    option = next(p for p in bench.command.params if p.name == "fps")
    assert isinstance(option.type, click.FloatRange)
    assert (option.type.min, option.type.max) == (protocol.MIN_FPS, protocol.MAX_FPS)


def test_precision_is_what_the_manifest_claims(call: Call, bundle: Bundle) -> None:
    measurement = measured(call, bundle.root)
    assert [s["precision"] for s in measurement["subjects"]] == ["float32", "int8"]
    assert measurement["subjects"][1]["audit"]["integer_nodes"] > 0


def test_int8_in_which_no_integer_kernel_runs_is_invalid(call: Call, bundle: Bundle, tmp_path: Path) -> None:
    (bundle.root / "model/m.int8.onnx").write_bytes((bundle.root / "model/m.float32.onnx").read_bytes())
    seal(bundle)
    target = tmp_path / "m.json"
    code, _, err = call("bench", bundle.root, *SHORT, "-o", target)
    assert code == 8
    assert "error: the measurement is invalid: " in err
    assert "no integer kernel ran" in err
    assert json.loads(target.read_text())["results"]["stability"]["grade"] == "invalid"


def test_b05_missing_features_are_told_before_a_runtime_is_imported(
    call: Call, bundle: Bundle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, said = verify.environment.describe, []

    def describe(*args: Any) -> dict[str, Any]:
        return {**real(*args), "flags": ["avx2"], "cpu": "an old processor"}

    def run(*args: Any) -> Any:
        said.append(capsys.readouterr().err)
        raise KeyboardInterrupt

    bundle.manifest["target"] = {"name": "new", "arch": verify.isa.architecture(verify.platform.machine())}
    bundle.manifest["target"]["isa"] = ["avx2", "avx512_vnni"]
    seal(bundle)
    monkeypatch.setattr(verify.environment, "describe", describe)
    measurement = measured(call, bundle.root)
    assert measurement["isa"] == ["avx2", "avx512_vnni"]
    assert "isa_missing" in {r["code"] for r in measurement["results"]["stability"]["reasons"]}
    monkeypatch.setattr(process, "run", run)
    assert call("bench", bundle.root)[0] == 130
    assert said[0].startswith("warning: this processor (an old processor) lacks avx512_vnni, which the target has")


def test_a_bundle_for_another_architecture_is_measured_with_a_warning(call: Call, bundle: Bundle) -> None:
    bundle.manifest["target"] = {"name": "other", "arch": "riscv64", "isa": ["asimddp"]}
    seal(bundle)
    code, out, err = call("bench", bundle.root, "--seconds", "0.2", "--json")
    assert code == 0
    assert "the target (other) is riscv64: speed and memory here say nothing about it" in err
    assert json.loads(out)["isa"] == []


def one_node(op: str, kind: int, opset: int) -> bytes:
    weight = np.ones((4, 3, 3, 3), helper.tensor_dtype_to_np_dtype(kind))
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w"], ["y"], name="it")],
        "g",
        [helper.make_tensor_value_info("x", kind, [1, 8])],
        [helper.make_tensor_value_info("y", kind, [1, 5])],
        [numpy_helper.from_array(weight, "w")],
    )
    sets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, ir_version=8, opset_imports=sets).SerializeToString()


def double_conv() -> bytes:
    """A convolution of doubles: valid ONNX, and the CPU provider has no kernel for it."""
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], name="it")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [1, 4, 6, 6])],
        [numpy_helper.from_array(np.ones((4, 3, 3, 3)), "w")],
    )
    sets = [helper.make_opsetid("", 13)]
    return helper.make_model(graph, ir_version=8, opset_imports=sets).SerializeToString()


def test_b05_an_operator_without_a_kernel(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(double_conv())
    code, error = failed(call, path)
    assert code == 8
    assert 'has no kernel for Conv(11) (node "it")' in error


def test_b05_an_opset_that_is_too_new(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(one_node("Relu", TensorProto.FLOAT, 99))
    code, error = failed(call, path)
    assert code == 3  # the loader refuses it before a runtime sees it
    assert "operator set 99" in error


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (double_conv(), 'has no kernel for Conv(11) (node "it")'),
        (one_node("Relu", TensorProto.FLOAT, 99), "the model has opset 99, onnxruntime"),
    ],
)
def test_b05_a_model_that_the_runtime_refuses_on_a_device(bundle: Bundle, data: bytes, said: str) -> None:
    (bundle.root / "model/m.int8.onnx").write_bytes(data)
    seal(bundle)
    command = [sys.executable, str(bundle.root / "bench.pyz"), "--seconds", "0.2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (8, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
