"""The main job in one process: models in, bundles out, and every way it can say no."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeopt import bundle, calibration, loaders, quality, quantize
from edgeopt.backends import onnxruntime as backend
from edgeopt.errors import BudgetError, BundleError, CalibrationError, ModelError, QualityError, TargetError
from edgeopt.interpreter import Interpreter
from edgeopt.pipeline import Request, build
from edgeopt.target import Budget, Int8Scheme
from tests.short_sets import NET, short_sets

ROOT = Path(__file__).parents[2]
CALIB, EVAL = (str(ROOT / "calibration" / f"fashion-mnist-{kind}.toml") for kind in ("calib", "eval"))


def request(out: Path, **changes: object) -> Request:
    values: dict[str, object] = {"model": NET, "target": "raspberry-pi-5", "out": out, "effort": "none"}
    return Request(**(values | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Changes of a request: few samples, for what does not depend on them."""
    calib, evaluate = short_sets(tmp_path_factory.mktemp("short"))
    return {"calib": calib, "evaluate": evaluate}


def compare_minmax() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare_minmax", ROOT / "scripts" / "compare_minmax.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("target", ["raspberry-pi-5", "jetson", "host", "x86-avx2", "x86-avx512-vnni"])
def test_the_embedded_network_beats_min_max_in_the_same_run(target: str) -> None:
    theirs, ours = compare_minmax().compare(NET, target)
    assert ours.seen.sqnr_db >= theirs.seen.sqnr_db - (0 if target != "x86-avx2" else 6)  # avx2: 7-bit weights
    assert ours.seen.metric.drop <= 0.01
    assert ours.bytes < 0.5 * NET.stat().st_size


@pytest.mark.parametrize(
    "source", ["fashion-mnist.onnx", pytest.param("fashion-mnist.pt2", marks=pytest.mark.needs_torch)]
)
def test_a_bundle_is_whole_verifies_and_says_what_it_is(source: str, tmp_path: Path) -> None:
    if source.endswith(".pt2"):
        pytest.importorskip("torch")
    built = build(request(tmp_path / "out", model=NET.parent / source, effort="quick", seconds=8))
    records = ("SHA256SUMS", "RECORDS.sha256", "diary.jsonl", "decisions.lock", "measurements/build.json")
    for name in (*records, "report.html", "report.md", "report.json", "bench.pyz", "README.md"):
        assert (built.root / name).stat().st_size > 0, name
    assert bundle.verify(built.root)["ok"]
    manifest = built.manifest
    assert manifest["default_artifact"] == "model/fashion-mnist.int8.onnx"
    assert [a["role"] for a in manifest["artifacts"]] == ["default", "fallback"]
    assert manifest["measured_on"]["is_target"] is False
    assert manifest["quality"]["metric"]["drop"] <= 0.01
    assert manifest["quality"]["samples"] == 3000
    assert manifest["signature"]["inputs"][0]["layout"] == "NCHW"
    assert manifest["placement"]["int8"] >= 5
    for figures in manifest["memory"].values():
        assert figures["runtime"]["bytes"] > 1_000_000
    golden = np.load(built.root / manifest["golden"]["samples"][0]["inputs"][0])
    output = manifest["signature"]["outputs"][0]["name"]
    own = Interpreter(built.root / manifest["default_artifact"]).run({"x": golden})[output]
    np.testing.assert_array_equal(own, np.load(built.root / manifest["golden"]["samples"][0]["outputs"]["int8"][0]))


def test_jetson_says_that_tensorrt_was_not_built(tmp_path: Path, brief: dict[str, str]) -> None:
    built = build(request(tmp_path / "out", target="jetson", **brief))
    assert built.manifest["backend"] == {
        "name": "onnxruntime",
        "preferred": "tensorrt",
        "reason": "this version of edgeopt does not build for tensorrt",
    }
    for where in (
        built.manifest["verdict"]["warnings"],
        [(built.root / n).read_text() for n in ("report.md", "report.html")],
    ):
        assert any("tensorrt" in text.lower() for text in where)


def test_a_locked_build_gives_the_same_identity_and_sums(tmp_path: Path, brief: dict[str, str]) -> None:
    first = build(request(tmp_path / "a", effort="quick", seconds=5, **brief))
    again = build(request(tmp_path / "b", locked=tmp_path / "a", effort="quick", seconds=5, **brief))
    third = build(request(tmp_path / "c", locked=tmp_path / "a" / "decisions.lock", **brief))
    for other in (again, third):
        assert other.manifest["identity"] == first.manifest["identity"]
        assert (other.root / "SHA256SUMS").read_bytes() == (first.root / "SHA256SUMS").read_bytes()
    with pytest.raises(BundleError, match="target"):
        build(request(tmp_path / "d", target="host", locked=tmp_path / "a", **brief))


