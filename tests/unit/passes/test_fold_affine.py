from __future__ import annotations

import numpy as np
import pytest

from edgeopt.passes.fold_affine import FOLD_AFFINE

from .helpers import build, check, ops, rand

C, H, W, G = 8, 6, 8, 4


def conv_then(expression: str, k: np.ndarray, seed: int = 0, batch: int = 1):
    text = f"""g (float[1,{C},{H},{W}] x) => (float[{batch},{C},{H},{W}] y) {{
        h = Conv<group={G}, pads=[1,1,1,1]>(x, w, b)
        y = {expression}
    }}"""
    return build(text, w=rand(seed, C, C // G, 3, 3), b=rand(seed + 1, C), k=k)


F01 = {
    "add_channel": ("Add", (1, C, 1, 1), True),
    "mul_channel": ("Mul", (1, C, 1, 1), True),
    "add_full": ("Add", (1, C, H, W), False),
    "add_row_1d": ("Add", (W,), False),
    "mul_height": ("Mul", (1, 1, H, 1), False),
    "add_batch": ("Add", (2, C, 1, 1), False),
}


@pytest.mark.parametrize("seed", [51, 52])
@pytest.mark.parametrize("case", F01)
def test_f01_constants_after_a_grouped_conv(case: str, seed: int) -> None:
    op, shape, folds = F01[case]
    model = conv_then(f"{op}(h, k)", rand(seed, *shape), seed, shape[0] if len(shape) == 4 else 1)
    applied = check(FOLD_AFFINE, model, int(folds))
    assert ops(applied.model) == ({"Conv": 1} if folds else {"Conv": 1, op: 1})
    if not folds:
        assert applied.reason.startswith("1 candidate refused: constant is not per channel (")


@pytest.mark.parametrize(
    "expression", ["Add(h, k)", "Add(k, h)", "Sub(h, k)", "Sub(k, h)", "Mul(h, k)", "Mul(k, h)", "Div(h, k)"]
)
@pytest.mark.parametrize("shape", [(1, C, 1, 1), (C, 1, 1), (), (1,), (1, 1, 1, 1)])
def test_every_operator_and_shape(expression: str, shape: tuple[int, ...]) -> None:
    model = conv_then(expression, np.asarray(rand(3, *shape, low=0.5, high=2)))
    assert ops(check(FOLD_AFFINE, model, 1).model) == {"Conv": 1}


@pytest.mark.parametrize("shape", [(1, 1, H, W), (C, 1, 1, 1), (1, C, 1, W), (1, 1, 1, W), (H, 1)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    applied = check(FOLD_AFFINE, conv_then("Mul(h, k)", rand(3, *shape), batch=shape[0] if len(shape) == 4 else 1), 0)
    assert "constant is not per channel" in applied.reason


def test_constant_of_higher_rank_is_refused() -> None:
    text = """g (float[1,2,4,4] x) => (float[1,1,3,4,4] y) { h = Conv(x, w) y = Mul(h, k) }"""
    applied = check(FOLD_AFFINE, build(text, w=rand(0, 3, 2, 1, 1), k=rand(1, 1, 1, 1, 1, 1)), 0)
    assert "constant is not per channel" in applied.reason


def test_one_channel_does_not_stretch() -> None:
    """A Conv with one channel plus [1,5,1,1] makes five channels: nothing to fold."""
    text = """g (float[1,2,4,4] x) => (float[1,5,4,4] y) { h = Conv(x, w) y = Add(h, k) }"""
    check(FOLD_AFFINE, build(text, w=rand(0, 1, 2, 1, 1), k=rand(1, 1, 5, 1, 1)), 0)


def test_chain_folds_in_order() -> None:
    text = """g (float[1,2,4,4] x) => (float[1,3,4,4] y) {
        h = Conv(x, w) i = Sub(h, a) j = Div(i, b) k = Mul(j, c) y = Add(d, k)
    }"""
    arrays = {n: rand(i, 3, 1, 1, low=0.5, high=2) for i, n in enumerate("abcd")}
    assert ops(check(FOLD_AFFINE, build(text, w=rand(9, 3, 2, 1, 1), **arrays), 4).model) == {"Conv": 1}


@pytest.mark.parametrize("group", [1, 2])
def test_conv_transpose(group: int) -> None:
    text = f"g (float[1,4,5,5] x) => (float[1,6,7,7] y) {{ h = ConvTranspose<group={group}>(x, w) y = Mul(h, k) }}"
    check(FOLD_AFFINE, build(text, w=rand(0, 4, 6 // group, 3, 3), k=rand(1, 6, 1, 1)), 1)


@pytest.mark.parametrize(("shape", "folds"), [((5,), 1), ((1, 5), 1), ((), 1), ((5, 1), 0), ((5, 5), 0)])
def test_gemm(shape: tuple[int, ...], folds: int) -> None:
    text = "g (float[5,4] x) => (float[5,5] y) { h = Gemm<transB=1, alpha=0.5, beta=2.0>(x, w, b) y = Mul(h, k) }"
    check(FOLD_AFFINE, build(text, w=rand(0, 5, 4), b=rand(1, 5), k=np.asarray(rand(2, *shape))), folds)


def test_gemm_with_a_full_bias_is_refused() -> None:
    text = "g (float[5,4] x) => (float[5,5] y) { h = Gemm(x, w, b) y = Mul(h, k) }"
    applied = check(FOLD_AFFINE, build(text, w=rand(0, 4, 5), b=rand(1, 5, 5), k=rand(2, 5)), 0)
    assert "bias is not per channel" in applied.reason


def test_shared_weights_take_a_shift_but_no_scale() -> None:
    text = "g (float[1,2,4,4] x) => (float[1,3,4,4] y) {{ h = Conv(x, w) i = {op}(h, k) j = Conv(x, w) y = Add(i, j) }}"
    arrays = {"w": rand(0, 3, 2, 1, 1), "k": rand(1, 3, 1, 1)}
    assert check(FOLD_AFFINE, build(text.format(op="Add"), **arrays), 1).reason == ""
    assert "weights are shared" in check(FOLD_AFFINE, build(text.format(op="Mul"), **arrays), 0).reason


REFUSED = {
    "a constant is divided by it": "h = Conv(x, w) y = Div(k, h)",
    "its input has a second consumer": "h = Conv(x, w) i = Mul(h, k) j = Relu(h) y = Add(i, j)",
    "weights are not constant": "v = Relu(w) h = Conv(x, v) y = Mul(h, k)",
    "the folded weights are not finite": "h = Conv(x, w) y = Div(h, zero)",
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused(why: str) -> None:
    text = f"g (float[1,2,4,4] x) => (float[1,3,4,4] y) {{ {REFUSED[why]} }}"
    arrays = {"w": rand(0, 3, 2, 1, 1), "k": rand(1, 3, 1, 1), "zero": np.zeros((3, 1, 1), np.float32)}
    applied = check(FOLD_AFFINE, build(text, **{n: a for n, a in arrays.items() if n in text}), 0)
    assert applied.reason.startswith(f"1 candidate refused: {why} (")


def test_graph_output_between_is_refused() -> None:
    text = "g (float[1,2,4,4] x) => (float[1,3,4,4] y, float[1,3,4,4] h) { h = Conv(x, w) y = Mul(h, k) }"
    applied = check(FOLD_AFFINE, build(text, w=rand(0, 3, 2, 1, 1), k=rand(1, 3, 1, 1)), 0)
    assert "its input is a graph output" in applied.reason


def test_residual_add_is_no_candidate() -> None:
    text = "g (float[1,3,4,4] x) => (float[1,3,4,4] y) { h = Conv(x, w) y = Add(h, x) }"
    assert check(FOLD_AFFINE, build(text, w=rand(0, 3, 3, 1, 1)), 0).reason == "nothing to rewrite"


def test_conv_outside_and_constant_inside_a_branch_is_refused() -> None:
    text = """g (float[1,2,4,4] x, bool c) => (float[1,3,4,4] y) {
        h = Conv(x, w)
        y = If(c) <then_branch = t () => (float[1,3,4,4] a) { a = Mul(h, k) },
                   else_branch = e () => (float[1,3,4,4] b) { b = Relu(x2) }>
        x2 = Relu(h2)
    }"""
    text = text.replace("x2 = Relu(h2)\n", "").replace("Relu(x2)", "Conv(x, v)")
    model = build(text, w=rand(0, 3, 2, 1, 1), v=rand(1, 3, 2, 1, 1), k=rand(1, 3, 1, 1))
    assert "its input is in another graph" in check(FOLD_AFFINE, model, 0).reason
