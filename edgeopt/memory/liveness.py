"""Weight bytes, liveness, peak activation bytes and multiply-accumulates of a graph. Pure: nothing here runs a model.

All figures are estimates from the graph alone, in the graph's node order. The rules:

1. A graph input is held for the whole run (the caller owns it); a graph output from its node to the end.
2. Any other value lives from the node that makes it to the last node that reads it, both included. A node that reads
   outer values from a subgraph reads them for its whole run, and the largest of its subgraphs counts on top.
3. Views (Reshape, Squeeze, Unsqueeze, Flatten, Identity) alias their input and cost nothing. So do Relu and Clip when
   nothing else reads their input: runtimes fuse them or run them in place. No other operator is taken to work in
   place, and alignment, packing and scratch buffers are not counted.
4. Initializers and outputs of Constant nodes are weights, not activations.
5. In a Q/DQ graph the float values around an *integer operator* never exist: a runtime with integer kernels reads
   and writes the int8 tensors. An operator is one when all its computed inputs come from DequantizeLinear, and each
   output goes to one QuantizeLinear and nowhere else, directly or through Relu or Clip. Its output then has the bytes
   of the quantized tensor (integer kernels of Gemm and MatMul may also write floats), and a DequantizeLinear that
   feeds only such operators aliases its input. Whether the runtime really fuses them is read back by the backend.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import onnx_ir as ir

from edgeopt.model import Model, node_key

VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
"""Operators whose output aliases their first input."""

_ABSORBED = frozenset({"Relu", "Clip"})
_MACS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_NOT_OWNED = VIEWS | {"Constant", "DequantizeLinear"}
_NO_WIDTH = frozenset({ir.DataType.STRING, ir.DataType.UNDEFINED})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Footprint:
    """What a model costs, computed from its graph: bytes of weights, peak bytes of live activations, nodes.

    ``peak_activation_bytes`` is None when a shape is unknown. ``assumed`` lists the symbolic batch dims that were
    counted as 1, as ``"N=1"``.
    """

    weight_bytes: int
    peak_activation_bytes: int | None
    nodes: int
    assumed: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Moment:
    """One node of the main graph while it runs.

    ``live_bytes`` counts all activations alive during the node, ``output_bytes`` the buffers that it makes (0 for views
    and for values that a runtime with integer kernels never stores). None when a shape is unknown.
    """

    key: str
    op: str
    live_bytes: int | None
    output_bytes: int | None


def footprint(model: Model) -> Footprint:
    """Weight bytes, peak activation bytes and nodes of a model whose shapes were inferred.

    A tensor that several initializers share counts once; 4-bit types count packed; strings do not count.
    """
    sizes = Sizes(model.graph)
    return Footprint(
        weight_bytes=_weight_bytes(model),
        peak_activation_bytes=_peak(model.graph, sizes),
        nodes=sum(1 for _ in model.nodes()),
        assumed=tuple(sorted(sizes.assumed)),
    )


def timeline(model: Model) -> tuple[Moment, ...]:
    """One ``Moment`` for each node of the main graph, in execution order."""
    sizes = Sizes(model.graph)
    buffers = Buffers(model.graph)
    live = live_bytes(model.graph, sizes)
    return tuple(
        Moment(
            key=node_key(node),
            op=node.op_type,
            live_bytes=total,
            output_bytes=_sum(sizes.of(buffers.stored_as(value)) for value in buffers.made_by(node)),
        )
        for node, total in zip(model.graph, live[1:], strict=True)
    )


def macs(model: Model) -> dict[str, int | None]:
    """Multiply-accumulates of each Conv, ConvTranspose, Gemm and MatMul by node key; None when a shape is unknown.

    Nodes in subgraphs count for one execution; symbolic batch dims count as 1.
    """
    sizes = Sizes(model.graph)
    return {node_key(n): _macs(n, sizes) for n in model.nodes() if n.op_type in _MACS and n.domain in ("", "ai.onnx")}


class Sizes:
    """Element counts and bytes of values. Remembers which symbolic batch dims it took for 1."""

    def __init__(self, graph: ir.Graph) -> None:
        self.assumed: set[str] = set()
        first = [value.shape[0] for value in graph.inputs if value.shape]
        self._batch = {dim.value for dim in first if isinstance(dim, ir.SymbolicDim) and dim.value}

    def dims(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """The shape with symbolic batch dims (axis 0, or named like axis 0 of an input) as 1; None when unknown."""
        if value is None:
            return None
        shape = value.shape if value.const_value is None else value.const_value.shape
        if shape is None:
            return None
        found: list[int] = []
        for axis, dim in enumerate(shape):
            if isinstance(dim, int):
                found.append(dim)
            elif axis == 0 or dim.value in self._batch:
                self.assumed.add(f"{dim.value or '?'}=1")
                found.append(1)
            else:
                return None
        return tuple(found)

    def of(self, value: ir.Value) -> int | None:
        """Bytes of a dense buffer for this value."""
        dims = self.dims(value)
        if dims is None or value.dtype is None or value.dtype in _NO_WIDTH:
            return None
        return math.ceil(math.prod(dims) * value.dtype.bitwidth / 8)


def _sum(sizes: Iterable[int | None]) -> int | None:
    parts = list(sizes)
    return sum(size for size in parts if size is not None) if None not in parts else None


def _bodies(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def _weight_bytes(model: Model) -> int:
    tensors = [v.const_value for g in (model.graph, *model.graph.subgraphs()) for v in g.initializers.values()]
    constants = (node.attributes.get("value") for node in model.nodes() if node.op_type == "Constant")
    tensors += [constant.as_tensor() for constant in constants if constant is not None]
    distinct = {id(tensor): tensor for tensor in tensors if tensor is not None and tensor.dtype not in _NO_WIDTH}
    return sum(tensor.nbytes for tensor in distinct.values())


class Rules(NamedTuple):
    """What a runtime does with buffers beside the rules of this module.

    Attributes:
        in_place: operators that write over an input of the same size that nothing else reads.
        float_out: operators whose integer kernels may write floats.
        integer: operators that have integer kernels; None for all.
    """

    in_place: frozenset[str] = frozenset()
    float_out: frozenset[str] = frozenset({"Gemm", "MatMul"})
    integer: frozenset[str] | None = None


PLAIN = Rules()


class Buffers:
    """Which values share a buffer (rules 3 and 5)."""

    def __init__(self, graph: ir.Graph, rules: Rules = PLAIN) -> None:
        self._alias: dict[ir.Value, ir.Value] = {}
        self._stored: dict[ir.Value, ir.Value] = {}
        for node in graph:
            if _is_integer(node, rules):
                for value in _outputs(node):
                    self._stored[value] = [value, *(chain := _quantized_chain(value))][-1]
                    self._alias.update(dict.fromkeys(chain, value))
            source = node.inputs[0] if node.inputs else None
            if source is not None and (_is_view(node) or _feeds_integers(node, rules)):
                self._alias[node.outputs[0]] = source
            elif node.op_type in rules.in_place and node.outputs[0] not in self._alias:
                over = _written_over(node)
                if over is not None:
                    self._alias[node.outputs[0]] = over

    def owner(self, value: ir.Value) -> ir.Value:
        """The value whose buffer this one lives in."""
        while value in self._alias:
            value = self._alias[value]
        return value

    def join(self, value: ir.Value, owner: ir.Value) -> None:
        """Have a value live in the buffer of another one."""
        self._alias[value] = owner

    def stored_as(self, value: ir.Value) -> ir.Value:
        """The value whose bytes the buffer has."""
        return self._stored.get(value, value)

    def made_by(self, node: ir.Node) -> Iterator[ir.Value]:
        """The outputs that a node needs a buffer for."""
        if node.op_type != "Constant":
            yield from (value for value in _outputs(node) if value not in self._alias)


def _is_view(node: ir.Node) -> bool:
    source = node.inputs[0] if node.inputs else None
    if source is None or node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type not in _ABSORBED:
        return node.op_type in VIEWS
    producer = source.producer()
    if producer is None or producer.graph is not node.graph or producer.op_type in _NOT_OWNED:
        return False
    return not source.is_graph_output() and len(source.consumers()) == 1


def _written_over(node: ir.Node) -> ir.Value | None:
    """The input that an element-wise node can write its result to."""
    out = node.outputs[0]
    for value in node.inputs:
        if value is None or value.const_value is not None or value.is_graph_output() or len(value.consumers()) != 1:
            continue
        if not _owned_alone(value, node.graph):
            continue
        if out.shape is not None and value.shape == out.shape and value.dtype == out.dtype:
            return value
    return None


def _owned_alone(value: ir.Value, graph: ir.Graph | ir.Function | None) -> bool:
    """Whether a node made the buffer of a value, and nothing else reads the views up to there."""
    producer = value.producer()
    while producer is not None and producer.op_type in VIEWS:
        source = producer.inputs[0]
        if source is None or len(source.consumers()) != 1 or source.is_graph_output():
            return False
        producer = source.producer()
    return producer is not None and producer.graph is graph and producer.op_type not in _NOT_OWNED


def _is_integer(node: ir.Node, rules: Rules) -> bool:
    if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        return False
    if rules.integer is not None and node.op_type not in rules.integer:
        return False
    producers = [value.producer() for value in node.inputs if value is not None and not value.is_initializer()]
    origins = {"graph input" if producer is None else producer.op_type for producer in producers}
    if "DequantizeLinear" not in origins or origins - {"DequantizeLinear", "Constant"}:
        return False
    return node.op_type in rules.float_out or all(_quantized_chain(value) for value in _outputs(node))


def _quantized_chain(value: ir.Value) -> list[ir.Value]:
    """The values after this one up to the output of QuantizeLinear; empty when it goes elsewhere."""
    chain: list[ir.Value] = []
    while not value.is_graph_output() and len(users := value.consumers()) == 1:
        value = users[0].outputs[0]
        chain.append(value)
        if users[0].op_type == "QuantizeLinear":
            return chain
        if users[0].op_type not in _ABSORBED:
            break
    return []


def _feeds_integers(node: ir.Node, rules: Rules) -> bool:
    if node.op_type != "DequantizeLinear" or node.outputs[0].is_graph_output():
        return False
    users = node.outputs[0].consumers()
    return bool(users) and all(_is_integer(user, rules) for user in users)


def _outputs(node: ir.Node) -> list[ir.Value]:
    return [value for value in node.outputs if value.name]  # an optional output that nobody asked for has no name


def _reads(node: ir.Node) -> Iterator[ir.Value]:
    """Every value that a node needs, its subgraphs' outer values included."""
    yield from (value for value in node.inputs if value is not None)
    for body in _bodies(node):
        for inner in body:
            yield from _reads(inner)
        yield from body.outputs


