"""Sections about what was measured: latency, memory, environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from edgeopt.report import plots, text
from edgeopt.report.grid import grid
from edgeopt.report.lines import align, peak
from edgeopt.report.summary import FIGURES, Json, disturbed, scattered

WIDE, NARROW, HALF = 920, 330, 440
COLORS = {"original": "rest", "float32": "float"}
"""CSS class of a subject; all others are ``low``."""


def color(subject: str) -> str:
    """CSS class of a subject or precision."""
    return COLORS.get(subject, "low")


def both(draw: Callable[[int], Markup]) -> tuple[Markup, Markup]:
    """A chart for wide and for narrow screens."""
    return draw(WIDE), draw(NARROW)


def latency(found: Json, measurements: Mapping[str, Json], wanted: int | None = None) -> Json:
    """Distributions and tables of the measurement that ``report.json`` summarizes.

    Args:
        wanted: threads that the bundle runs with on its target; where fewer or more were used, the lead says so.
    """
    if found["measurement"] is None:
        return {"lead": f"Not measured: {found['reason']}."}
    measurement = measurements[found["measurement"]]
    summaries: dict[str, Json] = {name: s for name, s in found["subjects"].items() if s["n"]}
    scale = text.duration_unit(max((s["median_ns"] for s in summaries.values()), default=0))
    timed = {s["name"]: _in_unit(s, scale[0]) for s in measurement["subjects"]}
    subjects = [
        plots.Strip(name=name, css=color(name), rows=timed[name], center=s["median_ns"] / scale[0])
        for name, s in summaries.items()
    ]
    steady = grid(
        ["Subject", *(f">{h}" for h in ("Median", "Interval", "p90", "p95", "p99", "Range", "CV", "MAD", "Calls"))],
        [_steady_row(name, s) for name, s in summaries.items()],
    )
    start = grid(
        ("Subject", ">Runtime import", ">Load", ">First inference"),
        [
            (name, *(text.duration(s[f"{phase}_median_ns"]) for phase in ("import", "load", "first")))
            for name, s in summaries.items()
        ],
    )
    processes = max((s["processes"] for s in summaries.values()), default=0)
    used = found["threads"] or 0
    threads = text.plural(used, "thread") + (f" (the target runs {wanted})" if wanted not in (None, used) else "")
    told = disturbed(found["advice"])
    return {
        "disturbed": f"Disturbed: {told}." if told else "",
        "lead": f"Effort {found['effort']}, {threads}, "
        f"{text.plural(processes, 'fresh process', 'fresh processes')} a subject in alternation. "
        "Percentiles are observed values; the interval is that of the median over processes.",
        "strips": both(lambda width: plots.strips(subjects, width, scale)) if subjects else None,
        "histograms": [
            (f"{name}: {s['n']} inferences, on an axis of their own", _histogram(name, s, timed[name], scale))
            for name, s in summaries.items()
        ],
        "steady": steady,
        "start": start,
        "failures": [
            f"{s['name']}, process {k + 1} failed: {p['error']}"
            for s in measurement["subjects"]
            for k, p in enumerate(s["processes"])
            if p["error"]
        ],
    }


def _in_unit(subject: Json, factor: float) -> list[tuple[str, list[float]]]:
    return [
        (f"process {k + 1}", [value / factor for value in process["steady_ns"]])
        for k, process in enumerate(subject["processes"])
        if not process["error"]
    ]


def _histogram(
    name: str, found: Json, rows: Sequence[tuple[str, Sequence[float]]], scale: plots.Unit
) -> tuple[Markup, Markup]:
    known = [p for p in ("median", "p90", "p95", "p99") if found[f"{p}_ns"] is not None]
    marks = [(p, found[f"{p}_ns"] / scale[0]) for p in known]
    values = [v for _, row in rows for v in row]
    wide, narrow = (plots.histogram(values, marks, width, color(name), scale) for width in (HALF, NARROW))
    return wide, narrow


def percentile(found: Json, name: str) -> str:
    """A percentile of a summary, or how many samples it needs."""
    value = found[f"{name}_ns"]
    return text.duration(value) if value is not None else f"n/a (needs {found[f'{name}_needs']} samples)"


def _steady_row(name: str, found: Json) -> tuple[str, ...]:
    low, high = found["median_low_ns"], found["median_high_ns"]
    return (
        name,
        text.duration(found["median_ns"]),
        text.span(low, high) if low is not None else "n/a (needs 2 processes)",
        *(percentile(found, p) for p in ("p90", "p95", "p99")),
        text.span(found["min_ns"], found["max_ns"]),
        text.percent(found["cv"]),
        text.duration(found["mad_ns"]),
        str(found["n"]),
    )


def memory(
    found: Mapping[str, Json], budget: int | None, timelines: Mapping[str, Sequence[Json]], advice: Sequence[Json] = ()
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
        "scattered": f"Not steady: {told}." if (told := scattered(advice)) else "",
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
        **_timeline(timelines),
    }


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


def environment(found: Json, measurements: Mapping[str, Json], measured_on: Mapping[str, Any]) -> Json:
    """What the measuring machine was, and what should make a reader careful."""
    where = str(measured_on.get("machine") or "an unknown machine")
    if found["measurement"] is None:
        return {"lead": f"Built on {where}. Nothing was measured, so there is no environment to describe."}
    measurement = measurements[found["measurement"]]
    described: Json = measurement.get("environment") or {}
    missing: Json = described.get("missing") or {}
    return {
        "lead": f"Measured on {where}, with {_runtimes(measurement)}.",
        "advice": [(a["severity"], a["text"]) for a in measurement.get("advice", [])],
        "facts": [
            (key.replace("_", " "), _shown(key, value, missing)) for key, value in described.items() if key != "missing"
        ],
    }


def _runtimes(measurement: Json) -> str:
    names = {
        f"{r['name']} {r['version']} ({r['provider']})" for s in measurement["subjects"] if (r := s.get("runtime"))
    }
    return ", ".join(sorted(names)) or "an unknown runtime"


def _shown(key: str, value: Any, missing: Mapping[str, str]) -> str:
    if value is None:
        return f"not known: {missing.get(key, 'no reason given')}"
    if key.endswith("_bytes"):
        return text.size(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)
