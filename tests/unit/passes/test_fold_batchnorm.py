from __future__ import annotations

import numpy as np
import pytest

from edgeopt.passes import ABSORBED, apply
from edgeopt.passes.fold_batchnorm import FOLD_BATCHNORM

from .helpers import build, check, initializer, node, ops, rand


def stats(channels: int, seed: int = 10, dtype: str = "float32") -> dict[str, np.ndarray]:
    return {
        "gamma": rand(seed, channels, dtype=dtype),
        "beta": rand(seed + 1, channels, dtype=dtype),
        "mean": rand(seed + 2, channels, low=-2, high=2, dtype=dtype),
        "var": rand(seed + 3, channels, low=0.01, high=3, dtype=dtype),
    }


BN = "BatchNormalization(c, gamma, beta, mean, var)"


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("bias", [True, False])
def test_conv(seed: int, group: int, bias: bool) -> None:
    arrays = {"w": rand(seed, 8, 4 // group, 3, 3), **stats(8, seed)} | ({"b": rand(seed, 8)} if bias else {})
    text = f"""g (float[N,4,7,7] x) => (float[N,8,7,7] y) {{
        c = Conv<group={group}, pads=[1,1,1,1]>(x, w{", b" if bias else ""})
        d = {BN}
        y = Relu(d)
    }}"""
    applied = check(FOLD_BATCHNORM, build(text, **arrays), 1)
    assert ops(applied.model) == {"Conv": 1, "Relu": 1}
    assert set(applied.model.graph.initializers) == {"w", "d.bias"}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("group", [1, 2])
def test_conv_transpose_with_groups(seed: int, group: int) -> None:
    text = f"""g (float[1,4,5,5] x) => (float[1,6,M,M] y) {{
        c = ConvTranspose<group={group}, strides=[2,2]>(x, w, b)
        y = {BN}
    }}"""
    model = build(text, w=rand(seed, 4, 6 // group, 3, 3), b=rand(seed, 6), **stats(6, seed))
    assert ops(check(FOLD_BATCHNORM, model, 1).model) == {"ConvTranspose": 1}


@pytest.mark.parametrize("rank", [1, 3])
def test_conv_1d_and_3d(rank: int) -> None:
    side = ",".join(["6"] * rank)
    out = ",".join(["4"] * rank)
    text = f"g (float[1,2,{side}] x) => (float[1,3,{out}] y) {{ c = Conv(x, w) y = {BN} }}"
    check(FOLD_BATCHNORM, build(text, w=rand(0, 3, 2, *[3] * rank), **stats(3)), 1)


@pytest.mark.parametrize("attributes", ["", "<transB=1>", "<alpha=0.5, beta=0.25, transB=1>", "<transA=1>"])
@pytest.mark.parametrize("bias", [(5,), (1, 5), (1,), (), None])
def test_gemm(attributes: str, bias: tuple[int, ...] | None) -> None:
    w = rand(0, 5, 4) if "transB" in attributes else rand(0, 4, 5)
    x = "float[4,3] x" if "transA" in attributes else "float[3,4] x"
    third = "" if bias is None else ", b"
    text = f"g ({x}) => (float[3,5] y) {{ c = Gemm{attributes}(x, w{third}) y = {BN} }}"
    arrays = {} if bias is None else {"b": np.asarray(rand(1, *bias))}
    assert ops(check(FOLD_BATCHNORM, build(text, w=w, **arrays, **stats(5)), 1).model) == {"Gemm": 1}


def test_matmul_becomes_gemm() -> None:
    model = build(f"g (float[N,4] x) => (float[N,5] y) {{ c = MatMul(x, w) y = {BN} }}", w=rand(0, 4, 5), **stats(5))
    assert ops(check(FOLD_BATCHNORM, model, 1).model) == {"Gemm": 1}


def test_float64() -> None:
    text = f"g (double[1,2,5,5] x) => (double[1,3,3,3] y) {{ c = Conv(x, w) y = {BN} }}"
    after = check(FOLD_BATCHNORM, build(text, w=rand(0, 3, 2, 3, 3, dtype="float64"), **stats(3, dtype="float64")), 1)
    assert initializer(after.model, "w").dtype == np.float64


def test_constants_between_conv_and_batchnorm_are_folded_first() -> None:
    text = f"""g (float[1,2,5,5] x) => (float[1,3,3,3] y) {{
        c0 = Conv(x, w) c1 = Mul(c0, k) c = Add(b, c1) y = {BN}
    }}"""
    model = build(text, w=rand(0, 3, 2, 3, 3), k=rand(1, 3, 1, 1), b=rand(2, 1, 3, 1, 1), **stats(3))
    assert ops(check(FOLD_BATCHNORM, model, 3).model) == {"Conv": 1}


def test_the_conv_keeps_its_key_and_records_what_it_absorbed() -> None:
    model = build(
        f"g (float[1,2,5,5] x) => (float[1,3,3,3] y) {{ c = Conv(x, w) y = {BN} }}", w=rand(0, 3, 2, 3, 3), **stats(3)
    )
    conv = node(apply(FOLD_BATCHNORM, model).model, "Conv")
    assert conv.metadata_props["edgeopt.key"] == "Conv:c"
    assert conv.metadata_props[ABSORBED] == "BatchNormalization:y"
    assert conv.outputs[0].name == "y"


def test_zero_gamma_gives_the_bias() -> None:
    model = build(
        f"g (float[1,2,5,5] x) => (float[1,3,3,3] y) {{ c = Conv(x, w) y = {BN} }}",
        **{**stats(3), "w": rand(0, 3, 2, 3, 3), "gamma": np.zeros(3, np.float32)},
    )
    assert not initializer(check(FOLD_BATCHNORM, model, 1).model, "w").any()


def test_bias_shared_with_another_conv_is_replaced_for_this_one_only() -> None:
    text = f"""g (float[1,2,5,5] x) => (float[1,3,3,3] y, float[1,3,3,3] z) {{
        c = Conv(x, w, b) y = {BN} z = Conv(x, v, b)
    }}"""
    model = build(text, w=rand(0, 3, 2, 3, 3), v=rand(1, 3, 2, 3, 3), b=rand(2, 3), **stats(3))
    assert {"b", "y.bias"} <= set(check(FOLD_BATCHNORM, model, 1).model.graph.initializers)


REFUSED = {
    "its input has a second consumer": f"c = Conv(x, w) d = {BN} r = Relu(c) y = Add(d, r)",
    "weights are shared with another node": f"c = Conv(x, w) d = {BN} e = Conv(x, w) y = Add(d, e)",
    "weights are not constant": f"v = Relu(w) c = Conv(x, v) y = {BN}",
    "bias is not constant": f"v = Relu(b) c = Conv(x, w, v) y = {BN}",
    "no Conv or Gemm before it": "c = Conv(x, w) r = Relu(c) y = BatchNormalization(r, gamma, beta, mean, var)",
    "statistics are not constant": "c = Conv(x, w) m = Relu(mean) y = BatchNormalization(c, gamma, beta, m, var)",
    "variance is not positive": "c = Conv(x, w) y = BatchNormalization(c, gamma, beta, mean, negative)",
    "the folded weights are not finite": "c = Conv(x, w) y = BatchNormalization(c, huge, beta, mean, tiny)",
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused(why: str) -> None:
    text = f"g (float[1,3,6,6] x) => (float[1,4,4,4] y) {{ {REFUSED[why]} }}"
    arrays = {
        "w": rand(0, 4, 3, 3, 3), "b": rand(1, 4), "negative": np.full(4, -1, np.float32),
        "huge": np.full(4, 3e38, np.float32), "tiny": np.zeros(4, np.float32),
    }  # fmt: skip
    used = {n: a for n, a in {**arrays, **stats(4)}.items() if n in text}
    applied = check(FOLD_BATCHNORM, build(text, **used), 0)
    assert applied.reason.startswith(f"1 candidate refused: {why} (")


def test_graph_output_between_is_refused() -> None:
    text = f"g (float[1,3,6,6] x) => (float[1,4,4,4] y, float[1,4,4,4] c) {{ c = Conv(x, w) y = {BN} }}"
    applied = check(FOLD_BATCHNORM, build(text, w=rand(0, 4, 3, 3, 3), **stats(4)), 0)
    assert "its input is a graph output" in applied.reason


def test_float16_weights_are_refused() -> None:
    text = f"g (float16[1,3,6,6] x) => (float16[1,4,4,4] y) {{ c = Conv(x, w) y = {BN} }}"
    applied = check(FOLD_BATCHNORM, build(text, w=rand(0, 4, 3, 3, 3, dtype="float16"), **stats(4, dtype="float16")), 0)
    assert "weights are float16" in applied.reason


def test_matmul_of_unknown_rank_is_refused() -> None:
    text = f"g (float[2,5,4] x) => (float[2,5,4] y) {{ c = MatMul(x, w) y = {BN} }}"
    applied = check(FOLD_BATCHNORM, build(text, w=rand(0, 4, 4), **stats(5)), 0)
    assert "per channel" in applied.reason or "matrix" in applied.reason


def test_in11_training_mode_is_refused() -> None:
    text = """g (float[1,3,6,6] x) => (float[1,4,4,4] y, float[4] m, float[4] v) {
        c = Conv(x, w) y, m, v = BatchNormalization<training_mode=1>(c, gamma, beta, mean, var)
    }"""
    assert "training mode" in check(FOLD_BATCHNORM, build(text, w=rand(0, 4, 3, 3, 3), **stats(4)), 0).reason


def test_in11_old_extra_outputs_are_refused() -> None:
    """Before opset 14 extra outputs alone meant training."""
    text = """g (float[1,3,6,6] x) => (float[1,4,4,4] y, float[4] m) {
        c = Conv(x, w) y, m, v, s, t = BatchNormalization(c, gamma, beta, mean, var)
    }"""
    model = build(text, opset=9, ir_version=4, w=rand(0, 4, 3, 3, 3), **stats(4))
    assert "training mode" in check(FOLD_BATCHNORM, model, 0).reason
