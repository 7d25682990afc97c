"""Sigmoid spelled out: 1 / (1 + exp(-x)) = Sigmoid(x), and y / (1 + exp(-x)) = y Sigmoid(x).

1. x is float32; -x is Neg or Mul by -1, and the 1s are numbers that keep the shape.
2. The quotient is Reciprocal, Div(1, ...) or Div(y, ...).
3. Neither the exponential nor the sum is read elsewhere or is a graph output.

Where exp(-x) overflows, both are 0.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeopt.passes._chain import affine_step, fuse, number, rewrite_each, why_not_fuse, with_number
from edgeopt.passes._graph import input_at, is_op
from edgeopt.passes._pass import Pass


def _match(model: ir.Model, node: ir.Node) -> bool | str:
    if not is_op(node, "Reciprocal", "Div"):
        return False
    total = input_at(node, 0 if is_op(node, "Reciprocal") else 1)
    add = total.producer() if total is not None else None
    summed = with_number(add, "Add")
    exp = summed[0].producer() if summed is not None else None
    power = input_at(exp, 0) if exp is not None and is_op(exp, "Exp") else None
    negate = power.producer() if power is not None else None
    step = affine_step(negate)
    if summed is None or summed[1] != 1 or step is None or step[1:] != (-1.0, 0.0):
        return False
    assert add is not None
    assert exp is not None
    assert negate is not None
    x, nodes = step[0], [negate, exp, add]
    if x.dtype != ir.DataType.FLOAT:
        return False
    dividend = input_at(node, 0) if is_op(node, "Div") else None
    if dividend is None or number(dividend, x) == 1:
        return fuse(model, [*nodes, node], "Sigmoid", [x]) or True
    if why := why_not_fuse([*nodes, node]):
        return why
    # The sum becomes the Sigmoid, and the quotient a product.
    fuse(model, nodes, "Sigmoid", [x])
    node.op_type = "Mul"
    return True


FUSE_SIGMOID = Pass(
    name="fuse-sigmoid",
    rewrite=rewrite_each(_match),
    tolerance=1e-5,
    gain="one vectorized operator instead of four",
)
