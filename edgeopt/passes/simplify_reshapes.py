"""Reshape(g(x), s) = Reshape(x, s) for g in Reshape, Flatten, Squeeze, Unsqueeze: none of them moves an element.

1. The inner node must feed nothing else and be no graph output.
2. The target s is a constant. A 0 in it copies a dim of g(x): refused, unless allowzero makes it a plain 0.
3. Any of the four, and Expand, goes when it changes no dim: all known dims are pairwise equal and at most one pair
   is not known (the number of elements settles that one; not for Expand, nor with an empty tensor).
4. Unknown shapes: refused in silence, there is nothing to see.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeopt.model import node_key
from edgeopt.passes._graph import (
    attr_int,
    dims,
    drop_if_unused,
    input_at,
    integers,
    is_op,
    nodes_of,
    record_absorbed,
    replace_node,
    why_not_private,
)
from edgeopt.passes._pass import Pass, Refusal, Rewritten

SHAPE_ONLY = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
"""Operators that change the shape and move no element."""


def _keeps_shape(node: ir.Node) -> bool:
    before, after = dims(input_at(node, 0)), dims(node.outputs[0])
    if before is None or after is None or len(before) != len(after):
        return False
    open_pairs = 0
    for left, right in zip(before, after, strict=True):
        if left is None or right is None:
            open_pairs += 1
        elif left != right or left == 0:
            return False
    return open_pairs <= (0 if node.op_type == "Expand" else 1)


def _skip_inner(node: ir.Node) -> bool | str:
    """Let a Reshape read the input of the shape-only node before it."""
    source = node.inputs[0]
    inner = source.producer() if source is not None else None
    if source is None or inner is None or not is_op(inner, *SHAPE_ONLY) or inner.inputs[0] is None:
        return False
    target = integers(input_at(node, 1))
    if target is None:
        return "the target shape is not constant"
    if 0 in target and not attr_int(node, "allowzero", 0):
        return "the target shape copies a dim"
    if inner.graph is not node.graph:
        return "its input is in another graph"
    if why := why_not_private(source):
        return why
    node.replace_input_with(0, inner.inputs[0])
    record_absorbed(node, inner)
    others = inner.inputs
    assert inner.graph is not None
    inner.graph.remove(inner, safe=True)
    drop_if_unused(*others)
    return True


def _simplify(node: ir.Node) -> tuple[int, str | None]:
    """Simplify one node as far as it goes; returns how many steps, and why the last one was refused."""
    count = 0
    while (source := node.inputs[0]) is not None:
        if _keeps_shape(node):
            why = replace_node(node, source)
            return (count, why) if why else (count + 1, None)
        outcome = _skip_inner(node) if is_op(node, "Reshape") else False
        if outcome is not True:
            return count, outcome or None
        count += 1
    return count, None


def _rewrite(model: ir.Model) -> Rewritten:
    total, refusals = 0, []
    for node in nodes_of(model):
        if is_op(node, *SHAPE_ONLY, "Expand") and node.graph is not None:
            count, why = _simplify(node)
            total += count
            if why is not None:
                refusals.append(Refusal(node_key(node), why))
    return Rewritten(count=total, refusals=tuple(refusals))


SIMPLIFY_RESHAPES = Pass(name="simplify-reshapes", rewrite=_rewrite, tolerance=1e-6)
