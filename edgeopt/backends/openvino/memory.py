"""What OpenVINO's CPU plugin holds for a model. It packs and plans when it compiles, so the peak is that of the calls.

1. The file of constants is mapped; its pages are read once, and stay.
2. Convolutions and products have a packed copy of their weights, channels in groups of 16. Embeddings have none.
3. Tensors lie in one block that is planned for the whole graph, so it is as large as the most that is alive at once.
   Convolutions pad their channels to 16; element-wise operators work in place; integer operators write bytes.
4. Inputs are the caller's; outputs lie beside the block.

The rest is what each operator costs in objects and generated code, and the pages of the plugin that are read for the
first time, more the more kinds of operators a graph has. These are constants, fitted by scripts/memory_model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import onnx_ir as ir

from edgeopt.backends.shapes import shaped
from edgeopt.memory import VIEWS, Predicted, Rules, Sizes
from edgeopt.memory.liveness import live_bytes, peak_keys
from edgeopt.model import Model
from edgeopt.target import Target

LANES = 16
"""Channels side by side."""

COMPUTE = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})
_PRODUCTS = frozenset({"MatMul", "Gemm"})
_PAIRS = frozenset({"QuantizeLinear", "DequantizeLinear"})
_UNROLLED = 64
_RECURRENT = frozenset({"LSTM", "GRU"})

IN_PLACE = frozenset(
    {"Relu", "Clip", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Gelu", "Elu", "Add", "Sub", "Mul"}
    | {"Div", "Sum", "Abs", "Neg", "Exp", "Sqrt", "Log", "Softplus", "Erf", "Pow"}
)
"""Operators that are joined with the one before, or write over an input that nothing else reads."""

RULES = Rules(in_place=IN_PLACE, float_out=COMPUTE)


class Costs(NamedTuple):
    """Bytes beside what is computed, for each of the ``features``."""

    base: float
    kinds: float
    quantized: float
    convolutions: float
    products: float
    integer_convolutions: float
    integer_products: float
    others: float


COSTS = Costs(8_312_060, 105_657, 2_074_241, 141_691, 138_080, 251_121, 414_279, 37_125)
"""Fitted by scripts/memory_model."""


def predict(model: Model, target: Target, options: Mapping[str, str], *, quantized: bool) -> Predicted:
    """What the plugin needs for a model in the form that ``lower`` is given; nothing is run.

    Args:
        options: of the runner; none changes the memory.
        quantized: whether the graph holds Q/DQ pairs of activations.
    """
    model = shaped(model)
    sizes = Sizes(model.graph)
    weights = _stored(model)
    copies = sum(packed(node) for node in model.nodes())
    alive = live_bytes(model.graph, sizes, rules=RULES, padded=LANES)
    activations = None if None in alive else max((size for size in alive if size is not None), default=0)
    counts = features(model, quantized=quantized)
    return Predicted(
        weights=weights,
        packed=copies,
        activations=activations,
        overhead=round(sum(cost * count for cost, count in zip(COSTS, counts, strict=True))),
        peak_operators=peak_keys(model.graph, alive),
        assumed=tuple(sorted(sizes.assumed)),
    )


def features(model: Model, *, quantized: bool) -> tuple[float, ...]:
    """What the ``COSTS`` are for: 1, kinds of operators, 1 where activations are quantized, and the nodes by sort.

    Code is made for up to 64 output channels of a convolution; one of fewer counts less.
    """
    nodes = [node for node in model.nodes() if node.op_type not in VIEWS | _PAIRS | {"Constant"}]
    counts = dict.fromkeys(("convolutions", "products", "integer_convolutions", "integer_products", "others"), 0.0)
    for node in nodes:
        if node.op_type not in COMPUTE:
            counts["others"] += 1
            continue
        sort = "products" if node.op_type in _PRODUCTS else "convolutions"
        counts[f"integer_{sort}" if _is_integer(node) else sort] += _share(node) if sort == "convolutions" else 1
    integer = counts["integer_convolutions"] + counts["integer_products"] > 0
    return (1, len({node.op_type for node in nodes}), int(quantized and integer), *counts.values())


def _share(node: ir.Node) -> float:
    tensor = _weight(node, 1)
    return 1.0 if tensor is None else min(tensor.shape.numpy()[0], _UNROLLED) / _UNROLLED


def _is_integer(node: ir.Node) -> bool:
    producers = [value.producer() for value in node.inputs[:2] if value is not None and value.const_value is None]
    return bool(producers) and all(made is not None and made.op_type == "DequantizeLinear" for made in producers)


def _stored(model: Model) -> int:
    tensors = [v.const_value for g in (model.graph, *model.graph.subgraphs()) for v in g.initializers.values()]
    distinct = {id(tensor): tensor for tensor in tensors if tensor is not None}
    return sum(tensor.nbytes for tensor in distinct.values() if tensor.dtype != ir.DataType.STRING)


def packed(node: ir.Node) -> int:
    """Bytes of the packed weights of a node."""
    if node.op_type in _RECURRENT:
        return sum(tensor.nbytes for tensor in (_weight(node, 1), _weight(node, 2)) if tensor is not None)
    tensor = _weight(node, 1) if node.op_type in COMPUTE else None
    if tensor is None or len(tensor.shape) < 2:
        return 0
    outputs, inputs = tensor.shape.numpy()[0], tensor.shape.numpy()[1]
    if node.op_type == "Conv" and node.attributes.get_int("group", 1) == 1:
        inputs = inputs if inputs < LANES else _whole(inputs)
        outputs = _whole(outputs)
    elif node.op_type == "Conv":
        outputs = _whole(outputs)
    return math.ceil(outputs * inputs * math.prod(tensor.shape.numpy()[2:]) * tensor.dtype.bitwidth / 8)


def _whole(channels: int) -> int:
    return -(-channels // LANES) * LANES


def _weight(node: ir.Node, index: int) -> ir.TensorProtocol | None:
    """A constant input, or the stored one behind its DequantizeLinear."""
    value = node.inputs[index] if index < len(node.inputs) else None
    while value is not None and value.const_value is None:
        producer = value.producer()
        if producer is None or producer.op_type not in ("DequantizeLinear", "Transpose", "Cast"):
            return None
        value = producer.inputs[0]
    return None if value is None else value.const_value
