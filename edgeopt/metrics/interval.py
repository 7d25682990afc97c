"""How sure a drop is: half the width of its paired 95 % interval, both figures taken over the same samples.

A weighted mean has the standard error of the difference of two ratio estimators with one denominator, linearized
(Cochran, Sampling Techniques, 3rd ed., section 6.13); for right and wrong that is the standard error of the per-sample
differences. Every other figure has that of a paired bootstrap (Efron and Tibshirani 1993): units are drawn with
replacement, both figures are taken over the draw, and 1.96 standard deviations of their difference are given.

Samples that belong together (crops of one photo, frames of one recording) are one unit.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from edgeopt.metrics.scorer import Numbers, Scorer

RESAMPLES = 1000
Z = 1.96

_DRAWS = 50_000_000
"""Numbers drawn at most in all; large sets need fewer resamples to tell the same."""


def half_width(
    scorer: Scorer, reference: Numbers, artifact: Numbers, groups: npt.NDArray[np.int64] | None = None
) -> float | None:
    """Half the width of the interval of ``artifact - reference``; None where too few units tell nothing.

    Args:
        reference, artifact: rows of the same samples, ``float64[n, k]``.
        groups: unit of every sample; each is its own when None.
    """
    if scorer.weighted_mean:
        return mean_half_width(reference, artifact, groups)
    units = _numbered(scorer.units if groups is None else groups, len(reference))
    return _bootstrapped(scorer, reference, artifact, units)


def _numbered(groups: npt.NDArray[np.int64] | None, count: int) -> npt.NDArray[np.int64] | None:
    if groups is None:
        return None
    return np.unique(groups[:count], return_inverse=True)[1].astype(np.int64)


def mean_half_width(reference: Numbers, artifact: Numbers, groups: npt.NDArray[np.int64] | None = None) -> float | None:
    """The same for the difference of two weighted means over rows ``(value, weight)`` with one set of weights."""
    units = _numbered(groups, len(reference))
    weights = reference[:, 1]
    total = float(weights.sum())
    apart = weights * (artifact[:, 0] - reference[:, 0])
    residual = apart - weights * (float(apart.sum()) / total)
    if units is None:
        return Z * math.sqrt(float(residual @ residual)) / total
    summed = np.bincount(units, residual)
    if len(summed) < 2:
        return None
    return Z * math.sqrt(float(summed @ summed) * len(summed) / (len(summed) - 1)) / total


def _bootstrapped(
    scorer: Scorer, reference: Numbers, artifact: Numbers, units: npt.NDArray[np.int64] | None
) -> float | None:
    count = len(reference) if units is None else int(units.max()) + 1
    if count < 2:
        return None
    before, after = scorer.prepare(reference), scorer.prepare(artifact)
    generator = np.random.default_rng(0)
    found = []
    for _ in range(min(RESAMPLES, max(200, _DRAWS // len(reference)))):
        drawn = np.bincount(generator.integers(0, count, count), minlength=count).astype(np.float64)
        weights = drawn if units is None else drawn[units]
        figure = after(weights) - before(weights)
        if math.isfinite(figure):
            found.append(figure)
    return Z * float(np.std(found, ddof=1)) if len(found) >= RESAMPLES // 10 else None
