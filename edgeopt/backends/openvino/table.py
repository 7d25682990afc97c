"""Which operators OpenVINO's CPU plugin runs in integers, and where quantized tensors may stand to get there.

Its low-precision transformations move a dequantization down through the graph as long as the operators allow it, and
join what follows (activation, addition, the next quantizer) to the operator before. On x86 a convolution reads
unsigned bytes with any zero point; signed ones only with AMX or AVX2-VNNI-INT8. Weights are signed, symmetric.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from edgeopt.quantize import operators
from edgeopt.quantize.placement import Rule, Table, limits


def _signed_input(node: ir.Node) -> str | None:
    """The integer kernel of ConvTranspose has no zero point: it takes bytes that begin at 0."""
    value = node.inputs[0]
    while value is not None and (producer := value.producer()) is not None:
        if producer.op_type in ("Relu", "Sigmoid", "HardSigmoid"):
            return None
        if producer.op_type == "Clip":
            bounds = limits(producer)
            return None if bounds is not None and bounds[0] == 0 else _SIGNED
        if producer.op_type not in _KEEPS_SIGN:
            return _SIGNED
        value = producer.inputs[0]
    return _SIGNED


_SIGNED = "its integer kernel has no zero point, and its input may be negative"
_KEEPS_SIGN = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "Resize", "Transpose", "Reshape", "Slice"})


def _refuse_gemm(node: ir.Node) -> str | None:
    return "its first factor is transposed" if node.attributes.get_int("transA", 0) else None


def _refuse_constant(node: ir.Node) -> str | None:
    for value in node.inputs:
        if value is None or value.const_value is not None:
            return "one operand is a constant"
    return None


_MOVE = Rule(role="move")

TABLE = Table(
    rules={
        "Conv": Rule(role="compute", weight=1, bias=2, channel_axis=operators.conv_axis, float_output=True),
        "Gemm": Rule(
            role="compute", weight=1, bias=2, channel_axis=operators.gemm_axis, float_output=True, refuses=_refuse_gemm
        ),
        "MatMul": Rule(
            role="compute",
            weight=1,
            channel_axis=operators.matmul_axis,
            float_output=True,
            refuses=operators.refuse_products,
        ),
        "ConvTranspose": Rule(
            role="compute",
            weight=1,
            bias=2,
            channel_axis=operators.conv_transpose_axis,
            float_output=True,
            alone=_signed_input,
        ),
        "Add": Rule(role="join", activations=None, refuses=_refuse_constant),
        "Mul": Rule(role="join", activations=None, refuses=_refuse_constant),
        "Concat": Rule(role="join", activations=None),
        "GlobalAveragePool": Rule(role="join"),
        "AveragePool": Rule(role="join"),
        "MaxPool": dataclasses.replace(_MOVE, refuses=operators.refuse_indices),
        "Reshape": _MOVE,
        "Flatten": _MOVE,
        "Squeeze": _MOVE,
        "Unsqueeze": _MOVE,
        "Transpose": _MOVE,
        "DepthToSpace": _MOVE,
        "Slice": _MOVE,
        "Split": dataclasses.replace(_MOVE, refuses=operators.refuse_unread),
        "Resize": dataclasses.replace(_MOVE, refuses=operators.refuse_interpolation),
    },
    folded=frozenset({"Relu", "Clip"}),
    rounded=frozenset({"Conv", "ConvTranspose", "Gemm", "Add", "Mul", "Concat", "Softmax", "Where"})
    | frozenset({"AveragePool", "GlobalAveragePool", "Sigmoid", "LeakyRelu"}),
)
"""Integer kernels of the CPU plugin, reached through its low-precision transformations."""
