"""Pearson and Spearman correlation with what people said: of one output a sample, or of the cosine of two samples.

Spearman is Pearson of the ranks, equal values sharing the mean of their ranks. A cosine with a vector of zeros is 0.
Answers that are all equal, or not finite, correlate with nothing: 0. With scores that are all equal it is not defined.

Pairs that share samples are not independent. Where no sample is in two pairs, pairs are resampled; else samples are,
and a pair counts as often as the product of its two samples' counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from edgeopt.errors import CalibrationError
from edgeopt.metrics.scorer import Label, Numbers, Outputs, Scorer, Weighted, pick, unfit


class Pair(NamedTuple):
    """Positions of two samples among those in use, and the similarity that people gave them."""

    i: int
    j: int
    score: float


def pearson(x: Numbers, y: Numbers, weights: Numbers) -> float:
    """Weighted correlation of answers ``x`` with scores ``y``, ``float64[n]`` each; NaN for constant scores."""
    counted = weights > 0
    x, y, weights = x[counted], y[counted], weights[counted]
    if len(y) < 2 or np.ptp(y) == 0:
        return float("nan")
    if not np.isfinite(x).all() or np.ptp(x) <= 1e-12 * np.max(np.abs(x)):
        return 0.0
    total = weights.sum()
    a, b = x - weights @ x / total, y - weights @ y / total
    return float(np.clip((weights @ (a * b)) / np.sqrt((weights @ (a * a)) * (weights @ (b * b))), -1, 1))


def ranks(values: Numbers, weights: Numbers) -> Numbers:
    """Mean rank of every value, from 1, each value counted ``weights`` times."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    group = np.cumsum(np.r_[False, ordered[1:] != ordered[:-1]])
    mass = np.bincount(group, weights[order])
    middle = np.cumsum(mass) - mass + (mass + 1) / 2
    found = np.empty(len(values))
    found[order] = middle[group]
    return found


def correlation(
    *,
    kind: str,
    pairs: Sequence[Pair] | None = None,
    samples: int = 0,
    pool: str = "none",
    mask: str | None = None,
    output: str | None = None,
) -> Scorer:
    """Correlation of the one output with the label, or, with ``pairs``, of the cosine of two samples with their score.

    Args:
        kind: ``"pearson"`` or ``"spearman"``.
        samples: how many samples are in use.
        pool: ``"none"``: the output is the vector; ``"mean"`` over steps, ``"first"`` step of ``[1, steps, size]``.
        mask: input with 1 for the steps that ``"mean"`` counts.
    """
    figure = _spearman if kind == "spearman" else pearson
    name = kind.capitalize()
    if pairs is None:

        def reduce(outputs: Outputs, feeds: Outputs, label: Label) -> tuple[float, float]:
            where, value = pick(outputs, output, name)
            if value.size != 1:
                raise unfit(name, where, value, "one number a sample, or pairs")
            if not isinstance(label, int | float):
                raise CalibrationError(f"metric {name}: a label is {label!r:.40}, wanted a number.")
            return float(value.reshape(-1)[0]), float(label)

        return Scorer(
            name=name,
            reduce=reduce,
            prepare=lambda rows: lambda w: figure(rows[:, 0], rows[:, 1], w),
            unit="index",
        )
    first, second = np.array([p.i for p in pairs]), np.array([p.j for p in pairs])
    scores = np.array([p.score for p in pairs])
    apart = len(np.unique(np.r_[first, second])) == 2 * len(pairs)
    units = np.arange(samples)
    if apart:
        units[second] = units[first]

    def embed(outputs: Outputs, feeds: Outputs, label: Label) -> np.ndarray:
        where, value = pick(outputs, output, name)
        vector = pooled(value, pool, None if mask is None else feeds.get(mask))
        if vector is None:
            raise unfit(name, where, value, f'a vector a sample (pool = "{pool}")')
        return vector / max(float(np.sqrt(vector @ vector)), 1e-300)

    def prepare(rows: Numbers) -> Weighted:
        cosine = np.einsum("nd,nd->n", rows[first], rows[second])

        def of(weights: Numbers) -> float:
            both = weights[first] * weights[second]
            return figure(cosine, scores, np.sqrt(both) if apart else both)

        return of

    return Scorer(name=name, reduce=embed, prepare=prepare, unit="index", needs_label=False, units=units, compact=True)


def pooled(value: np.ndarray, pool: str, mask: np.ndarray | None) -> Numbers | None:
    """One vector, ``float64[size]``, from the output of one sample; None where its shape is another."""
    number = value.astype(np.float64)
    if pool == "none":
        return number.reshape(-1) if value.size == max(value.shape, default=0) > 1 else None
    if value.ndim != 3 or value.shape[0] != 1 or not value.size:
        return None
    if pool == "first":
        return np.asarray(number[0, 0])
    weights = np.ones(value.shape[1]) if mask is None else mask.reshape(-1).astype(np.float64)
    if len(weights) != value.shape[1] or weights.sum() <= 0:
        return None
    return np.asarray(weights @ number[0] / weights.sum())


def _spearman(x: Numbers, y: Numbers, weights: Numbers) -> float:
    if not np.isfinite(x).all():
        return pearson(x, y, weights)
    return pearson(ranks(x, weights), ranks(y, weights), weights)
