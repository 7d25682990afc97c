"""x * scale + shift, per input channel, in front of a Conv, ConvTranspose, Gemm or MatMul -> into its weights and bias.

y[o] = sum_i W[o, i] (x[i] scale[i] + shift[i]) + b[o]
     = sum_i (W[o, i] scale[i]) x[i] + (b[o] + sum_i W[o, i] shift[i])

Mul, Div, Add and Sub by constants, and BatchNormalization in inference mode, are such steps. Input channel i is axis 1
of a Conv weight [Cout, Cin / g, ...] of each of g groups, axis 0 of a ConvTranspose weight, and axis 0 of a Gemm or
MatMul weight (1 with transB).

1. The step feeds nothing else and is no graph output, and so does each step before it that goes with it.
2. The constant is one number or one value per channel of the tensor; nothing is divided by x.
3. Zeros that a Conv pads are not shifted: a shift folds only without padding, a scale always does. A ConvTranspose
   takes no shift: not every output gets all taps.
4. Weights are constant float32 or float64, read by this node alone (for a scale), and stay finite; alpha of a Gemm is
   applied to the shift, transA refused.
5. A step of one operator that merely changes the sign of a constant is none: k - x is scale -1, shift k.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeopt.model import node_key
from edgeopt.passes._channels import ANCHORS, FLOATS, Vector
from edgeopt.passes._graph import (
    Array,
    all_finite,
    attr_float,
    attr_int,
    attr_ints,
    attr_str,
    constant,
    dims,
    drop_if_unused,
    input_at,
    is_constant,
    is_op,
    new_constant,
    nodes_of,
    other_outputs_used,
    record_absorbed,
    why_not_private,
)
from edgeopt.passes._pass import Pass, Refusal, Rewritten


def _vector(array: Array, channels: int, rank: int, axis: int) -> Vector | None:
    """One value per channel along ``axis`` of a tensor of ``rank``; None when broadcasting it is anything else."""
    if array.ndim > rank:
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    if any(d != 1 for a, d in enumerate(shape) if a != axis) or shape[axis] not in (1, channels):
        return None
    return np.broadcast_to(array.reshape(-1).astype(np.float64), (channels,))


def _step(node: ir.Node, channels: int, rank: int, axis: int) -> tuple[ir.Value, Vector, Vector] | str | None:
    """``(x, scale, shift)`` of one step, why it cannot be folded, or None when it is no step."""
    if is_op(node, "BatchNormalization"):
        return _batchnorm(node, channels, axis)
    if not is_op(node, "Mul", "Div", "Add", "Sub") or len(node.inputs) != 2:
        return None
    index = 1 if constant(node.inputs[1]) is not None else 0
    array, x = constant(node.inputs[index]), node.inputs[1 - index]
    if array is None or x is None:
        return None
    if len(dims(x) or ()) != rank:
        return "its input has no known rank"
    k = _vector(array, channels, rank, axis)
    if k is None:
        return "constant is not per channel"
    zero, one = np.zeros_like(k), np.ones_like(k)
    if is_op(node, "Mul"):
        return x, k, zero
    if is_op(node, "Add"):
        return x, one, k
    if is_op(node, "Sub"):
        return (x, one, -k) if index == 1 else (x, -one, k)
    if index == 0:
        return "a constant is divided by it"
    with np.errstate(divide="ignore"):
        return x, 1.0 / k, zero


def _batchnorm(node: ir.Node, channels: int, axis: int) -> tuple[ir.Value, Vector, Vector] | str:
    x = input_at(node, 0)
    if axis != 1 or x is None:
        return "its channels are not those of the weights"
    if attr_int(node, "training_mode", 0) or other_outputs_used(node):
        return "training mode"
    arrays = [constant(input_at(node, i)) for i in (1, 2, 3, 4)]
    if any(a is None or a.shape != (channels,) for a in arrays):
        return "statistics are not constants per channel"
    gamma, beta, mean, var = (a.astype(np.float64) for a in arrays if a is not None)
    spread = var + attr_float(node, "epsilon", 1e-5)
    if not bool((spread > 0).all()):
        return "variance is not positive"
    scale = gamma / np.sqrt(spread)
    return x, scale, beta - mean * scale


def _geometry(anchor: ir.Node, weight: Array) -> tuple[int, int, int] | str:
    """``(channels, rank, axis)`` of the input of ``anchor``."""
    if is_op(anchor, "Conv"):
        return weight.shape[1] * attr_int(anchor, "group", 1), weight.ndim, 1
    if is_op(anchor, "ConvTranspose"):
        return weight.shape[0], weight.ndim, 1
    if weight.ndim != 2:
        return "weights are not a matrix"
    if is_op(anchor, "Gemm") and attr_int(anchor, "transA", 0):
        return "its input is transposed"
    rank = len(dims(input_at(anchor, 0)) or ())
    channels = weight.shape[1] if is_op(anchor, "Gemm") and attr_int(anchor, "transB", 0) else weight.shape[0]
    return (channels, rank, rank - 1) if rank >= 2 else "its input has no known rank"


def _pads(anchor: ir.Node) -> bool:
    """Whether the operator may add zeros around its input."""
    return attr_str(anchor, "auto_pad", "NOTSET") not in ("NOTSET", "VALID") or any(attr_ints(anchor, "pads") or ())


def _scaled(anchor: ir.Node, weight: Array, scale: Vector) -> Array:
    if is_op(anchor, "Conv"):
        groups, inner = attr_int(anchor, "group", 1), weight.shape[1]
        view = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
        factor = scale.reshape(groups, 1, inner, *(1,) * (weight.ndim - 2))
    else:
        axis = 1 if is_op(anchor, "Gemm") and attr_int(anchor, "transB", 0) else 0
        view, factor = weight, scale.reshape([-1 if a == axis else 1 for a in range(weight.ndim)])
    result = np.empty_like(view, order="C")
    # With out= numpy computes in float64 in small buffers: no float64 copy of the weight is ever held.
    np.multiply(view, factor, out=result, casting="same_kind")
    return result.reshape(weight.shape)


def _moved(anchor: ir.Node, weight: Array, shift: Vector) -> Vector:
    """What a shift of the input adds to each output channel."""
    if is_op(anchor, "Conv"):
        groups = attr_int(anchor, "group", 1)
        taps = weight.sum(axis=tuple(range(2, weight.ndim)), dtype=np.float64)
        blocks = taps.reshape(groups, weight.shape[0] // groups, weight.shape[1])
        return np.asarray(np.einsum("goi,gi->go", blocks, shift.reshape(groups, -1)).reshape(-1))
    flipped = is_op(anchor, "Gemm") and bool(attr_int(anchor, "transB", 0))
    moved = np.einsum("ni,i->n" if flipped else "in,i->n", weight, shift)
    return np.asarray(moved * (attr_float(anchor, "alpha", 1.0) if is_op(anchor, "Gemm") else 1.0))


def _bias(anchor: ir.Node, moved: Vector, dtype: np.dtype) -> Array | str:
    """The new bias."""
    old = input_at(anchor, 2)
    if is_op(anchor, "MatMul"):
        return "a MatMul has no bias"
    if old is None:
        return moved.astype(dtype)
    array = constant(old)
    if array is None:
        return "bias is not constant"
    beta = attr_float(anchor, "beta", 1.0) if is_op(anchor, "Gemm") else 1.0
    if beta == 0:
        return "beta is 0"
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray((array.astype(np.float64) + moved / beta).astype(dtype))


def _fold(model: ir.Model, anchor: ir.Node, step: ir.Node) -> str | bool:
    """Fold ``step`` into ``anchor``: True, False when it is no step, or why not."""
    value, weight = anchor.inputs[0], input_at(anchor, 1)
    array = constant(weight)
    if value is None or weight is None or array is None or array.ndim < 2:
        return False
    geometry = _geometry(anchor, array)
    if isinstance(geometry, str):
        return False
    found = _step(step, *geometry)
    if found is None or isinstance(found, str):
        return found or False
    x, scale, shift = found
    if why := why_not_private(value):
        return why
    if step.graph is not anchor.graph or anchor.graph is None:
        return "its input is in another graph"
    if weight.dtype not in FLOATS:
        return "weights are not float32"
    scales, shifts = bool((scale != 1).any()), bool((shift != 0).any())
    if scales and (len(weight.uses()) > 1 or weight.is_graph_output()):
        return "weights are shared with another node"
    if shifts and is_op(anchor, "ConvTranspose"):
        return "a shift before a ConvTranspose is not one per channel behind it"
    if shifts and is_op(anchor, "Conv") and _pads(anchor):
        return "the Conv pads with zeros, which are not shifted"
    if geometry[1] > 2 and dims(x) is not None and len(dims(x) or ()) != geometry[1]:
        return "its input has another rank"
    bias: Array | None = None
    if shifts:
        made = _bias(anchor, _moved(anchor, array, shift), array.dtype)
        if isinstance(made, str):
            return made
        bias = made
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = _scaled(anchor, array, scale) if scales else array
    if not all_finite(scaled, *([] if bias is None else [bias])):
        return "the folded weights are not finite"
    if scales:
        weight.const_value = ir.Tensor(scaled, name=weight.name)
    if bias is not None:
        old = input_at(anchor, 2)
        if len(anchor.inputs) < 3:
            anchor.resize_inputs(3)
        anchor.replace_input_with(2, new_constant(model, anchor.graph, f"{anchor.outputs[0].name}.bias", bias))
        drop_if_unused(old)
    record_absorbed(anchor, step)
    others = step.inputs
    anchor.replace_input_with(0, x)
    anchor.graph.remove(step, safe=True)
    drop_if_unused(*others)
    return True


def _rewrite(model: ir.Model) -> Rewritten:
    count, refusals = 0, []
    for anchor in nodes_of(model):
        if not is_op(anchor, *ANCHORS) or not is_constant(input_at(anchor, 1)):
            continue
        while (value := input_at(anchor, 0)) is not None and (step := value.producer()) is not None:
            outcome = _fold(model, anchor, step)
            if outcome is not True:
                if isinstance(outcome, str):
                    refusals.append(Refusal(node_key(step), outcome))
                break
            count += 1
    return Rewritten(count=count, refusals=tuple(refusals))


FOLD_AFFINE_BEFORE = Pass(
    name="fold-affine-before",
    rewrite=_rewrite,
    tolerance=1e-4,
    gain="no pass over the input of a Conv or MatMul to scale and shift it",
)
