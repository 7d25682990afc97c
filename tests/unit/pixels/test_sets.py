"""Sets of raw pixels: the same samples without their arithmetic, in the layout and colour order that was asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edgeopt.calibration import DataSet, load_set, samples
from edgeopt.calibration.raw import contract, pixels_of, raw_set
from edgeopt.errors import CalibrationError
from edgeopt.model import TensorSpec

ARITHMETIC = """
scale = "1/255"
mean = [0.1, 0.2, 0.3]
std = 0.5
"""


def spec(*shape: int | str, name: str = "x", dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape or (1, 3, 4, 5))


def described(folder: Path, lines: str, kind: str = "arrays", name: str = "x") -> DataSet:
    path = folder / "set.toml"
    more = 'folder = "."\nglob = "*.png"\n' if kind == "images" else ""
    path.write_text(f'schema = "edgeopt.set/1"\nname = "set"\nkind = "{kind}"\n{more}[inputs.{name}]\n{lines}')
    return load_set(path)


def stored(folder: Path, array: np.ndarray) -> str:
    np.save(folder / "a.npy", array)
    return 'file = "a.npy"\n'


def bytes_of(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


def raw_samples(data: DataSet, inputs: tuple[TensorSpec, ...], **asked: str) -> list[np.ndarray]:
    (found,) = pixels_of(data, inputs, **asked)
    shape = inputs[0].shape
    inverse = [found.order.index(axis) for axis in range(4)]
    fed = (TensorSpec(name=inputs[0].name, dtype="uint8", shape=tuple(shape[axis] for axis in inverse)),)
    return [s[inputs[0].name] for s in samples(raw_set(data, [found]), fed)]


@pytest.mark.parametrize("color", ["rgb", "bgr"])
@pytest.mark.parametrize("model", ["NCHW", "NHWC"])
@pytest.mark.parametrize("layout", [None, "NCHW", "NHWC"])
@pytest.mark.parametrize("asked", [None, "rgb", "bgr"])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64"])
def test_arrays(tmp_path: Path, color: str, model: str, layout: str | None, asked: str | None, dtype: str) -> None:
    """Stored in the model's colour order, and here in height, width, channels."""
    pixels = bytes_of(3, 4, 5, 3)
    axes = "transpose = [2, 0, 1]\n" if model == "NCHW" else ""
    lines = stored(tmp_path, pixels.astype(dtype)) + axes + f'layout = "{model}"\ncolor = "{color}"' + ARITHMETIC
    shape = (1, 3, 4, 5) if model == "NCHW" else (1, 4, 5, 3)
    keys = {k: v for k, v in (("layout", layout), ("color", asked)) if v is not None}
    found = raw_samples(described(tmp_path, lines), (spec(*shape),), **keys)
    expected = pixels if (asked or "rgb") == color else pixels[..., ::-1]
    if (layout or model) == "NCHW":
        expected = expected.transpose(0, 3, 1, 2)
    assert all(f.dtype == np.uint8 and f.flags.c_contiguous for f in found)
    np.testing.assert_array_equal(np.concatenate(found), expected)


def test_arrays_with_a_batch_axis_of_one(tmp_path: Path) -> None:
    pixels = bytes_of(2, 1, 3, 4, 5)
    lines = stored(tmp_path, pixels) + 'layout = "NCHW"\n' + ARITHMETIC
    found = raw_samples(described(tmp_path, lines), (spec(),), layout="NHWC")
    np.testing.assert_array_equal(np.stack(found), pixels.transpose(0, 1, 3, 4, 2))


