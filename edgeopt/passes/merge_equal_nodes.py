"""Common subexpressions: f(x; a) computed twice in one graph is computed once.

1. Equal means same operator of the default domain, same inputs, same attributes, same outputs in use.
2. The first node stays and records the key of the other.
3. Left alone: random operators, operators with subgraphs, and nodes that make a graph output.
"""

from __future__ import annotations

from collections.abc import Hashable

import onnx_ir as ir

from edgeopt.passes._graph import drop_if_unused, record_absorbed
from edgeopt.passes._pass import Pass

RANDOM = frozenset(
    {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
"""Operators whose two copies are not equal."""

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _signature(node: ir.Node) -> Hashable:
    if node.domain != "" or node.op_type in RANDOM or not node.outputs:
        return None
    attributes: list[tuple[str, Hashable]] = []
    for name, attr in sorted(node.attributes.items()):
        if attr.type in _GRAPHS or attr.is_ref():
            return None
        value = attr.value
        if attr.type == ir.AttributeType.TENSOR:
            attributes.append((name, (value.dtype, tuple(value.shape), value.tobytes())))
        else:
            attributes.append((name, tuple(value) if isinstance(value, list | tuple) else value))
    inputs = tuple(None if v is None else id(v) for v in node.inputs)
    return node.op_type, inputs, tuple(attributes), tuple(bool(out.name) for out in node.outputs)


def _rewrite(model: ir.Model) -> int:
    count = 0
    for graph in list(model.graphs()):
        seen: dict[Hashable, ir.Node] = {}
        for node in list(graph):
            signature = _signature(node)
            if signature is None:
                continue
            first = seen.setdefault(signature, node)
            if first is node or any(out.is_graph_output() for out in node.outputs):
                continue
            for kept, gone in zip(first.outputs, node.outputs, strict=True):
                gone.replace_all_uses_with(kept)
            record_absorbed(first, node)
            inputs = node.inputs
            graph.remove(node, safe=True)
            drop_if_unused(*inputs)
            count += 1
    return count


MERGE_EQUAL_NODES = Pass(name="merge-equal-nodes", rewrite=_rewrite, tolerance=1e-6, gain="computed once")
