"""Concat, Split and Slice that undo or repeat each other. All are on one axis a.

1. Concat(..., Concat(x, y), ...) = Concat(..., x, y, ...) when nothing else reads the inner one.
2. Concat of all outputs of a Split, in order, is the tensor that was split. The same for adjacent Slices that cover
   the axis.
3. Slice(Concat(x, y, ...), [p, q)) = x, when x covers [p, q) exactly.
4. Slice(Slice(x, [p, q)), [r, s)) = Slice(x, [p + r, p + s)) for steps of 1, a single axis each, and numbers that lie
   inside a known dim.
5. A graph output keeps its name; Slices count with constant starts, ends, axes and steps of 1 over known dims.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from edgeopt.model import node_key
from edgeopt.passes._graph import (
    attr_int,
    dims,
    drop_if_unused,
    input_at,
    integers,
    is_op,
    new_constant,
    nodes_of,
    record_absorbed,
    replace_node,
    why_not_private,
)
from edgeopt.passes._pass import Pass, Refusal, Rewritten
from edgeopt.passes.resolve_shapes import remove_dead


class Part(NamedTuple):
    """``source[begin:end]`` along ``axis``, of a dim of ``size``."""

    source: ir.Value
    axis: int
    begin: int
    end: int
    size: int


def part(value: ir.Value | None) -> Part | None:
    """What a Slice or an output of a Split takes, when that is known."""
    node = value.producer() if value is not None else None
    source = input_at(node, 0) if node is not None else None
    shape = dims(source)
    if node is None or value is None or source is None or shape is None:
        return None
    if is_op(node, "Split"):
        return _split(node, value, source, shape)
    if not is_op(node, "Slice"):
        return None
    starts, ends, axes = (integers(input_at(node, i)) for i in (1, 2, 3))
    steps = integers(input_at(node, 4)) if input_at(node, 4) is not None else [1]
    if axes is None and input_at(node, 3) is None and starts is not None:
        axes = list(range(len(starts)))
    if starts is None or ends is None or axes is None or steps is None or any(step != 1 for step in steps):
        return None
    if any(not -len(shape) <= axis < len(shape) for axis in axes) or not len(starts) == len(ends) == len(axes):
        return None
    found: Part | None = None
    for start, end, axis in zip(starts, ends, axes, strict=True):
        size = shape[axis]
        if start == 0 and (end >= 2**31 - 1 or (size is not None and end >= size)):
            continue
        if size is None or found is not None:
            return None
        begin, stop = (min(max(n + size if n < 0 else n, 0), size) for n in (start, end))
        found = Part(source, axis % len(shape), begin, max(begin, stop), size)
    return found


def _split(node: ir.Node, value: ir.Value, source: ir.Value, shape: tuple[int | None, ...]) -> Part | None:
    axis = attr_int(node, "axis", 0) % max(len(shape), 1)
    size, count = shape[axis] if shape else None, len(node.outputs)
    if size is None:
        return None
    if input_at(node, 1) is not None:
        sizes = integers(input_at(node, 1))
    else:
        chunk = -(-size // count)
        sizes = [min(chunk, size - i * chunk) for i in range(count)]
    if sizes is None or len(sizes) != count or min(sizes) < 0:
        return None
    place = list(node.outputs).index(value)
    return Part(source, axis, sum(sizes[:place]), sum(sizes[: place + 1]), size)


def _flatten(node: ir.Node) -> int:
    """Rule 1."""
    count = 0
    shape = dims(node.outputs[0])
    rank = None if shape is None else len(shape)
    inputs = list(node.inputs)
    for value in inputs:
        inner = value.producer() if value is not None else None
        if inner is None or value is None or not is_op(inner, "Concat") or inner.graph is not node.graph:
            continue
        outer_axis, axis = attr_int(node, "axis", 0), attr_int(inner, "axis", 0)
        if outer_axis != axis and (rank is None or outer_axis % rank != axis % rank):
            continue
        if why_not_private(value) or list(node.inputs).count(value) != 1:
            continue
        place = list(node.inputs).index(value)
        joined = [*node.inputs[:place], *inner.inputs, *node.inputs[place + 1 :]]
        node.resize_inputs(len(joined))
        for index, operand in enumerate(joined):
            node.replace_input_with(index, operand)
        record_absorbed(node, inner)
        assert inner.graph is not None
        inner.graph.remove(inner, safe=True)
        count += 1
    return count


def _identity(node: ir.Node) -> bool | str:
    """Rule 2."""
    parts = [part(value) for value in node.inputs]
    shape = dims(node.outputs[0])
    first = parts[0]
    if first is None or any(p is None or p.source is not first.source or p.axis != first.axis for p in parts):
        return False
    rank = len(dims(first.source) or ())
    if attr_int(node, "axis", 0) % rank != first.axis or (shape is not None and len(shape) != rank):
        return False
    at = 0
    for p in parts:
        assert p is not None
        if p.begin != at:
            return False
        at = p.end
    return at == first.size and (replace_node(node, first.source) or True)


def _slice(model: ir.Model, node: ir.Node) -> bool | str:
    """Rules 3 and 4."""
    taken = part(node.outputs[0])
    inner = taken.source.producer() if taken is not None else None
    if taken is None or inner is None:
        return False
    if is_op(inner, "Concat"):
        rank = len(dims(taken.source) or ())
        if attr_int(inner, "axis", 0) % rank != taken.axis:
            return False
        at = 0
        for value in inner.inputs:
            shape = dims(value)
            size = None if shape is None else shape[taken.axis]
            if size is None or value is None:
                return False
            if (at, at + size) == (taken.begin, taken.end):
                return replace_node(node, value) or True
            at += size
        return False
    below = part(taken.source) if is_op(inner, "Slice") else None
    if below is None or below.axis != taken.axis or node.graph is None:
        return False
    old = node.inputs[1:]
    bounds = (below.begin + taken.begin, below.begin + taken.end, taken.axis)
    node.replace_input_with(0, below.source)
    node.resize_inputs(4)
    for index, number in enumerate(bounds):
        name = f"{node.outputs[0].name}.{('start', 'end', 'axis')[index]}"
        node.replace_input_with(index + 1, new_constant(model, node.graph, name, np.array([number], np.int64)))
    drop_if_unused(*old)
    return True


def _rewrite(model: ir.Model) -> Rewritten:
    count, refusals = 0, []
    for node in nodes_of(model):
        outcome: bool | str = False
        if node.graph is not None and is_op(node, "Concat"):
            count += _flatten(node)
            outcome = _identity(node)
        elif node.graph is not None and is_op(node, "Slice"):
            outcome = _slice(model, node)
        if isinstance(outcome, str):
            refusals.append(Refusal(node_key(node), outcome))
        else:
            count += outcome
    if count:
        remove_dead(model)
    return Rewritten(count=count, refusals=tuple(refusals))


SIMPLIFY_CONCATS = Pass(name="simplify-concats", rewrite=_rewrite, tolerance=1e-6, gain="fewer copies")
