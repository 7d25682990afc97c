"""HardSwish and HardSigmoid: they share their spellings."""

from __future__ import annotations

import re

import numpy as np
import pytest

from edgeopt.model import Model
from edgeopt.passes import FUSIONS, NORMALIZE
from edgeopt.passes.fuse_clip import FUSE_CLIP
from edgeopt.passes.fuse_hard_sigmoid import FUSE_HARD_SIGMOID
from edgeopt.passes.fuse_hard_swish import FUSE_HARD_SWISH

from .helpers import apply_all, assert_equal, check, inferred, node, ops, rand

F = np.float32
NUMBERS = {"zero": 0, "half": 0.5, "one": 1, "three": 3, "six": 6, "sixth": 1 / 6, "fifth": 0.2, "five": 5}


def chain(body: str, *, dtype: str = "float", shape: str = "2,3,4", rank: int = 0, **arrays: np.ndarray) -> Model:
    kind = np.float64 if dtype == "double" else F
    constants = {name: np.full((1,) * rank, value, kind) for name, value in NUMBERS.items()}
    for bound in ("zero", "one", "six"):  # bounds of Clip are scalars
        constants[f"c_{bound}"] = np.array(NUMBERS[bound], kind)
    words = set(re.findall(r"\w+", body))
    used = {name: array for name, array in (constants | arrays).items() if name in words}
    spread = "h = Sinh(x)" if dtype == "float" else "h = Mul(x, x)"
    return inferred(f"g ({dtype}[{shape}] x) => ({dtype}[{shape}] y) {{ {spread} {body} }}", **used)


CLIP = "a = Add(h, three) b = Clip(a, c_zero, c_six)"
HARD_SWISH = [
    f"{CLIP} q = Mul(h, b) y = Div(q, six)",
    f"{CLIP} q = Mul(b, h) y = Mul(q, sixth)",
    f"{CLIP} q = Div(b, six) y = Mul(h, q)",
    f"{CLIP} q = Mul(sixth, b) y = Mul(q, h)",
    f"{CLIP} q = Div(h, six) y = Mul(q, b)",
    f"{CLIP} q = Mul(h, sixth) y = Mul(b, q)",
    "a = Add(three, h) b = Clip(a, c_zero, c_six) q = Mul(h, b) y = Div(q, six)",
    "a = Mul(h, sixth) b = Add(a, half) c = Clip(b, c_zero, c_one) y = Mul(h, c)",
    "a = Div(h, six) b = Add(a, half) c = Clip(b, c_zero, c_one) y = Mul(c, h)",
    "c = HardSigmoid<alpha = 0.16666667, beta = 0.5>(h) y = Mul(h, c)",
    "c = HardSigmoid<alpha = 0.166667>(h) y = Mul(c, h)",
]


@pytest.mark.parametrize("body", HARD_SWISH)
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_hard_swish(body: str, rank: int) -> None:
    applied = check(FUSE_HARD_SWISH, chain(body, rank=rank), 1)
    assert ops(applied.model) == {"Sinh": 1, "HardSwish": 1}
    assert set(applied.model.graph.initializers) == set()


def test_hard_swish_of_a_bounded_relu() -> None:
    model = chain("a = Add(h, three) r = Relu(a) b = Min(r, six) q = Mul(h, b) y = Div(q, six)")
    clipped = check(FUSE_CLIP, model, 1)
    assert ops(check(FUSE_HARD_SWISH, clipped.model, 1).model) == {"Sinh": 1, "HardSwish": 1}


def test_hard_swish_of_a_product() -> None:
    model = chain("p = Mul(h, h) a = Add(p, three) b = Clip(a, c_zero, c_six) q = Mul(p, b) y = Div(q, six)")
    assert ops(check(FUSE_HARD_SWISH, model, 1).model) == {"Sinh": 1, "Mul": 1, "HardSwish": 1}


def test_hard_swish_behind_a_scale() -> None:
    model = chain("p = Mul(h, fifth) a = Add(p, three) b = Clip(a, c_zero, c_six) q = Mul(p, b) y = Div(q, six)")
    assert ops(check(FUSE_HARD_SWISH, model, 1).model) == {"Sinh": 1, "Mul": 1, "HardSwish": 1}


@pytest.mark.parametrize(
    "body",
    [
        "a = Add(h, three) b = Clip(a, c_zero, c_six) q = Mul(h, b) y = Div(q, five)",
        "a = Add(h, five) b = Clip(a, c_zero, c_six) q = Mul(h, b) y = Div(q, six)",
        "a = Add(h, three) b = Clip(a, c_one, c_six) q = Mul(h, b) y = Div(q, six)",
        "a = Add(h, three) b = Clip(a, c_zero, c_six) q = Mul(x, b) y = Div(q, six)",
        "a = Add(h, three) b = Clip(a, c_zero, c_six) q = Mul(h, b) y = Div(six, q)",
        "c = HardSigmoid(h) y = Mul(h, c)",
        "c = HardSigmoid<alpha = 0.1667>(h) y = Mul(h, c)",
        "c = HardSigmoid<alpha = 0.16666667>(h) y = Mul(x, c)",
    ],
)
def test_what_is_no_hard_swish(body: str) -> None:
    check(FUSE_HARD_SWISH, chain(body), 0)


