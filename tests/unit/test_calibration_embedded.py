"""The embedded network and its sets: recognized by digest, disjoint, as accurate as stated, without pickles."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import zipfile
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest

from edgeopt.calibration import check, embedded_sets, labels, samples
from edgeopt.metrics import named
from edgeopt.model import TensorSpec, file_sha256

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "calibration"
X = TensorSpec(name="x", dtype="float32", shape=("N", 1, 28, 28))
TOP1 = 0.9087
"""Accuracy of the float network on the evaluation set, as scripts/make_default prints it."""


def script() -> ModuleType:
    loader = SourceFileLoader("make_default", str(ROOT / "scripts/make_default"))
    spec = importlib.util.spec_from_loader("make_default", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def images_of(name: str) -> np.ndarray:
    with np.load(FOLDER / f"fashion-mnist-{name}.npz") as archive:
        return archive["images"]


def test_the_networks_are_recognized_and_nothing_else_is() -> None:
    for name in ("fashion-mnist.onnx", "fashion-mnist.pt2"):
        found = embedded_sets(file_sha256(FOLDER / name))
        assert found is not None
        calibration, evaluation = found
        assert (calibration.name, calibration.count, calibration.metric) == ("fashion-mnist-calib", 256, None)
        assert (evaluation.name, evaluation.count, evaluation.metric) == ("fashion-mnist-eval", 3000, named("top1"))
        assert not calibration.second_class
        assert calibration.preprocessing == evaluation.preprocessing
    assert embedded_sets("0" * 64) is None
    assert embedded_sets("") is None


def test_the_sets_are_good_and_prepared_alike() -> None:
    found = embedded_sets(file_sha256(FOLDER / "fashion-mnist.onnx"))
    assert found is not None
    assert check(found[0], (X,), against=found[1]) == []
    assert check(found[1], (X,), against=found[0]) == []
    assert labels(found[0]) is None


def test_no_image_is_in_both_sets() -> None:
    hashes = {name: [hashlib.sha256(i.tobytes()).hexdigest() for i in images_of(name)] for name in ("calib", "eval")}
    assert len(hashes["calib"]) == 256
    assert len(hashes["eval"]) == 3000
    assert not set(hashes["calib"]) & set(hashes["eval"])
    assert set(hashes["eval"][:5]) & set(hashes["eval"])  # the comparison can find one


def test_sizes_and_dates() -> None:
    sizes = {path.name: path.stat().st_size for path in FOLDER.iterdir() if path.is_file()}
    assert sizes["fashion-mnist.onnx"] < 400_000
    assert sizes["fashion-mnist.pt2"] < 400_000
    assert sum(sizes.values()) < 2_000_000
    for name in ("calib", "eval"):
        with zipfile.ZipFile(FOLDER / f"fashion-mnist-{name}.npz") as archive:
            assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert "MIT" in (FOLDER / "default.toml").read_text()
    assert "Zalando" in (FOLDER / "COPYRIGHT").read_text()


def accuracy(shift: int = 0) -> float:
    import onnxruntime

    found = embedded_sets(file_sha256(FOLDER / "fashion-mnist.onnx"))
    assert found is not None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(FOLDER / "fashion-mnist.onnx", options, providers=["CPUExecutionProvider"])
    truth = labels(found[1])
    assert truth is not None
    right = [
        int(session.run(["y"], feed)[0].argmax()) == wanted
        for feed, wanted in zip(samples(found[1], (X,)), np.roll(truth, shift), strict=True)
    ]
    return float(np.mean(right))


def test_the_network_is_as_accurate_as_stated() -> None:
    assert accuracy() == pytest.approx(TOP1, abs=0.002)
    assert accuracy(shift=1) < 0.2  # labels of the neighbours: the check can fail


def test_the_onnx_file_is_what_an_old_runtime_loads_and_names_no_file() -> None:
    model = onnx.load(FOLDER / "fashion-mnist.onnx")
    assert (model.ir_version, model.opset_import[0].version) == (9, 20)
    assert [model.graph.input[0].name, model.graph.output[0].name] == ["x", "y"]
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
    assert not any(node.metadata_props or node.doc_string for node in model.graph.node)


def test_the_pt2_archive_holds_no_pickle() -> None:
    with zipfile.ZipFile(FOLDER / "fashion-mnist.pt2") as archive:
        for info in archive.infolist():
            data = archive.read(info)
            assert not data.startswith((b"\x80", b"PK")), info.filename
            assert b"site-packages" not in data
            assert info.filename.startswith("archive/")
            if info.filename.endswith("model.pt"):
                assert data == b""  # example inputs, which torch would pickle


@pytest.mark.needs_torch
def test_both_files_are_the_same_network() -> None:
    onnxruntime, torch = pytest.importorskip("onnxruntime"), pytest.importorskip("torch")
    x = ((images_of("calib") / 255 - 0.286) / 0.353).astype(np.float32)
    session = onnxruntime.InferenceSession(FOLDER / "fashion-mnist.onnx", providers=["CPUExecutionProvider"])
    with torch.no_grad():
        theirs = torch.export.load(FOLDER / "fashion-mnist.pt2").module()(torch.from_numpy(x)).numpy()
    ours = session.run(["y"], {"x": x})[0]
    assert np.abs(ours - theirs).max() < 1e-4 < np.abs(ours - theirs[::-1]).max()


@pytest.mark.needs_torch
def test_the_script_writes_the_same_bytes_for_the_same_arrays(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    module = script()
    arrays = {"images": images_of("calib")}
    for name in ("a", "b"):
        module.write_npz(tmp_path / f"{name}.npz", **arrays)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    with np.load(tmp_path / "a.npz", allow_pickle=False) as archive:
        assert np.array_equal(archive["images"], arrays["images"])
    assert set(module.CALIBRATION).isdisjoint(module.EVALUATION)
    assert max(module.CALIBRATION) < 1000 <= min(module.EVALUATION)


@pytest.mark.needs_torch
def test_the_script_explains_itself(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(sys, "argv", ["make_default", "--help"])
    with pytest.raises(SystemExit) as caught:
        script().main()
    assert caught.value.code == 0
    assert "--source DIR" in capsys.readouterr().out
