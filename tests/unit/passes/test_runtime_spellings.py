"""Rewrites that only onnxruntime wants: PRelu, Softplus, Mish, Gelu for old runtimes, Sum before LayerNormalization."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from edgeopt.backends import onnxruntime as backend
from edgeopt.model import Model
from edgeopt.passes import apply
from edgeopt.passes.gelu_to_contrib import GELU_TO_CONTRIB
from edgeopt.passes.prelu_to_max import PRELU_TO_MAX
from edgeopt.passes.spell_softplus import SPELL_SOFTPLUS
from edgeopt.passes.sum_before_layer_norm import SUM_BEFORE_LAYER_NORM
from edgeopt.target import Target, load_target

from .helpers import assert_equal, check, inferred, node, ops, rand

F = np.float32


def chain(body: str, *, shape: str = "2,3,4,5", dtype: str = "float", **arrays: np.ndarray) -> Model:
    spread = "h = Sinh(x)" if dtype == "float" else "h = Mul(x, x)"
    return inferred(f"g ({dtype}[{shape}] x) => ({dtype}[{shape}] y) {{ {spread} {body} }}", **arrays)


@pytest.mark.parametrize(("low", "high", "op"), [(-0.5, 1, "Max"), (1, 3, "Min")])
@pytest.mark.parametrize("shape", [(3, 1, 1), (1,), (1, 3, 1, 1), (5,)])
def test_prelu(low: float, high: float, op: str, shape: tuple[int, ...]) -> None:
    applied = check(PRELU_TO_MAX, chain("y = PRelu(h, s)", s=rand(0, *shape, low=low, high=high)), 1)
    assert ops(applied.model) == {"Sinh": 1, "Mul": 1, op: 1}
    assert node(applied.model, op).metadata_props["edgeopt.key"] == "PRelu:y"


@pytest.mark.parametrize(
    ("slopes", "why"),
    [
        ([0.5, 2, 0.1], "some slopes are below 1 and some above"),
        ([0.5, 0, 0.1], "a slope is 0 or infinite"),
        ([0.5, np.inf, 0.1], "a slope is 0 or infinite"),
    ],
)
def test_prelu_refused(slopes: list[float], why: str) -> None:
    applied = apply(PRELU_TO_MAX, chain("y = PRelu(h, s)", s=np.array(slopes, F).reshape(3, 1, 1)))
    assert applied.count == 0
    assert why in applied.reason


def test_prelu_refuses_types_shapes_and_computed_slopes() -> None:
    double = chain("y = PRelu(h, s)", dtype="double", s=np.full((3, 1, 1), 0.5))
    assert "type is not float32" in check(PRELU_TO_MAX, double, 0).reason
    text = "g (float[2,4] x, float[4] s) => (float[2,4] y) { y = PRelu(x, s) }"
    assert "not constant" in check(PRELU_TO_MAX, inferred(text), 0).reason
    text = "g (float[N,K] x) => (float[N,K] y) { y = PRelu(x, s) }"
    assert "shape of its input is not known" in check(PRELU_TO_MAX, inferred(text, s=np.full(4, 0.5, F)), 0, K=4).reason


EXTREME = np.array([-np.inf, -1e4, -100, -88, -20, -1, -1e-6, 0, 1e-6, 1, 15, 20, 44, 88, 100, 1e4], F)


def evaluate(model: Model, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(ir.to_proto(model.ir).SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


@pytest.mark.parametrize("body", ["y = Softplus(x)", "y = Mish(x)", "s = Softplus(x) t = Tanh(s) y = Mul(x, t)"])
def test_softplus_and_mish(body: str) -> None:
    model = inferred(f"g (float[16] x) => (float[16] y) {{ {body} }}")
    applied = check(SPELL_SOFTPLUS, model, 1)
    assert not {"Softplus", "Mish", "Tanh"} & set(ops(applied.model))
    finite = EXTREME[1:]
    before, after = evaluate(model, EXTREME)[1:], evaluate(applied.model, EXTREME)[1:]
    exact = np.log1p(np.exp(-np.abs(finite.astype(np.float64)))) + np.maximum(finite, 0)
    exact = exact if "y = Softplus" in body else finite * np.tanh(exact)
    assert np.abs(after - exact).max() <= max(2 * float(np.abs(before - exact).max()), 1e-6)


def test_mish_whose_parts_are_read_elsewhere_keeps_them() -> None:
    model = chain("s = Softplus(h) t = Tanh(s) z = Mul(t, h) y = Add(z, t)")
    applied = check(SPELL_SOFTPLUS, model, 0)
    assert "another consumer" in applied.reason
    double = chain("y = Softplus(h)", dtype="double")
    assert "type is not float32" in apply(SPELL_SOFTPLUS, double).reason
    assert "type is not float32" in apply(SPELL_SOFTPLUS, chain("y = Mish(h)", dtype="double")).reason


@pytest.mark.parametrize(("form", "op"), [("none", "Gelu"), ("tanh", "FastGelu")])
def test_gelu_for_old_runtimes(form: str, op: str) -> None:
    model, target = chain(f'y = Gelu<approximate = "{form}">(h)'), load_target("raspberry-pi-5")
    old = dataclasses.replace(target, opset_max=19)
    applied = apply(GELU_TO_CONTRIB, model, old)
    assert applied.count == 1
    assert (node(applied.model, op).domain, applied.model.ir.opset_imports["com.microsoft"]) == ("com.microsoft", 1)
    assert_equal(model, applied.model, GELU_TO_CONTRIB.tolerance)
    assert apply(GELU_TO_CONTRIB, model, dataclasses.replace(target, opset_max=20)).count == 0
    assert apply(GELU_TO_CONTRIB, model).reason == "the runtime reads Gelu of opset 20"
    double = chain("y = Gelu(h)", dtype="double")
    assert "type is not float32" in apply(GELU_TO_CONTRIB, double, old).reason


def vectorized() -> Target:
    return dataclasses.replace(load_target("x86-avx2"), arch="x86_64", isa=("avx2",), runtime={"onnxruntime": "1.32.0"})


def residual(
    body: str = "a = Add(x, h) y = LayerNormalization(a, g, b)", width: int = 64, dtype: str = "float"
) -> Model:
    kind = np.float64 if dtype == "double" else F
    words = set(re.findall(r"\w+", body))
    arrays = {n: np.asarray(rand(i, width, low=0.5, high=2), kind) for i, n in enumerate("gb") if n in words}
    return chain(body, shape=f"1,4,{width}", dtype=dtype, **arrays)


def test_sum_before_layer_norm() -> None:
    model = residual()
    applied = apply(SUM_BEFORE_LAYER_NORM, model, vectorized())
    assert applied.count == 1
    assert ops(applied.model) == {"Sinh": 1, "Sum": 1, "LayerNormalization": 1}
    assert_equal(model, applied.model, SUM_BEFORE_LAYER_NORM.tolerance)


@pytest.mark.parametrize(
    "body",
    [
        "a = Add(x, g) y = LayerNormalization(a, g, b)",
        "a = Add(x, h) n = LayerNormalization(a, g, b) y = Mul(a, n)",
        "a = Mul(x, h) y = LayerNormalization(a, g, b)",
    ],
)
def test_adds_that_the_runtime_does_not_join_stay(body: str) -> None:
    assert apply(SUM_BEFORE_LAYER_NORM, residual(body), vectorized()).count == 0


def test_sum_before_layer_norm_is_off_where_no_kernel_is_vectorized() -> None:
    target, model = vectorized(), residual()
    off = {
        "the processor is not known": None,
        "only x86 with AVX2 has a vectorized LayerNormalization": dataclasses.replace(target, isa=()),
        "onnxruntime has a vectorized LayerNormalization from 1.32 on": dataclasses.replace(
            target, runtime={"onnxruntime": "1.31.2"}
        ),
    }
    for why, other in off.items():
        assert apply(SUM_BEFORE_LAYER_NORM, model, other).reason == why
    assert apply(SUM_BEFORE_LAYER_NORM, model, load_target("raspberry-pi-5")).count == 0
    assert "not vectorized for it" in apply(SUM_BEFORE_LAYER_NORM, residual(width=16), target).reason
    assert "not vectorized for it" in apply(SUM_BEFORE_LAYER_NORM, residual(dtype="double"), target).reason


def test_the_backend_lists_them() -> None:
    names = {p.name for p in backend.passes(vectorized())}
    assert {"prelu-to-max", "spell-softplus", "spread-softmax", "gelu-to-contrib", "respell-rms-norm"} <= names


def test_planted_errors_are_caught() -> None:
    slopes = rand(0, 3, 1, 1, low=0.1, high=0.9)
    with pytest.raises(AssertionError):
        assert_equal(chain("y = PRelu(h, s)", s=slopes), chain("y = PRelu(h, s)", s=slopes * F(1.001)), 1e-5)
    with pytest.raises(AssertionError):
        assert_equal(chain("y = Softplus(h)"), chain("y = Relu(h)"), SPELL_SOFTPLUS.tolerance)
    with pytest.raises(AssertionError):
        assert_equal(residual(), residual(body="a = Sub(x, h) y = LayerNormalization(a, g, b)"), 1e-5)