@pytest.mark.parametrize("name", ["a", "b", "q"])
def test_hard_swish_shared_or_returned_values_are_refused(name: str) -> None:
    body = f"a = Add(h, three) b = Clip(a, c_zero, c_six) q = Mul(h, b) z = Div(q, six) y = Add(z, {name})"
    assert "another consumer" in check(FUSE_HARD_SWISH, chain(body), 0).reason
    text = f"""g (float[4] x) => (float[4] y, float[4] {name}) {{
        a = Add(x, three) b = Clip(a, zero, six) q = Mul(x, b) y = Div(q, six) }}"""
    arrays = {name: np.array(value, F) for name, value in NUMBERS.items() if name in ("zero", "three", "six")}
    assert "graph output" in check(FUSE_HARD_SWISH, inferred(text, **arrays), 0).reason


def test_hard_swish_constants_that_add_axes_stay() -> None:
    text = """g (float[2,3] x) => (float[1,1,2,3] y) {
        a = Add(x, three) b = Clip(a, zero, six) q = Mul(x, b) y = Div(q, six) }"""
    arrays = {"three": np.full((1, 1, 1, 1), 3, F), "six": np.array(6, F), "zero": np.array(0, F)}
    check(FUSE_HARD_SWISH, inferred(text, **arrays), 0)


@pytest.mark.parametrize("pass_", [FUSE_HARD_SWISH, FUSE_HARD_SIGMOID])
def test_double_stays(pass_) -> None:
    check(pass_, chain("a = Add(h, three) b = Clip(a, c_zero, c_six) q = Mul(h, b) y = Div(q, six)", dtype="double"), 0)
    check(pass_, chain("a = Add(h, three) b = Clip(a, c_zero, c_six) y = Div(b, six)", dtype="double"), 0)


@pytest.mark.parametrize(
    ("body", "alpha", "beta"),
    [
        ("a = Add(h, three) b = Clip(a, c_zero, c_six) y = Div(b, six)", 1 / 6, 0.5),
        ("a = Add(three, h) b = Clip(a, c_zero, c_six) y = Mul(sixth, b)", 1 / 6, 0.5),
        ("a = Mul(h, fifth) b = Add(a, half) y = Clip(b, c_zero, c_one)", 0.2, 0.5),
        ("a = Div(h, five) b = Sub(a, half) y = Clip(b, c_zero, c_one)", 0.2, -0.5),
        ("a = Sub(three, h) b = Clip(a, c_zero, c_six) y = Div(b, six)", -1 / 6, 0.5),
        ("b = Clip(h, c_zero, c_six) y = Div(b, six)", 1 / 6, 0),
        ("a = Add(h, half) y = Clip(a, c_zero, c_one)", 1, 0.5),
    ],
)
@pytest.mark.parametrize("rank", [0, 2])
def test_hard_sigmoid(body: str, alpha: float, beta: float, rank: int) -> None:
    applied = check(FUSE_HARD_SIGMOID, chain(body, rank=rank), 1)
    assert ops(applied.model) == {"Sinh": 1, "HardSigmoid": 1}
    found = node(applied.model, "HardSigmoid").attributes
    assert (found["alpha"].as_float(), found["beta"].as_float()) == pytest.approx((alpha, beta))


@pytest.mark.parametrize(
    "body",
    [
        "y = Clip(h, c_zero, c_one)",
        "a = Add(h, three) y = Clip(a, c_zero, c_six)",
        "a = Add(h, three) b = Clip(a, c_zero, c_six) y = Div(b, five)",
        "a = Add(h, three) b = Clip(a, c_one, c_six) y = Div(b, six)",
        "a = Add(h, three) b = Clip(a, c_zero, c_six) y = Div(six, b)",
    ],
)
def test_what_is_no_hard_sigmoid(body: str) -> None:
    check(FUSE_HARD_SIGMOID, chain(body), 0)


def test_a_first_factor_that_is_read_elsewhere_stays_outside() -> None:
    model = chain("a = Mul(h, fifth) b = Add(a, half) c = Clip(b, c_zero, c_one) y = Mul(a, c)")
    assert ops(check(FUSE_HARD_SIGMOID, model, 1).model) == {"Sinh": 1, "Mul": 2, "HardSigmoid": 1}


def test_hard_sigmoid_shared_values_are_refused() -> None:
    model = chain("a = Add(h, three) b = Clip(a, c_zero, c_six) q = Div(b, six) y = Mul(q, b)")
    assert "another consumer" in check(FUSE_HARD_SIGMOID, model, 0).reason


def test_numbers_that_fold_into_a_conv_are_left_to_it() -> None:
    text = """g (float[1,2,4,4] x) => (float[1,3,4,4] y) {
        h = Conv(x, w) a = Mul(h, fifth) b = Add(a, half) y = Clip(b, zero, one) }"""
    arrays = {name: np.array(NUMBERS[name], F) for name in ("fifth", "half", "zero", "one")}
    model = inferred(text, w=rand(0, 3, 2, 1, 1), **arrays)
    assert "fold into the operator before" in check(FUSE_HARD_SIGMOID, model, 0).reason
    assert ops(apply_all((*NORMALIZE, *FUSIONS), model)) == {"Conv": 1, "Clip": 1}


def test_planted_errors_are_caught() -> None:
    swish = chain("a = Add(h, three) b = Clip(a, c_zero, c_six) q = Mul(h, b) y = Div(q, six)")
    wrong = chain("c = HardSigmoid<alpha = 0.1668>(h) y = Mul(h, c)")
    with pytest.raises(AssertionError):
        assert_equal(swish, wrong, FUSE_HARD_SWISH.tolerance)
    sigmoid = chain("a = Add(h, three) b = Clip(a, c_zero, c_six) y = Div(b, six)")
    with pytest.raises(AssertionError):
        assert_equal(sigmoid, chain("y = HardSigmoid<alpha = 0.1668>(h)"), FUSE_HARD_SIGMOID.tolerance)
