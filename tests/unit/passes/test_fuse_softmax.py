from __future__ import annotations

import numpy as np
import pytest

from edgeopt.model import Model
from edgeopt.passes import NORMALIZE
from edgeopt.passes.fuse_softmax import FUSE_SOFTMAX
from edgeopt.passes.spread_softmax import SPREAD_SOFTMAX

from .helpers import apply_all, assert_equal, build, check, inferred, ints, node, ops

CHAIN = "m = ReduceMax(h, axes) d = Sub(h, m) e = Exp(d) s = ReduceSum(e, axes) n = Div(e, s)"
SHAPE = "2,3,4,5"


def chain(
    body: str, axes: tuple[int, ...] = (-1,), *, shape: str = SHAPE, dtype: str = "float", **arrays: np.ndarray
) -> Model:
    made = {"axes": ints(*axes)} if "axes" in body else {}
    return inferred(f"g ({dtype}[{shape}] x) => ({dtype}[{shape}] y) {{ h = Neg(x) {body} }}", **(made | arrays))


@pytest.mark.parametrize("axis", [-1, 3])
@pytest.mark.parametrize("body", [CHAIN, "e = Exp(h) s = ReduceSum(e, axes) n = Div(e, s)"])
def test_chains(body: str, axis: int) -> None:
    applied = check(FUSE_SOFTMAX, chain(f"{body} y = Neg(n)", (axis,)), 1)
    assert ops(applied.model) == {"Neg": 2, "Softmax": 1}


def test_chain_of_symbolic_rows() -> None:
    check(FUSE_SOFTMAX, chain(f"{CHAIN} y = Neg(n)", shape="B,S,T"), 1, B=2, S=3, T=4)


def test_a_peak_of_other_axes_is_left_before_the_softmax() -> None:
    body = CHAIN.replace("ReduceMax(h, axes)", "ReduceMax(h, all)") + " y = Neg(n)"
    applied = check(FUSE_SOFTMAX, chain(body, all=ints(2, 3)), 1)
    assert ops(applied.model) == {"Neg": 2, "ReduceMax": 1, "Sub": 1, "Softmax": 1}


def test_other_axes_are_refused_because_the_chain_is_faster() -> None:
    assert "the chain is faster" in check(FUSE_SOFTMAX, chain(f"{CHAIN} y = Neg(n)", (1,)), 0).reason


@pytest.mark.parametrize(
    "body",
    [
        CHAIN.replace("Div(e, s)", "Div(d, s)"),
        CHAIN.replace("Div(e, s)", "Div(s, e)"),
        CHAIN.replace("Exp(d)", "Sinh(d)"),
        CHAIN.replace("ReduceSum(e", "ReduceMean(e"),
        CHAIN.replace("ReduceSum(e, axes)", "ReduceSum(e, both)"),
    ],
)
def test_other_chains_stay(body: str) -> None:
    check(FUSE_SOFTMAX, chain(f"{body} y = Neg(n)", **({"both": ints(2, 3)} if "both" in body else {})), 0)


@pytest.mark.parametrize("name", ["m", "d", "e", "s"])
def test_shared_and_returned_values_are_refused(name: str) -> None:
    assert "another consumer" in check(FUSE_SOFTMAX, chain(f"{CHAIN} y = Add(n, {name})"), 0).reason
    text = f"g (float[2,5] h) => (float[2,5] n, float[2,k] {name}) {{ {CHAIN} }}"
    assert "graph output" in check(FUSE_SOFTMAX, inferred(text, axes=ints(-1)), 0).reason


@pytest.mark.parametrize("axis", [-1, 1, 3])
def test_log(axis: int) -> None:
    applied = check(FUSE_SOFTMAX, chain(f"s = Softmax<axis = {axis}>(h) y = Log(s)"), 1)
    assert ops(applied.model) == {"Neg": 1, "LogSoftmax": 1}
    assert node(applied.model, "LogSoftmax").attributes["axis"].as_int() == axis


def test_log_of_a_softmax_that_is_read_elsewhere_or_double_is_refused() -> None:
    assert "another consumer" in check(FUSE_SOFTMAX, chain("s = Softmax(h) l = Log(s) y = Mul(s, l)"), 0).reason
    assert "not float32" in check(FUSE_SOFTMAX, chain("s = Softmax(h) y = Log(s)", dtype="double"), 0).reason


