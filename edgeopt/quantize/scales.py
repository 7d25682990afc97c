"""Weight scales with the smallest squared error instead of the widest range.

The largest weight of a channel sets the grid of all others. For a scale t times the widest one, t <= 1,

    error(t) = sum over k of  d_k (clip(rint(w_k / (t s))) t s - w_k)^2,

with d_k = E[x_k^2] where moments are known and 1 elsewhere; the smallest on a grid of t wins, the largest t of equals
(the search of Nagel et al., "A White Paper on Neural Network Quantization", 2021, section 3.1, per channel).
"""

from __future__ import annotations

import numpy as np

LEAST = 0.4
"""Smallest share of the widest scale that is tried."""

TRIED = 60
"""Scales tried a channel, from ``LEAST`` to 1."""


def search_scales(weights: np.ndarray, widest: np.ndarray, bits: int, importance: np.ndarray | None) -> np.ndarray:
    """The best scale of each row.

    Args:
        weights: float64 [G, R, K].
        widest: scales that no weight saturates at, [G, R].
        importance: float64 [G, K], how much an error of each weight counts; None for all alike.

    Returns:
        float32 [G, R], each at most the widest.
    """
    limit = 2 ** (bits - 1) - 1
    counts = np.ones((weights.shape[0], 1, weights.shape[2])) if importance is None else importance[:, None, :]
    counts = counts + 1e-12 * counts.mean()
    best = widest.astype(np.float32)
    least = np.full(best.shape, np.inf)
    for share in np.linspace(1.0, LEAST, TRIED):
        scales = (widest.astype(np.float64) * share).astype(np.float32)
        spread = scales.astype(np.float64)[..., None]
        error = np.einsum(
            "grk,grk->gr",
            (np.clip(np.rint(weights / spread), -limit, limit) * spread - weights) ** 2,
            np.broadcast_to(counts, weights.shape),
        )
        better = error < least * (1 - 1e-9)
        best, least = np.where(better, scales, best), np.where(better, error, least)
    return best
