"""From the real weights and bias of one operator to integers: scale, rounding, and what the bias takes up.

    y = W x + b,  Q = DQ(Wq):   E[y - y_q] = (W - Q) E[x]  =>  b' = b - (Q - W) E[x]

The bias correction is that of Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction",
ICCV 2019. With it only what varies of x is left to disturb the output, so rounding then looks at the covariance of x:
E[x x^T] - E[x] E[x]^T. All algorithms see a weight as matrices of rows: [G, R, K], G groups with inputs of their own, R
output channels of each, K weights a channel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from edgeopt.model import node_key
from edgeopt.quantize import scheme
from edgeopt.quantize.moments import Moments
from edgeopt.quantize.rounding import round_second_order
from edgeopt.quantize.scales import search_scales


@dataclasses.dataclass(frozen=True, kw_only=True)
class How:
    """What to do with weights: see ``Choice``."""

    bits: int
    per_channel: bool
    scales: str = "max"
    rounding: str = "nearest"
    correct: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fitted:
    """Integers of one operator.

    Attributes:
        integers: int8, the shape of the weight.
        scales: float32, one an index of ``axis``, or one in all.
        bias: float32, corrected; None where there is none and none is needed.
    """

    integers: np.ndarray
    scales: np.ndarray
    axis: int | None
    bias: np.ndarray | None

    def fits(self, activation: np.float32) -> bool:
        """Whether the bias fits int32 with inputs of this scale."""
        return self.bias is None or np.array_equal(_raised(self.scales, self.bias, self.axis, activation), self.scales)

    def real(self) -> np.ndarray:
        """The weights that the runtime computes with, float64."""
        spread = scheme.expand(self.scales, self.integers.ndim, self.axis).astype(np.float64)
        found: np.ndarray = self.integers.astype(np.float64) * spread
        return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """How the weight of a node becomes rows."""

    op: str
    groups: int
    shape: tuple[int, ...]
    turned: bool

    def rows(self, weight: np.ndarray) -> np.ndarray:
        """[G, R, K] from the tensor."""
        if self.op == "ConvTranspose":
            inputs, outputs = weight.shape[:2]
            split = weight.reshape(self.groups, inputs // self.groups, outputs, -1)
            return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(self.groups, outputs, -1)
        matrix = weight.T if self.turned else weight
        return np.ascontiguousarray(matrix).reshape(self.groups, matrix.shape[0] // self.groups, -1)

    def tensor(self, rows: np.ndarray) -> np.ndarray:
        """The tensor from [G, R, K]."""
        if self.op == "ConvTranspose":
            inputs, outputs = self.shape[:2]
            split = rows.reshape(self.groups, outputs, inputs // self.groups, -1).swapaxes(1, 2)
            return np.ascontiguousarray(split).reshape(self.shape)
        if self.turned:
            return np.ascontiguousarray(rows.reshape(self.shape[::-1]).T)
        return rows.reshape(self.shape)


def layout_of(node: ir.Node, shape: Sequence[int]) -> Layout | None:
    """How a node multiplies with a weight of this shape; None where it is not known as rows."""
    groups = node.attributes.get_int("group", 1) if node.op_type in ("Conv", "ConvTranspose") else 1
    turned = node.op_type == "MatMul" or (node.op_type == "Gemm" and not node.attributes.get_int("transB", 0))
    if node.op_type in ("MatMul", "Gemm") and len(shape) != 2:
        return None
    if node.op_type not in ("Conv", "ConvTranspose", "MatMul", "Gemm"):
        return None
    return Layout(op=node.op_type, groups=groups, shape=tuple(shape), turned=turned)


def fit(
    node: ir.Node,
    real: np.ndarray,
    bias: np.ndarray | None,
    axis: int | None,
    activation: np.float32 | None,
    how: How,
    *,
    moments: Moments | None = None,
    means: np.ndarray | None = None,
    shift: np.ndarray | None = None,
    takes_bias: bool = True,
    memo: dict[object, np.ndarray] | None = None,
) -> Fitted:
    """Decide scales, integers and bias of one operator.

    Args:
        real: float32, the weight with every factor in it.
        axis: of the weight's output channels; None for one scale in all.
        activation: scale of the input, which a bias in int32 depends on; None where the operator computes in float.
        moments, means: of the input, as far as they are known.
        shift: to add to the bias, one an output channel.
        takes_bias: whether the operator can have a bias at all.
        memo: what was searched for before in the same network with the same moments, by everything else that it
            follows from. Activation ranges have no part in most of it, and trying them costs nothing then.
    """
    memo = {} if memo is None else memo
    layout = layout_of(node, real.shape)
    channels = real.shape[axis] if axis is not None else None
    if bias is not None and channels and bias.size in (1, channels):
        bias = np.broadcast_to(bias.reshape(-1), (channels,)).copy()
    if layout is None or (moments is not None and moments.size != layout.rows(real).shape[2]):
        moments = None
    mean = None if layout is None else _mean(layout, moments, means, real)
    scales = scheme.weight_scales(real, axis, how.bits)
    if how.scales == "mse" and layout is not None:
        sought: tuple[object, ...] = (node_key(node), "scales", moments is None, how.bits, axis)
        if sought not in memo:
            memo[sought] = _searched(layout, real, scales, axis, how.bits, moments)
        scales = memo[sought]
    correct = how.correct and takes_bias and mean is not None
    key = (node_key(node), moments is None, how, correct, axis)
    if key not in memo:
        memo[key] = _integers(layout, real, scales, axis, how, moments, centred=correct)
    integers = memo[key]
    if bias is not None and activation is not None:
        raised = _raised(scales, bias, axis, activation)
        if not np.array_equal(raised, scales):  # channels of weights so small that the bias dwarfs them
            nearest = scheme.quantize_weights(real, raised, axis, how.bits)
            integers = np.where(scheme.expand(raised > scales, real.ndim, axis), nearest, integers)
            scales = raised
    fitted = Fitted(integers=integers, scales=scales, axis=axis, bias=bias)
    moved = None
    if correct and layout is not None and mean is not None:
        moved = -np.einsum("grk,gk->gr", layout.rows(fitted.real() - real.astype(np.float64)), mean).reshape(-1)
    if shift is not None and takes_bias:
        moved = shift if moved is None else moved + shift
    if moved is None:
        return fitted
    corrected = (np.zeros(moved.size) if bias is None else bias.astype(np.float64).reshape(-1)) + moved
    if activation is not None and not np.array_equal(_raised(scales, corrected, axis, activation), scales):
        return fitted  # the corrected bias would need coarser weights
    return dataclasses.replace(fitted, bias=corrected.astype(np.float32))


def _mean(layout: Layout, moments: Moments | None, means: np.ndarray | None, real: np.ndarray) -> np.ndarray | None:
    """E[x] by group and weight, [G, K]: exact with moments, else that of the channel for each of its taps."""
    if moments is not None:
        return moments.first / max(moments.count, 1)
    groups, _, count = layout.rows(real).shape
    if means is None or layout.op == "ConvTranspose" or means.size == 0 or (groups * count) % means.size:
        return None
    return np.repeat(means.reshape(groups, -1), groups * count // means.size, axis=1)


def _raised(scales: np.ndarray, bias: np.ndarray, axis: int | None, activation: np.float32) -> np.ndarray:
    return scheme.fit_bias(scales, bias if axis is not None else np.max(np.abs(bias)), activation)


def _row_scales(layout: Layout, scales: np.ndarray, axis: int | None) -> np.ndarray:
    """Scales by group and row, [G, R]."""
    spread = np.broadcast_to(scheme.expand(scales, len(layout.shape), axis), layout.shape)
    found: np.ndarray = layout.rows(spread)[:, :, 0]
    return found


def _searched(
    layout: Layout, real: np.ndarray, widest: np.ndarray, axis: int | None, bits: int, moments: Moments | None
) -> np.ndarray:
    """The scales with the smallest error, as ``widest`` is laid out."""
    rows, spread = layout.rows(real.astype(np.float64)), _row_scales(layout, widest, axis)
    importance = None if moments is None else moments.squares
    if axis is not None and spread.size == widest.size:
        return search_scales(rows, spread, bits, importance).reshape(widest.shape)
    if axis is None and layout.groups == 1:  # one scale: all rows as one
        every = None if importance is None else np.tile(importance, (1, rows.shape[1]))
        return search_scales(rows.reshape(1, 1, -1), widest.reshape(1, 1), bits, every).reshape(widest.shape)
    return widest


def _integers(
    layout: Layout | None,
    real: np.ndarray,
    scales: np.ndarray,
    axis: int | None,
    how: How,
    moments: Moments | None,
    *,
    centred: bool,
) -> np.ndarray:
    if how.rounding == "nearest" or layout is None or moments is None or not moments.count:
        return scheme.quantize_weights(real, scales, axis, how.bits)
    second = moments.second  # made anew: changed in place
    second /= moments.count
    if centred:
        mean = moments.first / moments.count
        second -= mean[:, :, None] * mean[:, None, :]
    rows, spread = layout.rows(real.astype(np.float64)), _row_scales(layout, scales, axis)
    return layout.tensor(round_second_order(rows, spread, second, how.bits))
