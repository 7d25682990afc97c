"""Weights in blocks: every ``block`` neighbouring inputs of an output channel share a scale and a zero point.

    w ~ s (q - z),   q and z in 0 .. 2**bits - 1,   z whole, so that 0 is exact

The range of a block is shrunk while that lowers the squared error (each weight counted with E[x^2] where moments are
known), and for the integers found the best scale is the least-squares one,

    s = sum_k d_k (q_k - z) w_k / sum_k d_k (q_k - z)^2,

which is taken where rounding with it again errs less. With second moments H of the inputs the integers are then chosen
by what they do to the output instead of one by one (Frantar et al., "GPTQ", ICLR 2023): after rounding weight j of a
row the weights not yet rounded move by  -(w_j - dq_j) [H^-1]_j,: / [H^-1]_jj.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edgeopt.quantize.rounding import damped
from edgeopt.quantize.scheme import MIN_SCALE

SHARES = tuple(float(s) for s in np.linspace(1.0, 0.6, 9))
"""Shares of a block's range that are tried as its grid."""

PART = 1 << 20
"""Weights that are searched at a time: the working memory is a few arrays of this size."""

_PANEL = 64


class Blocks(NamedTuple):
    """A matrix [O, K] in blocks of ``size`` along K, the last one padded with weights of 0.

    Attributes:
        integers: uint8 [O, ceil(K / size) * size].
        scales: float32 [O, ceil(K / size)], finite and above 0.
        zeros: uint8, the integer that stands for 0, of the same shape.
        bits: 4 or 8.
    """

    integers: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray
    size: int
    bits: int

    def restored(self, inputs: int) -> np.ndarray:
        """float32 [O, inputs]: what the integers stand for."""
        spread = np.repeat(self.scales, self.size, axis=1)
        zeros = np.repeat(self.zeros, self.size, axis=1).astype(np.int16)
        real: np.ndarray = (self.integers.astype(np.int16) - zeros) * spread
        return real[:, :inputs]

    def packed(self) -> np.ndarray:
        """The integers as they are stored: two of 4 bits a byte, the first one in its low half."""
        return self.integers if self.bits == 8 else pack(self.integers)

    def packed_zeros(self) -> np.ndarray:
        """The zero points, packed row by row in the same way; a row of odd length ends with half of the range."""
        if self.bits == 8:
            return self.zeros
        odd = self.zeros.shape[1] % 2
        return pack(np.pad(self.zeros, ((0, 0), (0, odd)), constant_values=1 << (self.bits - 1)))


def pack(integers: np.ndarray) -> np.ndarray:
    """Two integers of 4 bits a byte along the last axis, whose length is even."""
    packed: np.ndarray = integers[..., 0::2] | (integers[..., 1::2] << 4)
    return packed.astype(np.uint8)


