"""Steps in the level of latency: where a sequence of calls changes from one level to another, and stays."""

from __future__ import annotations

import math
from typing import List, Optional, Sequence

MOST_POINTS = 200
"""More values than that are thinned to medians of blocks first."""

WINDOW = 5
"""Neighbours on each side whose median a value is compared with before the search."""

REACH = 3.0
"""Standard deviations that a value may be away from that median; what is farther is moved there."""

FLOOR = 1e-3
"""Noise of a latency below this share counts as this much: no smaller step is one."""

MOST_CORRELATION = 0.95


def changepoints(values: Sequence[int], penalty: Optional[float] = None, least: int = 10) -> List[int]:
    """First calls of new levels, in ascending order; empty where the level never changes.

    Optimal partitioning of the logarithms by sums of squares about the means (Jackson et al., "An algorithm for
    optimal partitioning of data on an interval", IEEE Signal Processing Letters 12, 2005). Single slow calls are no
    level: before the search a value farther than 3 standard deviations from the median of its neighbours is moved
    there. Neither is autocorrelation: the penalty is a multiple of the long-run variance of an AR(1) process, its
    coefficient from the differences of first and second neighbours, which steps hardly move (as in Chakar et al., "A
    robust approach for estimating change-points in the mean of an AR(1) process", Bernoulli 23, 2017), plus one
    standard error.

    Args:
        values: latencies of one process in order.
        penalty: of one step, as a multiple of the long-run variance; None: ``3 ln n``.
        least: calls of the shortest level.

    More than 200 values are thinned to medians of blocks: then a step is found to within a block.
    """
    points = level_points(values)
    size = -(-len(values) // MOST_POINTS)
    shortest = max(3, -(-least // max(size, 1)))
    if len(points) < 2 * shortest:
        return []
    factor = 3 * math.log(len(points)) if penalty is None else penalty
    starts = _partition(points, factor * long_run_variance(points), shortest)
    return [start * size for start in (_whole(points, starts, 2 * shortest) if size > 1 else starts)]


def level_points(values: Sequence[int]) -> List[float]:
    """Logarithms of the values without single spikes; more than ``MOST_POINTS`` become medians of blocks."""
    size = -(-len(values) // MOST_POINTS)
    logs = [math.log(max(value, 1)) for value in values]
    points = logs if size <= 1 else [_middle(logs[i : i + size]) for i in range(0, len(logs), size)]
    local = [_middle(points[max(i - WINDOW, 0) : i + WINDOW + 1]) for i in range(len(points))]
    reach = REACH * _deviation([p - m for p, m in zip(points, local)])
    return [min(max(p, m - reach), m + reach) for p, m in zip(points, local)]


def long_run_variance(points: Sequence[float]) -> float:
    """Variance of the noise of a sequence with steps in it, times ``(1 + phi) / (1 - phi)`` for autocorrelation phi."""
    first = _square([b - a for a, b in zip(points, points[1:])])
    second = _square([b - a for a, b in zip(points, points[2:])])
    phi = second / first - 1 if first > 0 else 0.0
    phi = min(max(phi + math.sqrt(2 / len(points)), 0.0), MOST_CORRELATION)
    return max(first / 2 / (1 - phi), FLOOR * FLOOR) * (1 + phi) / (1 - phi)


def _square(differences: Sequence[float]) -> float:
    """Mean square, in which no difference counts for more than 2.5 standard deviations: steps are few."""
    reach = 2.5 * _deviation(differences)
    return math.fsum(min(abs(d), reach) ** 2 for d in differences) / len(differences)


def _deviation(values: Sequence[float]) -> float:
    """Standard deviation of values about 0, a fifth of which may be wild; a tenth where a coarse clock makes most 0.

    Four fifths of normal values lie within 1.2816 of it and nine tenths within 1.645. At least ``FLOOR``.
    """
    sizes = sorted(map(abs, values))
    if not sizes:
        return FLOOR
    return max(sizes[(4 * len(sizes)) // 5] / 1.2816 or sizes[(9 * len(sizes)) // 10] / 1.645, FLOOR)


def _whole(points: Sequence[float], starts: Sequence[int], short: int) -> List[int]:
    """Changes without those that a block with a step inside it made: a short level that is nearly the one beside it."""
    kept = list(starts)
    for i in range(len(starts) - 1, 0, -1):
        bounds = [0, *kept, len(points)]
        before, middle, after = (_middle(points[a:b]) for a, b in zip(bounds[i - 1 :], bounds[i : i + 3]))
        if bounds[i + 1] - bounds[i] <= short and abs(after - middle) < 0.25 * abs(after - before):
            del kept[i]
        elif bounds[i + 1] - bounds[i] <= short and abs(middle - before) < 0.25 * abs(after - before):
            del kept[i - 1]
    return kept


def _partition(points: Sequence[float], penalty: float, shortest: int) -> List[int]:
    """Starts of the segments, without the first, that minimize squares about their means plus the penalties."""
    n = len(points)
    center = math.fsum(points) / n
    sums, squares = [0.0], [0.0]
    for point in points:
        sums.append(sums[-1] + point - center)
        squares.append(squares[-1] + (point - center) ** 2)
    best: List[float] = [-penalty] + [math.inf] * n
    last = [0] * (n + 1)
    starts = [0]
    for end in range(shortest, n + 1):
        if end >= 2 * shortest:
            starts.append(end - shortest)
        total, square = sums[end], squares[end]
        costs = [best[s] + square - squares[s] - (total - sums[s]) ** 2 / (end - s) for s in starts]
        least = min(costs)
        last[end] = starts[costs.index(least)]
        best[end] = least + penalty
    found: List[int] = []
    end = n
    while last[end]:
        end = last[end]
        found.append(end)
    return found[::-1]


def _middle(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
