"""f(constants) is a constant: computed here, by ONNX's reference implementation, only while the file does not grow.

1. The operator is in ``ELEMENTS``, all its inputs are constants of plain number types, and it has one output, which
   is no graph output.
2. The result has no more bytes than the constants that only this node reads and that go with it, or at most ``limit``
   more (1 KiB when nobody says otherwise). Its size is known before it is computed: an Expand, Tile or ConstantOfShape
   that would blow up stays a node.
   All results together add no more than 1 % of the weights or, where that is less, than the limit; what a node itself
   takes in a file (``NODE_BYTES``) is not counted.
3. A Transpose of a weight that something else reads stays a node, whatever its size: no weight is stored twice.
4. A Cast to float32 of float16 or bfloat16 that leads to weights or bias of a Conv, ConvTranspose, Gemm or MatMul
   is folded although the result is larger, when the source goes with it: the runtime would hold the float32 copy
   anyhow, and a weight behind a Cast could not be quantized.
5. Shape and Size of a tensor whose dims are known, Shape[start:end] of the known part, and Gather of known dims out
   of a Shape with unknown ones are constants too. After each round shapes are inferred again.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx
import onnx_ir as ir

from edgeopt.model import node_key
from edgeopt.passes._elements import ELEMENTS
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
"""Bytes that the result of folding may have although the file grows by it."""

SHARE = 100
"""All folded constants together add one part in this many to the weights, or the limit."""

NODE_BYTES = 64
"""Bytes that a node takes in a file, about; a constant of that size instead of it is no growth."""

WEIGHT_OPS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators with a weight at input 1 and a bias at input 2 that the quantizer wants to see (rule 4)."""

LAYOUT_OPS = ("Transpose", "Reshape", "Squeeze", "Unsqueeze", "Identity")
"""Operators that may stand between such a Cast and the weight."""

PLAIN = frozenset(
    {getattr(ir.DataType, n) for n in ("FLOAT", "DOUBLE", "FLOAT16", "BOOL", "UINT8", "INT8", "UINT16", "INT16")}
    | {getattr(ir.DataType, n) for n in ("UINT32", "INT32", "UINT64", "INT64")}
)
"""Types that are folded; BFLOAT16 only as source of a Cast."""


@dataclasses.dataclass(kw_only=True)
class _Room:
    """How far the file may still grow, in bytes: by one constant, and by all that follow."""

    limit: int
    left: int


def _fold(model: ir.Model, limit: int) -> Rewritten:
    total = 0
    weights = sum(constant_bytes(value) for graph in model.graphs() for value in graph.initializers.values())
    room = _Room(limit=limit, left=max(limit, weights // SHARE))
    while True:
        folded, refusals = _sweep(model, room)
        if folded == 0:
            return Rewritten(count=total, refusals=refusals)
        total += folded
        _, why = refresh_shapes(model)
        if why is not None:
            return Rewritten(count=total, refusals=(*refusals, Refusal("model", why)))


def _sweep(model: ir.Model, room: _Room) -> tuple[int, tuple[Refusal, ...]]:
    opset = model.graph.opset_imports.get("", 0)
    count, refusals = 0, []
    for node in nodes_of(model):
        if node.domain != "" or node.graph is None or len(node.outputs) != 1 or not node.inputs:
            continue
        result: Array | str | None = _known_dims(node)
        if result is None and node.op_type in ELEMENTS and all(v is None or is_constant(v) for v in node.inputs):
            result = _why_not(node, room) or _evaluate(node, opset)
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


def _why_not(node: ir.Node, room: _Room) -> str | None:
    """Rules 1 to 4 for a node whose inputs are all constants; nothing is computed. Growth is taken from ``room``."""
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
    growth = needed - freed
    if growth <= 0 or (_is_weight_cast(node, dtype) and dying):
        return None
    if growth > max(room.limit, NODE_BYTES):
        return f"the file would grow by {growth} bytes, over the limit of {room.limit} for one constant"
    growth = max(0, growth - NODE_BYTES)
    if growth > room.left:
        return "folded constants have used up their share of the file"
    room.left -= growth
    return None


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


def fold_constants(limit: int = LIMIT) -> Pass:
    """The pass with another limit.

    Args:
        limit: bytes that the result of one fold may have although the file grows by it; 0 folds only what shrinks.
    """
    return Pass(
        name="fold-constants",
        rewrite=lambda model: _fold(model, limit),
        tolerance=1e-6,
        gain="computed once, here",
        params={"limit": limit},
    )


FOLD_CONSTANTS = fold_constants()
