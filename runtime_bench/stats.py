"""Order statistics, spread and paired ratios. Pure functions on lists of numbers; no numpy."""

from __future__ import annotations

import math
from typing import NamedTuple, Optional, Sequence

NEEDS = {0.90: 36, 0.95: 72, 0.99: 368}
"""Samples from which a two-sided 95 % interval exists for a percentile: the least n with ``q**n <= 0.025``."""

EQUIVALENT = 0.02
"""Two latencies are called equivalent when the whole interval of their ratio lies within this share of 1."""


class Ratio(NamedTuple):
    """A ratio of latencies with its 95 % interval; the bounds are None with fewer than two pairs."""

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


def supported_percentile(values: Sequence[int], q: float) -> Optional[int]:
    """Percentile, or None where there are fewer values than ``NEEDS[q]``."""
    return percentile(values, q) if len(values) >= NEEDS[q] else None


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean."""
    return math.fsum(values) / len(values)


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
        b_processes: the same for b; pair i ran next to ``a_processes[i]``.
        confidence: of the interval. The unit is the process: iterations of one process are not independent.
    """
    pairs = [(percentile(a, 0.5), percentile(b, 0.5)) for a, b in zip(a_processes, b_processes) if a and b]
    return log_interval([max(b, 1) / max(a, 1) for a, b in pairs], confidence)


def verdict(result: Ratio) -> str:
    """``equivalent``, ``faster`` or ``slower`` (of b, against a), or ``inconclusive``."""
    if result.low is None or result.high is None:
        return "inconclusive"
    if result.low >= 1 - EQUIVALENT and result.high <= 1 + EQUIVALENT:
        return "equivalent"
    if result.high < 1:
        return "faster"
    return "slower" if result.low > 1 else "inconclusive"
