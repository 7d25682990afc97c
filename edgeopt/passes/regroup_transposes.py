"""g(Transpose(f(x))) = Transpose(Reshape(x)) for f, g that only change the shape, where dims can be followed.

f: x -> [m0, m1, ...], the Transpose puts the m in another order, and g splits each of them again:
m[p[i]] = out[k] * out[k + 1] * ...  Then x can be split into the same factors first, and one Transpose brings them into
the order of ``out``: the second change of shape is not needed, and the first neither when x has those factors already.

    Reshape [B N, S, D] -> Transpose [0, 2, 1] -> Reshape [B, N, D, S]        = Transpose [0, 1, 3, 2] of [B, N, S, D]
    Reshape [S, B N, D] -> Transpose [1, 0, 2] -> Reshape [B, N, S, D]        = Transpose [1, 2, 0, 3] of [S, B, N, D]
    Unsqueeze [1, S, B, 3, E] -> Transpose [3, 1, 2, 0, 4] -> Squeeze         = Transpose [2, 0, 1, 3]

1. f and g are Reshape, Flatten, Squeeze, Unsqueeze; all dims are known as numbers or terms (``_symbols``), none is 0.
2. The Transpose feeds only g and is no graph output; all are in one graph. When x does not have the factors, f feeds
   only the Transpose.
3. The factors can be written as a constant target.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeopt.model import node_key
from edgeopt.passes._graph import (
    attr_ints,
    drop_if_unused,
    input_at,
    is_op,
    new_constant,
    nodes_of,
    record_absorbed,
    why_not_private,
)
from edgeopt.passes._pass import Pass, Refusal, Rewritten
from edgeopt.passes._symbols import Dim, Dims, Symbols, product
from edgeopt.passes.resolve_shapes import remove_dead
from edgeopt.passes.simplify_reshapes import SHAPE_ONLY, target
from edgeopt.passes.simplify_transposes import simplify_transposes


def factors(axes: Dims, out: Dims) -> list[Dims] | None:
    """Split ``out`` into consecutive groups, one for each of ``axes``, with that product; None if not possible."""
    groups: list[Dims] = []
    at = 0
    for axis in axes:
        group: list[Dim] = []
        while product(*group) != axis:
            if at == len(out):
                return None
            group.append(out[at])
            at += 1
        groups.append(tuple(group))
    rest = out[at:]
    if any(d != 1 for d in rest) or not groups:
        return None
    groups[-1] = (*groups[-1], *rest)
    return groups


def _regroup(model: ir.Model, last: ir.Node, known: Symbols) -> bool | str:
    moved = input_at(last, 0)
    transpose = moved.producer() if moved is not None else None
    if moved is None or transpose is None or not is_op(transpose, "Transpose"):
        return False
    middle = input_at(transpose, 0)
    first = middle.producer() if middle is not None else None
    source = input_at(first, 0) if first is not None else None
    if middle is None or first is None or source is None or not is_op(first, *SHAPE_ONLY):
        return False
    before, between, after = known.dims(source), known.dims(middle), known.dims(last.outputs[0])
    perm = attr_ints(transpose, "perm")
    if before is None or between is None or after is None or perm is None or 0 in (*before, *between, *after):
        return False
    groups = factors(tuple(between[p] for p in perm), after)
    if groups is None:
        return False
    if len({first.graph, transpose.graph, last.graph}) != 1 or last.graph is None:
        return "it spans two graphs"
    if why := why_not_private(moved):
        return why
    inverse = [perm.index(axis) for axis in range(len(perm))]
    split = tuple(d for i in inverse for d in groups[i])
    shape = None
    if split != before:
        shape = target(before, split)
        if shape is None:
            return "the factors cannot be written as a constant"
        if why := why_not_private(middle):
            return why
    _replace(model, (first, transpose, last), source, shape, _order(groups, inverse))
    return True


def _order(groups: list[Dims], inverse: list[int]) -> list[int]:
    """The permutation of the factors."""
    starts, at = [0] * len(groups), 0
    for i in inverse:
        starts[i] = at
        at += len(groups[i])
    return [starts[i] + k for i in range(len(groups)) for k in range(len(groups[i]))]


def _replace(
    model: ir.Model, nodes: tuple[ir.Node, ir.Node, ir.Node], source: ir.Value, shape: list[int] | None, perm: list[int]
) -> None:
    """``last`` becomes the Transpose; ``transpose`` becomes the Reshape in front of it, or goes."""
    first, transpose, last = nodes
    graph, old = last.graph, last.inputs[1:]
    assert graph is not None
    last.op_type = "Transpose"
    last.attributes.clear()
    last.attributes["perm"] = ir.AttrInt64s("perm", perm)
    last.resize_inputs(1)
    record_absorbed(last, first)
    if shape is None:
        last.replace_input_with(0, source)
    else:
        made = new_constant(model, graph, f"{transpose.outputs[0].name}.shape", np.array(shape, np.int64))
        transpose.op_type = "Reshape"
        transpose.attributes.clear()
        transpose.resize_inputs(2)
        transpose.replace_input_with(0, source)
        transpose.replace_input_with(1, made)
        transpose.outputs[0].shape = None
    drop_if_unused(*old)


def _rewrite(model: ir.Model) -> Rewritten:
    total = 0
    remove_dead(model)  # a dead reader would look like a second one
    while True:
        known, count = Symbols(model), 0
        refusals: list[Refusal] = []
        for node in nodes_of(model):
            if not is_op(node, *SHAPE_ONLY) or node.graph is None:
                continue
            outcome = _regroup(model, node, known)
            if outcome is True:
                count += 1
                break  # what is known about the shapes between has changed
            if isinstance(outcome, str):
                refusals.append(Refusal(node_key(node), outcome))
        if count == 0:
            if total:
                remove_dead(model)
                simplify_transposes(model)
                remove_dead(model)
            return Rewritten(count=total, refusals=tuple(refusals))
        total += count


REGROUP_TRANSPOSES = Pass(
    name="regroup-transposes",
    rewrite=_rewrite,
    tolerance=1e-6,
    gain="one Transpose instead of a Transpose between two Reshapes, and patterns in sight",
)
