"""The section about memory: figures of fresh processes, growth over many calls, live bytes over the graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from edgeopt.report import plots, text
from edgeopt.report.grid import Cell, Grid, grid
from edgeopt.report.lines import align, peak
from edgeopt.report.look import COLORS, Json, both, color, sentence, with_interval
from edgeopt.report.summary import FIGURES

CODES = ("memory_varies", "leak")
"""Reasons of a grade that concern memory; they are told beside its figures."""


def memory(
    found: Mapping[str, Json],
    budget: int | None,
    timelines: Mapping[str, Sequence[Json]],
    stability: Mapping[str, Any] | None = None,
) -> Json:
    """The three figures of each precision, and live activations over the graph."""
    known = {name: f for name, f in found.items() if all(f[key]["bytes"] is not None for key in FIGURES)}
    totals = {name: sum(f[key]["bytes"] for key in FIGURES) for name, f in known.items()}
    factor, unit = text.size_unit(max([*totals.values(), budget or 0]))
    rows = [
        plots.Bar(
            label=name,
            parts=[(key, f[key]["bytes"] / factor, text.size(f[key]["bytes"])) for key in FIGURES],
            end=text.size(totals[name]),
        )
        for name, f in known.items()
    ]
    limit = (budget / factor, f"budget for model + runtime: {text.size(budget)}") if budget else None
    sources = sorted(
        {f"{f['model']['source']}; {f['model']['method']}" for f in known.values() if "source" in f["model"]}
    )
    return {
        "lead": "Peak resident memory of fresh processes, the median of several. A budget counts model + runtime at "
        "its largest; the interpreter is shown because Python needs it, a C program does not."
        + (f" Read from {'; '.join(sources)}." if sources else ""),
        "scattered": sentence(str(r["text"]) for r in (stability or {}).get("reasons", []) if r["code"] in CODES),
        "legend": [
            ("model", "model: the artifact above a one-node model"),
            ("runtime", "runtime with a one-node model"),
            ("interpreter", "Python interpreter"),
        ],
        "bars": both(lambda width: plots.bars(rows, width, unit, limit=limit)) if rows else None,
        "table": grid(
            (
                "Subject",
                *(">Model", ">Anonymous", ">File-backed", ">Runtime", ">Model + runtime", ">Largest", ">Interpreter"),
            ),
            [_memory_row(name, f) for name, f in found.items()],
            notes=[_missing(f) for f in found.values()] if len(known) < len(found) else [],
        ),
        "phases": _phases(found),
        **_timeline(timelines),
    }


def _phases(found: Mapping[str, Json]) -> Grid:
    """The model's peak of each phase alone, what stays resident, and what each further call adds."""
    rows, told = [], []
    for name, figures in found.items():
        blocks = {key: figures.get(key) for key in ("load", "calls", "steady", "growth")}
        if not any(blocks.values()):
            continue
        resident = blocks["steady"] or {}
        rows.append(
            (
                name,
                *(_size((blocks[key] or {}).get("bytes")) for key in ("load", "calls", "steady")),
                *(_size(resident.get(key)) for key in ("pss_bytes", "uss_bytes")),
                _growth(blocks["growth"] or {}),
                _verdict(blocks["growth"] or {}),
            )
        )
        reasons = {key: block.get("reason") for key, block in blocks.items() if block and block.get("reason")}
        told.append(sentence(f"{NAMES[key]} not known: {reason}" for key, reason in reasons.items()))
    heads = ("Subject", ">Peak, loading", ">Peak, calling", ">Resident after", ">its PSS", ">its USS", ">Growth a call")
    return grid((*heads, "Leak"), rows, notes=told if any(told) else [])


NAMES = {"load": "Peak while loading", "calls": "Peak of the calls", "steady": "Resident memory", "growth": "Growth"}


def _growth(block: Json) -> Cell:
    if block.get("bytes_per_call") is None:
        return Cell(text="n/a")
    shown = with_interval(_bytes, block["bytes_per_call"], block.get("low"), block.get("high"))
    return dataclasses.replace(shown, small=f"{shown.small}, {block['calls']:,} calls")


def _size(count: float | None) -> str:
    return "n/a" if count is None else text.size(count)


def _bytes(count: float) -> str:
    return text.size(count) if abs(count) >= 0.5 else "0 B"


def _verdict(block: Json) -> Cell | str:
    known = {"none": Cell(text="none", css="ok"), "leak": Cell(text="✗ leak", css="over")}
    return known.get(str(block.get("verdict")), "not clear" if block.get("bytes_per_call") is not None else "n/a")


def _memory_row(name: str, found: Json) -> tuple[str, ...]:
    model = found["model"]
    return (
        name,
        text.size(model["bytes"]),
        text.size(model.get("anonymous_bytes")),
        text.size(model.get("file_bytes")),
        text.size(found["runtime"]["bytes"]),
        text.size(found["charged"]),
        text.size(found["charged_worst"]),
        text.size(found["interpreter"]["bytes"]),
    )


def _missing(found: Json) -> str:
    reasons = {key: found[key].get("reason", "no reason given") for key in FIGURES if found[key]["bytes"] is None}
    if len(set(reasons.values())) == 1:
        return f"Not measured: {next(iter(reasons.values()))}."
    return " ".join(f"{key.capitalize()} not measured: {reason}." for key, reason in reasons.items())


def _timeline(timelines: Mapping[str, Sequence[Json]]) -> Json:
    ordered = sorted(timelines, key=lambda name: (name not in COLORS, name))
    known = {
        n: timelines[n] for n in ordered if timelines[n] and all(m["live_bytes"] is not None for m in timelines[n])
    }
    unknown = sorted(set(timelines) - set(known))
    lead = "Not computed for this build." if not timelines else "An estimate from the graph: one value lives from "
    if timelines:
        lead += (
            "the node that makes it to the last that reads it; int8 tensors between integer operators are counted as "
            "such. Packing, alignment and scratch buffers are not in it."
        )
    if unknown:
        lead += f" Not computed for {', '.join(unknown)}: a shape is unknown."
    if not known:
        return {"timeline_lead": lead}
    lines, count = align(known)
    highest = max(known, key=lambda name: peak(known[name])["live_bytes"])
    factor, unit = text.size_unit(peak(known[highest])["live_bytes"])
    series = [
        plots.Steps(
            css=color(name),
            values=[v / factor for v in lines[name]],
            peak=_peak_label(known[name]) if name == highest else text.size(peak(known[name])["live_bytes"]),
        )
        for name in known
    ]
    axis = f"{count} nodes in execution order" if count else "share of each graph, in execution order"
    return {
        "timeline_lead": lead,
        "timeline_legend": [(color(n), f"{n}: peak {_peak_label(t)}") for n, t in known.items()],
        "timeline": both(lambda width: plots.timeline(series, width, f"{unit} live", axis)),
    }


def _peak_label(moments: Sequence[Json]) -> str:
    top = peak(moments)
    return f"{text.size(top['live_bytes'])} at {top['key']}"
