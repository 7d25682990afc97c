"""Tensors that carry a mask: numbers so large that they only mean "not this one", like the -1e9 before a Softmax.

Nothing that is measured in them may set a scale, and float16 does not hold them. They are found from the constants
that they are made of, because samples without padding do not show them.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

SMALLEST = 9_999.0
"""A negative constant of this size is a mask: the smallest in use is -10,000."""

_ARITHMETIC = ("Add", "Sub", "Mul", "Neg", "Max", "Min", "Sum", "Where", "CumSum")
_MOVES = ("Concat", "Expand", "Tile", "Pad", "Gather", "GatherND", "Reshape", "Flatten", "Squeeze", "Unsqueeze")
_CARRIES = frozenset((*_ARITHMETIC, *_MOVES, "Transpose", "Slice", "Split", "Identity", "Trilu"))
"""Operators whose result can be as large as what they read; Softmax and its like end a mask."""


def is_mask(tensor: ir.TensorProtocol) -> bool:
    """Whether a constant holds -10,000 or less (-inf too)."""
    if tensor.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE) or tensor.size == 0:
        return False
    return bool(np.min(tensor.numpy()) <= -SMALLEST)


def masked(graph: ir.Graph) -> set[ir.Value]:
    """The values of a graph, computed or constant, that may hold a mask's numbers; bodies of Loop and If aside."""
    found = {v for v in graph.initializers.values() if v.const_value is not None and is_mask(v.const_value)}
    for node in graph:
        if node.domain in ("", "ai.onnx") and node.op_type in _CARRIES and not found.isdisjoint(_sources(node)):
            found.update(node.outputs)
    return found


def _sources(node: ir.Node) -> list[ir.Value]:
    """The inputs whose values reach the result: not a condition, an index or a shape."""
    places = {"Where": (1, 2), "Gather": (0,), "GatherND": (0,), "Pad": (0, 2)}.get(node.op_type)
    inputs = node.inputs if places is None else [node.inputs[i] for i in places if i < len(node.inputs)]
    return [v for v in inputs if v is not None and v.dtype in (None, ir.DataType.FLOAT, ir.DataType.FLOAT16)]
