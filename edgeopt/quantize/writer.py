"""Adds Q/DQ nodes and their constants to one graph, under names that no user tensor has."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeopt.model import NODE_KEY, node_key
from edgeopt.quantize.scheme import QParams

SHARED_BYTES = 8192
"""Equal scales, zero points and biases up to this size are stored once."""


class Writer:
    """Adds nodes and initializers to one graph under names that no user tensor has."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._names = {str(v.name) for v in graph.inputs} | set(graph.initializers)
        for node in graph.all_nodes():
            self._names.update(str(v.name) for v in node.outputs)
            self._names.add(str(node.name))
        self._constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}
        self._replaced: list[ir.Value] = []

    def fresh(self, base: str) -> str:
        """``base``, or ``base_2``, ``base_3``, ... when it is taken."""
        name, suffix = base, 1
        while name in self._names:
            suffix += 1
            name = f"{base}_{suffix}"
        self._names.add(name)
        return name

    def initializer(self, base: str, array: np.ndarray) -> ir.Value:
        """A constant; equal small ones (scales, zero points) are shared."""
        key = (str(array.dtype), array.shape, array.tobytes() if array.nbytes <= SHARED_BYTES else b"")
        if array.nbytes <= SHARED_BYTES and key in self._constants:
            return self._constants[key]
        name = self.fresh(base)
        value = ir.Value(
            name=name,
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
            shape=ir.Shape(array.shape),
            const_value=ir.tensor(array, name=name),
        )
        self._graph.register_initializer(value)
        if array.nbytes <= SHARED_BYTES:
            self._constants[key] = value
        return value

    def constant(self, node: ir.Node, index: int, integers: np.ndarray, scales: np.ndarray, axis: int | None) -> None:
        """Feed ``node`` from DQ(integers). A per-tensor scale is a scalar."""
        old = node.inputs[index]
        base = str(old.name) if old is not None else f"{node_key(node)}_bias"
        scale = self.initializer(f"{base}_scale", np.asarray(scales, np.float32).reshape(() if axis is None else (-1,)))
        zeros = self.initializer(
            f"{base}_zero_point", np.zeros(scales.shape if axis is not None else (), integers.dtype)
        )
        inputs = [self.initializer(f"{base}_quantized", integers), scale, zeros]
        attributes = {} if axis is None else {"axis": axis}
        dq = ir.node("DequantizeLinear", inputs, attributes=attributes, name=self.fresh(f"{base}_DequantizeLinear"))
        dq.outputs[0].name = self.fresh(f"{base}_dequantized")
        dq.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        dq.outputs[0].shape = ir.Shape(integers.shape)
        dq.metadata_props[NODE_KEY] = str(dq.name)
        self._graph.insert_before(node, dq)
        if old is not None:
            self._replaced.append(old)
        node.replace_input_with(index, dq.outputs[0])

    def pair(self, value: ir.Value, params: QParams) -> None:
        """Put one Q/DQ pair on a value; every reader, graph outputs included, sees the dequantized one."""
        uses = list(value.uses())
        is_output = value.is_graph_output()
        producer = value.producer()
        name = str(value.name)
        scale = self.initializer(f"{name}_scale", np.asarray(params.scale, np.float32))
        zero = self.initializer(f"{name}_zero_point", np.asarray(params.zero_point, params.dtype))
        q = ir.node("QuantizeLinear", [value, scale, zero], name=self.fresh(f"{name}_QuantizeLinear"))
        q.outputs[0].name = self.fresh(f"{name}_quantized")
        q.outputs[0].type = ir.TensorType(ir.DataType.INT8 if params.dtype == "int8" else ir.DataType.UINT8)
        dq = ir.node("DequantizeLinear", [q.outputs[0], scale, zero], name=self.fresh(f"{name}_DequantizeLinear"))
        q.outputs[0].shape = dq.outputs[0].shape = value.shape
        dq.outputs[0].type = value.type
        for node in (q, dq):
            node.metadata_props[NODE_KEY] = str(node.name)
        for use in uses:
            use.node.replace_input_with(use.idx, dq.outputs[0])
        if is_output:
            value.name = self.fresh(f"{name}_unquantized")
            dq.outputs[0].name = name
            self._graph.outputs[list(self._graph.outputs).index(value)] = dq.outputs[0]
        else:
            dq.outputs[0].name = self.fresh(f"{name}_dequantized")
        if producer is None:
            self._graph.insert_before(self._graph[0], [q, dq])
        else:
            self._graph.insert_after(producer, [q, dq])

    def shield(self, node: ir.Node) -> None:
        """Put a one-input Max, which is the identity, between a float operator and the quantizer behind it."""
        source = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
        uses = list(node.outputs[0].uses())
        if source is None or source.op_type != "DequantizeLinear" or len(uses) != 1:
            return
        if uses[0].node.op_type != "QuantizeLinear":
            return
        value = node.outputs[0]
        same = ir.node("Max", [value], name=self.fresh(f"{node_key(node)}_shield"))
        same.outputs[0].name = self.fresh(f"{value.name}_shielded")
        same.outputs[0].type, same.outputs[0].shape = value.type, value.shape
        same.metadata_props[NODE_KEY] = str(same.name)
        uses[0].node.replace_input_with(uses[0].idx, same.outputs[0])
        self._graph.insert_after(node, same)

    def drop_unused_constants(self) -> None:
        """Float constants that nobody reads any more leave the graph."""
        for value in self._replaced:
            if not value.uses() and not value.is_graph_output() and value.name in self._graph.initializers:
                del self._graph.initializers[str(value.name)]
