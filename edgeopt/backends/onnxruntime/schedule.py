"""The calls of onnxruntime's CPU provider as a list of steps: what each one reads, makes, and needs as work space.

1. Where weights of float convolutions lie in blocks of channels, so do the tensors between them: a convolution makes
   such a tensor, padded to whole blocks, and reads one, but for a first layer of few channels. Pooling, unary
   operators, sums and joins stay in blocks when all they read is. Every other reader gets a copy in the plain layout,
   made once; a convolution behind one makes a copy in blocks again.
2. Element-wise operators work in place where nothing else reads their input.
3. A convolution in blocks whose result is only added to a tensor that is read for the last time adds on top of it.
4. Views, and floats that only integer kernels would see, cost nothing (``edgeopt.memory``).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import onnx_ir as ir

from edgeopt.backends.onnxruntime.packing import blocked_weight, scratch
from edgeopt.memory import VIEWS, Buffers, Rules, Sizes
from edgeopt.memory.liveness import peak_inside
from edgeopt.model import node_key

_UNARY = frozenset({"Relu", "Clip", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Gelu", "Elu"})
_SUMS = frozenset({"Add", "Sum"})
IN_PLACE = _UNARY - {"Gelu"} | _SUMS | {"Sub", "Mul", "Div", "Abs", "Neg", "Exp", "Sqrt", "Log", "Softplus", "Erf"}
"""Operators that write over an input of the same size that nothing else reads."""

INTEGER = frozenset(
    {"Conv", "MatMul", "Gemm", "Add", "Mul", "Sigmoid", "LeakyRelu", "Softmax", "Concat", "AveragePool", "MaxPool"}
    | {"GlobalAveragePool", "Resize", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Gather", "Split"}
    | {"Slice", "Pad", "Where", "Relu", "Clip", "ReduceMin", "ReduceMax", "ArgMax", "Expand", "DepthToSpace"}
)
"""Operators that have integer kernels, or only move values."""

RULES = Rules(in_place=IN_PLACE, integer=INTEGER)

_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"})

Place = tuple[ir.Value, bool]
"""A buffer: the value that owns it, and whether it is the one in blocks."""


class Step(NamedTuple):
    """One kernel.

    Attributes:
        key: of the node.
        made: buffers that it fills, with their bytes.
        work: bytes of its work space.
        dead: buffers that nothing needs after it.
    """

    key: str
    made: list[tuple[Place, int]]
    work: list[int]
    dead: list[Place]


class Schedule(NamedTuple):
    """The steps, the buffers that leave the graph, and whether all sizes are known."""

    steps: list[Step]
    outputs: frozenset[Place]
    complete: bool


def schedule(graph: ir.Graph, sizes: Sizes, block: int, *, packs: bool = True) -> Schedule:
    """The steps of one call.

    Args:
        block: channels side by side in blocked weights; 0 where there are none.
        packs: kernels have packed their weights.
    """
    return _Scheduler(graph, sizes, block, packs=packs).run()


class _Scheduler:
    def __init__(self, graph: ir.Graph, sizes: Sizes, block: int, *, packs: bool) -> None:
        self._graph, self._sizes, self._block, self._packs = graph, sizes, block, packs
        self._buffers = Buffers(graph, RULES)
        self._here: dict[ir.Value, set[bool]] = {}  # owner -> the layouts it is in
        self._steps: list[tuple[str, list[tuple[Place, int]], list[int]]] = []
        self._last: dict[Place, int] = {}
        self._complete = True
        self._on_top = self._additions() if block else {}

    def run(self) -> Schedule:
        for value in self._graph.inputs:
            self._here[value] = {False}
        for node in self._graph:
            if node.op_type != "Constant":
                self._node(node)
        for value in self._graph.outputs:
            self._read(self._owner(value), "output", blocked=False)
        outputs = frozenset((self._owner(value), False) for value in self._graph.outputs)
        dead: dict[int, list[Place]] = {}
        for place, position in self._last.items():
            if place not in outputs:
                dead.setdefault(position, []).append(place)
        steps = [Step(*step, dead.get(position, [])) for position, step in enumerate(self._steps)]
        return Schedule(steps, outputs, self._complete)

    def _owner(self, value: ir.Value) -> ir.Value:
        return self._buffers.owner(value)

    def _node(self, node: ir.Node) -> None:
        made = list(self._buffers.made_by(node))
        if not made and node.op_type in (VIEWS | {"QuantizeLinear", "DequantizeLinear"}):
            for value in node.inputs:
                if value is not None:
                    self._used(self._owner(value))
            return
        weight, _ = blocked_weight(node, self._block) if self._block else (None, 0)
        data = [self._owner(value) for value in node.inputs if value is not None and self._owner(value) in self._here]
        blocked = weight is not None or self._stays(node, data)
        for owner in data:
            self._read(owner, node_key(node), blocked=self._wants_blocks(weight) if weight is not None else blocked)
        fresh = []
        for value in made:
            on_top = self._on_top.get(value)
            if blocked and on_top is not None and self._here.get(on_top):
                self._buffers.join(value, on_top)
                continue
            self._here[value] = {blocked}
            fresh.append(((value, blocked), self._bytes(value, blocked=blocked)))
        if not made and node.outputs:
            owner = self._owner(node.outputs[0])
            if owner in self._here:
                self._here[owner] = {blocked}
        work = [size for size in scratch(node, self._sizes, packs=self._packs) if size]
        inside = peak_inside(node, self._sizes)
        self._complete = self._complete and inside is not None
        self._add(node_key(node), fresh, work + ([inside] if inside else []))
        for owner in data:
            for layout in self._here[owner]:
                self._last[owner, layout] = max(self._last.get((owner, layout), 0), len(self._steps) - 1)

    def _wants_blocks(self, weight: ir.TensorProtocol) -> bool:
        depthwise = weight.shape.numpy()[1] == 1
        return depthwise or weight.shape.numpy()[1] >= self._block

    def _stays(self, node: ir.Node, data: list[ir.Value]) -> bool:
        if not data or not all(True in self._here[owner] for owner in data):
            return False
        dims = self._sizes.dims(self._buffers.stored_as(data[0]))
        whole = dims is not None and len(dims) == 4 and dims[1] % self._block == 0
        if node.op_type in _UNARY:
            return True
        same = len({self._sizes.dims(self._buffers.stored_as(owner)) for owner in data}) == 1
        joins = node.op_type == "Concat" and node.attributes.get_int("axis", 0) == 1
        return whole and (node.op_type in _POOLS or joins or (node.op_type in _SUMS and same and len(data) > 1))

    def _read(self, owner: ir.Value, key: str, *, blocked: bool) -> None:
        """Have an input in a layout: a copy is made where it is only in the other."""
        layouts = self._here.get(owner)
        if layouts is None:
            return
        if blocked not in layouts:
            self._add(key, [((owner, blocked), self._bytes(owner, blocked=blocked))], [])
            self._last[owner, not blocked] = len(self._steps) - 1
            layouts.add(blocked)
        self._last[owner, blocked] = max(self._last.get((owner, blocked), 0), len(self._steps))

    def _used(self, owner: ir.Value) -> None:
        for layout in self._here.get(owner, ()):
            self._last[owner, layout] = max(self._last.get((owner, layout), 0), len(self._steps))

    def _add(self, key: str, made: list[tuple[Place, int | None]], work: list[int]) -> None:
        known = [(place, size) for place, size in made if size]
        self._complete = self._complete and all(size is not None for _, size in made)
        for place, _ in known:
            self._last.setdefault(place, len(self._steps))
        self._steps.append((key, known, work))

    def _bytes(self, value: ir.Value, *, blocked: bool) -> int | None:
        stored = self._buffers.stored_as(value)
        size, dims = self._sizes.of(stored), self._sizes.dims(stored)
        if not blocked or not size or dims is None or len(dims) != 4 or not dims[1]:
            return size
        return size // dims[1] * (-(-dims[1] // self._block) * self._block)

    def _additions(self) -> dict[ir.Value, ir.Value]:
        """Results of convolutions that are added on top of another tensor -> that tensor's buffer."""
        found = {}
        for node in self._graph:
            if node.op_type not in _SUMS or len(node.inputs) != 2:
                continue
            for value, other in (tuple(node.inputs), tuple(reversed(node.inputs))):
                if value is None or other is None or other.producer() is None:
                    continue
                producer = value.producer()
                if producer is None or blocked_weight(producer, self._block)[0] is None:
                    continue
                alone = len(value.consumers()) == 1 and not value.is_graph_output() and not other.is_graph_output()
                if alone and other.shape == value.shape and self._read_last_by(other, node):
                    found[value] = self._owner(other)
                    break
        return found

    def _read_last_by(self, value: ir.Value, node: ir.Node) -> bool:
        order = {id(found): position for position, found in enumerate(self._graph)}
        return max(order.get(id(user), math.inf) for user in value.consumers()) == order[id(node)]
