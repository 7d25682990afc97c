"""RMS normalization (Zhang and Sennrich, 2019, arXiv:1910.07467) in the one spelling that onnxruntime joins itself.

x * Reciprocal(Sqrt(ReduceMean(x * x) + e)) * scale = Div(x, Sqrt(ReduceMean(Pow(x, 2)) + e)) * scale

onnxruntime makes one operator of the latter when it loads the model. ONNX has an operator of its own from opset 23 on.

1. x is float32; the mean runs over the last axis, keeps its dims, and nothing is subtracted from x.
2. The scale is a constant vector along that axis.
3. No value between x and the product is read elsewhere or is a graph output.
4. A chain that has this spelling already is left alone.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeopt.passes._chain import fuse, insert, rewrite_each, why_not_fuse
from edgeopt.passes._graph import dims, input_at, is_op, new_constant
from edgeopt.passes._norm import affine, normalized
from edgeopt.passes._pass import Pass

_FUSED_SPELLING = ["Pow", "ReduceMean", "Add", "Sqrt", "Div"]


def _match(model: ir.Model, node: ir.Node) -> bool | str:
    if not is_op(node, "Sqrt", "Pow") or (found := normalized(node)) is None or found.centered:
        return False
    shape = dims(found.x)
    assert shape is not None
    if found.axes != (len(shape) - 1,) or [n.op_type for n in found.nodes] == _FUSED_SPELLING:
        return False
    if found.x.dtype != ir.DataType.FLOAT:
        return "type is not float32"
    width = shape[-1]
    after = affine(found, len(shape), found.axes, (width,)) if width is not None else None
    if after is None or after.scale is None:
        return "no constant scale follows"
    if why := why_not_fuse(found.nodes):
        return why
    _respell(model, found.x, found.nodes, found.epsilon)
    return True


def _respell(model: ir.Model, x: ir.Value, nodes: list[ir.Node], epsilon: float) -> None:
    last = nodes[-1]
    graph, name = last.graph, last.outputs[0].name
    assert graph is not None
    mean = next(n for n in nodes if is_op(n, "ReduceMean"))
    axes = input_at(mean, 1)
    small = mean.outputs[0].shape
    two = new_constant(model, graph, f"{name}_two", np.array(2, np.float32))
    offset = new_constant(model, graph, f"{name}_epsilon", np.array(epsilon, np.float32))
    square = insert(model, last, "Pow", [x, two], shape=x.shape)
    mean_square = insert(model, last, "ReduceMean", [square, axes], {"keepdims": 1}, shape=small)
    total = insert(model, last, "Add", [mean_square, offset], shape=small)
    root = insert(model, last, "Sqrt", [total], shape=small)
    fuse(model, nodes, "Div", [x, root])


RESPELL_RMS_NORM = Pass(
    name="respell-rms-norm",
    rewrite=rewrite_each(_match),
    tolerance=1e-5,
    gain="a chain that the runtime joins to one pass over the tensor",
)
