from __future__ import annotations

import numpy as np
import pytest

from edgeopt.passes import ABSORBED, apply
from edgeopt.passes.infer_shapes import INFER_SHAPES
from edgeopt.passes.matmul_add_to_gemm import MATMUL_ADD_TO_GEMM

from .helpers import build, check, node, ops, rand


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("add", ["Add(m, b)", "Add(b, m)"])
@pytest.mark.parametrize("shape", [(5,), (1, 5)])
def test_folds(add: str, shape: tuple[int, ...], seed: int) -> None:
    text = f"g (float[N,4] x) => (float[N,5] y) {{ m = MatMul(x, w) s = {add} y = Relu(s) }}"
    applied = check(MATMUL_ADD_TO_GEMM, build(text, w=rand(seed, 4, 5), b=rand(seed + 1, *shape)), 1)
    assert ops(applied.model) == {"Gemm": 1, "Relu": 1}
    gemm = node(applied.model, "Gemm")
    assert gemm.metadata_props["edgeopt.key"] == "MatMul:m"
    assert gemm.metadata_props[ABSORBED] == "Add:s"


def test_output_keeps_its_name_and_shared_weights_stay_shared() -> None:
    text = "g (float[N,4] x) => (float[N,4] y) { m = MatMul(x, w) n = Add(m, b) o = MatMul(n, w) y = Add(o, b) }"
    model = apply(INFER_SHAPES, build(text, w=rand(0, 4, 4), b=rand(1, 4))).model
    applied = check(MATMUL_ADD_TO_GEMM, model, 2)
    assert set(applied.model.graph.initializers) == {"w", "b"}


REFUSED = {
    "the MatMul input is not known to be a matrix": (
        "g (float[2,3,4] x) => (float[2,3,5] y) { m = MatMul(x, w) y = Add(m, b) }",
        (5,),
    ),
    "bias is not one value per column": (
        "g (float[5,4] x) => (float[5,5] y) { m = MatMul(x, w) y = Add(m, b) }",
        (5, 1),
    ),
    "weights are not a constant matrix": (
        "g (float[3,4] x) => (float[3,5] y) { v = Relu(w) m = MatMul(x, v) y = Add(m, b) }",
        (5,),
    ),
    "its input is a graph output": (
        "g (float[3,4] x) => (float[3,5] y, float[3,5] m) { m = MatMul(x, w) y = Add(m, b) }",
        (5,),
    ),
    "its input has a second consumer": (
        "g (float[3,4] x) => (float[3,5] y) { m = MatMul(x, w) n = Add(m, b) y = Mul(n, m) }",
        (5,),
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused(why: str) -> None:
    text, shape = REFUSED[why]
    applied = check(MATMUL_ADD_TO_GEMM, build(text, w=rand(0, 4, 5), b=rand(1, *shape)), 0)
    assert applied.reason.startswith(f"1 candidate refused: {why} (")


@pytest.mark.parametrize("shape", [(), (1,), (3, 5)])
def test_scalar_and_full_bias_are_refused(shape: tuple[int, ...]) -> None:
    text = "g (float[3,4] x) => (float[3,5] y) { m = MatMul(x, w) y = Add(m, b) }"
    check(MATMUL_ADD_TO_GEMM, build(text, w=rand(0, 4, 5), b=np.asarray(rand(1, *shape))), 0)


def test_integers_are_left_alone() -> None:
    text = "g (int32[3,4] x) => (int32[3,5] y) { m = MatMul(x, w) y = Add(m, b) }"
    applied = check(MATMUL_ADD_TO_GEMM, build(text, w=np.ones((4, 5), np.int32), b=np.ones(5, np.int32)), 0)
    assert "type is not a float type" in applied.reason
