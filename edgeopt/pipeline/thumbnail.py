"""Inputs that are pictures, as small PNG files of what the model was fed.

What a set states, ``x = (raw * scale - mean) / std``, is taken back: ``raw = (x * std + mean) / scale``. Where it
states nothing the range of the sample is stretched to 0..255.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeopt.calibration import raw
from edgeopt.calibration.types import DataSet
from edgeopt.model import TensorSpec
from edgeopt.quality import Look

PIXELS, LONGEST = 96 * 96, 256
"""Pixels of a picture in all, and of its longer side; smaller ones stay as they are."""

SMALLEST = 8
"""Pixels of the shorter side below which an array is no picture."""

NARROWEST = 1 / 16
"""Shape of the thinnest picture: its shorter side against the longer one."""


def look(dataset: DataSet | None, inputs: Sequence[TensorSpec]) -> Look | None:
    """Draws the first input that is a picture by what the set states; None where none is.

    An input is a picture where the set is one of images or states the layout of its axes, and it has 1 or 3 channels.
    """
    if dataset is None:
        return None
    contract = raw.contract(dataset)
    only = contract.get("") if len(inputs) == 1 else None
    for spec in inputs:
        stated = contract.get(spec.name, only) or {}
        layout = stated.get("layout")
        if len(spec.shape) == 4 and layout in raw.LAYOUTS:
            return _of(spec.name, str(layout), stated)
    return None


def _of(name: str, layout: str, stated: Mapping[str, Any]) -> Look:
    def draw(feeds: Mapping[str, np.ndarray]) -> bytes | None:
        value = np.asarray(feeds[name])
        if value.ndim != 4 or value.shape[0] != 1:
            return None
        picture = value[0].transpose(1, 2, 0) if layout == "NCHW" else value[0]
        height, width, channels = picture.shape
        thin = min(height, width) < max(SMALLEST, NARROWEST * max(height, width))
        if channels not in (1, 3) or thin:
            return None
        return png(pixels(picture, stated))

    return draw


def pixels(picture: npt.NDArray[Any], stated: Mapping[str, Any]) -> npt.NDArray[np.uint8]:
    """``[height, width, channels]`` as fed -> the same as bytes, red first.

    Args:
        stated: ``scale``, ``mean``, ``std`` and ``color`` of the set's contract, where it states them.
    """
    value = picture.astype(np.float64)
    finite = np.isfinite(value)
    value = np.where(finite, value, 0.0)
    if picture.dtype == np.uint8:
        pass
    elif stated.get("scale"):
        value = (value * np.asarray(stated["std"]) + np.asarray(stated["mean"])) / float(stated["scale"])
    else:
        low, high = (float(value[finite].min()), float(value[finite].max())) if finite.any() else (0.0, 0.0)
        value = (value - low) * (255 / (high - low) if high > low else 0.0)
    found = np.clip(np.rint(value), 0, 255).astype(np.uint8)
    return found[:, :, ::-1] if stated.get("color") == "bgr" else found


def png(picture: npt.NDArray[np.uint8]) -> bytes:
    """``uint8[height, width, 1 or 3]`` as a PNG file of at most ``PIXELS`` pixels."""
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(picture[:, :, 0] if picture.shape[2] == 1 else picture))
    width, height = image.size
    factor = min(LONGEST / max(width, height), math.sqrt(PIXELS / (width * height)))
    if factor < 1:
        width, height = (max(1, round(side * factor)) for side in (width, height))
        image = image.resize((width, height), Image.Resampling.BOX)
    stream = io.BytesIO()
    image.save(stream, "PNG", optimize=True)
    return stream.getvalue()
