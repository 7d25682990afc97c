"""The law of the whole: whatever the graph, all passes together keep its meaning."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from edgeopt.passes import FUSIONS, NORMALIZE

from .helpers import apply_all, assert_equal, from_proto, ops


@dataclasses.dataclass
class Sketch:
    """A graph under construction over [2, C, H, W] tensors."""

    rng: np.random.Generator
    pick: Callable[[int], int]
    nodes: list[onnx.NodeProto] = dataclasses.field(default_factory=list)
    arrays: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)

    def constant(self, array: np.ndarray, *, may_share: bool = True) -> str:
        """A weight, by one of the routes that exporters take: plain, Constant, Identity, Transpose, Cast, shared."""
        name = f"k{len(self.arrays) + len(self.nodes)}"
        route = self.pick(6 if may_share and array.dtype == np.float32 else 4)
        if route == 0:
            self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array)))
        elif route == 1 and array.ndim > 1:
            self.arrays[f"{name}_t"] = np.ascontiguousarray(array.T)
            self.nodes.append(helper.make_node("Transpose", [f"{name}_t"], [name]))
        elif route == 2:
            self.arrays[f"{name}_i"] = array
            self.nodes.append(helper.make_node("Identity", [f"{name}_i"], [name]))
        elif route == 3 and array.dtype == np.float32:
            half = array.astype(np.float16)
            self.arrays[f"{name}_h"] = half
            self.nodes.append(helper.make_node("Cast", [f"{name}_h"], [name], to=TensorProto.FLOAT))
        elif route == 4 and (same := [n for n, a in self.arrays.items() if a.shape == array.shape]):
            return same[0] if self.arrays[same[0]].dtype == array.dtype else self._plain(name, array)
        else:
            return self._plain(name, array)
        return name

    def _plain(self, name: str, array: np.ndarray) -> str:
        self.arrays[name] = array
        return name

    def add(self, op: str, inputs: list[str], shape: tuple[int, ...], outputs: int = 1, **attributes: object) -> str:
        name = f"t{len(self.nodes)}"
        outs = [name, *[f"{name}_{i}" for i in range(1, outputs)]]
        self.nodes.append(helper.make_node(op, inputs, outs, **attributes))
        self.shapes[name] = shape
        return name

    def floats(self, *shape: int, low: float = -1.0, high: float = 1.0) -> np.ndarray:
        return self.rng.uniform(low, high, shape).astype(np.float32)


def batchnorm(s: Sketch, x: str) -> None:
    c = s.shapes[x][1]
    stats = [s.constant(s.floats(c)) for _ in range(3)]
    variance = s.constant(s.floats(c, low=0.2, high=2), may_share=False)
    s.add("BatchNormalization", [x, *stats, variance], s.shapes[x])


def affine(s: Sketch, x: str) -> None:
    _, c, h, w = s.shapes[x]
    op = ("Mul", "Add", "Sub", "Div")[s.pick(4)]
    k = ((1, c, 1, 1), (c, 1, 1), (), (w,), (1, 1, h, 1), (c, h, w))[s.pick(6)]
    pair = [x, s.constant(np.asarray(s.floats(*k, low=0.5, high=2)), may_share=False)]
    s.add(op, pair if op == "Div" or s.pick(2) else pair[::-1], s.shapes[x])


def grow(s: Sketch) -> None:
    """Add one random piece on a random tensor."""
    names = list(s.shapes)
    x = names[-1] if s.pick(3) else names[s.pick(len(names))]
    n, c, h, w = shape = s.shapes[x]
    kind = s.pick(12)
    if kind in (0, 1):
        group = 2 if c % 2 == 0 and s.pick(2) else 1
        out = 2 * (1 + s.pick(3))
        inputs = [x, s.constant(s.floats(out, c // group, 3, 3))] + ([s.constant(s.floats(out))] if s.pick(2) else [])
        y = s.add("Conv", inputs, (n, out, h, w), group=group, pads=[1, 1, 1, 1])
        (lambda *_: None, batchnorm, affine)[s.pick(3)](s, y)
    elif kind == 2:
        batchnorm(s, x)
    elif kind == 3:
        affine(s, x)
    elif kind == 4:
        top, left, bottom, right = (s.pick(2) for _ in range(4))
        pads = s.constant(np.array([0, 0, top, left, 0, 0, bottom, right], np.int64))
        mode = ("constant", "constant", "edge")[s.pick(3)]
        fill = [s.constant(np.asarray(np.float32(s.pick(2))))] if mode == "constant" and s.pick(2) else []
        s.add("Pad", [x, pads, *fill], (n, c, h + top + bottom, w + left + right), mode=mode)
    elif kind == 5:
        turned = s.add("Transpose", [x], (n, h, w, c), perm=[0, 2, 3, 1])
        s.shapes.pop(turned)
        y = s.add("Relu", [turned], shape) if s.pick(2) else turned
        s.shapes.pop(y, None)
        s.add("Transpose", [y], shape, perm=[0, 3, 1, 2])
    elif kind == 6:
        flat = s.add("Flatten", [x], (n, c * h * w))
        s.shapes.pop(flat)
        s.add("Reshape", [flat, s.constant(np.array([-1, c, h, w], np.int64))], shape)
    elif kind == 7:
        other = [name for name, sh in s.shapes.items() if sh == shape]
        s.add("Add", [x, other[s.pick(len(other))]], shape)
    elif kind == 8 and min(h, w) >= 4:
        s.add("AveragePool", [x], (n, c, h - 1, w - 1), kernel_shape=[2, 2], count_include_pad=s.pick(2))
    elif kind == 9:
        dims = s.add("Shape", [x], ())
        s.shapes.pop(dims)
        s.add("Reshape", [x, dims], shape)
    elif kind == 10:
        s.add(("Identity", "Dropout")[s.pick(2)], [x], shape)
    else:
        s.add("Relu", [x], shape)


def sketch_of(numbers: list[int]) -> onnx.ModelProto:
    """A valid model from a list of choices; the same list gives the same model."""
    stream = iter(numbers)

    def pick(n: int) -> int:
        return next(stream, 0) % n

    s = Sketch(rng=np.random.default_rng(numbers), pick=pick)
    s.shapes["x"] = (2, 2 * (1 + pick(2)), 4 + pick(3), 5)
    start = s.shapes["x"]
    for _ in range(3 + pick(8)):
        grow(s)
    made = [n for n in s.shapes if n != "x"]
    outputs = list(dict.fromkeys([made[-1], made[pick(len(made))]]))
    batch: list[int | str] = ["N", *start[1:]]
    graph = helper.make_graph(
        s.nodes,
        "sketch",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, batch if pick(2) else start)],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * 4) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in s.arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", (13, 17, 18, 20)[pick(4)])], ir_version=8)


@seed(20)
@settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(0, 719), min_size=40, max_size=90))
def test_all_passes_keep_the_meaning_of_random_graphs(numbers: list[int]) -> None:
    model = from_proto(sketch_of(numbers))
    after = apply_all(NORMALIZE + FUSIONS, model)
    assert_equal(model, after, 1e-4, trials=1)
    assert not {"Constant", "Identity", "Dropout"} & {
        n.op_type for n in after.nodes() if not any(out.is_graph_output() for out in n.outputs)
    }


def test_the_random_graphs_hold_what_the_passes_look_for() -> None:
    """The property means nothing if the graphs are all trivial."""
    rng = np.random.default_rng(0)
    before = after = 0
    for _ in range(10):
        model = from_proto(sketch_of([int(i) for i in rng.integers(0, 720, 90)]))
        before += ops(model).total()
        after += ops(apply_all(NORMALIZE + FUSIONS, model)).total()
    assert after < 0.8 * before
