from __future__ import annotations

import re

import numpy as np
import pytest

from edgeopt.model import Model
from edgeopt.passes.fuse_sigmoid import FUSE_SIGMOID

from .helpers import assert_equal, check, inferred, ops

START = "n = Neg(h) e = Exp(n) d = Add(e, one)"


def chain(body: str, *, dtype: str = "float", rank: int = 0, shape: str = "2,3,4") -> Model:
    kind = np.float64 if dtype == "double" else np.float32
    constants = {"one": 1.0, "two": 2.0, "minus": -1.0}
    words = set(re.findall(r"\w+", body))
    arrays = {name: np.full((1,) * rank, value, kind) for name, value in constants.items() if name in words}
    spread = "h = Sinh(x)" if dtype == "float" else "h = Mul(x, x)"
    return inferred(f"g ({dtype}[{shape}] x) => ({dtype}[{shape}] y) {{ {spread} {body} }}", **arrays)


@pytest.mark.parametrize(
    "body",
    [
        f"{START} y = Reciprocal(d)",
        f"{START} y = Div(one, d)",
        "n = Mul(h, minus) e = Exp(n) d = Add(one, e) y = Reciprocal(d)",
    ],
)
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_sigmoid(body: str, rank: int) -> None:
    assert ops(check(FUSE_SIGMOID, chain(body, rank=rank), 1).model) == {"Sinh": 1, "Sigmoid": 1}


@pytest.mark.parametrize("dividend", ["h", "x", "two"])
def test_another_dividend_leaves_a_product(dividend: str) -> None:
    applied = check(FUSE_SIGMOID, chain(f"{START} y = Div({dividend}, d)"), 1)
    assert ops(applied.model) == {"Sinh": 1, "Sigmoid": 1, "Mul": 1}


@pytest.mark.parametrize(
    "body",
    [
        "e = Exp(h) d = Add(e, one) y = Reciprocal(d)",
        "n = Neg(h) e = Exp(n) d = Add(e, two) y = Reciprocal(d)",
        "n = Mul(h, two) e = Exp(n) d = Add(e, one) y = Reciprocal(d)",
        f"{START} y = Div(d, h)",
        f"{START} y = Log(d)",
    ],
)
def test_what_is_no_sigmoid(body: str) -> None:
    check(FUSE_SIGMOID, chain(body), 0)


@pytest.mark.parametrize("last", ["Reciprocal(d)", "Div(h, d)"])
@pytest.mark.parametrize("name", ["n", "e", "d"])
def test_shared_and_returned_values_are_refused(name: str, last: str) -> None:
    assert "another consumer" in check(FUSE_SIGMOID, chain(f"{START} q = {last} y = Add(q, {name})"), 0).reason
    text = f"g (float[4] h) => (float[4] y, float[4] {name}) {{ {START} y = {last} }}"
    assert "graph output" in check(FUSE_SIGMOID, inferred(text, one=np.array(1, np.float32)), 0).reason


def test_double_and_constants_that_add_axes_stay() -> None:
    check(FUSE_SIGMOID, chain(f"{START} y = Reciprocal(d)", dtype="double"), 0)
    text = f"g (float[4] h) => (float[1,4] y) {{ {START} y = Reciprocal(d) }}"
    check(FUSE_SIGMOID, inferred(text, one=np.ones((1, 1), np.float32)), 0)


def test_a_planted_error_is_caught() -> None:
    model, wrong = chain(f"{START} y = Reciprocal(d)"), chain("n = Mul(h, minus) s = Sigmoid(n) y = Neg(s)")
    with pytest.raises(AssertionError):
        assert_equal(model, wrong, FUSE_SIGMOID.tolerance)