def test_excluded_nodes_stay_float_and_the_lock_keeps_them(tmp_path: Path, brief: dict[str, str]) -> None:
    key = next(n.name for n in loaders.load(NET).nodes() if n.op_type == "Conv")
    built = build(request(tmp_path / "a", exclude=(str(key),), **brief))
    runs = {n["key"]: n for n in built.manifest["placement"]["nodes"]}
    assert runs[key]["runs"] == "float"
    assert runs[key]["why"] == "excluded by request"
    with pytest.raises(ModelError, match="no_such_node"):
        build(request(tmp_path / "b", exclude=("no_such_node",), **brief))
    assert not (tmp_path / "b").exists()


def test_the_random_trap_is_closed(tmp_path: Path) -> None:
    """Calibrated on noise and checked on the same noise, int8 looks fine and is worthless on images."""
    model = loaders.load(NET)
    rng = np.random.default_rng(0)
    noise = [{"x": rng.uniform(0, 0.02, (1, 1, 28, 28)).astype(np.float32)} for _ in range(64)]
    calibrated = quantize.calibrate(model, backend.TABLE, Int8Scheme(activation="uint8"), iter(noise))
    assert calibrated is not None
    trap = Interpreter(quantize.quantize(calibrated, quantize.Choice()).model)
    reference = Interpreter(model)
    assert quality.compare(reference.run, trap.run, noise).sqnr_db > 30
    judged = calibration.load_set(EVAL)
    seen = quality.compare(
        reference.run,
        trap.run,
        calibration.samples(judged, model.inputs),
        labels=calibration.labels(judged),
        metric="top1",
    )
    assert seen.metric is not None
    assert seen.metric.drop > 0.3
    assert quality.gate(seen, Budget()) is not None

    built = build(request(tmp_path / "out", calib="random"))
    assert built.manifest["default_artifact"].endswith(".float32.onnx")
    assert built.manifest["quality"]["verified"] is False
    assert any("RANDOM" in w for w in built.manifest["verdict"]["warnings"])
    assert not [s for s in built.manifest["steps"] if s["kind"] == "quantize"]
    with pytest.raises(CalibrationError, match="cannot judge"):
        build(request(tmp_path / "no", calib=CALIB, evaluate="random"))


def test_without_data_float_ships_unverified(tmp_path: Path) -> None:
    shutil.copy(NET, tmp_path / "mine.onnx")
    model = onnx.load(tmp_path / "mine.onnx")
    model.producer_name = "another file, so that no set is embedded for it"
    onnx.save(model, tmp_path / "mine.onnx")
    built = build(request(tmp_path / "out", model=tmp_path / "mine.onnx"))
    assert built.manifest["quality"]["verified"] is False
    assert built.manifest["default_artifact"] == "model/mine.float32.onnx"
    assert "not verified" in built.manifest["verdict"]["text"]


def test_only_a_calibration_set_is_split(tmp_path: Path) -> None:
    built = build(request(tmp_path / "out", calib=CALIB))
    total = calibration.load_set(CALIB).count
    assert built.manifest["quality"]["samples"] == total // 4
    assert any("does not calibrate" in w for w in built.manifest["verdict"]["warnings"])


def test_quality_that_falls_is_rolled_back_with_its_reason(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).uniform(0, 0.02, (64, 1, 28, 28)).astype(np.float32)
    np.savez(tmp_path / "dark.npz", x=noise)
    built = build(request(tmp_path / "out", calib=str(tmp_path / "dark.npz"), evaluate=EVAL))
    assert built.manifest["default_artifact"].endswith(".float32.onnx")
    int8 = next(s for s in built.manifest["steps"] if s["name"] == "quantize-int8")
    assert int8["status"] == "rolled-back"
    assert "top1 falls" in int8["reason"]
    # The float model that ships instead is judged on the whole set too.
    assert built.manifest["quality"]["samples"] == 3000
    assert built.manifest["quality"]["metric"]["drop"] == 0
    with pytest.raises(QualityError, match="budget needs int8"):
        build(
            request(
                tmp_path / "no",
                calib=str(tmp_path / "dark.npz"),
                evaluate=EVAL,
                budget=Budget(artifact_bytes=60_000),
                quantize="static",
            )
        )
    assert not (tmp_path / "no").exists()


def test_budgets_name_the_shortfall(tmp_path: Path, brief: dict[str, str]) -> None:
    fits = build(request(tmp_path / "fits", budget=Budget(artifact_bytes=60_000), **brief))
    assert fits.manifest["budget"]["checked"][0]["ok"] is True
    with pytest.raises(BudgetError, match=r"smallest size reached is 4\d,\d{3} bytes.*\(int8\).*10,000"):
        build(request(tmp_path / "size", budget=Budget(artifact_bytes=10_000), quantize="static", **brief))
    with pytest.raises(BudgetError, match=r"smallest memory reached is"):
        build(request(tmp_path / "memory", budget=Budget(peak_bytes=1_000_000), effort="quick", seconds=3, **brief))
    with pytest.raises(BudgetError, match="could not be measured"):
        build(request(tmp_path / "unmeasured", budget=Budget(peak_bytes=1_000_000), **brief))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fits"]


