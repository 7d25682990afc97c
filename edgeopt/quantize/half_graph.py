"""Write a graph in which chosen operators compute in float16, with casts where the types meet.

Values that enter or leave a graph, the bodies of If and Loop among them, keep float32. An operator that computes in
float32 reads its larger constants from float16 through a Cast, which a runtime folds when it loads the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from edgeopt.model import NODE_KEY, Model, assign_keys, node_key
from edgeopt.quantize.half_rules import LOST, MOVES, loss, slots
from edgeopt.quantize.magnitudes import is_single
from edgeopt.quantize.writer import Writer

STORED_BYTES = 1_024
"""A smaller constant of an operator in float32 is not worth a Cast."""

HALF, SINGLE = ir.DataType.FLOAT16, ir.DataType.FLOAT


def write(model: Model, single: Mapping[str, str], untouched: Callable[[ir.Node], bool], *, interface: bool) -> Model:
    """A copy in which every node that ``single`` does not name computes in float16.

    Args:
        single: reasons by key of the nodes that compute in float32.
        untouched: nodes whose constants stay float32 too.
        interface: give the main graph float16 inputs and outputs as well.
    """
    changed = model.clone()
    opset = changed.ir.opset_imports.get("", 1)
    casts = _Casts(changed.graph)
    for node in list(changed.graph.all_nodes()):
        free = slots(node, opset)
        if node_key(node) in single or free is None:
            halves: tuple[list[bool], list[bool]] = ([False] * len(node.inputs), [False] * len(node.outputs))
        else:
            halves = _wanted(node, free, casts)
        for index, value in enumerate(node.inputs):
            if value is not None and (is_single(value) or value in casts.halves):
                stored = not untouched(node) and node.op_type != "Resize"
                casts.read(node, index, value, half=halves[0][index], stored=stored)
        for value, half in zip(node.outputs, halves[1], strict=True):
            if half and is_single(value):
                value.type = ir.TensorType(HALF)
                casts.halves.add(value)
    for graph in (changed.graph, *changed.graph.subgraphs()):
        casts.restore_outputs(graph, half=interface and graph is changed.graph)
    if interface:
        casts.take_halves(changed.graph)
    casts.finish()
    changed.graph.sort()
    assign_keys(changed.ir)
    return changed


def _wanted(node: ir.Node, free: tuple[list[str], list[str]], casts: _Casts) -> tuple[list[bool], list[bool]]:
    """Which inputs and outputs of a node are float16. Casts, moves and what makes no floats take what there is."""
    marks, made = free
    fed = {mark for mark, v in zip(marks, node.inputs, strict=True) if mark and (is_single(v) or v in casts.halves)}
    if node.op_type in ("Cast", "CastLike", "Constant"):
        return [False] * len(marks), [False] * len(made)
    makes = [bool(mark) and mark in fed and is_single(v) for mark, v in zip(made, node.outputs, strict=True)]
    half = True
    if not any(makes) or node.op_type in MOVES:
        float_inputs = [v for v in node.inputs if v is not None and (is_single(v) or v in casts.halves)]
        half = bool(float_inputs) and all(v in casts.halves for v in float_inputs)
        if node.op_type in MOVES and float_inputs and float_inputs[0].const_value is not None:
            half = True  # an embedding
    return [half and bool(mark) for mark in marks], [half and m for m in makes]


class _Casts:
    """The casts of one model, at most one a value and direction, and its constants in float16."""

    def __init__(self, graph: ir.Graph) -> None:
        self.halves: set[ir.Value] = set()
        self._main = graph
        self._names = Writer(graph)
        self._cast: dict[ir.Value, ir.Value] = {}
        self._constant: dict[ir.Value, ir.Value] = {}
        self._owner = {
            v: part for part in (graph, *graph.subgraphs()) for v in (*part.inputs, *part.initializers.values())
        }
        self._replaced: list[ir.Value] = []

    def read(self, node: ir.Node, index: int, value: ir.Value, *, half: bool, stored: bool) -> None:
        """Let a node read a value as float16 or float32; a constant may be ``stored`` in float16 all the same."""
        constant = value.const_value is not None and not value.is_graph_input() and value.producer() is None
        if constant and value.const_value is not None:
            tensor = value.const_value
            if half:
                new = self._half_constant(value)
            elif stored and tensor.nbytes >= STORED_BYTES and loss(tensor) <= LOST:
                new = self._cast_of(self._half_constant(value), SINGLE, self._owner[value])
            else:
                return
            self._replaced.append(value)
        elif half == (value in self.halves):
            return
        else:
            new = self._cast_of(value, HALF if half else SINGLE, self._home(value))
        node.replace_input_with(index, new)

    def restore_outputs(self, graph: ir.Graph, *, half: bool) -> None:
        """Graph outputs that are float16 now are cast back under their names, or the other way round."""
        for index, value in enumerate(graph.outputs):
            if not (value in self.halves or (half and is_single(value))) or half == (value in self.halves):
                continue
            name = str(value.name)
            new = self._node(value, HALF if half else SINGLE, graph)
            if value.is_graph_input() or value.producer() is None:
                graph.outputs[index] = new
                continue
            value.name = self._names.fresh(name, "half" if not half else "single")
            new.name = name
            for place, other in enumerate(graph.outputs):
                if other is value:
                    graph.outputs[place] = new

    def take_halves(self, graph: ir.Graph) -> None:
        """Float16 graph inputs: casts of them fall away, other readers get one."""
        for value in graph.inputs:
            if not is_single(value) or value.is_initializer():
                continue
            value.type = ir.TensorType(HALF)
            made = self._cast.get(value)
            others = [use for use in value.uses() if made is None or use.node is not made.producer()]
            if made is not None:
                for use in list(made.uses()):
                    use.node.replace_input_with(use.idx, value)
                maker = made.producer()
                assert maker is not None
                graph.remove(maker, safe=True)
            if others:
                wide = self._node(value, SINGLE, graph)
                for use in others:
                    use.node.replace_input_with(use.idx, wide)

    def finish(self) -> None:
        """Float32 constants that nobody reads any more leave their graphs."""
        for value in self._replaced:
            owner = self._owner[value]
            if not value.uses() and not value.is_graph_output() and value.name in owner.initializers:
                del owner.initializers[str(value.name)]

    def _home(self, value: ir.Value) -> ir.Graph:
        producer = value.producer()
        if producer is None:
            return self._owner.get(value, self._main)
        assert isinstance(producer.graph, ir.Graph)
        return producer.graph

    def _cast_of(self, value: ir.Value, to: ir.DataType, graph: ir.Graph) -> ir.Value:
        if value not in self._cast:
            self._cast[value] = self._node(value, to, graph)
        return self._cast[value]

    def _node(self, value: ir.Value, to: ir.DataType, graph: ir.Graph) -> ir.Value:
        base, what = str(value.name), "half" if to == HALF else "single"
        node = ir.node("Cast", [value], attributes={"to": int(to)}, name=self._names.fresh(base, "Cast"))
        node.metadata_props[NODE_KEY] = str(node.name)
        out = node.outputs[0]
        out.name, out.type, out.shape = self._names.fresh(base, what), ir.TensorType(to), value.shape
        producer = value.producer()
        if producer is not None:
            graph.insert_after(producer, node)
        elif len(graph):
            graph.insert_before(graph[0], node)
        else:
            graph.append(node)
        return out

    def _half_constant(self, value: ir.Value) -> ir.Value:
        if value not in self._constant:
            tensor = value.const_value
            assert tensor is not None
            with np.errstate(over="ignore"):
                array = tensor.numpy().astype(np.float16)
            name = self._names.fresh(str(value.name), "half")
            new = ir.Value(
                name=name,
                type=ir.TensorType(HALF),
                shape=ir.Shape(array.shape),
                const_value=ir.tensor(array, name=name),
            )
            self._owner[value].register_initializer(new)
            self._owner[new] = self._owner[value]
            self._constant[value] = new
        return self._constant[value]
