"""Reads the parts that descriptions of several kinds share: transforms, sizes, array files, given inputs."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from edgeopt.calibration.images import COLORS
from edgeopt.calibration.paths import inside
from edgeopt.calibration.types import ArrayFile, Carried, Constant, Transform
from edgeopt.tomlfile import Table

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


def stored_transform(table: Table) -> Transform:
    """The same for arrays as they are stored, with the order of their axes and the change of type."""
    transpose = table.data.get("transpose", [])
    if not isinstance(transpose, list) or sorted(map(str, transpose)) != [str(i) for i in range(len(transpose))]:
        table.problem("transpose", f"must be an order of the stored sample's axes, like [2, 0, 1], got {transpose}.")
        transpose = []
    found = transform(table)
    return dataclasses.replace(found, transpose=tuple(transpose), cast=table.flag("cast", False))


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


def given(table: Table) -> tuple[dict[str, Table], tuple[Constant, ...], tuple[Carried, ...]]:
    """The tables below ``inputs`` that hold data, and those of inputs that are constant or carried over."""
    own: dict[str, Table] = {}
    constants, carried = [], []
    for name, entry in table.tables("inputs").items():
        if "from" in entry.data:
            entry.only(("from",))
            carried.append(Carried(name=name, output=entry.text("from")))
        elif "value" in entry.data:
            entry.only(("value",))
            constants.append(Constant(name=name, value=_constant(entry)))
        else:
            own[name] = entry
    return own, tuple(constants), tuple(carried)


def _constant(table: Table) -> object:
    value = table.data["value"]
    if not _numbers(value, 8):
        table.problem("value", f"must be a finite number or nested lists of them, got {value!r:.60}.")
        return 0
    return value


def _numbers(value: object, depth: int) -> bool:
    if isinstance(value, list):
        return depth > 0 and bool(value) and all(_numbers(item, depth - 1) for item in value)
    return isinstance(value, int | float) and abs(value) < float("inf")
