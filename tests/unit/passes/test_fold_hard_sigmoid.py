"""HardSigmoid behind weights becomes Clip, whose bounds cost nothing in int8."""

from __future__ import annotations

import numpy as np
import pytest

from edgeopt.model import node_key
from edgeopt.passes import ABSORBED, apply
from edgeopt.passes.fold_hard_sigmoid import FOLD_HARD_SIGMOID

from .helpers import check, inferred, node, ops, rand

CONV = "g (float[1,4,6,6] x) => (float[1,8,6,6] y) {{ c = Conv(x, w{b}) y = HardSigmoid<{a}>(c) }}"


@pytest.mark.parametrize("attributes", ["alpha = 0.16666667, beta = 0.5", "", "alpha = -0.3, beta = 1.25"])
@pytest.mark.parametrize("bias", [True, False])
def test_conv(attributes: str, bias: bool) -> None:
    arrays = {"w": rand(1, 8, 4, 1, 1) * 3} | ({"b": rand(2, 8) * 3} if bias else {})
    text = CONV.format(b=", b" if bias else "", a=attributes).replace("<>", "")
    changed = check(FOLD_HARD_SIGMOID, inferred(text, **arrays), 1).model
    assert ops(changed) == {"Conv": 1, "Clip": 1}
    conv, clip = node(changed, "Conv"), node(changed, "Clip")
    assert conv.metadata_props[ABSORBED] == node_key(clip)
    assert [float(v.const_value.numpy()) for v in clip.inputs[1:]] == [0.0, 1.0]  # type: ignore[union-attr]


def test_gemm() -> None:
    text = "g (float[3,4] x) => (float[3,8] y) { c = Gemm<transB = 1>(x, w, b) y = HardSigmoid(c) }"
    changed = check(FOLD_HARD_SIGMOID, inferred(text, w=rand(1, 8, 4), b=rand(2, 8)), 1).model
    assert ops(changed) == {"Gemm": 1, "Clip": 1}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("c = Conv(x, w) h = HardSigmoid(c) y = Mul(c, h)", "second consumer"),
        ("c = Conv(x, w) d = Conv(x, w) h = HardSigmoid(c) y = Add(d, h)", "shared"),
    ],
)
def test_refusals(body: str, why: str) -> None:
    text = f"g (float[1,4,6,6] x) => (float[1,8,6,6] y) {{ {body} }}"
    model = inferred(text, w=rand(1, 8, 4, 1, 1))
    applied = apply(FOLD_HARD_SIGMOID, model)
    assert applied.count == 0
    assert why in applied.reason
    assert ops(applied.model) == ops(model)


def test_an_input_of_another_kind_is_left() -> None:
    model = inferred("g (float[4] x) => (float[4] y) { h = Sinh(x) y = HardSigmoid(h) }")
    check(FOLD_HARD_SIGMOID, model, 0)


def test_a_wrong_shift_would_be_seen() -> None:
    """The oracle: the same Clip without the offset differs."""
    arrays = {"w": rand(1, 8, 4, 1, 1) * 3, "b": rand(2, 8) * 3}
    changed = check(FOLD_HARD_SIGMOID, inferred(CONV.format(b=", b", a="alpha = 0.25, beta = 0.5"), **arrays), 1).model
    conv = node(changed, "Conv")
    bias = conv.inputs[2].const_value.numpy()  # type: ignore[union-attr]
    np.testing.assert_allclose(bias, 0.25 * arrays["b"] + 0.5, rtol=1e-6)
