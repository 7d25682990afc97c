"""Counts of samples over their range, with percentiles and the intervals of these."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from edgeopt.report.plots.axis import Scale, Unit, x_axis
from edgeopt.report.plots.marks import Mark, stairs, whisker
from edgeopt.report.plots.svg import line, rect, svg, text, wide
from edgeopt.report.text import duration, number

HEIGHT = 92.0
LANE = 9.0
"""Height of the row of one interval between the bars and the axis, in px."""


def beyond(far: Sequence[float], unit: Unit) -> str:
    """How many values lie outside the axis, and the largest."""
    return f"{len(far)} beyond, max {duration(max(far) * unit[0])} ▸"


def histogram(values: Sequence[float], marks: Sequence[Mark], width: int, css: str, unit: Unit) -> Markup:
    """Counts over the range of most samples; percentiles named above, their 95 % intervals in rows below the bars.

    What lies beyond the range, percentiles included, is written below it.
    """
    ordered = sorted(values)
    left, right = 34, 14
    low, high = _range(ordered, marks, width, left, right)
    bins = _counts(ordered, low, high)
    scale = Scale(low=low, high=high, start=left, end=width - right)
    shown = sorted((m for m in marks if m.value <= high), key=lambda m: m.value)
    labels = stairs([(scale(m.value), f"{m.name} {number(m.value)}") for m in shown], left)
    top = 8.0 + 15 * (1 + max((row for _, row, _, _ in labels), default=0))
    base = top + HEIGHT
    lanes = [m for m in shown if m.low is not None or m.high is not None]
    floor = base + (LANE * len(lanes) + 5 if lanes else 0)
    rise = HEIGHT / max(bins)
    step = (width - left - right) / len(bins)
    parts = [line(left, top, width - right, top, "grid"), text(left - 6, top + 4, str(max(bins)), "end quiet")]
    parts.append(text(left - 6, base + 4, "0", "end quiet"))
    for index, amount in enumerate(bins):
        if amount:
            parts.append(rect(left + index * step + 0.5, base - amount * rise, step - 1, amount * rise, css))
    for x, row, side, label in labels:
        y = 13.0 + 15 * row
        parts.append(line(x, y - 9, x, base, "mark"))
        parts.append(text(x + (4 if side == "start" else -4), y, label, f"{side} halo"))
    if lanes:
        parts.append(line(left, base, width - right, base, "grid"))
    for lane, mark in enumerate(lanes, start=1):
        ends = [scale.clipped(mark.value if end is None else end) for end in (mark.low, mark.high)]
        parts.append(whisker(mark, ends[0], scale(mark.value), ends[1], base + LANE * lane - 3, css))
    parts.extend(x_axis(scale, floor, unit[1], width - right + 12))
    if far := [value for value in ordered if value > high]:
        tail = "".join(f"{m.name} {duration(m.value * unit[0])}, " for m in marks if m.value > high)
        parts.append(text(width - 2, floor + 33, tail + beyond(far, unit), "end quiet"))
    return svg(width, floor + 36, "Histogram of samples with percentiles and their intervals", parts)


def _range(
    ordered: Sequence[float], marks: Sequence[Mark], width: int, left: float, right: float
) -> tuple[float, float]:
    """From the least to well above most of the samples, and far enough for the labels of the marks within."""
    low, high = ordered[0], ordered[-1]
    bulk = ordered[math.ceil(0.95 * len(ordered)) - 1]
    most = min(high, low + 1.7 * (bulk - low))
    named = [(m.value, f"{m.name} {number(m.value)}") for m in marks if m.value <= max(most, bulk)]
    needed = [low + (v - low) * (width - left - right) / (width - left - 6 - wide(t)) for v, t in named]
    high = max([bulk, most, *needed])
    return (low, high) if high - low >= 1e-3 * high else (low * 0.99, high * 1.01)


def _counts(ordered: Sequence[float], low: float, high: float) -> list[int]:
    bins = [0] * min(40, max(8, math.ceil(math.sqrt(len(ordered)) * 1.5)))
    for value in ordered:
        if value <= high:
            bins[min(len(bins) - 1, int((value - low) / (high - low) * len(bins)))] += 1
    return bins
