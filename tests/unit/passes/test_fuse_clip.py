from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from edgeopt.passes import apply
from edgeopt.passes.fuse_clip import FUSE_CLIP

from .helpers import assert_equal, check, inferred, initializer, node, ops

BOUNDS = {"m1": -1.0, "zero": 0.0, "one": 1.0, "three": 3.0, "six": 6.0}


def chain(body: str, *, dtype: str = "float", shape: str = "2,3,4", **arrays: np.ndarray):
    words = set(re.findall(r"\w+", body))
    names = {name: value for name, value in BOUNDS.items() if name in words}
    kind = {"float": "float32", "double": "float64"}.get(dtype, dtype)
    values = {name: np.array(value, kind) for name, value in names.items()} | arrays
    spread = "h = Sinh(x)" if dtype == "float" else "h = Mul(x, x)"
    return inferred(f"g ({dtype}[{shape}] x) => ({dtype}[{shape}] y) {{ {spread} {body} }}", **values)


@pytest.mark.parametrize(
    ("body", "low", "high"),
    [
        ("a = Clip(h, m1, three) y = Clip(a, zero, six)", 0, 3),
        ("a = Relu(h) y = Clip(a, m1, six)", 0, 6),
        ("a = Clip(h, m1, six) y = Relu(a)", 0, 6),
        ("a = Relu(h) y = Min(a, six)", 0, 6),
        ("a = Min(h, six) y = Max(m1, a)", -1, 6),
        ("a = Max(h, m1) y = Min(three, a)", -1, 3),
        ("a = Clip(h, , six) y = Clip(a, one)", 1, 6),
        ("a = Clip(h, zero, three) y = Clip(a, three, six)", 3, 3),
    ],
)
def test_pairs_become_one_clip(body: str, low: float, high: float) -> None:
    applied = check(FUSE_CLIP, chain(body), 1)
    assert ops(applied.model) == {"Sinh": 1, "Clip": 1}
    clip = node(applied.model, "Clip")
    assert [initializer(applied.model, str(v.name)) for v in clip.inputs[1:] if v is not None] == [low, high]


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("a = Relu(h) y = Relu(a)", 1),
        ("y = Max(h, zero)", 1),
        ("y = Max(zero, h)", 1),
        ("y = Clip(h, zero)", 1),
        ("a = Clip(h, m1) y = Relu(a)", 1),
        ("a = Max(h, m1) y = Max(a, zero)", 1),
    ],
)
def test_a_bound_of_zero_alone_becomes_relu(body: str, count: int) -> None:
    assert ops(check(FUSE_CLIP, chain(body), count).model) == {"Sinh": 1, "Relu": 1}


def test_longer_chains_collapse() -> None:
    body = "a = Max(h, zero) b = Min(a, six) c = Relu(b) y = Clip(c, m1, three)"
    assert ops(check(FUSE_CLIP, chain(body), 4).model) == {"Sinh": 1, "Clip": 1}


@pytest.mark.parametrize("dtype", ["int32", "int64", "double"])
def test_other_types(dtype: str) -> None:
    body = "a = Max(h, one) y = Min(a, three)"
    assert ops(check(FUSE_CLIP, chain(body, dtype=dtype), 1).model) == {"Mul": 1, "Clip": 1}


def test_integers_never_become_relu() -> None:
    check(FUSE_CLIP, chain("y = Max(h, zero)", dtype="int32"), 0)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 1, 1), (2, 3, 4)])
def test_constants_of_equal_elements_that_keep_the_shape(shape: tuple[int, ...]) -> None:
    model = chain("a = Max(h, low) y = Min(a, six)", low=np.zeros(shape, np.float32))
    check(FUSE_CLIP, model, 2)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (4, 2, 3, 4)])
