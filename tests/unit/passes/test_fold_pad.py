from __future__ import annotations

import numpy as np
import pytest

from edgeopt.passes import ABSORBED
from edgeopt.passes.fold_pad import FOLD_PAD

from .helpers import build, check, ints, node, ops, rand

P = ints(0, 0, 1, 2, 0, 0, 3, 0)


def conv_model(pad: str, conv: str = "Conv(p, w)", **arrays: np.ndarray):
    text = f"g (float[1,3,6,6] x) => (float[1,4,A,B] y) {{ p = {pad} y = {conv} }}"
    given = {"w": rand(0, 4, 3, 3, 3), "pads": P, "zero": np.float32(0), "one": np.float32(1), **arrays}
    return build(text, **{n: np.asarray(a) for n, a in given.items() if n in text})


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "conv",
    [
        "Conv(p, w)",
        "Conv<pads=[1,0,0,1]>(p, w)",
        'Conv<auto_pad="VALID", strides=[2,2]>(p, w)',
        "Conv<dilations=[2,2]>(p, w)",
    ],
)
@pytest.mark.parametrize("pad", ["Pad(x, pads)", "Pad(x, pads, zero)", 'Pad<mode="constant">(x, pads, "")'])
def test_into_conv(pad: str, conv: str, seed: int) -> None:
    applied = check(FOLD_PAD, conv_model(pad, conv, w=rand(seed, 4, 3, 3, 3)), 1)
    assert ops(applied.model) == {"Conv": 1}
    assert "pads" not in applied.model.graph.initializers


def test_pads_add_up_per_side() -> None:
    conv = node(check(FOLD_PAD, conv_model("Pad(x, pads)", "Conv<pads=[1,0,0,1]>(p, w)"), 1).model, "Conv")
    assert list(conv.attributes["pads"].as_ints()) == [2, 2, 3, 1]
    assert conv.metadata_props["edgeopt.key"] == "Conv:y"
    assert conv.metadata_props[ABSORBED] == "Pad:p"


@pytest.mark.parametrize("axes", [(2, 3), (-1, -2), (3,), (1, 3)])
def test_axes_input(axes: tuple[int, ...]) -> None:
    pads = ints(*range(1, len(axes) + 1), *([0] * len(axes)))
    if 1 in axes:
        pads[axes.index(1)] = 0
    check(FOLD_PAD, conv_model('Pad(x, pads, "", axes)', pads=pads, axes=ints(*axes)), 1)


def test_two_pads_in_a_row() -> None:
    text = "g (float[1,3,6,6] x) => (float[1,4,A,B] y) { q = Pad(x, pads) p = Pad(q, more) y = Conv(p, w) }"
    model = build(text, w=rand(0, 4, 3, 3, 3), pads=P, more=ints(0, 0, 0, 1, 0, 0, 1, 0))
    assert ops(check(FOLD_PAD, model, 2).model) == {"Conv": 1}


REFUSED = {
    "the pad is not zeros": [
        ("Pad(x, pads, one)", {}),
        ('Pad<mode="reflect">(x, pads)', {}),
        ('Pad<mode="edge">(x, pads)', {}),
    ],
    "pads are not constant": [("Pad(x, q)", {})],
    "a pad is negative": [("Pad(x, pads)", {"pads": ints(0, 0, -1, 0, 0, 0, 0, 0)})],
    "batch or channels are padded": [
        ("Pad(x, pads)", {"pads": ints(0, 1, 1, 1, 0, 0, 0, 0), "w": rand(0, 4, 4, 3, 3)})
    ],
}


