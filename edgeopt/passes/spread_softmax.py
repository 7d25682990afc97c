"""Softmax along an inner axis, spelled out: e = exp(x - max(x)), e / sum(e); LogSoftmax: x - max(x) - log(sum(e)).

onnxruntime's operator works along the last axis only and transposes twice for any other one.

1. x is float32 of known rank, and the axis is not the last one.
2. At least 16 values follow the axis, as far as the sizes are known: [N, C, 1, 1] costs nothing to transpose.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from edgeopt.passes._chain import fuse, insert, rewrite_each
from edgeopt.passes._graph import attr_int, dims, input_at, is_op, new_constant
from edgeopt.passes._pass import Pass, timed_on_x86

_MIN_INNER = 16
"""Values behind the axis from which on the reductions work on whole vectors."""


def _match(model: ir.Model, node: ir.Node) -> bool | str:
    if not is_op(node, "Softmax", "LogSoftmax") or (x := input_at(node, 0)) is None:
        return False
    shape, axis = dims(x), attr_int(node, "axis", -1)
    if shape is None or x.shape is None:
        return "the shape of its input is not known"
    axis %= len(shape)
    inner = shape[axis + 1 :]
    if not inner:
        return False
    if x.dtype != ir.DataType.FLOAT:
        return "type is not float32"
    if math.prod(d for d in inner if d is not None) < _MIN_INNER:
        return "few values follow its axis"
    graph, out = node.graph, node.outputs[0]
    assert graph is not None
    axes = new_constant(model, graph, f"{out.name}_axes", np.array([axis], np.int64))
    small = ir.Shape([1 if i == axis else d for i, d in enumerate(x.shape)])
    peak = insert(model, node, "ReduceMax", [x, axes], {"keepdims": 1}, shape=small)
    shifted = insert(model, node, "Sub", [x, peak], shape=x.shape)
    e = insert(model, node, "Exp", [shifted], shape=x.shape)
    total = insert(model, node, "ReduceSum", [e, axes], {"keepdims": 1}, shape=small)
    if is_op(node, "Softmax"):
        return fuse(model, [node], "Div", [e, total]) or True
    return fuse(model, [node], "Sub", [shifted, insert(model, node, "Log", [total], shape=small)]) or True


SPREAD_SOFTMAX = Pass(
    name="spread-softmax",
    rewrite=rewrite_each(_match),
    tolerance=1e-5,
    gain="no transposes around a Softmax along an inner axis",
    refuses=timed_on_x86,
)