def quantize_blocks(
    rows: np.ndarray, bits: int, size: int, second: np.ndarray | None = None, *, centred: bool = False
) -> Blocks:
    """Quantize a matrix of finite float32 weights.

    Args:
        rows: [O, K].
        bits: 4 or 8.
        size: block length.
        second: second moments [K, K] of the inputs, any factor; None rounds each weight to the nearest.
        centred: every zero point is the middle, 2**(bits - 1), which need not be stored.
    """
    outputs, inputs = rows.shape
    count = -(-inputs // size)
    importance = None
    if second is not None:
        diagonal = np.diagonal(second).astype(np.float64)
        mean = diagonal.mean()
        importance = np.ones(inputs) if mean <= 0 else diagonal / mean + 1e-6
        importance = np.pad(importance, (0, count * size - inputs)).astype(np.float32).reshape(count, size)
    scales, zeros = np.empty((outputs, count), np.float32), np.empty((outputs, count), np.uint8)
    integers = np.empty((outputs, count * size), np.uint8)
    step = max(1, PART // (count * size))
    for start in range(0, outputs, step):
        part = np.zeros((min(step, outputs - start), count * size), np.float32)
        part[:, :inputs] = rows[start : start + step]
        found = _search(part.reshape(-1, count, size), bits, importance, centred)
        stop = start + step
        integers[start:stop] = found[0].reshape(len(part), -1)
        scales[start:stop], zeros[start:stop] = found[1:]
    plain = Blocks(integers=integers, scales=scales, zeros=zeros, size=size, bits=bits)
    return plain if second is None else _second_order(rows, plain, second)


def _search(
    weights: np.ndarray, bits: int, importance: np.ndarray | None, centred: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Integers [R, C, S], scales and zero points [R, C] of blocks [R, C, S]."""
    top, middle = float(2**bits - 1), float(2 ** (bits - 1))
    low, high = np.minimum(weights.min(axis=2), 0), np.maximum(weights.max(axis=2), 0)
    best_scale = best_zero = least = np.empty(0)
    for share in SHARES:
        if centred:
            widest = np.maximum(-low / np.float32(middle), high / np.float32(top - middle))
            scale, zero = np.maximum(widest * np.float32(share), MIN_SCALE), np.full_like(low, middle)
        else:
            scale = np.maximum((high - low) * np.float32(share) / np.float32(top), MIN_SCALE)
            zero = np.clip(np.rint(-low * np.float32(share) / scale), 0, top)
        for refit in (False, True):
            if refit:
                scale = _fitted(weights, scale, zero, top, importance)
            error = _error(weights, scale, zero, top, importance)
            if least.size == 0:
                best_scale, best_zero, least = scale, zero, error
            better = error < least * np.float32(1 - 1e-6)
            best_scale, best_zero = np.where(better, scale, best_scale), np.where(better, zero, best_zero)
            least = np.where(better, error, least)
    integers = np.clip(np.rint(weights / best_scale[..., None]) + best_zero[..., None], 0, top)
    return integers.astype(np.uint8), best_scale.astype(np.float32), best_zero.astype(np.uint8)


def _error(
    weights: np.ndarray, scale: np.ndarray, zero: np.ndarray, top: float, importance: np.ndarray | None
) -> np.ndarray:
    apart = np.clip(np.rint(weights / scale[..., None]), -zero[..., None], top - zero[..., None])
    apart *= scale[..., None]
    apart -= weights
    np.square(apart, out=apart)
    if importance is not None:
        apart *= importance
    total: np.ndarray = apart.sum(axis=2)
    return total


def _fitted(
    weights: np.ndarray, scale: np.ndarray, zero: np.ndarray, top: float, importance: np.ndarray | None
) -> np.ndarray:
    """The least-squares scale for the integers that ``scale`` gives."""
    whole = np.clip(np.rint(weights / scale[..., None]), -zero[..., None], top - zero[..., None])
    counted = whole if importance is None else whole * importance
    above, below = (counted * weights).sum(axis=2), (counted * whole).sum(axis=2)
    fitted = np.divide(above, below, out=scale.copy(), where=below > 0)
    return np.where(fitted > MIN_SCALE, fitted, scale)


def _second_order(rows: np.ndarray, plain: Blocks, second: np.ndarray) -> Blocks:
    """The same grids with integers that keep the output; see the top."""
    outputs, inputs = rows.shape
    hessian = damped(second[None].astype(np.float64))[0]
    order = np.argsort(-np.diagonal(hessian), kind="stable")  # heavy inputs first: their errors can still be undone
    inverse = np.linalg.inv(hessian[np.ix_(order, order)])
    upper = np.linalg.cholesky((inverse + inverse.T) / 2).T
    moved = rows[:, order].astype(np.float64)
    scales, zeros = (a[:, order // plain.size].astype(np.float64) for a in (plain.scales, plain.zeros))
    top = 2**plain.bits - 1
    found = np.empty((outputs, inputs))
    for start in range(0, inputs, _PANEL):
        stop = min(start + _PANEL, inputs)
        errors = np.empty((outputs, stop - start))
        for j in range(start, stop):
            column, scale, zero = moved[:, j], scales[:, j], zeros[:, j]
            found[:, j] = np.clip(np.rint(column / scale) + zero, 0, top)
            errors[:, j - start] = (column - (found[:, j] - zero) * scale) / upper[j, j]
            moved[:, j + 1 : stop] -= errors[:, j - start : j - start + 1] * upper[j, j + 1 : stop]
        moved[:, stop:] -= errors @ upper[start:stop, stop:]
    integers = plain.integers.copy()
    integers[:, order] = found.astype(np.uint8)
    return plain._replace(integers=integers)