def peak_inside(node: ir.Node, sizes: Sizes) -> int | None:
    """Peak bytes of the largest subgraph of a node; 0 where it has none, None when a shape is unknown."""
    return _largest([_peak(body, sizes) for body in _bodies(node)])


def live_bytes(graph: ir.Graph, sizes: Sizes, *, rules: Rules = PLAIN, padded: int = 1) -> list[int | None]:
    """Live bytes before the first node, then during each node.

    Args:
        padded: results of convolutions have a multiple of so many channels.
    """
    nodes = list(graph)
    buffers = Buffers(graph, rules)
    inputs = [value for value in graph.inputs if not value.is_initializer()]
    born = dict.fromkeys(inputs, 0)
    last = dict.fromkeys(inputs, len(nodes))
    for position, node in enumerate(nodes, start=1):
        for buffer in map(buffers.owner, _reads(node)):
            if buffer in last:
                last[buffer] = max(last[buffer], position)
        for value in buffers.made_by(node):
            born[value] = last[value] = position
    for buffer in map(buffers.owner, graph.outputs):
        if buffer in last:
            last[buffer] = len(nodes)

    change = [0] * (len(nodes) + 2)
    unknown = [0] * (len(nodes) + 2)
    for value, start in born.items():
        size = sizes.of(buffers.stored_as(value))
        if padded > 1 and size and _is_convolved(value):
            size = _padded(size, sizes.dims(value), padded)
        counter, amount = (unknown, 1) if size is None else (change, size)
        counter[start] += amount
        counter[last[value] + 1] -= amount
    live: list[int | None] = [
        None if missing else total
        for total, missing in zip(itertools.accumulate(change[:-1]), itertools.accumulate(unknown[:-1]), strict=True)
    ]
    for position, node in enumerate(nodes, start=1):
        live[position] = _sum((live[position], peak_inside(node, sizes)))
    return live


