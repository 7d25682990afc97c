"""Figures from the raw samples of a measurement. Everything here can be recomputed from the JSON alone."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Any, Mapping, Optional, Sequence

from runtime_bench.judge import causes, deadlines, energy, thermal
from runtime_bench.statistics import binomial, modes, phases, spread, stats, tails

MEDIAN_METHOD = "t interval on the logarithms of the process medians"
SEVERE_KEPT = 50
"""Severe outliers that a summary lists, the slowest ones; all are counted."""

PRECISE = 0.01
"""Half-width of the median's interval, relative, from which on nothing needs to be repeated."""

STEADY = ("flat", "warmup")
"""Classes of a process that reached a steady state."""

UNSTEADY = 0.8
"""Share of the processes without a steady state from which on they agree that there is none."""

CLASS_ERROR, CLASS_LEVEL = 0.05, 0.02
"""A class is wrong that often by chance; more deviating processes than that explains at this level are a finding."""


def steady_processes(subject: Mapping[str, Any]) -> list[list[int]]:
    """Steady latencies in ns, one list a process in the order of the rounds; empty for a failed process."""
    return [[] if process["error"] else process["steady_ns"] for process in subject["processes"]]


def summarize(
    subject: Mapping[str, Any],
    load: Optional[Mapping[str, Any]] = None,
    environment: Optional[Mapping[str, Any]] = None,
    affinity: Optional[Sequence[int]] = None,
) -> dict[str, Any]:
    """Summarize one subject of a measurement; times in nanoseconds, shares and ratios as fractions of 1.

    Args:
        subject: of the measurement; failed processes are counted and left out.
        load: of the measurement; back to back if None.
        environment: of the measurement; without it no frequency or temperature explains anything.
        affinity: of the measurement.

    Returns, beside ``n`` (timed calls), ``processes`` and ``failed``:

    - ``median_ns``, ``p90_ns``, ``p95_ns``, ``p99_ns``, ``p99.9_ns``: observed values of all calls, None with too few
      calls (then ``p99_needs`` says how many), each with ``..._low_ns`` and ``..._high_ns``, its 95 % interval or None,
      whose method is in ``methods``. The median's interval is about the process medians; it is widened where the
      median of all calls lies outside. Intervals named in ``low_confidence`` rest on few processes. ``p90_upper99_ns``
      and ``p99_upper99_ns`` are the upper bounds that MLPerf's LoadGen would state.
    - ``mean_ns``, ``trimmed_mean_ns``, ``min_ns``, ``max_ns``, ``cv``, ``robust_cv``, ``mad_ns``, ``iqr_ns``,
      ``jitter``.
    - ``import``, ``load``, ``first``: ``{"median_ns", "low_ns", "high_ns", "max_ns"}`` over processes.
    - ``variance``, ``outliers``, ``drift``, ``autocorrelation``, ``modality``, ``warmup``, ``burst``, ``deadline``,
      ``energy``: see the functions and modules of these names.

    Figures are None where every process failed.
    """
    processes = steady_processes(subject)
    good = [process for process in subject["processes"] if not process["error"] and process["steady_ns"]]
    groups = [process["steady_ns"] for process in good]
    ordered = sorted(chain.from_iterable(groups))
    medians = [max(stats.percentile(values, 0.5), 1) for values in groups]
    period = load["period_ns"] if load and load.get("kind") == "periodic" else None
    interval = stats.log_interval(medians)
    median = _observed(ordered, 0.5)
    bounds = (
        [] if interval.low is None or interval.high is None or median is None else [interval.low, interval.high, median]
    )
    result: dict[str, Any] = {
        "n": len(ordered),
        "processes": len(good),
        "failed": len(processes) - len(good),
        "median_ns": median,
        "median_low_ns": _whole(min(bounds, default=None)),
        "median_high_ns": _whole(max(bounds, default=None)),
        **_tail(groups, ordered),
        **_spread(groups, ordered),
        **_phases(good),
        "variance": variance(groups, medians, interval),
        "outliers": outliers(good, median or 0, environment, affinity, period),
        "drift": thermal.judge(subject, environment, affinity=affinity, period_ns=period),
        "autocorrelation": autocorrelation(groups),
        "modality": modality(groups),
        "warmup": warmup(good),
        "deadline": deadlines.deadline(groups, load),
    }
    result["burst"] = deadlines.burst(good, median)
    result["energy"] = energy.per_call(subject, environment or {})
    return result


