"""HardSigmoid(y; alpha, beta) = clip(alpha y + beta, 0, 1), with alpha and beta folded into the Conv or Gemm before.

y = W x + b   ->   clip((alpha W) x + (alpha b + beta), 0, 1)

In float a runtime joins Clip to the operator as well as HardSigmoid. In int8 the bounds of Clip cost nothing: they are
those of the grid. The gate of a squeeze-and-excite block stays int8 and is rounded once, not before and behind a
HardSigmoid (+1.2 dB on a text recognizer).

Refused, besides what ``fold_into`` refuses: anything but float32.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeopt.model import NODE_KEY, node_key
from edgeopt.passes._chain import rewrite_each
from edgeopt.passes._channels import Affine, anchor_before, channels_and_rank, fold_into
from edgeopt.passes._graph import attr_float, is_op, new_constant
from edgeopt.passes._pass import Pass


def _match(model: ir.Model, node: ir.Node) -> bool | str:
    value = node.inputs[0] if is_op(node, "HardSigmoid") else None
    anchor = anchor_before(value)
    if value is None or anchor is None or is_op(anchor, "MatMul") or value.dtype != ir.DataType.FLOAT:
        return False
    size = channels_and_rank(anchor)
    if isinstance(size, str):
        return size
    graph = node.graph
    assert graph is not None
    affine = Affine(
        scale=np.full(size[0], attr_float(node, "alpha", 0.2)), shift=np.full(size[0], attr_float(node, "beta", 0.5))
    )
    line = ir.node("Identity", [value])  # stands for alpha y + beta until it is folded
    line.metadata_props[NODE_KEY] = node_key(node)
    out = line.outputs[0]
    out.name, out.type, out.shape = value.name, value.type, value.shape
    graph.insert_before(node, line)
    node.replace_input_with(0, out)
    if why := fold_into(model, anchor, line, affine):
        node.replace_input_with(0, value)
        graph.remove(line, safe=True)
        return why
    bounds = [new_constant(model, graph, f"{node.outputs[0].name}_{n}", np.array(b, np.float32)) for n, b in _BOUNDS]
    node.op_type = "Clip"
    node.attributes.clear()
    node.resize_inputs(3)
    for index, bound in enumerate(bounds, start=1):
        node.replace_input_with(index, bound)
    return True


_BOUNDS = (("min", 0.0), ("max", 1.0))

FOLD_HARD_SIGMOID = Pass(
    name="fold-hard-sigmoid",
    rewrite=rewrite_each(_match),
    tolerance=1e-4,
    gain="bounds, which int8 has for nothing, in place of a function between two roundings",
)
