"""Folders of images: geometry and arithmetic in numbers, order, labels, and hostile files."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edgeopt.calibration import DataSet, check, images, labels, load_set, samples
from edgeopt.errors import CalibrationError
from edgeopt.model import TensorSpec

SPEC = TensorSpec(name="x", dtype="float32", shape=("N", 3, 4, 6))
HEAD = 'schema = "edgeopt.set/1"\nname = "i"\nkind = "images"\nfolder = "p"\n'
PLAIN = 'layout = "NCHW"\ncolor = "rgb"\nscale = 1\n'


def make(folder: Path, name: str, height: int = 4, width: int = 6, mode: str = "RGB") -> np.ndarray:
    path = folder / "p" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    depth = {"RGB": (3,), "RGBA": (4,), "L": ()}[mode]
    pixels = np.random.default_rng(list(name.encode())).integers(0, 256, (height, width, *depth)).astype(np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def describe(folder: Path, inputs: str = PLAIN, head: str = "") -> Path:
    path = folder / "set.toml"
    path.write_text(f"{HEAD}{head}[inputs.x]\n{inputs}")
    return path


def read(path: Path, spec: TensorSpec = SPEC) -> list[np.ndarray]:
    return [feed["x"] for feed in samples(load_set(path), (spec,))]


def classes(dataset: DataSet) -> list[int]:
    found = labels(dataset)
    assert found is not None
    return [int(value) for value in found]


def test_pixels_arrive_as_they_are_in_sorted_order(tmp_path: Path) -> None:
    wanted = {name: make(tmp_path, name) for name in ("b.png", "a/z.bmp", "c.ppm", "a.png")}
    (tmp_path / "p/.hidden").write_text("not an image")
    dataset = load_set(describe(tmp_path))
    assert dataset.images is not None
    assert dataset.images.files == ("a.png", "a/z.bmp", "b.png", "c.ppm")
    for name, value in zip(dataset.images.files, read(tmp_path / "set.toml"), strict=True):
        assert value.dtype == np.float32
        assert np.array_equal(value[0].transpose(1, 2, 0), wanted[name])
    assert check(dataset, (SPEC,)) == []


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("color", ["rgb", "bgr"])
def test_layout_colour_order_and_arithmetic(layout: str, color: str, tmp_path: Path) -> None:
    pixels = make(tmp_path, "a.png").astype(np.float64)
    mean, std = [10, 20, 30], [2, 4, 8]
    text = f'layout = "{layout}"\ncolor = "{color}"\nscale = 0.5\nmean = {mean}\nstd = {std}\n'
    ordered = pixels[:, :, ::-1] if color == "bgr" else pixels
    wanted = (ordered * 0.5 - mean) / std
    shape = ("N", 3, 4, 6) if layout == "NCHW" else ("N", 4, 6, 3)
    (found,) = read(describe(tmp_path, text), TensorSpec(name="x", dtype="float32", shape=shape))
    if layout == "NCHW":
        wanted = wanted.transpose(2, 0, 1)
    assert np.array_equal(found[0], wanted.astype(np.float32))


def test_gray_and_alpha(tmp_path: Path) -> None:
    gray = make(tmp_path, "a.png", mode="L")
    text = PLAIN.replace("rgb", "gray")
    (found,) = read(describe(tmp_path, text), TensorSpec(name="x", dtype="float32", shape=(1, 1, 4, 6)))
    assert np.array_equal(found[0, 0], gray)
    alpha = make(tmp_path, "a.png", mode="RGBA")
    (found,) = read(describe(tmp_path))
    assert np.array_equal(found[0].transpose(1, 2, 0), alpha[:, :, :3])


@pytest.mark.parametrize(("height", "width"), [(20, 30), (30, 20), (21, 33), (20, 20)])
def test_short_side_and_centre_crop(height: int, width: int, tmp_path: Path) -> None:
    pixels = make(tmp_path, "a.png", height, width)
    text = PLAIN + "resize = 10\ncrop = [8, 6]\n"
    (found,) = read(describe(tmp_path, text), TensorSpec(name="x", dtype="float32", shape=(1, 3, 8, 6)))
    scale = 10 / min(height, width)
    size = (10 if width <= height else int(width * scale), 10 if height <= width else int(height * scale))
    resized = np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BILINEAR))
    top, left = round((size[1] - 8) / 2), round((size[0] - 6) / 2)
    assert np.array_equal(found[0].transpose(1, 2, 0), resized[top : top + 8, left : left + 6])


@pytest.mark.parametrize("interpolation", images.INTERPOLATIONS)
def test_exact_size(interpolation: str, tmp_path: Path) -> None:
    pixels = make(tmp_path, "a.png", 9, 5)
    (found,) = read(describe(tmp_path, PLAIN + f'size = [4, 6]\ninterpolation = "{interpolation}"\n'))
    wanted = Image.fromarray(pixels).resize((6, 4), Image.Resampling[interpolation.upper()])
    assert np.array_equal(found[0].transpose(1, 2, 0), np.asarray(wanted))


def test_labels_by_name_follow_the_order_and_the_selection(tmp_path: Path) -> None:
    for name in ("a.png", "b/c.png", "d.png"):
        make(tmp_path, name)
    (tmp_path / "labels.csv").write_text("file,label\nd.png,7\na.png,1\nb/c.png,4\nunused.png,9\n")
    head = 'metric = "top1"\nlabels = "labels.csv"\n'
    assert classes(load_set(describe(tmp_path, head=head))) == [1, 4, 7]
    assert classes(load_set(describe(tmp_path, head=head + "start = 1\n"))) == [4, 7]
    (tmp_path / "labels.csv").write_text("d.png,7\na.png,1\n")
    with pytest.raises(CalibrationError, match=r"has no label for b/c\.png \(1 images without label\)"):
        labels(load_set(describe(tmp_path, head=head)))
    (tmp_path / "labels.csv").write_text("d.png,7\nd.png,1\n")
    with pytest.raises(CalibrationError, match="names a file twice"):
        labels(load_set(describe(tmp_path, head=head)))


def test_a_label_file_in_the_folder_is_no_image(tmp_path: Path) -> None:
    make(tmp_path, "a.png")
    (tmp_path / "p/labels.txt").write_text("3\n")
    dataset = load_set(describe(tmp_path, head='metric = "top1"\nlabels = "p/labels.txt"\n'))
    assert (dataset.count, classes(dataset)) == (1, [3])


def refused(path: Path) -> str:
    with pytest.raises(CalibrationError) as caught:
        check(load_set(path), (SPEC,))
    assert caught.value.exit_code == 4
    return str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n" + b"\0" * 50, b"%!PS-Adobe-3.0 EPSF-3.0\n"]
)
def test_Q07_a_file_that_is_no_image_is_named(content: bytes, tmp_path: Path) -> None:
    for index in range(9):
        make(tmp_path, f"{index}.png")
    (tmp_path / "p/4b.png").write_bytes(content)
    assert f"{tmp_path / 'p/4b.png'}: not a readable image" in refused(describe(tmp_path))
    assert check(load_set(describe(tmp_path, head='glob = "?.png"\n')), (SPEC,)) == []


def test_Q07_a_truncated_image_is_named(tmp_path: Path) -> None:
    make(tmp_path, "a.jpg", 400, 600)
    path = tmp_path / "p/a.jpg"
    path.write_bytes(path.read_bytes()[:5000])
    assert "a.jpg: not a readable image" in refused(describe(tmp_path, PLAIN + "size = [4, 6]\n"))


@pytest.mark.parametrize(
    ("side", "words"), [(8000, "8000x8000 pixels, 50000000 at most"), (60000, "not a readable image")]
)
def test_a_decompression_bomb_is_refused_by_its_header(side: int, words: str, tmp_path: Path) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    (tmp_path / "p").mkdir()
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    bomb = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
        + chunk(b"IEND", b"")
    )
    (tmp_path / "p/a.png").write_bytes(bomb)
    assert words in refused(describe(tmp_path, PLAIN + "size = [4, 6]\n"))


def test_more_than_eight_bits_are_refused(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    Image.fromarray(np.full((4, 6), 40_000, np.uint16)).save(tmp_path / "p/a.png")
    assert "has more than 8 bits a channel" in refused(describe(tmp_path))


def test_sizes_that_do_not_fit_are_named(tmp_path: Path) -> None:
    make(tmp_path, "a.png", 10, 10)
    assert "wanted float32[N, 3, 4, 6], its first axis the batch, got uint8[3, 10, 10]" in refused(describe(tmp_path))
    text = PLAIN + "crop = [12, 6]\n"
    assert "10x10 pixels are too few for a crop of 12x6" in refused(describe(tmp_path, text))


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    make(outside, "a.png")
    make(tmp_path, "b.png")
    (tmp_path / "p/a.png").symlink_to(outside / "p/a.png")
    assert "is a link that leads out of" in refused(describe(tmp_path))


def test_the_contract_holds_the_geometry(tmp_path: Path) -> None:
    make(tmp_path, "a.png", 20, 20)
    text = 'layout = "NCHW"\ncolor = "bgr"\nscale = 1\nmean = [103.939, 116.779, 123.68]\nresize = 10\ncrop = [4, 6]\n'
    assert load_set(describe(tmp_path, text)).preprocessing["x"] == {
        "formula": "(raw * scale - mean) / std",
        "scale": 1.0,
        "mean": [103.939, 116.779, 123.68],
        "std": [1.0],
        "layout": "NCHW",
        "color": "bgr",
        "resize": 10,
        "crop": [4, 6],
        "interpolation": "bilinear",
    }
