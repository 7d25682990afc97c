"""The binomial distribution and the interval of a proportion."""

from __future__ import annotations

import math
from typing import Callable, Tuple


def binomial_cdf(k: int, n: int, p: float) -> float:
    """Probability of at most ``k`` successes in ``n`` trials with the chance ``p`` each.

    One probability from logarithms of the gamma function, its neighbours by their ratios until nothing is added: about
    ``sqrt(n)`` terms, on the side of ``k`` that the mode does not lie on.
    """
    if k < 0 or n < 0:
        return 0.0
    if k >= n or p <= 0:
        return 1.0
    if p >= 1:
        return 0.0
    if k > n * p:
        return 1.0 - binomial_cdf(n - k - 1, n, 1 - p)
    term = math.exp(
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * math.log(p) + (n - k) * math.log1p(-p)
    )
    total, odds = term, (1 - p) / p
    for i in range(k, 0, -1):
        term *= i * odds / (n - i + 1)
        total += term
        if term < 1e-17 * total:
            break
    return min(total, 1.0)


def proportion_interval(k: int, n: int, confidence: float = 0.95) -> Tuple[float, float]:
    """Interval of the chance of a success after ``k`` of them in ``n`` trials: exact, never too narrow.

    Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial", Biometrika
    26, 1934. Nothing is known of no trials: (0, 1). Raises ValueError where k is outside 0 to n.
    """
    if not 0 <= k <= n:
        raise ValueError("proportion_interval needs 0 <= k <= n")
    tail = (1 - confidence) / 2
    low = 0.0 if k == 0 else _falling_to(1 - tail, lambda p: binomial_cdf(k - 1, n, p))
    high = 1.0 if k == n else _falling_to(tail, lambda p: binomial_cdf(k, n, p))
    return low, high


def _falling_to(level: float, function: Callable[[float], float]) -> float:
    """Where a function of a chance, falling from 1 to 0, passes a level: bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if function(middle) > level:
            low = middle
        else:
            high = middle
    return (low + high) / 2
