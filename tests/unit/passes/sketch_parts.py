"""What random graphs are made of: a graph under construction, and functions in the spellings of exporters."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = tuple[int, ...]


@dataclasses.dataclass
class Sketch:
    """A graph under construction; ``shapes`` holds the tensors that pieces may start from."""

    rng: np.random.Generator
    pick: Callable[[int], int]
    opset: int
    nodes: list[onnx.NodeProto] = dataclasses.field(default_factory=list)
    arrays: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    shapes: dict[str, Shape] = dataclasses.field(default_factory=dict)
    count: int = 0

    def constant(self, array: np.ndarray, *, may_share: bool = True) -> str:
        """A weight, by one of the routes that exporters take: plain, Constant, Identity, Transpose, Cast, shared."""
        name = self.name("k")
        route = self.pick(7 if may_share and array.dtype == np.float32 else 4)
        if route == 0:
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array)))
        elif route == 1 and array.ndim > 1:
            self.arrays[f"{name}_t"] = np.ascontiguousarray(array.T)
            self.nodes.append(helper.make_node("Transpose", [f"{name}_t"], [name]))
        elif route == 2:
            self.arrays[f"{name}_i"] = array
            self.nodes.append(helper.make_node("Identity", [f"{name}_i"], [name]))
        elif route == 3 and array.dtype == np.float32 and may_share:
            self.arrays[f"{name}_h"] = array.astype(np.float16)
            self.nodes.append(helper.make_node("Cast", [f"{name}_h"], [name], to=TensorProto.FLOAT))
        elif route == 4 and (same := [n for n, a in self.arrays.items() if (a.shape, a.dtype) == _kind(array)]):
            return same[0]
        else:
            self.arrays[name] = array
        return name

    def scalar(self, value: float) -> str:
        """A number as exporters write it: rank 0 or 1, an initializer or a Constant."""
        shaped = np.asarray(value, np.float32) if self.pick(2) else np.array([value], np.float32)
        return self.constant(np.asarray(shaped), may_share=False)

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64), may_share=False)

    def name(self, word: str) -> str:
        self.count += 1
        return f"{word}{self.count}"

    def op(self, op: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        """A node; the name of its first output, the others are ``name_1``..."""
        name = self.name("t")
        outs = [name, *[f"{name}_{i}" for i in range(1, outputs)]]
        self.nodes.append(helper.make_node(op, list(inputs), outs, **attributes))
        return name

    def swap(self, op: str, a: str, b: str) -> str:
        """A commutative node, either way round."""
        return self.op(op, a, b) if self.pick(2) else self.op(op, b, a)

    def mean(self, x: str, *axes: int) -> str:
        if self.opset < 18:
            return self.op("ReduceMean", x, axes=list(axes), keepdims=1)
        return self.op("ReduceMean", x, self.ints(*axes), keepdims=1)

    def keep(self, name: str, shape: Shape) -> str:
        """Let later pieces start here."""
        self.shapes[name] = shape
        return name

    def weights(self, *shape: int, fan_in: int) -> np.ndarray:
        return (self.rng.uniform(-1.7, 1.7, shape) / math.sqrt(fan_in)).astype(np.float32)

    def floats(self, *shape: int, low: float = -1.0, high: float = 1.0) -> np.ndarray:
        return np.asarray(self.rng.uniform(low, high, shape).astype(np.float32))


def _kind(array: np.ndarray) -> tuple[Shape, np.dtype]:
    return array.shape, array.dtype


def activation(s: Sketch, x: str) -> str:
    """One function in one of its spellings."""
    kind = s.pick(20)
    if kind == 0:  # SiLU
        return s.swap("Mul", x, s.op("Sigmoid", x))
    if kind == 1:
        return s.op("Div", x, s.swap("Add", s.op("Exp", s.op("Neg", x)), s.scalar(1)))
    if kind == 2:  # HardSwish
        gate = s.op("Clip", s.swap("Add", x, s.scalar(3)), _rank0(s, 0), _rank0(s, 6))
        return s.op("Div", s.swap("Mul", x, gate), s.scalar(6))
    if kind == 3:
        gate = s.op("Clip", s.swap("Add", x, s.scalar(3)), _rank0(s, 0), _rank0(s, 6))
        return s.swap("Mul", x, s.op("Div", gate, s.scalar(6)) if s.pick(2) else s.swap("Mul", gate, s.scalar(1 / 6)))
    if kind == 4:  # HardSigmoid
        gate = s.op("Min", s.op("Relu", s.swap("Add", x, s.scalar(3))), s.scalar(6))
        return s.op("Div", gate, s.scalar(6))
    if kind == 5:  # Clip pairs
        return s.op("Clip", s.op("Clip", x, _rank0(s, -1)), "", _rank0(s, 1))
    if kind == 6:
        return s.op("Min", s.op("Max", x, s.scalar(-0.5)), s.scalar(2))
    if kind == 7:  # GELU
        bent = s.swap("Add", s.op("Erf", s.op("Div", x, s.scalar(math.sqrt(2)))), s.scalar(1))
        return s.swap("Mul", s.swap("Mul", x, bent), s.scalar(0.5))
    if kind == 8:
        bent = s.swap("Add", s.op("Erf", s.swap("Mul", x, s.scalar(math.sqrt(0.5)))), s.scalar(1))
        return s.swap("Mul", s.swap("Mul", x, s.scalar(0.5)), bent)
    if kind == 9:
        cube = s.op("Pow", x, s.scalar(3)) if s.pick(2) else s.op("Mul", x, s.op("Mul", x, x))
        inner = s.swap("Add", x, s.swap("Mul", cube, s.scalar(0.044715)))
        bent = s.swap("Add", s.op("Tanh", s.swap("Mul", inner, s.scalar(math.sqrt(2 / math.pi)))), s.scalar(1))
        return s.swap("Mul", s.swap("Mul", x, s.scalar(0.5)), bent)
    if kind == 10:
        return s.swap("Mul", x, s.op("Sigmoid", s.swap("Mul", x, s.scalar(1.702))))
    if kind == 11:  # Mish
        soft = s.op("Softplus", x) if s.pick(2) else s.op("Log", s.swap("Add", s.op("Exp", x), s.scalar(1)))
        return s.swap("Mul", x, s.op("Tanh", soft))
    if kind == 12:  # LeakyRelu
        return s.op("Max", x, s.swap("Mul", x, s.scalar(0.1)))
    if kind == 13:
        return s.op("Where", s.op("Greater", x, s.scalar(0)), x, s.swap("Mul", x, s.scalar(0.2)))
    if kind == 14:  # Sigmoid
        return s.op("Reciprocal", s.swap("Add", s.op("Exp", s.op("Neg", x)), s.scalar(1)))
    if kind == 17:  # Softplus, guarded against overflow
        soft = s.op("Log", s.swap("Add", s.op("Exp", x), s.scalar(1))) if s.pick(2) else s.op("Softplus", x)
        return s.op("Where", s.op("Greater", x, s.scalar(20)), x, soft)
    if kind == 18:
        return s.op("PRelu", x, s.constant(s.floats(1, low=0, high=0.9), may_share=False))
    if kind == 15 and s.opset >= 20:
        return s.op("Gelu", x, approximate=("none", "tanh")[s.pick(2)])
    if kind == 16 and s.opset >= 14:
        return s.op("HardSwish", x)
    return s.op("Relu", x)


def _rank0(s: Sketch, value: float) -> str:
    """Clip takes its limits as rank 0 only."""
    return s.constant(np.asarray(value, np.float32), may_share=False)


def batchnorm(s: Sketch, x: str, channels: int) -> str:
    stats = [s.constant(s.floats(channels)) for _ in range(3)]
    variance = s.constant(s.floats(channels, low=0.2, high=2), may_share=False)
    return s.op("BatchNormalization", x, *stats, variance)


def affine(s: Sketch, x: str, shape: Shape) -> str:
    _, c, h, w = shape
    op = ("Mul", "Add", "Sub", "Div")[s.pick(4)]
    k = ((1, c, 1, 1), (c, 1, 1), (), (w,), (1, 1, h, 1), (c, h, w))[s.pick(6)]
    pair = [x, s.constant(s.floats(*k, low=0.5, high=2), may_share=False)]
    return s.op(op, *(pair if op == "Div" or s.pick(2) else pair[::-1]))


def convolution(s: Sketch, x: str, shape: Shape) -> tuple[str, Shape]:
    """Conv or ConvTranspose, grouped or not, with what a trainer leaves behind it."""
    n, c, h, w = shape
    group = (1, 2, c)[s.pick(3)] if c % 2 == 0 else 1
    out = group * (1 + s.pick(2)) if group > 1 else 2 * (1 + s.pick(3))
    fan_in = 9 * c // group
    bias = [s.constant(s.floats(out))] if s.pick(2) else []
    if s.pick(3):
        weight = s.constant(s.weights(out, c // group, 3, 3, fan_in=fan_in))
        y = s.op("Conv", x, weight, *bias, group=group, pads=[1, 1, 1, 1])
    else:
        weight = s.constant(s.weights(c, out // group, 3, 3, fan_in=fan_in))
        y = s.op("ConvTranspose", x, weight, *bias, group=group, pads=[1, 1, 1, 1])
    shape = (n, out, h, w)
    behind = s.pick(4)
    if behind == 1:
        y = batchnorm(s, y, out)
    elif behind == 2:
        y = affine(s, y, shape)
    elif behind == 3:
        s.keep(y, shape)  # and a second consumer, perhaps
        y = batchnorm(s, y, out)
    return (activation(s, y) if s.pick(2) else y), shape


def norm(s: Sketch, x: str, shape: Shape) -> str:
    """LayerNorm or RMSNorm over the last axis, written out."""
    d = shape[-1]
    if s.opset >= 17 and s.pick(4) == 0:
        return s.op("LayerNormalization", x, s.constant(s.floats(d)), s.constant(s.floats(d)))
    rms = s.pick(2)
    centered = x if rms else s.op("Sub", x, s.mean(x, -1))
    square = s.op("Pow", centered, s.scalar(2)) if s.pick(2) else s.op("Mul", centered, centered)
    deviation = s.op("Sqrt", s.swap("Add", s.mean(square, -1), s.scalar(1e-5 if s.pick(2) else 1e-3)))
    y = s.op("Div", centered, deviation) if s.pick(2) else s.swap("Mul", centered, s.op("Reciprocal", deviation))
    if s.pick(3):
        y = s.swap("Mul", y, s.constant(s.floats(d, low=0.5, high=2)))
    if s.pick(2):
        y = s.swap("Add", y, s.constant(s.floats(d)))
    return y


def softmax(s: Sketch, x: str, rank: int) -> str:
    kind = s.pick(4)
    if kind == 0:
        e = s.op("Exp", s.op("Sub", x, _reduced(s, "ReduceMax", x)))
        return s.op("Div", e, _reduced(s, "ReduceSum", e))
    if kind == 1:
        turn = [*range(rank - 2), rank - 1, rank - 2]
        turned = s.op("Softmax", s.op("Transpose", x, perm=turn), axis=rank - 2)
        return s.op("Transpose", turned, perm=turn)
    y = s.op("Softmax", x, axis=(-1, rank - 1)[s.pick(2)])
    return s.op("Exp", s.op("Log", y)) if kind == 2 else y


def _reduced(s: Sketch, op: str, x: str) -> str:
    if op != "ReduceSum" and s.opset < 18:
        return s.op(op, x, axes=[-1], keepdims=1)
    return s.op(op, x, s.ints(-1), keepdims=1)


def instance_norm(s: Sketch, x: str, channels: int) -> str:
    """Instance normalization written out."""
    centered = s.op("Sub", x, s.mean(x, 2, 3))
    square = s.op("Pow", centered, s.scalar(2)) if s.pick(2) else s.op("Mul", centered, centered)
    y = s.op("Div", centered, s.op("Sqrt", s.swap("Add", s.mean(square, 2, 3), s.scalar(1e-3))))
    y = s.swap("Mul", y, s.constant(s.floats(channels, 1, 1, low=0.5, high=2), may_share=False))
    return s.swap("Add", y, s.constant(s.floats(1, channels, 1, 1), may_share=False)) if s.pick(2) else y


def one_hot(s: Sketch, x: str, shape: Shape) -> str:
    """Rows of a table, picked by the place of the largest value, one-hot times a matrix."""
    d = shape[-1]
    ids = s.op("ArgMax", x, axis=-1, keepdims=1)
    picked = s.op("Cast", s.op("Equal", ids, s.ints(*range(d))), to=TensorProto.FLOAT)
    return s.op("MatMul", picked, s.constant(s.floats(d, d), may_share=False))


def linear(s: Sketch, x: str, d: int, out: int) -> str:
    y = s.op("MatMul", x, s.constant(s.weights(d, out, fan_in=d)))
    return s.swap("Add", y, s.constant(s.floats(out))) if s.pick(3) else y


def attention(s: Sketch, x: str, shape: Shape) -> str:
    """Self-attention with one or two heads, as exporters spell it."""
    _, t, d = shape
    heads = 2 if d % 2 == 0 and s.pick(2) else 1
    size = d // heads
    split = s.ints(0, t, heads, size) if s.pick(2) else s.ints(-1, t, heads, size)
    q, k, v = (s.op("Reshape", linear(s, x, d, d), split) for _ in range(3))
    q = s.op("Transpose", q, perm=[0, 2, 1, 3])
    v = s.op("Transpose", v, perm=[0, 2, 1, 3])
    if s.pick(2):
        k = s.op("Transpose", k, perm=[0, 2, 3, 1])
    else:
        k = s.op("Transpose", s.op("Transpose", k, perm=[0, 2, 1, 3]), perm=[0, 1, 3, 2])
    root = math.sqrt(size)
    where = s.pick(3)
    if where == 0:
        q = s.op("Div", q, s.scalar(root))
    scores = s.op("MatMul", q, k)
    if where == 1:
        scores = s.op("Div", scores, s.scalar(root))
    elif where == 2:
        scores = s.swap("Mul", scores, s.scalar(1 / root))
    if s.pick(3) == 0:
        mask = np.triu(np.full((t, t), -1e4, np.float32), 1)
        scores = s.swap("Add", scores, s.constant(mask, may_share=False))
    mixed = s.op("Transpose", s.op("MatMul", softmax(s, scores, 4), v), perm=[0, 2, 1, 3])
    y = s.op("Reshape", mixed, s.ints(0, 0, d) if s.pick(2) else s.ints(-1, t, d))
    return linear(s, y, d, d)


def branch(s: Sketch, x: str, shape: Shape) -> str:
    """An If on the graph input ``c``; its branches read an outer tensor and an outer weight."""
    weight, name = s.constant(s.floats(shape[-1], low=0.5)), s.name("t")
    graphs = []
    for word, op in (("yes", "Mul"), ("no", "Add")):
        outer, s.nodes = s.nodes, []
        y = activation(s, s.op(op, x, weight))
        inner, s.nodes = s.nodes, outer
        # Constants that the branch made by a node stay in the branch, initializers lie in the main graph.
        out = helper.make_tensor_value_info(y, TensorProto.FLOAT, [None] * len(shape))
        graphs.append(helper.make_graph(inner, f"{name}_{word}", [], [out]))
    s.nodes.append(helper.make_node("If", ["c"], [name], then_branch=graphs[0], else_branch=graphs[1]))
    return name
