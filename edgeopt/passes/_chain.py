"""Chains of operators that compute one function: constants that act as numbers, products, replacement by one node."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from edgeopt.model import NODE_KEY, node_key
from edgeopt.passes._graph import (
    DERIVED,
    constant,
    constant_bytes,
    dims,
    drop_if_unused,
    input_at,
    is_op,
    nodes_of,
    record_absorbed,
    value_names,
)
from edgeopt.passes._pass import Refusal, Rewritten

NEAR = 1e-5
"""Relative tolerance of a constant: exporters write 1.41421, 0.70710677 or 0.16666667 for the same number."""

_MAX_CONSTANT_BYTES = 1 << 20
_MAX_EXACT = 2.0**53

FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16)


def near(value: float, wanted: float) -> bool:
    """Whether a constant of a file stands for ``wanted``."""
    return abs(value - wanted) <= NEAR * abs(wanted)


def number(value: ir.Value | None, other: ir.Value | None) -> float | None:
    """The number that a constant stands for when it is combined with ``other``.

    All its elements are equal, and broadcasting it against ``other`` gives the shape of ``other``: [1, 1, 1, 1]
    against a tensor of rank 3 does not. None when it is no such constant.
    """
    if constant_bytes(value) > _MAX_CONSTANT_BYTES or (array := constant(value)) is None:
        return None
    if array.size == 0 or array.dtype.kind not in "fiu":
        return None
    first = array.reshape(-1)[0]
    if array.size > 1 and not bool((array == first).all()):
        return None
    if array.ndim:
        shape = dims(other)
        if shape is None or array.ndim > len(shape):
            return None
        if any(d not in (1, known) for d, known in zip(reversed(array.shape), reversed(shape), strict=False)):
            return None
    result = float(first)
    return None if array.dtype.kind in "iu" and abs(result) > _MAX_EXACT else result


def operands(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Both orders of the two inputs of a commutative operator."""
    if len(node.inputs) == 2 and node.inputs[0] is not None and node.inputs[1] is not None:
        yield node.inputs[0], node.inputs[1]
        yield node.inputs[1], node.inputs[0]


def with_number(node: ir.Node | None, *ops: str) -> tuple[ir.Value, float] | None:
    """Operand and number of a commutative node of ``ops`` that combines a tensor with a number."""
    if node is not None and is_op(node, *ops):
        for value, other in operands(node):
            if (k := number(other, value)) is not None:
                return value, k
    return None


def affine_step(node: ir.Node | None) -> tuple[ir.Value, float, float] | None:
    """(x, p, q) when the node computes p * x + q with two numbers, by one Mul, Div, Add, Sub or Neg."""
    if node is None:
        return None
    if found := with_number(node, "Mul"):
        return found[0], found[1], 0.0
    if found := with_number(node, "Add"):
        return found[0], 1.0, found[1]
    first, second = input_at(node, 0), input_at(node, 1)
    if first is not None and is_op(node, "Neg"):
        return first, -1.0, 0.0
    if first is None or second is None or not is_op(node, "Sub", "Div"):
        return None
    if (k := number(second, first)) is not None:
        if is_op(node, "Sub"):
            return first, 1.0, -k
        return (first, 1.0 / k, 0.0) if k != 0 else None
    if is_op(node, "Sub") and (k := number(first, second)) is not None:
        return second, -1.0, k
    return None


def product(start: ir.Value, x: ir.Value, scale: float, longest: int = 3) -> list[ir.Node] | None:
    """The nodes that multiply ``start`` by ``x`` and numbers until the result is scale * start * x, in order.

    Mul by x, by a number, or by x times a number (a node before), and Div by a number, in any order.
    """

    def walk(value: ir.Value, factor: float, has_x: bool, nodes: list[ir.Node]) -> list[ir.Node] | None:
        if has_x and near(factor, scale):
            return nodes
        if len(nodes) > longest:
            return None
        for user, index in value.uses():
            other = input_at(user, 1 - index) if len(user.inputs) == 2 else None
            if other is None or other is value:
                continue
            found = None
            k = number(other, value)
            if is_op(user, "Mul"):
                step = affine_step(other.producer())
                if k is not None:
                    found = walk(user.outputs[0], factor * k, has_x, [*nodes, user])
                elif other is x and not has_x:
                    found = walk(user.outputs[0], factor, True, [*nodes, user])
                elif not has_x and step is not None and step[0] is x and step[2] == 0.0:
                    producer = other.producer()
                    assert producer is not None
                    found = walk(user.outputs[0], factor * step[1], True, [producer, *nodes, user])
            elif is_op(user, "Div") and index == 0 and k:
                found = walk(user.outputs[0], factor / k, has_x, [*nodes, user])
            if found is not None:
                return found
        return None

    return walk(start, 1.0, False, [])


