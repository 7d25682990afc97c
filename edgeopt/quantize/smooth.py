"""SmoothQuant: a loud channel behind a normalization is turned down there, and up again in the weights that read it.

    y = LayerNorm(x; g, b) W,   LayerNorm(x; g, b) = g * n(x) + b
      = (LayerNorm(x; g / s, b / s)) (diag(s) W),       s_j = max|x_j| ** a / max|W_j,:| ** (1 - a)

(Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models", ICML 2023).
The function is the same on all inputs. s is divided by its geometric mean over the channels that are ever read, so that
neither side grows as a whole. Everything that reads the normalized tensor must be a product with constant weights: a
residual connection that leaves behind the normalization reads it as it is, and then nothing is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from edgeopt.model import Model, node_key
from edgeopt.quantize.equalize import Equalized
from edgeopt.quantize.placement import Placement, constant_of
from edgeopt.quantize.tied import SOURCE
from edgeopt.quantize.writer import Writer

ALPHA = 0.5
"""How much of the difficulty goes from activations to weights."""

MOST = 32.0
"""A channel is turned up or down by no more."""


def smooth(
    model: Model, placement: Placement, peaks: Mapping[str, np.ndarray], *, alpha: float = ALPHA
) -> Equalized | str:
    """Fold smoothing factors into normalizations and weights; the reason when there are none.

    Args:
        placement: of int8 in ``model``: a tensor that no int8 operator reads gains nothing.
        peaks: largest magnitude of every channel by tensor name, as ``loudness.channel_peaks`` finds them.

    Returns:
        A model to be calibrated anew; ``read`` holds 1 / s by node key.
    """
    int8 = set(placement.int8)
    found: dict[ir.Node, tuple[list[ir.Node], np.ndarray]] = {}
    refused = 0
    for norm in model.graph:
        if norm.op_type != "LayerNormalization" or norm.domain not in ("", "ai.onnx"):
            continue
        readers = _readers(norm, model.graph)
        peak = peaks.get(str(norm.outputs[0].name))
        if readers is None or peak is None or not int8.intersection(readers):
            refused += 1
            continue
        factors = _factors(peak, [_rows(node) for node in readers], alpha)
        if np.any(np.abs(np.log(factors)) > 1e-3):
            found[norm] = readers, factors
    if not found:
        return "what a LayerNormalization makes is read by more than products" if refused else "no LayerNormalization"
    changed = model.clone()
    writer = Writer(changed.graph)
    copies = dict(zip(model.graph, changed.graph, strict=True))
    read: dict[str, np.ndarray] = {}
    for norm, (readers, factors) in found.items():
        for index in (1, 2):
            _scale(writer, copies[norm], index, 1 / factors)
        for node in readers:
            _scale(writer, copies[node], 1, factors[None, :] if _turned(node) else factors[:, None])
            read[node_key(node)] = 1 / factors[None, :]
    writer.drop_unused_constants()
    every = np.concatenate([factors for _, factors in found.values()])
    widest = float(np.exp(np.abs(np.log(every)).max()))
    return Equalized(model=changed, channels=int(every.size), widest=widest, read=read)


def _readers(norm: ir.Node, graph: ir.Graph) -> list[ir.Node] | None:
    """The products that read a normalized tensor; None where anything else does, or its constants are none."""
    out = norm.outputs[0]
    axis = norm.attributes.get_int("axis", -1)
    rank = None if out.shape is None else len(out.shape)
    if axis != -1 and (rank is None or axis != rank - 1):
        return None
    if any(v is not None and constant_of(norm, i) is None for i, v in enumerate(norm.inputs) if i > 0):
        return None
    if out.is_graph_output() or not out.uses():
        return None
    readers = []
    for use in out.uses():
        node = use.node
        value = node.inputs[1] if len(node.inputs) > 1 else None
        weight = constant_of(node, 1) if node.op_type in ("MatMul", "Gemm") else None
        if weight is None or use.idx != 0 or node.graph is not graph or len(weight.shape) != 2:
            return None
        if value is None or SOURCE in value.metadata_props or node.attributes.get_int("transA", 0) != 0:
            return None
        readers.append(node)
    return readers


def _turned(node: ir.Node) -> bool:
    return node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0))


def _rows(node: ir.Node) -> np.ndarray:
    """The largest weight that reads each channel."""
    weight = constant_of(node, 1)
    assert weight is not None
    found: np.ndarray = np.abs(weight.numpy().astype(np.float64)).max(axis=0 if _turned(node) else 1)
    return found


def _factors(peak: np.ndarray, rows: Sequence[np.ndarray], alpha: float) -> np.ndarray:
    """s of every channel: 1 for one that is always 0, or that nothing reads."""
    weights = np.max(rows, axis=0)
    awake = (peak > 0) & (weights > 0)
    factors = np.ones(peak.shape)
    if not awake.any():
        return factors
    raw = alpha * np.log(peak[awake]) - (1 - alpha) * np.log(weights[awake])
    factors[awake] = np.clip(np.exp(raw - raw.mean()), 1 / MOST, MOST)
    return factors.astype(np.float32).astype(np.float64)


def _scale(writer: Writer, node: ir.Node, index: int, factor: np.ndarray) -> None:
    value, tensor = node.inputs[index] if index < len(node.inputs) else None, constant_of(node, index)
    if value is not None and tensor is not None:
        array = (tensor.numpy().astype(np.float64) * factor).astype(np.float32)
        writer.replace(node, index, writer.initializer(str(value.name), "smoothed", array))
