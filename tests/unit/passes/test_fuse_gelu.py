from __future__ import annotations

import math
import re

import numpy as np
import pytest

from edgeopt.model import Model
from edgeopt.passes.fuse_gelu import FUSE_GELU

from .helpers import assert_equal, check, inferred, node, ops, rand

C = math.sqrt(2 / math.pi)
NUMBERS = {
    "half": 0.5,
    "one": 1.0,
    "two": 2.0,
    "three": 3.0,
    "root": math.sqrt(2),
    "inverse": 0.7071067690849304,
    "cubic": 0.044715,
    "c": C,
    "both": C * 0.044715,
    "off": 1.414,
    "quick": 1.702,
}
ERF = "d = Div(h, root) e = Erf(d) s = Add(e, one)"
POLY = "p = Pow(h, three) q = Mul(p, cubic) a = Add(h, q) m = Mul(a, c)"


def chain(body: str, *, dtype: str = "float", rank: int = 0, shape: str = "2,3,4", **arrays: np.ndarray) -> Model:
    kind = np.float64 if dtype == "double" else np.float32
    words = set(re.findall(r"\w+", body))
    made = {name: np.full((1,) * rank, value, kind) for name, value in NUMBERS.items() if name in words} | arrays
    spread = "h = Sinh(x)" if dtype == "float" else "h = Mul(x, x)"
    return inferred(f"g ({dtype}[{shape}] x) => ({dtype}[{shape}] y) {{ {spread} {body} }}", **made)


@pytest.mark.parametrize("argument", ["Div(h, root)", "Mul(h, inverse)", "Mul(inverse, h)"])
@pytest.mark.parametrize(
    "tail",
    [
        "s = Add(e, one) p = Mul(h, s) y = Mul(p, half)",
        "s = Add(one, e) p = Mul(s, h) y = Mul(half, p)",
        "s = Add(e, one) p = Mul(s, half) y = Mul(h, p)",
        "s = Add(e, one) p = Mul(h, half) y = Mul(p, s)",
        "s = Add(e, one) p = Mul(half, h) y = Mul(s, p)",
        "s = Add(e, one) p = Mul(h, s) y = Div(p, two)",
        "s = Add(e, one) p = Div(h, two) y = Mul(p, s)",
        "t = Mul(e, half) s = Add(t, half) y = Mul(h, s)",
    ],
)
def test_erf_forms(argument: str, tail: str) -> None:
    applied = check(FUSE_GELU, chain(f"d = {argument} e = Erf(d) {tail}"), 1)
    assert ops(applied.model) == {"Sinh": 1, "Gelu": 1}
    assert node(applied.model, "Gelu").attributes["approximate"].as_string() == "none"
    assert not applied.model.graph.initializers


@pytest.mark.parametrize(
    "argument",
    [
        POLY,
        "p = Mul(h, h) r = Mul(p, h) q = Mul(cubic, r) a = Add(q, h) m = Mul(c, a)",
        "k = Mul(h, c) p = Mul(h, cubic) r = Mul(p, h) a = Add(r, one) m = Mul(k, a)",
        "p = Pow(h, two) q = Mul(p, cubic) a = Add(one, q) k = Mul(h, c) m = Mul(a, k)",
        "p = Pow(h, three) q = Mul(p, both) k = Mul(h, c) m = Add(k, q)",
    ],
)
@pytest.mark.parametrize("tail", ["p2 = Mul(h, s) y = Mul(p2, half)", "p2 = Mul(h, half) y = Mul(p2, s)"])
def test_tanh_forms(argument: str, tail: str) -> None:
    applied = check(FUSE_GELU, chain(f"{argument} t = Tanh(m) s = Add(t, one) {tail}"), 1)
    assert ops(applied.model) == {"Sinh": 1, "Gelu": 1}
    assert node(applied.model, "Gelu").attributes["approximate"].as_string() == "tanh"


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_shapes_of_constants(rank: int) -> None:
    check(FUSE_GELU, chain(f"{ERF} p = Mul(h, s) y = Mul(p, half)", rank=rank), 1)
    check(FUSE_GELU, chain(f"{POLY} t = Tanh(m) s = Add(t, one) u = Mul(h, s) y = Mul(u, half)", rank=rank), 1)


