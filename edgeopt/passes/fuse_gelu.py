"""GELU in its spellings -> Gelu of opset 20 (Hendrycks and Gimpel, 2016, arXiv:1606.08415).

x / 2 (1 + erf(x / sqrt(2)))                                  = Gelu(x)
x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))             = Gelu(x; approximate = "tanh")

1. x is float32. The argument of erf or tanh is computed from x by Mul, Div, Add, Sub, Neg and Pow with numbers, in any
   order: it is compared as a polynomial, each coefficient within 1e-5.
2. The factors x, 1/2 and the sum are multiplied in any order; 1/2 may also stand inside the sum.
3. No value between x and the result is read elsewhere or is a graph output.

onnxruntime itself joins an Add before Gelu to BiasGelu; of the spellings it knows some.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from edgeopt.passes._chain import fuse, near, product, rewrite_each, with_number
from edgeopt.passes._graph import input_at, is_op
from edgeopt.passes._pass import Pass
from edgeopt.passes._polynomial import is_polynomial, polynomial, sources

_CUBIC = math.sqrt(2 / math.pi)
_WANTED = {
    "Erf": ("none", {1: math.sqrt(0.5)}, 1),
    "Tanh": ("tanh", {1: _CUBIC, 3: _CUBIC * 0.044715}, 3),
}


def _sum(node: ir.Node) -> list[tuple[list[ir.Node], float]]:
    """What may follow erf or tanh: + 1, or * 1/2 and + 1/2; with the factor that is then still to come."""
    found: list[tuple[list[ir.Node], float]] = []
    for user, _ in node.outputs[0].uses():
        step = with_number(user, "Add")
        if step is not None and near(step[1], 1.0):
            found.append(([user], 0.5))
        elif (scaled := with_number(user, "Mul")) is not None and near(scaled[1], 0.5):
            for add, _ in user.outputs[0].uses():
                step = with_number(add, "Add")
                if step is not None and near(step[1], 0.5):
                    found.append(([user, add], 1.0))
    return found


def _match(model: ir.Model, node: ir.Node) -> bool | str:
    if not is_op(node, *_WANTED) or (argument := input_at(node, 0)) is None or argument.dtype != ir.DataType.FLOAT:
        return False
    approximate, wanted, degree = _WANTED[node.op_type]
    tails = _sum(node)
    if not tails:
        return False
    for x in sources(argument, 5)[1:]:
        found = polynomial(argument, x, degree)
        if found is None or not is_polynomial(found[0], wanted):
            continue
        for middle, factor in tails:
            rest = product(middle[-1].outputs[0], x, factor)
            if rest is not None:
                nodes = [*found[1], node, *middle, *rest]
                return fuse(model, nodes, "Gelu", [x], {"approximate": approximate}) or True
    return False


FUSE_GELU = Pass(
    name="fuse-gelu",
    rewrite=rewrite_each(_match),
    tolerance=1e-5,
    gain="one pass over the tensor instead of five to nine",
)
