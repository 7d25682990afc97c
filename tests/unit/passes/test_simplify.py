"""simplify-transposes, simplify-reshapes, remove-noops."""

from __future__ import annotations

import numpy as np
import pytest

from edgeopt.passes import apply
from edgeopt.passes.infer_shapes import INFER_SHAPES
from edgeopt.passes.remove_noops import REMOVE_NOOPS
from edgeopt.passes.simplify_reshapes import SIMPLIFY_RESHAPES
from edgeopt.passes.simplify_transposes import SIMPLIFY_TRANSPOSES

from .helpers import build, check, ints, ops


def shaped(text: str, **arrays: np.ndarray):
    return apply(INFER_SHAPES, build(text, **arrays)).model


@pytest.mark.parametrize(
    ("body", "count", "left"),
    [
        ("a = Transpose<perm=[0,2,3,1]>(x) b = Relu(a) c = Transpose<perm=[0,3,1,2]>(a) y = Neg(c) z = Neg(b)", 1, 1),
        ("a = Transpose<perm=[0,2,3,1]>(x) c = Transpose<perm=[0,3,1,2]>(a) y = Neg(c) z = Relu(x)", 1, 0),
        ("r = Relu(x) a = Transpose<perm=[0,2,3,1]>(r) y = Transpose<perm=[0,3,1,2]>(a) z = Relu(x)", 1, 0),
        ("a = Transpose<perm=[0,2,3,1]>(x) b = Transpose<perm=[0,2,3,1]>(a) y = Neg(b) z = Relu(x)", 1, 1),
        ("a = Transpose(x) b = Transpose(a) y = Neg(b) z = Relu(x)", 1, 0),
        ("a = Transpose<perm=[0,1,2,3]>(x) y = Neg(a) z = Relu(x)", 1, 0),
        ("a = Transpose<perm=[0,2,3,1]>(x) b = Transpose<perm=[0,2,3,1]>(a) y = Neg(b) z = Relu(a)", 0, 2),
        ("a = Transpose<perm=[0,2,3,1]>(x) y = Transpose<perm=[0,3,1,2]>(a) z = Relu(x)", 0, 2),
    ],
)
def test_transposes(body: str, count: int, left: int) -> None:
    model = shaped(f"g (float[1,2,3,4] x) => (float[A,B,C,D] y, float[E,F,G,H] z) {{ {body} }}")
    assert ops(check(SIMPLIFY_TRANSPOSES, model, count).model)["Transpose"] == left


def test_transposes_of_equal_dims_are_composed_not_guessed() -> None:
    body = "a = Transpose<perm=[1,2,0]>(x) b = Transpose<perm=[1,2,0]>(a) y = Relu(b)"
    check(SIMPLIFY_TRANSPOSES, shaped(f"g (float[3,3,3] x) => (float[3,3,3] y) {{ {body} }}"), 1)


@pytest.mark.parametrize(
    ("body", "count", "left"),
    [
        ("a = Reshape(x, s6) b = Reshape(a, s23) y = Relu(b)", 2, {"Reshape": 0}),
        ("a = Reshape(x, s6) b = Reshape(a, s32) c = Flatten(b) d = Reshape(c, s23) y = Relu(d)", 4, {"Reshape": 0}),
        ("a = Reshape(x, s6) b = Reshape(a, s32) y = Relu(b)", 1, {"Reshape": 1}),
        ("a = Flatten(x) b = Reshape(a, s32) y = Relu(b)", 1, {"Flatten": 0, "Reshape": 1}),
        ("a = Unsqueeze(x, zero) b = Reshape(a, open32) y = Relu(b)", 1, {"Unsqueeze": 0}),
        ("a = Reshape(x, s6) b = Reshape(a, copy) y = Relu(b)", 1, {"Reshape": 1}),
        ("a = Reshape(x, s6) b = Reshape(a, s32) c = Neg(a) d = Reshape(c, s32) y = Add(b, d)", 0, {"Reshape": 3}),
        ("a = Expand(x, s23) y = Relu(a)", 1, {"Expand": 0}),
        ("a = Flatten(x) y = Relu(a)", 1, {"Flatten": 0}),
    ],
)
def test_reshapes(body: str, count: int, left: dict[str, int]) -> None:
    arrays = {
        "s6": ints(6),
        "s23": ints(2, 3),
        "s32": ints(3, 2),
        "open32": ints(-1, 2),
        "copy": ints(0, 1),
        "zero": ints(0),
    }
    used = {n: a for n, a in arrays.items() if n in body}
    after = check(SIMPLIFY_RESHAPES, shaped(f"g (float[2,3] x) => (float[A,B] y) {{ {body} }}", **used), count).model
    assert {op: ops(after)[op] for op in left} == left


