"""Layer normalization spelled out (Ba et al., 2016, arXiv:1607.06450) -> LayerNormalization of opset 17.

d = x - mean(x);  d / sqrt(mean(d^2) + e) * scale + shift, means over the last axes
= LayerNormalization(x, scale, shift)

Over axis 1 of [N, C, ...] (channels first) the operator stands between two Transposes, which costs less than the chain.

1. x is float32 of known rank; both means keep their dims and run over the same axes: the last k, or axis 1 alone.
   Their sizes are known.
2. d^2 is Pow(d, 2) or Mul(d, d); the quotient is Div, Mul by a reciprocal, or multiplied out: x k + (shift - mean(x) k)
   with k = scale / sqrt(...); e is a positive number, kept as float32.
3. scale and shift are constants that vary along those axes only; without a scale, ones are made (64 Ki at most).
4. No value between x and the result is read elsewhere or is a graph output.
5. Off for targets below opset 17, which want it spelled out.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from edgeopt.model import Model
from edgeopt.passes._chain import fuse, insert, rewrite_each, why_not_fuse
from edgeopt.passes._graph import dims, is_op, new_constant
from edgeopt.passes._norm import Affine, affine, normalized
from edgeopt.passes._pass import Pass
from edgeopt.target import Target

_OPSET = 17
_MAX_ONES = 1 << 16


def _match(model: ir.Model, node: ir.Node) -> bool | str:
    if not is_op(node, "Sqrt", "Pow") or (found := normalized(node)) is None or not found.centered:
        return False
    shape = dims(found.x)
    assert shape is not None
    rank, axes = len(shape), found.axes
    channels_first = axes == (1,) and rank > 2
    if axes != tuple(range(rank - len(axes), rank)) and not channels_first:
        return False
    sizes = tuple(shape[axis] for axis in axes)
    known = tuple(size for size in sizes if size is not None)
    if found.x.dtype != ir.DataType.FLOAT:
        return "type is not float32"
    if len(known) != len(sizes):
        return "the normalized size is not known"
    if _is_group_norm(found.nodes[-1], found.x, shape):
        return False
    if (after := affine(found, rank, axes, known)) is None:
        return "scale or shift vary along another axis"
    if after.scale is None and math.prod(known) > _MAX_ONES:
        return "its scale would be a large constant of ones"
    nodes = [*found.nodes, *after.nodes]
    if why := why_not_fuse(nodes):
        return why
    parameters = _parameters(model, node, after, known)
    if not channels_first:
        axis = -len(axes)
        fuse(model, nodes, "LayerNormalization", [found.x, *parameters], {"axis": axis, "epsilon": found.epsilon})
        return True
    _between_transposes(model, nodes, found.x, parameters, found.epsilon)
    return True


def _is_group_norm(last: ir.Node, x: ir.Value, shape: tuple[int | None, ...]) -> bool:
    """[N, G, rest] between two Reshapes: fuse-instance-norm takes it, with G values of scale."""
    users = [user for user, _ in last.outputs[0].uses()]
    between = is_op(x.producer(), "Reshape") and bool(users) and all(is_op(u, "Reshape") for u in users)
    return between and len(shape) == 3 and shape[1] is not None


def _parameters(model: ir.Model, node: ir.Node, after: Affine, shape: tuple[int, ...]) -> list[ir.Value]:
    graph = node.graph
    assert graph is not None
    name = node.outputs[0].name
    scale = np.ones(shape, np.float32) if after.scale is None else after.scale
    made = [new_constant(model, graph, f"{name}_scale", scale)]
    if after.shift is not None:
        made.append(new_constant(model, graph, f"{name}_shift", after.shift))
    return made


def _between_transposes(
    model: ir.Model, nodes: list[ir.Node], x: ir.Value, parameters: list[ir.Value], epsilon: float
) -> None:
    """The chain becomes the last Transpose, before which the first one and the normalization are put."""
    shape = x.shape
    assert shape is not None
    rank = len(shape)
    there, back = [0, *range(2, rank), 1], [0, rank - 1, *range(1, rank - 1)]
    moved_shape = ir.Shape([shape[axis] for axis in there])
    moved = insert(model, nodes[-1], "Transpose", [x], {"perm": there}, shape=moved_shape)
    attributes = {"axis": -1, "epsilon": epsilon}
    norm = insert(model, nodes[-1], "LayerNormalization", [moved, *parameters], attributes, shape=moved_shape)
    fuse(model, nodes, "Transpose", [norm], {"perm": back})


def _refuses(model: Model, target: Target | None) -> str | None:
    if target is not None and target.opset_max < _OPSET:
        return f"{target.name} reads opset {target.opset_max}; LayerNormalization came with {_OPSET}"
    return None


FUSE_LAYER_NORM = Pass(
    name="fuse-layer-norm",
    rewrite=rewrite_each(_match),
    tolerance=1e-4,  # the order of sums changes
    gain="one pass over the tensor instead of seven to nine, and one that runtimes join with a residual Add",
    refuses=_refuses,
)
