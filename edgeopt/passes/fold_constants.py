"""f(constants) is a constant: computed here, by ONNX's reference implementation, only while the file does not grow.

1. The operator is in ``ELEMENTS``, all its inputs are constants of plain number types, and it has one output, which
   is no graph output.
2. The result has at most ``LIMIT`` bytes, or no more than the constants that only this node reads and that go with
   it. Its size is known before it is computed: an Expand, Tile or ConstantOfShape that would blow up stays a node.
3. A Transpose of a weight that something else reads stays a node, whatever its size: no weight is stored twice.
4. A Cast to float32 of float16 or bfloat16 that leads to weights or bias of a Conv, ConvTranspose, Gemm or MatMul
   is folded although the result is larger, when the source goes with it: the runtime would hold the float32 copy
   anyhow, and a weight behind a Cast could not be quantized.
5. Shape and Size of a tensor whose dims are known, Shape[start:end] of the known part, and Gather of known dims out
   of a Shape with unknown ones are constants too. After each round shapes are inferred again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from edgeopt.model import node_key
from edgeopt.passes._graph import (
    Array,
    attr_int,
    constant,
    constant_bytes,
    dims,
    drop_if_unused,
    first_line,
    input_at,
    is_constant,
    is_op,
    nodes_of,
    register,
)
from edgeopt.passes._pass import Pass, Refusal, Rewritten
from edgeopt.passes.infer_shapes import refresh_shapes

LIMIT = 1024
"""Bytes that the result of folding may always have."""

WEIGHT_OPS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators with a weight at input 1 and a bias at input 2 that the quantizer wants to see (rule 4)."""

LAYOUT_OPS = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Identity")
"""Operators that may stand between such a Cast and the weight."""

PLAIN = frozenset(
    {getattr(ir.DataType, n) for n in ("FLOAT", "DOUBLE", "FLOAT16", "BOOL", "UINT8", "INT8", "UINT16", "INT16")}
    | {getattr(ir.DataType, n) for n in ("UINT32", "INT32", "UINT64", "INT64")}
)
"""Types that are folded; BFLOAT16 only as source of a Cast."""

Inputs = Sequence[Array | None]


def _first(node: ir.Node, inputs: Inputs) -> int:
    assert inputs[0] is not None
    return inputs[0].size


def _broadcast(node: ir.Node, inputs: Inputs) -> int:
    return math.prod(np.broadcast_shapes(*(a.shape for a in inputs if a is not None)))


def _sum(node: ir.Node, inputs: Inputs) -> int:
    return sum(a.size for a in inputs if a is not None)


def _filled(node: ir.Node, inputs: Inputs) -> int:
    assert inputs[0] is not None
    size: int = math.prod(int(d) for d in inputs[0])
    return size


def _expanded(node: ir.Node, inputs: Inputs) -> int:
    data, shape = inputs
    assert data is not None
    assert shape is not None
    # np.broadcast_shapes allocates nothing, so a hostile shape costs nothing here.
    return math.prod(np.broadcast_shapes(data.shape, tuple(int(d) for d in shape)))


def _tiled(node: ir.Node, inputs: Inputs) -> int:
    data, repeats = inputs
    assert data is not None
    assert repeats is not None
    return data.size * math.prod(int(r) for r in repeats)


def _gathered(node: ir.Node, inputs: Inputs) -> int:
    data, indices = inputs
    assert data is not None
    assert indices is not None
    along = int(data.shape[attr_int(node, "axis", 0)])
    return data.size // max(along, 1) * indices.size


def _ranged(node: ir.Node, inputs: Inputs) -> int:
    start, limit, delta = (float(a) for a in inputs if a is not None)
    return max(0, math.ceil((limit - start) / delta))


ELEMENTS: dict[str, Callable[[ir.Node, Inputs], int]] = {
    **dict.fromkeys(("Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Slice"), _first),
    **dict.fromkeys(("Neg", "Abs", "Sqrt", "Reciprocal", "Exp", "Log", "Floor", "Ceil", "Sign", "Not"), _first),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Min", "Max", "Where"), _broadcast),
    **dict.fromkeys(("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or"), _broadcast),
    **dict.fromkeys(("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin"), _first),
    "Concat": _sum,
    "ConstantOfShape": _filled,
    "Expand": _expanded,
    "Tile": _tiled,
    "Gather": _gathered,
    "Range": _ranged,
}
"""Operators that are folded, with an upper bound of the elements of their result, computed from their inputs."""


def _rewrite(model: ir.Model) -> Rewritten:
    total = 0
    while True:
        folded, refusals = _sweep(model)
        if folded == 0:
            return Rewritten(count=total, refusals=refusals)
        total += folded
        _, why = refresh_shapes(model)
        if why is not None:
            return Rewritten(count=total, refusals=(*refusals, Refusal("model", why)))


def _sweep(model: ir.Model) -> tuple[int, tuple[Refusal, ...]]:
    opset = model.graph.opset_imports.get("", 0)
    count, refusals = 0, []
    for node in nodes_of(model):
        if node.domain != "" or node.graph is None or len(node.outputs) != 1 or not node.inputs:
            continue
        result: Array | str | None = _known_dims(node)
        if result is None and node.op_type in ELEMENTS and all(v is None or is_constant(v) for v in node.inputs):
            result = _why_not(node) or _evaluate(node, opset)
        if result is None:
            continue
        if node.outputs[0].is_graph_output():
            result = "its result is a graph output"
        if isinstance(result, np.ndarray):
            _replace(node, result)
            count += 1
        else:
            refusals.append(Refusal(node_key(node), result))
    return count, tuple(refusals)


