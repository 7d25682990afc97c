"""Steps by constants in front of Conv and MatMul, two in a row, and behind a normalization."""

from __future__ import annotations

import numpy as np
import pytest

from edgeopt.model import Model
from edgeopt.passes import apply
from edgeopt.passes.fold_affine_before import FOLD_AFFINE_BEFORE
from edgeopt.passes.infer_shapes import INFER_SHAPES
from edgeopt.passes.merge_constants import MERGE_CONSTANTS

from .helpers import assert_equal, build, check, node, ops, rand


def shaped(text: str, **arrays: np.ndarray) -> Model:
    words = set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())
    return apply(INFER_SHAPES, build(text, **{n: a for n, a in arrays.items() if n in words})).model


def conv(groups: int, kernel: tuple[int, ...] = (3, 3)) -> np.ndarray:
    return rand(0, 6, 4 // groups, *kernel)


CHANNELS = {
    "scale": rand(1, 4, 1, 1, low=0.5, high=2.0),
    "shift": rand(2, 1, 4, 1, 1),
    "number": np.array(0.3, np.float32),
    "bias": rand(3, 6),
    "mean": rand(4, 4),
    "var": rand(5, 4, low=0.5, high=2.0),
    "gamma": rand(6, 4),
    "beta": rand(7, 4),
    "line": rand(8, 8),
}
STEPS = {
    "mul": ("a = Mul(x, scale)", 1),
    "div": ("a = Div(x, scale)", 1),
    "add": ("a = Add(shift, x)", 1),
    "sub": ("a = Sub(x, number)", 1),
    "rsub": ("a = Sub(shift, x)", 1),
    "chain": ("b = Sub(x, shift) a = Div(b, scale)", 2),
    "batchnorm": ("a = BatchNormalization(x, gamma, beta, mean, var)", 1),
}


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("step", STEPS)
def test_before_a_conv(step: str, groups: int) -> None:
    text, count = STEPS[step]
    weight = rand(0, 8, 4 // groups, 3, 3)
    for bias in ("", ", line"):
        model = shaped(
            f"g (float[2,4,8,8] x) => (float[2,8,6,6] y) {{ {text} y = Conv<group={groups}>(a, w{bias}) }}",
            w=weight,
            **CHANNELS,
        )
        assert ops(check(FOLD_AFFINE_BEFORE, model, count).model) == {"Conv": 1}


def test_before_conv1d_and_conv3d() -> None:
    for rank, dims_ in ((1, "8"), (3, "4,4,4")):
        k, out = rand(1, 4, *[1] * rank), ",".join("PQRST"[: rank + 2])
        text = f"g (float[2,4,{dims_}] x) => (float[{out}] y) {{ b = Mul(x, k) a = Add(b, k) y = Conv(a, w) }}"
        check(FOLD_AFFINE_BEFORE, shaped(text, k=k, w=rand(0, 6, 4, *[3] * rank)), 2)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_scale_before_a_conv_transpose(groups: int) -> None:
    body = f"a = Mul(x, scale) y = ConvTranspose<group={groups}, strides=[2,2]>(a, w)"
    text = f"g (float[2,4,5,5] x) => (float[P,Q,R,S] y) {{ {body} }}"
    check(FOLD_AFFINE_BEFORE, shaped(text, w=rand(0, 4, 3, 3, 3), **CHANNELS), 1)
    applied = check(
        FOLD_AFFINE_BEFORE, shaped(text.replace("Mul(x, scale)", "Add(x, shift)"), w=rand(0, 4, 3, 3, 3), **CHANNELS), 0
    )
    assert "ConvTranspose" in applied.reason


def test_before_gemm_and_matmul() -> None:
    arrays = {"w": rand(0, 4, 6), "t": rand(0, 6, 4), "k": rand(1, 4), "c": rand(2, 6)}
    for body, count in (
        ("a = Mul(x, k) b = Add(a, k) y = Gemm<alpha=0.5, beta=2.0>(b, w, c)", 2),
        ("a = Sub(k, x) y = Gemm<transB=1>(a, t)", 1),
        ("a = Mul(x, k) y = MatMul(a, w)", 1),
    ):
        check(FOLD_AFFINE_BEFORE, shaped(f"g (float[3,4] x) => (float[3,6] y) {{ {body} }}", **arrays), count)
    check(
        FOLD_AFFINE_BEFORE,
        shaped("g (float[B,3,4] x) => (float[B,3,6] y) { a = Mul(x, k) y = MatMul(a, w) }", **arrays),
        1,
    )
    text = "g (float[B,3,4] x) => (float[B,3,6] y) { a = Add(x, k) y = MatMul(a, w) }"
    assert "no bias" in check(FOLD_AFFINE_BEFORE, shaped(text, **arrays), 0).reason


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("a = Add(x, shift) y = Conv<pads=[1,1,1,1]>(a, w)", "zeros"),
        ('a = Add(x, shift) y = Conv<auto_pad="SAME_UPPER">(a, w)', "zeros"),
        ("a = Mul(x, row) y = Conv(a, w)", "not per channel"),
        ("a = Div(number, x) y = Conv(a, w)", "divided by it"),
        ("a = Mul(x, scale) b = Conv(a, w) c = ReduceMax<keepdims=0>(a) y = Add(b, c)", "second consumer"),
        ("a = Mul(x, scale) b = Conv(a, w) c = Conv(x, w) y = Add(b, c)", "shared"),
        ("a = Mul(x, huge) y = Conv(a, w)", "not finite"),
    ],
)
def test_refused(body: str, why: str) -> None:
    arrays = {"w": 4 * conv(1), "row": rand(0, 8), "huge": np.array(3e38, np.float32), **CHANNELS}
    model = shaped(f"g (float[2,4,8,8] x) => (float[P,Q,R,S] y) {{ {body} }}", **arrays)
    applied = apply(FOLD_AFFINE_BEFORE, model)
    assert applied.count == 0
    assert why in applied.reason


