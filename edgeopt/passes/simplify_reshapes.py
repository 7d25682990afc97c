"""Reshape(g(x), s) = Reshape(x, t) for g in Reshape, Flatten, Squeeze, Unsqueeze: none of them moves an element.

1. A chain of the four, and Expand, goes as far as the dims after it are those of a value before it (``_symbols``), or
   all but one are: the number of elements settles that one, unless a dim is 0. (Not for Expand.)
2. Otherwise the last of a chain reads the input of the first when all between feed nothing else and are no graph
   output. The target t has numbers, 0 where a dim of x is copied, and one -1; when that does not say it, it stays.
3. Unknown shapes: refused in silence, there is nothing to see.
"""

from __future__ import annotations

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
from edgeopt.passes._symbols import Dims, Symbols, Term

SHAPE_ONLY = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
"""Operators that change the shape and move no element."""


def target(shape: Dims, wanted: Dims) -> list[int] | None:
    """The constant second input of a Reshape of ``shape`` to ``wanted``, None when it cannot be written.

    Numbers, 0 where a dim is that of the same axis before, and -1 for one remaining dim.
    """
    result: list[int] = []
    for axis, dim in enumerate(wanted):
        if isinstance(dim, int) and dim > 0:
            result.append(dim)
        elif axis < len(shape) and dim == shape[axis]:
            result.append(0)
        elif isinstance(dim, Term) and -1 not in result:
            result.append(-1)
        else:
            return None
    return result


def _keeps_shape(node: ir.Node, known: Symbols) -> bool:
    before, after = known.dims(input_at(node, 0)), known.dims(node.outputs[0])
    if before is not None and before == after:
        return True
    left, right = dims(input_at(node, 0)), dims(node.outputs[0])
    if before is None or after is None or left is None or right is None or len(before) != len(after):
        return False
    differing = [pair for pair in zip(before, after, left, right, strict=True) if pair[0] != pair[1] or pair[0] == 0]
    # two numbers that differ or are 0 settle nothing; neither does a symbol against a number under Expand
    if any(a is not None and b is not None for _, _, a, b in differing):
        return False
    return len(differing) <= (0 if is_op(node, "Expand") else 1)


def _skip_inner(model: ir.Model, node: ir.Node, known: Symbols) -> bool | str:
    """Let a Reshape read the input of the shape-only node before it."""
    source = node.inputs[0]
    inner = source.producer() if source is not None else None
    if source is None or inner is None or not is_op(inner, *SHAPE_ONLY) or inner.inputs[0] is None:
        return False
    constant = integers(input_at(node, 1)) if is_op(node, "Reshape") else None
    if constant is not None and (0 not in constant or attr_int(node, "allowzero", 0)):
        wanted: list[int] | None = None
    else:
        before, after = known.dims(inner.inputs[0]), known.dims(node.outputs[0])
        if before is None or after is None:
            return False
        wanted = target(before, after)
        if wanted is None:
            return "the target shape cannot be told from the input's"
    if inner.graph is not node.graph or node.graph is None:
        return "its input is in another graph"
    if why := why_not_private(source):
        return why
    if wanted is not None:
        _retarget(model, node, node.graph, wanted)
    node.replace_input_with(0, inner.inputs[0])
    record_absorbed(node, inner)
    others = inner.inputs
    assert inner.graph is not None
    inner.graph.remove(inner, safe=True)
    drop_if_unused(*others)
    return True


def _retarget(model: ir.Model, node: ir.Node, graph: ir.Graph, wanted: list[int]) -> None:
    old = node.inputs[1] if len(node.inputs) > 1 else None
    node.op_type = "Reshape"
    node.attributes.clear()
    node.resize_inputs(2)
    node.replace_input_with(1, new_constant(model, graph, f"{node.outputs[0].name}.shape", np.array(wanted, np.int64)))
    drop_if_unused(old)


def _simplify(model: ir.Model, node: ir.Node, known: Symbols) -> tuple[int, str | None]:
    """Simplify one node as far as it goes; returns how many steps, and why the last one was refused."""
    count = 0
    while (source := node.inputs[0]) is not None:
        if _keeps_shape(node, known):
            why = replace_node(node, source)
            return (count, why) if why else (count + 1, None)
        outcome = _skip_inner(model, node, known) if is_op(node, *SHAPE_ONLY) else False
        if outcome is not True:
            return count, outcome or None
        count += 1
    return count, None


def simplify_reshapes(model: ir.Model) -> Rewritten:
    """Apply the rules in place."""
    known, total, refusals = Symbols(model), 0, []
    for node in nodes_of(model):
        if is_op(node, *SHAPE_ONLY, "Expand") and node.graph is not None:
            count, why = _simplify(model, node, known)
            total += count
            if why is not None:
                refusals.append(Refusal(node_key(node), why))
    return Rewritten(count=total, refusals=tuple(refusals))


SIMPLIFY_RESHAPES = Pass(name="simplify-reshapes", rewrite=simplify_reshapes, tolerance=1e-6, gain="fewer operators")
