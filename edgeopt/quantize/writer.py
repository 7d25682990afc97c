"""Adds Q/DQ nodes and their constants to one graph, under names that no user tensor has."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Set

import numpy as np
import onnx_ir as ir

from edgeopt.model import NODE_KEY, node_key
from edgeopt.quantize.operators import input_name
from edgeopt.quantize.placement import Shield
from edgeopt.quantize.scheme import QParams, quantize

LONGEST_BASE = 32
"""Characters of a tensor's name that go into the names derived from it: some exporters write hundreds."""


class Writer:
    """Adds nodes and initializers to one graph under names that no user tensor has."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._names: set[str] = set()
        for part in (graph, *graph.subgraphs()):  # an inner name would hide an outer one
            self._names |= {str(v.name) for v in part.inputs} | set(part.initializers)
        for node in graph.all_nodes():
            self._names.update(str(v.name) for v in node.outputs)
            self._names.add(str(node.name))
        self._constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}  # by contents, as a digest
        self._replaced: list[ir.Value] = []

    def fresh(self, base: str, suffix: str) -> str:
        """The end of ``base`` with ``suffix``, and ``_2``, ``_3``, ... behind it when that is taken."""
        name = stem = f"{base[-LONGEST_BASE:]}_{suffix}"
        count = 1
        while name in self._names:
            count += 1
            name = f"{stem}_{count}"
        self._names.add(name)
        return name

    def initializer(self, base: str, suffix: str, array: np.ndarray) -> ir.Value:
        """A constant; equal ones are stored once, so a weight of two operators stays one."""
        key = (str(array.dtype), array.shape, hashlib.sha256(np.ascontiguousarray(array).data).digest())
        if key in self._constants:
            return self._constants[key]
        name = self.fresh(base, suffix)
        value = ir.Value(
            name=name,
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
            shape=ir.Shape(array.shape),
            const_value=ir.tensor(array, name=name),
        )
        self._graph.register_initializer(value)
        self._constants[key] = value
        return value

    def constant(self, node: ir.Node, index: int, integers: np.ndarray, scales: np.ndarray, axis: int | None) -> None:
        """Feed ``node`` from DQ(integers). A per-tensor scale is a scalar."""
        old = node.inputs[index]
        base = str(old.name) if old is not None else f"{node_key(node)}_bias"
        scale = self.initializer(base, "scale", np.asarray(scales, np.float32).reshape(() if axis is None else (-1,)))
        zeros = self.initializer(base, "zero_point", np.zeros(scales.shape if axis is not None else (), integers.dtype))
        inputs = [self.initializer(base, "quantized", integers), scale, zeros]
        attributes = {} if axis is None else {"axis": axis}
        dq = ir.node("DequantizeLinear", inputs, attributes=attributes, name=self.fresh(base, "DequantizeLinear"))
        dq.outputs[0].name = self.fresh(base, "dequantized")
        dq.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        dq.outputs[0].shape = ir.Shape(integers.shape)
        dq.metadata_props[NODE_KEY] = str(dq.name)
        self._graph.insert_before(node, dq)
        if old is not None:
            self._replaced.append(old)
        node.replace_input_with(index, dq.outputs[0])

    def operand(self, node: ir.Node, index: int, array: np.ndarray, params: QParams) -> None:
        """Feed ``node`` from DQ of a constant that an integer kernel reads like an activation."""
        base = input_name(node, index)
        scale = self.initializer(base, "scale", np.asarray(params.scale, np.float32))
        zero = self.initializer(base, "zero_point", np.asarray(params.zero_point, params.dtype))
        inputs = [self.initializer(base, "quantized", quantize(array, params)), scale, zero]
        dq = ir.node("DequantizeLinear", inputs, name=self.fresh(base, "DequantizeLinear"))
        out = dq.outputs[0]
        out.name, out.type, out.shape = (
            self.fresh(base, "dequantized"),
            ir.TensorType(ir.DataType.FLOAT),
            inputs[0].shape,
        )
        dq.metadata_props[NODE_KEY] = str(dq.name)
        self._graph.insert_before(node, dq)
        self.replace(node, index, out)

    def replace(self, node: ir.Node, index: int, new: ir.Value) -> None:
        """Feed ``node`` from ``new``; the constant that was read there goes when nothing else reads it."""
        if (old := node.inputs[index]) is not None:
            self._replaced.append(old)
        node.replace_input_with(index, new)

    def dequantize(
        self, value: ir.Value, source: ir.Value, params: QParams, readers: Callable[[ir.Node], bool]
    ) -> None:
        """Let ``readers`` of a value read DequantizeLinear of the bytes ``source`` that it is computed from."""
        name = str(value.name)
        uses = [use for use in value.uses() if readers(use.node)]
        if params.dtype == "int8":
            source = self._signed(source, name)
        scale = self.initializer(name, "scale", np.asarray(params.scale, np.float32))
        zero = self.initializer(name, "zero_point", np.asarray(params.zero_point, params.dtype))
        dq = ir.node("DequantizeLinear", [source, scale, zero], name=self.fresh(name, "DequantizeLinear"))
        out = dq.outputs[0]
        out.name, out.type, out.shape = self.fresh(name, "dequantized"), value.type, source.shape
        dq.metadata_props[NODE_KEY] = str(dq.name)
        for use in uses:
            use.node.replace_input_with(use.idx, out)
        self._insert_behind(source, [dq])

    def _signed(self, source: ir.Value, base: str) -> ir.Value:
        """u - 128 as a signed byte: turn over the first bit. A Transpose is left last, next to its reader."""
        mover = source.producer()
        moved = mover is not None and mover.op_type == "Transpose" and mover.inputs[0] is not None
        start = mover.inputs[0] if moved and mover is not None else source
        assert start is not None
        turned = ir.node("BitwiseXor", [start, self.initializer(base, "sign", np.asarray(128, np.uint8))])
        cast = ir.node("Cast", [turned.outputs[0]], attributes={"to": int(ir.DataType.INT8)})
        nodes = [turned, cast]
        if moved and mover is not None:
            nodes.append(
                ir.node("Transpose", [cast.outputs[0]], attributes={"perm": mover.attributes["perm"].as_ints()})
            )
        for node in nodes:
            node.name = node.metadata_props[NODE_KEY] = self.fresh(base, node.op_type)
            out = node.outputs[0]
            out.name, out.shape = self.fresh(base, "bytes"), start.shape
            out.type = ir.TensorType(ir.DataType.UINT8 if node is turned else ir.DataType.INT8)
        nodes[-1].outputs[0].shape = source.shape
        self._insert_behind(start, nodes)
        return nodes[-1].outputs[0]

    def _insert_behind(self, source: ir.Value, nodes: list[ir.Node]) -> None:
        producer = source.producer()
        if producer is None:
            self._graph.insert_before(self._graph[0], nodes)
        else:
            self._graph.insert_after(producer, nodes)

    def pair(self, value: ir.Value, params: QParams, readers: Callable[[ir.Node], bool] | None) -> None:
        """Put one Q/DQ pair on a value.

        Args:
            readers: who sees the dequantized value; None stands for all, graph outputs included.
        """
        uses = [use for use in value.uses() if readers is None or readers(use.node)]
        is_output = value.is_graph_output() and readers is None
        name = str(value.name)
        scale = self.initializer(name, "scale", np.asarray(params.scale, np.float32))
        zero = self.initializer(name, "zero_point", np.asarray(params.zero_point, params.dtype))
        q = ir.node("QuantizeLinear", [value, scale, zero], name=self.fresh(name, "QuantizeLinear"))
        q.outputs[0].name = self.fresh(name, "quantized")
        q.outputs[0].type = ir.TensorType(ir.DataType.INT8 if params.dtype == "int8" else ir.DataType.UINT8)
        dq = ir.node("DequantizeLinear", [q.outputs[0], scale, zero], name=self.fresh(name, "DequantizeLinear"))
        q.outputs[0].shape = dq.outputs[0].shape = value.shape
        dq.outputs[0].type = value.type
        for node in (q, dq):
            node.metadata_props[NODE_KEY] = str(node.name)
        for use in uses:
            use.node.replace_input_with(use.idx, dq.outputs[0])
        if is_output:
            value.name = self.fresh(name, "unquantized")
            dq.outputs[0].name = name
            for index, output in enumerate(self._graph.outputs):
                if output is value:
                    self._graph.outputs[index] = dq.outputs[0]
        else:
            dq.outputs[0].name = self.fresh(name, "dequantized")
        self._insert_behind(value, [q, dq])

    def shield(self, node: ir.Node, when: Shield, moves: Set[str], activations: Set[str]) -> None:
        """Put a one-input Max, which is the identity, between a float operator and the quantizer behind it.

        Args:
            when: what the runtime looks for before it quantizes the operator.
            moves: operator types that a DequantizeLinear or a QuantizeLinear is moved past.
            activations: operator types that it folds into a quantizer.
        """
        inputs = node.inputs if when.inputs is None else [node.inputs[i] for i in when.inputs]
        if not any(_dequantized(value, moves) for value in inputs):
            return
        for value in inputs:
            constant = value is not None and value.producer() is None and value.const_value is not None
            if value is not None and not _dequantized(value, moves) and not (constant and when.constants):
                return
        follower = node.outputs[0]
        passed = moves | activations
        while True:
            uses = list(follower.uses())
            if len(uses) != 1 or follower.is_graph_output():
                return
            reader = uses[0].node
            if reader.op_type == "QuantizeLinear":
                break
            if reader.op_type not in passed or uses[0].idx != 0 or reader.graph is not self._graph:
                return
            follower = reader.outputs[0]
        readers = list(node.outputs[0].uses())
        same = self._identity(node.outputs[0], node_key(node))
        for use in readers:
            use.node.replace_input_with(use.idx, same.outputs[0])
        self._graph.insert_after(node, same)

    def shield_subgraphs(self, makers: Set[str]) -> None:
        """Let subgraphs read what operators of the types ``makers`` make through an identity.

        onnxruntime 1.32 moves a DequantizeLinear past operators that only move values; it aborts, the process with
        it, where a subgraph reads their result.
        """
        for node in [n for n in self._graph if n.op_type in makers]:
            for value in node.outputs:
                if inner := [use for use in value.uses() if use.node.graph is not self._graph]:
                    same = self._identity(value, str(value.name))
                    for use in inner:
                        use.node.replace_input_with(use.idx, same.outputs[0])
                    self._graph.insert_after(node, same)

    def _identity(self, value: ir.Value, base: str) -> ir.Node:
        """A one-input Max of ``value``: an identity that no optimizer removes. The caller puts it into the graph."""
        node = ir.node("Max", [value], name=self.fresh(base, "shield"))
        same = node.outputs[0]
        same.name, same.type, same.shape = self.fresh(base, "shielded"), value.type, value.shape
        node.metadata_props[NODE_KEY] = str(node.name)
        return node

    def drop_unused_constants(self) -> None:
        """Float constants that nobody reads any more leave the graph."""
        for value in self._replaced:
            if not value.uses() and not value.is_graph_output() and value.name in self._graph.initializers:
                del self._graph.initializers[str(value.name)]


def _dequantized(value: ir.Value | None, moves: Set[str]) -> bool:
    """Whether a value comes from DequantizeLinear, straight or through operators that only move values."""
    maker = None if value is None else value.producer()
    while maker is not None and maker.op_type in moves and maker.inputs[0] is not None:
        maker = maker.inputs[0].producer()
    return maker is not None and maker.op_type == "DequantizeLinear"
