"""Relu and LeakyRelu spelled with comparisons, and PRelu with one slope for all -> Relu or LeakyRelu.

Where(x > 0, x, 0) = Relu(x)           Where(x > 0, x, a x) = LeakyRelu(x; a), also with >=, <, <= and sides swapped
Max(x, a x) = LeakyRelu(x; a) for 0 < a < 1                 Min(x, a x) = LeakyRelu(x; a) for a > 1
PRelu(x, a, a, ...) = LeakyRelu(x; a)

1. x is float32, and the threshold is 0. Numbers are constants whose elements are all equal and that keep the shape.
2. a x is one Mul or Div by a number. It and the comparison feed nothing else and are no graph outputs.
3. PRelu with slopes that differ is left alone.

A comparison sends a NaN to one branch, Relu and LeakyRelu hand it on.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeopt.passes._chain import affine_step, finite, fuse, number, operands, rewrite_each
from edgeopt.passes._graph import constant, constant_bytes, input_at, is_op
from edgeopt.passes._pass import Pass

_ABOVE = ("Greater", "GreaterOrEqual")
_BELOW = ("Less", "LessOrEqual")
_MAX_SLOPES_BYTES = 1 << 20


def _scaled(value: ir.Value, x: ir.Value) -> tuple[float, list[ir.Node]] | None:
    """(a, nodes) when the value is a * x with a number a; 0 counts as one."""
    if number(value, x) == 0:
        return 0.0, []
    node = value.producer()
    step = affine_step(node)
    if node is None or step is None or step[0] is not x or step[2] != 0:
        return None
    return step[1], [node]


def _emit(model: ir.Model, nodes: list[ir.Node], x: ir.Value, slope: float) -> bool | str:
    if x.dtype != ir.DataType.FLOAT or not finite(slope):
        return False
    if slope == 0:
        return fuse(model, nodes, "Relu", [x]) or True
    return fuse(model, nodes, "LeakyRelu", [x], {"alpha": slope}) or True


def _where(model: ir.Model, node: ir.Node) -> bool | str:
    condition, then, otherwise = (input_at(node, i) for i in range(3))
    test = condition.producer() if condition is not None else None
    if then is None or otherwise is None or test is None or not is_op(node, "Where"):
        return False
    if not is_op(test, *_ABOVE, *_BELOW):
        return False
    left, right = test.inputs
    if left is None or right is None:
        return False
    above = is_op(test, *_ABOVE)
    if number(right, left) == 0:
        x = left
    elif number(left, right) == 0:
        x, above = right, not above
    else:
        return False
    kept, other = (then, otherwise) if above else (otherwise, then)
    if kept is not x or (found := _scaled(other, x)) is None:
        return False
    return _emit(model, [test, *found[1], node], x, found[0])


def _extremum(model: ir.Model, node: ir.Node) -> bool | str:
    if not is_op(node, "Max", "Min"):
        return False
    for x, other in operands(node):
        found = _scaled(other, x)
        if found is None or not found[1]:
            continue
        slope, nodes = found
        if (0 < slope < 1) if is_op(node, "Max") else slope > 1:
            return _emit(model, [*nodes, node], x, slope)
    return False


def _prelu(model: ir.Model, node: ir.Node) -> bool | str:
    x, slopes = input_at(node, 0), input_at(node, 1)
    if x is None or not is_op(node, "PRelu") or constant_bytes(slopes) > _MAX_SLOPES_BYTES:
        return False
    array = constant(slopes)
    if array is None or not array.size:
        return False
    # PRelu broadcasts its slopes to x and never x to its slopes: their shape does not matter.
    slope = array.reshape(-1)[0]
    if not bool((array == slope).all()):
        return "slopes differ"
    return _emit(model, [node], x, float(slope))


FUSE_LEAKY_RELU = Pass(
    name="fuse-leaky-relu",
    rewrite=rewrite_each(_where, _extremum, _prelu),
    tolerance=1e-6,
    gain="one fast operator that joins the one before, for a comparison or a slow PRelu",
)
