"""Softplus and Mish spelled with operators that onnxruntime computes with vector instructions.

Softplus(x) = log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|))                  (the latter never overflows)
Mish(x) = x tanh(Softplus(x)) = x n / (n + 2), n = e (e + 2), e = exp(min(x, 20))      (Misra, 2019, arXiv:1908.08681)

since tanh(log(1 + e)) = ((1 + e)^2 - 1) / ((1 + e)^2 + 1); from x = 20 on the quotient is 1 in float32.

1. x is float32.
2. Mish is the operator, or x times Tanh of a Softplus of x. Softplus and Tanh then feed nothing else.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeopt.passes._chain import fuse, insert, operands, rewrite_each, why_not_fuse
from edgeopt.passes._graph import input_at, is_op, new_constant
from edgeopt.passes._pass import Pass, timed_on_x86

_SATURATED = 20.0


def _constant(model: ir.Model, node: ir.Node, name: str, value: float) -> ir.Value:
    assert node.graph is not None
    return new_constant(model, node.graph, f"{node.outputs[0].name}_{name}", np.array(value, np.float32))


def _mish_nodes(node: ir.Node) -> tuple[ir.Value, list[ir.Node]] | None:
    if is_op(node, "Mish"):
        x = input_at(node, 0)
        return None if x is None else (x, [node])
    if is_op(node, "Mul"):
        for x, other in operands(node):
            tanh = other.producer()
            inner = input_at(tanh, 0) if tanh is not None and is_op(tanh, "Tanh") else None
            softplus = inner.producer() if inner is not None else None
            if tanh is not None and softplus is not None and is_op(softplus, "Softplus") and softplus.inputs[0] is x:
                return x, [softplus, tanh, node]
    return None


def _mish(model: ir.Model, node: ir.Node) -> bool | str:
    found = _mish_nodes(node)
    if found is None:
        return False
    x, nodes = found
    if x.dtype != ir.DataType.FLOAT:
        return "type is not float32"
    if why := why_not_fuse(nodes):
        return why
    two = _constant(model, node, "two", 2.0)
    bounded = insert(model, node, "Min", [x, _constant(model, node, "saturated", _SATURATED)], shape=x.shape)
    e = insert(model, node, "Exp", [bounded], shape=x.shape)
    n = insert(model, node, "Mul", [e, insert(model, node, "Add", [e, two], shape=x.shape)], shape=x.shape)
    share = insert(model, node, "Div", [n, insert(model, node, "Add", [n, two], shape=x.shape)], shape=x.shape)
    return fuse(model, nodes, "Mul", [x, share]) or True


def _softplus(model: ir.Model, node: ir.Node) -> bool | str:
    if not is_op(node, "Softplus") or (x := input_at(node, 0)) is None:
        return False
    if x.dtype != ir.DataType.FLOAT:
        return "type is not float32"
    one = _constant(model, node, "one", 1.0)
    size = insert(model, node, "Abs", [x], shape=x.shape)
    e = insert(model, node, "Exp", [insert(model, node, "Neg", [size], shape=x.shape)], shape=x.shape)
    rest = insert(model, node, "Log", [insert(model, node, "Add", [e, one], shape=x.shape)], shape=x.shape)
    positive = insert(model, node, "Relu", [x], shape=x.shape)
    return fuse(model, [node], "Add", [positive, rest]) or True


def _rewrite_order(model: ir.Model, node: ir.Node) -> bool | str:
    """A Softplus inside a Mish waits for the Mish."""
    if is_op(node, "Softplus"):
        for tanh, _ in node.outputs[0].uses():
            if is_op(tanh, "Tanh") and any(_mish_nodes(user) for user, _ in tanh.outputs[0].uses()):
                return False
    return _softplus(model, node)


SPELL_SOFTPLUS = Pass(
    name="spell-softplus",
    rewrite=rewrite_each(_mish, _rewrite_order),
    tolerance=1e-5,
    gain="vectorized operators instead of one that goes element by element",
    refuses=timed_on_x86,
)
