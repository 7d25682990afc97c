"""y = Identity(x) and y = Dropout(x) in inference mode are x; readers of y read x.

1. y is not a graph output: its readers read x.
2. y is a graph output and x comes from a node of the same graph: x takes over the name y.
3. Refused: y wires a graph input, a constant or a value of an outer graph straight to an output (runtimes want a
   node there), or x is a graph output itself (each output needs a value of its own).
4. Dropout counts when its training_mode is absent or a constant False and its mask is not read.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeopt.model import node_key
from edgeopt.passes._graph import constant, input_at, is_op, nodes_of, other_outputs_used, replace_node
from edgeopt.passes._pass import Pass, Refusal, Rewritten


def _why_kept(node: ir.Node) -> str | None:
    if is_op(node, "Identity"):
        return None
    if other_outputs_used(node):
        return "the Dropout mask is read"
    if (mode := input_at(node, 2)) is not None:
        flag = constant(mode)
        if flag is None or bool(flag.any()):
            return "Dropout is in training mode"
    if "is_test" in node.attributes and not node.attributes["is_test"].as_int():
        return "Dropout is in training mode"
    return None


def _rewrite(model: ir.Model) -> Rewritten:
    count, refusals = 0, []
    for node in nodes_of(model):
        if not is_op(node, "Identity", "Dropout") or (source := input_at(node, 0)) is None:
            continue
        why = _why_kept(node) or replace_node(node, source)
        if why is None:
            count += 1
        else:
            refusals.append(Refusal(node_key(node), why))
    return Rewritten(count=count, refusals=tuple(refusals))


REMOVE_IDENTITY = Pass(name="remove-identity", rewrite=_rewrite, tolerance=1e-6, gain="nothing is copied")
