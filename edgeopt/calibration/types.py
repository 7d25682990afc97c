"""What a calibration or evaluation set is: frozen descriptions; the data stays in its files."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from edgeopt.calibration.contract import contract
from edgeopt.metrics import MetricSpec
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
class RawTransform(Transform):
    """Stored pixels as they are, in bytes: no arithmetic.

    Attributes:
        reverse: the order of the channels is reversed (stored BGR, wanted RGB).
        folded: what the graph does to them itself, as plain JSON values.
    """

    reverse: bool = False
    folded: Mapping[str, object] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArrayFile:
    """A ``.npy`` file, or one member of a ``.npz`` file (its name without ``.npy``)."""

    path: Path
    member: str | None = None

    def __str__(self) -> str:
        return str(self.path) if self.member is None else f"{self.path}[{self.member}]"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Folder:
    """A folder with one file a sample: ``.npy``, or the bytes of an array alone.

    Attributes:
        files: POSIX paths relative to ``folder``, sorted.
        dtype: numpy type with its byte order, of files that are bytes alone; None for ``.npy``.
        shape: of those; one axis may be -1, which the file's size then gives.
        skip: bytes of a header before the array.
    """

    folder: Path
    files: tuple[str, ...]
    dtype: str | None = None
    shape: tuple[int, ...] = ()
    skip: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Where one input's values come from.

    ``file`` is None for everything but arrays. ``name`` may be ``ONLY_INPUT``. ``folder`` is that of a ``folder`` set.
    """

    name: str
    file: ArrayFile | None
    transform: Transform
    folder: Folder | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenInput:
    """One input of a ``tokens`` set: the numbers of ``key`` in every line, or 1 for each where ``mask`` is set."""

    name: str
    key: str
    pad: int
    mask: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokens:
    """A file of JSON lines. ``length`` and ``multiple`` say what lines are padded to; 0 leaves it to the model."""

    file: Path
    inputs: tuple[TokenInput, ...]
    length: int
    multiple: int
    truncate: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audio:
    """A folder of WAV files cut into windows; ``window`` 0 takes a file as one sample.

    Attributes:
        files: POSIX paths relative to ``folder``, sorted.
        windows: how many samples each gives.
        rate: Hz.
        channels: ``"mono"``, ``"mean"``, ``"first"`` or ``"all"``.
        window, hop: in points of time; ``before`` zeros stand before every file.
        tail: ``"drop"`` or ``"zero"``: what becomes of a last window that is not full.
        axes: ``"T"``, ``"CT"`` or ``"TC"``.
        integer: values as stored; else they are scaled to -1..1.
    """

    folder: Path
    files: tuple[str, ...]
    windows: tuple[int, ...]
    rate: int
    channels: str
    window: int
    hop: int
    before: int
    tail: str
    axes: str
    integer: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constant:
    """An input that is the same in every sample: a number, or nested lists of them."""

    name: str
    value: object


@dataclasses.dataclass(frozen=True, kw_only=True)
class Carried:
    """An input that is an output of the sample before; zero at the start of every sequence."""

    name: str
    output: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Labels:
    """Where labels, or the names of groups, are: one array or text ``file``, a ``key`` of JSON lines, or a ``folder``.

    A folder holds one ``.npy`` for every file of the samples, under the same name.
    """

    file: ArrayFile | None = None
    key: str | None = None
    folder: Path | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Groups:
    """Which samples belong together: so many after another, the files of one folder, or as a file says."""

    every: int = 0
    folder: bool = False
    file: Path | None = None


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
        kind: ``"arrays"``, ``"folder"``, ``"images"``, ``"tokens"``, ``"wav"``, ``"python"`` or ``"random"``.
        path: the description, or the data file given instead of one; None for ``random``.
        total: samples stored; ``count`` of them are used: ``start``, ``start + stride``, ...
        metric: the task metric, or None.
        second_class: random values: no statement about quality may rest on this set.
        labels: where the labels are, or None.
        groups: which samples belong together, or None; frames of one WAV file always do.
        constants, carried: inputs that no file holds.
        charset, pairs: files that the metric reads.
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
    metric: MetricSpec | None = None
    second_class: bool = False
    sources: tuple[Source, ...] = ()
    images: Images | None = None
    tokens: Tokens | None = None
    audio: Audio | None = None
    constants: tuple[Constant, ...] = ()
    carried: tuple[Carried, ...] = ()
    factory: str | None = None
    seed: int = 0
    labels: Labels | None = None
    groups: Groups | None = None
    charset: Path | None = None
    pairs: Path | None = None
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
    def given(self) -> frozenset[str]:
        """Names of the inputs that are constant or carried over."""
        return frozenset([found.name for found in self.constants] + [found.name for found in self.carried])

    @property
    def stored(self) -> tuple[str, ...]:
        """Relative paths of the stored samples, where each is a file; of the recordings of a ``wav`` set."""
        if self.images is not None:
            return self.images.files
        if self.audio is not None:
            return self.audio.files
        return next((s.folder.files for s in self.sources if s.folder is not None), ())

    @property
    def preprocessing(self) -> dict[str, dict[str, object]]:
        """The contract of every input that states one: how raw data becomes the input, as plain JSON values."""
        return contract(self)

    def digest(self) -> str:
        """sha256 over the settings and the contents of every file. What a ``python`` set yields is not covered."""
        digest = hashlib.sha256(json.dumps(dict(self.settings), sort_keys=True, separators=(",", ":")).encode())
        for path in self.files:
            digest.update(file_sha256(path).encode())
        return digest.hexdigest()