def _tail(groups: Sequence[Sequence[int]], ordered: Sequence[int]) -> dict[str, Any]:
    """Percentiles above the median with their intervals, and LoadGen's bounds."""
    found: dict[str, Any] = {}
    methods, doubtful = {"median": MEDIAN_METHOD if len(groups) > 1 else None}, []
    for q, needs in stats.NEEDS.items():
        name = stats.name_of(q)
        enough = len(ordered) >= needs
        interval = tails.tail_interval(groups, q) if enough else None
        found[name + "_ns"] = _observed(ordered, q) if enough else None
        found[name + "_low_ns"] = interval.low if interval else None
        found[name + "_high_ns"] = interval.high if interval else None
        methods[name] = interval.method if interval else None
        if interval and interval.low_confidence:
            doubtful.append(name)
        if not enough:
            found[name + "_needs"] = needs
    for q in (0.90, 0.99):
        found["{}_upper99_ns".format(stats.name_of(q))] = tails.loadgen_bound(ordered, q)
    return {**found, "methods": methods, "low_confidence": doubtful}


def _spread(groups: Sequence[Sequence[int]], ordered: Sequence[int]) -> dict[str, Any]:
    if not ordered:
        keys = ("mean_ns", "trimmed_mean_ns", "min_ns", "max_ns", "cv", "robust_cv", "mad_ns", "iqr_ns", "jitter")
        return dict.fromkeys(keys)
    steps = [step for step in map(spread.jitter, groups) if step is not None]
    return {
        "mean_ns": stats.mean(ordered),
        "trimmed_mean_ns": spread.trimmed_mean(ordered),
        "min_ns": ordered[0],
        "max_ns": ordered[-1],
        "cv": stats.coefficient_of_variation(ordered),
        "robust_cv": spread.robust_cv(ordered),
        "mad_ns": stats.median_absolute_deviation(ordered),
        "iqr_ns": spread.iqr(ordered),
        "jitter": stats.mean(steps) if steps else None,
    }


