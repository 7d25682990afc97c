"""Transpose(Transpose(x, p), q) = Transpose(x, r) with r[i] = p[q[i]], and nothing at all when r counts 0, 1, 2...

1. A pair that cancels goes: readers of the second read x. The first goes too when nothing else reads it.
2. A pair that does not cancel becomes one Transpose when nothing else reads the first.
3. A single Transpose that moves nothing goes; a missing perm reverses the axes and needs a known rank.
4. A graph output keeps its name; a Transpose that wires an input to an output stays.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeopt.model import node_key
from edgeopt.passes._graph import (
    attr_ints,
    dims,
    input_at,
    is_op,
    nodes_of,
    record_absorbed,
    replace_node,
    why_not_private,
)
from edgeopt.passes._pass import Pass, Refusal, Rewritten


def _perm(node: ir.Node) -> list[int] | None:
    if (perm := attr_ints(node, "perm")) is not None:
        return perm
    shape = dims(input_at(node, 0))
    return None if shape is None else list(reversed(range(len(shape))))


def _simplify(node: ir.Node) -> bool | str:
    """True when changed, False when there is nothing to do, or why not."""
    source, perm = input_at(node, 0), _perm(node)
    if source is None or perm is None:
        return False
    inner = source.producer()
    if inner is not None and is_op(inner, "Transpose") and (first := _perm(inner)) and inner.inputs[0] is not None:
        joined = [first[axis] for axis in perm]
        if joined == sorted(joined):
            if why := replace_node(node, inner.inputs[0]):
                return why
            _drop_dead(inner)
            return True
        if why := why_not_private(source):
            return why
        node.attributes["perm"] = ir.AttrInt64s("perm", joined)
        node.replace_input_with(0, inner.inputs[0])
        record_absorbed(node, inner)
        _drop_dead(inner)
        return True
    if perm == sorted(perm):
        return replace_node(node, source) or True
    return False


def _drop_dead(node: ir.Node) -> None:
    if node.graph is not None and not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
        node.graph.remove(node, safe=True)


def simplify_transposes(model: ir.Model) -> Rewritten:
    """Apply the rules in place."""
    count, refusals = 0, []
    for node in nodes_of(model):
        if not is_op(node, "Transpose") or node.graph is None:
            continue
        outcome = _simplify(node)
        if isinstance(outcome, str):
            refusals.append(Refusal(node_key(node), outcome))
        else:
            count += outcome
    return Rewritten(count=count, refusals=tuple(refusals))


SIMPLIFY_TRANSPOSES = Pass(name="simplify-transposes", rewrite=simplify_transposes, tolerance=1e-6, gain="fewer copies")
