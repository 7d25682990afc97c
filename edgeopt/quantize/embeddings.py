"""Embeddings: a table stays in integers, and only the rows that are looked up are restored.

    8 bits    Gather(W, i)  becomes  Cast(Gather(Wq, i)) * Gather(s, i)             one scale a row
    4 bits    b = Gather(packed, i),  low = (b << 4) >> 4,  high = b >> 4
              rows = (interleave(low, high) - 8) * Gather(s, i), in blocks

The 4-bit form has operators that every runtime has; its bytes are those that onnxruntime's MatMulNBits reads, so that
an output layer can share the table.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeopt.quantize.blocks import Blocks
from edgeopt.quantize.emit import Emitter
from edgeopt.quantize.sites import Site
from edgeopt.quantize.stored import Stored


def look_up(emitter: Emitter, site: Site, stored: Stored) -> None:
    """Gather integers, then dequantize what was gathered."""
    node, base = site.node, stored.weight.name
    rows = stored.integers(emitter, node, turned=False)
    made = emitter.before(node, "Gather", [rows, node.inputs[1]], dtype=ir.DataType.INT8, attributes={"axis": 0})
    cast = emitter.before(node, "Cast", made.outputs, attributes={"to": int(ir.DataType.FLOAT)})
    if stored.scales.ndim == 0:
        factor = emitter.constant(base, "scale", stored.scales)
    else:
        column = emitter.constant(base, "column", stored.scales.reshape(-1, 1))
        factor = emitter.before(node, "Gather", [column, node.inputs[1]], attributes={"axis": 0}).outputs[0]
    last = emitter.before(node, "Mul", [cast.outputs[0], factor])
    emitter.stand_in(node, last, made)


def look_up_blocks(emitter: Emitter, site: Site, packed: ir.Value, scales: ir.Value, blocks: Blocks) -> None:
    """Gather packed bytes, take them apart, and dequantize.

    Args:
        packed: uint8 [rows, inputs / 2], two integers a byte, the first one in the low half.
        scales: float32 [rows, blocks, 1].
        blocks: with all zero points in the middle; the inputs are a multiple of the block size.
    """
    node, indices = site.node, site.node.inputs[1]
    assert indices is not None
    assert indices.shape is not None
    rank, count = len(indices.shape), blocks.scales.shape[1]
    base = str(packed.name)
    four = emitter.constant(base, "four", np.asarray(4, np.uint8))
    made = emitter.before(node, "Gather", [packed, indices], dtype=ir.DataType.UINT8, attributes={"axis": 0})
    read = made.outputs[0]

    def shift(value: ir.Value, direction: str) -> ir.Value:
        attributes = {"direction": direction}
        return emitter.before(node, "BitShift", [value, four], dtype=ir.DataType.UINT8, attributes=attributes).outputs[
            0
        ]

    last_axis = emitter.constant(base, "axis", np.array([-1], np.int64))
    halves = [
        emitter.before(node, "Unsqueeze", [half, last_axis], dtype=ir.DataType.UINT8).outputs[0]
        for half in (shift(shift(read, "LEFT"), "RIGHT"), shift(read, "RIGHT"))
    ]
    joined = emitter.before(node, "Concat", halves, dtype=ir.DataType.UINT8, attributes={"axis": -1})
    split = emitter.constant(base, "split", np.array([0] * rank + [count, blocks.size], np.int64))
    parts = emitter.before(node, "Reshape", [joined.outputs[0], split], dtype=ir.DataType.UINT8)
    cast = emitter.before(node, "Cast", parts.outputs, attributes={"to": int(ir.DataType.FLOAT)})
    middle = emitter.constant(base, "middle", np.asarray(1 << (blocks.bits - 1), np.float32))
    around = emitter.before(node, "Sub", [cast.outputs[0], middle])
    factor = emitter.before(node, "Gather", [scales, indices], attributes={"axis": 0})
    real = emitter.before(node, "Mul", [around.outputs[0], factor.outputs[0]])
    whole = emitter.constant(base, "whole", np.array([0] * rank + [count * blocks.size], np.int64))
    last = emitter.before(node, "Reshape", [real.outputs[0], whole])
    emitter.stand_in(node, last, made)
