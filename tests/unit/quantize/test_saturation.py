"""Q06: VPMADDUBSW adds pairs of u8*s8 products into 16 bits and saturates; processors without VNNI compute so."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from edgeopt.backends import onnxruntime as backend
from edgeopt.interpreter import Interpreter
from edgeopt.quantize import Choice, calibrate, quantize
from edgeopt.target import load_target

from . import nets

INNER, COLUMNS = 64, 16


def constant(node: ir.Node, index: int) -> np.ndarray:
    value = node.inputs[index]
    assert value is not None
    assert value.const_value is not None
    return value.const_value.numpy()


def largest_error(target: str, weights: np.ndarray) -> float:
    """Error of the emulated kernel, relative to the largest result, on activations within 5 % of their maximum."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="m")
    model = nets.make([node], [("x", [1, INNER])], [("y", [1, COLUMNS])], {"w": weights})
    rng = np.random.default_rng(1)
    data = [{"x": rng.uniform(0.95, 1.0, (1, INNER)).astype(np.float32)} for _ in range(8)]
    calibrated = calibrate(model, backend.TABLE, load_target(target).int8, iter(data))
    assert calibrated is not None
    graph = quantize(calibrated, Choice()).model.graph
    quantizer = next(n for n in graph if n.op_type == "QuantizeLinear")
    dequantizer = next(n for n in graph if n.op_type == "DequantizeLinear" and n.inputs[0].const_value is not None)  # type: ignore[union-attr]
    scale, zero = constant(quantizer, 1), constant(quantizer, 2).astype(np.int64)
    stored, steps = constant(dequantizer, 0).astype(np.int64), constant(dequantizer, 1)
    errors, peak = [], 0.0
    for feeds in data:
        integers = np.clip(np.rint(feeds["x"][0] / scale) + zero, 0, 255).astype(np.int64)
        pairs = (integers[:, None] * stored).reshape(INNER // 2, 2, COLUMNS).sum(axis=1)
        total = np.clip(pairs, -(2**15), 2**15 - 1).sum(axis=0) - zero * stored.sum(axis=0)
        expected = Interpreter(model).run(feeds)["y"][0]
        errors.append(np.abs(total * scale * steps - expected).max())
        peak = max(peak, float(np.abs(expected).max()))
    return float(max(errors)) / peak


@pytest.mark.parametrize("signs", [False, True])
def test_seven_bits_do_not_saturate(signs: bool) -> None:
    rng = np.random.default_rng(2)
    weights = rng.uniform(0.95, 1.0, (INNER, COLUMNS)).astype(np.float32)
    if signs:
        weights *= rng.choice([-1, 1], weights.shape).astype(np.float32)
    assert largest_error("x86-avx2", weights) <= 0.02


def test_eight_bits_would_saturate() -> None:
    """The oracle can fail: the profile of a processor with VNNI uses the full range, which the old kernel cuts."""
    weights = np.random.default_rng(2).uniform(0.95, 1.0, (INNER, COLUMNS)).astype(np.float32)
    assert largest_error("x86-avx512-vnni", weights) > 0.3
