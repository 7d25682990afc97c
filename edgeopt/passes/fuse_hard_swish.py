"""HardSwish in its spellings: x HardSigmoid(x; 1/6, 1/2) = x clip(x + 3, 0, 6) / 6 = HardSwish(x).

1. x is float32. The clipped value is p x + q with numbers, clipped to 0 and h; factors of the product stand in any
   order, as Mul or Div, before or after: x (clip / 6), (x clip) / 6, (x / 6) clip, ...
2. Numbers agree within 1e-5: p / h = 1/6 and q / h = 1/2.
3. No value between x and the result is read elsewhere or is a graph output.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeopt.passes._chain import fuse, near, product, rewrite_each
from edgeopt.passes._graph import attr_float, input_at, is_op
from edgeopt.passes._pass import Pass
from edgeopt.passes._polynomial import is_polynomial, polynomial, sources
from edgeopt.passes.fuse_clip import bounds


def _from_hard_sigmoid(model: ir.Model, node: ir.Node) -> bool | str:
    x = input_at(node, 0)
    if x is None or x.dtype != ir.DataType.FLOAT or not is_op(node, "HardSigmoid"):
        return False
    if not (near(attr_float(node, "alpha", 0.2), 1 / 6) and near(attr_float(node, "beta", 0.5), 0.5)):
        return False
    rest = product(node.outputs[0], x, 1.0)
    return False if rest is None else fuse(model, [node, *rest], "HardSwish", [x]) or True


def _from_clip(model: ir.Model, node: ir.Node) -> bool | str:
    clipped = bounds(node)
    if clipped is None or clipped.source.dtype != ir.DataType.FLOAT or clipped.low != 0 or not 0 < clipped.high < 1e6:
        return False
    high = clipped.high
    for x in sources(clipped.source, 2)[1:]:
        found = polynomial(clipped.source, x, 1)
        if found is None or not is_polynomial(found[0], {1: high / 6, 0: high / 2}):
            continue
        rest = product(node.outputs[0], x, 1 / high)
        if rest is not None:
            return fuse(model, [*found[1], node, *rest], "HardSwish", [x]) or True
    return False


FUSE_HARD_SWISH = Pass(
    name="fuse-hard-swish",
    rewrite=rewrite_each(_from_hard_sigmoid, _from_clip),
    tolerance=1e-5,
    gain="two passes over the tensor instead of four",
)
