"""One-hot times a table -> Gather of its rows.

    Equal(x: [..., 1], (0, 1, ..., K - 1)) -> Cast -> MatMul(table: [K, D])      = Gather(table', Clip(x, -1, K))
    OneHot(x, K, (0, 1), axis -1) -> MatMul(table: [K, D])     = Gather(table', Clip(Where(x < 0, x + K, x), -1, K))

x is compared with every k, so an x that is none of them gives a row of zeros. table' has one row of zeros more, at K;
Clip brings what is above to K, and what is below to -1, which Gather counts from the end: row K again. OneHot itself
counts x in -K .. -1 from the end.

1. The table is a constant float32 matrix [K, D], finite (0 times infinity is no zero), and the numbers 0 .. K - 1 in
   this order stand along the last axis of the constant; x has one element there, and is int32 or int64.
2. OneHot: depth is the constant K, values are the constant (0, 1), the new axis is the last one.
3. Nothing between is read elsewhere or a graph output.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from edgeopt.model import node_key
from edgeopt.passes._graph import (
    all_finite,
    attr_int,
    constant,
    dims,
    drop_if_unused,
    input_at,
    integers,
    is_op,
    new_constant,
    nodes_of,
    record_absorbed,
    value_names,
    why_not_private,
)
from edgeopt.passes._pass import Pass, Refusal, Rewritten
from edgeopt.passes.resolve_shapes import remove_dead

INDEX_TYPES = (ir.DataType.INT32, ir.DataType.INT64)


class _Hot(NamedTuple):
    """A one-hot encoding: x, whether its last axis (of one) goes or negative x count from the end, and the nodes."""

    x: ir.Value
    squeezes: bool
    nodes: tuple[ir.Node, ...]


def _find(value: ir.Value | None, count: int) -> _Hot | str | None:
    """The one-hot encoding of ``count`` classes that makes ``value``, why it is none, or None for anything else."""
    node = value.producer() if value is not None else None
    if value is None or node is None:
        return None
    if is_op(node, "OneHot"):
        return why_not_private(value) or _one_hot(node, count)
    chain = []
    while node is not None and is_op(node, "Cast"):
        chain.append(node)
        source = input_at(node, 0)
        node = source.producer() if source is not None else None
    if node is None or not chain or not is_op(node, "Equal"):
        return None
    found = _equal(node, count)
    if isinstance(found, str) or found is None:
        return found
    for link in (*chain, node):
        if why := why_not_private(link.outputs[0]):
            return why
    return found._replace(nodes=(*chain, node))


def _equal(node: ir.Node, count: int) -> _Hot | str | None:
    for index in (0, 1):
        numbers, x = constant(node.inputs[index]), node.inputs[1 - index]
        if numbers is None or x is None or numbers.ndim == 0 or numbers.dtype.kind not in "iu":
            continue
        if numbers.size != count or numbers.shape[-1] != count:
            continue
        if not np.array_equal(numbers.reshape(-1), np.arange(count)):
            return "the classes are not 0, 1, 2, ... in order"
        shape = dims(x)
        if shape is None or not shape or shape[-1] != 1 or len(shape) < numbers.ndim:
            return "its indices are not known to have one element along the last axis"
        if x.dtype not in INDEX_TYPES:
            return "its indices are not integers"
        return _Hot(x, True, ())
    return None


def _one_hot(node: ir.Node, count: int) -> _Hot | str:
    x, values = input_at(node, 0), constant(input_at(node, 2))
    shape = dims(x)
    if x is None or shape is None or x.dtype not in INDEX_TYPES:
        return "its indices are not integers of known rank"
    if integers(input_at(node, 1)) != [count] or values is None or values.tolist() != [0, 1]:
        return "it is not 0 and 1 over as many classes as the table has rows"
    if attr_int(node, "axis", -1) not in (-1, len(shape)):
        return "its new axis is not the last one"
    return _Hot(x, False, (node,))


def _fuse(model: ir.Model, matmul: ir.Node, hot: _Hot) -> None:
    graph, table = matmul.graph, matmul.inputs[1]
    array = constant(table)
    assert isinstance(graph, ir.Graph)
    assert array is not None
    assert table is not None
    name, count, kind = matmul.outputs[0].name or "one_hot", len(array), hot.x.dtype
    assert kind is not None
    longer = new_constant(model, graph, f"{table.name}.rows", np.vstack([array, np.zeros_like(array[:1])]))
    low, high, zero, classes = (
        new_constant(model, graph, f"{name}.{role}", np.array(number, kind.numpy()))
        for role, number in (("low", -1), ("high", count), ("zero", 0), ("classes", count))
    )
    axes = new_constant(model, graph, f"{name}.axes", np.array([-1], np.int64))

    def add(op: str, *inputs: ir.Value) -> ir.Value:
        made = ir.Node("", op, inputs)
        taken, base = value_names(model), f"{name}.{op.lower()}"
        made.outputs[0].name = next(n for n in (base, *(f"{base}_{i}" for i in range(2, 10_000))) if n not in taken)
        made.outputs[0].type = ir.TensorType(ir.DataType.BOOL if op == "Less" else kind)
        graph.insert_before(matmul, made)
        return made.outputs[0]

    x = hot.x if hot.squeezes else add("Where", add("Less", hot.x, zero), add("Add", hot.x, classes), hot.x)
    indices = add("Clip", x, low, high)
    if hot.squeezes:
        indices = add("Squeeze", indices, axes)
    drop_if_unused(zero, classes, axes)
    for node in hot.nodes:
        record_absorbed(matmul, node)
    matmul.op_type = "Gather"
    matmul.attributes.clear()
    matmul.replace_input_with(0, longer)
    matmul.replace_input_with(1, indices)
    drop_if_unused(table)


def _rewrite(model: ir.Model) -> Rewritten:
    count, refusals = 0, []
    for node in nodes_of(model):
        if not is_op(node, "MatMul") or (table := constant(node.inputs[1])) is None or table.ndim != 2:
            continue
        found = _find(node.inputs[0], len(table))
        if found is None:
            continue
        if not isinstance(found, str) and (table.dtype != np.float32 or not all_finite(table)):
            found = "the table is not finite float32"
        if not isinstance(found, str) and len({node.graph, *(n.graph for n in found.nodes)}) != 1:
            found = "it spans two graphs"
        if isinstance(found, str):
            refusals.append(Refusal(node_key(node), found))
            continue
        _fuse(model, node, found)
        count += 1
    if count:
        remove_dead(model)
    return Rewritten(count=count, refusals=tuple(refusals))


GATHER_ONE_HOT = Pass(
    name="gather-one-hot",
    rewrite=_rewrite,
    tolerance=1e-5,
    gain="rows looked up instead of a product with mostly zeros",
)
