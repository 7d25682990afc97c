"""Transposes moved down through operators that work element by element, where fewer of them remain.

With T(x) = Transpose(x, p):
f(T(x)) = T(f(x)),   g(T(x), T(y)) = T(g(x, y)),   Concat_a(T(x), T(y)) = T(Concat_p[a](x, y))

A region of such operators whose inputs are all T (of one p) or constants needs no T inside: it works on x, y, ... and
its result is transposed once; that one is merged when a Transpose reads the result, and goes when it turns it back.
A Reshape that only moves axes of size 1 behind a Transpose is a part of the Transpose.

1. Fewer Transposes remain: two or more inputs are T, or one is and the result is read by a Transpose.
2. Each inner tensor, and each T, feeds the region alone and is no graph output; all are in one graph.
3. Constants of one element stay; others are transposed here when the region alone reads them, and have full rank.
4. Tensors that are no constants have the rank of p. (So broadcasting pairs the same axes before and after.)
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from edgeopt.passes._graph import (
    attr_int,
    attr_ints,
    constant,
    dims,
    drop_if_unused,
    input_at,
    is_constant,
    is_op,
    new_constant,
    nodes_of,
    record_absorbed,
    value_names,
    why_not_private,
)
from edgeopt.passes._pass import Pass
from edgeopt.passes.resolve_shapes import remove_dead
from edgeopt.passes.simplify_reshapes import SHAPE_ONLY
from edgeopt.passes.simplify_transposes import simplify_transposes

UNARY = frozenset(
    {"Abs", "Cast", "Ceil", "Clip", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu"}
    | {
        "Log",
        "Mish",
        "Neg",
        "Not",
        "Reciprocal",
        "Relu",
        "Round",
        "Selu",
        "Sigmoid",
        "Sign",
        "Softplus",
        "Sqrt",
        "Tanh",
    }
)
"""Operators of one tensor (further inputs are scalars)."""

NARY = frozenset({"Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Concat"})


@dataclasses.dataclass(kw_only=True)
class _Region:
    """Nodes of the region, the Transposes at its inputs, constants to be transposed."""

    nodes: list[ir.Node] = dataclasses.field(default_factory=list)
    leaves: list[ir.Node] = dataclasses.field(default_factory=list)
    constants: list[ir.Value] = dataclasses.field(default_factory=list)


def _collect(region: _Region, node: ir.Node, perm: list[int] | None) -> list[int] | None:
    """Add ``node`` and what is above it; returns the permutation of all its Transposes, None when it does not work."""
    if node in region.nodes:
        return perm
    region.nodes.append(node)
    operands = node.inputs[:1] if node.op_type in UNARY else node.inputs
    later: list[ir.Value] = []
    for value in operands:
        if value is None:
            return None
        if is_constant(value):
            later.append(value)
            continue
        producer = value.producer()
        if producer is None or producer.graph is not node.graph or value.is_graph_output():
            return None
        if is_op(producer, "Transpose"):
            found = attr_ints(producer, "perm")
            if found is None or (perm is not None and found != perm):
                return None
            perm = found
            if producer not in region.leaves:
                region.leaves.append(producer)
        elif producer.domain == "" and (producer.op_type in UNARY or producer.op_type in NARY):
            perm = _collect(region, producer, perm)
            if perm is None:
                return None
        else:
            return None
    if perm is None or any(not _fits(value, node, len(perm), region) for value in later):
        return None
    return perm


def _fits(value: ir.Value, node: ir.Node, rank: int, region: _Region) -> bool:
    """Rule 3."""
    array_rank, size = (None, 0) if value.shape is None else (len(value.shape), int(np.prod(value.shape.numpy())))
    if not is_op(node, "Concat") and size == 1 and array_rank is not None and array_rank <= rank:
        return True
    if array_rank != rank:
        return False
    if value not in region.constants:
        region.constants.append(value)
    return True


def _sink(model: ir.Model, node: ir.Node) -> bool:
    """Sink the Transposes above ``node``, the last of a region."""
    region = _Region()
    perm = _collect(region, node, None)
    out, graph = node.outputs[0], node.graph
    if perm is None or sorted(perm) != list(range(len(perm))) or graph is None:
        return False
    readers = [user for user, _ in out.uses()]
    merges = bool(readers) and all(is_op(r, "Transpose") and r.graph is graph for r in readers)
    if len(region.leaves) < 2 and not (merges and not out.is_graph_output() and region.leaves):
        return False
    if any(dims(leaf.outputs[0]) is None for leaf in region.leaves):
        return False
    inner = [v for n in (*region.nodes, *region.leaves) if n is not node for v in n.outputs]
    if any(user not in region.nodes for value in (*inner, *region.constants) for user, _ in value.uses()):
        return False
    inverse = [perm.index(axis) for axis in range(len(perm))]
    for value in region.constants:
        array = constant(value)
        assert array is not None
        made = new_constant(model, graph, f"{value.name}.transposed", np.ascontiguousarray(array.transpose(inverse)))
        value.replace_all_uses_with(made)
        drop_if_unused(value)
    for leaf in region.leaves:
        assert leaf.inputs[0] is not None
        leaf.outputs[0].replace_all_uses_with(leaf.inputs[0])
    for member in region.nodes:
        if is_op(member, "Concat"):
            axis = attr_int(member, "axis", 0) % len(perm)
            member.attributes["axis"] = ir.AttrInt64("axis", perm[axis])
        if member is not node:
            member.outputs[0].shape = None
    _transpose_after(model, node, perm)
    for leaf in region.leaves:
        assert leaf.graph is not None
        record_absorbed(node, leaf)
        leaf.graph.remove(leaf, safe=True)
    return True


def _transpose_after(model: ir.Model, node: ir.Node, perm: list[int]) -> None:
    """A Transpose takes over the name and the readers of the node's output."""
    out, graph = node.outputs[0], node.graph
    assert isinstance(graph, ir.Graph)
    made = ir.Node("", "Transpose", [out], [ir.AttrInt64s("perm", perm)])
    result = made.outputs[0]
    name, taken = out.name or "value", value_names(model)
    out.replace_all_uses_with(result, replace_graph_outputs=True)
    made.replace_input_with(0, out)
    result.name, result.type, result.shape = name, out.type, out.shape
    out.shape = None
    result.meta.update(out.meta)
    base = f"{name}.straight"
    out.name = next(n for n in (base, *(f"{base}_{i}" for i in range(2, 10_000))) if n not in taken)
    graph.insert_after(node, made)


