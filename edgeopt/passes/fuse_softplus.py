"""Where(b x > t, x, Softplus(b x) / b) = Softplus(b x) / b: the guard against overflow that PyTorch writes goes.

Softplus has one itself.

From b x = 15 on, Softplus(b x) is b x in float32.

1. x is float32; the threshold t is a number, 15 or more; the test is Greater or GreaterOrEqual.
2. b x is one Mul or Div by a number b above 0, and / b undoes it within 1e-5; without a b both are x.
3. The test feeds nothing else and is no graph output. The Softplus may be read elsewhere.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeopt.passes._chain import affine_step, near, number, rewrite_each
from edgeopt.passes._graph import input_at, is_op, record_absorbed, replace_node, why_not_private
from edgeopt.passes._pass import Pass

_THRESHOLD = 15.0


def _softplus_of(value: ir.Value, x: ir.Value) -> ir.Value | None:
    """b x where the value is Softplus(b x) / b, else None."""
    factor, node = 1.0, value.producer()
    if node is not None and not is_op(node, "Softplus") and (step := affine_step(node)) is not None and step[2] == 0:
        factor, node = step[1], step[0].producer()
    if node is None or not is_op(node, "Softplus") or (argument := input_at(node, 0)) is None:
        return None
    if argument is x:
        return argument if factor == 1 else None
    scaled = affine_step(argument.producer())
    if scaled is None or scaled[0] is not x or scaled[2] != 0 or not scaled[1] > 0:
        return None
    return argument if near(scaled[1] * factor, 1.0) else None


def _match(model: ir.Model, node: ir.Node) -> bool | str:
    condition, x, value = (input_at(node, i) for i in range(3))
    test = condition.producer() if condition is not None else None
    if condition is None or x is None or value is None or test is None or not is_op(node, "Where"):
        return False
    argument = _softplus_of(value, x)
    threshold = number(input_at(test, 1), argument) if is_op(test, "Greater", "GreaterOrEqual") else None
    if argument is None or test.inputs[0] is not argument or threshold is None or not threshold >= _THRESHOLD:
        return False
    if x.dtype != ir.DataType.FLOAT:
        return "type is not float32"
    if why_not_private(condition) or test.graph is not node.graph:
        return "a value inside it has another consumer"
    producer = value.producer()
    assert producer is not None
    if why := replace_node(node, value):
        return why
    record_absorbed(producer, node)
    if test.graph is not None:
        test.graph.remove(test, safe=True)
    return True


FUSE_SOFTPLUS = Pass(
    name="fuse-softplus",
    rewrite=rewrite_each(_match),
    tolerance=1e-6,
    gain="no comparison and no selection behind a Softplus",
)