def test_a_constant_that_adds_axes_is_left_alone(shape: tuple[int, ...]) -> None:
    full = ",".join(str(max(n, m)) for n, m in zip(shape, (1, 2, 3, 4), strict=True))
    text = f"g (float[2,3,4] x) => (float[{full}] y) {{ y = Max(x, low) }}"
    check(FUSE_CLIP, inferred(text, low=np.zeros(shape, np.float32)), 0)


def test_a_constant_that_stretches_an_unknown_or_smaller_dim_is_left_alone() -> None:
    model = inferred("g (float[1,4] x) => (float[3,4] y) { y = Max(x, low) }", low=np.zeros((3, 1), np.float32))
    check(FUSE_CLIP, model, 0)
    model = inferred("g (float[N,4] x) => (float[3,4] y) { y = Max(x, low) }", low=np.zeros((3, 1), np.float32))
    check(FUSE_CLIP, model, 0, N=3)


def test_elements_that_differ_are_left_alone() -> None:
    check(FUSE_CLIP, chain("y = Max(h, low)", low=np.array([0, 0, 0, 1], np.float32)), 0)


REFUSED = {
    "the ranges do not meet": "a = Clip(h, zero, one) y = Clip(a, three, six)",
    "a value inside it has another consumer": "a = Relu(h) b = Min(a, six) y = Add(a, b)",
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused(why: str) -> None:
    assert why in check(FUSE_CLIP, chain(REFUSED[why]), 0).reason


def test_crossed_bounds_are_refused() -> None:
    applied = check(FUSE_CLIP, chain("a = Clip(h, six, one) y = Clip(a, zero, three)"), 0)
    assert "the ranges do not meet" in applied.reason


def test_a_graph_output_inside_is_refused() -> None:
    text = "g (float[4] x) => (float[4] y, float[4] a) { a = Relu(x) y = Min(a, six) }"
    applied = check(FUSE_CLIP, inferred(text, six=np.array(6, np.float32)), 0)
    assert "a value inside it is a graph output" in applied.reason
    assert set(applied.model.graph.initializers) == {"six"}


def test_bounds_that_are_computed_or_not_numbers_are_left_alone() -> None:
    text = "g (float[4] x, float lo) => (float[4] y) { a = Clip(x, lo) y = Relu(a) }"
    check(FUSE_CLIP, inferred(text), 0)
    nan = np.array(np.nan, np.float32)
    assert apply(FUSE_CLIP, chain("a = Relu(h) y = Clip(a, low, six)", low=nan)).count == 0


@pytest.mark.parametrize("body", ["y = Max(h, one)", "y = Min(h, six)", "y = Max(h, h)", "y = Max(h, zero, one)"])
def test_one_sided_and_other_extrema_stay(body: str) -> None:
    check(FUSE_CLIP, chain(body), 0)


def test_a_nan_is_handed_on_before_and_after() -> None:
    model = inferred(
        "g (float[4] x) => (float[4] y) { a = Max(x, zero) y = Min(a, six) }",
        zero=np.array(0, np.float32),
        six=np.array(6, np.float32),
    )
    x = np.array([np.nan, -np.inf, np.inf, 2], np.float32)
    results = []
    for which in (model, apply(FUSE_CLIP, model).model):
        session = ort.InferenceSession(ir.to_proto(which.ir).SerializeToString(), providers=["CPUExecutionProvider"])
        results.append(session.run(None, {"x": x})[0])
    assert np.array_equal(results[0], results[1], equal_nan=True)


def test_keys_are_recorded() -> None:
    applied = check(FUSE_CLIP, chain("a = Relu(h) y = Clip(a, m1, six)"), 1)
    props = node(applied.model, "Clip").metadata_props
    assert (props["edgeopt.key"], props["edgeopt.absorbed"]) == ("Clip:y", "Relu:a")


def test_a_planted_error_is_caught() -> None:
    model = chain("a = Relu(h) y = Clip(a, m1, one)")
    with pytest.raises(AssertionError):
        assert_equal(model, chain("y = Clip(h, zero, high)", high=np.array(1.001, np.float32)), FUSE_CLIP.tolerance)
