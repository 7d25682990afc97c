"""Whether a process reached a steady state, judged after the fact from all its calls."""

from __future__ import annotations

from typing import List, Sequence, Tuple

from runtime_bench.statistics import spread, stats, steps

CLASSES = ("flat", "warmup", "slowdown", "cyclic", "no_steady_state")

HEAD = steps.MOST_POINTS
"""So many first calls are searched for steps one by one; a warm-up would vanish in blocks of calls."""

STEADY_SHARE = 0.25
"""The last level has to hold for this share of the calls, or there was no steady state."""

EPISODE = 0.05
"""A level that holds for a smaller share of the calls is an episode, not a state; a slow beginning is a warm-up."""

LEAST_TURNS = 3
"""Changes from which levels can be a cycle."""

RETURN = 0.4
"""Autocorrelation of a cycle: as far below 0 after half a period, as far above after a whole one."""


def process_class(warmup_ns: Sequence[int], steady_ns: Sequence[int]) -> str:
    """Class of a process by the levels that its calls went through.

    After Barrett et al., "Virtual machine warmup blows hot and cold", OOPSLA 2017: changepoints cut the calls into
    segments, and segments whose medians differ by no more than 2 % are on one level. Unless they make a cycle, levels
    that hold for less than 5 % of the calls are passed over: a short disturbance does not end a steady state.

    Args:
        warmup_ns: latencies of the calls before the measurement, in order.
        steady_ns: latencies of the timed calls.

    Returns ``flat`` (one level), ``warmup`` (the last level is the fastest, or within 2 % of it), ``slowdown`` (it is
    slower than another), ``cyclic`` (three changes or more, between two levels in turn or with a period) or
    ``no_steady_state`` (the last level began in the last quarter of the calls).
    """
    values = [*warmup_ns, *steady_ns]
    bounds = [0, *_changes(values), len(values)]
    segments = [(start, end, _level(values[start:end])) for start, end in zip(bounds, bounds[1:])]
    levels = [level for _, level in _levels(segments)]
    if len(levels) > LEAST_TURNS and (_alternate(levels) or _periodic(values[:HEAD]) or _periodic(values)):
        return "cyclic"
    lasting = [part for part in segments if part[1] - part[0] >= EPISODE * len(values)]
    states = _levels(lasting or segments)
    last = states[-1][1]
    slow_start = not _alike(levels[0], last) and levels[0] > last
    if len(states) == 1:
        return "warmup" if slow_start else "flat"
    if len(values) - states[-1][0] < STEADY_SHARE * len(values):
        return "no_steady_state"
    return "warmup" if _alike(last, min(level for _, level in states)) else "slowdown"


def _levels(segments: Sequence[Tuple[int, int, int]]) -> List[Tuple[int, int]]:
    """Start and level of each run of segments that are on one level."""
    found: List[Tuple[int, int]] = []
    for start, _, level in segments:
        if not found or not _alike(level, found[-1][1]):
            found.append((start, level))
    return found


def _changes(values: Sequence[int]) -> List[int]:
    if len(values) <= HEAD:
        return steps.changepoints(values)
    early = steps.changepoints(values[:HEAD])
    block = -(-len(values) // steps.MOST_POINTS)
    after = max([HEAD - 20, *(start + 2 * block for start in early)])
    return early + [start for start in steps.changepoints(values) if start >= after]


def _level(values: Sequence[int]) -> int:
    return stats.percentile(values, 0.5) if values else 0


def _alike(a: float, b: float) -> bool:
    return max(a, b) <= (1 + stats.EQUIVALENT) * min(a, b)


def _alternate(levels: Sequence[int]) -> bool:
    """Whether each level is that of the one before the last, give or take a quarter of the change between the two."""
    triples = zip(levels, levels[1:], levels[2:])
    return all(_alike(a, c) or abs(c - a) <= 0.25 * abs(b - a) for a, b, c in triples)


def _periodic(values: Sequence[int]) -> bool:
    """Whether the autocorrelation falls far below 0 and comes back, within a third of the calls."""
    points = steps.level_points(values)
    fallen = False
    for rho in spread.autocorrelation(points, len(points) // 3):
        if fallen and rho >= RETURN:
            return True
        fallen = fallen or rho <= -RETURN
    return False
