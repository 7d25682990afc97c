"""Raw pixels: what a set states about them, and the same set as pixels that nothing was done to.

The arithmetic ``(raw * scale - mean) / std``, the colour order and the layout leave the set and go into the graph.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from edgeopt.calibration import arrays
from edgeopt.calibration.stream import bind
from edgeopt.calibration.types import DataSet, RawTransform, Source, Transform
from edgeopt.errors import CalibrationError
from edgeopt.model import TensorSpec

LAYOUTS = ("NCHW", "NHWC")
COLORS = ("rgb", "bgr")
CHANNELS = {"rgb": 3, "bgr": 3, "gray": 1}

MOST_CHANNELS = 4
"""More than these are a picture only where the set says something about each."""

_KEYS = 'Describe it in TOML, kind = "images" or "arrays", with scale, mean, std, layout and color for the input.'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pixels:
    """One input fed with raw pixels: unsigned bytes, 0 to 255.

    Attributes:
        name: of the model's input, before and after.
        layout: axes of the pixels, ``"NHWC"`` or ``"NCHW"``; ``inner_layout`` those that the model wants.
        color: channel order of the pixels, None when the set does not say; ``inner_color`` what the model wants.
        scale, mean, std: the model's value is ``(raw * scale - mean) / std``; mean and std hold one value, or one a
            channel in the model's order.
    """

    name: str
    layout: str
    inner_layout: str
    color: str | None
    inner_color: str | None
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def swapped(self) -> bool:
        """Whether the model wants the channels in the opposite order."""
        return self.color != self.inner_color

    @property
    def order(self) -> tuple[int, ...]:
        """Axes of the pixels in the order that the model wants them."""
        return tuple(self.layout.index(axis) for axis in self.inner_layout)


def pixels_of(
    dataset: DataSet, inputs: tuple[TensorSpec, ...], *, layout: str | None = None, color: str | None = None
) -> tuple[Pixels, ...]:
    """What the set states about every image input that it knows the arithmetic of; at least one.

    Args:
        layout: axes of the raw pixels; the model's own when None.
        color: order of their channels, ``"rgb"`` or ``"bgr"``. None is RGB where the set names a colour order.

    Raises:
        CalibrationError: no input can be fed raw pixels; says which keys are missing, or what does not fit.
    """
    if dataset.kind not in ("images", "arrays"):
        raise CalibrationError(
            f'{dataset.name}: a set of kind "{dataset.kind}" does not state how raw pixels become the input.',
            remedy=_KEYS,
        )
    sources = bind(dataset, inputs)
    found, missing = [], []
    for spec in inputs:
        if spec.name in dataset.given:
            continue
        transform = sources[spec.name].transform
        if not transform.stated or transform.layout is None:
            keys = [] if transform.stated else ["scale, mean or std"]
            keys += [] if transform.layout else ["layout"]
            missing.append(f'input "{spec.name}" states no {" and no ".join(keys)}')
            continue
        found.append(_pixels(dataset, spec, transform, layout, color))
    if not found:
        raise CalibrationError(f"{dataset.name}: {'; '.join(missing)}.", remedy=_KEYS)
    return tuple(found)


def _pixels(dataset: DataSet, spec: TensorSpec, stated: Transform, layout: str | None, color: str | None) -> Pixels:
    where = f'{dataset.name}: input "{spec.name}"'
    if not re.fullmatch(r"float(16|32|64)", spec.dtype):
        raise CalibrationError(
            f"{where} is {spec.dtype}, and only a float input has arithmetic to fold in.", remedy="Leave --input out."
        )
    if len(spec.shape) != 4:
        raise CalibrationError(
            f"{where} has the shape {list(spec.shape)}: pixels need batch, channels, height and width.",
            remedy="Leave --input out; a gray picture has one channel, [1, 1, H, W].",
        )
    assert stated.layout is not None
    channels = spec.shape[stated.layout.index("C")]
    wanted = CHANNELS.get(stated.color or "")
    sizes = {len(values) for values in (stated.mean, stated.std) if len(values) > 1} | ({wanted} if wanted else set())
    if not isinstance(channels, int) or any(size != channels for size in sizes):
        raise CalibrationError(
            f"{where} has {channels} channels as {stated.layout}, and the set states {sorted(sizes) or 'none'}.",
            remedy="Correct layout, color, mean and std; the number of channels must be fixed in the model.",
        )
    if not sizes and channels > MOST_CHANNELS:
        raise CalibrationError(
            f"{where} has {channels} channels as {stated.layout}, more than a picture has.",
            remedy="Correct layout, or state color or one mean and std a channel.",
        )
    colored = stated.color in COLORS
    if color is not None and not colored:
        raise CalibrationError(
            f'{where}: the pixels shall be {color}, and the set says "{stated.color or "nothing"}" about colour.',
            remedy='State color = "rgb" or "bgr", what the model wants, or leave --input-color out.',
        )
    return Pixels(
        name=spec.name,
        layout=layout or stated.layout,
        inner_layout=stated.layout,
        color=(color or "rgb") if colored else stated.color,
        inner_color=stated.color,
        scale=stated.scale,
        mean=stated.mean or (0.0,),
        std=stated.std or (1.0,),
    )


def raw_set(dataset: DataSet, pixels: Sequence[Pixels]) -> DataSet:
    """The same samples as raw pixels: resized and cropped as before, and no arithmetic.

    Stored numbers must be whole ones of 0 to 255; that is checked when a sample is read.
    """
    only = len(dataset.sources) == 1
    by_name = {p.name: p for p in pixels}
    sources = tuple(
        _raw(source, found) if (found := pixels[0] if only else by_name.get(source.name)) else source
        for source in dataset.sources
    )
    settings = {**dataset.settings, "raw": [dataclasses.asdict(p) for p in pixels]}
    return dataclasses.replace(dataset, sources=sources, settings=settings)


def _raw(source: Source, pixels: Pixels) -> Source:
    stated = source.transform
    transpose: tuple[int, ...] = ()
    if source.file is not None:
        rank = len(arrays.header(source.file).shape) - 1
        stored = stated.transpose or tuple(range(rank))
        order = [pixels.inner_layout[-len(stored) :].index(axis) for axis in pixels.layout[-len(stored) :]]
        transpose = tuple(stored[axis] for axis in order)
    raw = RawTransform(
        layout=pixels.layout,
        color=pixels.color,
        transpose=transpose,
        cast=True,
        reverse=pixels.swapped and source.file is not None,
        folded={
            "formula": "(raw * scale - mean) / std",
            "scale": pixels.scale,
            "mean": list(pixels.mean),
            "std": list(pixels.std),
            "layout": pixels.inner_layout,
            **({"color": pixels.inner_color} if pixels.inner_color else {}),
        },
    )
    return dataclasses.replace(source, transform=raw)


def contract(dataset: DataSet) -> dict[str, dict[str, object]]:
    """``DataSet.preprocessing``, with the range of raw pixels and what the graph does to them itself."""
    found = dataset.preprocessing
    for source in dataset.sources:
        if isinstance(source.transform, RawTransform):
            found[source.name] |= {"range": [0, 255], "in the graph": dict(source.transform.folded)}
    return found
