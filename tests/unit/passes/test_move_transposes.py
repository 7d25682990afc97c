"""Transposes that are regrouped with the Reshapes around them, and that sink through elementwise operators."""

from __future__ import annotations

import numpy as np
import pytest

from edgeopt.model import Model
from edgeopt.passes import apply
from edgeopt.passes.infer_shapes import INFER_SHAPES
from edgeopt.passes.regroup_transposes import REGROUP_TRANSPOSES, factors
from edgeopt.passes.sink_transposes import SINK_TRANSPOSES

from .helpers import assert_equal, build, check, ints, node, ops, rand


def shaped(text: str, **arrays: np.ndarray) -> Model:
    return apply(INFER_SHAPES, build(text, **{n: a for n, a in arrays.items() if n in text})).model


SHAPES = {
    "merged": ints(8, 3, 5),
    "heads": ints(2, 4, 5, 3),
    "rows": ints(3, 8, 5),
    "split": ints(2, 4, 3, 5),
    "unit": ints(0),
    "three": ints(3),
    "other": ints(4, 2, 5, 3),
    "odd": ints(6, 4, 5),
}


def test_factors() -> None:
    assert factors((8, 3), (2, 4, 3)) == [(2, 4), (3,)]
    assert factors((1, 8), (8,)) == [(), (8,)]
    assert factors((8, 3), (8, 3, 1)) == [(8,), (3, 1)]
    assert factors((8, 3), (3, 8)) is None
    assert factors((8,), (8, 2)) is None


@pytest.mark.parametrize(
    ("shape", "body", "left"),
    [
        # transposing the last two axes of merged heads
        ("2,4,3,5", "a = Reshape(x, merged) b = Transpose<perm=[0,2,1]>(a) c = Reshape(b, heads)", {"Transpose": 1}),
        # heads split after the Transpose
        (
            "3,2,20",
            "a = Reshape(x, rows) b = Transpose<perm=[1,0,2]>(a) c = Reshape(b, split)",
            {"Reshape": 1, "Transpose": 1},
        ),
        # an axis of size 1 on the way
        (
            "2,3,4,5",
            "a = Unsqueeze(x, unit) b = Transpose<perm=[3,1,2,0,4]>(a) c = Squeeze(b, three)",
            {"Transpose": 1},
        ),
    ],
)
def test_regroup(shape: str, body: str, left: dict[str, int]) -> None:
    model = shaped(f"g (float[{shape}] x) => (float[P,Q,R,S] y) {{ {body} y = Relu(c) }}", **SHAPES)
    assert ops(check(REGROUP_TRANSPOSES, model, 1).model) == {**left, "Relu": 1}


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        ("a = Reshape(x, merged) b = Transpose<perm=[0,2,1]>(a) y = Reshape(b, heads)", ", float[P1,Q1,R1] b"),
        ("a = Reshape(x, merged) b = Transpose<perm=[0,2,1]>(a) c = Reshape(b, odd) y = Unsqueeze(c, unit)", ""),
        ("b = Transpose<perm=[0,1,3,2]>(x) y = Reshape(b, other)", ""),
    ],
)
def test_regroup_refuses(body: str, outputs: str) -> None:
    model = shaped(f"g (float[2,4,3,5] x) => (float[P,Q,R,S] y{outputs}) {{ {body} }}", **SHAPES)
    check(REGROUP_TRANSPOSES, model, 0)


IN, OUT = "float[2,3,4,5] x", "float[P,Q,R,S] y"
DOWN, UP = "Transpose<perm=[0,2,3,1]>", "Transpose<perm=[0,3,1,2]>"


@pytest.mark.parametrize(
    ("body", "count", "left"),
    [
        (f"a = {DOWN}(x) b = Relu(a) y = {UP}(b)", 1, {"Relu": 1}),
        (
            f"a = {DOWN}(x) b = Relu(a) c = Mul(b, two) d = Sigmoid(c) y = {UP}(d)",
            1,
            {"Relu": 1, "Mul": 1, "Sigmoid": 1},
        ),
        (f"a = {DOWN}(x) b = Add(a, full) y = {UP}(b)", 1, {"Add": 1}),
        (f"a = {DOWN}(x) b = Relu(x) c = {DOWN}(b) d = Add(a, c) y = Neg(d)", 1, {"Transpose": 1}),
        (f"a = {DOWN}(x) b = Relu(x) c = {DOWN}(b) y = Concat<axis=3>(a, c)", 1, {"Transpose": 1, "Concat": 1}),
        (f"a = {DOWN}(x) b = Exp(a) c = Mul(a, b) y = {UP}(c)", 1, {"Exp": 1, "Mul": 1, "Transpose": 0}),
        # nothing gained, nothing moved
        (f"a = {DOWN}(x) y = Relu(a)", 0, {"Transpose": 1}),
        # another permutation
        (
            f"a = {DOWN}(x) b = Relu(x) c = Transpose<perm=[0,3,2,1]>(b) d = ReduceMax(a) y = Add(d, c)",
            0,
            {"Transpose": 2},
        ),
        # a vector pairs with the last axis of the transposed tensor
        (f"a = {DOWN}(x) b = Add(a, last) y = {UP}(b)", 0, {"Transpose": 2}),
        # read elsewhere
        (f"a = {DOWN}(x) b = Relu(a) c = {UP}(b) d = ReduceMax(b) y = Add(c, d)", 0, {"Transpose": 2}),
    ],
)
def test_sink(body: str, count: int, left: dict[str, int]) -> None:
    arrays = {"two": np.array([2.0], np.float32), "full": rand(0, 1, 4, 1, 3), "last": rand(1, 3)}
    after = check(SINK_TRANSPOSES, shaped(f"g ({IN}) => ({OUT}) {{ {body} }}", **arrays), count).model
    assert {op: ops(after)[op] for op in left} == left


def test_constants_are_transposed_for_the_region_alone() -> None:
    body = f"a = {DOWN}(x) b = Add(a, full) c = {UP}(b) d = ReduceMax(full) y = Add(c, d)"
    check(SINK_TRANSPOSES, shaped(f"g ({IN}) => ({OUT}) {{ {body} }}", full=rand(0, 1, 4, 1, 3)), 0)


def test_an_axis_of_size_one_moves_with_the_transpose() -> None:
    text = f"g (float[N,3,1,5] x) => (float[P,Q,R,S] y) {{ a = {DOWN}(x) b = Reshape(a, s) y = Relu(b) }}"
    after = check(SINK_TRANSPOSES, shaped(text, s=ints(0, 5, 3, 1)), 1, N=2).model
    assert ops(after) == {"Transpose": 1, "Relu": 1}


def test_a_planted_error_is_caught() -> None:
    model = shaped(f"g ({IN}) => ({OUT}) {{ a = {DOWN}(x) b = Add(a, full) y = {UP}(b) }}", full=rand(0, 1, 4, 1, 3))
    after = apply(SINK_TRANSPOSES, model).model
    value = node(after, "Add").inputs[1]
    assert value is not None
    value.const_value = (
        build(f"g ({IN}) => ({OUT}) {{ y = Add(x, w) }}", w=rand(0, 1, 3, 4, 1)).graph.initializers["w"].const_value
    )
    with pytest.raises(AssertionError):
        assert_equal(model, after, 1e-6)
