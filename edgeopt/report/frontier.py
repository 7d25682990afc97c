"""The section about the candidates that a planner built: what each reached, which are worth having, which one ships."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgeopt.report import plots, text
from edgeopt.report.grid import Cell, Grid, grid
from edgeopt.report.look import both

Json = dict[str, Any]

AXES = ("memory", "bytes", "median_ms", "loss")
"""Figures that a plot may show, the better ones first: the first known one across, the next one up."""

_TITLES = {
    "memory": "peak memory, model + runtime",
    "bytes": "size of the artifact",
    "median_ms": "median latency",
    "loss": "loss of quality",
}


def frontier(found: Mapping[str, Any] | None, budget: int | None = None) -> Json:
    """Table and plot of the points; an empty table where no planner ran.

    Args:
        found: ``objective``, and ``points`` with ``candidate``, ``backend``, ``precision``, ``bytes``, ``memory``,
            ``median_ms``, ``load_ms``, ``loss``, ``sqnr_db``, ``refused``, ``holds_budget``, ``over``, ``on_frontier``
            and ``chosen``; a figure that was not measured is None.
        budget: bytes of peak memory, a line in a plot over memory.
    """
    points: Sequence[Json] = (found or {}).get("points") or ()
    if not points:
        return {"lead": "", "table": Grid(), "plot": None, "caption": "", "legend": []}
    several = len({p["backend"] for p in points}) > 1
    objective = (found or {}).get("objective")
    aim = (
        f"Among those that hold the budget and the limits on quality the least {objective} ships. " if objective else ""
    )
    if objective == "quality":
        aim = "Among those that hold the budget and the limits on quality the one nearest to float ships. "
    load = any(p.get("load_ms") is not None for p in points)
    heads = ["!Candidate", ">Size", ">Model + runtime", ">Median", *([">Load"] if load else [])]
    heads += [">Quality lost", ">Worst SQNR", "Result"]
    axes = _axes(points)
    caption = "" if axes is None else f"{_TITLES[axes[1]].capitalize()} over {_TITLES[axes[0]]}."
    return {
        "lead": f"{aim}One is on the frontier where no other is at least as good in size, memory, latency and quality "
        "and better in one.",
        "table": grid(heads, [_row(p, several, load) for p in points], [_note(p) for p in points]),
        "plot": None if axes is None else both(lambda width: _plot(points, axes, several, width, budget)),
        "caption": caption,
    }


def _label(point: Json, several: bool) -> str:
    return f"{point['precision']}, {point['backend']}" if several else str(point["precision"])


def _row(point: Json, several: bool, load: bool) -> list[str | Cell]:
    row: list[str | Cell] = [
        _label(point, several),
        text.size(point["bytes"]),
        text.size(point.get("memory")),
        _milliseconds(point.get("median_ms")),
    ]
    row += [_milliseconds(point.get("load_ms"))] if load else []
    loss = point.get("loss")
    row += [text.MISSING if loss is None else text.percent(loss, 2), text.decibels(point.get("sqnr_db"))]
    return [*row, _state(point)]


def _state(point: Json) -> Cell:
    if point.get("chosen"):
        return Cell(text="✓ ships", css="ok")
    if point.get("refused") is not None:
        return Cell(text="✗ quality", css="over")
    if not point.get("holds_budget", True):
        return Cell(text="✗ over budget", css="over")
    return Cell(text="on the frontier" if point.get("on_frontier") else "another is better", css="info")


def _note(point: Json) -> str:
    parts = [str(point["refused"])] if point.get("refused") else []
    over = point.get("over") or {}
    if over:
        parts.append("over in " + ", ".join(f"{name} ({_over(name, value)})" for name, value in over.items()))
    options = point.get("options") or {}
    parts += [f"run with {', '.join(f'{k} = {v}' for k, v in sorted(options.items()))}"] if options else []
    return "; ".join(parts)


def _over(name: str, value: float | None) -> str:
    if value is None:
        return text.MISSING
    return text.size(value) if name in ("memory", "size") else f"{text.number(value)} ms"


def _milliseconds(value: float | None) -> str:
    return text.MISSING if value is None else f"{text.number(value)} ms"


def _axes(points: Sequence[Json]) -> tuple[str, str] | None:
    """Two figures that all points have and that differ; None for fewer than two points or figures."""
    if len(points) < 2:
        return None
    known = [a for a in AXES if all(p.get(a) is not None for p in points)]
    known = [a for a in known if len({max(p[a], 0) for p in points}) > 1]
    wanted = [a for a in known if a in ("memory", "bytes")][:1] + [a for a in known if a in ("median_ms", "loss")][:1]
    return (wanted[0], wanted[1]) if len(wanted) == 2 else None


def _plot(points: Sequence[Json], axes: tuple[str, str], several: bool, width: int, budget: int | None) -> Any:
    across, up = (_scaled(axis, max(max(p[axis], 0) for p in points)) for axis in axes)
    dots = [
        plots.Dot(
            x=across[0](p[axes[0]]),
            y=up[0](p[axes[1]]),
            label=_label(p, several),
            css="chosen"
            if p.get("chosen")
            else "out"
            if p.get("refused") is not None or not p.get("holds_budget", True)
            else "front"
            if p.get("on_frontier")
            else "behind",
        )
        for p in points
    ]
    limit = across[0](budget) if budget and axes[0] == "memory" else None
    return plots.scatter(dots, width, across[1], up[1], limit=limit)


def _scaled(axis: str, most: float) -> tuple[Callable[[float], float], str]:
    """How a figure becomes a position, never below zero, and the unit."""
    if axis == "loss":
        return (lambda v: max(100 * v, 0.0)), "% lost"
    if axis == "median_ms":
        return (lambda v: v), "ms"
    factor, unit = text.size_unit(most)
    return (lambda v: v / factor), unit
