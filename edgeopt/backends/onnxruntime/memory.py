"""What onnxruntime's CPU provider holds for a model: its own steps, simulated on a heap and an arena.

Loading, in this order:

1. The file is parsed through a buffer; every constant is a string, then an aligned tensor, one after the other.
2. Weights of float convolutions of two dimensions are put into blocks of 8 or 16 channels: the tensor, a scratch copy,
   a string and the new tensor are alive at once, and all the old ones stay to the end.
3. Kernels pack constants into the arena, and the old tensor is freed: matrices, recurrent weights, integer weights.

A call, in the order of the graph: each node's outputs and work space come from the arena, and what is read for the
last time goes back. From the second call on all tensors lie in one chunk of the arena, as planned from the first
(``schedule``). An integer convolution without a kernel of its own needs its result in int32, and its input unrolled.

What is not simulated is fitted (``COSTS``): code of the runtime that is read for the first time, more of it where
integer kernels and what fuses pairs into them are needed, and the objects of each node.

The option ``order`` is not followed: nodes are taken in the order of the graph, and what the runtime makes of another
order only its own profile tells (``node_order``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import onnx_ir as ir

from edgeopt.backends.onnxruntime.arena import Arena, Chunk
from edgeopt.backends.onnxruntime.packing import blocked_weight, packed
from edgeopt.backends.onnxruntime.schedule import Place, Schedule, Step, schedule
from edgeopt.backends.shapes import shaped
from edgeopt.memory import Predicted, Sizes, footprint
from edgeopt.memory.heap import Block, Heap
from edgeopt.model import Model
from edgeopt.target import Target
from runtime_bench.heap import LARGE
from runtime_bench.native import block_of


class Costs(NamedTuple):
    """Bytes beside what is simulated, for each of the ``features``."""

    base: float
    quantized: float
    nodes: float


COSTS = Costs(832_130, 309_419, 9_632)
"""Fitted by scripts/memory_model."""

THRESHOLD = 1 << 20
"""From how many bytes on a block has a mapping of its own when a model is loaded: importing the runtime raised it."""

READ = 4 << 20
"""Bytes of the buffer that a file is parsed through."""

SMALL = 128
"""Constants below so many bytes stay where the parser put them."""

PIN = 256
"""Bytes of the small objects that lie between two constants, and stay."""

LARGEST = 64 << 30
"""Bytes of constants and tensors from which on nothing is simulated page by page: the sum alone says enough."""


def predict(model: Model, target: Target, options: Mapping[str, str], *, quantized: bool) -> Predicted:
    """What the runtime needs for a model in the form that ``lower`` is given; nothing is run.

    Args:
        options: of the runner, as an artifact has them.
        quantized: means nothing here: the pairs in the graph say what runs in integers.
    """
    model = shaped(model)
    whole = footprint(model)
    if whole.weight_bytes + (whole.peak_activation_bytes or 0) > LARGEST:
        return Predicted(
            weights=whole.weight_bytes,
            packed=0,
            activations=whole.peak_activation_bytes,
            overhead=0,
            assumed=whole.assumed,
        )
    small = options.get("heap") == "small"
    heap = Heap(LARGE, fixed=True) if small else Heap(THRESHOLD)
    arena = Arena(heap, grows=options.get("arena") != "off")
    blocks = 0 if options.get("optimizer") == "off" else _block(target)
    stored, copies = _load(model, heap, arena, blocks, packs=_packs(options))
    if small:
        heap.trim()
    before = heap.resident
    sizes = Sizes(model.graph)
    inputs = [sizes.of(value) for value in model.graph.inputs if not value.is_initializer()]
    for size in inputs:
        heap.allocate(size or 0)
    found = schedule(model.graph, sizes, blocks, packs=_packs(options))
    run = _Run(found, arena)
    run.first()
    if _plans(options):
        run.planned()
    known = found.complete and None not in inputs
    counts = features(model, quantized=quantized)
    total = heap.peak + round(sum(cost * count for cost, count in zip(COSTS, counts, strict=True)))
    activations = heap.resident - before if known else None
    return Predicted(
        weights=stored,
        packed=copies,
        activations=activations,
        overhead=total - stored - copies - (activations or 0),
        peak_operators=run.peak_operators(),
        assumed=tuple(sorted(sizes.assumed)),
    )


def features(model: Model, *, quantized: bool) -> tuple[float, ...]:
    """What the ``COSTS`` are for: 1, 1 where activations are quantized, and the nodes.

    A node that quantizes or dequantizes counts half: most are fused. ``quantized`` means nothing, as in ``predict``.
    """
    kinds = [node.op_type for node in model.nodes()]
    pairs = sum(kind in ("QuantizeLinear", "DequantizeLinear") for kind in kinds)
    return 1, float("QuantizeLinear" in kinds), len(kinds) - pairs / 2


def _block(target: Target) -> int:
    return block_of(target.arch, target.isa) or (16 if target.arch == "aarch64" else 0)


def _plans(options: Mapping[str, str]) -> bool:
    return options.get("arena") != "off" and options.get("memory_pattern") != "off"


def _packs(options: Mapping[str, str]) -> bool:
    return options.get("prepacking") != "off" and options.get("session.disable_prepacking") != "1"


def _constants(model: Model) -> list[ir.TensorProtocol]:
    found = [v.const_value for g in (model.graph, *model.graph.subgraphs()) for v in g.initializers.values()]
    distinct = {id(tensor): tensor for tensor in found if tensor is not None}
    return [tensor for tensor in distinct.values() if tensor.dtype != ir.DataType.STRING]


def _load(model: Model, heap: Heap, arena: Arena, block: int, *, packs: bool) -> tuple[int, int]:
    """Simulate loading; bytes of constants that are still held as stored, and of packed ones."""
    tensors = _constants(model)
    buffer = heap.allocate(min(READ, sum(tensor.nbytes for tensor in tensors)))
    strings = []
    for tensor in tensors:
        heap.allocate(PIN)
        strings.append((tensor, heap.allocate(tensor.nbytes + 1)))
    heap.free(buffer)
    held: dict[int, Block] = {}
    stored = 0
    for tensor, string in strings:
        if tensor.nbytes >= SMALL:
            held[id(tensor)] = heap.allocate(tensor.nbytes, aligned=True)
            heap.free(string)
        stored += tensor.nbytes
    copies = 0
    replaced: list[int] = []
    for node in model.nodes():
        weight, size = blocked_weight(node, block) if block else (None, 0)
        if weight is None or id(weight) not in held:
            continue
        old, turned = heap.allocate(weight.nbytes, aligned=True), heap.allocate(size)
        string = heap.allocate(size + 1)
        heap.allocate(PIN)
        heap.allocate(size, aligned=True)
        copies += size
        for gone in (string, turned, old):
            heap.free(gone)
        replaced.append(id(weight))
    for number in dict.fromkeys(replaced):
        stored -= held[number].size
        heap.free(held.pop(number))
    for node in model.nodes() if packs else ():
        for weight, size, work in packed(node):
            arena.allocate(size)  # for good
            if work:
                arena.free(arena.allocate(work))
            copies += size
            if id(weight) in held:
                stored -= held[id(weight)].size
                heap.free(held.pop(id(weight)))
    return stored, copies


class _Run:
    """The calls of a loaded model, on its heap and arena."""

    def __init__(self, found: Schedule, arena: Arena) -> None:
        self._found, self._arena = found, arena
        self._alive: list[tuple[int, str]] = []

    def first(self) -> None:
        """A call in which each tensor is asked for by itself."""
        held: dict[Place, tuple[Chunk | Block, int]] = {}
        for step in self._found.steps:
            for place, size in step.made:
                held[place] = self._arena.allocate(size), size
            self._work(step)
            self._alive.append((sum(size for _, size in held.values()) + sum(step.work), step.key))
            for place in step.dead:
                if place in held:
                    self._arena.free(held.pop(place)[0])
        for chunk, _ in held.values():
            self._arena.free(chunk)

    def planned(self) -> None:
        """A later call: one chunk for all tensors but the outputs, which come beside it as the work space does."""
        size = _plan(self._found)
        held = [self._arena.allocate(size)] if size else []
        for step in self._found.steps:
            held += [self._arena.allocate(size) for place, size in step.made if place in self._found.outputs]
            self._work(step)
        for chunk in held:
            self._arena.free(chunk)

    def _work(self, step: Step) -> None:
        for chunk in [self._arena.allocate(size) for size in step.work]:
            self._arena.free(chunk)

    def peak_operators(self) -> tuple[str, ...]:
        """The nodes with the most bytes alive, at most a tenth less than the most."""
        most = max((alive for alive, _ in self._alive), default=0)
        ranked = sorted(self._alive, key=lambda pair: -pair[0])
        return tuple(dict.fromkeys(key for alive, key in ranked if most and alive >= 0.9 * most))[:8]


def _plan(found: Schedule) -> int:
    """Bytes of the chunk that holds all tensors: each in the smallest gap between those alive with it."""
    placed: dict[Place, tuple[int, int]] = {}
    most = 0
    for step in found.steps:
        for place, size in step.made:
            if place in found.outputs:
                continue
            start = _gap(sorted(placed.values()), size, most)
            placed[place] = (start, start + -(-size // 64) * 64)
            most = max(most, placed[place][1])
        for place in step.dead:
            placed.pop(place, None)
    return most


def _gap(taken: list[tuple[int, int]], size: int, most: int) -> int:
    best, found, end = math.inf, -1, 0
    for start, stop in [*taken, (most, most)]:
        if size <= start - end < best:
            best, found = start - end, end
        end = max(end, stop) if (start, stop) != (most, most) else end
    return found if found >= 0 else end
