"""What the guard writes into a bundle: limits, worst samples, pictures of what was fed, the golden samples."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from edgeopt.budget import Budget
from edgeopt.bundle import Bundle, VerificationError, verify
from edgeopt.pipeline.thumbnail import PIXELS, pixels, png
from runtime_bench import identity

from .builds import built, rand

SIDE = 16


def net(outputs: int = 1) -> onnx.ModelProto:
    """Two convolutions, a pooled row of scores, and beside it the map before the pool where two outputs are wanted."""
    values = {"w": rand(0, 32, 3, 3, 3) / 5, "b": rand(1, 32), "u": rand(4, 32, 32, 3, 3) / 17, "v": rand(2, 32, 4)}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Conv", ["r", "u"], ["m"], pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["m"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "v"], ["y"]),
    ]
    shapes = {"y": [1, 4], "m": [1, 32, SIDE, SIDE]}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, SIDE, SIDE])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in list(shapes.items())[:outputs]],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def photos(folder: Path, count: int = 24) -> np.ndarray:
    """PNG files of smooth noise, and the set that reads them as BGR with a mean a channel."""
    rng = np.random.default_rng(3)
    coarse = rng.integers(0, 256, (count, 4, 4, 3), dtype=np.uint8)
    found = coarse.repeat(SIDE // 4, axis=1).repeat(SIDE // 4, axis=2)
    (folder / "photos").mkdir()
    for k, pixels_ in enumerate(found):
        Image.fromarray(pixels_).save(folder / "photos" / f"{k:02d}.png")
    (folder / "set.toml").write_text(
        'schema = "edgeopt.set/1"\nname = "photos"\nkind = "images"\nfolder = "photos"\n'
        '[inputs.x]\nlayout = "NCHW"\ncolor = "bgr"\nscale = "1/255"\nmean = [0.4, 0.45, 0.5]\nstd = [0.2, 0.25, 0.3]\n'
    )
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, np.ndarray]:
    folder = tmp_path_factory.mktemp("guard")
    stored = photos(folder)
    return built(folder, net(2), str(folder / "set.toml")), stored


def test_limits_stand_in_the_manifest_and_in_all_reports(made: tuple[Bundle, np.ndarray]) -> None:
    quality = made[0].manifest["quality"]
    found = {(row["name"], row["of"]): row for row in quality["limits"]}
    assert ("finite", "all outputs") in found
    (sqnr,) = (row for (name, _), row in found.items() if name == "sqnr")
    assert sqnr["low"] < sqnr["measured"] < sqnr["high"]
    assert json.loads((made[0].root / "report.json").read_text())["quality"]["limits"] == quality["limits"]
    for name in ("report.md", "report.html"):
        assert "samples that are not finite" in (made[0].root / name).read_text()


def test_pictures_are_the_pixels_that_were_stored(made: tuple[Bundle, np.ndarray]) -> None:
    """Taken back from what was fed: mean, std, scale and the order of the channels."""
    bundle, stored = made
    rows = bundle.manifest["quality"]["worst"]
    assert rows
    for row in rows:
        assert row["name"] == f"{row['index']:02d}.png"
        picture = np.asarray(Image.open(bundle.root / row["picture"]).convert("RGB"))
        np.testing.assert_array_equal(picture, stored[row["index"]])
        assert row["picture"] in (bundle.root / "report.md").read_text()
    assert (bundle.root / "report.html").read_text().count('src="data:image/png;base64,') == len(rows)
    sums = (bundle.root / "RECORDS.sha256").read_text()
    assert all(row["picture"] in sums for row in rows)


def test_raw_pixels_are_shown_as_they_are(tmp_path: Path) -> None:
    stored = photos(tmp_path)
    found = built(tmp_path, net(), str(tmp_path / "set.toml"), input_type="uint8", input_layout="NHWC")
    rows = found.manifest["quality"]["worst"]
    assert rows
    for row in rows:
        picture = np.asarray(Image.open(found.root / row["picture"]).convert("RGB"))
        np.testing.assert_array_equal(picture, stored[row["index"]])


def test_the_held_out_samples_have_their_place_in_the_set(made: tuple[Bundle, np.ndarray]) -> None:
    """Every fourth sample judges; numbers are positions in the set, not among those that judge."""
    assert {row["index"] % 4 for row in made[0].manifest["quality"]["worst"]} == {3}


def test_the_golden_samples_are_named(made: tuple[Bundle, np.ndarray]) -> None:
    bundle, stored = made
    golden = bundle.manifest["quality"]["golden"]
    assert golden["set"] == "photos"
    for position, sample in zip(golden["positions"], bundle.manifest["golden"]["samples"], strict=True):
        fed = np.load(bundle.root / sample["inputs"][0])
        expected = (stored[position][:, :, ::-1] / 255 - [0.4, 0.45, 0.5]) / [0.2, 0.25, 0.3]
        np.testing.assert_allclose(fed[0], expected.transpose(2, 0, 1), atol=1e-6)


def test_each_output_has_its_own_tolerance_on_the_device(made: tuple[Bundle, np.ndarray], tmp_path: Path) -> None:
    """An error in the better output that the worst one's limit would let pass is found."""
    root = tmp_path / "copy"
    shutil.copytree(made[0].root, root)
    assert verify(root)["ok"]
    manifest: dict[str, Any] = json.loads((root / "manifest.json").read_text())
    precision = next(a["precision"] for a in manifest["artifacts"] if a["role"] == "default")
    limits = manifest["golden"]["tolerance"][precision]
    assert len(limits["outputs_db"]) == 2
    assert limits["sqnr_db"] == min(limits["outputs_db"])
    better = int(np.argmax(limits["outputs_db"]))
    limits["outputs_db"][1 - better] -= 20  # as if the other output were a bad one
    limits["sqnr_db"] = limits["outputs_db"][1 - better]
    noise = 10 ** (-(limits["sqnr_db"] + limits["outputs_db"][better]) / 2 / 20)  # between the two limits
    for sample in manifest["golden"]["samples"]:
        path = root / sample["outputs"]["float32"][better]
        value = np.load(path)
        power = float(np.sqrt((value**2).mean()))
        np.save(path, (value + noise * power * rand(9, *value.shape)).astype(np.float32))
    _seal(root, manifest)
    with pytest.raises(VerificationError) as caught:
        verify(root)
    name = manifest["signature"]["outputs"][better]["name"]
    assert f"{name}: SQNR" in caught.value.message
    del limits["outputs_db"]
    _seal(root, manifest)
    outcome = _checks(root)
    assert outcome[f"golden model/net.{precision}.onnx"]  # what an older bundle finds: nothing


