"""The embedded network and its sets, and a smaller one with depthwise convolutions, judged on 9,000 images."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import numpy as np

from _zoo import sets
from _zoo.packages import FASHION_MNIST, FetchError, check, debian_members, fetch_debian

SOURCE = Path(__file__).resolve().parent.parent.parent / "calibration"

NAMES = {
    "fashion-mnist.onnx": "model.onnx",
    "fashion-mnist.pt2": "model.pt2",
    "fashion-mnist-calib.toml": "calib.toml",
    "fashion-mnist-eval.toml": "eval.toml",
    "fashion-mnist-calib.npz": "fashion-mnist-calib.npz",
    "fashion-mnist-eval.npz": "fashion-mnist-eval.npz",
    "COPYRIGHT": "COPYRIGHT",
}

DEPTHWISE = Path(__file__).with_name("fashion_mnist_depthwise.onnx")
DEPTHWISE_SHA256 = "bb2ecf18bf0c2fe9e2f79f531bc76bbfc4c89341e5a192529ae702e1e29cce9c"
FIRST_JUDGED = 1000
"""Images of the test set before this one calibrate."""

KNOWN_RIGHT = 0.8962


def make(folder: Path, cache: Path) -> str:
    """Copies; returns the sizes."""
    for name, new in NAMES.items():
        if not (SOURCE / name).is_file():
            raise FetchError(f"{SOURCE / name} is missing")
        shutil.copyfile(SOURCE / name, folder / new)
    sets.write_build(folder, ("model.onnx",), ("model.pt2",))
    sizes = [f"{new} {(folder / new).stat().st_size / 1e6:.3f} MB" for new in ("model.onnx", "model.pt2")]
    return ", ".join(sizes)


def make_depthwise(folder: Path, cache: Path) -> str:
    """The network of this folder, the embedded calibration set, and the last 9,000 images of the test set.

    Raises:
        UnavailableError: the Debian package with the images cannot be had here.
    """
    stored = debian_members(fetch_debian(FASHION_MNIST, cache), "-ubyte.gz")
    files = {Path(name).name: data for name, data in stored.items()}
    images = idx(files["t10k-images-idx3-ubyte.gz"])[FIRST_JUDGED:, np.newaxis]
    labels = idx(files["t10k-labels-idx1-ubyte.gz"])[FIRST_JUDGED:]
    (folder / "model.onnx").write_bytes(check(DEPTHWISE.read_bytes(), DEPTHWISE_SHA256, DEPTHWISE.name))
    for name in ("fashion-mnist-calib.toml", "fashion-mnist-calib.npz", "COPYRIGHT"):
        shutil.copyfile(SOURCE / name, folder / NAMES[name])
    np.save(folder / "eval.npy", images)
    np.save(folder / "eval-labels.npy", labels.astype(np.int64))
    pixels = {"layout": "NCHW", "color": "gray", "scale": "1/255", "mean": 0.286, "std": 0.353}
    sets.describe(
        folder / "eval.toml",
        name="fashion-mnist-eval-9000",
        description="The last 9,000 labelled images of Fashion-MNIST's test set",
        inputs={"x": {"file": "eval.npy", **pixels}},
        settings={"metric": "top1", "labels": "eval-labels.npy"},
    )
    sets.write_build(folder, ("model.onnx",))
    sets.write_source(folder, "The network is edgeopt's own. Images: Fashion-MNIST, MIT, see COPYRIGHT.\n")
    running = sets.session(folder / "model.onnx")
    batch = ((images / 255 - 0.286) / 0.353).astype(np.float32)
    right = float(np.mean(running.run(None, {"x": batch})[0].argmax(1) == labels))
    sets.expect("the share of right answers", right, KNOWN_RIGHT, 0.005)
    return f"{(folder / 'model.onnx').stat().st_size / 1e6:.3f} MB, top-1 {right:.2%} of {len(labels)} images"


def idx(stored: bytes) -> np.ndarray:
    """uint8, of the shape that a gzipped file of Fashion-MNIST states."""
    data = gzip.decompress(stored)
    if data[:3] != b"\0\0\x08":
        raise FetchError("a file of images or labels holds no unsigned bytes")
    shape = np.frombuffer(data, ">i4", data[3], 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)
