"""What holds for an operator in every runtime: where its weight keeps channels, and what its integers cannot do."""

from __future__ import annotations

import onnx_ir as ir


def conv_axis(node: ir.Node) -> int:
    """Weights are [C_out, C_in / group, ...]."""
    return 0


def gemm_axis(node: ir.Node) -> int:
    """Weights are [K, N], or [N, K] with transB."""
    return 0 if node.attributes.get_int("transB", 0) else 1


def matmul_axis(node: ir.Node) -> int:
    """Weights are [K, N]."""
    return 1


def conv_transpose_axis(node: ir.Node) -> int:
    """Weights are [C_in, C_out / group, ...]: output channels of one group along axis 1; depthwise has them along 0."""
    weight = node.inputs[1]
    return 0 if weight is not None and weight.shape is not None and weight.shape[1] == 1 else 1


def input_name(node: ir.Node, index: int) -> str:
    """Name of an input that is there."""
    value = node.inputs[index]
    assert value is not None
    return str(value.name)


def refuse_products(node: ir.Node) -> str | None:
    """Both factors computed, as in attention: kernels pack them at every run, and float is as fast (tried)."""
    weight = node.inputs[1]
    if weight is None or weight.shape is None or len(weight.shape) != 2:
        return "its weight is not a matrix"
    return None


def refuse_indices(node: ir.Node) -> str | None:
    """Of MaxPool: no integer kernel gives them."""
    if len(node.outputs) > 1 and node.outputs[1].uses():
        return "its indices are read"
    return None


def refuse_interpolation(node: ir.Node) -> str | None:
    """Of Resize: other modes make values that were not there."""
    if node.attributes.get_string("mode", "nearest") != "nearest":
        return "only nearest-neighbour resizing keeps values"
    return None


def refuse_unread(node: ir.Node) -> str | None:
    """Of Split: a quantizer behind an output that nothing reads would be left alone."""
    if any(not (out.uses() or out.is_graph_output()) for out in node.outputs):
        return "one of its outputs is not read"
    return None
