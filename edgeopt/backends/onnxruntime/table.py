"""Which operators have integer kernels in the CPU provider, and where Q/DQ pairs may stand to reach them."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from edgeopt.quantize import hard
from edgeopt.quantize.placement import Rule, Shield, Table, constant_of

UNLIKE_FACTORS = 16.0
"""Largest ratio between the numbers that a tensor may be multiplied by in int8."""

MIN_WEIGHT_BYTES = 256
"""A smaller float weight is not worth a DequantizeLinear at every inference."""


def _conv_axis(node: ir.Node) -> int:
    return 0


def _gemm_axis(node: ir.Node) -> int:
    return 0 if node.attributes.get_int("transB", 0) else 1


def _matmul_axis(node: ir.Node) -> int:
    return 1


def _conv_transpose_axis(node: ir.Node) -> int:
    """Weights are [C_in, C_out / group, ...]: output channels of one group along axis 1; depthwise has them along 0."""
    weight = node.inputs[1]
    return 0 if weight is not None and weight.shape is not None and weight.shape[1] == 1 else 1


def _refuse_small(node: ir.Node) -> str | None:
    weight = node.inputs[1]
    if weight is None or weight.const_value is None or weight.const_value.nbytes < MIN_WEIGHT_BYTES:
        return "no integer kernel, and its weight is small"
    return None


def _refuse_matmul(node: ir.Node) -> str | None:
    """Both factors computed, as in attention: the kernel packs them at every run, and float is as fast (tried)."""
    weight = node.inputs[1]
    if weight is None or weight.shape is None or len(weight.shape) != 2:
        return "its weight is not a matrix"
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


def _refuse_maxpool(node: ir.Node) -> str | None:
    if len(node.outputs) > 1 and node.outputs[1].uses():
        return "its indices are read"
    return None


def _refuse_resize(node: ir.Node) -> str | None:
    if node.attributes.get_string("mode", "nearest") != "nearest":
        return "only nearest-neighbour resizing keeps values"
    return None


def _refuse_split(node: ir.Node) -> str | None:
    if any(not (out.uses() or out.is_graph_output()) for out in node.outputs):
        return "one of its outputs is not read"
    return None


_MOVE = Rule(role="move")

TABLE = Table(
    rules={
        "Conv": Rule(role="compute", weight=1, bias=2, channel_axis=_conv_axis),
        "Gemm": Rule(role="compute", weight=1, bias=2, channel_axis=_gemm_axis, float_output=True),
        "MatMul": Rule(role="compute", weight=1, channel_axis=_matmul_axis, float_output=True, refuses=_refuse_matmul),
        "ConvTranspose": Rule(
            role="weight", weight=1, bias=2, channel_axis=_conv_transpose_axis, refuses=_refuse_small
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
        "MaxPool": dataclasses.replace(_MOVE, refuses=_refuse_maxpool),
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
        "Split": dataclasses.replace(_MOVE, refuses=_refuse_split),
        "Resize": dataclasses.replace(_MOVE, refuses=_refuse_resize),
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
