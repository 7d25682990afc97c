"""A build with raw pixels as the input: checked on real frames, written in the contract, runnable as it says."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from PIL import Image

from edgeopt import bundle, comparing
from edgeopt.errors import BenchError, BundleError, CalibrationError, QualityError
from edgeopt.model import Model
from edgeopt.passes.absorb_input import absorb_input
from edgeopt.pipeline import Request, build, pixels
from edgeopt.report.snippet import golden_snippet, image_snippet

from . import frames
from .frames import Case, net

ROOT = Path(__file__).parents[3]
NET = ROOT / "calibration" / "fashion-mnist.onnx"


def request(model: Path, out: Path, **changes: object) -> Request:
    values: dict[str, object] = {"model": model, "target": "x86-avx2", "out": out, "effort": "none"}
    values |= {"input_type": "uint8", "input_layout": "NHWC"}
    return Request(**(values | changes))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model that wants BGR with ImageNet's arithmetic, and a folder of pictures that says so."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(3)
    for index in range(10):
        smooth = rng.integers(0, 256, (5, 6, 3)).astype(np.uint8)
        Image.fromarray(smooth).resize((24, 20), Image.Resampling.BILINEAR).save(folder / f"{index}.png")
    lines = """
schema = "edgeopt.set/1"
name = "photos"
kind = "images"
folder = "."
glob = "*.png"
[inputs.x]
resize = 14
crop = [12, 12]
color = "bgr"
layout = "NCHW"
scale = "1/255"
mean = [0.406, 0.456, 0.485]
std = [0.225, 0.224, 0.229]
"""
    (folder / "set.toml").write_text(lines)
    (folder / "other.toml").write_text(lines.replace("0.406", "0.46"))
    (folder / "bare.toml").write_text(lines.replace("photos", "bare").split("scale")[0] + "scale = 1\n")
    model = folder / "net.onnx"
    ir.save(net(Case(pixels=frames.pixels(), side=12)).ir, model)
    return model, folder


@pytest.fixture(scope="module")
def built(photos: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> bundle.Bundle:
    model, folder = photos
    return build(request(model, tmp_path_factory.mktemp("out") / "b", calib=str(folder / "set.toml")))


def step(found: bundle.Bundle, name: str) -> dict[str, str]:
    return next(s for s in found.manifest["steps"] if s["name"] == name)


def test_the_contract_and_the_diary(built: bundle.Bundle) -> None:
    (entry,) = built.manifest["signature"]["inputs"]
    assert (entry["name"], entry["dtype"], entry["shape"], entry["layout"]) == ("x", "uint8", [1, 12, 12, 3], "NHWC")
    said = entry["preprocessing"]
    assert (said["color"], said["range"], said["resize"], said["crop"]) == ("rgb", [0, 255], 14, [12, 12])
    assert said["in the graph"]["color"] == "bgr"
    assert said["in the graph"]["mean"] == [0.406, 0.456, 0.485]
    assert "scale" not in said
    reason = step(built, "absorb-input")["reason"]
    assert "uint8 NHWC for NCHW rgb for bgr" in reason
    assert "on real inputs" in reason
    assert f"float32: a float copy of a frame remains (x: {12 * 12 * 3 * 4:,} bytes a frame)" in reason
    assert "int8: no float copy of a frame" in reason
    assert step(built, "fold-pixels")["status"] == "kept"
    assert any("original is the model with its preprocessing" in w for w in built.manifest["verdict"]["warnings"])
    for text in ((built.root / name).read_text() for name in ("report.md", "README.md")):
        assert "in the graph: std" in text
        assert "uint8" in text
    assert bundle.verify(built.root)["ok"]


def test_the_device_checks_bytes(built: bundle.Bundle) -> None:
    for sample in built.manifest["golden"]["samples"]:
        assert np.load(built.root / sample["inputs"][0]).dtype == np.uint8
    ran = subprocess.run([sys.executable, "bench.pyz", "verify"], cwd=built.root, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_snippet_of_the_contract_runs(
    built: bundle.Bundle, photos: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a picture to the outputs with nothing but the contract: bytes of RGB, as they are decoded."""
    monkeypatch.chdir(built.root)
    code = image_snippet(built.manifest)
    assert code is not None
    names: dict[str, object] = {}
    exec(golden_snippet(built.manifest) + code.replace("photo.jpg", str(photos[1] / "0.png")), names)
    prepare = names["prepare"]
    assert callable(prepare)
    fed = prepare(photos[1] / "0.png")
    assert (fed.dtype, fed.shape) == (np.uint8, (1, 12, 12, 3))
    np.testing.assert_array_equal(fed, np.load(built.root / built.manifest["golden"]["samples"][0]["inputs"][0]))


