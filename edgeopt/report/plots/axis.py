"""Scales and axes: values to px, round marks, labels that do not touch."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence

from edgeopt.report.plots.svg import inside, line, text, wide

Unit = tuple[float, str]
"""Unit of a time axis: nanoseconds in one, and its name."""

MANTISSAS = ((1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9), (1, 1.5, 2, 3, 4, 5, 7), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,))
"""Marks of a decade on a logarithmic axis, dense to sparse."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scale:
    """Values in [low, high] to px in [start, end] (``end`` may be the smaller), logarithmic where ``log``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The position of a value."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, 1e-300))
        return self.start + (value - low) / ((high - low) or 1.0) * (self.end - self.start)

    def clipped(self, value: float) -> float:
        """The position of a value, moved to the nearer end where it lies outside."""
        return self(min(max(value, self.low), self.high))

    def marks(self, room: float) -> list[float]:
        """Round values within the range, at least ``room`` px apart."""
        length = abs(self.end - self.start)
        if not self.log or self.high < 1.6 * self.low:
            counts = range(max(1, int(length / room)), max(2, int(1.5 * length / room) + 1))
            return next(
                (v for n in counts if len(v := ticks(self.low, self.high, n)) > 1), ticks(self.low, self.high, 1)
            )
        for mantissas in MANTISSAS:
            found = _decades(self.low, self.high, mantissas)
            if found and all(abs(self(b) - self(a)) >= room for a, b in itertools.pairwise(found)):
                return found
        every = max(1, math.ceil(room * math.log10(self.high / self.low) / length))
        return _decades(self.low, self.high, (1,))[::every]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Broken:
    """An upright axis whose upper part is logarithmic, for the few values far above the others."""

    bulk: Scale
    far: Scale | None

    def __call__(self, value: float) -> float:
        """The position of a value; the ends hold what lies outside."""
        if self.far is None or value <= self.bulk.high:
            return self.bulk.clipped(value)
        return self.far.clipped(value)


def broken(values: Sequence[float], top: float, base: float, others: Sequence[float] = ()) -> Broken:
    """A scale for the bulk of ``values``, with a logarithmic band above it where some, or ``others``, are far out."""
    ordered = sorted(values) or sorted(others) or [0.0, 1.0]
    low, most, high = ordered[0], ordered[math.ceil(0.97 * len(ordered)) - 1], max(ordered[-1], *others, 0.0)
    room = max(0.35 * (most - low), 0.02 * most) or 1.0
    low, limit = max(low - 0.3 * room, 0.0), most + room
    if high <= limit + room:
        limit = max(limit, high + 0.1 * room)
        return Broken(bulk=Scale(low=low, high=limit, start=base, end=top), far=None)
    split = top + 0.34 * (base - top)
    far = Scale(low=limit, high=max(high * 1.06, limit * 1.5), start=split - 5, end=top + 3, log=True)
    return Broken(bulk=Scale(low=low, high=limit, start=base, end=split), far=far)


def ticks(low: float, high: float, count: int) -> list[float]:
    """About ``count`` round values (1, 2 or 5 times a power of ten apart) within [low, high]."""
    if not high > low:
        return [low]
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _decades(low: float, high: float, mantissas: Iterable[float]) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    values = [m * 10.0**power for power in range(first, last + 1) for m in mantissas]
    return [v for v in values if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)]


def plain(value: float, among: Sequence[float] = ()) -> str:
    """The label of a mark; neighbours share their number of decimals."""
    gap = min((b - a for a, b in itertools.pairwise(among)), default=abs(value) or 1)
    places = max(0, -math.floor(math.log10(gap) + 1e-9)) if gap > 0 else 0
    return f"{value:.{min(places, 6)}f}"


def each(value: float) -> str:
    """The label of a mark on a logarithmic axis, no more digits than it needs."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def x_axis(scale: Scale, y: float, unit: str, right: float) -> list[str]:
    """An axis line with marks and labels below it; labels stay left of ``right`` and do not touch."""
    parts = [line(scale.start, y, scale.end, y, "axis")]
    for value, at, label in _labels(scale, unit, right):
        x = scale(value)
        parts.append(line(x, y, x, y + 4, "axis"))
        parts.append(text(at, y + 17, label, "mid quiet"))
    return parts


def _labels(scale: Scale, unit: str, right: float) -> list[tuple[float, float, str]]:
    """Values with the place of their labels and these: as many as do not touch; the unit stands at the last."""
    room = max(4, int((scale.end - scale.start) / 90))
    log = scale.log and scale.high >= 1.6 * scale.low
    counts = (*range(room, 0, -1), *range(room + 1, 2 * room + 4))
    tries = [scale.marks(46)] if log else [ticks(scale.low, scale.high, count) for count in counts]
    tries += [[found[0], found[-1]] for found in tries if len(found) > 1]
    placed: list[tuple[float, float, str]] = []
    for values in tries:
        labels = [each(v) if log else plain(v, values) for v in values]
        labels[-1:] = [f"{labels[-1]} {unit}".rstrip()] if labels else []
        spots = [inside(scale(v), wide(label) / 2, 0, right) for v, label in zip(values, labels, strict=True)]
        placed = list(zip(values, spots, labels, strict=True))
        if len(placed) > 1 and not _touch(placed):
            return placed
    return placed


def _touch(placed: Sequence[tuple[float, float, str]]) -> bool:
    ends = [(at - wide(label) / 2, at + wide(label) / 2) for _, at, label in placed]
    return any(b[0] - a[1] < 8 for a, b in itertools.pairwise(ends))


def y_grid(scale: Callable[[float], float], values: Sequence[float], left: float, right: float) -> list[str]:
    """Thin lines across the chart at ``values``, each named at its left end."""
    parts = []
    for value in values:
        y = scale(value)
        parts.append(line(left, y, right, y, "grid"))
        parts.append(text(left - 6, y + 4, plain(value, values), "end quiet"))
    return parts
