from __future__ import annotations

import numpy as np
import pytest

from edgeopt.passes import apply
from edgeopt.passes.infer_shapes import INFER_SHAPES
from edgeopt.passes.mean_to_pool import MEAN_TO_POOL

from .helpers import assert_equal, build, check, node, ops


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", [[2, 3], [3, 2], [-1, -2], [2, -1]])
def test_folds(keep: int, axes: list[int]) -> None:
    shape = "float[2,3,1,1]" if keep else "float[2,3]"
    text = f"g (float[2,3,4,5] x) => ({shape} y) {{ y = ReduceMean<keepdims={keep}>(x, axes) }}"
    applied = check(MEAN_TO_POOL, build(text, axes=np.array(axes)), 1)
    assert ops(applied.model) == ({"GlobalAveragePool": 1} if keep else {"GlobalAveragePool": 1, "Flatten": 1})


def test_inside_a_graph_and_with_a_symbolic_batch() -> None:
    body = "a = Relu(x) y = ReduceMean<keepdims=0>(a, axes) z = Neg(y)"
    model = build(f"g (float[N,3,4,5] x) => (float[N,3] y, float[N,3] z) {{ {body} }}", axes=np.array([2, 3]))
    check(MEAN_TO_POOL, apply(INFER_SHAPES, model).model, 1)


REFUSED = {
    "axes are not all the spatial ones": (
        "g (float[2,3,4,5] x) => (float[2,3,4,1] y) { y = ReduceMean(x, axes) }",
        [3],
    ),
    "its input is not known to have spatial axes": (
        "g (float[2,3] x) => (float[2,1] y) { y = ReduceMean(x, axes) }",
        [1],
    ),
    "type is not float32": ("g (double[2,3,4,5] x) => (double[2,3,1,1] y) { y = ReduceMean(x, axes) }", [2, 3]),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused(why: str) -> None:
    text, axes = REFUSED[why]
    applied = check(MEAN_TO_POOL, build(text, axes=np.array(axes)), 0)
    assert why in applied.reason


def test_computed_axes_are_refused() -> None:
    text = "g (float[2,3,4,5] x, int64[2] a) => (float[2,3,1,1] y) { y = ReduceMean(x, a) }"
    assert "axes are not constant" in apply(MEAN_TO_POOL, build(text)).reason


@pytest.mark.parametrize(
    "attributes",
    [
        "kernel_shape=[4,5]",
        "kernel_shape=[4,5],strides=[3,2],count_include_pad=1,ceil_mode=1,pads=[0,0,0,0]",
        'kernel_shape=[4,5],auto_pad="VALID",dilations=[1,1]',
    ],
)
def test_a_window_of_the_whole_plane(attributes: str) -> None:
    text = f"g (float[2,3,4,5] x) => (float[2,3,1,1] y) {{ y = AveragePool<{attributes}>(x) }}"
    applied = check(MEAN_TO_POOL, build(text), 1)
    assert ops(applied.model) == {"GlobalAveragePool": 1}


@pytest.mark.parametrize(
    ("attributes", "x", "y"),
    [
        ("kernel_shape=[4,4]", "float[2,3,4,5]", "float[2,3,1,2]"),
        ("kernel_shape=[4,5],pads=[0,0,1,1]", "float[2,3,4,5]", "float[2,3,2,2]"),
        ('kernel_shape=[4,5],auto_pad="SAME_UPPER"', "float[2,3,4,5]", "float[2,3,4,5]"),
        ("kernel_shape=[4,5]", "float[2,3,4,W]", "float[2,3,1,V]"),
        ("kernel_shape=[2,2],dilations=[1,2]", "float[2,3,2,3]", "float[2,3,1,1]"),
        ("kernel_shape=[4,5]", "double[2,3,4,5]", "double[2,3,1,1]"),
    ],
)
def test_other_windows_stay(attributes: str, x: str, y: str) -> None:
    text = f"g ({x} x) => ({y} y) {{ y = AveragePool<{attributes}>(x) }}"
    check(MEAN_TO_POOL, build(text), 0)


def test_a_planted_error_is_caught() -> None:
    text = "g (float[2,3,4,5] x) => (float[2,3,1,1] y) { y = AveragePool<kernel_shape=[4,5]>(x) }"
    model = build(text)
    after = apply(MEAN_TO_POOL, model).model
    node(after, "GlobalAveragePool").op_type = "GlobalMaxPool"
    with pytest.raises(AssertionError):
        assert_equal(model, after, MEAN_TO_POOL.tolerance)
