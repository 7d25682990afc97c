"""Fold y * scale + shift, per output channel, into the weights and bias of the node that makes y.

Conv, ConvTranspose   y[o] = sum(W[o] x) + b[o]        ->  W'[o] = W[o] * scale[o],  b'[o] = b[o] * scale[o] + shift[o]
Gemm                  y = alpha A B + beta C           ->  B'[:, o] = B[:, o] * scale[o],
                                                            C'[o] = beta C[o] * scale[o] + shift[o],  beta' = 1
MatMul (A of rank 2)  y = A B                          ->  Gemm(A, B', C' = shift)

The output channel o is axis 0 of a Conv weight, axis 1 of a Gemm or MatMul weight (0 with transB) and, with g groups,
o = group * (Cout / g) + j of a ConvTranspose weight [Cin, Cout / g, ...], whose rows belong to Cin / g of a group each.
The product is computed in float64 and stored in the type of the weight.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from edgeopt.passes._graph import (
    Array,
    absorb,
    all_finite,
    attr_float,
    attr_int,
    constant,
    dims,
    drop_if_unused,
    input_at,
    is_constant,
    is_op,
    new_constant,
    why_not_private,
)

Vector = npt.NDArray[np.float64]

ANCHORS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators that can take a per-channel scale and shift."""

FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""Weight types that are folded; narrower ones would be rounded a second time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Affine:
    """y * scale + shift with one value per output channel; None for a scale of 1."""

    scale: Vector | None
    shift: Vector


def anchor_before(value: ir.Value | None) -> ir.Node | None:
    """The Conv, ConvTranspose, Gemm or MatMul that makes ``value`` as its first output."""
    node = value.producer() if value is not None else None
    return node if node is not None and is_op(node, *ANCHORS) else None


def channels_and_rank(anchor: ir.Node) -> tuple[int, int] | str:
    """Output channels and rank of the anchor's output, or why they cannot be told."""
    weight = input_at(anchor, 1)
    if weight is None or not is_constant(weight) or weight.const_value is None:
        return "weights are not constant"
    sizes = weight.const_value.shape.numpy()
    if len(sizes) < 2 or (is_op(anchor, "Gemm", "MatMul") and len(sizes) != 2):
        return "weights are not a matrix or kernel"
    if is_op(anchor, "Conv"):
        return sizes[0], len(sizes)
    if is_op(anchor, "ConvTranspose"):
        return sizes[1] * attr_int(anchor, "group", 1), len(sizes)
    return sizes[0] if is_op(anchor, "Gemm") and attr_int(anchor, "transB", 0) else sizes[1], 2


def channel_vector(array: Array, channels: int, rank: int) -> Vector | None:
    """The constant as one value per channel, None when broadcasting it is anything else.

    Right-aligned to ``rank`` axes, every axis but axis 1 must be 1, and axis 1 must be 1 or ``channels``. So for a
    Conv of C channels [1, C, 1, 1], [C, 1, 1] and a scalar pass; [C], [1, C, H, W], [2, C, 1, 1] do not, whatever C is.
    """
    if array.ndim > rank:
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    if any(d != 1 for axis, d in enumerate(shape) if axis != 1) or shape[1] not in (1, channels):
        return None
    return np.broadcast_to(array.reshape(-1).astype(np.float64), (channels,))


def fold_into(model: ir.Model, anchor: ir.Node, follower: ir.Node, affine: Affine) -> str | None:
    """Fold ``affine``, which is what ``follower`` does to the anchor's output, and remove the follower.

    Returns:
        Why it was refused (then nothing changed), or None.
    """
    out, weight, old_bias = anchor.outputs[0], input_at(anchor, 1), input_at(anchor, 2)
    if why := why_not_private(out):
        return why
    if follower.graph is not anchor.graph or anchor.graph is None:
        return "its input is in another graph"
    if weight is None or (array := constant(weight)) is None:
        return "weights are not constant"
    if weight.dtype not in FLOATS:
        return f"weights are {weight.dtype.name.lower() if weight.dtype else 'of unknown type'}"
    scale = affine.scale if affine.scale is not None and bool((affine.scale != 1).any()) else None
    if scale is not None and (len(weight.uses()) > 1 or weight.is_graph_output()):
        return "weights are shared with another node"
    if old_bias is not None and not is_constant(old_bias):
        return "bias is not constant"
    if is_op(anchor, "MatMul") and len(dims(input_at(anchor, 0)) or ()) != 2:
        return "the MatMul input is not known to be a matrix"
    bias = _bias(anchor, constant(old_bias), len(affine.shift))
    if bias is None:
        return "bias is not per channel"
    with np.errstate(over="ignore", invalid="ignore"):
        new_bias = ((bias if scale is None else bias * scale) + affine.shift).astype(array.dtype)
        new_weight = array if scale is None else _scaled(anchor, array, scale)
    if not all_finite(new_bias, new_weight):
        return "the folded weights are not finite"
    if scale is not None:
        weight.const_value = ir.Tensor(new_weight, name=weight.name)
    absorb(anchor, follower)
    _set_bias(model, anchor, old_bias, new_bias)
    return None


def _bias(anchor: ir.Node, array: Array | None, channels: int) -> Vector | None:
    """The bias as it acts on the output: beta is applied, a missing one is zero."""
    if array is None:
        return np.zeros(channels)
    bias = channel_vector(array, channels, 2) if is_op(anchor, "Gemm") else array.astype(np.float64)
    if bias is None or bias.shape != (channels,):
        return None
    return bias * attr_float(anchor, "beta", 1.0) if is_op(anchor, "Gemm") else bias


def _scaled(anchor: ir.Node, weight: Array, scale: Vector) -> Array:
    if is_op(anchor, "ConvTranspose"):
        group = attr_int(anchor, "group", 1)
        view = weight.reshape(group, weight.shape[0] // group, *weight.shape[1:])
        factor = scale.reshape(group, 1, weight.shape[1], *(1,) * (weight.ndim - 2))
    else:
        axis = 0 if is_op(anchor, "Conv") or attr_int(anchor, "transB", 0) else 1
        view = weight
        factor = scale.reshape([-1 if a == axis else 1 for a in range(weight.ndim)])
    result = np.empty_like(view, order="C")
    # With out= numpy computes in float64 in small buffers: no float64 copy of the weight is ever held.
    np.multiply(view, factor, out=result, casting="same_kind")
    return result.reshape(weight.shape)


def _set_bias(model: ir.Model, anchor: ir.Node, old: ir.Value | None, bias: Array) -> None:
    if is_op(anchor, "MatMul"):
        anchor.op_type = "Gemm"
    if is_op(anchor, "Gemm"):
        anchor.attributes.pop("beta", None)
    if old is None and not bias.any() and not is_op(anchor, "Gemm"):
        return
    assert anchor.graph is not None
    # A bias may be shared, and is small: the anchor gets its own, the old one goes when nothing reads it.
    value = new_constant(model, anchor.graph, f"{anchor.outputs[0].name}.bias", bias)
    if len(anchor.inputs) < 3:
        anchor.resize_inputs(3)
    anchor.replace_input_with(2, value)
    drop_if_unused(old)
