"""Live bytes over the nodes of a graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from markupsafe import Markup

from edgeopt.report.plots.axis import plain, ticks
from edgeopt.report.plots.place import ASCENT, Box, leader, place
from edgeopt.report.plots.svg import CHARACTER, line, n, svg, text, wide
from edgeopt.report.text import shorten


@dataclasses.dataclass(frozen=True, kw_only=True)
class Steps:
    """A step line over positions 0..n-1; ``peak`` is written at the highest one."""

    css: str
    values: Sequence[float]
    peak: str


def timeline(series: Sequence[Steps], width: int, unit: str, x_label: str) -> Markup:
    """Step areas from zero over the positions of a graph, each with its peak marked and named."""
    left, right, top, height = 44, 12, 30.0, 190.0
    base = top + height
    high = max((max(s.values, default=0) for s in series), default=0) or 1
    rise = height / (high * 1.04)
    parts: list[str] = [text(0, 12, unit, "quiet")]
    for value in ticks(0, high * 1.04, 4):
        y = base - value * rise
        parts.append(line(left, y, width - right, y, "grid"))
        parts.append(text(left - 6, y + 4, plain(value), "end quiet"))
    outlines, points = [], []
    for entry in series:
        step = (width - left - right) / max(len(entry.values), 1)
        heights = [base - value * rise for value in entry.values]
        path = f"M{n(left)} {n(base)}"
        for index, height_at in enumerate(heights):
            path += f"V{n(height_at)}H{n(left + (index + 1) * step)}"
        parts.append(f'<path class="area {entry.css}" d="{path}V{n(base)}Z"/>')
        outlines.append(_Outline(left=left, step=step, heights=heights))
        at = max(range(len(entry.values)), key=entry.values.__getitem__, default=0)
        points.append((left + (at + 0.5) * step, heights[at]) if heights else (float(left), base))
    taken: list[Box] = [(x - 5, y - 5, x + 5, y + 5) for x, y in points] + [(0, 0, wide(unit), 16)]
    labels: list[str] = []
    for entry, (x, y) in zip(series, points, strict=True):
        labels.append(f'<circle class="peak {entry.css}" cx="{n(x)}" cy="{n(y)}" r="4"/>')
        label = shorten(entry.peak, max(12, int(0.6 * width / CHARACTER)))
        bounds = (left, 2.0, width - 2.0, base - 2)
        box = place(
            x, y, wide(label), bounds=bounds, taken=taken, blocked=lambda b: any(o.crosses(b) for o in outlines)
        )
        box = box or place(x, y, wide(label), bounds=bounds, taken=taken)
        if box is None:  # the legend above the chart names every peak too
            continue
        taken.append(box)
        if (found := leader(x, y, box)) is not None:
            parts.append(line(*found, "leader"))
        labels.append(text(box[0], box[1] + ASCENT, label, "halo"))
    parts.extend(labels)
    parts.append(line(left, base, width - right, base, "axis"))
    parts.append(text((left + width - right) / 2, base + 20, x_label, "mid quiet"))
    return svg(width, base + 28, "Live activation bytes over the graph", parts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Outline:
    """The upper edge of a step area: heights in px, each ``step`` px wide."""

    left: float
    step: float
    heights: Sequence[float]

    def crosses(self, box: Box) -> bool:
        """Whether it runs through the box: it is one line, so it does where it is neither all above nor all below."""
        first = max(int((box[0] - 2 - self.left) / self.step), 0)
        last = min(int((box[2] + 2 - self.left) / self.step), len(self.heights) - 1)
        span = self.heights[first : last + 1]
        return bool(span) and not (max(span) < box[1] - 1 or min(span) > box[3] + 1)
