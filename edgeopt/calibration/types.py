"""What a calibration or evaluation set is: frozen descriptions; the data stays in its files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from edgeopt.model import file_sha256

ONLY_INPUT = ""
"""Name of a source that feeds the model's only input, whatever that is called."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transform:
    """How one stored sample becomes an input value: ``x = (raw * scale - mean) / std``, in float64, rounded once.

    Attributes:
        scale: factor on the stored value.
        mean: one value, or one a channel; empty is 0.
        std: one value, or one a channel; empty is 1.
        layout: axes of the result, ``"NCHW"`` or ``"NHWC"``; None when the data is not an image.
        color: ``"rgb"``, ``"bgr"`` or ``"gray"``; None when not stated.
        transpose: order of the stored sample's axes in the result; empty keeps them.
        cast: the stored type may be converted to the model's although no arithmetic is asked for.
        stated: scale, mean or std was written down, so that a range of 0..255 is meant.
    """

    scale: float = 1.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    layout: str | None = None
    color: str | None = None
    transpose: tuple[int, ...] = ()
    cast: bool = False
    stated: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArrayFile:
    """A ``.npy`` file, or one member of a ``.npz`` file (its name without ``.npy``)."""

    path: Path
    member: str | None = None

    def __str__(self) -> str:
        return str(self.path) if self.member is None else f"{self.path}[{self.member}]"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Where one input's values come from; ``file`` is None for images. ``name`` may be ``ONLY_INPUT``."""

    name: str
    file: ArrayFile | None
    transform: Transform


@dataclasses.dataclass(frozen=True, kw_only=True)
class Images:
    """A folder of images and how their geometry is brought to the model's; sizes are (height, width) in pixels.

    ``files`` are POSIX paths relative to ``folder``, sorted. ``resize`` is the wanted short side, ``size`` an exact
    size, ``crop`` a centre crop after either.
    """

    folder: Path
    files: tuple[str, ...]
    resize: int | None
    size: tuple[int, int] | None
    crop: tuple[int, int] | None
    interpolation: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSet:
    """A set of samples, described and not loaded.

    Attributes:
        kind: ``"arrays"``, ``"images"``, ``"python"`` or ``"random"``.
        path: the description, or the data file given instead of one; None for ``random``.
        total: samples stored; ``count`` of them are used: ``start``, ``start + stride``, ...
        metric: name of the task metric (``"top1"``), or None.
        second_class: random values: no statement about quality may rest on this set.
        labels: where the labels are, or None.
        settings: every choice that shapes the samples, as plain JSON values without paths.
        files: every file the samples and labels are read from.
    """

    name: str
    kind: str
    path: Path | None
    total: int
    count: int
    start: int = 0
    stride: int = 1
    metric: str | None = None
    second_class: bool = False
    sources: tuple[Source, ...] = ()
    images: Images | None = None
    factory: str | None = None
    seed: int = 0
    labels: ArrayFile | None = None
    settings: Mapping[str, object] = dataclasses.field(default_factory=dict)
    files: tuple[Path, ...] = ()

    @property
    def indices(self) -> range:
        """Stored positions of the samples in use, in order."""
        return range(self.start, self.start + self.stride * self.count, self.stride)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs the description maps; ``ONLY_INPUT`` alone means the model's only one."""
        return tuple(source.name for source in self.sources)

    @property
    def preprocessing(self) -> dict[str, dict[str, object]]:
        """The contract of every input that states one: how raw data becomes the input, as plain JSON values."""
        return {s.name: found for s in self.sources if (found := _contract(s.transform, self.images))}

    def digest(self) -> str:
        """sha256 over the settings and the contents of every file. What a ``python`` set yields is not covered."""
        digest = hashlib.sha256(json.dumps(dict(self.settings), sort_keys=True, separators=(",", ":")).encode())
        for path in self.files:
            digest.update(file_sha256(path).encode())
        return digest.hexdigest()


def _contract(transform: Transform, images: Images | None) -> dict[str, object]:
    found: dict[str, object] = {}
    if transform.stated:
        found["formula"] = "(raw * scale - mean) / std"
        found |= {
            "scale": transform.scale,
            "mean": list(transform.mean or (0.0,)),
            "std": list(transform.std or (1.0,)),
        }
    if transform.layout:
        found["layout"] = transform.layout
    if transform.color:
        found["color"] = transform.color
    if images is not None:
        found |= {name: value for name in ("resize", "size", "crop") if (value := getattr(images, name)) is not None}
        found["interpolation"] = images.interpolation
    return {key: list(value) if isinstance(value, tuple) else value for key, value in found.items()}
