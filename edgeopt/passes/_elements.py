"""How many elements a foldable operator gives, told from its inputs before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from edgeopt.passes._graph import Array, attr_int

Inputs = Sequence[Array | None]


def _first(node: ir.Node, inputs: Inputs) -> int:
    assert inputs[0] is not None
    return inputs[0].size


def _broadcast(node: ir.Node, inputs: Inputs) -> int:
    return math.prod(np.broadcast_shapes(*(a.shape for a in inputs if a is not None)))


def _sum(node: ir.Node, inputs: Inputs) -> int:
    return sum(a.size for a in inputs if a is not None)


def _filled(node: ir.Node, inputs: Inputs) -> int:
    assert inputs[0] is not None
    size: int = math.prod(int(d) for d in inputs[0])
    return size


def _expanded(node: ir.Node, inputs: Inputs) -> int:
    data, shape = inputs
    assert data is not None
    assert shape is not None
    # np.broadcast_shapes allocates nothing, so a hostile shape costs nothing here.
    return math.prod(np.broadcast_shapes(data.shape, tuple(int(d) for d in shape)))


def _tiled(node: ir.Node, inputs: Inputs) -> int:
    data, repeats = inputs
    assert data is not None
    assert repeats is not None
    return data.size * math.prod(int(r) for r in repeats)


def _gathered(node: ir.Node, inputs: Inputs) -> int:
    data, indices = inputs
    assert data is not None
    assert indices is not None
    along = int(data.shape[attr_int(node, "axis", 0)])
    return data.size // max(along, 1) * indices.size


def _ranged(node: ir.Node, inputs: Inputs) -> int:
    start, limit, delta = (float(a) for a in inputs if a is not None)
    return max(0, math.ceil((limit - start) / delta))


ELEMENTS: dict[str, Callable[[ir.Node, Inputs], int]] = {
    **dict.fromkeys(("Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Slice"), _first),
    **dict.fromkeys(("Neg", "Abs", "Sqrt", "Reciprocal", "Exp", "Log", "Floor", "Ceil", "Sign", "Not"), _first),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Min", "Max", "Where"), _broadcast),
    **dict.fromkeys(("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or"), _broadcast),
    **dict.fromkeys(("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin"), _first),
    "Concat": _sum,
    "ConstantOfShape": _filled,
    "Expand": _expanded,
    "Tile": _tiled,
    "Gather": _gathered,
    "Range": _ranged,
}
"""Operators that are folded, with an upper bound of the elements of their result, computed from their inputs."""