def _absorb_units(node: ir.Node) -> bool:
    """A Reshape that only moves axes of size 1, behind a Transpose, becomes that Transpose."""
    source = input_at(node, 0)
    inner = source.producer() if source is not None else None
    before, after = dims(input_at(inner, 0)) if inner is not None else None, dims(node.outputs[0])
    if source is None or inner is None or not is_op(inner, "Transpose") or before is None or after is None:
        return False
    perm = attr_ints(inner, "perm")
    if perm is None or len(before) != len(after) or inner.graph is not node.graph or why_not_private(source):
        return False
    moved = [p for p in perm if before[p] != 1]
    open_dims = sum(before[p] is None for p in moved)
    wide = [d for d in after if d != 1]
    # one unknown dim is settled by the number of elements
    if open_dims > 1 or len(wide) != len(moved) or 0 in after:
        return False
    if any(d != before[p] for p, d in zip(moved, wide, strict=True)):
        return False
    units = iter(p for p in perm if before[p] == 1)
    rest = iter(moved)
    order = [next(units) if d == 1 else next(rest) for d in after]
    old = node.inputs[1:]
    node.op_type = "Transpose"
    node.attributes.clear()
    node.attributes["perm"] = ir.AttrInt64s("perm", order)
    node.resize_inputs(1)
    node.replace_input_with(0, inner.inputs[0])
    record_absorbed(node, inner)
    assert inner.graph is not None
    inner.graph.remove(inner, safe=True)
    drop_if_unused(*old)
    return True


def _rewrite(model: ir.Model) -> int:
    count = 0
    remove_dead(model)
    for node in nodes_of(model):
        if node.graph is None or node.domain != "":
            continue
        if is_op(node, *SHAPE_ONLY):
            count += _absorb_units(node)
    for node in nodes_of(model):
        if node.graph is None or node.domain != "" or not (node.op_type in UNARY or node.op_type in NARY):
            continue
        count += _sink(model, node)
    if count:
        simplify_transposes(model)
        remove_dead(model)
    return count


SINK_TRANSPOSES = Pass(
    name="sink-transposes",
    rewrite=_rewrite,
    tolerance=1e-6,
    gain="fewer copies into another layout, and activations beside the operator that they belong to",
)
