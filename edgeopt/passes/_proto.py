"""A protobuf view of a model without its weights, for the parts of ``onnx`` that need a ``ModelProto``.

Initializers above ``LIGHT`` bytes become typed graph inputs of the view, so no weight is loaded, copied or pushed
through protobuf, whatever the size of the model. Small ones stay: shape inference reads them.
"""

from __future__ import annotations

import dataclasses

import onnx
import onnx_ir as ir

LIGHT = 1024
"""Largest initializer, in bytes, that stays in the view."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Heavy:
    """An initializer that was left out: its placeholder's name, its graph (by position) and the original value."""

    placeholder: str
    graph: int
    value: ir.Value


@dataclasses.dataclass(frozen=True, kw_only=True)
class LightModel:
    """The view and what is missing from it. Nodes are named ``"0"``, ``"1"``... in the order of ``nodes``."""

    proto: onnx.ModelProto
    heavy: tuple[Heavy, ...]
    nodes: tuple[ir.Node, ...]


def lighten(model: ir.Model, *, trusted_shapes: bool = True) -> LightModel:
    """Make the view; the model is not changed.

    Args:
        model: any model.
        trusted_shapes: keep the recorded shapes. False drops those that operators of the default domain make, graph
            outputs included, so that shape inference starts from the inputs.
    """
    nodes = tuple(model.graph.all_nodes())
    bare = model.clone()
    for i, node in enumerate(bare.graph.all_nodes()):
        node.name = str(i)
        if not trusted_shapes and node.domain == "":
            for out in node.outputs:
                out.shape = None
    heavy: list[Heavy] = []
    for index, (graph, original) in enumerate(zip(list(bare.graphs()), list(model.graphs()), strict=True)):
        for name, value in list(graph.initializers.items()):
            tensor = value.const_value
            if tensor is None:
                continue
            value.shape = ir.Shape(tensor.shape.numpy())
            value.type = ir.TensorType(tensor.dtype)
            if tensor.nbytes <= LIGHT:
                if isinstance(tensor, ir.ExternalTensor):
                    value.const_value = ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=name)
                continue
            graph.initializers.pop(name)
            value.const_value = None
            placeholder = name if index == 0 else f"{name}@{index}"
            value.name = placeholder
            if not value.is_graph_input():
                bare.graph.inputs.append(value)
            heavy.append(Heavy(placeholder=placeholder, graph=index, value=original.initializers[name]))
    return LightModel(proto=ir.to_proto(bare), heavy=tuple(heavy), nodes=nodes)


def restore_heavy(model: ir.Model, heavy: tuple[Heavy, ...]) -> None:
    """Turn the placeholders of ``model``, read back from a view, into initializers again."""
    graphs = list(model.graphs())
    inputs = {v.name: v for v in model.graph.inputs}
    for item in heavy:
        value = inputs[item.placeholder]
        if not item.value.is_graph_input():
            model.graph.inputs.remove(value)
        value.name = item.value.name
        value.const_value = item.value.const_value
        graphs[item.graph].register_initializer(value)
