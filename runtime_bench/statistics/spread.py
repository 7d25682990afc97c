"""How latencies scatter: between and within processes, from call to call, and outside the fences."""

from __future__ import annotations

import itertools
import math
import operator
from typing import List, NamedTuple, Optional, Sequence

from runtime_bench.statistics import stats
from runtime_bench.statistics.stats import trimmed_mean as trimmed_mean

SCALE = 1.4826
"""Times the median absolute deviation it estimates the standard deviation of a normal variable."""

Z = 1.96
MOST_LAGS = 200


class Components(NamedTuple):
    """Standard deviations of the logarithm of latency, so shares of the latency; ``icc`` from 0 to 1.

    ``icc`` is the intraclass correlation, the part of all variance that lies between processes.
    """

    between: float
    within: float
    icc: float


class Fences(NamedTuple):
    """Limits in the unit of the values: a value beyond one of them is an outlier of that kind."""

    low_severe: float
    low_mild: float
    high_mild: float
    high_severe: float


class Outliers(NamedTuple):
    """Counts. A severe outlier is not counted as a mild one."""

    low_severe: int
    low_mild: int
    high_mild: int
    high_severe: int


def variance_components(groups: Sequence[Sequence[int]]) -> Components:
    """Variance between and within processes: one-way random effects on the logarithms, by analysis of variance.

    Searle, Casella and McCulloch, "Variance Components", 1992, section 3.6, for groups of unequal size. An estimate
    below 0 between processes becomes 0. Autocorrelation inside processes counts as variance between them.

    Args:
        groups: one list of latencies a process; empty ones are left out.

    Raises ValueError with fewer than two processes or no process of two values.
    """
    logs = [[math.log(max(value, 1)) for value in values] for values in groups if values]
    sizes = [len(values) for values in logs]
    count, total = len(logs), sum(sizes)
    if count < 2 or total == count:
        raise ValueError("variance_components needs two processes and two calls in one")
    means = [stats.mean(values) for values in logs]
    center = math.fsum(map(operator.mul, sizes, means)) / total
    inside = math.fsum((value - m) ** 2 for values, m in zip(logs, means) for value in values) / (total - count)
    outside = math.fsum(size * (m - center) ** 2 for size, m in zip(sizes, means)) / (count - 1)
    typical = (total - sum(size * size for size in sizes) / total) / (count - 1)
    between = max(0.0, (outside - inside) / typical)
    whole = between + inside
    return Components(math.sqrt(between), math.sqrt(inside), between / whole if whole else 0.0)


def required_processes(process_values: Sequence[float], width: float = 0.02) -> int:
    """How many processes make the 95 % interval of the mean as narrow as ``width`` of it, from bound to bound.

    ``ceil(4 z^2 s^2 / width^2)`` with z = 1.96 and s the standard deviation of the processes over their mean, as in
    pyperf. At least 1.

    Args:
        process_values: one value a process, such as its median; two or more.
        width: of the interval, as a share of the mean.
    """
    if len(process_values) < 2:
        raise ValueError("required_processes needs two processes")
    s = stats.coefficient_of_variation(process_values)
    return max(1, math.ceil(4 * Z * Z * s * s / (width * width) - 1e-9))


def autocorrelation(values: Sequence[float], lags: int = 20) -> List[float]:
    """Autocorrelation at the lags 1, 2, ... of values in order, as many as there are below their number.

    The usual estimate with the sum over all values below the line; zeros where all values are equal.
    """
    center = stats.mean(values)
    centered = [value - center for value in values]
    whole = math.fsum(value * value for value in centered)
    count = min(lags, len(values) - 1)
    if whole <= 0:
        return [0.0] * count
    return [_lagged(centered, lag) / whole for lag in range(1, count + 1)]


def effective_size(values: Sequence[float]) -> float:
    """Independent values that would give the mean the same error: ``n / (1 + 2 sum rho_k)``.

    The sum ends before the first correlation that is not positive ("initial positive sequence", after Geyer,
    "Practical Markov chain Monte Carlo", Statistical Science 7, 1992), at the latest at lag 200 or n / 4.
    """
    n = len(values)
    if n < 2:
        return float(n)
    center = stats.mean(values)
    centered = [value - center for value in values]
    whole = math.fsum(value * value for value in centered)
    total = 0.0
    for lag in range(1, min(n // 4, MOST_LAGS) + 1):
        rho = _lagged(centered, lag) / whole if whole else 0.0
        if rho <= 0:
            break
        total += rho
    return n / (1 + 2 * total)


def _lagged(centered: Sequence[float], lag: int) -> float:
    return math.fsum(map(operator.mul, centered, itertools.islice(centered, lag, None)))


def robust_cv(values: Sequence[int]) -> float:
    """1.4826 times the median absolute deviation, over the median: outliers do not move it."""
    center = stats.percentile(values, 0.5)
    return SCALE * stats.median_absolute_deviation(values) / center if center else 0.0


def iqr(values: Sequence[int]) -> int:
    """Distance of the quartiles, in the unit of the values."""
    ordered = sorted(values)
    return stats.percentile(ordered, 0.75) - stats.percentile(ordered, 0.25)


def jitter(values: Sequence[int]) -> Optional[float]:
    """Median difference of one call to the next, over the median; None with fewer than two values."""
    if len(values) < 2:
        return None
    steps = [abs(b - a) for a, b in zip(values, values[1:])]
    return stats.percentile(steps, 0.5) / max(stats.percentile(values, 0.5), 1)


def tukey(values: Sequence[int]) -> Fences:
    """Tukey's fences: 1.5 (mild) and 3 (severe) times the distance of the quartiles away from them.

    "Exploratory Data Analysis", 1977. A mild fence is at least 1 % of the median away and a severe one 2 %, or the
    steps of a clock would make outliers of calls that differ by nothing.
    """
    ordered = sorted(values)
    first, middle, third = (stats.percentile(ordered, q) for q in (0.25, 0.5, 0.75))
    mild, severe = max(1.5 * (third - first), 0.01 * middle), max(3 * (third - first), 0.02 * middle)
    return Fences(first - severe, first - mild, third + mild, third + severe)


def classify(values: Sequence[int], fences: Fences) -> Outliers:
    """How many values lie beyond each fence."""
    low_severe, low, high, high_severe = (
        sum(value < fences.low_severe for value in values),
        sum(value < fences.low_mild for value in values),
        sum(value > fences.high_mild for value in values),
        sum(value > fences.high_severe for value in values),
    )
    return Outliers(low_severe, low - low_severe, high - high_severe, high_severe)
