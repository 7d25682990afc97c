"""What OpenVINO really ran, from its compiled model: which layers, in which type, how many MACs.

The same figures as ``audit`` has from onnxruntime's profile. Everything here is a pure function of the layers.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

CONVOLUTIONS = frozenset(("Convolution", "Deconvolution", "BinaryConvolution", "DeformableConvolution"))
PRODUCTS = frozenset(("FullyConnected", "MatMul"))
UNCOUNTED = frozenset(("LSTMCell", "LSTMSequence", "GRUCell", "GRUSequence", "RNNCell", "RNNSequence", "RNNSeq"))
UNCOUNTED_ATTENTION = frozenset(("ScaledDotProductAttention", "ScaledDotProductAttentionWithKVCache", "MHA", "LLMMLP"))
MOVES = frozenset(
    (
        *("Input", "Output", "Const", "Reorder", "Reshape", "Transpose", "Permute", "Concatenation", "Split", "Crop"),
        *("Gather", "StridedSlice", "Slice", "Broadcast", "Tile", "Pad", "Convert", "ShapeOf", "MemoryInput", "If"),
        *("MemoryOutput", "TensorIterator", "Loop", "DepthToSpace", "SpaceToDepth", "ShuffleChannels", "Squeeze"),
        *("Unsqueeze", "Split", "Range", "NonZero", "Generic", "Reference", "FakeQuantize"),
    )
)
"""Layers that move, convert or steer."""

INTEGER = frozenset(("i8", "u8", "i4", "u4"))
REAL = frozenset(("f32", "f16", "bf16", "f64"))

Shape = Optional[List[int]]


class Layer(NamedTuple):
    """One layer of a compiled model; shapes of inputs and outputs, None where they are open."""

    kind: str
    precision: str
    primitive: str
    inputs: Sequence[Shape]
    outputs: Sequence[Shape]


def from_layers(layers: Sequence[Layer], asked: str) -> Dict[str, Any]:
    """Sum up the layers of one compiled model, with the keys of ``audit.from_profile``.

    ``layers`` counts those that compute by type and precision: ``{"Convolution u8": 49}``. MACs are those of the shapes
    as written; the padding of blocked layouts does not count.
    """
    ran = [layer for layer in layers if layer.kind not in ("Const", "Input", "Output")]
    computing = [(layer, _macs(layer)) for layer in ran if layer.kind not in MOVES]
    reasons = sorted({_why(layer) for layer, macs in computing if macs is None})
    known = not reasons
    counts: Dict[str, int] = {}
    for layer, _ in computing:
        key = "{} {}".format(layer.kind, layer.precision)
        counts[key] = counts.get(key, 0) + 1
    integer = [(layer, macs) for layer, macs in computing if layer.precision in INTEGER]
    real = [(layer, macs) for layer, macs in computing if layer.precision in REAL]
    return {
        "asked": asked,
        "nodes": len(ran),
        "providers": {"CPU": len(ran)} if ran else {},
        "outside": [],
        "shape_nodes_outside": 0,
        "opaque_nodes": 0,
        "macs": {"CPU": sum(macs or 0 for _, macs in computing)} if known else None,
        "macs_reason": None if known else "; ".join(reasons[:3]),
        "integer_nodes": len(integer),
        "float_nodes": len(real),
        "integer_macs": sum(macs or 0 for _, macs in integer) if known else None,
        "float_macs": sum(macs or 0 for _, macs in real) if known else None,
        "layers": {key: counts[key] for key in sorted(counts)},
    }


def _why(layer: Layer) -> str:
    if layer.kind in UNCOUNTED or layer.kind in UNCOUNTED_ATTENTION:
        return "the MACs of {} are not counted".format(layer.kind)
    return "the shapes of {} are open".format(layer.kind)


def _macs(layer: Layer) -> Optional[int]:
    """Multiply-accumulates of one layer; None where they cannot be told."""
    if layer.kind in UNCOUNTED or layer.kind in UNCOUNTED_ATTENTION:
        return None
    if layer.kind not in CONVOLUTIONS and layer.kind not in PRODUCTS:
        return 0
    if len(layer.inputs) < 2 or not layer.outputs:
        return None
    x, weight, y = layer.inputs[0], layer.inputs[1], layer.outputs[0]
    if x is None or weight is None or y is None or not x or not weight:
        return None
    if layer.kind == "MatMul":
        if len(x) < 2 or len(y) < 2 or not y[-2]:
            return None
        depth, rest = divmod(x[-1] * x[-2], y[-2])  # either factor may be transposed
        return None if rest else _size(y) * depth
    if layer.kind == "FullyConnected":
        return _size(y) * x[-1]
    grouped = len(weight) == len(y) + 1
    if layer.kind == "Deconvolution":
        return _size(x) * _size(weight[2:] if grouped else weight[1:])
    return _size(y) * _size(weight[2:] if grouped else weight[1:])


def _size(shape: Sequence[int]) -> int:
    product = 1
    for dim in shape:
        product *= dim
    return product
