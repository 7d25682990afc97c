"""One node on its way to an older opset, and the edits that a rule may make to it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from edgeopt.model import NODE_KEY
from edgeopt.passes._graph import constant, input_at, register

FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def since(op: str, opset: int, domain: str = "") -> int | None:
    """The version of an operator that a model of ``opset`` uses; None when it has none there."""
    try:
        schema = onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        return None
    return None if schema.deprecated else int(schema.since_version)


@dataclasses.dataclass(kw_only=True)
class Site:
    """A node, the graph it stands in, and the nodes that are to take its place.

    Attributes:
        opset: the opset whose operators the rule writes; 13 at least.
        names: all value names of the model; new ones are added.
        made: nodes that the rule emitted, in order.
    """

    node: ir.Node
    graph: ir.Graph | ir.Function
    opset: int
    names: set[str]
    made: list[ir.Node] = dataclasses.field(default_factory=list)

    def input(self, index: int) -> ir.Value | None:
        """The input, None when it is omitted."""
        return input_at(self.node, index)

    def value(self, index: int) -> ir.Value:
        """An input that the schema requires."""
        found = self.input(index)
        assert found is not None
        return found

    def dtype(self, index: int = 0) -> ir.DataType | None:
        """The element type of an input, None when it is not known."""
        found = self.input(index)
        return None if found is None else found.dtype

    def drop(self, *names: str) -> None:
        """Remove attributes."""
        for name in names:
            self.node.attributes.pop(name, None)

    def cut_inputs(self, count: int) -> None:
        """Keep the first ``count`` inputs, without empty ones at the end."""
        inputs = list(self.node.inputs)[:count]
        while inputs and inputs[-1] is None:
            inputs.pop()
        for index in range(len(inputs), len(self.node.inputs)):
            self.node.replace_input_with(index, None)
        self.node.resize_inputs(len(inputs))

    def constant(self, array: Any, dtype: ir.DataType | None = None) -> ir.Value:
        """A constant for the node's graph: an initializer, in a function a Constant node."""
        made = np.asarray(array) if dtype is None else np.asarray(array).astype(dtype.numpy())
        name = self.fresh("const")
        if isinstance(self.graph, ir.Graph):
            return register(self.graph, name, made)
        node = ir.node("Constant", [], {"value": ir.AttrTensor("value", ir.tensor(made, name=name))})
        self.made.append(node)
        node.outputs[0].name, node.outputs[0].type = name, ir.TensorType(ir.DataType.from_numpy(made.dtype))
        return node.outputs[0]

    def known(self, index: int) -> Any | None:
        """The array of a constant input, from an initializer or a Constant node; None when it is not constant."""
        value = self.input(index)
        array = constant(value)
        producer = None if value is None else value.producer()
        if array is None and producer is not None and producer.op_type == "Constant" and producer.domain == "":
            held = producer.attributes.get("value")
            array = None if held is None else held.as_tensor().numpy()
        return array

    def add(self, op: str, *inputs: ir.Value | None, dtype: ir.DataType | None = None, **attributes: Any) -> ir.Value:
        """Emit a node of the default domain; its output has the type of its first input unless ``dtype`` says."""
        node = ir.node(op, inputs, attributes)
        first = next((v for v in inputs if v is not None), None)
        inherited = None if first is None else first.type
        [out] = node.outputs
        out.name, out.type = self.fresh(op.lower()), inherited if dtype is None else ir.TensorType(dtype)
        self.made.append(node)
        return out

    def fresh(self, word: str) -> str:
        """A value name that nothing in the model has."""
        base = f"{self.node.outputs[0].name}/{word}"
        name, n = base, 1
        while name in self.names:
            n += 1
            name = f"{base}_{n}"
        self.names.add(name)
        return name

    def replace(self, *values: ir.Value | None) -> None:
        """The node goes; its outputs are ``values``, made by ``add``, in order. None stands for an unused output."""
        node = self.node
        self.graph.insert_before(node, self.made)
        last = self.made[-1]
        last.name, last.doc_string = node.name, node.doc_string
        last.metadata_props.update(node.metadata_props)
        key = node.metadata_props.get(NODE_KEY)
        for other in self.made[:-1]:
            if key is not None:
                other.name = other.metadata_props[NODE_KEY] = f"{key}/{other.op_type}"
        for old, new in zip(node.outputs, values):
            if new is None:
                continue
            producer = new.producer()
            if producer not in self.made or new.is_graph_output():  # an input, or one value twice
                copy = ir.node("Identity", [new])
                self.made.append(copy)
                self.graph.insert_before(node, copy)
                new = copy.outputs[0]
            name, old.name = old.name, None
            new.name, new.type, new.shape = name, old.type, old.shape
            new.metadata_props.update(old.metadata_props)
            new.meta.update(old.meta)
            old.replace_all_uses_with(new, replace_graph_outputs=True)
        self.graph.remove(node, safe=True)