def test_a_lock_replays_and_knows_its_inputs(built: bundle.Bundle, photos: tuple[Path, Path], tmp_path: Path) -> None:
    model, folder = photos
    again = build(request(model, tmp_path / "b", calib=str(folder / "set.toml"), locked=built.root))
    assert [a["sha256"] for a in again.manifest["artifacts"]] == [a["sha256"] for a in built.manifest["artifacts"]]
    for change in ({"input_type": None, "input_layout": None}, {"input_layout": "NCHW"}, {"input_color": "bgr"}):
        with pytest.raises(BundleError, match="made with other inputs"):
            build(request(model, tmp_path / "c", calib=str(folder / "set.toml"), locked=built.root, **change))
    plain = build(request(model, tmp_path / "p", calib=str(folder / "set.toml"), input_type=None, input_layout=None))
    with pytest.raises(BundleError, match="takes no raw pixels"):
        build(request(model, tmp_path / "c", calib=str(folder / "set.toml"), locked=plain.root))
    assert not (tmp_path / "c").exists()
    with pytest.raises(BenchError, match="same signature: the input x: float32.* is x: uint8"):
        comparing.run(comparing.Request(a=plain.root, b=built.root))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "needs a set that says how raw pixels become the input"),
        ({"calib": "random"}, "needs a set that says"),
        ({"calib": "set.toml", "evaluate": "other.toml"}, "state different arithmetic"),
        ({"calib": "set.toml", "input_type": None}, "and no raw pixels"),
        ({"calib": "set.toml", "input_type": None, "input_layout": None, "input_color": "rgb"}, "and no raw pixels"),
    ],
)
def test_what_is_asked_must_be_known(
    photos: tuple[Path, Path], tmp_path: Path, changes: dict[str, str | None], words: str
) -> None:
    model, folder = photos
    placed = {k: str(folder / v) if v and v.endswith(".toml") else v for k, v in changes.items()}
    with pytest.raises(CalibrationError, match=words) as refused:
        build(request(model, tmp_path / "b", **placed))
    assert refused.value.remedy
    assert not (tmp_path / "b").exists()


def test_a_planted_swap_of_means_stops_the_build(
    photos: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swapped(model: Model, found: tuple[frames.Pixels, ...]) -> Model:
        mean = found[0].mean
        return absorb_input(model, [dataclasses.replace(found[0], mean=(mean[1], mean[0], mean[2]))])

    monkeypatch.setattr(pixels, "absorb_input", swapped)
    with pytest.raises(QualityError, match="differs by 0"):
        build(request(photos[0], tmp_path / "b", calib=str(photos[1] / "set.toml")))


def test_a_planted_swap_of_colours_stops_the_build(
    photos: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unswapped(model: Model, found: tuple[frames.Pixels, ...]) -> Model:
        return absorb_input(model, [dataclasses.replace(found[0], color="bgr")])

    monkeypatch.setattr(pixels, "absorb_input", unswapped)
    with pytest.raises(QualityError, match="differs by 0"):
        build(request(photos[0], tmp_path / "b", calib=str(photos[1] / "set.toml")))


def test_the_embedded_network_on_its_own_sets(tmp_path: Path) -> None:
    """Signed activations and one gray channel; float input reaches 35.0 dB here."""
    made = build(request(NET, tmp_path / "raw", target="raspberry-pi-5")).manifest
    assert made["default_artifact"].endswith(".int8.onnx")
    assert made["quality"]["outputs"][0]["sqnr_db"] >= 34.5
    assert made["quality"]["metric"]["drop"] <= 0.01
    assert made["signature"]["inputs"][0]["preprocessing"]["in the graph"]["mean"] == [0.286]
    assert "int8: no float copy of a frame" in next(s["reason"] for s in made["steps"] if s["name"] == "absorb-input")


ZOO = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "edgeopt" / "zoo" / "models"


@pytest.mark.parametrize("name", ["efficientnet-lite0", "squeezenet"])
@pytest.mark.parametrize("target", ["x86-avx2", "raspberry-pi-5"])
def test_networks_of_the_zoo_lose_nothing(name: str, target: str) -> None:
    import itertools

    from edgeopt import calibration, loaders, passes, quality, quantize
    from edgeopt.backends import onnxruntime as backend
    from edgeopt.calibration.raw import pixels_of, raw_set
    from edgeopt.interpreter import Interpreter
    from edgeopt.target import load_target
    from tests.unit.passes.helpers import apply_all

    if not (ZOO / name / "model.onnx").is_file():
        pytest.skip("the zoo is not there (scripts/zoo)")
    profile, model = load_target(target), loaders.load(ZOO / name / "model.onnx")
    data = calibration.load_set(ZOO / name / "calib.toml")
    found = pixels_of(data, model.inputs, layout="NHWC")
    reached = []
    for source, given in ((model, data), (absorb_input(model, found), raw_set(data, found))):
        fused = apply_all((*passes.NORMALIZE, *passes.FUSIONS), source)
        feeds = list(itertools.islice(calibration.samples(given, fused.inputs), 16))
        calibrated = quantize.calibrate(fused, backend.TABLE, profile.int8, feeds)
        assert calibrated is not None
        made = quantize.quantize(calibrated, quantize.Choice(bias="mean")).model
        reached.append(quality.compare(Interpreter(fused).run, Interpreter(made).run, feeds).sqnr_db)
    assert quantize.float_copies(made) == {}
    signed = profile.int8.activation == "int8"
    for level in ("EXTENDED", "ALL"):
        with frames.optimized(made, level, signed) as graph:
            assert frames.readers_of_bytes(graph) == {"QLinearConv"}
    assert reached[1] >= reached[0] - 0.5, reached
