from __future__ import annotations

import numpy as np
import onnx
import pytest

from edgeopt.model import Model
from edgeopt.passes import apply
from edgeopt.passes.infer_shapes import INFER_SHAPES
from edgeopt.passes.simplify_concats import SIMPLIFY_CONCATS

from .helpers import assert_equal, build, check, initializer, ints, node, ops

NUMBERS = {f"n{i}": ints(i) for i in range(7)} | {"end": ints(2**63 - 1), "last": ints(-1), "sizes": ints(4, 2)}


def shaped(body: str, inputs: str = "float[2,6] x", outputs: str = "float[P,Q] y") -> Model:
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    return apply(
        INFER_SHAPES,
        build(f"g ({inputs}) => ({outputs}) {{ {body} }}", **{n: a for n, a in NUMBERS.items() if n in words}),
    ).model


@pytest.mark.parametrize(
    ("body", "count", "left"),
    [
        ("a = Neg(x) b = Concat<axis=1>(x, a) c = Exp(x) d = Concat<axis=-1>(b, c) y = Relu(d)", 1, {"Concat": 1}),
        ("a = Neg(x) b = Concat<axis=0>(x, a) c = Exp(b) d = Concat<axis=1>(b, c) y = Relu(d)", 0, {"Concat": 2}),
        ("a, b = Split<axis=1,num_outputs=2>(x) c = Concat<axis=1>(a, b) y = Relu(c)", 1, {"Split": 0, "Concat": 0}),
        ("a, b = Split<axis=1>(x, sizes) c = Concat<axis=1>(a, b) y = Relu(c)", 1, {"Split": 0, "Concat": 0}),
        ("a, b = Split<axis=1,num_outputs=2>(x) c = Concat<axis=1>(b, a) y = Relu(c)", 0, {"Split": 1}),
        ("a, b = Split<axis=1,num_outputs=2>(x) c = Concat<axis=0>(a, b) y = Relu(c)", 0, {"Split": 1}),
        ("a = Slice(x, n0, n2, n1) b = Slice(x, n2, end, last) c = Concat<axis=1>(a, b) y = Relu(c)", 1, {"Slice": 0}),
        ("a = Slice(x, n0, n2, n1) b = Slice(x, n3, end, n1) c = Concat<axis=1>(a, b) y = Relu(c)", 0, {"Slice": 2}),
        ("a = Neg(x) b = Concat<axis=1>(x, a) c = Slice(b, n6, end, n1) y = Relu(c)", 1, {"Slice": 0, "Concat": 0}),
        ("a = Neg(x) b = Concat<axis=1>(x, a) c = Slice(b, n5, end, n1) y = Relu(c)", 0, {"Slice": 1}),
        ("a = Slice(x, n1, n5, n1) b = Slice(a, n1, last, n1) y = Relu(b)", 1, {"Slice": 1}),
        ("a = Slice(x, n1, n5, n1) b = Slice(a, n0, n1, n0) y = Relu(b)", 0, {"Slice": 2}),
    ],
)
def test_simplify(body: str, count: int, left: dict[str, int]) -> None:
    after = check(SIMPLIFY_CONCATS, shaped(body), count).model
    assert {op: ops(after)[op] for op in left} == left


def test_an_open_axis_says_nothing() -> None:
    body = "a = Slice(x, n0, n2, n1) b = Slice(x, n2, end, n1) c = Concat<axis=1>(a, b) y = Relu(c)"
    check(SIMPLIFY_CONCATS, shaped(body, inputs="float[2,N] x"), 0, N=6)


def test_graph_outputs_and_second_readers_survive() -> None:
    body = "b = Concat<axis=1>(x, x) d = Concat<axis=1>(b, x) y = Relu(d)"
    after = check(SIMPLIFY_CONCATS, shaped(body, outputs="float[P,Q] y, float[P,R] b"), 0).model
    assert ops(after)["Concat"] == 2


def test_a_planted_error_is_caught() -> None:
    model = shaped("a = Slice(x, n1, n5, n1) b = Slice(a, n1, n3, n1) y = Relu(b)")
    after = apply(SIMPLIFY_CONCATS, model).model
    start = node(after, "Slice").inputs[1]
    assert start is not None
    assert initializer(after, start.name or "").tolist() == [2]
    start.const_value = model.graph.initializers["n3"].const_value
    with pytest.raises((AssertionError, onnx.shape_inference.InferenceError)):
        assert_equal(model, after, 1e-6)
    assert np.array_equal(initializer(model, "n3"), [3])
