"""Builds of a network that is made in a test, and what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edgeopt.budget import Budget
from edgeopt.bundle import Bundle
from edgeopt.errors import ModelError
from edgeopt.pipeline import Request, build
from tests.short_sets import NET, short_sets
from tests.unit.findings import nets


def built(folder: Path, proto: onnx.ModelProto, calib: str | None = None, **options: Any) -> Bundle:
    path = nets.write(folder / "net.onnx", proto)
    values: dict[str, Any] = {"target": "raspberry-pi-5", "effort": "none", **options}
    return build(Request(model=path, out=folder / "out", calib=calib, **values))


def floored(folder: Path) -> Request:
    """A build of the embedded network whose limit int8 misses, so that it searches; its sets are short."""
    calib, judge = short_sets(folder / "sets")
    return Request(
        model=NET,
        target="raspberry-pi-5",
        out=folder / "out",
        calib=calib,
        evaluate=judge,
        effort="none",
        budget=Budget(min_sqnr_db=43.0),
        max_float_macs=0.5,
    )


def refused(folder: Path, proto: onnx.ModelProto, match: str, calib: str | None = None, **options: Any) -> ModelError:
    with pytest.raises(ModelError, match=match) as caught:
        built(folder, proto, calib, **options)
    assert not (folder / "out").exists()
    return caught.value


def artifact(found: Bundle) -> Path:
    return found.root / str(found.manifest["default_artifact"])


def warnings(found: Bundle) -> str:
    return "\n".join(found.manifest["verdict"]["warnings"])


def rms(reference: np.ndarray, test: np.ndarray) -> float:
    a, b = reference.astype(np.float64), test.astype(np.float64)
    return float(np.sqrt(((a - b) ** 2).sum() / (a**2).sum()))


def rand(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)
