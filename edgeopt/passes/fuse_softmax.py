"""Softmax spelled out or wrapped -> Softmax or LogSoftmax.

e = exp(x - max(x));  e / sum(e) = Softmax(x)                  also e = exp(x), with max and sum over the last axis
Log(Softmax(x)) = LogSoftmax(x), also along another axis
Transpose(Softmax(Transpose(x, p), axis = a), q) = Softmax(x, axis = p[a]) where q undoes p
Reshape(Softmax(Flatten(x), axis = last)) = Softmax(x, axis = last) where the last axis and the shape are those of x
(the converter of old opsets, in which Softmax flattened its input, writes the latter)

1. x is float32. For the chain its axis is the last one, of known rank, and max and sum keep their dims: along other
   axes onnxruntime's Softmax transposes twice and is slower than the chain.
2. No value between x and the result is read elsewhere or is a graph output.
3. The last sizes before and after a Flatten or Reshape are known and equal, or a Flatten at the last axis keeps them;
   the final shape is that of x: known, or computed by Shape(x).

Where exp(x) alone overflows, the chain gives NaN and Softmax does not. The Log of a probability that is 0 gives minus
infinity, LogSoftmax the finite number that is right.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeopt.passes._chain import fuse, remove, rewrite_each
from edgeopt.passes._graph import attr_int, attr_ints, dims, input_at, integers, is_op, static_shape
from edgeopt.passes._pass import Pass


def _along(node: ir.Node | None, op: str) -> tuple[ir.Value, int] | None:
    """Input and axis of a reduction over one axis that keeps its dims; the axis counted from the front."""
    if node is None or not is_op(node, op) or not attr_int(node, "keepdims", 1):
        return None
    source, axes = input_at(node, 0), integers(input_at(node, 1))
    shape = dims(source)
    if source is None or axes is None or len(axes) != 1 or shape is None or not -len(shape) <= axes[0] < len(shape):
        return None
    return source, axes[0] % len(shape)


def _chain(model: ir.Model, node: ir.Node) -> bool | str:
    if not is_op(node, "Div") or (divisor := input_at(node, 1)) is None:
        return False
    add = divisor.producer()
    total = _along(add, "ReduceSum")
    if total is None or add is None or total[0] is not node.inputs[0]:
        return False
    exp = total[0].producer()
    x = input_at(exp, 0) if exp is not None and is_op(exp, "Exp") else None
    if x is None or exp is None or x.dtype != ir.DataType.FLOAT:
        return False
    axis, before = total[1], list[ir.Node]()
    subtract = x.producer()
    if subtract is not None and is_op(subtract, "Sub"):
        shifted, peak = subtract.inputs
        top = peak.producer() if peak is not None else None
        if shifted is not None and top is not None and _along(top, "ReduceMax") == (shifted, axis):
            x, before = shifted, [top, subtract]
    shape = dims(x)
    if shape is None:
        return False
    if axis != len(shape) - 1:
        return "along this axis the chain is faster"
    return fuse(model, [*before, exp, add, node], "Softmax", [x], {"axis": -1}) or True


def _log(model: ir.Model, node: ir.Node) -> bool | str:
    source = input_at(node, 0)
    softmax = source.producer() if source is not None and is_op(node, "Log") else None
    if softmax is None or not is_op(softmax, "Softmax") or (x := input_at(softmax, 0)) is None:
        return False
    if x.dtype != ir.DataType.FLOAT:
        return "type is not float32"
    return fuse(model, [softmax, node], "LogSoftmax", [x], {"axis": attr_int(softmax, "axis", -1)}) or True


def _transposed(model: ir.Model, node: ir.Node) -> bool | str:
    if not is_op(node, "Transpose") or (source := input_at(node, 0)) is None:
        return False
    middle = source.producer()
    inner = input_at(middle, 0) if middle is not None and is_op(middle, "Softmax", "LogSoftmax") else None
    first = inner.producer() if inner is not None else None
    if middle is None or first is None or not is_op(first, "Transpose") or (x := input_at(first, 0)) is None:
        return False
    there, back = attr_ints(first, "perm"), attr_ints(node, "perm")
    if there is None or back is None or [there[axis] for axis in back] != list(range(len(there))):
        return False
    axis = there[attr_int(middle, "axis", -1)]
    return fuse(model, [first, middle, node], middle.op_type, [x], {"axis": axis}) or True


def _flattened(model: ir.Model, node: ir.Node) -> bool | str:
    if not is_op(node, "Reshape") or (source := input_at(node, 0)) is None:
        return False
    middle = source.producer()
    inner = input_at(middle, 0) if middle is not None and is_op(middle, "Softmax", "LogSoftmax") else None
    first = inner.producer() if inner is not None else None
    if inner is None or middle is None or first is None or not is_op(first, "Flatten", "Reshape"):
        return False
    x = input_at(first, 0)
    shape, flat = dims(x), dims(inner)
    if x is None or shape is None or not shape:
        return False
    rank = 2 if is_op(first, "Flatten") else len(flat or ())
    if not rank or attr_int(middle, "axis", -1) not in (-1, rank - 1):
        return False
    at_last = is_op(first, "Flatten") and attr_int(first, "axis", 1) in (-1, len(shape) - 1)
    if not at_last and not (flat and shape[-1] is not None and shape[-1] == flat[-1]):
        return False
    if not _shape_of(node, x):
        return "the shape behind it is not known to be the one before"
    target = input_at(node, 1)
    if why := fuse(model, [first, middle, node], middle.op_type, [x], {"axis": -1}):
        return why
    maker = target.producer() if target is not None else None
    if target is not None and maker is not None and not target.uses() and not target.is_graph_output():
        remove([maker])
    return True


def _shape_of(reshape: ir.Node, x: ir.Value) -> bool:
    target = input_at(reshape, 1)
    maker = target.producer() if target is not None else None
    if maker is not None and is_op(maker, "Shape") and not maker.attributes and maker.inputs[0] is x:
        return True
    shape = static_shape(x)
    return shape is not None and static_shape(reshape.outputs[0]) == shape


FUSE_SOFTMAX = Pass(
    name="fuse-softmax",
    rewrite=rewrite_each(_chain, _log, _transposed, _flattened),
    tolerance=1e-5,
    gain="one pass over the tensor instead of two to five",
)
