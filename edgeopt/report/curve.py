"""The section about precision as a search: what each model between all in int8 and all in float costs and reaches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgeopt.report import plots, text
from edgeopt.report.grid import Cell, Grid, grid
from edgeopt.report.look import both
from edgeopt.report.summary import Json

NAMED = 6
"""Operators that are named in a row."""


def curve(diary: Sequence[Json]) -> Json:
    """Table and bars of the points; an empty table where no search ran."""
    points = [point for row in diary for point in row.get("points", ())]
    if not points:
        return {"lead": "", "table": Grid(), "bars": None}
    metric = any(point["metric"] is not None for point in points)
    agreement = any(point["agreement"] is not None for point in points)
    heads = ["Model", ">Work in float", ">Weights", ">Worst SQNR"]
    heads += [">Metric"] if metric else []
    heads += [">Agreement"] if agreement else []
    heads += [">Quick look", "Limits"]
    rows = []
    for point in points:
        row: list[str | Cell] = [
            point["label"] + (" ✓" if point["chosen"] else ""),
            text.percent(point["float_macs"]),
            text.size(point["bytes"]),
            "identical" if point["sqnr_db"] is None else text.decibels(point["sqnr_db"]),
        ]
        row += [text.MISSING if point["metric"] is None else text.real(point["metric"])] if metric else []
        row += [text.MISSING if point["agreement"] is None else text.percent(point["agreement"])] if agreement else []
        looked = point["latency_ms"]
        row.append(text.MISSING if looked is None else f"{text.number(looked)} ms")
        row.append(Cell(text="✓ hold", css="ok") if point["holds"] else Cell(text="✗ do not hold", css="over"))
        rows.append(row)
    return {
        "lead": "Operators stay in float in the order of the error that rounding them causes at the outputs, until the "
        "limits on quality hold. Judged on samples that calibrate. The quick look is the fastest call of one thread "
        "while they were compared, on the build host, without the runtime's memory arena: a hint, no measurement.",
        "table": grid(heads, rows, [_kept(point) for point in points]),
        "bars": both(lambda width: _bars(points, width)),
    }


def _kept(point: Json) -> str:
    names = point["kept"]
    if not names:
        return ""
    more = len(names) - NAMED
    return "in float: " + ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _bars(points: Sequence[Json], width: int) -> Any:
    factor, unit = text.size_unit(max(point["bytes"] for point in points))
    rows = []
    for point in points:
        css = "low" if point["chosen"] else "undone"
        parts = [text.size(point["bytes"])]
        parts += [] if point["sqnr_db"] is None else [text.decibels(point["sqnr_db"])]
        parts += [] if point["latency_ms"] is None else [f"{text.number(point['latency_ms'])} ms"]
        rows.append(plots.Bar(label=point["label"], parts=[(css, point["bytes"] / factor, "")], end=", ".join(parts)))
    return plots.bars(rows, width, unit, row=30)
