from __future__ import annotations

import numpy as np
import pytest

from edgeopt.model import Model
from edgeopt.passes import apply
from edgeopt.passes.gather_one_hot import GATHER_ONE_HOT
from edgeopt.passes.infer_shapes import INFER_SHAPES

from .helpers import build, initializer, node, ops, rand, run

K = 5
EQUAL = "e = Equal(x, classes) h = Cast<to=1>(e) y = MatMul(h, table)"
ONE_HOT = "h = OneHot<axis=-1>(x, depth, values) y = MatMul(h, table)"
ARRAYS = {
    "classes": np.arange(K, dtype=np.int32).reshape(1, 1, K),
    "depth": np.array(K, np.int64),
    "values": np.array([0, 1], np.float32),
    "table": rand(0, K, 3),
}


def shaped(body: str, x: str, outputs: str = "float[N,4,3] y", **changed: np.ndarray) -> Model:
    arrays = {n: a for n, a in {**ARRAYS, **changed}.items() if n in body}
    return apply(INFER_SHAPES, build(f"g ({x} x) => ({outputs}) {{ {body} }}", **arrays)).model


@pytest.mark.parametrize(("body", "x"), [(EQUAL, "int32[N,4,1]"), (ONE_HOT, "int64[N,4]")])
def test_every_index_gives_the_same_row(body: str, x: str) -> None:
    """Inside, negative, above and far outside: equal bits, since only zeros are added."""
    model = shaped(body, x)
    applied = apply(GATHER_ONE_HOT, model)
    assert applied.count == 1, applied.reason
    assert ops(applied.model)["Gather"] == 1
    assert not {"MatMul", "Equal", "OneHot"} & set(ops(applied.model))
    numbers = np.array([[0, 4, 5, -1], [-5, -6, 100, 3], [-(2**31), 2**31 - 1, 1, 2]])
    feeds = {"x": numbers.reshape(3, 4, 1).astype(np.int32) if "32" in x else numbers}
    assert np.array_equal(run(applied.model, feeds)["y"], run(model, feeds)["y"])


def test_the_table_has_one_row_more_and_the_old_one_goes() -> None:
    after = apply(GATHER_ONE_HOT, shaped(EQUAL, "int32[N,4,1]")).model
    assert "table" not in after.graph.initializers
    rows = initializer(after, "table.rows")
    assert rows.shape == (K + 1, 3)
    assert not rows[-1].any()


@pytest.mark.parametrize(
    ("body", "x", "changed", "why"),
    [
        (EQUAL, "int32[N,4,1]", {"classes": np.array([[[0, 2, 1, 3, 4]]], np.int32)}, "not 0, 1, 2"),
        (EQUAL, "int32[N,4,5]", {}, "one element along the last axis"),
        (EQUAL, "int32[N,4,1]", {"table": np.full((K, 3), np.inf, np.float32)}, "not finite"),
        (ONE_HOT, "int64[N,4]", {"values": np.array([0, 2], np.float32)}, "not 0 and 1"),
        (ONE_HOT.replace("axis=-1", "axis=1"), "int64[N,5]", {}, "not the last one"),
        (
            EQUAL.replace("y = MatMul", "s = ReduceSum<keepdims=0>(h) m = MatMul") + " y = Add(m, s)",
            "int32[N,4,1]",
            {},
            "second",
        ),
    ],
)
def test_refused(body: str, x: str, changed: dict[str, np.ndarray], why: str) -> None:
    applied = apply(GATHER_ONE_HOT, shaped(body, x, outputs="float[P,Q,R] y", **changed))
    assert applied.count == 0
    assert why in applied.reason


def test_a_planted_error_is_caught() -> None:
    model = shaped(EQUAL, "int32[N,4,1]")
    after = apply(GATHER_ONE_HOT, model).model
    rows = np.array(initializer(after, "table.rows"))
    rows[-1] = 0.001
    value = node(after, "Gather").inputs[0]
    assert value is not None
    value.const_value = (
        build("g (float[1] x) => (float[1] y) { y = Relu(x) }", rows=rows).graph.initializers["rows"].const_value
    )
    feeds = {"x": np.full((1, 4, 1), 9, np.int32)}
    assert not np.array_equal(run(after, feeds)["y"], run(model, feeds)["y"])