def _known_dims(node: ir.Node) -> Array | None:
    """Rule 5: the value of Shape, Size or Gather(Shape) when it follows from known dims."""
    if is_op(node, "Shape", "Size") and (shape := dims(input_at(node, 0))) is not None:
        if is_op(node, "Size"):
            return None if None in shape else np.array(math.prod(d or 0 for d in shape), np.int64)
        end = node.attributes["end"].as_int() if "end" in node.attributes else None
        part = shape[slice(attr_int(node, "start", 0), end)]
        return None if None in part else np.array(part, np.int64)
    data, index = input_at(node, 0), constant(input_at(node, 1))
    if is_op(node, "Gather") and data is not None and index is not None and (source := data.producer()) is not None:
        if not is_op(source, "Shape") or {"start", "end"} & set(source.attributes):
            return None
        shape = dims(input_at(source, 0))
        if shape is None or not all(-len(shape) <= i < len(shape) for i in index.reshape(-1)):
            return None
        picked = [shape[int(i)] for i in index.reshape(-1)]
        return None if None in picked else np.array(picked, np.int64).reshape(index.shape)
    return None


def _why_not(node: ir.Node) -> str | None:
    """Rules 1 to 4 for a node whose inputs are all constants; nothing is computed."""
    sources = [v for v in dict.fromkeys(node.inputs) if v is not None]
    if node.outputs[0].is_graph_output():
        return "its result is a graph output"
    dtype = _result_type(node)
    half = is_op(node, "Cast") and sources[0].dtype == ir.DataType.BFLOAT16
    if dtype is None or dtype not in PLAIN or not (half or all(v.dtype in PLAIN for v in sources)):
        return "its type is not folded"
    dying = [v for v in sources if not v.is_graph_output() and all(user is node for user, _ in v.uses())]
    if is_op(node, "Transpose") and len(sources[0].shape or ()) > 1 and not dying:
        return "the weight has another reader"
    size = _elements(node)
    if size is None:
        return "its inputs do not fit together"
    needed = math.ceil(size * dtype.itemsize)
    freed = sum(constant_bytes(v) for v in dying)
    if needed <= LIMIT or needed <= freed or (_is_weight_cast(node, dtype) and dying):
        return None
    return f"the file would grow by {needed - freed} bytes"


def _result_type(node: ir.Node) -> ir.DataType | None:
    if is_op(node, "Cast"):
        return ir.DataType(attr_int(node, "to", 0))
    if is_op(node, "ConstantOfShape"):
        value = node.attributes.get("value")
        return ir.DataType.FLOAT if value is None else value.as_tensor().dtype
    if node.op_type in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Not"):
        return ir.DataType.BOOL
    data = input_at(node, 1 if is_op(node, "Where") else 0)
    return None if data is None else data.dtype


def _elements(node: ir.Node) -> int | None:
    try:
        return ELEMENTS[node.op_type](node, [constant(v) for v in node.inputs])
    except (ValueError, TypeError, IndexError, ZeroDivisionError, AssertionError, OverflowError):
        return None


def _is_weight_cast(node: ir.Node, dtype: ir.DataType) -> bool:
    source = input_at(node, 0)
    return (
        is_op(node, "Cast")
        and dtype == ir.DataType.FLOAT
        and source is not None
        and source.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
        and _feeds_weights(node.outputs[0])
    )


def _feeds_weights(value: ir.Value) -> bool:
    uses = value.uses()
    return bool(uses) and all(
        (is_op(user, *WEIGHT_OPS) and index in (1, 2))
        or (index == 0 and is_op(user, *LAYOUT_OPS) and _feeds_weights(user.outputs[0]))
        for user, index in uses
    )


def _evaluate(node: ir.Node, opset: int) -> Array | str:
    if is_op(node, "Cast"):
        array = constant(node.inputs[0])
        assert array is not None
        with np.errstate(over="ignore", invalid="ignore"):
            return array.astype(ir.DataType(attr_int(node, "to", 0)).numpy())
    from onnx.reference import ReferenceEvaluator

    proto = ir.to_proto(node)
    arrays = [constant(v) for v in node.inputs]
    names = ["" if a is None else f"in{i}" for i, a in enumerate(arrays)]
    del proto.input[:]
    proto.input.extend(names)
    proto.output[0] = "out"
    function = onnx.helper.make_function(
        "edgeopt", "fold", [n for n in names if n], ["out"], [proto], [onnx.helper.make_opsetid("", opset)]
    )
    try:
        feeds = {n: a for n, a in zip(names, arrays, strict=True) if n}
        with np.errstate(all="ignore"):
            (result,) = ReferenceEvaluator(function).run(None, feeds, attributes={})
    except (ValueError, TypeError, IndexError, AssertionError, RuntimeError, NotImplementedError) as error:
        return f"it cannot be evaluated: {first_line(error)}"
    dtype = _result_type(node)
    assert dtype is not None
    return np.ascontiguousarray(result, dtype=dtype.numpy()).reshape(np.shape(result))


def _replace(node: ir.Node, array: Array) -> None:
    out, graph, inputs = node.outputs[0], node.graph, node.inputs
    assert graph is not None
    name = out.name or ""
    out.name = None
    value = register(graph, name, array)
    out.replace_all_uses_with(value)
    graph.remove(node, safe=True)
    drop_if_unused(*inputs)


FOLD_CONSTANTS = Pass(name="fold-constants", rewrite=_rewrite, tolerance=1e-6)