def test_a_scale_passes_the_padding() -> None:
    text = "g (float[2,4,8,8] x) => (float[2,6,8,8] y) { a = Mul(x, scale) y = Conv<pads=[1,1,1,1]>(a, w) }"
    check(FOLD_AFFINE_BEFORE, shaped(text, w=conv(1), **CHANNELS), 1)


@pytest.mark.parametrize(
    ("body", "count", "left"),
    [
        ("a = Mul(x, k) y = Div(a, two)", 1, {"Mul": 1}),
        ("a = Sub(x, k) b = Add(two, a) y = Sub(b, k)", 2, {"Add": 1}),
        ("a = Mul(x, k) y = Add(a, two)", 0, {"Mul": 1, "Add": 1}),
        ("a = Mul(x, k) y = Mul(a, column)", 0, {"Mul": 2}),
        ("a = Sub(k, x) y = Add(a, k)", 0, {"Sub": 1, "Add": 1}),
        ("a = Mul(x, zero) y = Mul(a, k)", 0, {"Mul": 2}),
        ("n = LayerNormalization(x, k, two4) a = Mul(n, two) y = Add(a, k)", 2, {"LayerNormalization": 1}),
        ("n = LayerNormalization(x, k) a = Div(n, two) y = Sub(a, k)", 2, {"LayerNormalization": 1}),
        ("n = LayerNormalization(x, k) y = Mul(n, column)", 0, {"LayerNormalization": 1, "Mul": 1}),
        ("g = Gemm(x, w, k) y = Add(g, k)", 1, {"Gemm": 1}),
        ("g = Gemm(x, w) y = Add(two, g)", 1, {"Gemm": 1}),
        ("g = Gemm<beta=2.0>(x, w, k) y = Add(g, k)", 0, {"Gemm": 1, "Add": 1}),
    ],
)
def test_merge(body: str, count: int, left: dict[str, int]) -> None:
    arrays = {
        "k": rand(0, 4, low=0.5, high=2.0),
        "two": np.array([2.0], np.float32),
        "two4": np.full(4, 2, np.float32),
        "zero": np.array(0.0, np.float32),
        "column": rand(1, 3, 1),
        "w": rand(2, 4, 4),
    }
    after = check(MERGE_CONSTANTS, shaped(f"g (float[3,4] x) => (float[3,4] y) {{ {body} }}", **arrays), count).model
    assert ops(after) == left


def test_what_is_read_elsewhere_survives() -> None:
    text = "g (float[3,4] x) => (float[3,4] y, float[3,4] a) { a = Mul(x, k) y = Mul(a, k) }"
    check(MERGE_CONSTANTS, shaped(text, k=rand(0, 4)), 0)


def test_a_planted_error_is_caught() -> None:
    text = "g (float[2,4,8,8] x) => (float[2,6,6,6] y) { a = Sub(x, shift) b = Mul(a, scale) y = Conv(b, w) }"
    model = shaped(text, w=conv(1), **CHANNELS)
    after = apply(FOLD_AFFINE_BEFORE, model).model
    bias = node(after, "Conv").inputs[2]
    assert bias is not None
    assert bias.const_value is not None
    wrong = np.array(bias.const_value.numpy())
    wrong[0] += 0.01
    bias.const_value = (
        build("g (float[1] x) => (float[1] y) { y = Relu(x) }", w=wrong).graph.initializers["w"].const_value
    )
    with pytest.raises(AssertionError):
        assert_equal(model, after, 1e-4)
