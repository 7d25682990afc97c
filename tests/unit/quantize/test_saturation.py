"""Q06: VPMADDUBSW adds pairs of u8*s8 products into 16 bits and saturates; processors without VNNI compute so."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from edgeopt.backends import onnxruntime as backend
from edgeopt.interpreter import Interpreter
from edgeopt.model import Model, node_key
from edgeopt.quantize import Choice, calibrate, quantize
from edgeopt.quantize.moments import collect_moments
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


def layers() -> Model:
    """Conv, Relu, Conv, pooling and Gemm, whose weights and activations all lie near their maximum."""
    rng = np.random.default_rng(3)
    arrays = {
        "w0": rng.uniform(0.9, 1.0, (8, 3, 3, 3)).astype(np.float32),
        "w1": rng.uniform(0.9, 1.0, (12, 8, 1, 1)).astype(np.float32),
        "w2": (rng.uniform(0.9, 1.0, (10, 12)) * rng.choice([-1, 1], (10, 1))).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c0"], name="c0", kernel_shape=[3, 3], strides=[2, 2]),
        helper.make_node("Relu", ["c0"], ["r0"], name="r0"),
        helper.make_node("Conv", ["r0", "w1"], ["c1"], name="c1", kernel_shape=[1, 1]),
        helper.make_node("GlobalAveragePool", ["c1"], ["p"], name="p"),
        helper.make_node("Flatten", ["p"], ["f"], name="f"),
        helper.make_node("Gemm", ["f", "w2"], ["g"], name="g", transB=1),
        helper.make_node("Neg", ["g"], ["y"], name="y"),
    ]
    return nets.make(nodes, [("x", [1, 3, 9, 9])], [("y", [1, 10])], arrays)


def saturating(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """rows [N, K] of unsigned bytes times weights [O, K] of signed ones, pairs of products cut to 16 bits."""
    odd = rows.shape[1] % 2
    rows, weights = (np.pad(a.astype(np.int64), ((0, 0), (0, odd))) for a in (rows, weights))
    products = rows[:, None, :] * weights[None, :, :]
    pairs = products.reshape(*products.shape[:2], -1, 2).sum(axis=3)
    return np.asarray(np.clip(pairs, -(2**15), 2**15 - 1).sum(axis=2))


def patches(values: np.ndarray, kernel: int, stride: int, *, channels_last: bool) -> np.ndarray:
    """What each position of a Conv without padding reads, [positions, K], in either order of K."""
    windows = np.lib.stride_tricks.sliding_window_view(values[0], (kernel, kernel), axis=(1, 2))[:, ::stride, ::stride]
    order = (1, 2, 3, 4, 0) if channels_last else (1, 2, 0, 3, 4)
    return windows.transpose(order).reshape(-1, values.shape[1] * kernel * kernel)


def worst_layer(target: str, choice: Choice, *, channels_last: bool) -> float:
    """Largest error of a layer as the old kernel computes it, relative to its peak, over the calibrated range."""
    model = layers()
    data = [{"x": np.random.default_rng(i).uniform(0.9, 1.0, (1, 3, 9, 9)).astype(np.float32)} for i in range(6)]
    calibrated = calibrate(model, backend.TABLE, load_target(target).int8, lambda: iter(data))
    assert calibrated is not None
    if choice.rounding == "second-order":
        weighted = [n for n in calibrated.placement.int8 if node_key(n) in ("c0", "c1", "g")]
        found = collect_moments(calibrated.model, weighted, lambda: iter(data), budget=2**28)
        calibrated = dataclasses.replace(calibrated, moments=found)
    made = quantize(calibrated, choice).model
    by_key = {node_key(n): n for n in made.graph}
    worst = 0.0
    for key, kernel, stride in (("c0", 3, 2), ("c1", 1, 1), ("g", 0, 0)):
        reads, stores = (by_key[key].inputs[i].producer() for i in (0, 1))  # type: ignore[union-attr]
        assert reads is not None
        assert stores is not None
        quantized, step = str(reads.inputs[0].name), constant(reads, 1)  # type: ignore[union-attr]
        zero, stored, steps = constant(reads, 2).astype(np.int64), constant(stores, 0), constant(stores, 1)
        kinds = {str(v.name): v for n in made.graph for v in n.outputs}
        assert kinds[quantized].dtype == ir.DataType.UINT8
        integers = Interpreter(made, tensors=[quantized]).run(data[0])[quantized]
        weights = stored.reshape(len(stored), -1)
        if kernel:
            rows = patches(integers, kernel, stride, channels_last=channels_last)
            if channels_last:
                weights = stored.transpose(0, 2, 3, 1).reshape(len(stored), -1)
        else:
            rows = integers
        exact = rows.astype(np.int64) @ weights.T.astype(np.int64)
        shift = int(zero) * weights.astype(np.int64).sum(axis=1)
        real, cut = ((total - shift) * float(step) * steps for total in (exact, saturating(rows, weights)))
        worst = max(worst, float(np.abs(real - cut).max() / np.abs(real).max()))
    return worst


CHOICES = {
    "plain": Choice(),
    "scales": Choice(weight_scales="mse", bias="mean"),
    "second-order": Choice(weight_scales="mse", rounding="second-order", bias="mean", ranges="mse"),
}


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("name", CHOICES)
def test_no_layer_of_a_build_for_avx2_saturates(name: str, channels_last: bool) -> None:
    assert worst_layer("x86-avx2", CHOICES[name], channels_last=channels_last) == 0.0


@pytest.mark.parametrize("channels_last", [True, False])
def test_the_same_layers_saturate_in_eight_bits(channels_last: bool) -> None:
    assert worst_layer("x86-avx512-vnni", Choice(), channels_last=channels_last) > 0.1
