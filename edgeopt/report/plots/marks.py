"""Marks on a distribution: percentiles with their intervals, drawn as whiskers; shapes of subjects and of causes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from markupsafe import Markup

from edgeopt.report.plots.svg import line, n, path, svg, wide

CAUSES = ("preempted", "migrated", "page_fault", "frequency", "throttled", "unknown")
"""Why a call took long, in the order of legends."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mark:
    """A percentile in the unit of its chart; an end of the interval is None where no bound exists.

    ``sure`` is False for an interval of low confidence: it is dashed.
    """

    name: str
    level: float
    value: float
    low: float | None
    high: float | None
    sure: bool = True


def whisker(mark: Mark, low: float, middle: float, high: float, y: float, css: str) -> str:
    """The interval as a line with caps at the px positions ``low`` and ``high``, the value as a dot."""
    dashed = "" if mark.sure else " unsure"
    parts = []
    if mark.low is not None or mark.high is not None:
        parts.append(line(low, y, high, y, f"whisker {css}{dashed}"))
        parts += [line(x, y - 3, x, y + 3, f"whisker {css}") for x, end in ((low, mark.low), (high, mark.high)) if end]
    parts.append(f'<circle class="value {css}" cx="{n(middle)}" cy="{n(y)}" r="2.6"/>')
    return "".join(parts)


def shape(kind: str, x: float, y: float) -> str:
    """Path data of the shape of a cause, about 7 px wide, around (x, y)."""
    a, b = n(x - 3.5), n(x + 3.5)
    up, down = n(y - 3.5), n(y + 3.5)
    return {
        "preempted": f"M{a} {down}H{b}L{n(x)} {up}Z",
        "migrated": f"M{n(x)} {n(y - 4)}L{n(x + 4)} {n(y)}L{n(x)} {n(y + 4)}L{n(x - 4)} {n(y)}Z",
        "page_fault": f"M{n(x - 3)} {n(y - 3)}H{n(x + 3)}V{n(y + 3)}H{n(x - 3)}Z",
        "frequency": f"M{a} {up}H{b}L{n(x)} {down}Z",
        "throttled": f"M{a} {n(y)}H{b}M{n(x)} {up}V{down}",
    }.get(kind, f"M{n(x - 3)} {n(y - 3)}L{n(x + 3)} {n(y + 3)}M{n(x + 3)} {n(y - 3)}L{n(x - 3)} {n(y + 3)}")


def known(cause: str) -> str:
    """The CSS class of a cause."""
    return cause.replace("_", "-") if cause in CAUSES else "unknown"


def key(cause: str) -> Markup:
    """The shape of a cause as a small picture for a legend."""
    return svg(14, 14, cause.replace("_", " "), [path(shape(cause, 7, 7), f"cause {known(cause)}")], "key")


def dash() -> Markup:
    """The dashed line of a limit for a legend."""
    return svg(14, 14, "limit", [line(0, 7, 14, 7, "limit")], "key")


def stairs(marks: Iterable[tuple[float, str]], left: float) -> list[tuple[float, int, str, str]]:
    """Rows for labels of vertical lines, so that no line crosses a label: (x, row, side of the line, text).

    The first label stands left of its line where it has room; each further one right of its line and a row lower,
    and its line ends there.
    """
    ordered = sorted(marks)
    before = bool(ordered) and ordered[0][0] - wide(ordered[0][1]) - 4 >= left
    return [
        (x, max(0, k - 1) if before else k, "end" if before and k == 0 else "start", label)
        for k, (x, label) in enumerate(ordered)
    ]
