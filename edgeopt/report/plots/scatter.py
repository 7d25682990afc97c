"""Points in a plane, each with its name."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from markupsafe import Markup

from edgeopt.report.plots.axis import Scale, x_axis, y_grid
from edgeopt.report.plots.place import ASCENT, Box, leader, place
from edgeopt.report.plots.svg import inside, line, n, svg, text, wide
from edgeopt.report.text import shorten


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dot:
    """A point. ``css`` is ``"chosen"``, ``"front"``, ``"behind"`` or ``"out"``; its shape follows from that."""

    x: float
    y: float
    label: str
    css: str


def scatter(dots: Sequence[Dot], width: int, x_unit: str, y_unit: str, *, limit: float | None = None) -> Markup:
    """Dots over two linear axes from zero.

    Args:
        x_unit, y_unit: what the axes count; that of y stands above it.
        limit: of x, a dashed line.
    """
    left, right, top, height = 44, 12, 26.0, 220.0
    base = top + height
    across = Scale(low=0, high=1.08 * max([d.x for d in dots] + [limit or 0]), start=left, end=width - right)
    up = Scale(low=0, high=1.08 * max(d.y for d in dots) or 1.0, start=base, end=top)
    parts = [text(0, 12, y_unit, "quiet"), *y_grid(up, up.marks(44), left, width - right)]
    taken: list[Box] = []
    for dot in dots:
        x, y, half = across(dot.x), up(dot.y), 9.5 if dot.css == "chosen" else 6.0
        taken.append((x - half, y - half, x + half, y + half))
    if limit is not None:
        x = across(limit)
        parts.append(line(x, top, x, base, "limit"))
        said = "budget"
        at = inside(x, wide(said) / 2, left, width)
        parts.append(text(at, 12, said, "mid"))
        taken.append((at - wide(said) / 2, 12 - ASCENT, at + wide(said) / 2, 15))
    taken.append((0, 0, wide(y_unit), 16))
    labels: list[str] = []
    for dot in dots:
        x, y = across(dot.x), up(dot.y)
        parts.append(_mark(dot.css, x, y))
        name = shorten(dot.label, max(12, int(0.45 * width / wide("x"))))
        box = place(x, y, wide(name), bounds=(left, 2, width, base - 2), taken=taken)
        if box is None:
            continue
        taken.append(box)
        if (found := leader(x, y, box)) is not None:
            parts.append(line(*found, "leader"))
        labels.append(text(box[0], box[1] + ASCENT, name, "halo name" if dot.css == "chosen" else "halo"))
    parts += labels
    parts += x_axis(across, base, x_unit, width)
    return svg(width, base + 22, "Candidates", parts)


def _mark(css: str, x: float, y: float) -> str:
    """A filled circle on the frontier, with a ring where it ships; an open one behind it, a cross outside."""
    if css == "out":
        a, b, c, d = n(x - 4), n(x + 4), n(y - 4), n(y + 4)
        return f'<path class="dot out" d="M{a} {c}L{b} {d}M{b} {c}L{a} {d}"/>'
    ring = f'<circle class="dot ring" cx="{n(x)}" cy="{n(y)}" r="7.5"/>' if css == "chosen" else ""
    return f'<circle class="dot {css}" cx="{n(x)}" cy="{n(y)}" r="4"/>{ring}'
