"""Whether latency changes with time: trends and steps."""

from __future__ import annotations

import bisect
import math
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from runtime_bench.statistics import stats
from runtime_bench.statistics.steps import changepoints as changepoints

MOST_POINTS = 400
"""Slopes are taken between so many points; more are thinned to medians of blocks first."""

LEAST_POINTS, UNBIASED_POINTS = 8, 20
"""From so many on, autocorrelation is corrected for, and its own estimate for bias. With fewer values the corrections
would take a perfect order for chance."""

MOST_CORRELATION = 0.8
"""More is taken for this much, for the same reason."""


class Slope(NamedTuple):
    """Units of y for one of t; the bounds are None where there are too few points for an interval."""

    value: float
    low: Optional[float]
    high: Optional[float]


def theil_sen(
    t: Sequence[float], y: Sequence[float], confidence: float = 0.95, *, autocorrelated: bool = False
) -> Slope:
    """Median of the slopes between all pairs of points, with Sen's interval.

    Sen, "Estimates of the regression coefficient based on Kendall's tau", Journal of the American Statistical
    Association 63, 1968: the bounds are two of the slopes, their ranks from the variance of Kendall's score with ties,
    rounded outwards. With fewer than 6 points there are none.

    Args:
        t: when; need not be sorted or equally spaced.
        y: what; as many as ``t``.
        confidence: of both bounds together.
        autocorrelated: enlarge the variance as ``mann_kendall`` does, so that both see the same trends.

    More than 400 points are thinned to medians of blocks of equal count. Raises ValueError with fewer than two
    different times.
    """
    points = _thin(sorted(zip(t, y)))
    slopes = _slopes(points)
    if not slopes:
        raise ValueError("theil_sen needs two different times")
    count = len(slopes)
    value = (slopes[(count - 1) // 2] + slopes[count // 2]) / 2
    variance = _kendall_variance([p[0] for p in points], [p[1] for p in points])
    if autocorrelated:
        variance *= _inflation([y1 - value * t1 for t1, y1 in points])
    z = -stats.normal_quantile((1 - confidence) / 2)
    rank = math.floor((count - z * math.sqrt(variance)) / 2)
    if rank < 1:
        return Slope(value, None, None)
    return Slope(value, slopes[rank - 1], slopes[count - rank])


def mann_kendall(y: Sequence[float], *, autocorrelated: bool = True) -> Tuple[int, float]:
    """Kendall's score of values in order of time, and the two-sided p-value of there being no trend.

    Mann, "Nonparametric tests against trend", Econometrica 13, 1945, with ties and correction for continuity. The
    variance of the score is enlarged for autocorrelation, taken as that of an AR(1) process: the first correlation of
    the ranks without their trend, bias removed (Yue and Wang, "The Mann-Kendall test modified by effective sample size
    to detect trend in serially correlated hydrological series", Water Resources Management 18, 2004). A sum over the
    significant correlations (Hamed and Rao, Journal of Hydrology 204, 1998; the first ten lags) raised about twice as
    many false alarms on 20 to 120 values. Not ``autocorrelated``: the plain test of independent values.

    Returns the score and p; p is 1 for fewer than three values.
    """
    score, times = _score(y), list(range(len(y)))
    variance = _kendall_variance(times, y)
    if variance <= 0 or score == 0 or len(y) < 3:
        return score, 1.0
    if autocorrelated:
        points = _thin(list(zip(times, y)))
        slope = _middle(_slopes(points))
        variance *= _inflation([y1 - slope * t1 for t1, y1 in points])
    return score, math.erfc((abs(score) - 1) / math.sqrt(2 * variance))


def block_medians(t_ns: Sequence[int], values: Sequence[int], block_ns: float = 5e8) -> Tuple[List[int], List[int]]:
    """Medians of the values that lie in each block of time, and of their times; blocks without a value are left out.

    Args:
        t_ns: when, in ascending order.
        values: as many.
        block_ns: length of a block; the first begins at the first time.
    """
    times: List[int] = []
    medians: List[int] = []
    start = 0
    while start < len(t_ns):
        number = int((t_ns[start] - t_ns[0]) / block_ns)
        end = bisect.bisect_left(t_ns, t_ns[0] + (number + 1) * block_ns, start + 1)
        times.append(stats.percentile(t_ns[start:end], 0.5))
        medians.append(stats.percentile(values[start:end], 0.5))
        start = end
    return times, medians


def _score(y: Iterable[float]) -> int:
    """Pairs that rise minus pairs that fall."""
    before: List[float] = []
    score = 0
    for value in y:
        left, right = bisect.bisect_left(before, value), bisect.bisect_right(before, value)
        score += left - (len(before) - right)
        before.insert(right, value)
    return score


def _kendall_variance(t: Sequence[float], y: Sequence[float]) -> float:
    """Variance of Kendall's score without a trend, with ties in both (Kendall, "Rank Correlation Methods", 1975)."""
    n = len(y)
    a, b = _ties(t), _ties(y)
    parts = [float(n * (n - 1) * (2 * n + 5))]
    parts += [-float(c * (c - 1) * (2 * c + 5)) for c in a + b]
    variance = math.fsum(parts) / 18
    if a and b and n > 2:
        variance += (
            sum(c * (c - 1) * (c - 2) for c in a)
            * sum(c * (c - 1) * (c - 2) for c in b)
            / (9.0 * n * (n - 1) * (n - 2))
        )
        variance += sum(c * (c - 1) for c in a) * sum(c * (c - 1) for c in b) / (2.0 * n * (n - 1))
    return max(variance, 0.0)


def _ties(values: Sequence[float]) -> List[int]:
    counts: Dict[float, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return [count for count in counts.values() if count > 1]


def _slopes(points: Sequence[Tuple[float, float]]) -> List[float]:
    """Between all pairs of points at different times, in ascending order; the points are in order of time."""
    slopes: List[float] = []
    for i, (t1, y1) in enumerate(points):
        slopes += [(y2 - y1) / (t2 - t1) for t2, y2 in points[i + 1 :] if t2 > t1]
    slopes.sort()
    return slopes


def _inflation(residuals: Sequence[float]) -> float:
    """Factor of the variance of Kendall's score for the autocorrelation of the ranks, 1 or more."""
    n = len(residuals)
    if n < LEAST_POINTS:
        return 1.0
    ranks = _ranks(residuals)
    centered = [rank - (n + 1) / 2 for rank in ranks]
    whole = math.fsum(c * c for c in centered)
    if whole <= 0:
        return 1.0
    rho = math.fsum(a * b for a, b in zip(centered, centered[1:])) / whole
    if n >= UNBIASED_POINTS:
        rho = (n * rho + 2) / (n - 4)  # an estimate after a trend was removed is low by (2 + 4 rho) / n
    rho = min(rho, MOST_CORRELATION)
    if rho < 1 / math.sqrt(n):
        return 1.0
    return 1 + 2 * math.fsum((1 - lag / n) * rho**lag for lag in range(1, n))


def _ranks(values: Sequence[float]) -> List[float]:
    """Ranks from 1; equal values share the mean of theirs."""
    ordered = sorted(values)
    return [(bisect.bisect_left(ordered, v) + bisect.bisect_right(ordered, v) + 1) / 2 for v in values]


def _thin(points: Sequence[Tuple[float, float]]) -> List[Tuple[float, float]]:
    """Medians of blocks of equal count, where there are more than ``MOST_POINTS``."""
    size = -(-len(points) // MOST_POINTS)
    if size <= 1:
        return list(points)
    blocks = [points[i : i + size] for i in range(0, len(points), size)]
    return [(_middle([p[0] for p in block]), _middle([p[1] for p in block])) for block in blocks]


def _middle(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
