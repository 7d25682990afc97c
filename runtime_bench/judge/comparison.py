"""Two measured subjects against each other: ratios with intervals, and what makes two measurements unlike.

Pure functions of the JSON of a measurement. A ratio is always ``b`` over ``a``. Its unit is the process (latency) or
the repeat (memory), one value each: the interval is Student's t on the logarithms, of the pairs where both ran in one
alternation, of the two groups (Welch) where they were recorded apart.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

from runtime_bench.judge.summary import steady_processes
from runtime_bench.statistics import stats

Json = Mapping[str, Any]

ENVIRONMENT = (
    ("machine", "architecture"),
    ("board", "board"),
    ("cpu", "CPU"),
    ("governor", "CPU frequency governor"),
    ("boost", "frequency boost"),
    ("power_mode", "power mode"),
    ("power_source", "power source"),
    ("quota_cpus", "CPU quota of the control group"),
)
"""Keys of the environment that must be the same for latencies to compare, and what they are called."""

RUNTIME = (("name", "runtime"), ("version", "runtime version"), ("provider", "provider"))


def compare(measurement: Json, a: str, b: str) -> dict[str, Any]:
    """Latency of subject ``b`` over subject ``a`` of one measurement, paired by round of the alternation.

    Returns ``{"a", "b", "ratio", "low", "high", "pairs", "verdict"}``: 95 % t interval on the logarithms of the
    ratios of per-process medians. ``low`` and ``high`` are None with fewer than two pairs. Raises KeyError for an
    unknown subject.
    """
    subjects = {subject["name"]: subject for subject in measurement["subjects"]}
    result = stats.ratio(*side_by_side(subjects[a], subjects[b]))
    return {"a": a, "b": b, **result._asdict(), "verdict": stats.verdict(result)}


def side_by_side(a: Json, b: Json) -> tuple[list[list[int]], list[list[int]]]:
    """Steady latencies in ns of two subjects of one measurement, one list a process, entry i of both from one round.

    Rounds that only one subject has are left out; a list is empty where the process failed.
    """
    known = []
    for subject in (a, b):
        numbers = [process.get("round", i) for i, process in enumerate(subject["processes"])]
        known.append(dict(zip(numbers, steady_processes(subject))))
    rounds = sorted(set(known[0]) & set(known[1]))
    return [known[0][i] for i in rounds], [known[1][i] for i in rounds]


def latency(a: Json, b: Json, *, paired: bool, q: float = 0.5) -> dict[str, Any]:
    """Latency of subject ``b`` over subject ``a`` at a percentile, from one percentile a process.

    Args:
        a, b: subjects of measurements.
        paired: they ran in one alternation: processes of one round side by side.
        q: above the median, processes with fewer than ``stats.NEEDS[q]`` calls are left out.

    Returns ``{"ratio", "low", "high", "pairs", "verdict", "method"}``; ``pairs`` is the number of pairs, or of
    processes of the smaller group. Where there is no ratio or no interval those are None and ``reason`` says why.
    """
    groups = side_by_side(a, b) if paired else (steady_processes(a), steady_processes(b))
    needs = stats.NEEDS.get(q, 1)
    values = [[stats.percentile(v, q) if len(v) >= needs else None for v in group] for group in groups]
    for name, group, found in zip("AB", groups, values):
        if any(group) and all(value is None for value in found):
            text = "{}: needs {} calls in a process, no process has more than {}"
            return _nothing(text.format(name, needs, max(len(v) for v in group)))
    return _ratio(values[0], values[1], paired, "process")


def memory(a: Json, b: Json, *, paired: bool, figure: str = "peak") -> dict[str, Any]:
    """Memory of subject ``b`` over subject ``a``, from one value a repeat.

    Args:
        a, b: subjects of measurements.
        paired: they were measured in one run: repeat i of ``b`` with repeat i of ``a``.
        figure: ``peak`` (runtime plus model, what a budget counts) or ``load`` (the peak while loading).

    Returns as ``latency``; ``pairs`` counts repeats.
    """
    reasons = [_unreadable(subject["memory"], figure) for subject in (a, b)]
    for name, reason in zip("AB", reasons):
        if reason:
            return _nothing("{}: {}".format(name, reason))
    values = [memory_repeats(subject["memory"], figure) for subject in (a, b)]
    return _ratio(values[0], values[1], paired, "repeat")


def memory_repeats(figures: Json, figure: str = "peak") -> list[int]:
    """Bytes of every repeat: runtime plus model for ``peak``, else the figure's own; empty where not measured."""
    if figure != "peak":
        return list((figures.get(figure) or {}).get("raw_bytes") or [])
    parts = [figures[stage].get("raw_bytes") or [] for stage in ("runtime", "model")]
    return [sum(pair) for pair in zip(*parts)]


