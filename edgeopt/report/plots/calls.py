"""Latency of every call over its number: one small panel a process, on one axis."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container, Sequence

from markupsafe import Markup

from edgeopt.report.plots.axis import Broken, Unit, broken, each, plain
from edgeopt.report.plots.marks import known, shape
from edgeopt.report.plots.svg import line, n, path, rect, svg, text, wide

HEIGHT = 104.0
GAP = 8.0
LEAST = 68.0
"""Least width of a panel in px; GAP more where there is room."""

COLUMN = 2.0
"""Width of a column of dots in px; the calls of one column that fall together are drawn as one stroke."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel:
    """Calls of one process in the unit of the chart. A process that failed has an error, and perhaps no calls.

    ``outliers`` holds (number of the steady call, value, cause); ``medium`` is the median of the steady calls.
    """

    title: str
    css: str
    warmup: Sequence[float]
    steady: Sequence[float]
    medium: float | None
    outliers: Sequence[tuple[int, float, str]] = ()
    failed: bool = False


def calls(panels: Sequence[Panel], width: int, unit: Unit, limit: float | None = None) -> Markup:
    """Panels side by side: warm-up in a lighter tone, steady calls, the median as a line, severe outliers by cause.

    Far outliers stand in a band of their own above the broken axis, which is logarithmic there. ``limit`` draws a
    dashed line where it lies within the axis.
    """
    left, right = 46.0, 6.0
    values, warm = [v for p in panels for v in p.steady], [v for p in panels for v in p.warmup]
    room = width - left - right + GAP
    most = max(1, int(room / (LEAST + GAP if width > 500 else LEAST)))
    rows = math.ceil(len(panels) / most)
    per_row = math.ceil(len(panels) / rows)
    each_px = room / per_row - GAP
    parts: list[str] = [text(0, 11, unit[1], "quiet")]
    y = 26.0
    for first in range(0, len(panels), per_row):
        row = panels[first : first + per_row]
        scale = broken(values, y, y + HEIGHT, warm)
        end = left + len(row) * (each_px + GAP) - GAP
        parts += _ground(scale, left, end)
        for k, panel in enumerate(row):
            x = left + k * (each_px + GAP)
            parts.append(text(x + 1, y - 4, panel.title, "quiet"))
            parts += _panel(panel, scale, x, each_px, y)
        if limit is not None and scale.bulk.low < limit <= (scale.far or scale.bulk).high:
            parts.append(line(left, scale(limit), end, scale(limit), "limit"))
        y += HEIGHT + 24
    return svg(width, y - 16, "Latency of every call, one panel a process", parts)


def _ground(scale: Broken, left: float, right: float) -> list[str]:
    """Grid lines and labels; the band of far values is tinted and its lower edge dashed."""
    parts = []
    marks = scale.bulk.marks(20)
    for value in marks:
        y = scale(value)
        parts.append(line(left, y, right, y, "grid"))
        parts.append(text(left - 6, y + 4, plain(value, marks), "end quiet"))
    if scale.far is not None:
        top, edge = scale.far.end - 3, scale.far.start + 2.5
        parts.append(rect(left, top, right - left, edge - top, "far"))
        parts.append(line(left, edge, right, edge, "break"))
        lowest = scale(marks[-1]) - 13 if marks else edge
        named = [v for v in scale.far.marks(13) if scale(v) < lowest][-2:]
        parts += [text(left - 6, scale(v) + 4, each(v), "end quiet") for v in named if scale(v) - top > 3]
    return parts


def _panel(panel: Panel, scale: Broken, x: float, width: float, top: float) -> list[str]:
    parts = [line(x, top + HEIGHT, x + width, top + HEIGHT, "axis")]
    share = 0.0 if not panel.warmup else 1.0 if not panel.steady else 0.26
    split = x + share * width
    if panel.warmup:
        parts.append(path(_strokes(panel.warmup, scale, x + 1, split - 3), f"warm {panel.css}"))
        parts.append(line(split, top, split, top + HEIGHT, "split"))
    marked = {index for index, _, _ in panel.outliers}
    start, end = split + 3, x + width - 3
    parts.append(path(_strokes(panel.steady, scale, start, end, marked), f"dots {panel.css}"))
    if panel.medium is not None:
        y = scale(panel.medium)
        parts.append(line(split, y, x + width, y, f"median {panel.css}"))
    step = (end - start) / max(len(panel.steady) - 1, 1)
    for cause in dict.fromkeys(cause for _, _, cause in panel.outliers):
        found = (shape(cause, start + i * step, scale(v)) for i, v, c in panel.outliers if c == cause)
        parts.append(path("".join(found), f"cause {known(cause)}"))
    if panel.failed:
        label = "✗ failed"
        parts.append(text(x + width / 2, top + HEIGHT / 2 + 4, label if wide(label) < width else "✗", "mid bad halo"))
    return parts


def _strokes(
    values: Sequence[float], scale: Broken, start: float, end: float, without: Container[int] = frozenset()
) -> str:
    """Path data: the calls of each column of a few px, drawn as one stroke where they fall together."""
    step = (end - start) / max(len(values) - 1, 1)
    columns: dict[int, list[float]] = {}
    for index, value in enumerate(values):
        if index not in without:
            columns.setdefault(int(index * step / COLUMN), []).append(scale(value))
    found = []
    for column, heights in columns.items():
        heights.sort()
        low = high = heights[0]
        x = n(start + (column + 0.5) * COLUMN if len(values) > 1 else (start + end) / 2)
        for y in [*heights[1:], float("inf")]:
            if y - high > 3:
                found.append(f"M{x} {n(low)}" + (f"V{n(high)}" if high - low >= 0.5 else "h0"))
                low = y
            high = y
    return "".join(found)
