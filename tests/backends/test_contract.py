"""What every backend promises, tried with each of them."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from edgeopt.backends import Artifact, Fused, NodeRun
from edgeopt.backends.registry import BACKENDS, INSTALL
from edgeopt.budget import BUILT_FOR
from edgeopt.errors import ModelError, ToolchainError
from edgeopt.interpreter import Interpreter
from edgeopt.model import Model, file_sha256, node_key
from edgeopt.quantize import Choice, QuantizedModel, calibrate, quantize
from edgeopt.target import Target, load_target
from runtime_bench import runners
from runtime_bench.errors import BenchFailure
from tests.backends import networks

EXACT = 1e-5


@pytest.fixture(params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> ModuleType:
    module = BACKENDS[request.param]
    if (reason := module.probe()) is not None:
        pytest.skip(reason)
    return module


@pytest.fixture
def target() -> Target:
    return load_target("intel-n100")


def int8(backend: ModuleType, target: Target, model: Model) -> QuantizedModel:
    found = calibrate(model, backend.TABLE, target.int8, iter(networks.samples()))
    assert found is not None
    return quantize(found, Choice())


def files(artifact: Artifact) -> list[Path]:
    return [artifact.path, *([artifact.data.path] if artifact.data is not None else [])]


def error(expected: dict[str, np.ndarray], got: dict[str, np.ndarray]) -> float:
    assert list(expected) == list(got)
    assert [v.shape for v in expected.values()] == [v.shape for v in got.values()]
    assert [v.dtype for v in expected.values()] == [v.dtype for v in got.values()]
    return max(float(np.abs(expected[n] - got[n]).max() / np.abs(expected[n]).max()) for n in expected)


def test_the_registry_is_what_the_command_line_offers() -> None:
    assert tuple(BACKENDS) == BUILT_FOR
    assert set(INSTALL) == set(BACKENDS)
    assert all(name in runners.RUNNERS for name in BACKENDS)


def test_an_artifact_computes_what_the_network_does(backend: ModuleType, target: Target, tmp_path: Path) -> None:
    model = networks.named()
    artifact = backend.lower(model, target, tmp_path / "net.float32.onnx", precision="float32")
    interpreter = backend.interpreter(artifact.path)
    assert interpreter.inputs == ("x",)
    assert interpreter.outputs == ("late", "early")
    for batch, width in ((1, 9), (3, 16)):
        feeds = networks.samples(1, (batch, 4, networks.SIDE, width))[0]
        assert error(Interpreter(model).run(feeds), interpreter.run(feeds)) < EXACT


def test_what_an_artifact_says_of_its_files(backend: ModuleType, target: Target, tmp_path: Path) -> None:
    artifact = backend.lower(networks.named(), target, tmp_path / "net.float32.onnx", precision="float32")
    assert sorted(files(artifact)) == sorted(tmp_path.iterdir())
    assert artifact.bytes == sum(file.stat().st_size for file in files(artifact))
    assert artifact.sha256 == file_sha256(artifact.path)
    assert artifact.data is None or artifact.data.sha256 == file_sha256(artifact.data.path)
    assert artifact.runner == backend.NAME
    assert backend.NAME in artifact.toolchain
    assert backend.NAME in backend.minimum(artifact.path)


def test_the_same_network_gives_the_same_bytes(backend: ModuleType, target: Target, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from edgeopt.backends.registry import BACKENDS\n"
        "from edgeopt.target import load_target; from tests.backends import networks\n"
        f"BACKENDS[{backend.NAME!r}].lower(networks.named(), load_target('intel-n100'), Path(sys.argv[1]), "
        "precision='float32')"
    )
    (tmp_path / "far").mkdir()
    command = [sys.executable, "-c", program, str(tmp_path / "far" / "net.onnx")]
    root = Path(__file__).parents[2]
    subprocess.run(command, check=True, cwd=root, env={"PYTHONHASHSEED": "7", "PYTHONPATH": str(root)})
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        made = backend.lower(networks.named(), target, tmp_path / name / "net.onnx", precision="float32")
        for file in files(made):
            assert file.read_bytes() == (tmp_path / "far" / file.name).read_bytes(), name


def test_int8_is_read_back(backend: ModuleType, target: Target, tmp_path: Path) -> None:
    model = networks.case("Add", relu=True)
    quantized = int8(backend, target, model)
    artifact = backend.lower(quantized.model, target, tmp_path / "q.onnx", precision="int8")
    found = backend.fused(artifact.path, model, target, quantized)
    assert isinstance(found, Fused)
    assert found.mismatches == ()
    assert [n.key for n in found.nodes] == [node_key(n) for n in model.graph]
    runs = {n.key: n.runs for n in found.nodes}
    assert [runs[key] for key in ("c", "d", "z")] == ["int8"] * 3
    assert set(runs.values()) <= {"int8", "float", "fused"}
    assert all(isinstance(n, NodeRun) for n in found.nodes)


def test_a_float_file_in_the_place_of_int8_is_found_out(backend: ModuleType, target: Target, tmp_path: Path) -> None:
    model = networks.case("Conv", relu=True)
    quantized = int8(backend, target, model)
    artifact = backend.lower(model, target, tmp_path / "f.onnx", precision="float32")
    found = backend.fused(artifact.path, model, target, quantized)
    assert {line.split(" ")[0] for line in found.mismatches} == {"c", "m", "z"}
    plain = backend.fused(artifact.path, model, target, None)
    assert plain.mismatches == ()
    assert not [n for n in plain.nodes if n.runs == "int8"]


def test_an_older_runtime_on_the_device_is_refused(backend: ModuleType, target: Target, tmp_path: Path) -> None:
    old = dataclasses.replace(target, runtime={backend.NAME: "0.9"})
    with pytest.raises(ToolchainError, match=r"or newer .*intel-n100 has 0\.9") as caught:
        backend.lower(networks.named(), old, tmp_path / "net.onnx", precision="float32")
    assert f"Update {backend.NAME} on the device" in str(caught.value.remedy)
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_is_refused_in_one_sentence(backend: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / ("net.xml" if backend.NAME == "openvino" else "net.onnx")
    path.write_bytes(b"<?xml version='1.0'?><net>" * 3)
    with pytest.raises(ModelError, match="does not load the model") as caught:
        backend.interpreter(path)
    assert "\n" not in caught.value.message


def test_inputs_that_do_not_fit_are_refused(backend: ModuleType, target: Target, tmp_path: Path) -> None:
    artifact = backend.lower(networks.named(), target, tmp_path / "net.onnx", precision="float32")
    interpreter = backend.interpreter(artifact.path)
    for wrong in (np.zeros((1, 3, 8, 8), np.float32), np.zeros((1, 4, 8, 8), np.float64), np.zeros(4, np.float32)):
        with pytest.raises(ModelError, match="the model fails on a sample"):
            interpreter.run({"x": wrong})


def test_the_runner_runs_and_tells_what_ran(backend: ModuleType, target: Target, tmp_path: Path) -> None:
    model = networks.case("Conv", relu=True)
    quantized = int8(backend, target, model)
    made = backend.lower(quantized.model, target, tmp_path / "q.onnx", precision="int8")
    runner, feeds = runners.get(backend.NAME), networks.samples(1)[0]
    runner.import_runtime()
    options = {"threads": 1, "provider": backend.PROVIDER}
    loaded = runner.load(str(made.path), options)
    expected = backend.interpreter(made.path).run(feeds)
    np.testing.assert_array_equal(loaded.infer(feeds)["y"], expected["y"])
    loaded.bind(feeds)()
    assert loaded.runtime["name"] == backend.NAME
    found = runner.audit(str(made.path), options, feeds)
    macs = networks.SIDE**2 * networks.CHANNELS * (4 + 9 * networks.CHANNELS + 12)
    assert found["integer_macs"] == macs
    assert found["float_macs"] == 0
    plain = backend.lower(model, target, tmp_path / "f.onnx", precision="float32")
    found = runner.audit(str(plain.path), options, feeds)
    assert (found["integer_macs"], found["float_macs"] >= macs) == (0, True)
    small = runner.load(runner.BASELINE, options)
    small.bind(runner.baseline_feeds())()


def test_the_runner_refuses_what_it_does_not_load(backend: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / ("net.xml" if backend.NAME == "openvino" else "net.onnx")
    path.write_bytes(b"nothing")
    runner = runners.get(backend.NAME)
    with pytest.raises(BenchFailure, match=f"^{backend.NAME}") as caught:
        runner.load(str(path), {"threads": 1})
    assert "\n" not in str(caught.value)