@pytest.mark.parametrize("color", ["rgb", "bgr", "gray"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_images_are_read_in_the_colour_order_of_a_camera(tmp_path: Path, color: str, layout: str) -> None:
    picture = bytes_of(4, 5, 3)
    Image.fromarray(picture).save(tmp_path / "a.png")
    channels = 1 if color == "gray" else 3
    lines = f'scale = 1\ncolor = "{color}"\nlayout = "NCHW"\n'
    found = raw_samples(described(tmp_path, lines, "images"), (spec(1, channels, 4, 5),), layout=layout)
    expected = np.asarray(Image.fromarray(picture).convert("L"))[..., None] if color == "gray" else picture
    np.testing.assert_array_equal(found[0][0], expected if layout == "NHWC" else expected.transpose(2, 0, 1))


def test_the_contract_says_what_is_fed_and_what_the_graph_does(tmp_path: Path) -> None:
    Image.fromarray(bytes_of(8, 9, 3)).save(tmp_path / "a.png")
    data = described(tmp_path, 'resize = 6\ncrop = [4, 5]\ncolor = "bgr"\nlayout = "NCHW"' + ARITHMETIC, "images")
    fed = raw_set(data, pixels_of(data, (spec(),), layout="NHWC"))
    assert contract(fed) == {
        "x": {
            "layout": "NHWC",
            "color": "rgb",
            "resize": 6,
            "crop": [4, 5],
            "interpolation": "bilinear",
            "range": [0, 255],
            "in the graph": {
                "formula": "(raw * scale - mean) / std",
                "scale": 1 / 255,
                "mean": [0.1, 0.2, 0.3],
                "std": [0.5],
                "layout": "NCHW",
                "color": "bgr",
            },
        }
    }
    assert fed.digest() != data.digest()
    assert contract(data) == data.preprocessing


@pytest.mark.parametrize(
    ("array", "kind"),
    [(bytes_of(2, 3, 4, 5) / 255, "float64"), (bytes_of(2, 3, 4, 5).astype(np.int16) - 1, "int16")],
)
def test_stored_numbers_that_are_no_pixels_are_refused(tmp_path: Path, array: np.ndarray, kind: str) -> None:
    array.flat[0] = -1 if kind == "int16" else 0.5
    lines = stored(tmp_path, array) + 'layout = "NCHW"\n' + ARITHMETIC
    with pytest.raises(CalibrationError, match="uint8 cannot") as refused:
        raw_samples(described(tmp_path, lines), (spec(),))
    assert "whole numbers of 0 to 255" in str(refused.value)


@pytest.mark.parametrize(
    ("lines", "shape", "asked", "words"),
    [
        ('layout = "NCHW"', (1, 3, 4, 5), {}, "states no scale, mean or std"),
        ("scale = 1", (1, 3, 4, 5), {}, "states no layout"),
        ("", (1, 3, 4, 5), {}, "states no scale, mean or std and no layout"),
        ('layout = "NCHW"\nscale = 1', (1, 60), {}, "pixels need batch, channels, height and width"),
        ('layout = "NHWC"\nscale = 1\nmean = [1, 2, 3]', (1, 3, 4, 5), {}, "has 5 channels as NHWC"),
        ('layout = "NCHW"\nscale = 1\ncolor = "gray"', (1, 3, 4, 5), {}, "has 3 channels as NCHW"),
        ('layout = "NCHW"\nscale = 1', (1, "C", 4, 5), {}, "has C channels"),
        ('layout = "NCHW"\nscale = 1', (1, 3, 4, 5), {"color": "bgr"}, 'says "nothing" about colour'),
        ('layout = "NCHW"\nscale = 1\ncolor = "gray"', (1, 1, 4, 5), {"color": "bgr"}, 'says "gray" about colour'),
    ],
)
def test_what_a_set_must_state(
    tmp_path: Path, lines: str, shape: tuple[int | str, ...], asked: dict[str, str], words: str
) -> None:
    data = described(tmp_path, stored(tmp_path, bytes_of(2, 3, 4, 5)) + lines)
    with pytest.raises(CalibrationError, match=words) as refused:
        pixels_of(data, (spec(*shape),), **asked)
    assert refused.value.remedy


def test_a_model_that_takes_bytes_has_no_arithmetic(tmp_path: Path) -> None:
    data = described(tmp_path, stored(tmp_path, bytes_of(2, 3, 4, 5)) + 'layout = "NCHW"\nscale = 1')
    with pytest.raises(CalibrationError, match="is uint8, and only a float input"):
        pixels_of(data, (spec(dtype="uint8"),))


def test_a_set_of_another_kind_states_nothing() -> None:
    with pytest.raises(CalibrationError, match='of kind "random"'):
        pixels_of(load_set("random"), (spec(),))


def test_only_the_inputs_that_state_arithmetic_become_pixels(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", left=bytes_of(2, 3, 4, 5), gain=np.ones((2, 7), np.float32))
    path = tmp_path / "set.toml"
    path.write_text(
        'schema = "edgeopt.set/1"\nname = "set"\nkind = "arrays"\n[inputs.gain]\nfile = "a.npz"\n'
        '[inputs.left]\nfile = "a.npz"\nlayout = "NCHW"' + ARITHMETIC
    )
    data = load_set(path)
    inputs = (spec(1, 7, name="gain"), spec(name="left"))
    found = pixels_of(data, inputs, layout="NHWC")
    assert [p.name for p in found] == ["left"]
    fed = (inputs[0], TensorSpec(name="left", dtype="uint8", shape=(1, 4, 5, 3)))
    sample = next(iter(samples(raw_set(data, found), fed)))
    assert (sample["gain"].dtype, sample["left"].dtype, sample["left"].shape) == (np.float32, np.uint8, (1, 4, 5, 3))
