"""Reads the parts that descriptions of several kinds share: transforms, paths, labels, metrics."""

from __future__ import annotations

import re
from pathlib import Path

from edgeopt.calibration.images import COLORS
from edgeopt.calibration.types import ArrayFile, Transform
from edgeopt.tomlfile import Table

METRICS = ("top1",)
LAYOUTS = ("NCHW", "NHWC")
MAX_SIDE = 16_384
"""Longest side of an image, in pixels, that a description may ask for."""

_FRACTION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*/\s*(\d{1,9}(?:\.\d{1,9})?)")


def transform(table: Table) -> Transform:
    """The arithmetic and the axes of one input."""
    layout = table.text("layout", "", choices=LAYOUTS)
    color = table.text("color", "", choices=COLORS)
    mean, std = table.numbers("mean"), table.numbers("std")
    if any(value <= 0 for value in std):
        table.problem("std", "must be greater than zero.")
    channels = {"rgb": 3, "bgr": 3, "gray": 1}.get(color)
    for name, values in (("mean", mean), ("std", std)):
        if len(values) > 1 and not layout:
            table.problem(name, "has one value a channel, so layout must be given.")
        if len(values) > 1 and channels is not None and len(values) != channels:
            table.problem(name, f"has {len(values)} values for {channels} channels ({color}).")
    return Transform(
        scale=_scale(table),
        mean=mean,
        std=std,
        layout=layout or None,
        color=color or None,
        stated=any(name in table.data for name in ("scale", "mean", "std")),
    )


def _scale(table: Table) -> float:
    """A number, or a fraction in a text, so that 1/255 need not be rounded by hand."""
    value = table.data.get("scale", 1.0)
    if isinstance(value, str) and (match := _FRACTION.fullmatch(value)):
        below = float(match[2])
        value = float(match[1]) / below if below else 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < abs(value) < float("inf"):
        table.problem("scale", f'must be a number but zero, or a fraction like "1/255", got {value!r:.60}.')
        return 1.0
    return float(value)


def pair(table: Table, name: str) -> tuple[int, int] | None:
    """A pair ``[height, width]`` in pixels, or None."""
    value = table.data.get(name)
    if value is None:
        return None
    good = isinstance(value, list) and len(value) == 2 and all(type(v) is int and 0 < v <= MAX_SIDE for v in value)
    if not good:
        table.problem(name, f"must be [height, width] in pixels, got {value!r:.60}.")
        return None
    assert isinstance(value, list)
    return value[0], value[1]


def inside(table: Table, name: str, toml: Path) -> Path:
    """The path in ``name``: absolute as written, relative from the description's folder and never out of it."""
    text = table.text(name)
    path = Path(text)
    if path.is_absolute():
        return path
    base = toml.parent
    if ".." in path.parts or "\0" in text or not _stays(base / path, base):
        table.problem(
            name, f'"{text}" leads out of the description\'s folder; move the data there or write an absolute path.'
        )
    return base / path


def _stays(path: Path, base: Path) -> bool:
    """Whether a path, its links followed, lies in ``base``."""
    try:
        return path.resolve().is_relative_to(base.resolve())
    except (OSError, RuntimeError):  # a loop of links
        return False


def array_file(table: Table, toml: Path, member: str) -> ArrayFile:
    """The array an input comes from; ``member`` is the default name inside a ``.npz`` file."""
    path = inside(table, "file", toml)
    if path.suffix == ".npy":
        if "member" in table.data:
            table.problem("member", "only a .npz file has members.")
        return ArrayFile(path=path)
    if path.suffix != ".npz":
        table.problem("file", f'"{path.name}" is neither .npz nor .npy.')
    return ArrayFile(path=path, member=table.text("member", member))


def labels(table: Table, toml: Path) -> ArrayFile | None:
    """Labels as ``"file.npy"``, ``"file.csv"``, or ``{ file = "f.npz", member = "labels" }``."""
    named = metric(table)
    if "labels" not in table.data:
        if named is not None:
            table.problem("metric", "needs labels.")
        return None
    if named is None:
        table.problem("metric", 'is missing beside labels; add metric = "top1".')
    if isinstance(table.data["labels"], str):
        path = inside(table, "labels", toml)
        return _label_file(table, path) if path.suffix != ".npz" else ArrayFile(path=path, member="labels")
    entry = table.table("labels")
    entry.only(("file", "member"))
    path = inside(entry, "file", toml)
    if path.suffix == ".npz":
        return ArrayFile(path=path, member=entry.text("member", "labels"))
    return _label_file(entry, path)


def _label_file(table: Table, path: Path) -> ArrayFile:
    if path.suffix not in (".npy", ".csv", ".txt"):
        table.problem("labels", f'"{path.name}" is none of .npy, .npz, .csv, .txt.')
    return ArrayFile(path=path)


def metric(table: Table) -> str | None:
    """The task metric, or None."""
    return table.text("metric", choices=METRICS) if "metric" in table.data else None
