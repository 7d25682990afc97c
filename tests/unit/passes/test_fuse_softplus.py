from __future__ import annotations

import re

import numpy as np
import pytest

from edgeopt.model import Model
from edgeopt.passes.fuse_softplus import FUSE_SOFTPLUS

from .helpers import assert_equal, check, inferred, node, ops


def chain(body: str, *, dtype: str = "float") -> Model:
    kind = np.float64 if dtype == "double" else np.float32
    constants = {"limit": 20.0, "low": 2.0, "two": 2.0, "half": 0.5, "thirty": 30.0, "nan": np.nan}
    words = set(re.findall(r"\w+", body))
    arrays = {name: np.array(value, kind) for name, value in constants.items() if name in words}
    spread = "h = Mul(x, thirty)" if dtype == "float" else "h = Mul(x, x)"
    arrays |= {"thirty": np.array(30, kind)} if dtype == "float" else {}
    return inferred(f"g ({dtype}[2,3,40] x) => ({dtype}[2,3,40] y) {{ {spread} {body} }}", **arrays)


PLAIN = "s = Softplus(h) c = Greater(h, limit) y = Where(c, h, s)"


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (PLAIN, {"Mul": 1, "Softplus": 1}),
        ("s = Softplus(h) c = GreaterOrEqual(h, limit) y = Where(c, h, s)", {"Mul": 1, "Softplus": 1}),
        (
            "b = Mul(h, two) s = Softplus(b) q = Div(s, two) c = Greater(b, limit) y = Where(c, h, q)",
            {"Mul": 2, "Softplus": 1, "Div": 1},
        ),
        (
            "b = Mul(h, two) s = Softplus(b) q = Mul(s, half) c = Greater(b, limit) y = Where(c, h, q)",
            {"Mul": 3, "Softplus": 1},
        ),
    ],
)
def test_guards_go(body: str, left: dict[str, int]) -> None:
    assert ops(check(FUSE_SOFTPLUS, chain(body), 1).model) == left


def test_the_softplus_may_be_read_elsewhere_and_records_the_guard() -> None:
    applied = check(FUSE_SOFTPLUS, chain("s = Softplus(h) c = Greater(h, limit) q = Where(c, h, s) y = Add(q, s)"), 1)
    assert node(applied.model, "Softplus").metadata_props["edgeopt.absorbed"] == "Where:q"


@pytest.mark.parametrize(
    "body",
    [
        "s = Softplus(h) c = Greater(h, low) y = Where(c, h, s)",
        "s = Softplus(h) c = Greater(h, nan) y = Where(c, h, s)",
        "s = Softplus(h) c = Less(h, limit) y = Where(c, h, s)",
        "s = Softplus(h) c = Greater(h, limit) y = Where(c, s, h)",
        "s = Softplus(h) c = Greater(x, limit) y = Where(c, h, s)",
        "b = Mul(h, two) s = Softplus(b) q = Mul(s, two) c = Greater(b, limit) y = Where(c, h, q)",
        "b = Mul(h, two) s = Softplus(b) c = Greater(b, limit) y = Where(c, h, s)",
        "s = Softplus(h) q = Div(s, two) c = Greater(h, limit) y = Where(c, h, q)",
    ],
)
def test_other_selections_stay(body: str) -> None:
    check(FUSE_SOFTPLUS, chain(body), 0)


def test_a_shared_test_is_refused() -> None:
    body = "s = Softplus(h) c = Greater(h, limit) q = Where(c, h, s) y = Where(c, q, h)"
    assert "another consumer" in check(FUSE_SOFTPLUS, chain(body), 0).reason


def test_two_graph_outputs_are_refused() -> None:
    text = "g (float[4] h) => (float[4] y, float[4] s) { s = Softplus(h) c = Greater(h, limit) y = Where(c, h, s) }"
    model = inferred(text, limit=np.array(20, np.float32))
    assert "second graph output" in check(FUSE_SOFTPLUS, model, 0).reason


def test_double_is_refused() -> None:
    assert "type is not float32" in check(FUSE_SOFTPLUS, chain(PLAIN, dtype="double"), 0).reason


def test_a_planted_error_is_caught() -> None:
    with pytest.raises(AssertionError):
        assert_equal(chain(PLAIN), chain("y = Relu(h)"), FUSE_SOFTPLUS.tolerance)
