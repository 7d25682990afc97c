"""An LSTM with int8 weights: onnxruntime's DynamicQuantizeLSTM, which quantizes its input and its state as it runs.

ONNX has W [directions, 4 hidden, inputs] and R [directions, 4 hidden, hidden]; the operator wants both transposed, and
scales [directions, 4 hidden].
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeopt.quantize import scheme
from edgeopt.quantize.emit import Emitter
from edgeopt.quantize.sites import Weight

OWN = "com.microsoft"


def is_dynamic_lstm(node: ir.Node) -> bool:
    """Whether onnxruntime's operator can stand for a node: an LSTM with sequence-major data."""
    return node.op_type == "LSTM" and node.domain == "" and not node.attributes.get_int("layout", 0)


def dynamic_lstm(
    emitter: Emitter, node: ir.Node, weight: Weight, recurrence: Weight, bits: int, per_channel: bool
) -> int:
    """Replace an LSTM; return its number of weight scales."""
    inputs = [*node.inputs, *[None] * (8 - len(node.inputs))]
    extra: list[ir.Value | None] = []
    count = 0
    for index, part in ((1, weight), (2, recurrence)):
        rows = part.rows.astype(np.float64)  # [directions, 4 hidden, inputs]
        axes = 2 if per_channel else (1, 2)
        peak = np.abs(rows).max(axis=axes)
        scales = np.maximum(peak / (2 ** (bits - 1) - 1), scheme.MIN_SCALE).astype(np.float32)
        limit = 2 ** (bits - 1) - 1
        spread = scales[:, :, None] if per_channel else scales[:, None, None]
        integers = np.clip(np.rint(rows / spread), -limit, limit).astype(np.int8)
        base = part.name
        inputs[index] = emitter.constant(base, "quantized", np.ascontiguousarray(integers.swapaxes(1, 2)))
        extra += [
            emitter.constant(base, "scale", scales),
            emitter.constant(base, "zero_point", np.zeros(scales.shape, np.int8)),
        ]
        count += int(scales.size)
    for value in (node.inputs[1], node.inputs[2]):
        assert value is not None
        emitter.replaced(value)
    attributes = {n: a for n, a in node.attributes.items() if n != "layout"}
    made = emitter.swap(node, "DynamicQuantizeLSTM", [*inputs, *extra], attributes, domain=OWN)
    emitter.model.graph.opset_imports.setdefault(OWN, 1)
    assert made.graph is not None
    return count
