"""Instance normalization spelled out (Ulyanov et al., 2016, arXiv:1607.08022) -> InstanceNormalization.

d = x - mean(x);  d / sqrt(mean(d^2) + e) * scale + shift, means over all spatial axes = InstanceNormalization(x)

Group normalization reshapes to [N, G, rest] and back: there the last axis is the only spatial one.

1. x is float32 [N, C, spatial...] with a known C; both means keep their dims and run over all axes from 2 on. With one
   spatial axis alone the chain may as well be a layer normalization: it is taken only between two Reshapes.
2. scale and shift are constants, one value per channel; where they are absent, ones and zeros are made.
3. e is a positive number. No value between x and the result is read elsewhere or is a graph output.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeopt.passes._chain import fuse, rewrite_each, why_not_fuse
from edgeopt.passes._graph import dims, is_op, new_constant
from edgeopt.passes._norm import affine, normalized
from edgeopt.passes._pass import Pass


def _match(model: ir.Model, node: ir.Node) -> bool | str:
    if not is_op(node, "Sqrt", "Pow") or (found := normalized(node)) is None or not found.centered:
        return False
    shape = dims(found.x)
    assert shape is not None
    if len(shape) < 3 or found.axes != tuple(range(2, len(shape))):
        return False
    last = found.nodes[-1]
    if len(shape) == 3 and not _between_reshapes(found.x, last):
        return False
    channels = shape[1]
    if found.x.dtype != ir.DataType.FLOAT:
        return "type is not float32"
    if channels is None:
        return "the number of channels is not known"
    if (after := affine(found, len(shape), (1,), (channels,))) is None:
        return "scale or shift vary along another axis"
    nodes = [*found.nodes, *after.nodes]
    if why := why_not_fuse(nodes):
        return why
    graph, name = node.graph, node.outputs[0].name
    assert graph is not None
    scale = np.ones(channels, np.float32) if after.scale is None else after.scale
    shift = np.zeros(channels, np.float32) if after.shift is None else after.shift
    inputs = [
        found.x,
        new_constant(model, graph, f"{name}_scale", scale),
        new_constant(model, graph, f"{name}_shift", shift),
    ]
    fuse(model, nodes, "InstanceNormalization", inputs, {"epsilon": found.epsilon})
    return True


def _between_reshapes(x: ir.Value, last: ir.Node) -> bool:
    users = [user for user, _ in last.outputs[0].uses()]
    return is_op(x.producer(), "Reshape") and bool(users) and all(is_op(user, "Reshape") for user in users)


FUSE_INSTANCE_NORM = Pass(
    name="fuse-instance-norm",
    rewrite=rewrite_each(_match),
    tolerance=1e-4,  # the order of sums changes
    gain="one pass over the tensor instead of seven to nine",
)
