"""Does memory grow with every call? Readings over many calls, judged by their slope."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from runtime_bench.statistics import drift

LEAST_CALLS = 500
LIMIT = 1024.0
"""Bytes a call up to which growth is no leak: a quarter of a small page, and what counting itself may cost."""

FLAT = LIMIT / 8
"""Bytes a call that the later half of the calls may gain where counting ends early."""

LEAST_POINTS = 20
"""Readings below which no slope is told."""


def judge(points: Sequence[Sequence[int]], limit: float = LIMIT) -> dict[str, Any]:
    """Growth in bytes a call, with its 95 % interval, and what to make of it.

    Args:
        points: ``[calls so far, bytes]``, in order, at even distances.
        limit: bytes a call up to which growth is no leak.

    The slope is Theil's with the interval of Sen (1968). It is a ``leak`` only where the interval lies above 0, the
    slope above ``limit``, and the same holds for the later half alone, of which the end still gains: more than
    ``limit`` in the last quarter, anything in the last eighth. An allocator that warms up, or a pool that fills and
    then serves, levels off. It is ``none`` where the interval of all readings or of the later half ends at or below
    ``limit``; else ``unknown``, with a ``reason``.

    Returns ``{"bytes_per_call", "low", "high", "calls", "points", "verdict"}``; ``bytes_per_call`` is None where
    there are fewer than ``LEAST_POINTS`` readings; ``low`` and ``high`` also where they wander too much.
    """
    kept = [[int(calls), int(used)] for calls, used in points]
    calls = kept[-1][0] - kept[0][0] if kept else 0
    found: dict[str, Any] = {"bytes_per_call": None, "low": None, "high": None, "calls": calls, "points": kept}
    if len(kept) < LEAST_POINTS:
        reason = "{} readings over {} calls; a slope needs {}".format(len(kept), calls, LEAST_POINTS)
        return {**found, "verdict": "unknown", "reason": reason}
    whole, later = _slope(kept), _slope(kept[len(kept) // 2 :])
    found.update(bytes_per_call=whole.value, low=whole.low, high=whole.high)
    shown = all((slope.low or 0) > 0 and slope.value > limit for slope in (whole, later))
    if shown and _gain(kept[6 * len(kept) // 8 :]) > limit and _gain(kept[7 * len(kept) // 8 :]) > 0:
        return {**found, "verdict": "leak"}
    if any(slope.high is not None and slope.high <= limit for slope in (whole, later)):
        return {**found, "verdict": "none"}
    return {**found, "verdict": "unknown", "reason": "the readings scatter, or level off only at their end"}


def figure(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The growth figure from what ``memory_job.job_growth`` answered: ``judge`` with source and method.

    ``{"bytes_per_call": None, "reason"}`` where the system gave no readings.
    """
    if "reason" in answer:
        return {"bytes_per_call": None, "reason": answer["reason"]}
    ended = {
        "flat": "ended as the later half gained no more than {:.0f} bytes a call".format(FLAT),
        "time": "ended by time",
        "grown": "ended before it would fill the memory",
    }
    found = judge(answer["points"])
    method = "Theil-Sen slope, Sen's 95 % interval, {} readings over {} calls in a process of its own; {}".format(
        len(found["points"]), found["calls"], ended[answer["ended"]]
    )
    return {**found, "source": answer["source"], "method": method}


def _slope(points: Sequence[Sequence[int]]) -> drift.Slope:
    return drift.theil_sen([calls for calls, _ in points], [used for _, used in points])


def _gain(points: Sequence[Sequence[int]]) -> float:
    """Bytes a call from the first of the points to the last."""
    return (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])