@pytest.mark.parametrize("dims", ["B,S,6", "B,3,6"])
def test_symbolic_dims_behind_a_bias(dims: str) -> None:
    text = f"""g (float[{dims}] x) => (float[{dims}] y) {{
        a = MatMul(x, w) h = Add(a, b) {ERF} p = Mul(h, s) y = Mul(p, half) }}"""
    numbers = {name: np.array(NUMBERS[name], np.float32) for name in ("root", "one", "half")}
    model = inferred(text, w=rand(0, 6, 6), b=rand(1, 6), **numbers)
    assert ops(check(FUSE_GELU, model, 1, B=2, S=3).model) == {"MatMul": 1, "Add": 1, "Gelu": 1}


def test_of_a_product() -> None:
    model = chain("g = Mul(h, x) d = Div(g, root) e = Erf(d) s = Add(e, one) p = Mul(g, s) y = Mul(p, half)")
    assert ops(check(FUSE_GELU, model, 1).model) == {"Sinh": 1, "Mul": 1, "Gelu": 1}


def test_a_factor_behind_it_stays() -> None:
    model = chain(f"{ERF} p = Mul(h, s) q = Mul(p, half) y = Mul(q, two)")
    assert ops(check(FUSE_GELU, model, 1).model) == {"Sinh": 1, "Gelu": 1, "Mul": 1}


@pytest.mark.parametrize(
    "body",
    [
        "d = Div(h, off) e = Erf(d) s = Add(e, one) p = Mul(h, s) y = Mul(p, half)",
        "d = Mul(h, root) e = Erf(d) s = Add(e, one) p = Mul(h, s) y = Mul(p, half)",
        "d = Div(h, root) e = Erf(d) s = Add(e, two) p = Mul(h, s) y = Mul(p, half)",
        "d = Div(h, root) e = Erf(d) s = Add(e, one) p = Mul(h, s) y = Mul(p, two)",
        "d = Div(h, root) e = Erf(d) s = Add(e, one) p = Mul(x, s) y = Mul(p, half)",
        "d = Div(h, root) e = Erf(d) s = Add(e, one) y = Mul(h, s)",
        "p = Pow(h, two) q = Mul(p, cubic) a = Add(h, q) m = Mul(a, c) t = Tanh(m) s = Add(t, one) "
        "u = Mul(h, s) y = Mul(u, half)",
        "m = Mul(h, c) t = Tanh(m) s = Add(t, one) u = Mul(h, s) y = Mul(u, half)",
        "m = Mul(h, quick) s = Sigmoid(m) y = Mul(h, s)",
    ],
)
def test_what_is_no_gelu(body: str) -> None:
    check(FUSE_GELU, chain(body), 0)


@pytest.mark.parametrize("name", ["d", "e", "s", "p"])
def test_shared_and_returned_values_are_refused(name: str) -> None:
    body = f"{ERF} p = Mul(h, s) z = Mul(p, half)"
    assert "another consumer" in check(FUSE_GELU, chain(f"{body} y = Add(z, {name})"), 0).reason
    text = f"g (float[4] h) => (float[4] z, float[4] {name}) {{ {body} }}"
    numbers = {n: np.array(NUMBERS[n], np.float32) for n in ("root", "one", "half")}
    assert "graph output" in check(FUSE_GELU, inferred(text, **numbers), 0).reason


def test_a_result_that_is_read_twice_is_fused() -> None:
    check(FUSE_GELU, chain(f"{ERF} p = Mul(h, s) z = Mul(p, half) y = Add(z, z)"), 1)


def test_double_and_numbers_that_differ_or_add_axes_stay() -> None:
    tail = "p = Mul(h, s) y = Mul(p, half)"
    check(FUSE_GELU, chain(f"{ERF} {tail}", dtype="double"), 0)
    check(FUSE_GELU, chain(f"{ERF} {tail}", half=np.array([0.5, 0.5, 0.5, 0.6], np.float32)), 0)
    text = f"g (float[4] h) => (float[1,4] y) {{ {ERF} {tail} }}"
    numbers = {n: np.array(NUMBERS[n], np.float32) for n in ("root", "one")}
    check(FUSE_GELU, inferred(text, half=np.full((1, 1), 0.5, np.float32), **numbers), 0)


def test_a_planted_error_is_caught() -> None:
    model = chain(f"{ERF} p = Mul(h, s) y = Mul(p, half)")
    with pytest.raises(AssertionError):
        assert_equal(model, chain('y = Gelu<approximate = "tanh">(h)'), FUSE_GELU.tolerance)
