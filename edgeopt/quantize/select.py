"""Ranges of activations from their statistics alone: min-max, percentile, least squared error, least divergence.

All ranges contain zero, as every integer grid does. Steps are counted as of an 8-bit grid.

- ``mse``: the range [a, b] with step s = (b - a) / 255 that minimizes

      sum over |x| <= s / 2 of x^2  +  sum over other x in [a, b] of s^2 / 12  +  sum outside of (x - clip(x))^2

  A value near zero rounds to it, others err evenly within a step, those outside are clipped.
- ``kl``: the threshold that minimizes the Kullback-Leibler divergence of the quantized distribution from the
  original (Migacz, "8-bit Inference with TensorRT", GTC 2017), here with one threshold on |x| that cuts only the side
  that goes beyond it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeopt.quantize.ranges import Statistics
from edgeopt.quantize.scheme import activation_qparams

Range = tuple[float, float]

METHODS = ("min-max", "percentile", "mse", "kl")
"""Names of the methods."""

STEPS = 255
FINE = 8
"""Bins in a step where distributions are compared; Migacz has 16 for 128 steps."""

COARSE = 8
"""Candidates in an octave of magnitudes; the best is then looked at ``REFINED`` times closer."""

REFINED = 8
SAMPLED = 4
"""Values of a bin that are rounded where grids are compared."""

DEEPEST = 10
"""Octaves that a threshold may lie below the largest magnitude."""


def range_of(
    members: Sequence[Statistics],
    method: str = "min-max",
    *,
    percentile: float = 99.999,
    uncut: Sequence[Statistics] = (),
) -> Range:
    """The range of tensors that share a grid, within their extremes widened to contain zero.

    Args:
        members: at least one.
        method: one of ``METHODS``.
        percentile: for that method: values that are kept of both sides together, 100 all of them.
        uncut: those of the members that lose nothing, as outputs of the graph do.

    Raises:
        ValueError: an unknown method.
    """
    if method not in METHODS:
        raise ValueError(f"{method} is none of {', '.join(METHODS)}")
    together = members[0] if len(members) == 1 else Statistics.merged(members)
    if together.minimum > together.maximum:  # nothing was seen
        return 0.0, 0.0
    low, high = with_zero((together.minimum, together.maximum))
    if method == "min-max" or low == high or len(uncut) == len(members):
        return low, high
    if method == "percentile":
        found = together.percentile_range(percentile)
    else:
        found = least_squares(together) if method == "mse" else least_divergence(together)
    found = with_zero((max(low, found[0]), min(high, found[1])))
    return min(found[0], *(s.minimum for s in uncut), 0.0), max(found[1], *(s.maximum for s in uncut), 0.0)


def with_zero(found: Range) -> Range:
    """The range widened to contain zero."""
    return min(found[0], 0.0), max(found[1], 0.0)


def least_squares(statistics: Statistics) -> Range:
    """The range with the least squared error. Ties go to the wider one.

    The formula knows no zero point, which has to be a whole number. So the last word between its best range and those
    that leave one or both sides uncut is with the grids themselves.
    """
    edges, counts = statistics.histogram()
    error = _Errors(edges, counts)
    whole = with_zero((statistics.minimum, statistics.maximum))
    lows, highs = (_shrinking(end, np.arange(COARSE * DEEPEST + 1) / COARSE) for end in whole)
    low, high = _least(error, lows, highs)
    around = np.arange(-REFINED, REFINED + 1) / (REFINED * COARSE)
    lows, highs = np.maximum(_shrinking(low, around), whole[0]), np.minimum(_shrinking(high, around), whole[1])
    low, high = _least(error, lows, highs)
    candidates = [whole, (whole[0], high), (low, whole[1]), (low, high)]
    return min(dict.fromkeys(candidates), key=lambda found: _on_grid(edges, counts, found))


def least_divergence(statistics: Statistics) -> Range:
    """The range with the least Kullback-Leibler divergence. Ties go to the wider one."""
    edges, counts = statistics.histogram()
    # What is near zero rounds to it on any grid, and tells nothing about the range.
    below = np.concatenate([[0.0], np.cumsum(np.where((edges[:-1] <= 0) & (edges[1:] >= 0), 0, counts))])
    low, high = with_zero((statistics.minimum, statistics.maximum))
    if below[-1] == 0 or low == high:
        return low, high
    top = max(-low, high)
    best = _least_of(edges, below, (low, high), _shrinking(top, np.arange(COARSE * DEEPEST + 1) / COARSE))
    around = np.arange(-REFINED, REFINED + 1) / (REFINED * COARSE)
    best = _least_of(edges, below, (low, high), np.minimum(_shrinking(best, around), top))
    return max(low, -best), min(high, best)


def _least_of(edges: np.ndarray, below: np.ndarray, whole: Range, thresholds: np.ndarray) -> float:
    divergences = [_divergence(edges, below, (max(whole[0], -t), min(whole[1], t))) for t in thresholds]
    return float(thresholds[int(np.argmin(divergences))])


class _Errors:
    """Squared error of ranges on a histogram, by sums up to every edge."""

    def __init__(self, edges: np.ndarray, counts: np.ndarray) -> None:
        centers = (edges[:-1] + edges[1:]) / 2
        self._edges, self._centers = edges, centers
        self._sums = [np.concatenate([[0.0], np.cumsum(counts * centers**power)]) for power in range(3)]

    def of(self, lows: np.ndarray, highs: np.ndarray) -> np.ndarray:
        """Sum of squared errors for ranges [lows, highs]; arrays of one shape."""
        step = (highs - lows) / STEPS
        total = [sums[-1] for sums in self._sums]
        below, above = self._until(lows), [t - s for t, s in zip(total, self._until(highs))]
        half = step / 2
        near = [b - a for a, b in zip(self._until(np.maximum(-half, lows)), self._until(np.minimum(half, highs)))]
        inside = total[0] - below[0] - above[0] - near[0]
        clipped = [part[2] - 2 * end * part[1] + end**2 * part[0] for part, end in ((below, lows), (above, highs))]
        error: np.ndarray = near[2] + inside * step**2 / 12 + clipped[0] + clipped[1]
        return error

    def _until(self, points: np.ndarray) -> list[np.ndarray]:
        """Sums over the bins whose center lies below each point."""
        index = np.searchsorted(self._centers, points)
        return [sums[index] for sums in self._sums]


def _on_grid(edges: np.ndarray, counts: np.ndarray, found: Range) -> float:
    """Sum of squared errors of the grid of a range; values of a bin lie evenly in it."""
    used = np.flatnonzero(counts)
    start, width = edges[used], edges[used + 1] - edges[used]
    values = start[:, None] + width[:, None] * (np.arange(SAMPLED) + 0.5) / SAMPLED
    grid = activation_qparams(*found, "uint8")
    scale = float(grid.scale)
    integers = np.clip(np.rint(values / scale) + grid.zero_point, 0, STEPS)
    squares = (scale * (integers - grid.zero_point) - values) ** 2
    return float((squares.mean(axis=1) * counts[used]).sum())


def _least(error: _Errors, lows: np.ndarray, highs: np.ndarray) -> Range:
    grid = error.of(*np.broadcast_arrays(lows[:, None], highs[None, :]))
    row, column = np.unravel_index(int(np.argmin(grid)), grid.shape)
    return float(lows[row]), float(highs[column])


def _shrinking(end: float, octaves: np.ndarray) -> np.ndarray:
    """``end`` lowered by so many octaves, each once; a zero end has no others."""
    return np.zeros(1) if end == 0 else end * 2.0**-octaves


def _divergence(edges: np.ndarray, below: np.ndarray, cut: Range) -> float:
    """D(P || Q): P has what lies outside in its end bins, Q is what the steps of the grid can tell of the inside.

    The ends of the range are on the grid: what piles up at the bound of a Clip is told exactly.
    """
    marks = np.linspace(cut[0], cut[1], STEPS * FINE + 1)
    cumulated = np.interp(marks, edges, below)
    inside = np.diff(cumulated)
    original = inside.copy()
    original[0] += cumulated[0]
    original[-1] += below[-1] - cumulated[-1]
    held = original > 0
    spread = np.concatenate([[0.0], inside[1:-1], [0.0]]).reshape(STEPS, FINE)
    inner = np.concatenate([[False], held[1:-1], [False]]).reshape(STEPS, FINE)
    coarse = np.where(inner, (spread.sum(axis=1) / np.maximum(inner.sum(axis=1), 1))[:, None], 0.0).reshape(-1)
    coarse[[0, -1]] = inside[[0, -1]]
    p, q = original / original.sum(), coarse / max(coarse.sum(), 1.0)
    floor = 1e-9  # where nothing of the inside is left to tell of what was moved there
    where = p > 0
    return float((p[where] * np.log(p[where] / np.maximum(q[where], floor))).sum())
