"""Which operators have integer kernels in the CPU provider, and where Q/DQ pairs may stand to reach them."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from edgeopt.quantize import hard, operators
from edgeopt.quantize.placement import Rule, Shield, Table, constant_of

UNLIKE_FACTORS = 16.0
"""Largest ratio between the numbers that a tensor may be multiplied by in int8."""

MIN_WEIGHT_BYTES = 256
"""A smaller float weight is not worth a DequantizeLinear at every inference."""


def _refuse_small(node: ir.Node) -> str | None:
    weight = node.inputs[1]
    if weight is None or weight.const_value is None or weight.const_value.nbytes < MIN_WEIGHT_BYTES:
        return "no integer kernel, and its weight is small"
    return None


def _refuse_infinite(node: ir.Node) -> str | None:
    for index in range(len(node.inputs)):
        tensor = constant_of(node, index)
        if tensor is not None and (tensor.size == 0 or not np.isfinite(tensor.numpy()).all()):
            return "one operand holds no numbers, or infinite ones"
    return None


def _refuse_factor(node: ir.Node) -> str | None:
    """A constant beside an activation has one scale, and so has the product: one channel may be too quiet for it."""
    for index in range(len(node.inputs)):
        tensor = constant_of(node, index)
        sizes = np.abs(tensor.numpy()) if tensor is not None else np.ones(1)
        above = sizes[sizes > 0]
        if above.size and float(above.max()) > UNLIKE_FACTORS * float(above.min()):
            return "one scale would erase the smaller numbers of its constant operand"
    return _refuse_infinite(node)


def _refuse_gather(node: ir.Node) -> str | None:
    return None if constant_of(node, 0) is None else "it picks from a constant"


def _refuse_pool(node: ir.Node) -> str | None:
    if any(d != 1 for d in node.attributes.get_ints("dilations", [])):
        return "the integer kernel has no dilations"
    if node.attributes.get_int("ceil_mode", 0) and node.attributes.get_int("count_include_pad", 0):
        return "the integer kernel counts padding that ceil_mode adds"
    return None


_MOVE = Rule(role="move")

TABLE = Table(
    rules={
        "Conv": Rule(role="compute", weight=1, bias=2, channel_axis=operators.conv_axis),
        "Gemm": Rule(role="compute", weight=1, bias=2, channel_axis=operators.gemm_axis, float_output=True),
        "MatMul": Rule(
            role="compute",
            weight=1,
            channel_axis=operators.matmul_axis,
            float_output=True,
            refuses=operators.refuse_products,
        ),
        "ConvTranspose": Rule(
            role="weight", weight=1, bias=2, channel_axis=operators.conv_transpose_axis, refuses=_refuse_small
        ),
        "Add": Rule(role="join", activations=None, constants=True, refuses=_refuse_infinite),
        "Mul": Rule(role="join", activations=None, constants=True, refuses=_refuse_factor),
        "Where": Rule(role="join", activations=(1, 2), constants=True, refuses=_refuse_infinite),
        "Concat": Rule(role="join", activations=None),
        "GlobalAveragePool": Rule(role="join"),
        "AveragePool": Rule(role="join", refuses=_refuse_pool),
        "Sigmoid": Rule(role="join"),
        "LeakyRelu": Rule(role="join"),
        "HardSigmoid": Rule(role="join", refuses=hard.refuse),  # spelled by additions and products
        "HardSwish": Rule(role="join"),
        "MaxPool": dataclasses.replace(_MOVE, refuses=operators.refuse_indices),
        "Reshape": _MOVE,
        "Flatten": _MOVE,
        "Squeeze": _MOVE,
        "Unsqueeze": _MOVE,
        "Transpose": _MOVE,
        "DepthToSpace": _MOVE,
        "Slice": _MOVE,
        "Gather": dataclasses.replace(_MOVE, refuses=_refuse_gather),
        "GatherElements": dataclasses.replace(_MOVE, refuses=_refuse_gather),
        "Expand": _MOVE,
        "Tile": _MOVE,
        "ReduceMax": _MOVE,
        "ReduceMin": _MOVE,
        "Split": dataclasses.replace(_MOVE, refuses=operators.refuse_unread),
        "Resize": dataclasses.replace(_MOVE, refuses=operators.refuse_interpolation),
    },
    folded=frozenset({"Relu", "Clip"}),
    # WeightBiasQuantization gives the first three weights per tensor, in silence, when they stand between DQ and Q.
    # The others get an integer kernel, excluded or not, even one that cannot do what they ask (a dilated AveragePool).
    # The one of Softmax takes three times as long as the float one with its two conversions (tried), so it has no rule.
    shielded={
        **dict.fromkeys(("Conv", "ConvTranspose", "Gemm"), Shield(inputs=(0,))),
        **dict.fromkeys(("Add", "Mul", "Concat", "Softmax"), Shield()),
        **dict.fromkeys(("AveragePool", "GlobalAveragePool", "Sigmoid", "LeakyRelu"), Shield()),
        "Where": Shield(inputs=(1, 2), constants=True),
    },
)
"""Integer kernels of the CPU provider, reached through its Q/DQ selectors."""
