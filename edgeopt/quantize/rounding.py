"""Second-order rounding of weights: what rounding one weight does to the output, the weights not yet rounded undo.

With y = W x, rounding W to Q costs  E|(W - Q) x|^2 = sum over rows r of  (w_r - q_r) H (w_r - q_r)^T,  H = E[x x^T],
or the covariance of x where a bias takes the mean of the error up. Fixing weight j of a row at q_j, the other weights
that are still free are best moved by

    dw = -(w_j - q_j) / [H^-1]_jj  [H^-1]_j,:

(Optimal Brain Quantization: Frantar & Alistarh, "Optimal Brain Compression", NeurIPS 2022). One order for all rows
needs one Cholesky factor of H^-1 for all of them (Frantar et al., "GPTQ", ICLR 2023).

Coordinate descent on the same cost afterwards lowers it further on the samples that it was made from, and raises the
error on others (seen on EfficientNet-Lite0: 24.8 -> 24.6 dB); so it ends here.
"""

from __future__ import annotations

import numpy as np

DAMPING = 0.03
"""Share of the mean diagonal that is added to it: directions that calibration never saw are not free."""

_BLOCK = 64


def round_second_order(weights: np.ndarray, scales: np.ndarray, second: np.ndarray, bits: int) -> np.ndarray:
    """Integers near ``weights / scales`` with the smallest error of the output.

    Args:
        weights: float64 [O, K], or [G, O, K] for G groups with inputs of their own.
        scales: one a row, shape [O] or [G, O].
        second: second moments of the inputs, [K, K] or [G, K, K], symmetric; any factor.

    Returns:
        int8, the shape of ``weights``, within ``+-(2**(bits-1) - 1)``. Weights of inputs that are always 0 are rounded
        to the nearest.
    """
    if weights.ndim == 2:
        found: np.ndarray = round_second_order(weights[None], scales[None], second[None], bits)[0]
        return found
    limit = 2 ** (bits - 1) - 1
    order, upper = _free(second)
    moved = np.take_along_axis(weights / scales[..., None].astype(np.float64), order[:, None, :], 2)
    count = moved.shape[2]
    integers = np.empty_like(moved)
    for start in range(0, count, _BLOCK):
        stop = min(start + _BLOCK, count)
        errors = np.empty((*moved.shape[:2], stop - start))
        for j in range(start, stop):
            column = moved[:, :, j]
            integers[:, :, j] = np.clip(np.rint(column), -limit, limit)
            error = (column - integers[:, :, j]) / upper[:, j, j][:, None]
            moved[:, :, j:stop] -= error[:, :, None] * upper[:, None, j, j:stop]
            errors[:, :, j - start] = error
        moved[:, :, stop:] -= errors @ upper[:, start:stop, stop:]
    rounded = np.empty_like(integers)
    np.put_along_axis(rounded, np.broadcast_to(order[:, None, :], rounded.shape), integers, 2)
    return rounded.astype(np.int8)


def _free(second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The order [G, K] of the weights, and by it the factor [G, K, K]: H^-1 = U^T U with U upper triangular.

    Row j of U is what is left free after columns 0..j-1. Each matrix is as large as the moments: none outlives its use.
    """
    matrix = damped(second)
    # Heavy inputs first: their errors can still be undone. Equal ones keep their order.
    order = np.argsort(-np.diagonal(matrix, axis1=1, axis2=2), axis=1, kind="stable")
    matrix = np.take_along_axis(matrix, order[:, :, None], 1)
    matrix = np.take_along_axis(matrix, order[:, None, :], 2)
    matrix = np.linalg.inv(matrix)
    matrix = _symmetric(matrix)
    return order, np.swapaxes(np.linalg.cholesky(matrix), 1, 2)


def damped(second: np.ndarray) -> np.ndarray:
    """Symmetric positive definite moments [G, K, K], scaled to a mean diagonal of 1; all zero gives the identity."""
    found = _symmetric(second)
    count = found.shape[1]
    mean = np.trace(found, axis1=1, axis2=2)[:, None, None] / count
    found[~(mean[:, 0, 0] > 0)] = 0
    np.divide(found, mean, out=found, where=mean > 0)
    diagonal = np.arange(count)
    found[:, diagonal, diagonal] += DAMPING
    return found


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.add(matrix, np.swapaxes(matrix, 1, 2), dtype=np.float64)
    found /= 2
    return found
