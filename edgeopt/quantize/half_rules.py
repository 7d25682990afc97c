"""Why an operator cannot compute in float16, from its type, its constants, and what its tensors were seen to hold.

float16 has 11 bits of precision, nothing above 65,504 and nothing between 0 and 6e-8. A sum in it stops growing or
becomes infinite long before one in float32 does, and a variance that is squared first overflows from inputs of 256 on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set

import numpy as np
import onnx
import onnx_ir as ir

from edgeopt.model import Model, node_key
from edgeopt.quantize.magnitudes import Seen, is_single
from edgeopt.quantize.masks import masked
from edgeopt.quantize.placement import keys_of

LARGEST = 65_504.0
"""The largest float16."""

HEADROOM = 4.0
"""What was seen may grow this many times on other data before it overflows."""

SMALLEST_NORMAL = 2.0**-14
"""Below this float16 loses precision; below 2**-24 it is 0."""

LOST = 2.0**-9
"""Largest relative RMS error of a constant: rounding costs 2**-12, so more means that its values are too small."""

LONG_SUM = 2_048
"""Products that a matrix multiplication may add up in float16 whatever they are: a longer sum is checked."""

ASSUMED = 8.0
"""Largest magnitude of an activation that is assumed where no samples tell."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_UNKNOWN_WITHOUT_SAMPLES = _names(
    "Pow Exp CumSum ReduceSum ReduceSumSquare ReduceL1 ReduceL2 ReduceProd ReduceLogSum ReduceLogSumExp Reciprocal "
    "Div Log MatMul"
)
_SUMS = _names(
    "ReduceSum ReduceSumSquare ReduceL1 ReduceL2 ReduceMean GlobalAveragePool AveragePool CumSum GlobalLpPool"
)
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_BOUNDS = _names(
    "Softmax Sigmoid HardSigmoid Tanh Erf Sin Cos Clip Softsign LogSoftmax LayerNormalization RMSNormalization ArgMax"
)
_SQUARES = frozenset({"ReduceSumSquare", "ReduceL2"})
_AMPLIFIES = frozenset({"Sqrt", "Reciprocal", "Pow", "Log", "Div"})
_CONTROL = frozenset({"If", "Loop", "Scan", "SequenceMap"})
_STATISTICS = _names(
    "InstanceNormalization LpNormalization MeanVarianceNormalization GroupNormalization BatchNormalization"
)
_QUANTIZERS = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
_PLAIN = frozenset({"Cast", "CastLike", "Constant"})
MOVES = _names(
    "Identity Reshape Flatten Squeeze Unsqueeze Transpose Slice Split Expand Tile Gather GatherElements GatherND "
    "DepthToSpace SpaceToDepth"
)
"""Operators that keep the type of what they move: a cast would only cost."""


def constant_at(node: ir.Node, index: int) -> ir.TensorProtocol | None:
    """The float32 constant of any graph at an input; a graph input's default is none."""
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None or not is_single(value) or value.is_graph_input():
        return None
    return value.const_value


def loss(tensor: ir.TensorProtocol) -> float:
    """Relative RMS error of a constant in float16; infinite where a finite value overflows."""
    real = tensor.numpy().astype(np.float64)
    real = real[np.isfinite(real)]
    total = float(np.sum(real**2))
    if total == 0:
        return 0.0 if not real.any() else 1.0
    if np.abs(real).max() > LARGEST:
        return math.inf
    return math.sqrt(float(np.sum((real.astype(np.float16).astype(np.float64) - real) ** 2)) / total)


def slots(node: ir.Node, opset: int) -> tuple[list[str], list[str]] | None:
    """The type variable of every input and output where it may be float16, else ""; None for an unknown operator."""
    if node.domain not in ("", "ai.onnx"):
        return None
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return None
    free = {c.type_param_str for c in schema.type_constraints if "tensor(float16)" in c.allowed_type_strs}

    def name(formals: list[onnx.defs.OpSchema.FormalParameter], index: int) -> str:
        formal = formals[min(index, len(formals) - 1)]
        return formal.type_str if formal.type_str in free else ""

    inputs = [name(list(schema.inputs), i) for i in range(len(node.inputs))]
    if node.op_type == "Resize":
        inputs[1:] = [""] * len(inputs[1:])
    return inputs, [name(list(schema.outputs), i) for i in range(len(node.outputs))]


