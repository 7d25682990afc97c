"""AveragePool taken to the operator of opset 18, which onnxruntime computes faster."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from edgeopt.backends import onnxruntime as backend
from edgeopt.model import Model
from edgeopt.passes import apply
from edgeopt.passes.older_average_pool import OLDER_AVERAGE_POOL
from edgeopt.target import load_target

from .helpers import assert_equal, check, inferred, node, ops

POOL = "h = Sinh(x) y = AveragePool<kernel_shape=[3,3],pads=[1,1,1,1]>(h)"


def pools(body: str = POOL, dtype: str = "float", **arrays: np.ndarray) -> Model:
    return inferred(f"g ({dtype}[2,3,6,5] x) => ({dtype}[2,3,A,B] y) {{ {body} }}", **arrays)


@pytest.mark.parametrize(
    "attributes",
    [
        "kernel_shape=[3,3],pads=[1,1,1,1]",
        "kernel_shape=[3,3],pads=[1,1,1,1],count_include_pad=1",
        "kernel_shape=[2,3],strides=[2,1],dilations=[1,1]",
        'kernel_shape=[3,2],auto_pad="SAME_UPPER"',
    ],
)
def test_to_the_older_operator(attributes: str) -> None:
    applied = check(OLDER_AVERAGE_POOL, pools(f"h = Sinh(x) y = AveragePool<{attributes}>(h)"), 2)
    assert applied.model.ir.opset_imports[""] == 18
    assert ops(applied.model) == {"Sinh": 1, "AveragePool": 1}


def test_outputs_and_other_operators_survive() -> None:
    text = "g (float[2,3,6,5] x) => (float[2,3,5,4] p, float[2,3,1,1] y) { p = AveragePool<kernel_shape=[2,2]>(x) "
    model = inferred(text + "y = ReduceMean(p, axes) }", axes=np.array([2, 3]))
    applied = check(OLDER_AVERAGE_POOL, model, 2)
    assert ops(applied.model) == {"AveragePool": 1, "ReduceMean": 1}


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("y = MaxPool<kernel_shape=[2,2]>(x)", "no AveragePool with a window"),
        ("y = GlobalAveragePool(x)", "no AveragePool with a window"),
        ("y = AveragePool<kernel_shape=[2,2],dilations=[2,2]>(x)", "it is dilated"),
        (
            "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = AveragePool<kernel_shape=[2,2]>(d)",
            "no AveragePool with a window",
        ),
    ],
)
def test_refused(body: str, why: str) -> None:
    arrays = {"s": np.array(0.1, np.float32), "z": np.array(3, np.uint8)} if "Quantize" in body else {}
    assert why in check(OLDER_AVERAGE_POOL, pools(body, **arrays), 0).reason


def test_gelu_stays_one_operator() -> None:
    body = 'a = Gelu(x) b = Gelu<approximate="tanh">(a) y = AveragePool<kernel_shape=[2,2]>(b)'
    applied = check(OLDER_AVERAGE_POOL, pools(body), 2)
    assert ops(applied.model) == {"Gelu": 1, "FastGelu": 1, "AveragePool": 1}
    double = pools(body, dtype="double")
    assert "more words" in check(OLDER_AVERAGE_POOL, double, 0).reason


def test_an_older_model_stays() -> None:
    once = apply(OLDER_AVERAGE_POOL, pools()).model
    assert "at opset 18" in check(OLDER_AVERAGE_POOL, once, 0).reason


def test_profiles_that_read_newer_opsets_get_it_last() -> None:
    host = load_target("host")
    named = {opset: backend.passes(dataclasses.replace(host, opset_max=opset))[-1].name for opset in (17, 18, 19, 20)}
    own = OLDER_AVERAGE_POOL.name
    assert named == {17: "lower-opset-17", 18: "lower-opset-18", 19: own, 20: own}


def test_a_planted_error_is_caught() -> None:
    model = pools()
    after = apply(OLDER_AVERAGE_POOL, model).model
    node(after, "AveragePool").op_type = "MaxPool"
    with pytest.raises(AssertionError):
        assert_equal(model, after, OLDER_AVERAGE_POOL.tolerance)