def peak_keys(graph: ir.Graph, live: Sequence[int | None]) -> tuple[str, ...]:
    """Keys of the nodes with the most live bytes, the largest first; at most 8, none below nine tenths of the most."""
    during = [(size or 0, node_key(node)) for node, size in zip(graph, live[1:], strict=True)]
    most = max((size for size, _ in during), default=0)
    ranked = sorted((pair for pair in during if most and pair[0] >= 0.9 * most), key=lambda pair: -pair[0])
    return tuple(key for _, key in ranked)[:8]


def _is_convolved(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and producer.op_type == "Conv"


def _padded(size: int, dims: tuple[int, ...] | None, lanes: int) -> int:
    return size if dims is None or not dims[1] else size // dims[1] * (-(-dims[1] // lanes) * lanes)


def _peak(graph: ir.Graph, sizes: Sizes) -> int | None:
    return _largest(live_bytes(graph, sizes))


def _largest(sizes: list[int | None]) -> int | None:
    return max((size for size in sizes if size is not None), default=0) if None not in sizes else None


def _macs(node: ir.Node, sizes: Sizes) -> int | None:
    left, right = sizes.dims(node.inputs[0]), sizes.dims(node.inputs[1])
    out = sizes.dims(node.outputs[0])
    if node.op_type == "Conv":  # an output element sums over I/g and the kernel; W is [O, I/g, k...]
        return None if out is None or right is None else math.prod(out) * math.prod(right[1:])
    if node.op_type == "ConvTranspose":  # an input element spreads over O/g and the kernel; W is [I, O/g, k...]
        return None if left is None or right is None else math.prod(left) * math.prod(right[1:])
    if left is None or out is None:
        return None
    transposed = node.op_type == "Gemm" and node.attributes.get_int("transA", 0) == 1
    return math.prod(out) * left[0 if transposed else -1]
