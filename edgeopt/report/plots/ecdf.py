"""Cumulative distributions of several subjects on one axis, with percentiles and the intervals of these.

Levels are spaced as normal quantiles are: samples of a normal distribution make a straight line, and a tail bends
to the right where a linear axis would hide it in the last pixels.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

from markupsafe import Markup

from edgeopt.report.plots.axis import Scale, Unit, x_axis
from edgeopt.report.plots.marks import Mark, whisker
from edgeopt.report.plots.svg import line, path, polyline, svg, text, wide

LEVELS = (0.01, 0.1, 0.5, 0.9, 0.95, 0.99, 0.999)
HEIGHT = 250.0
LOG_FROM = 2.5
"""Ratio of the ends of the axis above which it is logarithmic."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """Samples of one subject in the unit of the chart, at least one, and its percentiles."""

    name: str
    css: str
    values: Sequence[float]
    marks: Sequence[Mark]


def ecdf(curves: Sequence[Curve], width: int, unit: Unit) -> Markup:
    """The share of calls that took no longer than a latency; percentiles as dots on whiskers of their intervals.

    The axis of latencies is logarithmic where its ends are far apart. Curves end at the last level that their samples
    support.
    """
    left, right, top = 50, 16, 10.0
    base = top + HEIGHT
    ordered = [sorted(curve.values) for curve in curves]
    highest = max((m.level for c in curves for m in c.marks), default=0.5)
    levels = [level for level in LEVELS if level <= max(highest, 0.9)]
    y_scale = Scale(low=z(LEVELS[0]), high=z(levels[-1]) + 0.25, start=base, end=top)
    x_scale = _x_scale(curves, ordered, left, width - right)
    parts = []
    for level in levels:
        y = y_scale(z(level))
        parts += [line(left, y, width - right, y, "grid"), text(left - 6, y + 4, f"{100 * level:g} %", "end quiet")]
    drawn = [_points(values, y_scale, x_scale, highest) for values in ordered]
    for index, (curve, points) in enumerate(zip(curves, drawn, strict=True)):
        parts.append(path(polyline(points), f"curve {curve.css}"))
        shift = 5.0 * (index - (len(curves) - 1) / 2)
        for mark in curve.marks:
            y = y_scale(z(mark.level)) + shift
            ends = [x_scale.clipped(mark.value if end is None else end) for end in (mark.low, mark.high)]
            parts.append(whisker(mark, ends[0], x_scale.clipped(mark.value), ends[1], y, curve.css))
    names = [_name(curves[k], drawn, k, base - 12 - 19 * k, (left, width)) for k in range(len(curves))]
    parts.extend(names)
    parts.extend(x_axis(x_scale, base, unit[1], width - right + 12))
    return svg(width, base + 26, "Cumulative distribution of latency with percentiles and their intervals", parts)


def z(level: float) -> float:
    """Quantile of the standard normal distribution."""
    return statistics.NormalDist().inv_cdf(level)


def _x_scale(curves: Sequence[Curve], ordered: Sequence[Sequence[float]], left: float, right: float) -> Scale:
    lows = [values[max(math.ceil(0.01 * len(values)), 1) - 1] for values in ordered]
    highs = [values[math.ceil(0.99 * len(values)) - 1] for values in ordered]
    highs += [value for c in curves for m in c.marks for value in (m.value, m.high) if value is not None]
    low, high = min(lows, default=1.0), max(highs, default=1.0)
    low = max(low, high * 1e-6)
    log = high > LOG_FROM * low
    if log:
        room = (high / low) ** 0.03
        return Scale(low=low / room, high=high * room, start=left, end=right, log=True)
    room = 0.03 * (high - low) or 0.01 * high or 1.0
    return Scale(low=low - room, high=high + room, start=left, end=right)


def _points(values: Sequence[float], y: Scale, x: Scale, highest: float) -> list[tuple[float, float]]:
    """The curve at every second px of height, up to the last level that the samples support."""
    normal = statistics.NormalDist()
    top = min(normal.cdf(y.high), 1 - 0.5 / len(values), max(highest, 1 - 1 / len(values)))
    found: list[tuple[float, float]] = []
    for k in range(int(abs(y.end - y.start) / 2) + 1):
        at = y.start - 2 * k
        level = normal.cdf(y.low + (y.start - at) / (y.start - y.end) * (y.high - y.low))
        if level > top:
            break
        point = (x.clipped(values[max(math.ceil(level * len(values) - 1e-9), 1) - 1]), at)
        if len(found) > 1 and found[-1][0] == found[-2][0] == point[0]:
            found[-1] = point  # a vertical piece needs its ends alone
        else:
            found.append(point)
    return found


def _name(
    curve: Curve, drawn: Sequence[Sequence[tuple[float, float]]], index: int, y: float, room: tuple[float, float]
) -> str:
    """The name of a curve beside it, at a height of its own, on a side where no other curve passes if there is one."""
    passes = [min((abs(py - y), px) for px, py in points)[1] for points in drawn]
    x, long = passes[index], 8 + wide(curve.name)
    left_free = x - long >= room[0] and not any(x - long <= other < x for other in passes)
    right_free = x + long <= room[1] and not any(x < other <= x + long for other in passes)
    before = left_free or (not right_free and x - long >= room[0])
    return text(x - 8 if before else x + 8, y + 4, curve.name, f"name halo {'end' if before else 'start'}")
