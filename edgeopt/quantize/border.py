"""The border of a Conv that reads bytes: padding by the Conv itself, which knows one value, becomes Pad per channel.

Conv(u, pads = p)  ->  Conv(Concat over c of Pad(u[:, c], p, level[c]), pads = 0)
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeopt.quantize.placement import constant_of
from edgeopt.quantize.writer import Writer


def pads_of(conv: ir.Node, shape: ir.Shape) -> list[int] | None:
    """Pads of a Conv, begins then ends; None when they are not known before it runs."""
    auto, rank = conv.attributes.get_string("auto_pad", "NOTSET"), len(shape)
    none = [0] * (2 * (rank - 2))
    if not auto.startswith("SAME"):
        return none if auto == "VALID" else list(conv.attributes.get_ints("pads", none))
    weight, begins, ends = constant_of(conv, 1), list[int](), list[int]()
    ones = [1] * (rank - 2)
    strides, dilations = conv.attributes.get_ints("strides", ones), conv.attributes.get_ints("dilations", ones)
    for axis, (stride, dilation) in enumerate(zip(strides, dilations, strict=True), start=2):
        size = shape[axis]
        if not isinstance(size, int) or weight is None:
            return None
        covered = (weight.shape.numpy()[axis] - 1) * dilation + 1
        total = max((-(-size // stride) - 1) * stride + covered - size, 0)
        smaller = total // 2
        begins.append(smaller if auto == "SAME_UPPER" else total - smaller)
        ends.append(total - begins[-1])
    return begins + ends


def pad_bytes(writer: Writer, graph: ir.Graph, conv: ir.Node, levels: np.ndarray) -> None:
    """Pad what Conv(Cast(u) - m) reads before the Cast, channel c with ``levels[c]``, and not in the Conv.

    It is done before a Transpose of the bytes, which stays next to the Conv: a runtime with kernels for both layouts
    drops it there.
    """
    read = conv.inputs[0]
    sub = None if read is None else read.producer()
    cast = None if sub is None or sub.inputs[0] is None else sub.inputs[0].producer()
    source = None if cast is None else cast.inputs[0]
    pads = None if source is None or source.shape is None else pads_of(conv, source.shape)
    assert read is not None
    assert sub is not None
    assert cast is not None
    assert source is not None
    assert source.shape is not None
    assert pads is not None
    if not any(pads):
        return
    rank, base = len(source.shape), str(read.name)
    mover = source.producer()
    moved = [mover] if mover is not None and mover.op_type == "Transpose" else []
    perm = list(moved[0].attributes["perm"].as_ints()) if moved else list(range(rank))
    start = moved[0].inputs[0] if moved else source
    assert start is not None
    amounts = np.zeros((2, rank), np.int64)
    for axis in range(2, rank):
        amounts[:, perm[axis]] = pads[axis - 2], pads[axis + rank - 4]
    wide = [_wider(d, 0 if axis < 2 else pads[axis - 2] + pads[axis + rank - 4]) for axis, d in enumerate(source.shape)]
    before = [wide[perm.index(axis)] for axis in range(rank)]  # in the axes of ``start``
    count, channel = len(levels), perm[1]

    def add(
        op: str, inputs: list[ir.Value], shape: list[int | ir.SymbolicDim] | None, **how: int | list[int]
    ) -> ir.Node:
        node = ir.node(op, inputs, attributes=how, num_outputs=count if op == "Split" else 1)
        node.name = writer.fresh(base, op)
        for out in node.outputs:
            out.name, out.type = writer.fresh(base, "bytes"), source.type
            out.shape = None if shape is None else ir.Shape(shape)
        graph.insert_before(cast, node)
        return node

    thin = None if start.shape is None else [1 if axis == channel else d for axis, d in enumerate(start.shape)]
    ones = writer.initializer(base, "sizes", np.ones(count, np.int64))
    sizes = writer.initializer(base, "pads", amounts.reshape(-1))
    planes = []
    for plane, level in zip(add("Split", [start, ones], thin, axis=channel).outputs, levels, strict=True):
        shape = [1 if axis == channel else d for axis, d in enumerate(before)]
        value = writer.initializer(base, "level", np.asarray(level, np.uint8))
        planes.append(add("Pad", [plane, sizes, value], shape).outputs[0])
    last = add("Concat", planes, before, axis=channel).outputs[0]
    if moved:
        last = add("Transpose", [last], wide, perm=perm).outputs[0]
    again = add("Cast", [last], wide, to=int(ir.DataType.FLOAT)).outputs[0]
    again.type, read.shape = read.type, ir.Shape(wide)
    sub.replace_input_with(0, again)
    conv.attributes.pop("auto_pad", None)
    conv.attributes["pads"] = ir.AttrInt64s("pads", [0] * len(pads))
    remove_dead(graph, cast)


def _wider(size: int | ir.SymbolicDim, by: int) -> int | ir.SymbolicDim:
    if isinstance(size, int):
        return size + by
    return ir.SymbolicDim(None) if by else size


def remove_dead(graph: ir.Graph, node: ir.Node | None) -> None:
    """Remove a node whose results nobody reads, and those before it that then have no reader either."""
    while node is not None and node.graph is graph and not any(v.uses() or v.is_graph_output() for v in node.outputs):
        sources = [value.producer() for value in node.inputs if value is not None]
        graph.remove(node, safe=True)
        node = next((source for source in sources if source is not None), None)