def test_destinations_that_are_not_ours(tmp_path: Path, brief: dict[str, str]) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "diary.txt").write_text("mine")
    with pytest.raises(BundleError):
        build(request(tmp_path / "used", **brief))
    assert (tmp_path / "used" / "diary.txt").read_text() == "mine"
    build(request(tmp_path / "other", name="another-model", **brief))
    with pytest.raises(BundleError):
        build(request(tmp_path / "other", **brief))
    build(request(tmp_path / "other", name="another-model", **brief))


def test_bad_input_is_named_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="raspberry-pi-5"):
        build(request(tmp_path / "out", target="raspbery-pi-5"))
    with pytest.raises(ModelError):
        build(request(tmp_path / "out", model=tmp_path / "missing.onnx"))
    with pytest.raises(CalibrationError):
        build(request(tmp_path / "out", calib=str(tmp_path / "missing.toml")))
    assert not (tmp_path / "out").exists()


def save_net(
    path: Path, nodes: list[onnx.NodeProto], inputs: dict[str, list], outputs: dict[str, list], arrays: dict
) -> None:  # type: ignore[type-arg]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_in05_weights_by_every_route_become_int8(tmp_path: Path) -> None:
    """A Constant node, an overridable initializer, fp16 behind Cast, Transpose and Identity, Reshape of a flat one."""
    rng = np.random.default_rng(91)

    def w(*shape: int, fan: int) -> np.ndarray:
        return (rng.normal(size=shape) / np.sqrt(fan)).astype(np.float32)

    arrays = {
        "w1": w(16, 64, fan=16),
        "w2_half": w(64, 64, fan=64).astype(np.float16),
        "w3_rows": w(32, 64, fan=64),
        "w4_flat": w(320, fan=32),
        "w4_shape": np.array([32, 10], np.int64),
    }
    nodes = [
        helper.make_node("Constant", [], ["w0"], name="w0", value=numpy_helper.from_array(w(16, 3, 3, 3, fan=27))),
        helper.make_node("Conv", ["x", "w0"], ["c"], name="conv", kernel_shape=[3, 3]),
        helper.make_node("Relu", ["c"], ["cr"], name="relu0"),
        helper.make_node("GlobalAveragePool", ["cr"], ["g"], name="gap"),
        helper.make_node("Flatten", ["g"], ["f"], name="flat"),
        helper.make_node("Gemm", ["f", "w1"], ["h1"], name="fc1"),
        helper.make_node("Relu", ["h1"], ["h1r"], name="relu1"),
        helper.make_node("Cast", ["w2_half"], ["w2"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["h1r", "w2"], ["h2"], name="fc2"),
        helper.make_node("Transpose", ["w3_rows"], ["w3_t"], name="transpose", perm=[1, 0]),
        helper.make_node("Identity", ["w3_t"], ["w3"], name="identity"),
        helper.make_node("MatMul", ["h2", "w3"], ["h3"], name="fc3"),
        helper.make_node("Reshape", ["w4_flat", "w4_shape"], ["w4"], name="reshape"),
        helper.make_node("Gemm", ["h3", "w4"], ["y"], name="fc4"),
    ]
    source = tmp_path / "routes.onnx"
    save_net(source, nodes, {"x": ["N", 3, 12, 12], "w1": [16, 64]}, {"y": ["N", 10]}, arrays)
    np.savez(tmp_path / "calib.npz", x=rng.normal(size=(32, 3, 12, 12)).astype(np.float32))
    built = build(request(tmp_path / "out", model=source, calib=str(tmp_path / "calib.npz")))
    artifact = built.root / built.manifest["default_artifact"]
    assert [i["name"] for i in built.manifest["signature"]["inputs"]] == ["x"]
    proto = onnx.load(artifact)
    assert [i.name for i in proto.graph.input] == ["x"]
    large = [i for i in proto.graph.initializer if int(np.prod(i.dims)) >= 300]
    assert len(large) == 5
    assert all(i.data_type == TensorProto.INT8 for i in large)
    assert artifact.stat().st_size <= 0.6 * source.stat().st_size
    reference, test = Interpreter(loaders.load(source)), Interpreter(artifact)
    error = signal = 0.0
    for _ in range(16):
        x = rng.normal(size=(1, 3, 12, 12)).astype(np.float32)
        a, b = reference.run({"x": x, "w1": arrays["w1"]})["y"], test.run({"x": x})["y"]
        error, signal = error + float(((a - b) ** 2).sum()), signal + float((a**2).sum())
    assert (error / signal) ** 0.5 <= 0.03


def test_c03_awkward_paths(tmp_path: Path) -> None:
    folder = tmp_path / "mödel dir" / "模型 v1 (final)"
    folder.mkdir(parents=True)
    shutil.copy(NET, folder / "netz wörk.onnx")
    calib, evaluate = short_sets(folder / "sätze (2)")
    built = build(request(folder / "aus gabe", model=folder / "netz wörk.onnx", calib=calib, evaluate=evaluate))
    assert json.loads((built.root / "manifest.json").read_bytes())["source"]["file"] == "netz wörk.onnx"
    assert bundle.verify(built.root)["ok"]
    assert str(tmp_path) not in "".join(p.read_text(errors="ignore") for p in built.root.rglob("*") if p.is_file())
