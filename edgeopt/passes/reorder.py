"""Nodes in the order with the lowest peak of live activations; ``_order`` has the algebra.

Every order that has a node behind those that it needs computes the same values: nothing but the list changes. A buffer
lives from the node that makes it to the last one that reads it. Reshape, Squeeze, Unsqueeze, Flatten and Identity only
name their input anew; a graph input and a graph output are held to the end. A node with subgraphs reads what they read
from outside, and their own order stays. A runtime has to be told to follow the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from edgeopt.memory import VIEWS
from edgeopt.passes import _order
from edgeopt.passes._pass import Pass, Refusal, Rewritten

_NO_WIDTH = frozenset({ir.DataType.STRING, ir.DataType.UNDEFINED})


def problem(
    graph: ir.Graph, dims: Mapping[str, int] | None = None
) -> tuple[list[tuple[int, int]], list[_order.Buffer]] | str:
    """Edges (before, after) and buffers of a graph's nodes by their place in the list; why not, where it has none.

    Args:
        dims: values of symbolic dims by name. A first axis that is not there counts as 1.
    """
    nodes = list(graph)
    place = {node: index for index, node in enumerate(nodes)}
    owner: dict[ir.Value, ir.Value] = {}
    readers: dict[ir.Value, set[int]] = {}
    edges: set[tuple[int, int]] = set()
    for index, node in enumerate(nodes):
        if node.domain in ("", "ai.onnx") and node.op_type in VIEWS and node.inputs and node.inputs[0] is not None:
            owner[node.outputs[0]] = owner.get(node.inputs[0], node.inputs[0])
        for value in reads(node):
            producer = value.producer()
            if producer is not None and (before := place.get(producer)) is not None:
                if before >= index:
                    return f"the node {node.name or node.op_type} stands before one that it needs"
                edges.add((before, index))
            readers.setdefault(owner.get(value, value), set()).add(index)
    held = {owner.get(value, value) for value in graph.outputs}
    buffers = []
    made = [(-1, value) for value in graph.inputs if not value.is_initializer()]
    made += [(index, value) for index, node in enumerate(nodes) for value in node.outputs if node.op_type != "Constant"]
    for index, value in made:
        if value in owner or not value.name:
            continue
        size = _bytes(value, dims or {})
        if size is None:
            return f"the shape of {value.name} is not known"
        keep = index < 0 or value in held
        buffers.append(_order.Buffer(size, index, tuple(sorted(readers.get(value, ()))), keep))
    return sorted(edges), buffers


def reorder(model: ir.Model, dims: Mapping[str, int] | None = None) -> _order.Found | str:
    """Put the main graph's nodes into the best order found, in place; why not, where it stays as it was.

    Args:
        dims: values of symbolic dims by name.

    Returns:
        The order as indices into the list before, with its peak in bytes.
    """
    graph = model.graph
    if len(graph) < 2:
        return "it has one order only"
    stated = problem(graph, dims)
    if isinstance(stated, str):
        return stated
    edges, buffers = stated
    nodes = list(graph)
    found = _order.best(len(nodes), edges, buffers)
    if found.order == tuple(range(len(nodes))):
        return f"{'no order has' if found.exact else 'no order was found with'} a lower peak than {found.peak:,} bytes"
    graph.remove(nodes)
    graph.extend(nodes[index] for index in found.order)
    return found


def peak_bytes(graph: ir.Graph, dims: Mapping[str, int] | None = None) -> int | None:
    """The peak that ``reorder`` lowers, in the order of the list; None where a shape is not known."""
    stated = problem(graph, dims)
    return None if isinstance(stated, str) else _order.peak(range(len(graph)), stated[1])


def reads(node: ir.Node) -> Iterator[ir.Value]:
    """Every value that a node needs, those that its subgraphs take from outside included."""
    yield from (value for value in node.inputs if value is not None)
    for attribute in node.attributes.values():
        bodies = ()  # type: tuple[ir.Graph, ...]
        if attribute.type == ir.AttributeType.GRAPH:
            bodies = (attribute.as_graph(),)
        elif attribute.type == ir.AttributeType.GRAPHS:
            bodies = tuple(attribute.as_graphs())
        for body in bodies:
            for inner in body:
                yield from reads(inner)
            yield from body.outputs


def _bytes(value: ir.Value, dims: Mapping[str, int]) -> int | None:
    if value.shape is None or value.dtype is None or value.dtype in _NO_WIDTH:
        return None
    sizes: list[int] = []
    for axis, dim in enumerate(value.shape):
        known = dim if isinstance(dim, int) else dims.get(str(dim.value), 1 if axis == 0 else None)
        if known is None:
            return None
        sizes.append(known)
    return math.ceil(math.prod(sizes) * value.dtype.bitwidth / 8)


def _rewrite(model: ir.Model) -> Rewritten:
    found = reorder(model)
    if isinstance(found, str):
        return Rewritten(count=0, refusals=(Refusal("model", found),))
    return Rewritten(count=sum(index != node for index, node in enumerate(found.order)))


REORDER = Pass(
    name="reorder-nodes",
    rewrite=_rewrite,
    tolerance=0.0,
    gain="a lower peak of live activations, the same values",
)
