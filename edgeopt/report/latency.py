"""The section about latency: how it was measured, distributions with intervals, every call over time, tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from edgeopt.report import plots, tables, text
from edgeopt.report.look import HALF, PERCENTILES, Json, both, color, sentence, with_interval
from edgeopt.report.machine import cpus, sensors
from runtime_bench.judge.timeline import call_ends
from runtime_bench.statistics.drift import block_medians

BLOCK_NS = 5e8
"""Length of the blocks whose medians show a sustained phase."""

Picture = tuple[str, tuple[Markup, Markup]]


def latency(found: Json, measurements: Mapping[str, Json], wanted: int | None = None) -> Json:
    """Sentences and tables of the measurement that ``report.json`` summarizes.

    Args:
        found: ``latency`` of ``report.json``.
        measurements: by name.
        wanted: threads that the bundle runs with on its target; where fewer or more were used, the lead says so.
    """
    if found["measurement"] is None:
        return {"lead": f"Not measured: {found['reason']}."}
    summaries = _with_calls(found)
    energy, no_energy = tables.energy(summaries)
    return {
        "lead": lead(found, summaries, wanted),
        "steady": tables.steady(summaries),
        "methods": tables.methods(summaries),
        "start": tables.start(summaries),
        "deadlines": tables.deadlines(summaries),
        "bursts": tables.bursts(summaries),
        "outliers": tables.outliers(summaries),
        "slowest": tables.slowest(summaries),
        "behaviour": tables.behaviour(summaries),
        "energy": energy,
        "no_energy": f"Energy a call is not known: {no_energy}." if no_energy and summaries else "",
        "details": [
            ("Spread", tables.spread(summaries)),
            ("Samples and upper bounds", tables.samples(summaries)),
            ("Variance between and within processes", tables.variance(summaries)),
        ],
        "failures": [
            f"{s['name']}, {where} failed: {p['error']}"
            for s in measurements[found["measurement"]]["subjects"]
            for where, p in [
                *((f"process {k + 1}", p) for k, p in enumerate(s["processes"])),
                ("sustained phase", s.get("sustained") or {}),
            ]
            if p.get("error")
        ],
    }


def charts(found: Json, measurements: Mapping[str, Json]) -> Json:
    """Distributions, every call over time, sustained phases; empty where nothing was timed."""
    summaries = _with_calls(found)
    if not summaries:
        return {}
    measurement = measurements[found["measurement"]]
    subjects = {s["name"]: s for s in measurement["subjects"]}
    units = {name: text.duration_unit(s["median_ns"]) for name, s in summaries.items()}
    return {
        "ecdf": _ecdf(summaries, subjects),
        "histograms": [
            (f"{name}: {s['n']:,} calls, on an axis of their own", _histogram(name, s, subjects[name], units[name]))
            for name, s in summaries.items()
        ],
        "calls": [
            (_title(name, s, subjects[name]), _calls(s, subjects[name], units[name], period_ns(found)))
            for name, s in summaries.items()
        ],
        "calls_legend": _legend(summaries.values(), period_ns(found)),
        "unread": "; ".join(f"{t.title.partition(',')[0]} {t.missing}" for t in sensors(measurement) if t.missing),
        "sustained": [
            picture for name, s in summaries.items() if (picture := _sustained(name, s, measurement, units[name]))
        ],
    }


def _with_calls(found: Json) -> dict[str, Json]:
    return {name: s for name, s in found["subjects"].items() if s["n"]}


def lead(found: Json, summaries: Mapping[str, Json], wanted: int | None) -> str:
    """How the figures were taken, in a few sentences."""
    processes = max((s["processes"] for s in summaries.values()), default=0)
    used = found["threads"] or 0
    threads = text.plural(used, "thread") + (f" (the target runs {wanted})" if wanted not in (None, used) else "")
    pinned = f", pinned to {cpus(found['affinity'])}" if found.get("affinity") else ""
    rate = (found.get("load") or {}).get("fps")
    period = period_ns(found)
    paced = (
        f"One call every {text.duration(period)} ({rate:g} a second), timed from the scheduled start" if period else ""
    )
    return sentence(
        [
            f"Effort {found['effort']}, {threads}, "
            f"{text.plural(processes, 'fresh process', 'fresh processes')} a subject in alternation{pinned}",
            paced,
            "Percentiles are observed values",
        ]
    )


def _ecdf(summaries: Mapping[str, Json], subjects: Mapping[str, Json]) -> tuple[Markup, Markup]:
    scale = text.duration_unit(max(s["median_ns"] for s in summaries.values()))
    curves = [
        plots.Curve(name=name, css=color(name), values=_values(subjects[name], scale), marks=_marks(s, scale))
        for name, s in summaries.items()
    ]
    return both(lambda width: plots.ecdf(curves, width, scale))


def _histogram(name: str, found: Json, subject: Json, scale: plots.Unit) -> tuple[Markup, Markup]:
    values, marks = _values(subject, scale), _marks(found, scale)
    return both(lambda width: plots.histogram(values, marks, width, color(name), scale), HALF)


def _values(subject: Json, scale: plots.Unit) -> list[float]:
    return [v / scale[0] for p in subject["processes"] if not p["error"] for v in p["steady_ns"]]


def _marks(found: Json, scale: plots.Unit) -> list[plots.Mark]:
    doubtful = found.get("low_confidence") or []
    marks = []
    for name, level in (("median", 0.5), *PERCENTILES.items()):
        value = found.get(f"{name}_ns")
        if value is not None:
            ends = [found.get(f"{name}_{end}_ns") for end in ("low", "high")]
            low, high = (None if end is None else end / scale[0] for end in ends)
            sure = name not in doubtful
            marks.append(plots.Mark(name=name, level=level, value=value / scale[0], low=low, high=high, sure=sure))
    return marks


def _title(name: str, found: Json, subject: Json) -> str:
    every = max((p.get("every", 1) for p in subject["processes"]), default=1)
    timed = f", every {every}th call was timed" if every > 1 else ""
    block = found.get("outliers") or {}
    marked, severe = len(block.get("severe", [])), sum((block.get("causes") or {}).values())
    few = f", the {marked} slowest of {severe} severe outliers marked" if marked < severe else ""
    return f"{name}: {text.plural(found['processes'], 'process', 'processes')}, {found['n']:,} timed calls{timed}{few}"


def _calls(found: Json, subject: Json, scale: plots.Unit, period: int | None) -> tuple[Markup, Markup]:
    slow: dict[int, list[tuple[int, float, str]]] = {}
    for o in (found.get("outliers") or {}).get("severe", []):
        if isinstance(o["process"], int):
            slow.setdefault(o["process"], []).append((o["index"], o["ns"] / scale[0], o["cause"]))
    panels = []
    for k, process in enumerate(subject["processes"]):
        round_ = process.get("round", k)
        steady = [v / scale[0] for v in process["steady_ns"]]
        panels.append(
            plots.Panel(
                title=f"process {round_ + 1}" if k == 0 else str(round_ + 1),
                css=color(subject["name"]),
                warmup=[v / scale[0] for v in process["warmup_ns"]],
                steady=steady,
                medium=sorted(steady)[(len(steady) - 1) // 2] if steady else None,
                outliers=slow.get(round_, []),
                failed=bool(process["error"]),
            )
        )
    limit = None if period is None else period / scale[0]
    return both(lambda width: plots.calls(panels, width, scale, limit))


def period_ns(found: Mapping[str, Any]) -> int | None:
    """Period of a periodic load, of a measurement or of its part in ``report.json``."""
    load = found.get("load") or {}
    return int(load["period_ns"]) if load.get("kind") == "periodic" else None


def _legend(summaries: Any, period: int | None) -> list[tuple[Markup, str]]:
    counted: dict[str, int] = {}
    for found in summaries:
        for cause, n in ((found.get("outliers") or {}).get("causes") or {}).items():
            counted[cause] = counted.get(cause, 0) + n
    order = [*plots.CAUSES, *sorted(set(counted) - set(plots.CAUSES))]
    shapes = [(plots.key(c), f"{c.replace('_', ' ')}: {counted[c]}") for c in order if counted.get(c)]
    due = [(plots.dash(), f"the next call is due, after {text.duration(period)}")] if period else []
    return shapes + due


def _sustained(name: str, found: Json, measurement: Json, scale: plots.Unit) -> Picture | None:
    """Block medians of a sustained phase with the line of Theil and Sen, frequency and temperature below."""
    subject = next(s for s in measurement["subjects"] if s["name"] == name)
    record = subject.get("sustained")
    if not record or not record["steady_ns"]:
        return None
    ends = call_ends(record, period_ns(measurement))
    times, medians = block_medians(ends, record["steady_ns"], BLOCK_NS)
    if len(times) < 2:
        return None
    begin, end = record["steady_begin_ns"], max(times)
    points = [((t - begin) / 1e9, m / scale[0]) for t, m in zip(times, medians, strict=True)]
    traces = [plots.Trace(css=color(name), points=points, shape="dots")]
    drift = found.get("drift") or {}
    told = ""
    if drift.get("over") == "sustained" and drift.get("slope_per_minute") is not None:
        traces.append(_trend(points, drift["slope_per_minute"]))
        slope = with_interval(lambda v: text.signed(v, 2), drift["slope_per_minute"], drift["low"], drift["high"])
        told = f" The line is the Theil-Sen slope a minute: {slope}."
    read = sensors(measurement, (begin, end), begin)
    tracks = [
        plots.Track(title=f"latency, {scale[1]}", traces=traces),
        *(read if any(track.traces for track in read) else []),
    ]
    seconds = (end - begin) / 1e9
    title = f"{name}, {seconds:.0f} s at a stretch: medians of blocks of half a second.{told}"
    return title, both(lambda width: plots.course(tracks, (0.0, seconds), width, "s"))


def _trend(points: Sequence[tuple[float, float]], slope: float) -> plots.Trace:
    """The line of a relative slope a minute with the median residual, as Theil and Sen draw it."""
    levels = sorted(math.log(max(v, 1e-12)) - slope * t / 60 for t, v in points)
    level = levels[len(levels) // 2]
    ends = (points[0][0], points[-1][0])
    return plots.Trace(css="", shape="trend", points=[(t, math.exp(level + slope * t / 60)) for t in ends])
