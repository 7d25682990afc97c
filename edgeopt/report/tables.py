"""Tables of what was measured: every figure with its interval, and why where there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgeopt.report import text
from edgeopt.report.grid import Cell, Grid, grid
from edgeopt.report.look import PERCENTILES, Json, estimate, sentence, with_interval

NAMED = 12
"""Slow calls of one subject in the list of the slowest."""


def steady(found: Mapping[str, Json]) -> Grid:
    """Percentiles with intervals; the note names those of low confidence."""
    names = ("median", *PERCENTILES)
    doubts = [
        f"Of low confidence, from few processes: the interval of {', '.join(s['low_confidence'])}."
        if s.get("low_confidence")
        else ""
        for s in found.values()
    ]
    return grid(
        ["Subject", *(f">{name}" for name in ("Median", *PERCENTILES))],
        [(name, *(estimate(s, key) for key in names)) for name, s in found.items()],
        notes=doubts if any(doubts) else [],
    )


def methods(found: Mapping[str, Json]) -> list[tuple[str, str]]:
    """How each interval was made; one line a percentile where all subjects agree."""
    told: dict[str, dict[str, list[str]]] = {}
    for subject, s in found.items():
        for name, method in (s.get("methods") or {}).items():
            if method:
                told.setdefault(name, {}).setdefault(method, []).append(subject)
    return [
        (name, "; ".join(how if len(ways) == 1 else f"{how} ({', '.join(who)})" for how, who in ways.items()))
        for name, ways in told.items()
    ]


def start(found: Mapping[str, Json]) -> Grid:
    """Phases before the first answer; the unit is the process."""
    phases = ("import", "load", "first")
    return grid(
        ("Subject", ">Runtime import", ">Load", ">First inference", ">Slowest first", ">Processes"),
        [
            (name, *(_phase(s, phase) for phase in phases), _slowest(s), str(s["processes"]))
            for name, s in found.items()
        ],
    )


def _phase(found: Json, phase: str) -> Cell:
    block = found[phase]
    if block["median_ns"] is None:
        return Cell(text=text.MISSING)
    return with_interval(text.duration, block["median_ns"], block["low_ns"], block["high_ns"])


def _slowest(found: Json) -> str:
    return text.duration((found.get("first") or {}).get("max_ns"))


def spread(found: Mapping[str, Json]) -> Grid:
    """Location and scale beside the percentiles."""
    return grid(
        ("Subject", *(f">{h}" for h in ("Mean", "5 % trimmed", "Range", "CV", "Robust CV", "MAD", "IQR", "Jitter"))),
        [
            (
                name,
                text.duration(s["mean_ns"]),
                text.duration(s.get("trimmed_mean_ns")),
                text.between(text.duration, s["min_ns"], s["max_ns"]),
                text.percent(s["cv"]),
                text.percent(s.get("robust_cv")),
                text.duration(s["mad_ns"]),
                text.duration(s.get("iqr_ns")),
                text.percent(s.get("jitter")),
            )
            for name, s in found.items()
        ],
    )


def samples(found: Mapping[str, Json]) -> Grid:
    """How many calls, how many of them independent, and the upper bounds that LoadGen would report."""
    return grid(
        (
            *("Subject", ">Calls", ">Correlation of neighbours", ">Worth independent calls"),
            *(">p90 is at most (99 %)", ">p99 is at most (99 %)"),
        ),
        [
            (
                name,
                f"{s['n']:,}",
                _real((s.get("autocorrelation") or {}).get("rho1")),
                _whole((s.get("autocorrelation") or {}).get("effective_n")),
                _bound(s, "p90"),
                _bound(s, "p99"),
            )
            for name, s in found.items()
        ],
    )


def _bound(found: Json, name: str) -> str:
    value, needs = found.get(f"{name}_upper99_ns"), {"p90": 64, "p99": 662}[name]
    return text.duration(value) if value is not None else f"n/a (needs {needs} calls)"


def _real(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}".replace("-", "−")


def _whole(value: float | None) -> str:
    return "n/a" if value is None else f"{value:,.0f}"


def variance(found: Mapping[str, Json]) -> Grid:
    """Where the spread comes from, and how many processes would do."""
    return grid(
        (
            *("Subject", ">Between processes", ">Within a process", ">Share of the former"),
            *(">Processes run", ">Would suffice", "What limits it"),
        ),
        [
            (
                name,
                *(text.percent(block.get(key), 2) for key in ("between", "within")),
                text.percent(block.get("icc"), 0),
                str(block.get("processes", s["processes"])),
                _whole(block.get("required_processes")),
                {"processes": "more processes", "iterations": "more calls a process"}.get(
                    block.get("limited_by"), "nothing"
                ),
            )
            for name, s in found.items()
            if (block := s.get("variance"))
        ],
    )


def outliers(found: Mapping[str, Json]) -> Grid:
    """Calls beyond the fences of Tukey, none of them dropped, and the causes of the severe slow ones."""
    rows = []
    for name, s in found.items():
        if block := s.get("outliers"):
            counts = (str(block[key]) for key in ("high_severe", "high_mild", "low_mild", "low_severe"))
            rows.append((name, *counts, text.percent(block["time_share"], 2), causes(block["causes"])))
    return grid(
        (
            *("Subject", ">Severely slow", ">Mildly slow", ">Mildly fast", ">Severely fast"),
            *(">Share of the time", "=Why the severe ones were slow"),
        ),
        rows,
    )


def causes(found: Mapping[str, int]) -> str:
    """``3 preempted, 1 unknown``, most frequent first."""
    ranked = sorted(((n, cause) for cause, n in found.items() if n), key=lambda entry: (-entry[0], entry[1]))
    return ", ".join(f"{n} {cause.replace('_', ' ')}" for n, cause in ranked) or "none was"


def slowest(found: Mapping[str, Json]) -> Grid:
    """The largest severe outliers of each subject with their evidence."""
    rows = []
    for name, s in found.items():
        listed = sorted((s.get("outliers") or {}).get("severe", []), key=lambda o: -o["ns"])
        for o in listed[:NAMED]:
            took = Cell(text=text.duration(o["ns"]), small=f"{text.times(o['ns'] / s['median_ns'])} the median")
            where = o["process"] + 1 if isinstance(o["process"], int) else o["process"]
            evidence = o["evidence"] if isinstance(o["evidence"], str) else str(o["evidence"] or "–")
            rows.append((name, str(where), str(o["index"] + 1), took, o["cause"].replace("_", " "), evidence))
    return grid(("Subject", ">Process", ">Call", ">Took", "Cause", "=Evidence"), rows)


VERDICTS = {
    "none": ("none", "ok"),
    "thermal": ("thermal", "over"),
    "unexplained": ("drifts, no cause seen", "over"),
    "too_few": ("too few points to say", ""),
}


def behaviour(found: Mapping[str, Json]) -> Grid:
    """Drift, modes and warm-up; the note holds the evidence of a drift."""
    rows: list[tuple[str | Cell, ...]] = []
    told = []
    for name, s in found.items():
        block = s.get("drift") or {"verdict": "too_few", "over": None}
        word, css = VERDICTS.get(block["verdict"], (block["verdict"], ""))
        over = {"processes": "over the processes", "sustained": "in the sustained phase"}.get(block["over"] or "", "")
        rows.append((name, Cell(text=word, css=css, small=over), _slope(block), _change(block), _modes(s), _warmup(s)))
        points = len(block.get("changepoints") or [])
        parts = (f"the level changed {text.plural(points, 'time')}" if points else "", *(block.get("evidence") or []))
        told.append(sentence(f"{part[:1].upper()}{part[1:]}" for part in parts))
    heads = ("Subject", "Drift", ">Slope a minute", ">Change in all", "Modes", "Warm-up of the processes")
    return grid(heads, rows, notes=told if any(told) else [])


def _slope(block: Json) -> Cell:
    if block.get("slope_per_minute") is None:
        return Cell(text="n/a")
    return with_interval(lambda v: text.signed(v, 2), block["slope_per_minute"], block.get("low"), block.get("high"))


def _change(block: Json) -> Cell:
    if block.get("change") is None:
        return Cell(text="n/a")
    p = block.get("p")
    return Cell(text=text.signed(block["change"]), small=text.probability(p) if p is not None else "")


def _modes(found: Json) -> Cell:
    modes = (found.get("modality") or {}).get("modes") or []
    if len(modes) < 2:
        return Cell(text="one" if modes else "n/a")
    told = ", ".join(f"{text.percent(m['share'], 0)} at {text.duration(m['ns'])}" for m in modes)
    return Cell(text=str(len(modes)), css="over", small=told)


def _warmup(found: Json) -> Cell:
    block = found.get("warmup") or {}
    kinds = [str(kind).replace("_", " ") for kind in block.get("classes") or []]
    counted = sorted(((kinds.count(kind), kind) for kind in set(kinds)), key=lambda entry: (-entry[0], entry[1]))
    told = counted[0][1] if len(counted) == 1 else ", ".join(f"{n} {kind}" for n, kind in counted)
    calls = block.get("calls") or []
    ended = str(calls[0]) if len(set(calls)) == 1 else text.between(str, min(calls, default=0), max(calls, default=0))
    return Cell(text=told or "n/a", small=f"after {ended} calls" if calls else "")


def deadlines(found: Mapping[str, Json]) -> Grid:
    """Missed deadlines of a periodic load."""
    return grid(
        ("Subject", ">Period", ">Calls", ">Missed", ">Share missed", ">Longest row of misses"),
        [
            (
                name,
                text.duration(d["period_ns"]),
                f"{d['calls']:,}",
                str(d["misses"]),
                with_interval(lambda v: text.percent(v, 2), d["rate"], d["rate_low"], d["rate_high"])
                if d["rate"] is not None
                else "n/a",
                str(d["worst_run"]),
            )
            for name, s in found.items()
            if (d := s.get("deadline"))
        ],
    )


def bursts(found: Mapping[str, Json]) -> Grid:
    """The first call after a pause."""
    return grid(
        ("Subject", ">First call after a pause", ">Against the median"),
        [
            (name, text.duration(b["first_ns"]), text.times(b["ratio"]))
            for name, s in found.items()
            if (b := s.get("burst"))
        ],
    )


def energy(found: Mapping[str, Json]) -> tuple[Grid, str]:
    """Energy a call beyond the idle machine; the reason where no subject has a figure."""
    blocks = {name: s.get("energy") or {"joules_per_call": None, "reason": "not computed"} for name, s in found.items()}
    if all(block["joules_per_call"] is None for block in blocks.values()):
        reasons = dict.fromkeys(str(block.get("reason") or "no reason given") for block in blocks.values())
        return Grid(), "; ".join(reasons)
    rows: list[Sequence[str | Cell]] = []
    for name, block in blocks.items():
        value = block["joules_per_call"]
        if value is None:
            rows.append((name, Cell(text="n/a", small=block.get("reason") or "no reason given"), "", ""))
            continue
        shown = with_interval(text.energy, value, block.get("low"), block.get("high"))
        idle = block.get("idle_watts")
        rows.append((name, shown, "n/a" if idle is None else f"{text.number(idle)} W", block.get("source") or "–"))
    return grid(("Subject", ">Energy a call", ">Idle machine", "Read from"), rows), ""
