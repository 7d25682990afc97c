"""Did the subject get slower or faster while it was measured, and is the machine's heat the reason?

The unit is what is independent: the median of each process at the time when it began, or, of one long process, the
medians of blocks of half a second. A step or a trend inside each short process is found by the class of its warm-up
instead. Two tests look at the logarithms of these points:

- Mann-Kendall for a trend, with the slope and interval of Theil and Sen; blocks of one process are corrected for
  autocorrelation, fresh processes need no correction (on ten points it would mostly correct for chance);
- Welch's t test of the last third against the first, which sees a single step that a rank test on ten points misses.

A drift needs one of them at the 1 % level and a change of at least 2 % over the measurement: less is within what is
called equivalent elsewhere. It is ``thermal`` only if latency grew and a sensor or counter says that the processor was
held back; without such evidence it is ``unexplained``.
"""

from __future__ import annotations

import math
from typing import Any, Mapping, NamedTuple, Optional, Sequence

from runtime_bench.judge.timeline import Frequency, Window, call_ends, steady_window
from runtime_bench.statistics import drift, stats, steps
from runtime_bench.units import count, percent

LEVEL = 0.01
LEAST_POINTS = 6
"""With fewer, the steepest order of the points is no evidence at the 1 % level."""

CHANGE = 0.02
FREQUENCY_DROP = 0.03
MINUTE_NS = 60e9
BLOCK_NS = 5e8
THIRDS = 12
"""A long process is cut into that many parts for the comparison of thirds: block medians are not independent."""


class Points(NamedTuple):
    """Where the level of latency was known: the window of time, its middle, and the median latency in it."""

    over: str
    windows: list[Window]
    times: list[float]
    medians: list[float]


def judge(
    subject: Mapping[str, Any],
    environment: Optional[Mapping[str, Any]] = None,
    *,
    affinity: Optional[Sequence[int]] = None,
    period_ns: Optional[int] = None,
) -> dict[str, Any]:
    """The ``drift`` block of a summary.

    Returns ``{"over": "processes" | "sustained" | None, "slope_per_minute", "low", "high", "p", "change",
    "first_last", "changepoints", "verdict", "evidence"}``. The slope is relative (0.01 = 1 % a minute) with its 95 %
    interval, ``p`` that of Mann-Kendall; ``change`` is the relative change over the measurement; ``first_last`` is
    ``{"ratio", "low", "high"}`` of the last third over the first with a 99 % interval; ``changepoints`` are times in ns
    at which a long process changed its level. ``verdict`` is ``none``, ``thermal``, ``unexplained`` or ``too_few``.
    Where both the processes and a sustained phase can be judged, the one that drifts more is told.
    """
    candidates = [points for points in (_of_sustained(subject, period_ns), _of_processes(subject)) if points]
    judged = [_judge(points, environment, affinity) for points in candidates if len(set(points.times)) >= LEAST_POINTS]
    if not judged:
        return _too_few(candidates[0].over if candidates else None)
    drifting = [block for block in judged if block["verdict"] != "none"]
    return max(drifting, key=lambda block: abs(float(block["change"]))) if drifting else judged[0]


def _of_processes(subject: Mapping[str, Any]) -> Optional[Points]:
    good = [p for p in subject["processes"] if not p["error"] and p["steady_ns"] and p.get("start_ns") is not None]
    if not good:
        return None
    windows = [steady_window(process) for process in good]
    medians = [float(max(stats.percentile(process["steady_ns"], 0.5), 1)) for process in good]
    return Points("processes", windows, [float(process["start_ns"]) for process in good], medians)


def _of_sustained(subject: Mapping[str, Any], period_ns: Optional[int]) -> Optional[Points]:
    process = subject.get("sustained")
    if not process or not process["steady_ns"]:
        return None
    times, medians = drift.block_medians(call_ends(process, period_ns), process["steady_ns"], BLOCK_NS)
    half = int(BLOCK_NS / 2)
    windows = [(int(time) - half, int(time) + half) for time in times]
    return Points("sustained", windows, [float(time) for time in times], [max(float(m), 1.0) for m in medians])