def unlike(first: Json, second: Json, a: Optional[str] = None, b: Optional[str] = None) -> list[str]:
    """What makes two measurements incomparable, one sentence each; empty where they are alike.

    Args:
        first, second: measurements.
        a, b: the subjects whose runtimes are compared; the first subject of each where None.

    Compared are processor and board, its flags, governor, power and quota, runtime, version and provider, threads,
    pinning and load. A fact that only one of the two machines could tell is a difference too.
    """
    one, two = first["environment"], second["environment"]
    found = [_differ(words, one.get(key), two.get(key)) for key, words in ENVIRONMENT]
    flags = [None if e.get("flags") is None else sorted(e["flags"]) for e in (one, two)]
    found.append(_differ_in_flags(flags[0], flags[1]))
    runtimes = [_subject(first, a)["runtime"], _subject(second, b)["runtime"]]
    found += [_differ(words, runtimes[0].get(key), runtimes[1].get(key)) for key, words in RUNTIME]
    found.append(_differ("threads", first["threads"], second["threads"]))
    found.append(_differ("pinning", _pinned(first), _pinned(second)))
    found.append(_differ("load", _load(first), _load(second)))
    return [text for text in found if text]


def remarks(first: Json, second: Json) -> list[str]:
    """Differences that a reader should know and that make no latency incomparable: kernel, Python, effort."""
    one, two = first["environment"], second["environment"]
    keys = (("kernel", "kernel"), ("python", "Python"), ("container", "container"))
    found = [_differ(words, one.get(key), two.get(key)) for key, words in keys]
    found.append(_differ("effort", first["effort"], second["effort"]))
    return [text for text in found if text]


def _ratio(a: Sequence[Optional[int]], b: Sequence[Optional[int]], paired: bool, unit: str) -> dict[str, Any]:
    """The ratio of two lists of values, one a process or repeat; None marks a failed one."""
    if paired:
        pairs = [(x, y) for x, y in zip(a, b) if x is not None and y is not None]
        a, b = [x for x, _ in pairs], [y for _, y in pairs]
    one, two = [x for x in a if x is not None], [y for y in b if y is not None]
    if not one or not two:
        return _nothing("there is no {} in which both ran".format(unit) if paired else "no {} of one ran".format(unit))
    if min(one + two) <= 0:
        return _nothing("a {} has a value of {}, which has no logarithm".format(unit, min(one + two)))
    if paired:
        result = stats.log_interval([y / x for x, y in zip(one, two)])
        method = "t interval on the logarithms of the ratios of {} pairs".format(len(one))
    else:
        result = stats.welch_ratio(one, two)
        method = "Welch's t interval on the logarithms of {} and {} {}".format(len(one), len(two), _plural(unit))
    found = {**result._asdict(), "verdict": stats.verdict(result), "method": method}
    if result.low is None:
        found["reason"] = "only one {}: no interval".format("pair" if paired else unit)
    return found


def _nothing(reason: str) -> dict[str, Any]:
    empty = {"ratio": None, "low": None, "high": None, "pairs": 0, "verdict": "inconclusive", "method": None}
    return {**empty, "reason": reason}


def _plural(unit: str) -> str:
    return unit + ("es" if unit.endswith("s") else "s")


def _unreadable(figures: Json, figure: str) -> str:
    """Why a figure is missing; empty where it is there."""
    for stage in ("runtime", "model") if figure == "peak" else (figure,):
        part = figures.get(stage) or {"bytes": None, "reason": "not measured"}
        if part["bytes"] is None:
            return str(part.get("reason") or "not measured")
    return "" if memory_repeats(figures, figure) else "no repeat was recorded"


def _subject(measurement: Json, name: Optional[str]) -> Json:
    subjects: Sequence[Json] = measurement["subjects"]
    return subjects[0] if name is None else next(s for s in subjects if s["name"] == name)


def _differ(what: str, one: Any, two: Any) -> str:
    if one == two:
        return ""
    shown = ["unknown" if value is None else str(value) for value in (one, two)]
    return "{}: {} against {}".format(what, *shown)


def _differ_in_flags(one: Optional[Sequence[str]], two: Optional[Sequence[str]]) -> str:
    if one == two:
        return ""
    if one is None or two is None:
        return "CPU flags: unknown on one side"
    only = [[flag for flag in mine if flag not in theirs] for mine, theirs in ((one, two), (two, one))]
    parts = ["only {} has {}".format(name, ", ".join(flags)) for name, flags in zip("AB", only) if flags]
    return "CPU flags: " + "; ".join(parts)


def _pinned(measurement: Json) -> str:
    cpus = measurement.get("affinity")
    return "not pinned" if cpus is None else "pinned to {} CPU{}".format(len(cpus), "" if len(cpus) == 1 else "s")


def _load(measurement: Json) -> str:
    load = measurement.get("load") or {"kind": "back_to_back"}
    return "{}{}".format(load["kind"], " at {:g} fps".format(load["fps"]) if load.get("fps") else "")
