from __future__ import annotations

import re

import numpy as np
import pytest

from edgeopt.passes.fuse_leaky_relu import FUSE_LEAKY_RELU

from .helpers import assert_equal, check, inferred, node, ops

F = np.float32


def chain(body: str, *, dtype: str = "float", **arrays: np.ndarray):
    kind = np.float64 if dtype == "double" else F
    constants = {"zero": np.array(0, kind), "tenth": np.array(0.1, kind), "ten": np.array(10, kind)} | arrays
    words = set(re.findall(r"\w+", body))
    used = {name: array for name, array in constants.items() if name in words}
    return inferred(f"g ({dtype}[2,3,4,5] x) => ({dtype}[2,3,4,5] y) {{ {body} }}", **used)


@pytest.mark.parametrize(
    ("test", "sides"),
    [
        ("Greater(x, zero)", "x, b"),
        ("GreaterOrEqual(x, zero)", "x, b"),
        ("Less(x, zero)", "b, x"),
        ("LessOrEqual(x, zero)", "b, x"),
        ("Less(zero, x)", "x, b"),
        ("Greater(zero, x)", "b, x"),
    ],
)
@pytest.mark.parametrize(("scaled", "alpha"), [("Mul(x, tenth)", 0.1), ("Mul(tenth, x)", 0.1), ("Div(x, ten)", 0.1)])
def test_where(test: str, sides: str, scaled: str, alpha: float) -> None:
    applied = check(FUSE_LEAKY_RELU, chain(f"c = {test} b = {scaled} y = Where(c, {sides})"), 1)
    assert ops(applied.model) == {"LeakyRelu": 1}
    assert node(applied.model, "LeakyRelu").attributes["alpha"].as_float() == pytest.approx(alpha)


@pytest.mark.parametrize(
    "body", ["c = Greater(x, zero) y = Where(c, x, zero)", "c = Less(x, zero) y = Where(c, zero, x)"]
)
def test_where_with_zero_is_relu(body: str) -> None:
    assert ops(check(FUSE_LEAKY_RELU, chain(body), 1).model) == {"Relu": 1}


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("b = Mul(x, tenth) y = Max(x, b)", 1),
        ("b = Mul(x, tenth) y = Max(b, x)", 1),
        ("b = Mul(x, ten) y = Min(x, b)", 1),
        ("b = Mul(x, ten) y = Max(x, b)", 0),
        ("b = Mul(x, tenth) y = Min(x, b)", 0),
        ("b = Neg(x) y = Max(x, b)", 0),
    ],
)
def test_extrema(body: str, count: int) -> None:
    applied = check(FUSE_LEAKY_RELU, chain(body), count)
    assert not count or ops(applied.model) == {"LeakyRelu": 1}


@pytest.mark.parametrize("shape", [(1,), (3, 1, 1), (1, 3, 1, 1), (3, 4, 5)])
@pytest.mark.parametrize("slope", [0.25, -0.5, 2.0])
def test_prelu_with_one_slope(shape: tuple[int, ...], slope: float) -> None:
    applied = check(FUSE_LEAKY_RELU, chain("y = PRelu(x, slopes)", slopes=np.full(shape, slope, F)), 1)
    assert ops(applied.model) == {"LeakyRelu": 1}


def test_prelu_with_slopes_of_0_is_relu() -> None:
    applied = check(FUSE_LEAKY_RELU, chain("y = PRelu(x, slopes)", slopes=np.zeros((3, 1, 1), F)), 1)
    assert ops(applied.model) == {"Relu": 1}


def test_prelu_with_slopes_that_differ_is_refused() -> None:
    slopes = np.array([0.1, 0.1, 0.2], F).reshape(3, 1, 1)
    assert "slopes differ" in check(FUSE_LEAKY_RELU, chain("y = PRelu(x, slopes)", slopes=slopes), 0).reason


@pytest.mark.parametrize(
    "body",
    [
        "c = Greater(x, tenth) b = Mul(x, tenth) y = Where(c, x, b)",  # another threshold
        "c = Greater(x, zero) b = Mul(x, tenth) y = Where(c, b, x)",  # branches swapped
        "c = Greater(x, zero) b = Add(x, tenth) y = Where(c, x, b)",
        "c = Greater(x, zero) b = Mul(x, x) y = Where(c, x, b)",
        "n = Neg(x) c = Greater(n, zero) b = Mul(x, tenth) y = Where(c, x, b)",
    ],
)
def test_other_selections_stay(body: str) -> None:
    check(FUSE_LEAKY_RELU, chain(body), 0)


def test_a_zero_that_enlarges_the_result_stays() -> None:
    text = "g (float[1,4] x) => (float[3,4] y) { c = Greater(x, zero) y = Where(c, x, wide) }"
    check(FUSE_LEAKY_RELU, inferred(text, zero=np.array(0, F), wide=np.zeros((3, 1), F)), 0)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("b = Mul(x, tenth) m = Max(x, b) y = Add(m, b)", "a value inside it has another consumer"),
        ("c = Greater(x, zero) m = Where(c, x, zero) y = Where(c, m, x)", "a value inside it has another consumer"),
    ],
)
def test_shared_values_are_refused(body: str, why: str) -> None:
    assert why in check(FUSE_LEAKY_RELU, chain(body), 0).reason


def test_a_graph_output_inside_is_refused() -> None:
    text = "g (float[4] x) => (float[4] y, float[4] b) { b = Mul(x, tenth) y = Max(x, b) }"
    assert "graph output" in check(FUSE_LEAKY_RELU, inferred(text, tenth=np.array(0.1, F)), 0).reason


def test_double_stays() -> None:
    check(FUSE_LEAKY_RELU, chain("b = Mul(x, tenth) y = Max(x, b)", dtype="double"), 0)


def test_a_planted_error_is_caught() -> None:
    model, wrong = chain("b = Mul(x, tenth) y = Max(x, b)"), chain("y = LeakyRelu<alpha = 0.101>(x)")
    with pytest.raises(AssertionError):
        assert_equal(model, wrong, FUSE_LEAKY_RELU.tolerance)
