"""Adds operators before others in any graph of a model, and constants that all graphs can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from edgeopt.model import ABSORBED, NODE_KEY, Model, node_key
from edgeopt.quantize.writer import Writer

LARGE = 16_384
"""Bytes from which on a constant is stored behind the others."""

Attributes = Mapping[str, int | float | str | Sequence[int]]


class Emitter:
    """Writes into a model that may be edited. Constants go to the main graph, which every subgraph sees."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._writer = Writer(model.graph)
        self._replaced: dict[ir.Value, None] = {}
        self._small: dict[tuple[tuple[int, ...], bytes], ir.Value] = {}

    def constant(self, base: str, suffix: str, array: npt.ArrayLike) -> ir.Value:
        """A constant; equal ones are stored once."""
        return self._writer.initializer(base, suffix, np.asarray(array))

    def small(self, base: str, suffix: str, integers: np.ndarray) -> ir.Value:
        """A constant of integers in 0..15, stored in 4 bits each; equal ones are stored once."""
        packed = integers.astype(ir.DataType.UINT4.numpy())
        key = (integers.shape, integers.tobytes())
        if key not in self._small:
            name = self._writer.fresh(base, suffix)
            tensor = ir.tensor(packed, dtype=ir.DataType.UINT4, name=name)
            value = ir.Value(
                name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(integers.shape), const_value=tensor
            )
            self.model.graph.register_initializer(value)
            self._small[key] = value
        return self._small[key]

    def matrix(self, node: ir.Node) -> ir.Value:
        """The first factor of a MatMul or Gemm, a Gemm's transA done."""
        source = node.inputs[0]
        assert source is not None
        if not node.attributes.get_int("transA", 0):
            return source
        return self.before(node, "Transpose", [source], attributes={"perm": [1, 0]}).outputs[0]

    def biased(self, node: ir.Node, product: ir.Node) -> ir.Node:
        """``product`` plus the bias of the Gemm that it stands for, beta times."""
        bias = node.inputs[2] if node.op_type == "Gemm" and len(node.inputs) > 2 else None
        beta = np.float32(node.attributes.get_float("beta", 1.0))
        if bias is None:
            return product
        base = node_key(node)
        if beta != 1 and bias.const_value is not None and not bias.is_graph_input():
            bias = self.constant(base, "bias", bias.const_value.numpy() * beta)
        elif beta != 1:
            bias = self.before(node, "Mul", [bias, self.constant(base, "beta", beta)]).outputs[0]
        return self.before(node, "Add", [product.outputs[0], bias])

    def before(
        self,
        node: ir.Node,
        op: str,
        inputs: Sequence[ir.Value | None],
        *,
        dtype: ir.DataType | None = ir.DataType.FLOAT,
        shape: ir.Shape | None = None,
        attributes: Attributes | None = None,
        domain: str = "",
        outputs: int = 1,
    ) -> ir.Node:
        """Insert an operator before ``node``, in its graph."""
        base = node_key(node)
        made = ir.node(op, inputs, attributes=dict(attributes or {}), domain=domain, num_outputs=outputs)
        made.name = made.metadata_props[NODE_KEY] = self._writer.fresh(base, op)
        for out in made.outputs:
            out.name = self._writer.fresh(base, f"{op.lower()}_out")
            out.type = None if dtype is None else ir.TensorType(dtype)
            out.shape = shape
        graph = node.graph
        assert graph is not None
        graph.insert_before(node, made)
        return made

    def feed(self, node: ir.Node, index: int, value: ir.Value) -> None:
        """Let ``node`` read ``value``; what it read goes when nobody else reads it (``sweep``)."""
        if (old := node.inputs[index]) is not None:
            self._replaced[old] = None
        node.replace_input_with(index, value)

    def stand_in(self, node: ir.Node, last: ir.Node, main: ir.Node) -> None:
        """``last`` takes the place of ``node``: its result, its name and its readers; ``main`` takes its key."""
        out, new = node.outputs[0], last.outputs[0]
        name, new.type, new.shape = out.name, out.type, out.shape
        out.replace_all_uses_with(new, replace_graph_outputs=True)
        for value in node.inputs:
            if value is not None:
                self._replaced[value] = None
        graph = node.graph
        assert graph is not None
        graph.remove(node, safe=True)
        out.name = None
        new.name = name
        main.name = main.metadata_props[NODE_KEY] = node_key(node)
        if ABSORBED in node.metadata_props:
            main.metadata_props[ABSORBED] = node.metadata_props[ABSORBED]

    def replaced(self, value: ir.Value) -> None:
        """Mark a constant as read no more by one operator; it goes at the end when nobody else reads it."""
        self._replaced[value] = None

    def swap(
        self,
        node: ir.Node,
        op: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, ir.Attr],
        *,
        domain: str,
    ) -> ir.Node:
        """Another operator with the same outputs, name and key in the place of ``node``."""
        made = ir.Node(domain, op, inputs, list(attributes.values()), num_outputs=len(node.outputs), name=node.name)
        made.metadata_props.update(node.metadata_props)
        graph = node.graph
        assert graph is not None
        graph.insert_before(node, made)
        names = [value.name for value in node.outputs]
        for old, new in zip(node.outputs, made.outputs, strict=True):
            new.type, new.shape = old.type, old.shape
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        for old, new, name in zip(node.outputs, made.outputs, names, strict=True):
            old.name, new.name = None, name
        return made

    def finish(self) -> None:
        """Remove what nobody reads any more, order the nodes, and put the small constants before the large ones.

        A runtime that loads constants in the order of the file leaves fewer holes in its heap: 6 MB of 99 with the
        small ones between the large ones of a sentence encoder (measured).
        """
        self._sweep()
        for graph in self.model.ir.graphs():
            graph.sort()
        initializers = self.model.graph.initializers
        values = list(initializers.values())
        initializers.clear()
        for large in (False, True):
            for value in values:
                size = 0 if value.const_value is None else value.const_value.nbytes
                if (size >= LARGE) == large:
                    initializers[str(value.name)] = value

    def _sweep(self) -> None:
        """Remove replaced constants, and what arranged them, where nobody reads them any more."""
        pending = list(self._replaced)
        while pending:
            value = pending.pop()
            if value.uses() or value.is_graph_output() or value.is_graph_input():
                continue
            maker = value.producer()
            if maker is not None:
                if maker.graph is not None and not any(o.uses() or o.is_graph_output() for o in maker.outputs):
                    pending += [v for v in maker.inputs if v is not None]
                    maker.graph.remove(maker, safe=True)
            elif value.graph is not None and value.name in value.graph.initializers:
                del value.graph.initializers[str(value.name)]
