"""Layer, instance and RMS normalization: they share their spellings."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from edgeopt.model import Model
from edgeopt.passes import FUSIONS, NORMALIZE, Pass, apply
from edgeopt.passes.fuse_instance_norm import FUSE_INSTANCE_NORM
from edgeopt.passes.fuse_layer_norm import FUSE_LAYER_NORM
from edgeopt.passes.mean_to_pool import MEAN_TO_POOL
from edgeopt.passes.respell_rms_norm import RESPELL_RMS_NORM
from edgeopt.target import load_target

from .helpers import apply_all, assert_equal, check, inferred, initializer, ints, node, ops, rand

F = np.float32
SHAPE = "2,3,4,5"
MEANS = "m = ReduceMean(h, axes) d = Sub(h, m) p = Pow(d, two) v = ReduceMean(p, axes) a = Add(v, eps) r = Sqrt(a)"


def chain(
    body: str, axes: tuple[int, ...] = (-1,), *, shape: str = SHAPE, dtype: str = "float", **arrays: np.ndarray
) -> Model:
    kind = np.float64 if dtype == "double" else F
    numbers = {"two": 2.0, "one": 1.0, "eps": 1e-5, "half": 0.5, "minus_half": -0.5, "three": 3.0, "zero": 0.0}
    words = set(re.findall(r"\w+", body))
    made = {name: np.array(value, kind) for name, value in numbers.items() if name in words}
    made |= {"axes": ints(*axes)} if "axes" in words else {}
    return inferred(f"g ({dtype}[{shape}] x) => ({dtype}[{shape}] y) {{ h = Mul(x, x) {body} }}", **(made | arrays))


WAYS = [
    f"{MEANS} n = Div(d, r)",
    f"{MEANS} i = Reciprocal(r) n = Mul(d, i)",
    f"{MEANS} i = Div(one, r) n = Mul(i, d)",
    MEANS.replace("Pow(d, two)", "Mul(d, d)").replace("Add(v, eps)", "Add(eps, v)") + " n = Div(d, r)",
    MEANS.replace("Sqrt(a)", "Pow(a, half)") + " n = Div(d, r)",
    MEANS.replace("Sqrt(a)", "Pow(a, minus_half)") + " n = Mul(d, r)",
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("axes", [(-1,), (3,), (2, 3), (-1, 1, 2)])
def test_layer_norm_without_affine(way: str, axes: tuple[int, ...]) -> None:
    applied = check(FUSE_LAYER_NORM, chain(f"{way} y = Neg(n)", axes), 1)
    assert ops(applied.model) == {"Mul": 1, "LayerNormalization": 1, "Neg": 1}
    made = node(applied.model, "LayerNormalization")
    assert made.attributes["axis"].as_int() == -len(axes)
    assert made.attributes["epsilon"].as_float() == pytest.approx(1e-5, rel=1e-6)
    assert made.inputs[1].shape == [[5], [4, 5], [3, 4, 5]][len(axes) - 1]


@pytest.mark.parametrize("way", WAYS[:2])
@pytest.mark.parametrize(
    "affine", ["w = Mul(n, g) y = Add(w, b)", "w = Mul(g, n) y = Add(b, w)", "y = Mul(n, g)", "y = Add(n, b)"]
)
@pytest.mark.parametrize("form", ["full", "ones before", "scalar"])
@pytest.mark.parametrize("axes", [(-1,), (2, 3)])
def test_layer_norm_with_affine(way: str, affine: str, form: str, axes: tuple[int, ...]) -> None:
    full = (4, 5)[2 - len(axes) :]
    shape = {"full": full, "ones before": (1, 1, *full), "scalar": ()}[form]
    words = set(re.findall(r"\w+", affine))
    arrays = {n: np.asarray(rand(i, *shape, low=0.5, high=2)) for i, n in enumerate("gb") if n in words}
    applied = check(FUSE_LAYER_NORM, chain(f"{way} {affine}", axes, **arrays), 1)
    assert ops(applied.model) == {"Mul": 1, "LayerNormalization": 1}
    assert not {"g", "b", "axes", "two", "eps"} & set(applied.model.graph.initializers)


def test_layer_norm_of_symbolic_rows() -> None:
    model = chain(f"{WAYS[0]} w = Mul(n, g) y = Add(w, b)", shape="B,S,6", g=rand(0, 6), b=rand(1, 6))
    assert ops(check(FUSE_LAYER_NORM, model, 1, B=2, S=3).model) == {"Mul": 1, "LayerNormalization": 1}


def test_an_affine_that_does_not_fit_stays_behind() -> None:
    applied = check(FUSE_LAYER_NORM, chain(f"{WAYS[0]} w = Mul(n, g) y = Add(w, b)", g=rand(0, 4, 1), b=rand(1, 5)), 1)
    assert ops(applied.model) == {"Mul": 2, "LayerNormalization": 1, "Add": 1}
    applied = check(FUSE_LAYER_NORM, chain(f"{WAYS[0]} w = Mul(n, g) y = Add(w, x)", g=rand(0, 5)), 1)
    assert ops(applied.model) == {"Mul": 1, "LayerNormalization": 1, "Add": 1}


@pytest.mark.parametrize(("shape", "wide"), [("2,6,4,5", (6, 1, 1)), ("2,6,5", (6, 1)), ("N,6,H,W", (1, 6, 1, 1))])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm_over_channels(shape: str, wide: tuple[int, ...], affine: bool) -> None:
    tail = "w = Mul(n, g) y = Add(w, b)" if affine else "y = Neg(n)"
    arrays = {"g": rand(0, *wide), "b": rand(1, *wide)} if affine else {}
    applied = check(FUSE_LAYER_NORM, chain(f"{WAYS[0]} {tail}", (1,), shape=shape, **arrays), 1)
    left = {"Mul": 1, "Transpose": 2, "LayerNormalization": 1} | ({} if affine else {"Neg": 1})
    assert ops(applied.model) == left


def test_names_made_for_transposes_are_free() -> None:
    body = f"{WAYS[0]} y_transpose = Neg(n) q = Mul(n, g) n_transpose = Add(q, y_transpose) y = Neg(n_transpose)"
    assert apply(FUSE_LAYER_NORM, chain(body, (1,), shape="2,6,4,5", g=rand(0, 6, 1, 1))).count == 1


OUT = f"{MEANS} i = Reciprocal(r)"


@pytest.mark.parametrize(
    "tail",
    [
        "k = Mul(i, g) o = Mul(h, k) q = Mul(m, k) s = Sub(b, q) y = Add(o, s)",
        "k = Mul(g, i) o = Mul(k, h) q = Mul(k, m) s = Sub(b, q) y = Add(s, o)",
        "o = Mul(h, i) q = Mul(m, i) s = Sub(b, q) y = Add(o, s)",
        "k = Mul(i, g) o = Mul(h, k) q = Mul(m, k) y = Sub(o, q)",
    ],
)
@pytest.mark.parametrize("over", ["last", "spatial"])
def test_multiplied_out(tail: str, over: str) -> None:
    shape, axes, pass_, op = {
        "last": ((5,), (-1,), FUSE_LAYER_NORM, "LayerNormalization"),
        "spatial": ((3, 1, 1), (2, 3), FUSE_INSTANCE_NORM, "InstanceNormalization"),
    }[over]
    words = set(re.findall(r"\w+", tail))
    arrays = {n: rand(j, *shape, low=0.5, high=2) for j, n in enumerate("gb") if n in words}
    model = chain(f"{OUT} {tail}", axes, **arrays)
    assert ops(check(pass_, model, 1).model) == {"Mul": 1, op: 1}


def test_multiplied_out_with_a_scale_of_another_axis_or_shared() -> None:
    tail = "k = Mul(i, g) o = Mul(h, k) q = Mul(m, k) s = Sub(b, q) y = Add(o, s)"
    applied = check(FUSE_LAYER_NORM, chain(f"{OUT} {tail}", g=rand(0, 4, 1), b=rand(1, 5)), 0)
    assert "vary along another axis" in applied.reason
    shared = tail.replace("y = Add(o, s)", "z = Add(o, s) y = Add(z, q)")
    assert "another consumer" in check(FUSE_LAYER_NORM, chain(f"{OUT} {shared}", g=rand(0, 5), b=rand(1, 5)), 0).reason
    wrong = tail.replace("Mul(m, k)", "Mul(v, k)")
    check(FUSE_LAYER_NORM, chain(f"{OUT} {wrong}", g=rand(0, 5), b=rand(1, 5)), 0)


NOT_LAYER_NORM = [
    MEANS.replace("ReduceMean(p, axes)", "ReduceMean(p, other)") + " y = Div(d, r)",
    MEANS.replace("Pow(d, two)", "Pow(d, three)") + " y = Div(d, r)",
    MEANS.replace("Pow(d, two)", "Mul(d, h)") + " y = Div(d, r)",
    MEANS.replace("Add(v, eps)", "Add(v, zero)") + " y = Div(d, r)",
    MEANS.replace("Sub(h, m)", "Sub(m, h)") + " y = Div(d, r)",
    MEANS.replace("ReduceMean(p, axes)", "ReduceSum(p, axes)") + " y = Div(d, r)",
    f"{MEANS} y = Div(h, r)",
    f"{MEANS} y = Mul(d, r)",
]


@pytest.mark.parametrize("body", NOT_LAYER_NORM)
@pytest.mark.parametrize("pass_", [FUSE_LAYER_NORM, FUSE_INSTANCE_NORM])
def test_what_is_no_normalization(body: str, pass_: Pass) -> None:
    arrays = {"other": ints(2)} if "other" in body else {}
    check(pass_, chain(body, (2, 3) if pass_ is FUSE_INSTANCE_NORM else (-1,), **arrays), 0)


@pytest.mark.parametrize("axes", [(0,), (1, 2), (0, 3), (2,)])
def test_other_axes_stay(axes: tuple[int, ...]) -> None:
    check(FUSE_LAYER_NORM, chain(WAYS[0].replace("n =", "y ="), axes), 0)


@pytest.mark.parametrize("name", ["m", "d", "p", "v", "a", "r"])
def test_shared_and_returned_values_are_refused(name: str) -> None:
    applied = check(FUSE_LAYER_NORM, chain(f"{WAYS[0]} y = Add(n, {name})"), 0)
    assert "another consumer" in applied.reason
    text = f"g (float[2,5] h) => (float[2,5] n, float[2,k] {name}) {{ {WAYS[0]} }}"
    numbers = {"two": np.array(2, F), "eps": np.array(1e-5, F), "axes": ints(-1)}
    assert "graph output" in check(FUSE_LAYER_NORM, inferred(text, **numbers), 0).reason


def test_unknown_sizes_types_and_large_scales_are_refused() -> None:
    body = WAYS[0].replace("n =", "y =")
    assert "the normalized size is not known" in check(FUSE_LAYER_NORM, chain(body, shape="2,N"), 0).reason
    assert "type is not float32" in check(FUSE_LAYER_NORM, chain(body, dtype="double"), 0).reason
    model = chain(body, (2, 3), shape="1,1,300,300")
    assert "large constant of ones" in check(FUSE_LAYER_NORM, model, 0).reason


def test_dims_that_are_not_kept_stay() -> None:
    text = """g (float[4,4] h) => (float[4,4] y) {
        m = ReduceMean<keepdims = 0>(h, axes) d = Sub(h, m) p = Pow(d, two) v = ReduceMean<keepdims = 0>(p, axes)
        a = Add(v, eps) r = Sqrt(a) y = Div(d, r) }"""
    check(FUSE_LAYER_NORM, inferred(text, two=np.array(2, F), eps=np.array(1e-5, F), axes=ints(-1)), 0)


def test_off_for_targets_that_want_it_spelled_out() -> None:
    model, pi = chain(WAYS[0].replace("n =", "y =")), load_target("raspberry-pi-5")
    assert apply(FUSE_LAYER_NORM, model, pi).count == 1
    refused = apply(FUSE_LAYER_NORM, model, dataclasses.replace(pi, opset_max=16))
    assert refused.reason == "raspberry-pi-5 reads opset 16; LayerNormalization came with 17"


def test_large_offsets_and_a_tiny_epsilon() -> None:
    body = "big = Add(h, offset) " + WAYS[0].replace("(h, axes)", "(big, axes)").replace("Sub(h,", "Sub(big,")
    arrays = {"offset": np.array(400, F), "eps": np.array(1e-12, F)}
    applied = check(dataclasses.replace(FUSE_LAYER_NORM, tolerance=1e-3), chain(f"{body} y = Neg(n)", **arrays), 1)
    assert node(applied.model, "LayerNormalization").attributes["epsilon"].as_float() == pytest.approx(1e-12, rel=1e-6)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("affine", [True, False])
def test_instance_norm(way: str, affine: bool) -> None:
    tail = "w = Mul(n, g) y = Add(w, b)" if affine else "y = Neg(n)"
    arrays = {"g": rand(0, 3, 1, 1), "b": rand(1, 1, 3, 1, 1)} if affine else {}
    applied = check(FUSE_INSTANCE_NORM, chain(f"{way} {tail}", (3, 2), **arrays), 1)
    assert ops(applied.model) == {"Mul": 1, "InstanceNormalization": 1} | ({} if affine else {"Neg": 1})


def test_group_norm_between_reshapes() -> None:
    body = f"q = Reshape(x, there) {WAYS[0].replace('(h,', '(q,')} s = Reshape(n, back) w = Mul(s, g) y = Add(w, b)"
    arrays = {"there": ints(0, 2, -1), "back": ints(2, 6, 4, 5), "g": rand(0, 6, 1, 1), "b": rand(1, 6, 1, 1)}
    model = chain(body, shape="2,6,4,5", **arrays)
    check(FUSE_LAYER_NORM, model, 0)
    assert ops(check(FUSE_INSTANCE_NORM, model, 1).model)["InstanceNormalization"] == 1


def test_one_spatial_axis_alone_is_a_layer_norm() -> None:
    model = chain(WAYS[0].replace("n =", "y ="), shape="2,3,5")
    check(FUSE_INSTANCE_NORM, model, 0)
    check(FUSE_LAYER_NORM, model, 1)


def test_instance_norm_refuses_unknown_channels_types_and_shared_values() -> None:
    body = WAYS[0].replace("n =", "y =")
    assert "channels is not known" in check(FUSE_INSTANCE_NORM, chain(body, (2, 3), shape="2,C,4,5"), 0).reason
    assert "type is not float32" in check(FUSE_INSTANCE_NORM, chain(body, (2, 3), dtype="double"), 0).reason
    shared = chain(f"{WAYS[0]} y = Add(n, d)", (2, 3))
    assert "another consumer" in check(FUSE_INSTANCE_NORM, shared, 0).reason


SQUARE = "p = Pow(h, two) v = ReduceMean(p, axes) a = Add(v, eps) r = Sqrt(a)"
FUSED = {"Pow": 1, "ReduceMean": 1, "Add": 1, "Sqrt": 1, "Div": 1}


@pytest.mark.parametrize(
    "way",
    [
        f"{SQUARE} i = Reciprocal(r) n = Mul(h, i)",
        f"{SQUARE} i = Div(one, r) n = Mul(i, h)",
        SQUARE.replace("Pow(h, two)", "Mul(h, h)") + " n = Div(h, r)",
        SQUARE.replace("Sqrt(a)", "Pow(a, minus_half)") + " n = Mul(h, r)",
    ],
)
def test_rms_norm(way: str) -> None:
    applied = check(RESPELL_RMS_NORM, chain(f"{way} y = Mul(n, g)", g=rand(0, 5)), 1)
    assert ops(applied.model) == FUSED | {"Mul": 2}
    assert initializer(applied.model, "n_epsilon") == np.array(1e-5, F)
    check(RESPELL_RMS_NORM, apply_all((*NORMALIZE, *FUSIONS), applied.model), 0)


def test_rms_norm_that_is_spelled_so_already_or_has_no_scale_or_is_centered() -> None:
    check(RESPELL_RMS_NORM, chain(f"{SQUARE} n = Div(h, r) y = Mul(n, g)", g=rand(0, 5)), 0)
    bare = chain(f"{SQUARE} i = Reciprocal(r) y = Mul(h, i)")
    assert "no constant scale follows" in check(RESPELL_RMS_NORM, bare, 0).reason
    check(RESPELL_RMS_NORM, chain(f"{WAYS[1]} y = Mul(n, g)", g=rand(0, 5)), 0)
    double = chain(
        f"{SQUARE} i = Reciprocal(r) n = Mul(h, i) y = Mul(n, g)", dtype="double", g=rand(0, 5, dtype="float64")
    )
    assert "type is not float32" in check(RESPELL_RMS_NORM, double, 0).reason
    shared = chain(f"{SQUARE} i = Reciprocal(r) n = Mul(h, i) q = Mul(n, g) y = Add(q, p)", g=rand(0, 5))
    assert "another consumer" in check(RESPELL_RMS_NORM, shared, 0).reason


@pytest.mark.parametrize("body", [f"{SQUARE} n = Div(h, r) y = Mul(n, g)", f"{WAYS[0]} y = Mul(n, g)"])
def test_a_mean_of_a_normalization_does_not_become_a_pool(body: str) -> None:
    applied = check(MEAN_TO_POOL, chain(body, shape="2,3,5", g=rand(0, 5)), 0)
    assert "it is part of a normalization" in applied.reason


def test_planted_errors_are_caught() -> None:
    model = chain(f"{WAYS[0]} y = Mul(n, g)", g=rand(0, 5))
    wrong = chain("y = LayerNormalization<epsilon = 0.001>(h, g)", g=rand(0, 5))
    with pytest.raises(AssertionError):
        assert_equal(model, wrong, FUSE_LAYER_NORM.tolerance)
    model = chain(f"{SQUARE} n = Div(h, r) y = Mul(n, g)", g=rand(0, 5))
    with pytest.raises(AssertionError):
        assert_equal(model, wrong, RESPELL_RMS_NORM.tolerance)
    model = chain(f"{WAYS[0]} y = Mul(n, g)", (2, 3), g=rand(0, 3, 1, 1))
    wrong = chain("y = InstanceNormalization<epsilon = 0.001>(h, g, b)", g=rand(0, 3), b=np.zeros(3, F))
    with pytest.raises(AssertionError):
        assert_equal(model, wrong, FUSE_INSTANCE_NORM.tolerance)
