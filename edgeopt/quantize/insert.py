"""Write a decided quantization into a graph: Q/DQ pairs on activations, DQ on integer weights and biases.

    y = Conv(x, W, b)   becomes   y = DQ(Q(Conv(DQ(Q(x)), DQ(Wq), DQ(bq))))
    Wq = round(W / s_w),  bq = round(b / (s_x s_w))

How W is rounded and what b takes up is decided in ``weights``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from edgeopt.model import Model, node_key
from edgeopt.quantize import border, hard, operators, pixels, scheme
from edgeopt.quantize.placement import Placement, Rule, Table, activation_inputs, constant_of, constant_operands
from edgeopt.quantize.scheme import QParams
from edgeopt.quantize.weights import Fitted
from edgeopt.quantize.writer import Writer

Fit = Callable[[ir.Node, Rule, np.ndarray, np.ndarray | None, np.float32 | None], Fitted]
"""Node, its rule, weight, bias, scale of its input (None where it computes in float) -> integers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizedModel:
    """A Q/DQ model and what its runtime is expected to run in integers.

    Attributes:
        weight_scale_counts: number of weight scales by node key, for the read-back to assert.
        warnings: of the data that it was calibrated with.
        notes: what a person should know (a bias kept in float, say), by node key.
        precision: ``"int8"`` (static), ``"int8-dynamic"``, ``"int8-weights"``, ``"int4-weights"``, ``"float16"`` or
            ``"bfloat16"``; artifacts are known by it.
    """

    model: Model
    placement: Placement
    weight_scale_counts: Mapping[str, int]
    notes: Mapping[str, str]
    precision: str = "int8"
    warnings: tuple[str, ...] = ()


def quantize_model(
    model: Model,
    table: Table,
    placement: Placement,
    params: Mapping[str, QParams],
    fit: Fit,
) -> QuantizedModel:
    """Insert Q/DQ as ``placement`` decides, on a copy.

    Args:
        params: by tensor name, one entry for each of ``placement.values``.
        fit: decides the integers of a node from its weight, bias and the scale of its input.
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
            input_name = operators.input_name(node, 0)
            counts[key] = _quantize_constants(writer, node, rule, params[input_name], fit)
        for index, array in constant_operands(node, rule):
            dtype = params[str(activation_inputs(node, rule)[0].name)].dtype
            writer.operand(node, index, array, scheme.activation_qparams(array.min(), array.max(), dtype))
    for node in placement.weight_only:
        rule = table.rules[node.op_type]
        counts[node_key(node)] = _quantize_weight_alone(writer, nodes[node_key(node)], rule, fit)
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
            moves = {op for op, rule in table.rules.items() if rule.role == "move"}
            writer.shield(node, table.shielded[node.op_type], moves, table.folded)
    for key in sorted(keys):
        if nodes[key].op_type in hard.SPELLED:
            hard.spell(writer, graph, nodes[key])
    writer.shield_subgraphs({"DequantizeLinear", *(op for op, rule in table.rules.items() if rule.role == "move")})
    graph.sort()
    writer.drop_unused_constants()
    return QuantizedModel(model=changed, placement=placement, weight_scale_counts=counts, notes=notes)


def _quantize_constants(writer: Writer, node: ir.Node, rule: Rule, activation: QParams, fit: Fit) -> int:
    """Replace weight and bias of one node by DQ of integers; return the number of weight scales."""
    assert rule.weight is not None
    weight = constant_of(node, rule.weight)
    assert weight is not None
    real = weight.numpy().astype(np.float32)
    bias = _bias_of(node, rule)
    if node.op_type == "Gemm":
        real, bias = _absorb_gemm_factors(node, real, bias)
    fitted = fit(node, rule, real, bias, activation.scale)
    writer.constant(node, rule.weight, fitted.integers, fitted.scales, fitted.axis)
    if fitted.bias is not None and rule.bias is not None:
        quantized = scheme.quantize_bias(fitted.bias, activation.scale, fitted.scales)
        step = (np.float32(activation.scale) * fitted.scales).astype(np.float32)
        while len(node.inputs) <= rule.bias:
            node.resize_inputs(rule.bias + 1)
        writer.constant(node, rule.bias, quantized, step, 0 if fitted.axis is not None else None)
    return int(np.size(fitted.scales))


def _quantize_weight_alone(writer: Writer, node: ir.Node, rule: Rule, fit: Fit) -> int:
    """Store a weight as int8 behind DQ for an operator that computes in float; return the number of scales."""
    assert rule.weight is not None
    weight = constant_of(node, rule.weight)
    assert weight is not None
    fitted = fit(node, rule, weight.numpy().astype(np.float32), None, None)
    writer.constant(node, rule.weight, fitted.integers, fitted.scales, fitted.axis)
    return int(np.size(fitted.scales))


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
