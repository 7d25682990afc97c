"""Write a decided quantization into a graph: Q/DQ pairs on activations, DQ on integer weights and biases.

    y = Conv(x, W, b)   becomes   y = DQ(Q(Conv(DQ(Q(x)), DQ(Wq), DQ(bq))))
    Wq = round(W / s_w),  bq = round(b / (s_x s_w))

The bias correction of Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias
Correction", ICCV 2019, removes the shift that rounding weights gives the mean output:
b' = b - sum_k (DQ(Wq) - W)_k E[x_k], with E[x] per input channel from calibration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from edgeopt.model import Model, node_key
from edgeopt.quantize import border, pixels, scheme
from edgeopt.quantize.placement import Placement, Rule, Table, constant_of
from edgeopt.quantize.scheme import QParams
from edgeopt.quantize.writer import Writer

Means = Callable[[str], np.ndarray | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizedModel:
    """A Q/DQ model and what its runtime is expected to run in integers.

    Attributes:
        weight_scale_counts: number of weight scales by node key, for the read-back to assert.
        notes: what a person should know (a bias kept in float, say), by node key.
    """

    model: Model
    placement: Placement
    weight_scale_counts: Mapping[str, int]
    notes: Mapping[str, str]


def quantize_model(
    model: Model,
    table: Table,
    placement: Placement,
    params: Mapping[str, QParams],
    *,
    weight_bits: int,
    per_channel: bool,
    means: Means | None = None,
) -> QuantizedModel:
    """Insert Q/DQ as ``placement`` decides, on a copy.

    Args:
        params: by tensor name, one entry for each of ``placement.values``.
        means: channel means of a node's input tensor by name; None turns bias correction off.
    """
    changed = model.clone()
    graph = changed.graph
    writer = Writer(graph)
    keys = {node_key(n) for n in placement.int8}
    quantize_keys = {str(v.name) for v in placement.values}
    nodes = {node_key(n): n for n in graph}
    values = {str(v.name): v for v in graph.inputs} | {str(v.name): v for n in graph for v in n.outputs}

    counts: dict[str, int] = {}
    notes: dict[str, str] = {}
    for key in sorted(keys):
        node, rule = nodes[key], table.rules[nodes[key].op_type]
        if rule.weight is not None:
            input_name = str(node.inputs[0].name)  # type: ignore[union-attr]
            mean = None if means is None else means(input_name)
            counts[key] = _quantize_constants(
                writer,
                node,
                rule,
                params[input_name],
                weight_bits=weight_bits,
                per_channel=per_channel,
                mean=mean,
                notes=notes,
            )
    for node in placement.weight_only:
        rule = table.rules[node.op_type]
        counts[node_key(node)] = _quantize_weight_alone(writer, nodes[node_key(node)], rule, weight_bits, per_channel)
    from_int8 = {str(v.name) for v in placement.from_int8}
    for name in sorted(quantize_keys):
        value = values[name]
        source = None if name in from_int8 else pixels.bytes_of(value, params[name])
        if source is not None:
            writer.dequantize(value, source, params[name], lambda node: node_key(node) in keys)
            border.remove_dead(graph, value.producer())
            continue
        readers = None if name in from_int8 else lambda node: node_key(node) in keys
        writer.pair(value, params[name], readers)
    for node in list(graph):
        if node.op_type in table.shielded and node_key(node) not in keys:
            writer.shield(node, table.shielded[node.op_type])
    writer.shield_subgraphs({"DequantizeLinear", *(op for op, rule in table.rules.items() if rule.role == "move")})
    graph.sort()
    writer.drop_unused_constants()
    return QuantizedModel(model=changed, placement=placement, weight_scale_counts=counts, notes=notes)


def _quantize_constants(
    writer: Writer,
    node: ir.Node,
    rule: Rule,
    activation: QParams,
    *,
    weight_bits: int,
    per_channel: bool,
    mean: np.ndarray | None,
    notes: dict[str, str],
) -> int:
    """Replace weight and bias of one node by DQ of integers; return the number of weight scales."""
    assert rule.weight is not None
    weight = constant_of(node, rule.weight)
    assert weight is not None
    real = weight.numpy().astype(np.float32)
    bias = _bias_of(node, rule)
    if node.op_type == "Gemm":
        real, bias = _absorb_gemm_factors(node, real, bias)
    axis = rule.channel_axis(node) if per_channel else None
    scales = scheme.weight_scales(real, axis, weight_bits)
    channels = real.shape[axis] if axis is not None else None
    if bias is not None:
        bias = (
            np.broadcast_to(bias.reshape(-1), (channels,)).copy() if channels and bias.size in (1, channels) else bias
        )
        fitted = scheme.fit_bias(scales, bias if axis is not None else np.max(np.abs(bias)), activation.scale)
        scales = fitted
    integers = scheme.quantize_weights(real, scales, axis, weight_bits)
    if mean is not None and rule.bias is not None:
        shift = _mean_shift(
            node, rule, real, integers.astype(np.float64) * scheme.expand(scales, real.ndim, axis), mean
        )
        if shift is not None:
            corrected = (np.zeros(shift.size) if bias is None else bias.astype(np.float64).reshape(-1)) - shift
            fitted = scheme.fit_bias(
                scales, corrected if axis is not None else np.max(np.abs(corrected)), activation.scale
            )
            if np.array_equal(fitted, scales):
                bias = corrected.astype(np.float32)
    writer.constant(node, rule.weight, integers, scales, axis)
    if bias is not None and rule.bias is not None:
        quantized = scheme.quantize_bias(bias, activation.scale, scales)
        step = (np.float32(activation.scale) * scales).astype(np.float32)
        while len(node.inputs) <= rule.bias:
            node.resize_inputs(rule.bias + 1)
        writer.constant(node, rule.bias, quantized, step, 0 if axis is not None else None)
    return int(np.size(scales))


def _quantize_weight_alone(writer: Writer, node: ir.Node, rule: Rule, bits: int, per_channel: bool) -> int:
    """Store a weight as int8 behind DQ for an operator that computes in float; return the number of scales."""
    assert rule.weight is not None
    weight = constant_of(node, rule.weight)
    assert weight is not None
    real = weight.numpy().astype(np.float32)
    axis = rule.channel_axis(node) if per_channel else None
    scales = scheme.weight_scales(real, axis, bits)
    writer.constant(node, rule.weight, scheme.quantize_weights(real, scales, axis, bits), scales, axis)
    return int(np.size(scales))


def _bias_of(node: ir.Node, rule: Rule) -> np.ndarray | None:
    if rule.bias is None or rule.bias >= len(node.inputs) or node.inputs[rule.bias] is None:
        return None
    constant = constant_of(node, rule.bias)
    return None if constant is None else constant.numpy().astype(np.float32)


def _absorb_gemm_factors(
    node: ir.Node, weight: np.ndarray, bias: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """alpha A B + beta C = A (alpha B) + (beta C): integer kernels want both factors at 1."""
    alpha, beta = (float(node.attributes.get_float(name, 1.0)) for name in ("alpha", "beta"))
    node.attributes.pop("alpha", None)
    node.attributes.pop("beta", None)
    return (weight * np.float32(alpha) if alpha != 1 else weight), (
        bias * np.float32(beta) if bias is not None and beta != 1 else bias
    )


def _mean_shift(
    node: ir.Node, rule: Rule, real: np.ndarray, restored: np.ndarray, mean: np.ndarray
) -> np.ndarray | None:
    """sum_k (DQ(Wq) - W)_k E[x_k] per output channel, float64; None where the layout is not handled."""
    error = restored - real.astype(np.float64)
    if node.op_type == "Conv":
        groups = node.attributes.get_int("group", 1)
        out_channels, group_channels = real.shape[:2]
        if mean.size != groups * group_channels:
            return None
        by_tap = error.reshape(groups, out_channels // groups, group_channels, -1).sum(axis=3)
        shift: np.ndarray = np.einsum("goc,gc->go", by_tap, mean.reshape(groups, group_channels))
        return shift.reshape(-1)
    if node.op_type == "Gemm":
        by_row = error.T if node.attributes.get_int("transB", 0) else error
        return np.asarray(mean @ by_row) if mean.size == by_row.shape[0] else None
    return None
