"""Tied weights: one table that an embedding gathers from and an output layer multiplies by, stored once, in int8.

    Gather(W, i)               becomes   Cast(Gather(Wq, i)) * Gather(s, i)      (s: one scale a row)
    MatMul(x, Transpose(W))    becomes   MatMul(x, DQ(Transpose(Wq), s, axis=1))

The placement sees constants only, so a Transpose of a shared weight is materialized for the time of the quantization
(``untie``) and put back behind the integers (``retie``): no file ever holds the transposed copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from edgeopt.model import NODE_KEY, Model, node_key
from edgeopt.quantize.placement import constant_of
from edgeopt.quantize.writer import Writer

SOURCE = "edgeopt.transpose_of"
"""Metadata of a materialized weight: the name of the shared one."""


def untie(model: Model) -> Model:
    """Materialize every Transpose of a constant float matrix that only MatMuls multiply by; else the model given."""
    if not any(_is_tie(node) for node in model.graph):
        return model
    changed = model.clone()
    for node in [node for node in changed.graph if _is_tie(node)]:
        source, out = node.inputs[0], node.outputs[0]
        assert source is not None
        assert source.const_value is not None
        name = str(out.name)
        out.name = None
        tensor = ir.Tensor(np.ascontiguousarray(source.const_value.numpy().T), name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
        value.metadata_props[SOURCE] = str(source.name)
        changed.graph.register_initializer(value)
        out.replace_all_uses_with(value)
        changed.graph.remove(node, safe=True)
    return changed


def retie(graph: ir.Graph, source: ir.Graph) -> dict[str, str]:
    """Put the transposes back, and let embeddings read the integers of the layers they share a table with.

    Args:
        graph: the quantized graph; edited in place.
        source: the float graph it was made from, as ``untie`` left it.

    Returns:
        A note for every embedding that now reads integers, by node key.
    """
    layers = _layers(graph, source)
    if not layers:
        return {}
    writer = Writer(graph)
    notes: dict[str, str] = {}
    for name, users in layers.items():
        table = graph.initializers.get(name)
        integer = [(dq, turned) for dq, turned in users if dq.op_type == "DequantizeLinear"]
        in_float = table is None or len(integer) < len(users)
        gathers = [] if table is None or in_float else _gathers(table, graph)
        integer.sort(key=lambda user: user[1])
        if integer and (gathers or len(integer) > 1):
            rows = _rows(writer, *integer[0])
            for dq, turned in integer:
                _read_rows(writer, graph, dq, turned, rows)
            for node in gathers:
                _gather_rows(writer, graph, node, integer[0][0], turned=integer[0][1], rows=rows)
                notes[node_key(node)] = "reads the int8 table of the layer that it shares it with"
        for user, turned in users:
            if turned and user.op_type != "DequantizeLinear" and table is not None:
                _restore(writer, graph, user, table)
    for value in [v for v in graph.initializers.values() if not v.uses() and not v.is_graph_output()]:
        if value.name in layers or SOURCE in value.metadata_props or value.dtype == ir.DataType.INT8:
            graph.initializers.pop(str(value.name))
    graph.sort()
    return notes


def _is_tie(node: ir.Node) -> bool:
    if node.domain != "" or node.op_type != "Transpose" or node.outputs[0].is_graph_output():
        return False
    weight = constant_of(node, 0)
    if weight is None or len(weight.shape) != 2 or list(node.attributes.get_ints("perm", [1, 0])) != [1, 0]:
        return False
    uses = node.outputs[0].uses()
    return bool(uses) and all(u.node.op_type == "MatMul" and u.idx == 1 and u.node.graph is node.graph for u in uses)


def _layers(graph: ir.Graph, source: ir.Graph) -> dict[str, list[tuple[ir.Node, bool]]]:
    """By the name of a weight: DequantizeLinear of its integers, or the layer itself where it stayed float; turned."""
    nodes = {node_key(node): node for node in graph}
    layers: dict[str, list[tuple[ir.Node, bool]]] = {}
    seen: set[ir.Node] = set()
    for node in source:
        if node.op_type not in ("MatMul", "Gemm") or constant_of(node, 1) is None or node_key(node) not in nodes:
            continue
        value, layer = node.inputs[1], nodes[node_key(node)]
        assert value is not None
        now = layer.inputs[1]
        maker = None if now is None else now.producer()
        turned = SOURCE in value.metadata_props
        user = maker if maker is not None and maker.op_type == "DequantizeLinear" else layer
        if user not in seen:
            seen.add(user)
            layers.setdefault(value.metadata_props.get(SOURCE, str(value.name)), []).append((user, turned))
    return layers


def _gathers(table: ir.Value, graph: ir.Graph) -> list[ir.Node]:
    """The readers of a table when all of them are embeddings of the main graph, else none."""
    uses = table.uses()
    good = all(
        u.node.op_type == "Gather"
        and u.idx == 0
        and u.node.graph is graph
        and u.node.attributes.get_int("axis", 0) == 0
        for u in uses
    )
    return [u.node for u in uses] if good and not table.is_graph_output() else []


def _rows(writer: Writer, dq: ir.Node, turned: bool) -> ir.Value:
    """The integers as the table has its rows."""
    value = dq.inputs[0]
    assert value is not None
    assert value.const_value is not None
    if not turned:
        return value
    return writer.initializer(str(value.name), "rows", np.ascontiguousarray(value.const_value.numpy().T))


def _read_rows(writer: Writer, graph: ir.Graph, dq: ir.Node, turned: bool, rows: ir.Value) -> None:
    """Let a layer read ``rows`` where its own integers are the same."""
    own = dq.inputs[0]
    assert own is not None
    assert own.const_value is not None
    assert rows.const_value is not None
    mine = own.const_value.numpy().T if turned else own.const_value.numpy()
    if own is rows or not np.array_equal(mine, rows.const_value.numpy()):
        return
    if not turned:
        dq.replace_input_with(0, rows)
        return
    node = _node(writer, "Transpose", [rows], f"{own.name}", attributes={"perm": [1, 0]})
    node.outputs[0].type, node.outputs[0].shape = ir.TensorType(ir.DataType.INT8), own.shape
    dq.replace_input_with(0, node.outputs[0])
    graph.insert_before(dq, node)


def _gather_rows(writer: Writer, graph: ir.Graph, node: ir.Node, dq: ir.Node, *, turned: bool, rows: ir.Value) -> None:
    """Gather integers, then dequantize what was gathered."""
    scale, out, base = dq.inputs[1], node.outputs[0], node_key(node)
    assert scale is not None
    assert scale.const_value is not None
    node.replace_input_with(0, rows)
    made = _node(writer, "Gather", [rows, node.inputs[1]], base, attributes={"axis": 0})
    cast = _node(writer, "Cast", [made.outputs[0]], base, attributes={"to": int(ir.DataType.FLOAT)})
    steps = [made, cast]
    axis = dq.attributes.get_int("axis", 1)
    if len(scale.const_value.shape) == 1 and axis == int(turned):  # one scale a row
        column = writer.initializer(str(scale.name), "column", scale.const_value.numpy().reshape(-1, 1))
        picked = _node(writer, "Gather", [column, node.inputs[1]], base, attributes={"axis": 0})
        steps.append(picked)
        factor = picked.outputs[0]
    else:
        factor = scale  # a scalar, or one a column: broadcasts along the last axis
    scaled = _node(writer, "Mul", [cast.outputs[0], factor], base)
    name, scaled.outputs[0].type, scaled.outputs[0].shape = out.name, out.type, out.shape
    out.replace_all_uses_with(scaled.outputs[0], replace_graph_outputs=True)
    graph.insert_before(node, [*steps, scaled])
    graph.remove(node, safe=True)
    out.name = None
    scaled.outputs[0].name = name
    made.name = made.metadata_props[NODE_KEY] = base  # it stands for the embedding in every report


def _restore(writer: Writer, graph: ir.Graph, layer: ir.Node, table: ir.Value) -> None:
    """A layer that stayed float multiplies by the transpose of the table again."""
    weight = layer.inputs[1]
    if weight is None or SOURCE not in weight.metadata_props:
        return
    node = _node(writer, "Transpose", [table], str(weight.name), attributes={"perm": [1, 0]})
    node.outputs[0].type, node.outputs[0].shape = weight.type, weight.shape
    for use in list(weight.uses()):
        use.node.replace_input_with(use.idx, node.outputs[0])
    graph.insert_before(graph[0], node)


def _node(
    writer: Writer, op: str, inputs: list[ir.Value | None], base: str, attributes: dict[str, Any] | None = None
) -> ir.Node:
    node = ir.node(op, inputs, attributes=attributes or {}, name=writer.fresh(base, op))
    node.outputs[0].name = writer.fresh(base, f"{op.lower()}d")
    node.metadata_props[NODE_KEY] = str(node.name)
    return node
