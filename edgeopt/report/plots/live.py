"""Live bytes over the nodes of a graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from markupsafe import Markup

from edgeopt.report.plots.axis import plain, ticks
from edgeopt.report.plots.svg import CHARACTER, line, n, svg, text
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
    labels: list[str] = []
    taken: list[float] = []
    for entry in series:
        step = (width - left - right) / max(len(entry.values), 1)
        path = f"M{n(left)} {n(base)}"
        for index, value in enumerate(entry.values):
            path += f"V{n(base - value * rise)}H{n(left + (index + 1) * step)}"
        parts.append(f'<path class="area {entry.css}" d="{path}V{n(base)}Z"/>')
        at = max(range(len(entry.values)), key=lambda k, v=entry.values: v[k], default=0)  # type: ignore[misc]
        x, y = left + (at + 0.5) * step, base - entry.values[at] * rise
        labels.append(f'<circle class="peak {entry.css}" cx="{n(x)}" cy="{n(y)}" r="4"/>')
        row = y - 10
        while any(abs(row - other) < 16 for other in taken):
            row += 16
        taken.append(row)
        room = (width - right - x if x < (left + width) / 2 else x - left) - 12
        label = shorten(entry.peak, max(12, int(room / CHARACTER)))
        side, shift = ("start", 8) if x < (left + width) / 2 else ("end", -8)
        labels.append(text(x + shift, max(row, 12), label, f"{side} halo"))
    parts.extend(labels)
    parts.append(line(left, base, width - right, base, "axis"))
    parts.append(text((left + width - right) / 2, base + 20, x_label, "mid quiet"))
    return svg(width, base + 28, "Live activation bytes over the graph", parts)
