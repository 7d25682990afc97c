"""What stands in branches and loop bodies: those nodes stay float, and weights of the outer graph serve several."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from edgeopt.findings.finding import Finding, counted
from edgeopt.model import Model, node_key

WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators whose weights would be quantized in the main graph."""


def find(model: Model) -> tuple[Finding, ...]:
    """How many subgraphs hold weighted operators, and how many outer weights they share; nothing for plain graphs."""
    owners = [node for node in model.nodes() if any(True for _ in bodies(node))]
    if not owners:
        return ()
    weighted = [body for node in owners for body in bodies(node) if any(n.op_type in WEIGHTED for n in body)]
    outer = {v for body in weighted for v in _outer_weights(body)}
    text = f"{counted(sum(1 for n in owners for _ in bodies(n)), 'subgraph')} of {counted(len(owners), 'control node')}"
    if weighted:
        text += f", {len(weighted)} with weighted operators, which stay float"
    if outer:
        text += f"; they read {counted(len(outer), 'weight')} of the outer graph"
    return (Finding(kind="subgraphs", text=text, nodes=tuple(map(node_key, owners))),)


def not_quantized(model: Model) -> str | None:
    """The sentence for a build that tried int8: which subgraphs stayed float and why; None when there are none."""
    count = sum(any(n.op_type in WEIGHTED for n in body) for node in model.nodes() for body in bodies(node))
    if not count:
        return None
    return (
        f"{counted(count, 'subgraph')} not quantized: calibration sees tensors of the main graph only, and a branch "
        "that the samples never take would get no ranges"
    )


def bodies(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs that a node holds itself, without those nested in them."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def _outer_weights(body: ir.Graph) -> Iterator[ir.Value]:
    for node in body:
        for value in node.inputs if node.op_type in WEIGHTED else ():
            if value is not None and value.is_initializer() and value.graph is not body:
                yield value