def reasons(
    model: Model, seen: Mapping[str, Seen] | None, exclude: Set[str], kept: Mapping[str, str]
) -> dict[str, str]:
    """By node key, in all graphs: why it computes in float32. Nodes without float32 tensors, and casts, are left out.

    Args:
        seen: magnitudes by tensor name; None where there are no samples.
        kept: reasons that a trial gave.
    """
    found: dict[str, str] = {}
    carrying = masked(model.graph)
    opset = model.ir.opset_imports.get("", 1)
    guarded: set[ir.Value] = set()
    open_: set[ir.Value] = set()
    small = {} if seen is None else _magnified(model.graph, seen)
    for node in model.graph.all_nodes():
        if not any(map(is_single, (*node.inputs, *node.outputs))) or node.op_type in _PLAIN:
            continue
        guard = _by_guard(node, guarded)
        why = None if exclude.isdisjoint(keys_of(node)) else "excluded by request"
        why = why or _by_type(node, opset) or guard or _by_constants(node)
        why = why or kept.get(node_key(node)) or small.get(node_key(node))
        if why is None and node.op_type not in MOVES and not carrying.isdisjoint((*node.inputs, *node.outputs)):
            why = "it reads or makes a mask, whose numbers overflow"
        if seen is not None and node.graph is model.graph:
            why = why or _by_values(node, seen)
        else:
            why = _by_chance(node, open_, why)
        if why is not None:
            found[node_key(node)] = why
    return found


def _by_type(node: ir.Node, opset: int) -> str | None:
    if node.op_type in _CONTROL:
        return "values enter and leave its bodies in float32"
    if node.op_type in _QUANTIZERS:
        return "it is quantized already"
    free = slots(node, opset)
    if free is None:
        return f"operator of domain {node.domain}" if node.domain not in ("", "ai.onnx") else "an unknown operator"
    if not any(mark for mark, v in zip(free[0], node.inputs, strict=True) if is_single(v)):
        return f"{node.op_type} takes no float16 in opset {opset}"
    if node.op_type in _STATISTICS:
        return "its variance is a long sum of squares"
    return None


def _by_constants(node: ir.Node) -> str | None:
    if node.op_type == "Clip":
        return None  # a bound beyond all numbers is none
    for index in range(len(node.inputs)):
        tensor = constant_at(node, index)
        if tensor is None or (node.op_type == "Resize" and index > 0):
            continue
        lost = loss(tensor)
        if lost > LOST:
            largest = float(np.abs(tensor.numpy().astype(np.float64)).max())
            if lost == math.inf:
                return f"its constant reaches {largest:.4g}, and float16 ends at 65,504"
            return f"its constant, at most {largest:.4g}, would become 0 or lose its precision"
    return None


def _by_guard(node: ir.Node, guarded: set[ir.Value]) -> str | None:
    """Sqrt(x + 1e-12) and 1 / that: what the epsilon guards has to see it."""
    if node.op_type in ("Add", "Max", "Clip"):
        for index in range(len(node.inputs)):
            tensor = constant_at(node, index)
            if tensor is not None and tensor.size == 1 and 0 < float(tensor.numpy().reshape(-1)[0]) < SMALLEST_NORMAL:
                guarded.update(node.outputs)
                return "its epsilon is too small for float16"
    if node.op_type in _AMPLIFIES and any(v in guarded for v in node.inputs):
        if node.op_type not in ("Div", "Reciprocal"):
            guarded.update(node.outputs)
        return "an epsilon keeps what it reads away from 0"
    return None


def _by_values(node: ir.Node, seen: Mapping[str, Seen]) -> str | None:
    inputs = [seen[str(v.name)] for v in node.inputs if v is not None and v.name in seen]
    outputs = [seen[str(v.name)] for v in node.outputs if v.name in seen]
    peak = max((s.largest for s in (*inputs, *outputs)), default=0.0)
    if peak * HEADROOM > LARGEST:
        return f"its values reach {peak:.4g}, too near to 65,504"
    if node.op_type in _SUMS and inputs and outputs:
        terms = inputs[0].size / max(outputs[0].size, 1)
        largest = inputs[0].largest ** 2 if node.op_type in _SQUARES else inputs[0].largest
        if terms * largest > LARGEST:
            return f"its sum of {terms:.0f} terms could reach {terms * largest:.4g}"
    return _long_sum(node, [seen.get(str(v.name)) if v is not None else None for v in node.inputs[:2]])


