"""The dims that an operator gives, from what is known about its inputs. One small rule for each kind of operator."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from edgeopt.passes._graph import attr_int, attr_ints, dims, input_at, integers
from edgeopt.passes._terms import Dim, Dims, Known, broadcast, product, quotient

SAME = frozenset(
    {"Abs", "BatchNormalization", "Cast", "Ceil", "Celu", "Clip", "DequantizeLinear", "Dropout", "Elu"}
    | {"Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "InstanceNormalization"}
    | {"IsNaN", "LayerNormalization", "LeakyRelu", "Log", "LogSoftmax", "Mish", "Neg", "Not"}
    | {"QuantizeLinear", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Softmax", "Softplus"}
    | {"Softsign", "Sqrt", "Tanh", "ThresholdedRelu", "Trilu"}
)
"""Operators whose first output has the shape of their first input."""

BROADCAST = frozenset(
    {"Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean"}
    | {"Min", "Mod", "Mul", "Or", "Pow", "PRelu", "Sub", "Sum", "Where", "Xor"}
)
"""Operators whose output has the shape that all inputs broadcast to."""

WINDOWS = frozenset({"Conv", "MaxPool", "AveragePool", "LpPool"})
REDUCTIONS = frozenset(f"Reduce{n}" for n in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum"))


def shape_of(known: Known, node: ir.Node) -> Dims | None:
    op, first = node.op_type, known.dims(input_at(node, 0))
    if op in BROADCAST:
        shapes = [known.dims(v) for v in node.inputs]
        return None if None in shapes or not shapes else broadcast(known, *(s for s in shapes if s is not None))
    if op in ("Expand", "ConstantOfShape", "Range"):
        return _made(known, node, first)
    if first is None:
        return None
    if op in SAME:
        return first
    if op in WINDOWS:
        return _window(known, node, first)
    if op in REDUCTIONS:
        return _reduced(node, first)
    rule = _RULES.get(op)
    return None if rule is None else rule(known, node, first)


def _made(known: Known, node: ir.Node, first: Dims | None) -> Dims | None:
    target = known.numbers(input_at(node, 1 if node.op_type == "Expand" else 0))
    if node.op_type == "Range":
        start, limit, step = (known.numbers(input_at(node, i)) for i in range(3))
        if start is None or limit is None or step is None or (start.items, step.items) != ((0,), (1,)):
            return None
        return limit.items
    if target is None:
        return None
    if node.op_type == "ConstantOfShape":
        return target.items
    return None if first is None else broadcast(known, first, target.items)


def _window(known: Known, node: ir.Node, first: Dims) -> Dims:
    """Batch stays; a spatial dim stays under stride 1 and pads that make up for the window. Channels are inferred."""
    spatial = len(first) - 2
    weight = dims(input_at(node, 1)) if node.op_type == "Conv" else None
    kernel = list(weight[2:]) if weight is not None else attr_ints(node, "kernel_shape")
    strides = attr_ints(node, "strides") or [1] * spatial
    dilations = attr_ints(node, "dilations") or [1] * spatial
    pads = attr_ints(node, "pads") or [0] * (2 * spatial)
    if node.attributes.get("auto_pad") is not None or kernel is None or len(pads) != 2 * spatial:
        pads = []
    result: list[Dim] = [first[0], known.new() if node.op_type == "Conv" else first[1]]
    for axis in range(spatial):
        size = kernel[axis] if pads and kernel is not None and axis < len(kernel) else None
        kept = size is not None and pads[axis] + pads[axis + spatial] == dilations[axis] * (size - 1)
        result.append(first[2 + axis] if kept and strides[axis] == 1 else known.new())
    return tuple(result)


def _reduced(node: ir.Node, first: Dims) -> Dims | None:
    axes = integers(input_at(node, 1)) if input_at(node, 1) is not None else attr_ints(node, "axes")
    if axes is None and input_at(node, 1) is not None:
        return None
    if not axes:
        if attr_int(node, "noop_with_empty_axes", 0):
            return first
        axes = list(range(len(first)))
    gone = {a % len(first) for a in axes} if first else set()
    if attr_int(node, "keepdims", 1):
        return tuple(1 if a in gone else d for a, d in enumerate(first))
    return tuple(d for a, d in enumerate(first) if a not in gone)


def _transpose(known: Known, node: ir.Node, first: Dims) -> Dims:
    perm = attr_ints(node, "perm") or list(reversed(range(len(first))))
    return tuple(first[p] for p in perm)


def _reshape(known: Known, node: ir.Node, first: Dims) -> Dims | None:
    target = known.numbers(input_at(node, 1))
    if target is None or target.scalar:
        return None
    copies = not attr_int(node, "allowzero", 0)
    result: list[Dim] = []
    for axis, dim in enumerate(target.items):
        if dim == 0 and copies:
            if axis >= len(first):
                return None
            dim = first[axis]
        result.append(dim)
    if -1 in result:
        open_axis = result.index(-1)
        rest = quotient(product(*first), product(*(d for a, d in enumerate(result) if a != open_axis)))
        result[open_axis] = known.new() if rest is None else rest
    return tuple(result)


def _flatten(known: Known, node: ir.Node, first: Dims) -> Dims:
    axis = attr_int(node, "axis", 1)
    axis = axis + len(first) if axis < 0 else axis
    return product(*first[:axis]), product(*first[axis:])


def _axes(node: ir.Node, rank: int) -> list[int] | None:
    axes = integers(input_at(node, 1))
    return None if axes is None else [a % rank for a in axes] if rank else []


def _squeeze(known: Known, node: ir.Node, first: Dims) -> Dims | None:
    axes = _axes(node, len(first))
    return None if axes is None else tuple(d for a, d in enumerate(first) if a not in axes)


def _unsqueeze(known: Known, node: ir.Node, first: Dims) -> Dims | None:
    raw = integers(input_at(node, 1))
    axes = None if raw is None else _axes(node, len(first) + len(raw))
    if axes is None:
        return None
    rest = iter(first)
    return tuple(1 if a in axes else next(rest) for a in range(len(first) + len(axes)))


def _concat(known: Known, node: ir.Node, first: Dims) -> Dims | None:
    shapes = [known.dims(v) for v in node.inputs]
    axis = attr_int(node, "axis", 0) % max(len(first), 1)
    if any(s is None or len(s) != len(first) for s in shapes):
        return None
    columns = [s[axis] for s in shapes if s is not None]
    numbers = [d for d in columns if isinstance(d, int)]
    total = sum(numbers) if len(numbers) == len(columns) else known.new()
    return (*first[:axis], total, *first[axis + 1 :])


def attention_of(known: Known, node: ir.Node) -> Dims | None:
    """The rows of com.microsoft MultiHeadAttention."""
    query, value = known.dims(input_at(node, 0)), known.dims(input_at(node, 2))
    return None if query is None or value is None or len(value) != 3 else (*query[:2], value[2])


def parts_of(known: Known, node: ir.Node) -> list[Dims] | None:
    """The shape of each output of a Split."""
    whole, axis = known.dims(input_at(node, 0)), attr_int(node, "axis", 0)
    if whole is None or not -len(whole) <= axis < len(whole):
        return None
    axis %= len(whole)
    count = len(node.outputs)
    sizes: list[Dim | None] = list(integers(input_at(node, 1)) or [])
    if input_at(node, 1) is None:
        sizes = [quotient(whole[axis], count)] * count
    if len(sizes) != count:
        sizes = [None] * count
    return [(*whole[:axis], known.new() if s is None else s, *whole[axis + 1 :]) for s in sizes]


def _slice(known: Known, node: ir.Node, first: Dims) -> Dims | None:
    starts = known.numbers(input_at(node, 1))
    axes = integers(input_at(node, 3)) if input_at(node, 3) is not None else None
    if axes is None and input_at(node, 3) is not None:
        return None
    if axes is None:
        axes = list(range(len(starts.items))) if starts is not None else list(range(len(first)))
    touched = {a % len(first): i for i, a in enumerate(axes)} if first else {}
    ends, steps = known.numbers(input_at(node, 2)), known.numbers(input_at(node, 4))
    result: list[Dim] = list(first)
    for axis, i in touched.items():
        start = None if starts is None else starts.items[i]
        end = None if ends is None else ends.items[i]
        if start != 0 or end is None or (input_at(node, 4) is not None and (steps is None or steps.items[i] != 1)):
            result[axis] = known.new()
        elif end != first[axis] and not (isinstance(end, int) and end >= 2**31 - 1):
            # a prefix of a known length, as positions of a sequence: the runtime clips it to the axis
            result[axis] = known.clipped(end, first[axis])
    return tuple(result)


def _gather(known: Known, node: ir.Node, first: Dims) -> Dims | None:
    index, axis = known.dims(input_at(node, 1)), attr_int(node, "axis", 0) % max(len(first), 1)
    return None if index is None else (*first[:axis], *index, *first[axis + 1 :])


def _matmul(known: Known, node: ir.Node, first: Dims) -> Dims | None:
    second = known.dims(input_at(node, 1))
    if second is None or len(first) < 2 or len(second) < 2:
        return None
    return (*broadcast(known, first[:-2], second[:-2]), first[-2], second[-1])


def _gemm(known: Known, node: ir.Node, first: Dims) -> Dims | None:
    second = known.dims(input_at(node, 1))
    if second is None or len(first) != 2 or len(second) != 2:
        return None
    return first[1 if attr_int(node, "transA", 0) else 0], second[0 if attr_int(node, "transB", 0) else 1]


def _pad(known: Known, node: ir.Node, first: Dims) -> Dims | None:
    pads = integers(input_at(node, 1))
    if pads is None or input_at(node, 3) is not None or len(pads) != 2 * len(first):
        return None
    return tuple(d if pads[a] == pads[a + len(first)] == 0 else known.new() for a, d in enumerate(first))


def _tile(known: Known, node: ir.Node, first: Dims) -> Dims | None:
    repeats = known.numbers(input_at(node, 1))
    if repeats is None or len(repeats.items) != len(first):
        return None
    return tuple(product(d, r) for d, r in zip(first, repeats.items, strict=True))


def _batch(known: Known, node: ir.Node, first: Dims) -> Dims:
    return (first[0], *(known.new() for _ in first[1:]))


def _global(known: Known, node: ir.Node, first: Dims) -> Dims:
    return (*first[:2], *(1 for _ in first[2:]))


def _rank(known: Known, node: ir.Node, first: Dims) -> Dims:
    end = node.attributes["end"].as_int() if "end" in node.attributes else None
    return (len(first[slice(attr_int(node, "start", 0), end)]),)


_RULES: dict[str, Callable[[Known, ir.Node, Dims], Dims | None]] = {
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Concat": _concat,
    "Slice": _slice,
    "Gather": _gather,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Pad": _pad,
    "ConvTranspose": _batch,
    "GlobalAveragePool": _global,
    "GlobalMaxPool": _global,
    "Shape": _rank,
    "Tile": _tile,
}