def _judge(
    points: Points, environment: Optional[Mapping[str, Any]], affinity: Optional[Sequence[int]]
) -> dict[str, Any]:
    minutes = [(time - points.times[0]) / MINUTE_NS for time in points.times]
    logs = [math.log(median) for median in points.medians]
    slope = drift.theil_sen(minutes, logs)
    p = drift.mann_kendall(logs, autocorrelated=points.over == "sustained")[1]
    thirds = _thirds(points.medians)
    trend = math.expm1(slope.value * minutes[-1])
    step = 0.0 if thirds.ratio is None else thirds.ratio - 1
    has_trend = p < LEVEL and abs(trend) >= CHANGE
    has_step = thirds.low is not None and not thirds.low <= 1 <= (thirds.high or 1) and abs(step) >= CHANGE
    verdict, evidence = "none", []  # type: str, list[str]
    change = trend if has_trend or not has_step else step
    if has_trend or has_step:
        evidence = held_back(points.windows, environment, affinity) if change > 0 else []
        verdict = "thermal" if evidence else "unexplained"
    return {
        "over": points.over,
        "slope_per_minute": slope.value,
        "low": slope.low,
        "high": slope.high,
        "p": p,
        "change": change,
        "first_last": {"ratio": thirds.ratio, "low": thirds.low, "high": thirds.high},
        "changepoints": [round(points.times[i]) for i in steps.changepoints([round(m) for m in points.medians])]
        if points.over == "sustained"
        else [],
        "verdict": verdict,
        "evidence": evidence,
    }


def _thirds(medians: Sequence[float]) -> stats.Ratio:
    """The last third over the first."""
    each = max(len(medians) // THIRDS, 1)
    parts = medians
    if each > 1:
        parts = [sorted(medians[i : i + each])[each // 2] for i in range(0, len(medians) - each + 1, each)]
    third = len(parts) // 3
    return stats.welch_ratio(parts[:third], parts[-third:], 1 - LEVEL)


def held_back(
    windows: Sequence[Window], environment: Optional[Mapping[str, Any]], affinity: Optional[Sequence[int]] = None
) -> list[str]:
    """What says that the processor was held back between the first and the last third of some stretches of time.

    A temperature alone is no evidence: every processor gets warm. It is told where a throttle counter moved.
    """
    described = environment or {}
    third = max(len(windows) // 3, 1)
    early, late = list(windows[:third]), list(windows[-third:])
    found = []
    frequency = Frequency(described, affinity)
    before, after = frequency.median(early), frequency.median(late)
    if before is not None and after is not None and after <= (1 - FREQUENCY_DROP) * before:
        text = "the CPU frequency fell by {} from {:.0f} to {:.0f} MHz"
        found.append(text.format(percent(1 - after / before), before / 1000, after / 1000))
    throttles = described.get("thermal_throttles") or 0
    if throttles > 0:
        warmer = _warmer(described, early[0][0], late[-1][1])
        found.append("the processor throttled itself {}{}".format(count(throttles, "time"), warmer))
    stops = described.get("throttled_periods") or 0
    if stops > 0:
        found.append("the control group was stopped {} for its CPU quota".format(count(stops, "time")))
    return found


def _warmer(environment: Mapping[str, Any], begin: int, end: int) -> str:
    """The zone that warmed up most, in words."""
    samples = environment.get("samples") or {}
    rises = []
    for zone, row in (samples.get("temperature_mc") or {}).items():
        known = [v for t, v in zip(samples["t_ns"], row) if v is not None and begin <= t <= end]
        if known:
            rises.append((known[-1] - known[0], zone, known[0], known[-1]))
    if not rises or max(rises)[0] <= 0:
        return ""
    _, zone, low, high = max(rises)
    return ", {} went from {:.0f} to {:.0f} degrees C".format(zone, low / 1000, high / 1000)


def _too_few(over: Optional[str]) -> dict[str, Any]:
    empty = dict.fromkeys(("slope_per_minute", "low", "high", "p", "change", "first_last"))
    return {"over": over, **empty, "changepoints": [], "verdict": "too_few", "evidence": []}
