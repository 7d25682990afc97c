"""Stacked horizontal bars."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from markupsafe import Markup

from edgeopt.report.plots.axis import Scale, x_axis
from edgeopt.report.plots.svg import CHARACTER, inside, line, rect, svg, text
from edgeopt.report.text import shorten


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bar:
    """A horizontal bar of stacked (css, value, label) parts. ``end`` is written behind it."""

    label: str
    parts: Sequence[tuple[str, float, str]]
    end: str


def bars(
    rows: Sequence[Bar], width: int, unit: str, *, limit: tuple[float, str] | None = None, row: int = 38
) -> Markup:
    """Stacked horizontal bars from zero. ``limit`` draws a dashed line with its label, ``row`` is the pitch in px.

    No axis is drawn where ``unit`` is empty and the labels carry the numbers.
    """
    left = _gutter((bar.label for bar in rows), 14, 0.36 * width)
    right = _gutter((bar.end for bar in rows), 12, 0.42 * width)
    top = 26.0 if limit else 4.0
    totals = [sum(value for _, value, _ in bar.parts) for bar in rows]
    high = max([*totals, limit[0] if limit else 0]) or 1.0
    scale = (width - left - right) / high
    thick = row - 12
    parts: list[str] = []
    texts: list[str] = []
    y = top
    for bar in rows:
        middle = y + thick / 2 + 4
        texts.append(text(left - 8, middle, shorten(bar.label, int((left - 12) / CHARACTER)), "end"))
        x = left
        for css, value, label in bar.parts:
            wide = value * scale
            parts.append(rect(x, y, max(wide - 1, 0.5), thick, css))
            if label and len(label) * CHARACTER + 8 < wide:
                texts.append(text(x + wide / 2, middle, label, f"mid on-{css}"))
            x += wide
        at = left + limit[0] * scale if limit else 0.0
        beside = x - 4 < at < x + 12 + len(bar.end) * CHARACTER
        texts.append(text((at if beside else x) + 6, middle, bar.end, ""))
        y += row
    if limit:
        x = left + limit[0] * scale
        parts.append(line(x, top - 8, x, y - 8, "limit"))
        parts.append(text(inside(x, len(limit[1]) * CHARACTER / 2, left, width), top - 13, limit[1], "mid"))
    if unit:
        axis = Scale(low=0, high=high, start=left, end=width - right)
        parts.extend(x_axis(axis, y - 6, unit, width - right + 12))
    return svg(width, y + (18 if unit else -6), "Bars", parts + texts)


def _gutter(labels: Iterable[str], pad: float, most: float) -> float:
    return min(max((len(label) for label in labels), default=0) * CHARACTER + pad, most)
