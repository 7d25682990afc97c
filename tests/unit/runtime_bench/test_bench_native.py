"""Artifacts that hold the runtime's own graph: loaded with the optimizer off, refused where they would be wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import runtime_bench
from runtime_bench import cli, manifest, native, verify
from runtime_bench.errors import BenchFailure
from runtime_bench.runners import onnxruntime as runner
from tests.unit.runtime_bench.conftest import Bundle
from tests.unit.runtime_bench.test_bench_verify import machine

WIDE = {"arch": "x86_64", "block": 16, "onnxruntime": ort.__version__}
OFF = {"optimizer": "off"}


def bind(bundle: Bundle, bound: dict[str, Any], path: str = "model/m.float32.onnx") -> Any:
    bundle.manifest["run"]["native"] = {path: {"options": OFF, "bound": bound}}
    bundle.seal()
    return manifest.parse(bundle.manifest)


def test_options_of_its_own_are_for_that_artifact_alone(bundle: Bundle) -> None:
    contract = bind(bundle, {})
    bundle.manifest["run"]["native"]["model/m.float32.onnx"]["options"] = {**OFF, "provider": "x", "custom_ops": "y"}
    contract = manifest.parse(bundle.manifest)
    shared = {"session.intra_op.allow_spinning": "0"}
    assert contract.options_of(contract.default) == shared
    assert contract.fallback is not None
    assert contract.options_of(contract.fallback) == {**shared, **OFF}
    assert verify.run_options(contract, contract.fallback)["optimizer"] == "off"
    assert "optimizer" not in verify.run_options(contract, contract.default)


@pytest.mark.parametrize(
    "entry",
    [
        "off",
        {"options": [], "bound": {}},
        {"options": {}, "bound": []},
        {"options": {}, "bound": {"arch": 64}},
        {"options": {}, "bound": {"arch": "x86_64", "block": "16"}},
        {"options": {}, "bound": {"arch": "x86_64", "block": True}},
        {"options": {}, "bound": {"cache_bytes": 64}},
    ],
)
def test_an_entry_that_this_program_does_not_understand_is_refused(entry: Any, bundle: Bundle) -> None:
    bundle.manifest["run"]["native"] = {"model/m.float32.onnx": entry}
    with pytest.raises(runtime_bench.VerifyFailure, match="does not say what the artifact is bound to") as caught:
        manifest.parse(bundle.manifest)
    assert caught.value.code == 9


@pytest.mark.parametrize(
    ("bound", "name", "here"),
    [
        (WIDE, "Tiger Lake", None),
        ({"onnxruntime": ort.__version__}, "Cortex-A72", None),
        ({"arch": "aarch64"}, "Cortex-A72", None),
        (WIDE, "Ryzen V2000", "this machine is x86_64 without avx512f (blocks of 8 channels)"),
        (WIDE, "Cortex-A76", "this machine is aarch64"),
        ({**WIDE, "block": 8}, "Tiger Lake", "this machine is x86_64 with avx512f (blocks of 16 channels)"),
        ({"arch": "aarch64"}, "Tiger Lake", "this machine is x86_64 with avx512f (blocks of 16 channels)"),
    ],
)
def test_another_kind_of_processor_is_refused_by_both_names(
    bound: dict[str, Any],
    name: str,
    here: str | None,
    bundle: Bundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    contract = bind(bundle, bound)
    root = machine(name, tmp_path, monkeypatch)
    if here is None:
        native.require_machine(contract.native, root)
        return
    with pytest.raises(runtime_bench.VerifyFailure) as caught:
        verify.machine_warnings(contract, root)
    assert caught.value.code == 9
    assert caught.value.message.startswith(f"model/m.float32.onnx is built for {bound['arch']}")
    assert caught.value.message.endswith(here)
    assert "Build it again on this machine, or for a named profile" in str(caught.value)


def test_features_that_cannot_be_read_do_not_pass(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contract = bind(bundle, WIDE)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with pytest.raises(runtime_bench.VerifyFailure, match="x86_64, whose features cannot be read"):
        native.require_machine(contract.native, str(tmp_path))


def test_another_release_is_refused_older_or_newer(bundle: Bundle) -> None:
    contract = bind(bundle, {"onnxruntime": ort.__version__})
    assert verify.require_runtime(contract)["version"] == ort.__version__
    for release in ("1.10.0", "99.1.0"):
        contract = bind(bundle, {"onnxruntime": release})
        with pytest.raises(runtime_bench.VerifyFailure) as caught:
            verify.require_runtime(contract)
        assert caught.value.code == 9
        text = f"holds operators inside onnxruntime {release} and runs in no other release; here is {ort.__version__}"
        assert caught.value.message.endswith(text)
        assert f"pip install onnxruntime=={release}" in str(caught.value)
    assert "pip install onnxruntime" in native.REMEDY + native._requirement("pip install onnxruntime", "1; rm")


def test_bench_pyz_refuses_with_9_before_it_runs_anything(bundle: Bundle) -> None:
    bind(bundle, {"arch": "riscv64"})
    for command in ([], ["verify"]):
        program = [sys.executable, str(bundle.root / "bench.pyz"), *command]
        done = subprocess.run(program, capture_output=True, text=True, check=False)
        assert done.returncode == 9
        assert done.stdout == ""
        [line] = done.stderr.strip().splitlines()
        assert "model/m.float32.onnx is built for riscv64 and computes wrong numbers elsewhere; this machine is" in line
        assert "Build it again on this machine" in line


def test_bench_measures_each_artifact_with_its_own_options(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    bind(bundle, {})
    seen: list[dict[str, Any]] = []

    def measure(subjects: Any, *_: Any, **__: Any) -> Any:
        seen.extend(subject.options for subject in subjects)
        raise BenchFailure("enough")

    monkeypatch.setattr("runtime_bench.protocol.measure", measure)
    assert cli.main(["--bundle", str(bundle.root)]) == 8
    assert [options.get("optimizer") for options in seen] == ["off", None]


def two_relus(folder: Path) -> Path:
    """Relu(Relu(x)), of which the optimizer leaves one."""
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "xy"]
    nodes = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Identity", ["h"], ["i"])]
    nodes.append(helper.make_node("Relu", ["i"], ["y"]))
    graph = helper.make_graph(nodes, "g", value[:1], value[1:])
    path = folder / "relus.onnx"
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)]), path)
    return path


def test_the_runner_leaves_a_graph_as_it_is(tmp_path: Path) -> None:
    path, feeds = str(two_relus(tmp_path)), {"x": np.float32([[-1, 0, 1, 2]])}
    counts = {}
    for options in ({}, {"optimizer": "on"}, OFF):
        audit = runner.audit(path, options, feeds)
        counts[options.get("optimizer")] = audit["nodes"]
        assert runner.load(path, options).infer(feeds)["y"].tolist() == [[0, 0, 1, 2]]
    assert counts["off"] == 3
    assert counts[None] == counts["on"] < 3
    with pytest.raises(BenchFailure, match='optimizer is "on" or "off", not \'slow\''):
        runner.load(path, {"optimizer": "slow"})


@pytest.mark.skipif(native.BLOCKS.get("x86_64") is None or sys.platform != "linux", reason="x86-64 only")
def test_the_audit_of_blocked_convolutions_counts_what_the_portable_file_counts(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    w = numpy_helper.from_array(rng.normal(size=(16, 16, 3, 3)).astype(np.float32), "w")
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16, 8, 8]) for name in "xy"]
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])]
    graph = helper.make_graph(nodes, "g", value[:1], value[1:], [w])
    portable, made = tmp_path / "p.onnx", tmp_path / "n.onnx"
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)]), portable)
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.optimized_model_filepath = str(made)
    ort.InferenceSession(str(portable), settings)
    feeds = {"x": rng.normal(size=(1, 16, 8, 8)).astype(np.float32)}
    as_loaded, as_written = runner.audit(str(portable), {}, feeds), runner.audit(str(made), OFF, feeds)
    assert as_written == as_loaded
    assert as_written["float_macs"] == 8 * 8 * 16 * 16 * 9
