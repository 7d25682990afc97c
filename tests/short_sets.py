"""The embedded network with few of its images: a build that is over soon, for tests that ask for no exact figure."""

from __future__ import annotations

from pathlib import Path

import numpy as np

CALIBRATION = Path(__file__).resolve().parent.parent / "calibration"
NET = CALIBRATION / "fashion-mnist.onnx"
COUNTS = {"calib": 64, "eval": 300}


def short_sets(folder: Path) -> tuple[str, str]:
    """Write the first images of both sets into ``folder``; the paths of their descriptions, calib and eval."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for kind, count in COUNTS.items():
        name = f"fashion-mnist-{kind}"
        with np.load(CALIBRATION / f"{name}.npz") as whole:
            np.savez(folder / f"{name}.npz", **{key: whole[key][:count] for key in whole.files})
        (folder / f"{name}.toml").write_text((CALIBRATION / f"{name}.toml").read_text())
        found.append(str(folder / f"{name}.toml"))
    return found[0], found[1]