@pytest.mark.parametrize(("why", "index"), [(w, i) for w, cases in REFUSED.items() for i in range(len(cases))])
def test_refused(why: str, index: int) -> None:
    pad, arrays = REFUSED[why][index]
    if pad == "Pad(x, q)":
        text = "g (float[1,3,6,6] x) => (float[1,4,A,B] y) { q = Abs(pads) p = Pad(x, q) y = Conv(p, w) }"
        model = build(text, w=rand(0, 4, 3, 3, 3), pads=P)
    else:
        model = conv_model(pad, **arrays)
    assert check(FOLD_PAD, model, 0).reason.startswith(f"1 candidate refused: {why} (")


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_auto_pad_same_is_refused(auto_pad: str) -> None:
    applied = check(FOLD_PAD, conv_model("Pad(x, pads)", f'Conv<auto_pad="{auto_pad}">(p, w)'), 0)
    assert "the consumer pads by itself" in applied.reason


def test_weight_made_by_a_pad_is_not_a_pad_of_the_data() -> None:
    text = "g (float[1,3,6,6] x) => (float[1,4,A,B] y) { p = Pad(w, pads) y = Conv(x, p) }"
    applied = check(FOLD_PAD, build(text, w=rand(0, 4, 3, 1, 1), pads=ints(0, 0, 1, 1, 0, 0, 1, 1)), 0)
    assert "Conv cannot take a pad" in applied.reason


def test_maxpool_never() -> None:
    text = "g (float[1,3,6,6] x) => (float[1,3,A,B] y) { p = Pad(x, pads) y = MaxPool<kernel_shape=[3,3]>(p) }"
    applied = check(FOLD_PAD, build(text, pads=ints(0, 0, 1, 1, 0, 0, 1, 1)), 0)
    assert "MaxPool cannot take a pad" in applied.reason


@pytest.mark.parametrize(
    ("pool", "count"),
    [
        ("kernel_shape=[3,3]", 1),
        ("kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1", 1),
        ("kernel_shape=[3,3], pads=[1,1,1,1]", 0),
        ("kernel_shape=[3,3], ceil_mode=1, strides=[2,2]", 0),
        ("kernel_shape=[1,1]", 0),
    ],
)
def test_average_pool_only_when_it_counts_its_pads(pool: str, count: int) -> None:
    text = f"g (float[1,3,6,6] x) => (float[1,3,A,B] y) {{ p = Pad(x, pads) y = AveragePool<{pool}>(p) }}"
    check(FOLD_PAD, build(text, pads=ints(0, 0, 1, 1, 0, 0, 1, 1)), count)


def test_every_conv_that_can_takes_it_and_the_pad_stays_for_the_rest() -> None:
    text = """g (float[1,3,6,6] x) => (float[1,4,A,B] a, float[1,4,C,D] b, float[1,3,8,8] c) {
        p = Pad(x, pads) a = Conv(p, w) b = Conv<strides=[2,2]>(p, w) c = Relu(p)
    }"""
    applied = check(FOLD_PAD, build(text, w=rand(0, 4, 3, 3, 3), pads=ints(0, 0, 1, 1, 0, 0, 1, 1)), 2)
    assert ops(applied.model) == {"Conv": 2, "Relu": 1, "Pad": 1}
    assert applied.reason == "1 candidate refused: Relu cannot take a pad (Pad:p)"


def test_pad_that_is_a_graph_output_stays() -> None:
    text = "g (float[1,3,6,6] x) => (float[1,4,6,6] y, float[1,3,8,8] p) { p = Pad(x, pads) y = Conv(p, w) }"
    applied = check(FOLD_PAD, build(text, w=rand(0, 4, 3, 3, 3), pads=ints(0, 0, 1, 1, 0, 0, 1, 1)), 1)
    assert ops(applied.model) == {"Conv": 1, "Pad": 1}


def test_old_pad_with_attributes_is_refused() -> None:
    text = "g (float[1,3,6,6] x) => (float[1,4,6,6] y) { p = Pad<pads=[0,0,1,1,0,0,1,1]>(x) y = Conv(p, w) }"
    applied = check(FOLD_PAD, build(text, opset=10, ir_version=5, w=rand(0, 4, 3, 3, 3)), 0)
    assert "pads are not constant" in applied.reason
