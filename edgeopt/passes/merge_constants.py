"""Two steps by constants are one: (x + a) + b = x + (a + b),  (x * a) * b = x * (a b),  with - and / as + and *.

1. Add and Sub merge, and Mul and Div; the constant stands second in Sub and Div.
2. The first step feeds nothing else and is no graph output; both are in one graph.
3. The constants are float32 or float64 and broadcast to the size of one of them: nothing grows. The sum or product is
   computed in float64 and is finite; a factor is neither 0 nor so small that it would be lost.
4. Mul and Add behind a LayerNormalization over the last axes go into its scale and shift: a constant with the shape of
   the normalized axes, or one number.
5. An Add of one value per column behind a Gemm whose C is such a vector, or missing, goes into C.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeopt.model import node_key
from edgeopt.passes._graph import (
    Array,
    absorb,
    all_finite,
    attr_int,
    constant,
    dims,
    drop_if_unused,
    input_at,
    is_op,
    new_constant,
    nodes_of,
    other_outputs_used,
    why_not_private,
)
from edgeopt.passes._pass import Pass, Refusal, Rewritten

FLOATS = (np.dtype("float32"), np.dtype("float64"))
KINDS = {"Add": "sum", "Sub": "sum", "Mul": "product", "Div": "product"}


def _operand(node: ir.Node) -> tuple[ir.Value, ir.Value, Array] | None:
    """``(x, value, array)`` of a step by a constant."""
    if node.op_type not in KINDS or node.domain != "" or len(node.inputs) != 2:
        return None
    for index in (1, 0) if is_op(node, "Add", "Mul") else (1,):
        value, x = node.inputs[index], node.inputs[1 - index]
        array = constant(value)
        if array is not None and value is not None and x is not None and array.dtype in FLOATS:
            return x, value, array
    return None


def _joined(first: ir.Node, a: Array, second: ir.Node, b: Array) -> Array | str:
    try:
        shape = np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        return "the constants do not fit together"
    if shape not in (a.shape, b.shape):
        return "the joined constant would grow"
    left, right = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        if KINDS[first.op_type] == "sum":
            joined = (-left if is_op(first, "Sub") else left) + (-right if is_op(second, "Sub") else right)
        else:
            joined = (1 / left if is_op(first, "Div") else left) * (1 / right if is_op(second, "Div") else right)
        result = joined.astype(a.dtype)
    tiny = np.finfo(a.dtype).tiny
    if not all_finite(result) or (KINDS[first.op_type] == "product" and bool((np.abs(result) < tiny).any())):
        return "the joined constant is not finite or too small"
    return np.asarray(result)


def _merge(model: ir.Model, node: ir.Node) -> bool | str:
    found = _operand(node)
    source = found[0] if found is not None else None
    first = source.producer() if source is not None else None
    if found is None or source is None or first is None or node.graph is None:
        return False
    _, value, array = found
    if is_op(first, "LayerNormalization"):
        return _into_norm(model, first, node, array)
    if is_op(first, "Gemm") and is_op(node, "Add"):
        return _into_gemm(model, first, node, array)
    below = _operand(first)
    if below is None or KINDS[first.op_type] != KINDS[node.op_type] or below[2].dtype != array.dtype:
        return False
    if first.graph is not node.graph:
        return "its input is in another graph"
    if why := why_not_private(source):
        return why
    joined = _joined(first, below[2], node, array)
    if isinstance(joined, str):
        return joined
    made = new_constant(model, node.graph, f"{value.name}.joined", joined)
    x, old = below[0], below[1]
    first.op_type = "Add" if KINDS[first.op_type] == "sum" else "Mul"
    first.replace_input_with(0, x)
    first.replace_input_with(1, made)
    absorb(first, node)
    drop_if_unused(old, value)
    return True


def _into_norm(model: ir.Model, norm: ir.Node, node: ir.Node, array: Array) -> bool | str:
    """Rule 4."""
    out, scale, shift = norm.outputs[0], constant(input_at(norm, 1)), constant(input_at(norm, 2))
    if node.graph is not norm.graph or other_outputs_used(norm) or norm.graph is None:
        return "mean or deviation is read"
    if why := why_not_private(out):
        return why
    if scale is None or (input_at(norm, 2) is not None and shift is None) or scale.dtype not in FLOATS:
        return "scale or shift is not constant"
    shape = dims(input_at(norm, 0))
    axis = attr_int(norm, "axis", -1)
    if shape is None or shape[axis:] != scale.shape:
        return "the normalized axes are not known"
    k = array.astype(np.float64)
    if array.size != 1 and array.shape != scale.shape:
        return "constant is not per normalized element"
    if array.ndim > len(shape or ()):
        return "constant has more axes"
    k = k.reshape(()) if array.size == 1 else k
    before = np.zeros(scale.shape) if shift is None else shift.astype(np.float64)
    with np.errstate(all="ignore"):
        new_scale = scale * k if is_op(node, "Mul") else scale / k if is_op(node, "Div") else scale
        new_shift = _shifted(node, before, k)
        pair = np.asarray(new_scale, scale.dtype), np.asarray(new_shift, scale.dtype)
    if not all_finite(*pair):
        return "the folded constants are not finite"
    name, old = out.name, (input_at(norm, 1), input_at(norm, 2))
    if len(norm.inputs) < 3:
        norm.resize_inputs(3)
    for index, made, role in ((1, pair[0], "scale"), (2, pair[1], "shift")):
        norm.replace_input_with(index, new_constant(model, norm.graph, f"{name}.{role}", made))
    absorb(norm, node)
    drop_if_unused(*old)
    return True


def _shifted(node: ir.Node, shift: Array, k: Array) -> Array:
    if is_op(node, "Mul", "Div"):
        return np.asarray(shift * k if is_op(node, "Mul") else shift / k)
    return np.asarray(shift + k if is_op(node, "Add") else shift - k)


def _into_gemm(model: ir.Model, gemm: ir.Node, node: ir.Node, array: Array) -> bool | str:
    """Rule 5; a per-channel Add is also what ``fold-affine`` folds, which needs constant weights and this does not."""
    shape, bias = dims(gemm.outputs[0]), input_at(gemm, 2)
    if shape is None or len(shape) != 2 or shape[1] is None or gemm.graph is None or gemm.graph is not node.graph:
        return False
    columns, old = shape[1], constant(bias)
    if bias is not None and (old is None or old.shape not in ((columns,), (1, columns))):
        return "C is no constant vector"
    if "beta" in gemm.attributes and gemm.attributes["beta"].as_float() != 1:
        return "beta is not 1"
    if array.ndim > 2 or array.shape not in ((columns,), (1, columns), (), (1,), (1, 1)):
        return "constant is not per column"
    if why := why_not_private(gemm.outputs[0]):
        return why
    vector = np.broadcast_to(array.reshape(-1).astype(np.float64), (columns,))
    total = vector if old is None else vector + old.reshape(-1)
    result = np.asarray(total.astype(array.dtype))
    if not all_finite(result):
        return "the folded bias is not finite"
    if len(gemm.inputs) < 3:
        gemm.resize_inputs(3)
    gemm.replace_input_with(2, new_constant(model, gemm.graph, f"{gemm.outputs[0].name}.bias", result))
    absorb(gemm, node)
    drop_if_unused(bias)
    return True


def _rewrite(model: ir.Model) -> Rewritten:
    count, refusals = 0, []
    for node in nodes_of(model):
        if node.graph is None:
            continue
        outcome = _merge(model, node)
        if isinstance(outcome, str):
            refusals.append(Refusal(node_key(node), outcome))
        else:
            count += outcome
    return Rewritten(count=count, refusals=tuple(refusals))


MERGE_CONSTANTS = Pass(
    name="merge-constants", rewrite=_rewrite, tolerance=1e-5, gain="one pass over a tensor instead of two"
)
