"""Which operators OpenVINO's CPU plugin runs in integers, and where quantized tensors may stand to get there.

Its low-precision transformations move a dequantization down through the graph as long as the operators allow it, and
join what follows (activation, addition, the next quantizer) to the operator before. On x86 a convolution reads
unsigned bytes with any zero point; signed ones only with AMX or AVX2-VNNI-INT8. Weights are signed, symmetric.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from edgeopt.quantize.placement import Rule, Table, limits


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


def _refuse_matmul(node: ir.Node) -> str | None:
    weight = node.inputs[1]
    if weight is None or weight.shape is None or len(weight.shape) != 2:
        return "its weight is not a matrix"
    return None


def _refuse_gemm(node: ir.Node) -> str | None:
    return "its first factor is transposed" if node.attributes.get_int("transA", 0) else None


def _refuse_constant(node: ir.Node) -> str | None:
    for value in node.inputs:
        if value is None or value.const_value is not None:
            return "one operand is a constant"
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
        "Conv": Rule(role="compute", weight=1, bias=2, channel_axis=_conv_axis, float_output=True),
        "Gemm": Rule(
            role="compute", weight=1, bias=2, channel_axis=_gemm_axis, float_output=True, refuses=_refuse_gemm
        ),
        "MatMul": Rule(role="compute", weight=1, channel_axis=_matmul_axis, float_output=True, refuses=_refuse_matmul),
        "ConvTranspose": Rule(
            role="compute",
            weight=1,
            bias=2,
            channel_axis=_conv_transpose_axis,
            float_output=True,
            alone=_signed_input,
        ),
        "Add": Rule(role="join", activations=None, refuses=_refuse_constant),
        "Mul": Rule(role="join", activations=None, refuses=_refuse_constant),
        "Concat": Rule(role="join", activations=None),
        "GlobalAveragePool": Rule(role="join"),
        "AveragePool": Rule(role="join"),
        "MaxPool": dataclasses.replace(_MOVE, refuses=_refuse_maxpool),
        "Reshape": _MOVE,
        "Flatten": _MOVE,
        "Squeeze": _MOVE,
        "Unsqueeze": _MOVE,
        "Transpose": _MOVE,
        "DepthToSpace": _MOVE,
        "Slice": _MOVE,
        "Split": dataclasses.replace(_MOVE, refuses=_refuse_split),
        "Resize": dataclasses.replace(_MOVE, refuses=_refuse_resize),
    },
    folded=frozenset({"Relu", "Clip"}),
)
"""Integer kernels of the CPU plugin, reached through its low-precision transformations."""
