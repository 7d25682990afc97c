"""Dynamic int8: weights stored in int8, activations quantized at run time with the range that they have there.

    y = x W    becomes    xq, s_x, z_x = DynamicQuantizeLinear(x)
                          y = MatMulInteger(xq, Wq, z_x) * (s_x s_w)            s_w: one scale an output channel

onnxruntime joins the four operators, and the bias behind them, into DynamicQuantizeMatMul, or MatMulIntegerToFloat
where several layers read one quantized tensor; an LSTM becomes its DynamicQuantizeLSTM. No calibration data is needed.
DynamicQuantizeLinear makes uint8 on every processor; a processor with signed products turns it over itself.

Where calibration tells how loud the channels of x are, loud ones are made quieter first,

    x W = (x / t) (diag(t) W),    t_k = max |x_k|^a / max_o |W_ko|^(1 - a)

(Xiao et al., "SmoothQuant", ICML 2023). The division is one Mul for all layers that read x: it cannot go into the
normalization before, whose result the residual reads too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set

import numpy as np
import onnx_ir as ir

from edgeopt.model import Model, node_key
from edgeopt.quantize.emit import Emitter
from edgeopt.quantize.insert import QuantizedModel
from edgeopt.quantize.placement import Table
from edgeopt.quantize.recurrent import dynamic_lstm, is_dynamic_lstm
from edgeopt.quantize.sites import Site, Weight, find, reads_matrix
from edgeopt.quantize.stored import Stored, described, store
from edgeopt.quantize.weights_alone import behind_first, restore
from edgeopt.target import Int8Scheme

SMOOTHING = 0.7
"""The exponent a. On a sentence encoder 17.1 dB without, 14.5 with a half, 21 to 22 with 0.7 and 0.8 (measured)."""

LOUD = 3.0
"""Channels are made quieter where one is this many times louder than their geometric mean."""

QUIETEST = 1e-4
"""Channels quieter than this share of the loudest one count as so loud: a silent one tells nothing."""


def quantize_dynamic(
    model: Model,
    table: Table,
    scheme: Int8Scheme,
    *,
    exclude: Set[str] = frozenset(),
    float_nodes: Set[str] = frozenset(),
    peaks: Mapping[str, np.ndarray] | None = None,
) -> QuantizedModel | None:
    """Weights in int8, and products in integers where the backend has kernels for them; None where no weight is found.

    Args:
        table: of the backend; only operators that it computes in int8 are quantized at run time.
        exclude: node keys that stay in float, weights too.
        float_nodes: keys of nodes that compute in float from int8 weights.
        peaks: largest magnitude of every channel by tensor name (see ``loudness``); None smooths nothing.
    """
    changed = model.clone()
    found = find(changed, exclude)
    if not found.weights:
        return None
    emitter = Emitter(changed)
    counts: dict[str, int] = {}
    notes: dict[str, str] = {}
    int8: list[str] = []
    factors = _smoothing(found.weights, table, float_nodes, peaks or {})
    sources: dict[tuple[ir.Graph, ir.Value], ir.Node] = {}
    lstms: dict[ir.Node, dict[int, Weight]] = {}
    for weight in behind_first(emitter, found.weights, counts, notes):
        if all(is_dynamic_lstm(site.node) and node_key(site.node) not in float_nodes for site in weight.sites):
            for site in weight.sites:
                lstms.setdefault(site.node, {})[site.index] = weight
            continue
        _store_one(emitter, weight, table, scheme, float_nodes, factors, sources, int8, counts)
    for node, weights in lstms.items():
        key = node_key(node)
        if set(weights) == {1, 2}:
            counts[key] = dynamic_lstm(emitter, node, weights[1], weights[2], scheme.weight_bits, scheme.per_channel)
            int8.append(key)
        else:
            notes[key] = "only one of its weights is a constant: it stays float"
    emitter.finish()
    return described(model, changed, found, int8, counts, notes, "int8-dynamic")


def _store_one(
    emitter: Emitter,
    weight: Weight,
    table: Table,
    scheme: Int8Scheme,
    float_nodes: Set[str],
    factors: Mapping[ir.Value, np.ndarray],
    sources: dict[tuple[ir.Graph, ir.Value], ir.Node],
    int8: list[str],
    counts: dict[str, int],
) -> None:
    source = weight.sites[0].node.inputs[0]
    factor = factors.get(source) if source is not None and _is_dynamic(weight.sites[0], table, float_nodes) else None
    if factor is not None:
        weight = dataclasses.replace(weight, rows=(weight.rows * factor).astype(np.float32))
    stored = store(weight, scheme.weight_bits, per_channel=scheme.per_channel)
    for site in weight.sites:
        key = node_key(site.node)
        counts[key] = int(stored.scales.size)
        if _is_dynamic(site, table, float_nodes):
            _multiply(emitter, site, stored, sources, factor)
            int8.append(key)
        else:
            restore(emitter, site, stored, look_up=True)


def _is_dynamic(site: Site, table: Table, float_nodes: Set[str]) -> bool:
    rule = table.rules.get(site.node.op_type)
    product = site.node.op_type in ("MatMul", "Gemm") and rule is not None and rule.role == "compute"
    wanted = site.index == 1 and node_key(site.node) not in float_nodes
    return product and wanted and reads_matrix(site.node)


def _smoothing(
    weights: Sequence[Weight], table: Table, float_nodes: Set[str], peaks: Mapping[str, np.ndarray]
) -> dict[ir.Value, np.ndarray]:
    """By the tensor that dynamic layers read: what to divide its channels by, where some are loud."""
    readers: dict[ir.Value, list[Weight]] = {}
    apart: set[ir.Value] = set()
    for weight in weights:
        for site in weight.sites:
            source = site.node.inputs[0]
            if source is None or not _is_dynamic(site, table, float_nodes):
                continue
            readers.setdefault(source, []).append(weight)
            if len(weight.sites) > 1 or _turned(site.node):
                apart.add(source)  # the other readers of a shared weight want it as it is
    factors = {}
    for source, members in readers.items():
        loud = peaks.get(str(source.name))
        if loud is None or source in apart or loud.max() <= 0 or {w.rows.shape[1] for w in members} != {loud.size}:
            continue
        loud = np.maximum(loud, loud.max() * QUIETEST)
        if loud.max() < LOUD * np.exp(np.log(loud).mean()):
            continue
        heavy = np.max([np.abs(weight.rows).max(axis=0) for weight in members], axis=0).astype(np.float64)
        if heavy.max() <= 0:
            continue
        factor = loud**SMOOTHING / np.maximum(heavy, heavy.max() * QUIETEST) ** (1 - SMOOTHING)
        factors[source] = (factor / np.exp(np.log(factor).mean())).astype(np.float32)
    return factors


def _bias_last(node: ir.Node) -> None:
    """Turn constant + y into y + constant where it is all that reads y: onnxruntime joins a bias only behind."""
    uses = list(node.outputs[0].uses())
    if len(uses) != 1 or uses[0].node.op_type != "Add" or uses[0].node.domain != "" or uses[0].idx != 1:
        return
    add = uses[0].node
    bias = add.inputs[0]
    if bias is not None and bias.const_value is not None:
        add.replace_input_with(0, node.outputs[0])
        add.replace_input_with(1, bias)


def _turned(node: ir.Node) -> bool:
    """Whether a Gemm multiplies the transpose of what it reads."""
    return bool(node.attributes.get_int("transA", 0))


def _multiply(
    emitter: Emitter,
    site: Site,
    stored: Stored,
    sources: dict[tuple[ir.Graph, ir.Value], ir.Node],
    factor: np.ndarray | None,
) -> None:
    """Put the integer product in the place of a MatMul or Gemm."""
    node, base = site.node, stored.weight.name
    source, graph = node.inputs[0], node.graph
    assert source is not None
    assert graph is not None
    turned = _turned(node)
    if turned or (graph, source) not in sources:
        read = emitter.matrix(node)
        if factor is not None:
            quiet = emitter.constant(base, "quiet", (1 / factor.astype(np.float64)).astype(np.float32))
            read = emitter.before(node, "Mul", [read, quiet], shape=read.shape).outputs[0]
        made = emitter.before(node, "DynamicQuantizeLinear", [read], outputs=3)
        for out, dtype in zip(made.outputs, (ir.DataType.UINT8, ir.DataType.FLOAT, ir.DataType.UINT8), strict=True):
            out.type, out.shape = ir.TensorType(dtype), ir.Shape(())
        made.outputs[0].shape = read.shape
        if not turned:
            sources[graph, source] = made
    else:
        made = sources[graph, source]
    quantized, step, zero = made.outputs
    columns = stored.integers(emitter, node, turned=True)
    alpha = np.float32(node.attributes.get_float("alpha", 1.0))
    scales = emitter.constant(base, "scale", (stored.scales * alpha).astype(np.float32))
    product = emitter.before(node, "MatMulInteger", [quantized, columns, zero], dtype=ir.DataType.INT32)
    real = emitter.before(node, "Cast", product.outputs, attributes={"to": int(ir.DataType.FLOAT)})
    both = emitter.before(node, "Mul", [step, scales], shape=scales.shape)
    last = emitter.before(node, "Mul", [real.outputs[0], both.outputs[0]])
    last = emitter.biased(node, last)
    emitter.stand_in(node, last, product)
    _bias_last(last)