def _checks(root: Path) -> dict[str, bool]:
    try:
        found = verify(root)
    except VerificationError as error:
        found = error.result
    return {check["name"]: check["ok"] for check in found["checks"]}


def _seal(root: Path, manifest: dict[str, Any]) -> None:
    import hashlib

    def digest(path: str) -> str:
        return hashlib.sha256((root / path).read_bytes()).hexdigest()

    def rewrite(name: str) -> dict[str, str]:
        lines = [line.partition("  ")[2] for line in (root / name).read_text().splitlines()]
        found = {path: digest(path) for path in lines}
        (root / name).write_text("".join(f"{found[path]}  {path}\n" for path in sorted(found)))
        return found

    device = rewrite("SHA256SUMS")
    for path, entry in manifest["files"].items():
        entry["sha256"] = device[path]
    manifest["identity"] = identity(manifest, device)
    (root / "manifest.json").write_text(json.dumps(manifest))
    rewrite("RECORDS.sha256")


def test_what_was_refused_keeps_its_account(tmp_path: Path) -> None:
    photos(tmp_path)
    found = built(tmp_path, net(), str(tmp_path / "set.toml"), budget=Budget(min_sqnr_db=120.0), max_float_macs=0.0)
    quality = found.manifest["quality"]
    assert found.manifest["default_artifact"].endswith("float32.onnx")
    (entry,) = quality["refused"]
    assert not all(row["ok"] for row in entry["limits"])
    assert entry["worst"]
    assert f"{entry['precision']} was refused" in (found.root / "report.html").read_text()


def test_without_data_there_is_no_account(tmp_path: Path) -> None:
    quality = built(tmp_path, net()).manifest["quality"]
    assert quality["worst"] == []
    assert quality["golden"] is None


def test_two_builds_have_the_same_pictures(made: tuple[Bundle, np.ndarray], tmp_path: Path) -> None:
    photos(tmp_path)
    again = built(tmp_path, net(2), str(tmp_path / "set.toml"))
    assert again.manifest["quality"] == made[0].manifest["quality"]
    for row in again.manifest["quality"]["worst"]:
        assert (again.root / row["picture"]).read_bytes() == (made[0].root / row["picture"]).read_bytes()


def test_nothing_stated_is_stretched_to_the_whole_range() -> None:
    value = np.linspace(-3, 5, 64).reshape(8, 8, 1)
    found = pixels(value, {"layout": "NCHW"})
    assert (found.min(), found.max()) == (0, 255)
    assert (np.diff(found.ravel().astype(int)) >= 0).all()
    assert (pixels(np.full((8, 8, 1), 7.0), {}) == 0).all()
    assert pixels(np.full((8, 8, 1), np.nan), {}).dtype == np.uint8


def test_a_picture_is_small_and_keeps_its_shape() -> None:
    for shape in ((480, 640, 3), (48, 320, 3), (900, 60, 1), (12, 12, 1)):
        data = png(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))
        width, height = Image.open(io.BytesIO(data)).size
        assert width * height <= 1.05 * PIXELS
        assert max(width, height) <= 256
        assert width / height == pytest.approx(shape[1] / shape[0], rel=0.1)
        assert len(data) < 32_000
