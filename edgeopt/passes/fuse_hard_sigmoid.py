"""clip(p x + q, 0, h) s = HardSigmoid(x; alpha = s p, beta = s q), where s h = 1.

Spelled as Add 3, Clip to 0..6, Div by 6, or as Mul, Add, Clip to 0..1.

1. x is float32; p, q, s are numbers, in at most one Mul or Div and one Add or Sub before, and one Mul or Div after.
2. s h is 1 within 1e-5, and there is at least one Add, Sub, Mul or Div.
3. Without a node after the Clip: when the operator before is a Conv, ConvTranspose, Gemm or BatchNormalization that
   feeds nothing else, p and q fold into its weights, and Clip alone is better, since int8 swallows it.
4. No value between x and the result is read elsewhere or is a graph output.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeopt.passes._chain import affine_step, finite, fuse, near, rewrite_each
from edgeopt.passes._graph import is_op, why_not_private
from edgeopt.passes._pass import Pass
from edgeopt.passes.fuse_clip import bounds

_FOLDING = ("Conv", "ConvTranspose", "Gemm", "BatchNormalization")


def _before(value: ir.Value) -> tuple[ir.Value, float, float, list[ir.Node]]:
    """(x, p, q, nodes) with value = p x + q, going back over one shift and then one factor."""
    p, q, nodes = 1.0, 0.0, list[ir.Node]()
    for shift in (True, False):
        node = value.producer()
        step = affine_step(node)
        if node is None or step is None or (nodes and why_not_private(value)):
            continue
        if shift != is_op(node, "Add", "Sub"):
            continue
        source, factor, offset = step
        p, q, value = p * factor, q + p * offset, source
        nodes.insert(0, node)
    return value, p, q, nodes


def _after(node: ir.Node, high: float) -> ir.Node | None:
    """The Mul or Div behind a Clip that brings ``high`` to 1."""
    for user, _ in node.outputs[0].uses():
        step = affine_step(user)
        if step is not None and step[0] is node.outputs[0] and step[2] == 0 and near(step[1] * high, 1.0):
            return user
    return None


def _match(model: ir.Model, node: ir.Node) -> bool | str:
    clipped = bounds(node)
    if clipped is None or clipped.source.dtype != ir.DataType.FLOAT or clipped.low != 0 or not 0 < clipped.high < 1e6:
        return False
    x, p, q, nodes = _before(clipped.source)
    last = _after(node, clipped.high)
    if last is None:
        if not nodes or not near(clipped.high, 1.0):
            return False
        if is_op(x.producer(), *_FOLDING) and why_not_private(x) is None:
            return "its numbers fold into the operator before"
    alpha, beta = p / clipped.high, q / clipped.high
    if not finite(alpha, beta):
        return False
    chain = [*nodes, node, *([last] if last is not None else [])]
    return fuse(model, chain, "HardSigmoid", [x], {"alpha": alpha, "beta": beta}) or True


FUSE_HARD_SIGMOID = Pass(
    name="fuse-hard-sigmoid",
    rewrite=rewrite_each(_match),
    tolerance=1e-5,
    gain="one pass over the tensor instead of three",
)
