"""Operators that give back their input: Pad by nothing, Slice of everything, Concat of one, Cast to the same type.

1. Pad: the pads are a constant of zeros, in any mode.
2. Slice: constant steps of 1, and either equal known shapes before and after, or starts of 0 and ends beyond any
   dim. A negative step turns the data around and always stays.
3. Concat, Sum, Max, Min, Mean with a single input.
4. Cast: the type of the input is known and is the target.
5. A graph output keeps its name; a no-op that wires an input or constant to an output stays.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeopt.model import node_key
from edgeopt.passes._graph import attr_int, input_at, integers, is_op, nodes_of, replace_node, static_shape
from edgeopt.passes._pass import Pass, Refusal, Rewritten

BEYOND = 2**31 - 1
"""An end index from here on means "to the end" in every exporter."""


def _pad(node: ir.Node) -> bool:
    pads = integers(input_at(node, 1))
    return pads is not None and not any(pads)


def _slice(node: ir.Node) -> bool:
    steps = integers(input_at(node, 4)) if input_at(node, 4) is not None else [1]
    if steps is None or any(step != 1 for step in steps):
        return False
    before = static_shape(input_at(node, 0))
    if before is not None and before == static_shape(node.outputs[0]):
        return True
    starts, ends = integers(input_at(node, 1)), integers(input_at(node, 2))
    return starts is not None and ends is not None and not any(starts) and all(end >= BEYOND for end in ends)


def _is_noop(node: ir.Node) -> bool:
    if is_op(node, "Pad"):
        return _pad(node)
    if is_op(node, "Slice"):
        return _slice(node)
    if is_op(node, "Concat", "Sum", "Max", "Min", "Mean"):
        return len(node.inputs) == 1
    if is_op(node, "Cast") and (source := input_at(node, 0)) is not None:
        return source.dtype is not None and source.dtype == attr_int(node, "to", 0)
    return False


def _rewrite(model: ir.Model) -> Rewritten:
    count, refusals = 0, []
    for node in nodes_of(model):
        if not _is_noop(node) or (source := input_at(node, 0)) is None:
            continue
        if (why := replace_node(node, source)) is None:
            count += 1
        else:
            refusals.append(Refusal(node_key(node), why))
    return Rewritten(count=count, refusals=tuple(refusals))


REMOVE_NOOPS = Pass(name="remove-noops", rewrite=_rewrite, tolerance=1e-6)