def _magnified(graph: ir.Graph, seen: Mapping[str, Seen]) -> dict[str, str]:
    """Operators whose result depends on values that float16 has few bits for, and those that make such values.

    What a Conv or a matrix product makes is small by chance now and then: that error is absolute, and ends the walk.
    """
    found: dict[str, str] = {}
    for node in graph:
        if node.op_type not in ("Div", "Reciprocal", "Log", "Sqrt"):
            continue
        waiting = [node.inputs[1] if node.op_type == "Div" else node.inputs[0]]
        while waiting:
            value = waiting.pop()
            low = None if value is None else seen.get(str(value.name))
            if value is None or low is None or low.smallest >= SMALLEST_NORMAL:
                continue
            found.setdefault(node_key(node), f"it magnifies values as small as {low.smallest:.2g}")
            maker = value.producer()
            if maker is None or maker.graph is not graph or maker.op_type in _PRODUCTS or node_key(maker) in found:
                continue
            if maker.op_type not in MOVES:
                found[node_key(maker)] = f"{node_key(node)} magnifies its results, as small as {low.smallest:.2g}"
            waiting.extend(maker.inputs)
    return found


def _by_chance(node: ir.Node, open_: set[ir.Value], why: str | None) -> str | None:
    """Without samples: what could be anything, and whatever reads it until something bounds it again."""
    wild = [v in open_ for v in node.inputs]
    if why is None and not any(wild):
        why = _unseen(node)
        if why is None:
            return None
        open_.update(node.outputs)
        return why
    if any(wild) and node.op_type not in _BOUNDS and not (node.op_type == "Div" and not wild[0]):
        open_.update(node.outputs)
    return why or (None if node.op_type in MOVES else "it reads what could be anything without samples")


def _unseen(node: ir.Node) -> str | None:
    inputs = [v for v in node.inputs if v is not None]
    scaled = node.op_type in ("MatMul", "Div") and constant_at(node, 1) is not None
    if node.op_type in _UNKNOWN_WITHOUT_SAMPLES and not scaled:
        return "its range is not known without samples"
    if node.op_type in _SUMS and inputs and inputs[0].shape is not None and node.outputs[0].shape is not None:
        dims = [[d for d in shape if isinstance(d, int)] for shape in (inputs[0].shape, node.outputs[0].shape)]
        terms = math.prod(dims[0]) / max(math.prod(dims[1]), 1)
        if terms * ASSUMED > LARGEST:
            return f"its sum has {terms:.0f} terms"
    return _long_sum(node, [Seen(largest=ASSUMED), None])


def _long_sum(node: ir.Node, operands: list[Seen | None]) -> str | None:
    """MatMul, Gemm and Conv of more than ``LONG_SUM`` products whose running sum could leave float16."""
    if node.op_type not in _PRODUCTS or operands[0] is None:
        return None
    weight = constant_at(node, 1)
    if weight is None:
        shape = None if node.inputs[0] is None else node.inputs[0].shape
        other = operands[1]
        if node.op_type != "MatMul" or shape is None or other is None or not isinstance(shape[-1], int):
            return None
        terms, reach = shape[-1], shape[-1] * operands[0].largest * other.largest
    else:
        sizes = np.abs(weight.numpy().astype(np.float64))
        if node.op_type in ("Conv", "ConvTranspose"):
            sizes = sizes.reshape(sizes.shape[0], -1).T
        elif node.op_type == "Gemm" and node.attributes.get_int("transB", 0) != 0:
            sizes = sizes.T
        axis = max(sizes.ndim - 2, 0)
        terms, reach = sizes.shape[axis], float(sizes.sum(axis=axis).max()) * operands[0].largest
    if reach <= LARGEST or (terms <= LONG_SUM and reach <= LARGEST * HEADROOM**2):
        return None
    return f"its sum of {terms} products could reach {reach:.4g}"
