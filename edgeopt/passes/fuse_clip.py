"""Chains of bounds -> one Clip or Relu: clip(clip(x, a, b), c, d) = clip(x, max(a, c), min(b, d)).

Relu(x) = clip(x, 0, inf)        Max(x, a) = clip(x, a, inf)        Min(x, b) = clip(x, -inf, b)

A pair of neighbours becomes Relu (bounds 0 and none) or Clip; a single Max(x, 0) or Clip(x, 0) becomes Relu, which
runtimes join with the operator before. One-sided Max and Min with another number stay: Clip without a bound cuts
infinities, they do not. All of these hand a NaN on.

1. Bounds are constants that are one number, not NaN, and do not change the shape. Max and Min have two inputs.
2. The inner result feeds nothing else and is no graph output.
3. The ranges meet: max(a, c) <= min(b, d), and no Clip has its own bounds crossed. (Otherwise the result is one
   constant, and more likely a mistake.)
4. Relu is made for float types only; integer chains become Clip.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from edgeopt.passes._chain import FLOATS, fuse, number, rewrite_each, with_number
from edgeopt.passes._graph import constant, input_at, is_op, new_constant
from edgeopt.passes._pass import Pass

_TYPES = (*FLOATS, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.INT8, ir.DataType.UINT8)


class Bounds(NamedTuple):
    """clip(source, low, high), infinite where a side is open."""

    source: ir.Value
    low: float
    high: float


def bounds(node: ir.Node | None) -> Bounds | None:
    """What a Clip, Relu, Max or Min does when its bounds are known numbers, else None."""
    if node is None or (source := input_at(node, 0)) is None:
        return None
    if is_op(node, "Relu"):
        return Bounds(source, 0.0, math.inf)
    if found := with_number(node, "Max", "Min"):
        source, k = found
        result = Bounds(source, k, math.inf) if is_op(node, "Max") else Bounds(source, -math.inf, k)
    elif is_op(node, "Clip"):
        sides = []
        for index, open_side in ((1, -math.inf), (2, math.inf)):
            value = input_at(node, index)
            array = constant(value)
            side = open_side if value is None else number(value, None) if array is None or not array.ndim else None
            if side is None:
                return None
            sides.append(side)
        result = Bounds(source, *sides)
    else:
        return None
    return None if math.isnan(result.low) or math.isnan(result.high) else result


def _join(inner: Bounds, outer: Bounds) -> Bounds | None:
    low, high = max(inner.low, outer.low), min(inner.high, outer.high)
    crossed = inner.low > inner.high or outer.low > outer.high or low > high
    return None if crossed else Bounds(inner.source, low, high)


def _emit(model: ir.Model, nodes: list[ir.Node], joined: Bounds) -> str | None:
    source, low, high = joined
    dtype = source.dtype
    if low == 0 and high == math.inf and dtype in FLOATS:
        return fuse(model, nodes, "Relu", [source])
    graph = nodes[-1].graph
    assert graph is not None
    assert dtype is not None
    made: list[ir.Value | None] = []
    for name, side in (("min", low), ("max", high)):
        array = None if math.isinf(side) else np.array(side, dtype.numpy())
        made.append(None if array is None else new_constant(model, graph, f"{nodes[-1].outputs[0].name}_{name}", array))
    while made and made[-1] is None:
        made.pop()
    why = fuse(model, nodes, "Clip", [source, *made])
    if why is not None:
        for value in made:
            if value is not None and value.name is not None:
                graph.initializers.pop(value.name)
    return why


def _pair(model: ir.Model, node: ir.Node) -> bool | str:
    outer = bounds(node)
    before = None if outer is None else outer.source.producer()
    inner = bounds(before)
    if outer is None or inner is None or before is None or inner.source.dtype not in _TYPES:
        return False
    joined = _join(inner, outer)
    if joined is None:
        return "the ranges do not meet"
    return _emit(model, [before, node], joined) or True


def _single(model: ir.Model, node: ir.Node) -> bool | str:
    found = None if is_op(node, "Relu") else bounds(node)
    if found is None or found.source.dtype not in FLOATS or (found.low, found.high) != (0.0, math.inf):
        return False
    return _emit(model, [node], found) or True


FUSE_CLIP = Pass(
    name="fuse-clip",
    rewrite=rewrite_each(_pair, _single),
    tolerance=1e-6,
    gain="one bound instead of several, and one that joins the operator before",
)
