"""Tables of the guard: every limit on quality with its figure, and the worst samples before and after."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from edgeopt.report import text
from edgeopt.report.grid import Cell, Grid, grid

Json = dict[str, Any]

NAMES = {
    "finite": "samples that are not finite",
    "lost": "an output or channel that is lost",
    "sqnr": "SQNR",
    "error": "largest error",
    "drop": "loss",
    "shown-drop": "loss beyond chance",
    "agreement": "agreement",
}
"""What is limited, in words."""

CLOSE = 60.0
"""From this SQNR on, in dB, and without a changed answer, a sample is not worth a row of the page."""


def limits(found: Mapping[str, Any] | None) -> Grid:
    """Every limit that the guard looked at, what was measured, and how sure that is."""
    rows, notes = [], []
    for entry in (found or {}).get("limits") or ():
        asked = "asked for" if entry["stated"] else "default"
        sign = "≥" if entry["at_least"] else "≤"
        rows.append(
            (
                NAMES.get(entry["name"], entry["name"]),
                str(entry["of"]),
                Cell(text=f"{sign} {_figure(entry, entry['limit'])}", small=asked),
                _figure(entry, entry["measured"]),
                text.between(partial(_figure, entry), entry["low"], entry["high"]) or "–",
                _state(entry),
            )
        )
        notes.append(entry["note"])
    heads = ("Limit on", "Of", ">Limit", ">Measured", ">95 % interval", "Result")
    return grid(heads, rows, notes if any(notes) else [])


def _state(entry: Mapping[str, Any]) -> Cell:
    if not entry["ok"]:
        return Cell(text="✗ does not hold", css="over")
    end = entry["low"] if entry["at_least"] else entry["high"]
    beyond = end is not None and (end < entry["limit"] if entry["at_least"] else end > entry["limit"])
    return Cell(text="✓ holds", css="ok", small="the interval reaches over the limit" if beyond else "")


def _figure(entry: Mapping[str, Any], value: float | str | None) -> str:
    match entry["unit"]:
        case "dB":
            return text.decibels(value)
        case _ if value is None or isinstance(value, str):
            return "none"
        case "share":
            return text.percent(value, 2)
        case "samples":
            return f"{value:.0f}"
        case "index":
            return f"{value:.4f}".replace("-", "−")
        case _:
            return text.real(value)


def worst(
    found: Mapping[str, Any] | None, precision: str, pictures: Mapping[str, bytes], metric: Mapping[str, Any] | None
) -> Json:
    """The worst samples as a table, before and after.

    Args:
        pictures: files by path in the bundle.
        metric: that of the build; it says which scores are better.
    """
    rows: Sequence[Json] = (found or {}).get("worst") or ()
    shown = [row for row in rows if _telling(row)]
    if not rows:
        return {"lead": "", "table": Grid()}
    if not shown:
        nearest = text.decibels(rows[0]["sqnr_db"])
        return {
            "lead": f"No answer changed, and {precision} is near float on every sample: {nearest} on the worst one.",
            "table": Grid(),
        }
    drawn = any(row["picture"] in pictures for row in shown)
    heads = ["Sample as fed"] if drawn else []
    heads.append("Sample")
    labels = any(row["label"] is not None for row in shown)
    answers = any(row["before"] or row["after"] for row in shown)
    scores = any(row["score_before"] is not None for row in shown)
    heads += (["Label"] if labels else []) + (["Float answers", f"{precision} answers"] if answers else [])
    heads += [">Score, float → after"] if scores else []
    heads += [">SQNR", ">Largest error"]
    better = (metric or {}).get("better", "higher")
    table = grid(
        heads,
        [_row(row, pictures, drawn, labels, answers, scores, better) for row in shown],
        [_where(row) for row in shown],
    )
    return {
        "lead": "Samples that lost most of their score come first, then answers that changed, then the largest error "
        "against the mean energy of the output.",
        "table": table,
    }


def _telling(row: Mapping[str, Any]) -> bool:
    near = row["sqnr_db"] is None or (not isinstance(row["sqnr_db"], str) and row["sqnr_db"] >= CLOSE)
    return bool(row["changed"] or not row["finite"] or _lost(row) or not near)


def _lost(row: Mapping[str, Any]) -> bool:
    return row["score_before"] is not None and row["score_before"] != row["score_after"]


def _row(
    row: Json, pictures: Mapping[str, bytes], drawn: bool, labels: bool, answers: bool, scores: bool, better: str
) -> list[str | Cell]:
    cells: list[str | Cell] = []
    number = f"{row['index']}"
    if drawn:
        path = row["picture"]
        known = path in pictures
        cells.append(Cell(text="" if known else "–", picture=_uri(pictures[path]) if known else "", path=path or ""))
    cells.append(Cell(text=number, small=text.shorten(row["name"], 40) if row["name"] else ""))
    if labels:
        cells.append(text.MISSING if row["label"] is None else row["label"])
    if answers:
        cells.append(row["before"] or "–")
        cells.append(Cell(text=row["after"] or "–", css=_verdict(row, better)))
    if scores:
        cells.append(
            f"{text.real(row['score_before'])} → {text.real(row['score_after'])}"
            if row["score_before"] is not None
            else "–"
        )
    cells.append(text.decibels(row["sqnr_db"]))
    cells.append(text.real(row["max_abs"]) if row["finite"] else "not finite")
    return cells


def _where(row: Mapping[str, Any]) -> str:
    """The element with the largest error, before and after."""
    place = f"[{', '.join(map(str, row['element']))}]" if row["element"] else ""
    if not row["finite"] and row["artifact"] is None:
        return f"not finite, or of another shape: {row['output']}{place}"
    return f"largest error in {row['output']}{place}: {text.real(row['reference'])} → {text.real(row['artifact'])}"


def _verdict(row: Mapping[str, Any], better: str) -> str:
    """CSS class of an answer that changed: for the worse, unless its score says for the better."""
    if not row["changed"]:
        return ""
    before, after = row["score_before"], row["score_after"]
    won = before is not None and (after > before if better == "higher" else after < before)
    return "ok" if won else "over"


def _uri(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode('ascii')}"


def refused(found: Mapping[str, Any] | None, pictures: Mapping[str, bytes]) -> list[Json]:
    """The same of what was built and does not hold the limits: title, reason, and the two tables."""
    return [
        {
            "title": f"{entry['precision']} was refused",
            "reason": entry["reason"],
            "limits": limits(entry),
            "worst": worst(entry, entry["precision"], pictures, (found or {}).get("metric")),
        }
        for entry in (found or {}).get("refused") or ()
    ]
