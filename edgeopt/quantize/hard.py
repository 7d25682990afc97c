"""HardSigmoid and HardSwish on integers, for a runtime that adds and multiplies them and has no kernel for either.

    x = s (q - z)
    HardSigmoid(x; a, b) = clip(a x + b, 0, 1) = Q(DQ(q; a s, z) + b; 1/255, 0)
    HardSwish(x)         = x HardSigmoid(x; 1/6, 1/2)

The factor a costs nothing: it is another scale of the same integers. Nor do the bounds: the grid of [0, 1] saturates
at them. HardSwish is rounded once more than it would be by a table, by at most x / 510.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeopt.model import NODE_KEY, node_key
from edgeopt.quantize.border import remove_dead
from edgeopt.quantize.scheme import activation_qparams
from edgeopt.quantize.writer import Writer

SPELLED = frozenset({"HardSigmoid", "HardSwish"})


def spell(writer: Writer, graph: ir.Graph, node: ir.Node) -> None:
    """Replace a node that reads DequantizeLinear and whose result is quantized; the last operator takes its key.

    The grids stand in the graph already: HardSigmoid's own result gets bounds from the quantizer behind it.
    """
    read = node.inputs[0]
    source = None if read is None else read.producer()
    assert read is not None
    assert source is not None
    assert source.op_type == "DequantizeLinear"
    scale = source.inputs[1]
    assert scale is not None
    assert scale.const_value is not None
    swish, base = node.op_type == "HardSwish", node_key(node)
    slope = 1 / 6 if swish else node.attributes.get_float("alpha", 0.2)
    offset = 0.5 if swish else node.attributes.get_float("beta", 0.5)
    zero = source.inputs[2]
    assert zero is not None
    assert zero.const_value is not None
    dtype = str(zero.const_value.numpy().dtype)

    def add(op: str, inputs: list[ir.Value | None], suffix: str) -> ir.Node:
        made = ir.node(op, inputs, name=writer.fresh(base, op))
        out = made.outputs[0]
        out.name, out.type, out.shape = writer.fresh(base, suffix), read.type, read.shape
        made.metadata_props[NODE_KEY] = str(made.name)
        graph.insert_before(node, made)
        return made

    step = writer.initializer(base, "scale", np.asarray(scale.const_value.numpy() * np.float32(slope), np.float32))
    steep = add("DequantizeLinear", [source.inputs[0], step, zero], "scaled")
    shift = writer.initializer(base, "offset", np.asarray(offset, np.float32))
    line = add("Add", [steep.outputs[0], shift], "line")
    constant = np.asarray(offset, np.float32)
    writer.operand(line, 1, constant, activation_qparams(float(constant), float(constant), dtype))
    last = line
    if swish:
        writer.pair(line.outputs[0], activation_qparams(0.0, 1.0, dtype), None)
        gate = _only_reader(_only_reader(line.outputs[0]).outputs[0]).outputs[0]
        last = add("Mul", [read, gate], "product")
    out, new = node.outputs[0], last.outputs[0]
    name, new.type, new.shape = out.name, out.type, out.shape
    out.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    remove_dead(graph, source)
    out.name, new.name = None, name
    last.name = last.metadata_props[NODE_KEY] = base
    last.metadata_props.update({k: v for k, v in node.metadata_props.items() if k != NODE_KEY})


def refuse(node: ir.Node) -> str | None:
    """A falling HardSigmoid has no positive scale."""
    falls = node.op_type == "HardSigmoid" and not node.attributes.get_float("alpha", 0.2) > 0
    return "it falls, and scales are positive" if falls else None


def _only_reader(value: ir.Value) -> ir.Node:
    return next(iter(value.uses())).node
