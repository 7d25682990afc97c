"""Percentiles, spread and ratios with their intervals. Pure functions on lists of numbers; no numpy."""

from __future__ import annotations

import math
from typing import NamedTuple, Optional, Sequence

from runtime_bench.statistics.binomial import proportion_interval as proportion_interval

NEEDS = {0.90: 36, 0.95: 72, 0.99: 368, 0.999: 3688}
"""Samples from which a two-sided 95 % interval exists for a percentile: the least n with ``q**n <= 0.025``."""

EQUIVALENT = 0.02
"""Two latencies are called equivalent when the whole interval of their ratio lies within this share of 1."""


class Ratio(NamedTuple):
    """A ratio of latencies with its interval; the bounds are None where there are too few processes for one."""

    ratio: Optional[float]
    low: Optional[float]
    high: Optional[float]
    pairs: int


def percentile(values: Sequence[int], q: float) -> int:
    """Percentile by the inverted distribution function (type 1): always one of the values, never interpolated."""
    if not values:
        raise ValueError("percentile of nothing")
    ordered = sorted(values)
    return ordered[max(math.ceil(q * len(ordered) - 1e-9), 1) - 1]


def name_of(q: float) -> str:
    """What a percentile is called: ``p90``, ``p99.9``."""
    return "p{:g}".format(q * 100)


def supported_percentile(values: Sequence[int], q: float) -> Optional[int]:
    """Percentile, or None where there are fewer values than ``NEEDS[q]``."""
    return percentile(values, q) if len(values) >= NEEDS[q] else None


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean."""
    return math.fsum(values) / len(values)


def trimmed_mean(values: Sequence[float], share: float = 0.05) -> float:
    """Mean without the given share of the values at each end."""
    if not 0 <= share < 0.5:
        raise ValueError("trimmed_mean needs 0 <= share < 0.5")
    cut = int(share * len(values) + 1e-9)
    return mean(sorted(values)[cut : len(values) - cut])


def standard_deviation(values: Sequence[float]) -> float:
    """Sample standard deviation (n - 1); 0 for one value."""
    if len(values) < 2:
        return 0.0
    center = mean(values)
    return math.sqrt(math.fsum((v - center) ** 2 for v in values) / (len(values) - 1))


def coefficient_of_variation(values: Sequence[float]) -> float:
    """Standard deviation over mean."""
    center = mean(values)
    return standard_deviation(values) / center if center else 0.0


def median_absolute_deviation(values: Sequence[int]) -> int:
    """Median distance from the median, unscaled (times 1.4826 it estimates the deviation of a normal variable)."""
    center = percentile(values, 0.5)
    return percentile([abs(v - center) for v in values], 0.5)


def t_quantile(p: float, df: int) -> float:
    """Quantile of Student's t for ``0.5 <= p < 1`` and a whole number of degrees of freedom.

    With ``theta = atan(t / sqrt(df))`` the probability of ``|T| < t`` is a finite sum of powers of ``cos(theta)``
    (Abramowitz and Stegun 26.7.3 and 26.7.4), monotone in theta: bisection finds it.
    """
    if not 0.5 <= p < 1 or df < 1:
        raise ValueError("t_quantile needs 0.5 <= p < 1 and df >= 1")
    low, high = 0.0, math.pi / 2
    for _ in range(200):
        middle = (low + high) / 2
        if _t_within(middle, df) < 2 * p - 1:
            low = middle
        else:
            high = middle
    return math.sqrt(df) * math.tan((low + high) / 2)


def normal_quantile(p: float) -> float:
    """Quantile of the standard normal distribution, ``0 < p < 1``, by bisection of its distribution function."""
    if not 0 < p < 1:
        raise ValueError("normal_quantile needs 0 < p < 1")
    if p > 0.5:
        return -normal_quantile(1 - p)
    low, high = -40.0, 0.0
    for _ in range(64):
        middle = (low + high) / 2
        if normal_cdf(middle) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def normal_cdf(z: float) -> float:
    """Distribution function of the standard normal distribution."""
    return math.erfc(-z / math.sqrt(2)) / 2


def _t_within(theta: float, df: int) -> float:
    """Probability of ``|T| < sqrt(df) * tan(theta)``."""
    cosine, sine = math.cos(theta), math.sin(theta)
    odd = df % 2
    term = cosine if odd else 1.0
    total = term if df > 1 else 0.0
    for k in range(2 + odd, df - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    return (theta + sine * total) * 2 / math.pi if odd else sine * total


def log_interval(values: Sequence[float], confidence: float = 0.95) -> Ratio:
    """Geometric mean of positive values with a t interval on their logarithms."""
    if not values:
        return Ratio(None, None, None, 0)
    logs = [math.log(v) for v in values]
    center = mean(logs)
    if len(logs) < 2:
        return Ratio(math.exp(center), None, None, 1)
    half = t_quantile((1 + confidence) / 2, len(logs) - 1) * standard_deviation(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(center), math.exp(center - half), math.exp(center + half), len(logs))


def ratio(
    a_processes: Sequence[Sequence[int]], b_processes: Sequence[Sequence[int]], confidence: float = 0.95
) -> Ratio:
    """Latency of b over latency of a, from per-process medians paired by position.

    Args:
        a_processes: steady latencies in ns, one list a process; an empty list is a failed process.
        b_processes: the same for b; pair i ran next to ``a_processes[i]``. A pair with a median of 0 gives no ratio.
        confidence: of the interval. The unit is the process: iterations of one process are not independent.
    """
    pairs = [(percentile(a, 0.5), percentile(b, 0.5)) for a, b in zip(a_processes, b_processes) if a and b]
    return log_interval([b / a for a, b in pairs if a > 0 and b > 0], confidence)


def welch_ratio(a_values: Sequence[float], b_values: Sequence[float], confidence: float = 0.95) -> Ratio:
    """Ratio of b over a from positive values that are not paired, such as the medians of processes of two runs.

    Welch's t interval on the logarithms (Biometrika 34, 1947), the degrees of freedom rounded down. ``pairs`` is the
    smaller of the two counts; the bounds are None where a side has fewer than two values.
    """
    count = min(len(a_values), len(b_values))
    if not count:
        return Ratio(None, None, None, 0)
    a, b = [math.log(v) for v in a_values], [math.log(v) for v in b_values]
    center = mean(b) - mean(a)
    if count < 2:
        return Ratio(math.exp(center), None, None, count)
    parts = [(standard_deviation(logs) ** 2 / len(logs), len(logs) - 1) for logs in (a, b)]
    variance = parts[0][0] + parts[1][0]
    half = 0.0
    if variance > 0:
        freedom = variance**2 / math.fsum(part**2 / df for part, df in parts)
        half = t_quantile((1 + confidence) / 2, max(int(freedom + 1e-9), 1)) * math.sqrt(variance)
    return Ratio(math.exp(center), math.exp(center - half), math.exp(center + half), count)


def verdict(result: Ratio) -> str:
    """``equivalent``, ``faster`` or ``slower`` (of b, against a), or ``inconclusive``."""
    if result.low is None or result.high is None:
        return "inconclusive"
    if result.low >= 1 - EQUIVALENT and result.high <= 1 + EQUIVALENT:
        return "equivalent"
    if result.high < 1:
        return "faster"
    return "slower" if result.low > 1 else "inconclusive"
