"""Each rounding alone, against numpy; and which operators the ranking takes first."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeopt import loaders, quantize
from edgeopt.backends import onnxruntime
from edgeopt.interpreter import Interpreter
from edgeopt.model import node_key
from edgeopt.quantize.quantizer import tensor_params
from edgeopt.quantize.sensitivity import Sensitivity, ranking, sensitivity
from edgeopt.target import Int8Scheme

SCHEME = Int8Scheme(activation="uint8")


def calibrated(folder: Path, layers: int = 3, loud: int = 1) -> tuple[quantize.Calibrated, list[dict[str, np.ndarray]]]:
    """Gemms in a row; the weights of layer ``loud`` have one column 60 times the others in every row."""
    rng = np.random.default_rng(5)
    nodes, constants, name = [], [], "x"
    for k in range(layers):
        weight = rng.normal(size=(16, 16)).astype(np.float32) / 4
        if k == loud:
            weight[:, 3] *= 60
        bias = rng.normal(size=16).astype(np.float32)
        constants += [numpy_helper.from_array(weight, f"w{k}"), numpy_helper.from_array(bias, f"b{k}")]
        nodes.append(helper.make_node("Gemm", [name, f"w{k}", f"b{k}"], [f"g{k}"], name=f"gemm{k}", transB=1))
        name = f"g{k}" if k == layers - 1 else f"r{k}"
        if k < layers - 1:
            nodes.append(helper.make_node("Relu", [f"g{k}"], [name], name=f"relu{k}"))
    graph = helper.make_graph(
        nodes,
        "row",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16])],
        constants,
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.save(proto, folder / "row.onnx")
    feeds = [{"x": rng.normal(size=(1, 16)).astype(np.float32)} for _ in range(6)]
    found = quantize.calibrate(loaders.load(folder / "row.onnx"), onnxruntime.TABLE, SCHEME, feeds)
    assert found is not None
    return found, feeds


def energy(errors: list[np.ndarray], outputs: list[np.ndarray]) -> float:
    return float(
        sum((e.astype(np.float64) ** 2).sum() for e in errors) / sum((o.astype(np.float64) ** 2).sum() for o in outputs)
    )


def test_one_rounding_alone_is_what_numpy_says(tmp_path: Path) -> None:
    """The input's rounding and the last layer's weights, each carried through the float network."""
    found, feeds = calibrated(tmp_path)
    choice = quantize.Choice()
    seen = sensitivity(found, quantize.quantize(found, choice), feeds)
    run = Interpreter(found.model).run
    outputs = [run(f)["g2"] for f in feeds]
    grid = tensor_params(found, choice)["x"]
    rounded = [
        {"x": ((np.clip(np.rint(f["x"] / grid.scale) + grid.zero_point, 0, 255) - grid.zero_point) * grid.scale)}
        for f in feeds
    ]
    wanted = energy([run(r)["g2"] - o for r, o in zip(rounded, outputs)], outputs)
    assert seen.tensors["x"][0] == pytest.approx(wanted, rel=1e-3)

    weight = numpy_helper.to_array(
        next(i for i in onnx.load(tmp_path / "row.onnx").graph.initializer if i.name == "w2")
    )
    steps = np.abs(weight).max(axis=1, keepdims=True) / 127
    inner = Interpreter(found.model, tensors=["r1"])
    moved = [inner.run(f)["r1"] @ (np.rint(weight / steps) * steps - weight).T for f in feeds]
    assert seen.weights["gemm2"][0] == pytest.approx(energy(moved, outputs), rel=0.02)  # and the bias, by half a step


def test_all_switched_on_is_the_quantized_model(tmp_path: Path) -> None:
    """A planted error: were a rounding without a switch, the sum of all would miss it."""
    found, feeds = calibrated(tmp_path)
    quantized = quantize.quantize(found, quantize.Choice())
    seen = sensitivity(found, quantized, feeds)
    float_run, int8_run = Interpreter(found.model).run, Interpreter(quantized.model).run
    outputs = [float_run(f)["g2"] for f in feeds]
    whole = energy([int8_run(f)["g2"] - o for f, o in zip(feeds, outputs)], outputs)
    total = sum(e[0] for e in (*seen.tensors.values(), *seen.weights.values()))
    assert total == pytest.approx(whole, rel=0.5)
    assert set(seen.weights) == {"gemm0", "gemm1", "gemm2"}


def test_the_worst_operator_comes_first_and_limits_bind(tmp_path: Path) -> None:
    found, feeds = calibrated(tmp_path)
    seen = sensitivity(found, quantize.quantize(found, quantize.Choice()), feeds)
    share = dict.fromkeys(("gemm0", "gemm1", "gemm2"), 1 / 3)
    extra = {node_key(n): 3 * 256 for n in found.placement.int8}

    def ranked(errors: Sensitivity = seen, most: float = 1.0, room: float = 1e9) -> tuple[frozenset[str], ...]:
        weigh = np.ones(1)
        found_sets = ranking(found, errors, share, extra, most_macs=most, most_bytes=room, weigh=weigh)
        return tuple(keys for keys, _ in found_sets)

    sets = ranked()
    assert "gemm1" in sets[0]
    assert all(small < large for small, large in itertools.pairwise(sets))
    assert sets[-1] == {"gemm0", "gemm1", "gemm2"}
    assert all(len(keys) <= 1 for keys in ranked(most=0.4))
    assert all(len(keys) <= 2 for keys in ranked(room=2 * 768))
    planted = Sensitivity(outputs=seen.outputs, tensors={}, weights={**seen.weights, "gemm2": np.array([1e3])})
    assert ranked(planted)[0] == {"gemm2"}


def test_weights_of_an_operator_that_computes_in_float(tmp_path: Path) -> None:
    """Its bias stays as it is, and is no part of what rounding the weights changes."""
    rng = np.random.default_rng(3)
    weight = rng.normal(size=(4, 6, 2, 2)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "k"], ["c"], name="conv"),
            helper.make_node("ConvTranspose", ["c", "w", "b"], ["y"], name="up", strides=[2, 2]),
        ],
        "up",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 5, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 6, 10, 10])],
        [
            numpy_helper.from_array(rng.normal(size=(4, 3, 1, 1)).astype(np.float32), "k"),
            numpy_helper.from_array(weight, "w"),
            numpy_helper.from_array(np.full(6, 100, np.float32), "b"),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.save(proto, tmp_path / "up.onnx")
    feeds = [{"x": rng.normal(size=(1, 3, 5, 5)).astype(np.float32)} for _ in range(3)]
    found = quantize.calibrate(loaders.load(tmp_path / "up.onnx"), onnxruntime.TABLE, SCHEME, feeds)
    assert found is not None
    seen = sensitivity(found, quantize.quantize(found, quantize.Choice()), feeds)
    assert 0 < seen.weights["up"][0] < 1e-5
