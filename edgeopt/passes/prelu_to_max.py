"""PRelu(x, s) = max(x, s x) where no slope is above 1, and min(x, s x) where none is below.

onnxruntime multiplies and compares with vector instructions; its PRelu goes element by element.

1. x and s are float32, s is a constant, finite, with all slopes <= 1 or all >= 1.
2. PRelu broadcasts s to x and never x to s: the rank of x is known and s has no more axes, nor larger ones.

An infinite x times a slope of 0 is no number: such a slope is refused.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeopt.passes._chain import fuse, insert, rewrite_each
from edgeopt.passes._graph import all_finite, constant, dims, input_at, is_op
from edgeopt.passes._pass import Pass, timed_on_x86


def _match(model: ir.Model, node: ir.Node) -> bool | str:
    x, slopes = input_at(node, 0), input_at(node, 1)
    if not is_op(node, "PRelu") or x is None:
        return False
    array = constant(slopes)
    if array is None:
        return "slopes are not constant"
    if x.dtype != ir.DataType.FLOAT:
        return "type is not float32"
    shape = dims(x)
    if shape is None or array.ndim > len(shape):
        return "the shape of its input is not known"
    if any(d not in (1, known) for d, known in zip(reversed(array.shape), reversed(shape), strict=False)):
        return "the shape of its input is not known"
    if not array.size or not all_finite(array) or bool((array == 0).any()):
        return "a slope is 0 or infinite"
    if bool((array <= 1).all()):
        op = "Max"
    elif bool((array >= 1).all()):
        op = "Min"
    else:
        return "some slopes are below 1 and some above"
    scaled = insert(model, node, "Mul", [x, slopes], shape=x.shape)
    return fuse(model, [node], op, [x, scaled]) or True


PRELU_TO_MAX = Pass(
    name="prelu-to-max",
    rewrite=rewrite_each(_match),
    tolerance=1e-6,
    gain="two vectorized operators instead of one that is not",
    refuses=timed_on_x86,
)
