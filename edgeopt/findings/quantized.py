"""Networks that came quantized: Q/DQ pairs, integer operators, and what of both a device would stumble over."""

from __future__ import annotations

import collections
import dataclasses

import numpy as np
import onnx_ir as ir

from edgeopt.findings.finding import Finding, counted, listed
from edgeopt.model import Model, node_key
from edgeopt.target import Target

INTEGER_OPS = frozenset(
    {
        *("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "DynamicQuantizeLinear"),
        *("QLinearAdd", "QLinearMul", "QLinearConcat", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax"),
        *("QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearReduceMean", "QLinearWhere", "QGemm"),
        *(
            "QAttention",
            "QEmbedLayerNormalization",
            "QOrderedAttention",
            "QOrderedMatMul",
            "QMoE",
            "QLinearConvTranspose",
        ),
        *("MatMulIntegerToFloat", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "MatMulInteger16"),
        *("MatMulNBits", "GatherBlockQuantized", "MatMulBnb4", "ConvTransposeInteger"),
    }
)
"""Operators that compute on integers or hold quantized weights; names are the same in both domains."""

WEIGHTED = ("Conv", "ConvTranspose", "Gemm", "MatMul")

_DOMAINS = ("", "com.microsoft")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quantized:
    """What is quantized in a network as it came.

    Attributes:
        pairs: QuantizeLinear whose result a DequantizeLinear reads.
        weights: DequantizeLinear of constants.
        operators: count of integer operators by name.
        float_keys: weighted operators that compute in float from float weights.
    """

    pairs: int
    weights: int
    operators: dict[str, int]
    float_keys: tuple[str, ...]

    def __bool__(self) -> bool:
        """Whether anything is quantized."""
        return bool(self.pairs or self.weights or self.operators)


def count(model: Model) -> Quantized:
    """Count over the graph and its subgraphs."""
    pairs = weights = 0
    operators: collections.Counter[str] = collections.Counter()
    plain = []
    for node in model.nodes():
        if is_quantize(node):
            pairs += any(is_dequantize(use.node) for use in node.outputs[0].uses())
        elif is_dequantize(node):
            weights += _is_stored(node.inputs[0])
        elif node.domain in _DOMAINS and node.op_type in INTEGER_OPS:
            operators[node.op_type] += 1
        elif node.domain == "" and node.op_type in WEIGHTED and _is_stored(node.inputs[1]):
            plain.append(node_key(node))
    return Quantized(pairs=pairs, weights=weights, operators=dict(sorted(operators.items())), float_keys=tuple(plain))


def find(model: Model) -> tuple[Finding, ...]:
    """Whether the network came quantized, how, what of it is float, and Adds that cannot fuse."""
    held = count(model)
    if not held:
        return ()
    parts = []
    if held.pairs or held.weights:
        parts.append(f"{counted(held.pairs, 'Q/DQ pair')} and {counted(held.weights, 'quantized weight')}")
    if held.operators:
        parts.append(", ".join(f"{op} {number}" for op, number in held.operators.items()))
    text = f"quantized already: {'; '.join(parts)}"
    if held.float_keys:
        text += f"; {counted(len(held.float_keys), 'weighted operator')} still in float ({listed(held.float_keys)})"
    found = [Finding(kind="quantized", text=text, nodes=held.float_keys)]
    lopsided = tuple(node_key(node) for node in model.nodes() if _is_lopsided(node))
    if lopsided:
        found.append(
            Finding(
                kind="quantized",
                text=f"only one branch of {listed(lopsided)} comes from DequantizeLinear: the runtime cannot fuse it "
                "into an integer operator and computes it in float",
                nodes=lopsided,
                level="warning",
            )
        )
    return tuple(found)


def why_kept(held: Quantized) -> str:
    """The line for the bundle of a network that came quantized."""
    parts = [counted(held.pairs, "Q/DQ pair")] if held.pairs or held.weights else []
    parts += [f"{op} {number}" for op, number in held.operators.items()]
    text = f"the model came quantized ({', '.join(parts)}): it is not quantized again"
    if held.float_keys:
        text += (
            f"; {counted(len(held.float_keys), 'weighted operator')} ({listed(held.float_keys)}) left in float by "
            "whoever quantized the rest, perhaps for the error; give the float network to have all of it done"
        )
    return text


def refused_by_tensorrt(model: Model, target: Target) -> tuple[Finding, ...]:
    """What TensorRT does not take of a quantized network, for targets that prefer it: pure, from model and profile.

    It wants signed integers with zero point 0 everywhere, scales that are constants, and no operator that computes on
    integers itself.
    """
    if target.backends[:1] != ("tensorrt",):
        return ()
    unsigned, shifted, integer = [], [], []
    for node in model.nodes():
        if node.domain in _DOMAINS and node.op_type in INTEGER_OPS:
            integer.append(f"{node.op_type} {node_key(node)}")
        if not (is_quantize(node) or is_dequantize(node)):
            continue
        zero = _zero_point(node)
        if _grid_type(node, zero) == ir.DataType.UINT8:
            unsigned.append(node_key(node))
        elif zero is not None and bool(np.any(zero.numpy() != 0)):
            shifted.append(node_key(node))
    found = []
    for keys, what, remedy in (
        (unsigned, "uint8 in {}: TensorRT takes signed int8 only", "Quantize with int8 activations."),
        (shifted, "a zero point that is not 0 in {}: TensorRT takes symmetric grids only", "Quantize symmetrically."),
        (integer, "operators that TensorRT's parser does not know: {}", "Export the network with Q/DQ pairs instead."),
    ):
        if keys:
            text = what.format(listed(keys))
            found.append(Finding(kind="tensorrt", text=text, nodes=tuple(keys), level="warning", remedy=remedy))
    return tuple(found)


def is_quantize(node: ir.Node) -> bool:
    """Whether a node is QuantizeLinear of either domain."""
    return node.domain in _DOMAINS and node.op_type == "QuantizeLinear"


def is_dequantize(node: ir.Node) -> bool:
    """Whether a node is DequantizeLinear of either domain."""
    return node.domain in _DOMAINS and node.op_type == "DequantizeLinear"


def _is_stored(value: ir.Value | None) -> bool:
    """Whether a value is a constant, or moved and cast from constants alone."""
    if value is None:
        return False
    if value.const_value is not None:
        return True
    producer = value.producer()
    if producer is None or producer.domain != "":
        return False
    if producer.op_type == "Constant":
        return True
    moves = producer.op_type in ("Identity", "Transpose", "Reshape", "Cast", "Squeeze", "Unsqueeze")
    return moves and _is_stored(producer.inputs[0])


def _is_lopsided(node: ir.Node) -> bool:
    """Whether exactly one of two activations of an Add or Mul comes from DequantizeLinear."""
    if node.domain != "" or node.op_type not in ("Add", "Mul") or len(node.inputs) != 2:
        return False
    makers = [None if v is None or v.const_value is not None else v.producer() for v in node.inputs]
    if any(v is None or _is_stored(v) for v in node.inputs):
        return False
    return sum(maker is not None and is_dequantize(maker) for maker in makers) == 1


def _zero_point(node: ir.Node) -> ir.TensorProtocol | None:
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is None:
        return None
    if value.const_value is None and (producer := value.producer()) is not None and "value" in producer.attributes:
        return producer.attributes["value"].as_tensor()
    return value.const_value


def _grid_type(node: ir.Node, zero: ir.TensorProtocol | None) -> ir.DataType | None:
    """The integer type of a Q or DQ: the zero point's; without one uint8 for Q, unless ``output_dtype`` says other."""
    if zero is not None:
        return zero.dtype
    if is_dequantize(node):
        return None if node.inputs[0] is None else node.inputs[0].dtype
    stated = node.attributes.get_int("output_dtype", 0)
    return ir.DataType(stated) if stated else ir.DataType.UINT8
