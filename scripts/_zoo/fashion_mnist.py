"""The embedded network and its sets, under the names that the other networks have."""

from __future__ import annotations

import shutil
from pathlib import Path

from _zoo import sets
from _zoo.packages import FetchError

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


def make(folder: Path, cache: Path) -> str:
    """Copies; returns the sizes."""
    for name, new in NAMES.items():
        if not (SOURCE / name).is_file():
            raise FetchError(f"{SOURCE / name} is missing")
        shutil.copyfile(SOURCE / name, folder / new)
    sets.write_build(folder, ("model.onnx",), ("model.pt2",))
    sizes = [f"{new} {(folder / new).stat().st_size / 1e6:.3f} MB" for new in ("model.onnx", "model.pt2")]
    return ", ".join(sizes)