@pytest.mark.parametrize(
    ("perm", "back", "axis", "moved"),
    [("0,3,2,1", "0,3,2,1", -1, 1), ("0,2,3,1", "0,3,1,2", 3, 1), ("3,0,2,1", "1,3,2,0", 0, 3)],
)
@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_transposes_around(perm: str, back: str, axis: int, moved: int, op: str) -> None:
    body = f"t = Transpose<perm = [{perm}]>(h) s = {op}<axis = {axis}>(t) y = Transpose<perm = [{back}]>(s)"
    applied = check(FUSE_SOFTMAX, chain(body), 1)
    assert ops(applied.model) == {"Neg": 1, op: 1}
    assert node(applied.model, op).attributes["axis"].as_int() == moved


def test_transposes_that_do_not_cancel_stay() -> None:
    body = "t = Transpose<perm = [0,2,1]>(h) s = Softmax(t) y = Transpose<perm = [2,1,0]>(s)"
    check(FUSE_SOFTMAX, inferred(f"g (float[3,3,3] x) => (float[3,3,3] y) {{ h = Neg(x) {body} }}"), 0)


@pytest.mark.parametrize(("shape", "axis", "fused"), [("2,5", 1, 1), ("2,3,5", 2, 1), ("2,3,5", 1, 0), ("B,S,5", 2, 1)])
def test_old_softmax_that_flattens(shape: str, axis: int, fused: int) -> None:
    text = f"g (float[{shape}] x) => (float[{shape}] y) {{ h = Neg(x) s = Softmax<axis = {axis}>(h) y = Neg(s) }}"
    model = build(text, opset=11)
    normal = apply_all(NORMALIZE, model)
    flattened = ops(normal).get("Flatten", 0)
    after = check(FUSE_SOFTMAX, normal, fused if flattened else 0, B=2, S=3).model
    assert_equal(model, after, FUSE_SOFTMAX.tolerance, B=2, S=3)
    if fused:
        assert ops(after) == {"Neg": 2, "Softmax": 1}


FLAT = "f = Reshape(h, rows) s = Softmax(f) y = Reshape(s, back)"


def test_reshapes_around() -> None:
    applied = check(FUSE_SOFTMAX, chain(FLAT, rows=ints(-1, 5), back=ints(2, 3, 4, 5)), 1)
    assert ops(applied.model) == {"Neg": 1, "Softmax": 1}
    check(FUSE_SOFTMAX, chain(FLAT, rows=ints(6, 20), back=ints(2, 3, 4, 5)), 0)
    text = f"g (float[2,3,5] x) => (float[3,2,5] y) {{ h = Neg(x) {FLAT} }}"
    applied = check(FUSE_SOFTMAX, inferred(text, rows=ints(-1, 5), back=ints(3, 2, 5)), 0)
    assert "not known to be the one before" in applied.reason


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [1, -2])
def test_spread(op: str, axis: int) -> None:
    model = chain(f"y = {op}<axis = {axis}>(h)", shape="2,3,4,16")
    applied = check(SPREAD_SOFTMAX, model, 1)
    last = {"Div": 1} if op == "Softmax" else {"Log": 1}
    sub = 1 if op == "Softmax" else 2
    assert ops(applied.model) == {"Neg": 1, "ReduceMax": 1, "Sub": sub, "Exp": 1, "ReduceSum": 1} | last
    check(FUSE_SOFTMAX, applied.model, 0)


def test_spread_leaves_the_last_axis_small_and_unknown_shapes_and_double() -> None:
    check(SPREAD_SOFTMAX, chain("y = Softmax(h)", shape="2,3,4,16"), 0)
    assert "few values" in check(SPREAD_SOFTMAX, chain("y = Softmax<axis = 1>(h)", shape="2,3,1,1"), 0).reason
    double = chain("y = Softmax<axis = 1>(h)", shape="2,3,4,16", dtype="double")
    assert "not float32" in check(SPREAD_SOFTMAX, double, 0).reason
    text = "g (float[2,3,16] x) => (float[2,3,16] y) { h = Neg(x) y = Softmax<axis = 1>(h) }"
    assert "not known" in check(SPREAD_SOFTMAX, build(text), 0).reason


def test_planted_errors_are_caught() -> None:
    model = chain("t = Transpose<perm = [0,3,2,1]>(h) s = Softmax(t) y = Transpose<perm = [0,3,2,1]>(s)")
    with pytest.raises(AssertionError):
        assert_equal(model, chain("y = Softmax<axis = 2>(h)"), FUSE_SOFTMAX.tolerance)
