"""Operators that give back their input: Pad by nothing, Slice of all, Concat of one, Cast to the same type, x + 0.

1. Pad: the pads are a constant of zeros, in any mode.
2. Slice: constant steps of 1, and either equal known shapes before and after, or starts of 0 and ends beyond any
   dim. A negative step turns the data around and always stays.
3. Concat, Sum, Max, Min, Mean with a single input.
4. Cast: the type of the input is known and is the target.
5. x + 0, x - 0, x * 1, x / 1 and x ^ 1, by a constant of any size, when x has the rank and every dim of the result.
   (-0 + 0 is 0: a zero may lose its sign.)
6. A graph output keeps its name; a no-op that wires an input or constant to an output stays.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeopt.model import node_key
from edgeopt.passes._graph import (
    attr_int,
    constant,
    dims,
    input_at,
    integers,
    is_op,
    nodes_of,
    replace_node,
    static_shape,
)
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


NEUTRAL = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1, "Pow": 1}
"""Operators with the second operand that changes nothing."""


def _is_neutral(node: ir.Node, index: int) -> bool:
    """Whether operand ``index`` changes neither a value nor the shape of the other one."""
    value, other = node.inputs[index], node.inputs[1 - index]
    array = constant(value)
    if (
        array is None
        or other is None
        or other.dtype is None
        or array.size == 0
        or bool((array != NEUTRAL[node.op_type]).any())
    ):
        return False
    before, after = dims(other), dims(node.outputs[0])
    if all(d == 1 for d in array.shape):
        return before is not None and len(before) >= array.ndim
    return None not in (before, after) and before == after and None not in (before or ())


def _neutral_source(node: ir.Node) -> ir.Value | None:
    """The operand that the node gives back."""
    if node.op_type not in NEUTRAL or node.domain != "" or len(node.inputs) != 2:
        return None
    for index in (1, 0) if is_op(node, "Add", "Mul") else (1,):
        if _is_neutral(node, index):
            return node.inputs[1 - index]
    return None


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
        source = input_at(node, 0) if _is_noop(node) else _neutral_source(node)
        if source is None:
            continue
        if (why := replace_node(node, source)) is None:
            count += 1
        else:
            refusals.append(Refusal(node_key(node), why))
    return Rewritten(count=count, refusals=tuple(refusals))


REMOVE_NOOPS = Pass(name="remove-noops", rewrite=_rewrite, tolerance=1e-6, gain="nothing is computed for nothing")