def _phases(good: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for phase in ("import", "load", "first"):
        times = [process["phases_ns"][phase] for process in good]
        interval = stats.log_interval([max(time, 1) for time in times])
        median = stats.percentile(times, 0.5) if times else None
        found[phase + "_median_ns"] = median
        found[phase] = {
            "median_ns": median,
            "low_ns": _whole(interval.low),
            "high_ns": _whole(interval.high),
            "max_ns": max(times, default=None),
        }
    return found


def variance(groups: Sequence[Sequence[int]], medians: Sequence[int], interval: stats.Ratio) -> dict[str, Any]:
    """Where the latency varies: between processes or inside them, and what would narrow the median's interval.

    Returns ``between`` and ``within`` (relative standard deviations), ``icc`` (the share of the variance that lies
    between processes), ``required_processes`` for an interval of the median that is 2 % wide (as pyperf computes it),
    ``processes``, and ``limited_by``: ``None`` where the interval is within 1 % to both sides; else ``processes`` where
    only more of them help (Kalibera and Jones, ISMM 2013), ``iterations`` where longer ones would do.
    """
    found: dict[str, Any] = dict.fromkeys(("between", "within", "icc", "required_processes"))
    limited = None
    if len(groups) > 1 and max(map(len, groups)) > 1:
        parts = spread.variance_components(groups)
        found.update(parts._asdict())
        found["required_processes"] = spread.required_processes(medians)
        low, high = interval.low or 1.0, interval.high or 1.0
        if high / low > (1 + PRECISE) / (1 - PRECISE):
            calls = sum(len(values) for values in groups) / len(groups)
            limited = "processes" if parts.between**2 > parts.within**2 / calls else "iterations"
    return {**found, "processes": len(groups), "limited_by": limited}


def outliers(
    good: Sequence[Mapping[str, Any]],
    median: int,
    environment: Optional[Mapping[str, Any]] = None,
    affinity: Optional[Sequence[int]] = None,
    period_ns: Optional[int] = None,
) -> dict[str, Any]:
    """Tukey's outliers of each process, none of them dropped, and why the slow ones were slow.

    Args:
        good: processes that did not fail.
        median: of all calls.
        environment, affinity, period_ns: as for ``causes.attribute``.

    Returns counts ``low_severe``, ``low_mild``, ``high_mild``, ``high_severe``; ``time_share``, the part of all timed
    time that they took; ``causes``, how many calls had each cause, of those beyond the severe high fence or half as
    long again as the median of their process; ``severe``, the slowest of them as ``{"process", "index", "ns",
    "excess_ns", "cause", "evidence"}``; ``far``, the number of ``calls`` that are 50 % or more off the median of all,
    with their ``causes``. Fences are those of the process, because a difference between processes is no outlier.
    """
    counts: Counter[str] = Counter()
    total = outside = far = 0
    nearest, farthest = (1 - causes.FAR) * median, (1 + causes.FAR) * median
    severe: list[dict[str, Any]] = []
    for number, process in enumerate(good):
        values = process["steady_ns"]
        fences = spread.tukey(values)
        counts.update(spread.classify(values, fences)._asdict())
        total += sum(values)
        outside += sum(value for value in values if not fences.low_mild <= value <= fences.high_mild)
        far += sum(not nearest < value < farthest for value in values)
        found = causes.attribute(process, environment, affinity=affinity, period_ns=period_ns, fences=fences)
        severe += [{"process": process.get("round", number), **entry} for entry in found]
    known = Counter(e["cause"] for e in severe if e["ns"] >= farthest and e["cause"] != "unknown")
    unknown = far - sum(known.values())
    return {
        **{kind: counts[kind] for kind in spread.Outliers._fields},
        "time_share": outside / total if total else None,
        "causes": dict(Counter(entry["cause"] for entry in severe)),
        "far": {"calls": far, "causes": {**known, **({"unknown": unknown} if unknown else {})}},
        "severe": sorted(severe, key=lambda entry: -int(entry["ns"]))[:SEVERE_KEPT],
    }


def autocorrelation(groups: Sequence[Sequence[int]]) -> dict[str, Any]:
    """``rho`` at lags from 1, the mean over processes; ``rho1``; ``effective_n``, independent calls worth as much."""
    rows = [spread.autocorrelation(values) for values in groups if len(values) > 2]
    shortest = min((len(row) for row in rows), default=0)
    rho = [stats.mean([row[i] for row in rows]) for i in range(shortest)]
    effective = sum(spread.effective_size(values) for values in groups)
    return {"rho1": rho[0] if rho else None, "rho": rho, "effective_n": effective}


def modality(groups: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Bimodality coefficient and modes inside processes, ``{"ns", "share"}``; one mode where calls are of one kind.

    Processes that differ from each other are the business of ``variance``.
    """
    found = modes.modes_within(groups) if sum(map(len, groups)) > 3 else None
    return {
        "coefficient": found.coefficient if found else None,
        "modes": [{"ns": round(center), "share": share} for center, share in found.modes] if found else [],
    }


def warmup(good: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Class of each process (Barrett et al., OOPSLA 2017), whether they agree, and the calls that warmed each up.

    ``flat`` and ``warmup`` agree: both end in a steady state. The other three agree too. One class in twenty is wrong
    by chance; they disagree where more processes than this explains reach no steady state, and fewer than four in five.
    """
    classes = [phases.process_class(process.get("warmup_ns") or [], process["steady_ns"]) for process in good]
    unsteady = sum(name not in STEADY for name in classes)
    return {
        "classes": classes,
        "consistent": not more_than_chance(unsteady, len(classes)) or unsteady >= UNSTEADY * len(classes),
        "calls": [process.get("warmup_calls", 0) for process in good],
    }


def more_than_chance(unsteady: int, processes: int) -> bool:
    """Whether so many processes without a steady state are more than wrong classes explain."""
    return unsteady > 0 and 1 - binomial.binomial_cdf(unsteady - 1, processes, CLASS_ERROR) < CLASS_LEVEL


def charged_bytes(memory: Mapping[str, Any], *, worst: bool = True) -> Optional[int]:
    """What a budget counts of a subject's ``memory``: runtime plus model, the interpreter left out.

    With ``worst`` the largest over the repeats, because a limit holds for every run and not for every second one; else
    the sum of the medians, as tables show it. None where one of the two was not measured.
    """
    parts = [memory[stage] for stage in ("runtime", "model")]
    if any(part["bytes"] is None for part in parts):
        return None
    middle = sum(int(part["bytes"]) for part in parts)
    raw = [part.get("raw_bytes") or [] for part in parts]
    return max([middle] + [int(sum(pair)) for pair in zip(*raw)]) if worst else middle


def _observed(ordered: Sequence[int], q: float) -> Optional[int]:
    return stats.percentile(ordered, q) if ordered else None


def _whole(value: Optional[float]) -> Optional[int]:
    return None if value is None else round(value)