def test_reshape_that_keeps_an_open_batch() -> None:
    text = "g (float[N,6] x) => (float[N,6] y) { a = Reshape(x, s) y = Relu(a) }"
    assert ops(check(SIMPLIFY_RESHAPES, shaped(text, s=ints(-1, 6)), 1, N=3).model) == {"Relu": 1}


def test_reshape_with_two_open_dims_is_not_believed() -> None:
    text = "g (float[N,M] x) => (float[A,B] y) { a = Reshape(x, s) y = Relu(a) }"
    check(SIMPLIFY_RESHAPES, shaped(text, s=ints(-1, 2)), 0, N=2, M=4)


def test_reshape_to_a_graph_output_or_from_an_input_stays() -> None:
    check(SIMPLIFY_RESHAPES, shaped("g (float[2,3] x) => (float[2,3] y) { y = Reshape(x, s) }", s=ints(2, 3)), 0)


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("a = Pad(x, none) y = Relu(a)", 1),
        ('a = Pad<mode="reflect">(x, none) y = Relu(a)', 1),
        ("a = Pad(x, some) y = Relu(a)", 0),
        ("a = Slice(x, zero, four, one) y = Relu(a)", 1),
        ("a = Slice(x, zero, end, one) y = Relu(a)", 1),
        ("a = Slice(x, minus, start, one, minus) y = Relu(a)", 0),
        ("a = Slice(x, one, end, one) y = Relu(a)", 0),
        ("a = Concat<axis=0>(x) y = Relu(a)", 1),
        ("a = Concat<axis=0>(x, x) y = Relu(a)", 0),
        ("a = Max(x) y = Relu(a)", 1),
        ("a = Cast<to=1>(x) y = Relu(a)", 1),
        ("a = Cast<to=10>(x) b = Relu(a) y = Cast<to=1>(b)", 0),
        ("y = Pad(x, none)", 0),
        ("r = Relu(x) y = Pad(r, none)", 1),
    ],
)
def test_noops(body: str, count: int) -> None:
    arrays = {
        "none": ints(0, 0, 0, 0), "some": ints(0, 0, 0, 1), "zero": ints(0), "one": ints(1), "four": ints(4),
        "end": ints(2**63 - 1), "minus": ints(-1), "start": ints(-(2**63) + 1),
    }  # fmt: skip
    used = {n: a for n, a in arrays.items() if n in body}
    check(REMOVE_NOOPS, shaped(f"g (float[2,4] x) => (float[A,B] y) {{ {body} }}", **used), count)


def test_slice_to_the_end_of_an_unknown_dim() -> None:
    text = "g (float[N] x) => (float[M] y) { a = Slice(x, zero, end) y = Relu(a) }"
    check(REMOVE_NOOPS, shaped(text, zero=ints(0), end=ints(2**63 - 1)), 1, N=5)
    check(REMOVE_NOOPS, shaped(text, zero=ints(0), end=ints(100)), 0, N=5)


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ("a = Add(x, zero) y = Relu(a)", {"Relu": 1}),
        ("a = Mul(one, x) b = Div(a, one) c = Pow(b, one) y = Relu(c)", {"Relu": 1}),
        ("a = Sub(x, zeros) y = Relu(a)", {"Relu": 1}),
        ("a = Sub(zero, x) y = Relu(a)", {"Sub": 1, "Relu": 1}),
        ("a = Div(one, x) y = Relu(a)", {"Div": 1, "Relu": 1}),
        ("a = Add(x, wide) y = Relu(a)", {"Add": 1, "Relu": 1}),
        ("a = Mul(x, zero) y = Relu(a)", {"Mul": 1, "Relu": 1}),
    ],
)
def test_steps_by_a_neutral_number(body: str, left: dict[str, int]) -> None:
    """``wide`` is zero as well, but it broadcasts x to another shape."""
    arrays = {n: np.full(s, v, np.float32) for n, s, v in (("zero", (), 0), ("one", (1,), 1), ("zeros", (3,), 0))}
    arrays["wide"] = np.zeros((4, 1, 1), np.float32)
    used = {n: a for n, a in arrays.items() if n in body.replace("zeros", "z_") or (n == "zeros" and "zeros" in body)}
    model = shaped(
        f"g (float[2,3] x) => (float[A,B] y) {{ {body} }}"
        if "wide" not in body
        else f"g (float[2,3] x) => (float[A,B,C] y) {{ {body} }}",
        **used,
    )
    assert ops(check(REMOVE_NOOPS, model, body.count("=") - sum(left.values())).model) == left