def why_not_fuse(nodes: Sequence[ir.Node]) -> str | None:
    """Why the last of ``nodes`` cannot stand for all of them: something else reads a value between them."""
    members = set(nodes)
    if any(node.graph is not nodes[-1].graph or node.graph is None for node in nodes):
        return "a part of it is in another graph"
    for node in nodes[:-1]:
        for out in node.outputs:
            if out.is_graph_output():
                return "a value inside it is a graph output"
            if any(user not in members for user, _ in out.uses()):
                return "a value inside it has another consumer"
    return None


def fuse(
    model: ir.Model,
    nodes: Sequence[ir.Node],
    op: str,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    domain: str = "",
) -> str | None:
    """Put one node in the place of ``nodes``, whose last one makes the result; it keeps that one's key.

    Returns:
        Why it cannot be done (then nothing changed), or None.
    """
    nodes = list(dict.fromkeys(nodes))
    if why := why_not_fuse(nodes):
        return why
    last = nodes[-1]
    graph, out = last.graph, last.outputs[0]
    assert graph is not None
    if domain:
        model.opset_imports.setdefault(domain, 1)
    node = ir.node(op, inputs, attributes=attributes, domain=domain, name=last.name)
    graph.insert_before(last, node)
    node.metadata_props.update(last.metadata_props)
    for absorbed in nodes[:-1]:
        record_absorbed(node, absorbed)
    hand_over(out, node.outputs[0])
    remove(nodes)
    return None


def insert(
    model: ir.Model,
    before: ir.Node,
    op: str,
    inputs: Sequence[ir.Value | None],
    attributes: Mapping[str, Any] | None = None,
    *,
    shape: ir.Shape | None,
) -> ir.Value:
    """A new node before another of the same graph; its output has the type of the first input and a free name."""
    graph, source = before.graph, inputs[0]
    assert graph is not None
    assert source is not None
    taken = value_names(model) | {other.name for other in graph}
    base = name = f"{before.outputs[0].name}_{op.lower()}"
    n = 1
    while name in taken:
        n += 1
        name = f"{base}_{n}"
    node = ir.node(op, inputs, attributes=attributes, name=name)
    node.metadata_props[NODE_KEY] = name
    out = node.outputs[0]
    out.name, out.type, out.shape = name, source.type, shape
    graph.insert_before(before, node)
    return out


def hand_over(out: ir.Value, source: ir.Value) -> None:
    """Let ``source`` take name, type, shape and readers of ``out``, whose node is about to go."""
    name, out.name = out.name, None
    source.name, source.type, source.shape = name, out.type, out.shape
    if DERIVED in out.meta:
        source.meta[DERIVED] = out.meta[DERIVED]
    source.metadata_props.update(out.metadata_props)
    out.replace_all_uses_with(source, replace_graph_outputs=True)


def remove(nodes: Sequence[ir.Node]) -> None:
    """Remove nodes of one graph that nothing outside them reads, and the constants that only they read."""
    waiting, inputs = list(nodes), [value for node in nodes for value in node.inputs]
    while waiting:
        done = [node for node in waiting if not any(out.uses() for out in node.outputs)]
        assert done
        for node in done:
            assert node.graph is not None
            node.graph.remove(node, safe=True)
        waiting = [node for node in waiting if node not in done]
    drop_if_unused(*inputs)


def rewrite_each(*match: Callable[[ir.Model, ir.Node], bool | str]) -> Callable[[ir.Model], Rewritten]:
    """A rewrite that asks each node: True when it changed, False when it is no candidate, or why it was refused."""

    def rewrite(model: ir.Model) -> Rewritten:
        count, refusals = 0, []
        for node in nodes_of(model):
            for attempt in match:
                if node.graph is None:
                    break
                outcome = attempt(model, node)
                if isinstance(outcome, str):
                    refusals.append(Refusal(node_key(node), outcome))
                else:
                    count += outcome
        return Rewritten(count=count, refusals=tuple(refusals))

    return rewrite


def finite(*values: float) -> bool:
    """Whether all are numbers that a float32 attribute can hold."""
    return all(math.isfinite(v) and abs(v) < 3.4e38 for v in values)
