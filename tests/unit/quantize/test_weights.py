from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from edgeopt.backends import onnxruntime as backend
from edgeopt.interpreter import Interpreter
from edgeopt.model import Model, node_key
from edgeopt.quantize import Calibrated, Choice, QuantizedModel, calibrate, quantize
from edgeopt.quantize.moments import collect_moments
from edgeopt.quantize.weights import layout_of
from edgeopt.target import Int8Scheme

from . import nets

COARSE = Int8Scheme(activation="uint8", weight_bits=4)
"""Four bits: what rounding does stands out from what 8-bit activations do."""

OPERATORS: dict[str, Callable[[], Model]] = {}


def conv(name: str, channels: int, outputs: int, **attributes: object) -> None:
    groups = int(attributes.get("group", 1))  # type: ignore[call-overload]

    def build() -> Model:
        return nets.make(
            [nets.helper.make_node("Conv", ["x", "w", "b"], ["y"], name="op", pads=[1] * 4, **attributes)],
            [("x", [1, channels, 12, 12])],
            [("y", [1, outputs, *([6, 6] if "strides" in attributes else [12, 12])])],
            {"w": nets.normal(5, outputs, channels // groups, 3, 3), "b": nets.normal(6, outputs, fan=1)},
        )

    OPERATORS[name] = build


conv("dense", 8, 16)
conv("strided", 8, 16, strides=[2, 2])
conv("depthwise", 16, 16, group=16)
conv("grouped", 16, 24, group=4)


def product(op: str, **attributes: int) -> Callable[[], Model]:
    def build() -> Model:
        weight = nets.normal(7, 48, 20)
        inputs = ["x", "w"] if op == "MatMul" else ["x", "w", "b"]
        arrays = {"w": np.ascontiguousarray(weight.T) if attributes.get("transB") else weight}
        if op == "Gemm":
            arrays["b"] = nets.normal(8, 20)
        node = nets.helper.make_node(op, inputs, ["y"], name="op", **attributes)
        return nets.make([node], [("x", [4, 48])], [("y", [4, 20])], arrays)

    return build


OPERATORS |= {"MatMul": product("MatMul"), "Gemm": product("Gemm"), "Gemm transposed": product("Gemm", transB=1)}


def correlated(model: Model, count: int = 48, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Inputs whose neighbours and channels go together, all above 0, as behind a Relu."""
    rng, spec = np.random.default_rng(seed), model.inputs[0]
    shape = [int(d) for d in spec.shape]  # type: ignore[arg-type]
    mixing = np.random.default_rng(99).uniform(0, 1, (shape[1], 3))
    made = []
    for _ in range(count):
        source = rng.standard_normal((shape[0], 3, *shape[2:]))
        for axis in range(2, len(shape)):
            source = source + np.roll(source, 1, axis=axis)
        values = np.einsum("kc,nc...->nk...", mixing, source) + 0.2 * rng.standard_normal(shape)
        made.append({spec.name: np.maximum(values + 0.5, 0).astype(np.float32)})
    return made


def prepared(model: Model, data: list[dict[str, np.ndarray]], scheme: Int8Scheme = COARSE) -> Calibrated:
    calibrated = calibrate(model, backend.TABLE, scheme, data)
    assert calibrated is not None
    nodes = [n for n in model.graph if n.op_type in ("Conv", "Gemm", "MatMul")]
    return dataclasses.replace(calibrated, moments=collect_moments(calibrated.model, nodes, lambda: data))


def error(model: Model, made: QuantizedModel, data: list[dict[str, np.ndarray]]) -> float:
    """Mean square of the difference."""
    reference, test = Interpreter(model), Interpreter(made.model)
    return float(np.mean([(reference.run(f)["y"].astype(np.float64) - test.run(f)["y"]) ** 2 for f in data]))


def shift(model: Model, made: QuantizedModel, data: list[dict[str, np.ndarray]]) -> float:
    """Largest mean difference of an output channel."""
    reference, test = Interpreter(model), Interpreter(made.model)
    gaps = np.mean([test.run(f)["y"].astype(np.float64) - reference.run(f)["y"] for f in data], axis=0)
    return float(np.abs(gaps.mean(axis=(0, *range(2, gaps.ndim)))).max())


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_gains_by_second_order_rounding(name: str) -> None:
    model = OPERATORS[name]()
    data = correlated(model)
    calibrated, other = prepared(model, data), correlated(model, 16, 1)
    plain = error(model, quantize(calibrated, Choice()), other)
    rounded = error(model, quantize(calibrated, Choice(rounding="second-order")), other)
    assert rounded < (0.9 if name == "depthwise" else 0.6) * plain, (rounded, plain)


@pytest.mark.parametrize("name", [n for n in OPERATORS if n != "MatMul"])
def test_the_bias_takes_the_mean_error_of_any_rounding(name: str) -> None:
    """With moments the mean is that of each tap, so padding counts; what is left comes from the activations."""
    model = OPERATORS[name]()
    data = correlated(model)
    calibrated = prepared(model, data)
    plain = shift(model, quantize(calibrated, Choice()), data)
    for rounding in ("nearest", "second-order"):
        corrected = quantize(calibrated, Choice(rounding=rounding, bias="mean"))
        assert shift(model, corrected, data) < 0.25 * plain + 2e-3


def test_a_conv_without_a_bias_gets_one() -> None:
    model = nets.make(
        [nets.helper.make_node("Conv", ["x", "w"], ["y"], name="op")],
        [("x", [1, 8, 12, 12])],
        [("y", [1, 4, 10, 10])],
        {"w": nets.normal(5, 4, 8, 3, 3)},
    )
    data = correlated(model)
    calibrated = prepared(model, data)
    plain, corrected = (quantize(calibrated, Choice(bias=bias)) for bias in ("none", "mean"))
    node = next(n for n in corrected.model.graph if n.op_type == "Conv")
    assert len(node.inputs) == 3
    assert shift(model, corrected, data) < 0.25 * shift(model, plain, data) + 2e-3


@pytest.mark.parametrize("per_channel", [True, False])
def test_searched_scales_are_no_larger_and_lose_nothing(per_channel: bool) -> None:
    weight = nets.normal(5, 16, 8, 3, 3)
    weight[:, 0, 0, 0] = 1
    model = nets.make(
        [nets.helper.make_node("Conv", ["x", "w"], ["y"], name="op")],
        [("x", [1, 8, 12, 12])],
        [("y", [1, 16, 10, 10])],
        {"w": weight},
    )
    rng = np.random.default_rng(1)
    data = [{"x": rng.standard_normal((1, 8, 12, 12)).astype(np.float32)} for _ in range(12)]
    calibrated = prepared(model, data, dataclasses.replace(COARSE, per_channel=per_channel))
    widest, searched = (quantize(calibrated, Choice(weight_scales=s)) for s in ("max", "mse"))
    for one, other in zip(weight_scales(widest), weight_scales(searched), strict=True):
        assert (other <= one).all()
        assert other.size == (16 if per_channel else 1)
    assert error(model, searched, data) < error(model, widest, data)


def weight_scales(made: QuantizedModel) -> list[np.ndarray]:
    return [
        n.inputs[1].const_value.numpy()  # type: ignore[union-attr]
        for n in made.model.graph
        if n.op_type == "DequantizeLinear" and n.inputs[0].dtype == ir.DataType.INT8  # type: ignore[union-attr]
    ]


@pytest.mark.parametrize("name", OPERATORS)
def test_rows_and_back(name: str) -> None:
    model = OPERATORS[name]()
    node = next(n for n in model.graph if node_key(n) == "op")
    weight = model.graph.initializers["w"].const_value.numpy()  # type: ignore[union-attr]
    layout = layout_of(node, weight.shape)
    assert layout is not None
    rows = layout.rows(weight)
    np.testing.assert_array_equal(layout.tensor(rows), weight)
    if name.startswith(("Gemm", "MatMul")):
        np.testing.assert_array_equal(rows[0, 3], weight[3] if name == "Gemm transposed" else weight[:, 3])


def test_a_transposed_conv_has_rows_by_output_channel() -> None:
    weight = np.arange(4 * 3 * 4, dtype=np.float32).reshape(4, 3, 2, 2)  # 4 inputs, 3 outputs of each of 2 groups
    node = ir.node("ConvTranspose", [ir.Value(name="x"), ir.Value(name="w")], attributes={"group": 2})
    layout = layout_of(node, weight.shape)
    assert layout is not None
    rows = layout.rows(weight)
    assert rows.shape == (2, 3, 8)
    np.testing.assert_array_equal(rows[1, 2].reshape(2, 2, 2), weight[2:, 2])
    np.testing.assert_array_equal(layout.tensor(rows), weight)


def test_more_nodes_in_float_use_the_same_statistics() -> None:
    model = nets.outputs_in_the_middle()
    rng = np.random.default_rng(0)
    data = [{"x": rng.standard_normal([1, 3, *model.inputs[0].shape[2:]]).astype(np.float32)} for _ in range(6)]  # type: ignore[list-item]
    calibrated = calibrate(model, backend.TABLE, Int8Scheme(activation="uint8"), data)
    assert calibrated is not None
    for node in calibrated.placement.int8:
        made = quantize(calibrated, Choice(float_nodes=frozenset({node_key(node)})))
        assert node_key(node) in made.placement.stays_float
        assert len(made.placement.int8) < len(calibrated.placement.int8)
        Interpreter(made.model).run(data[0])


ALL = Choice(rounding="second-order", weight_scales="mse", bias="mean")


def noise(model: Model, count: int, seed: int, low: float = -1.0) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    shape = [d if isinstance(d, int) else 1 for d in model.inputs[0].shape]
    return [{model.inputs[0].name: rng.uniform(low, 1, shape).astype(np.float32)} for _ in range(count)]


def everything(model: Model, data: list[dict[str, np.ndarray]], scheme: Int8Scheme) -> QuantizedModel:
    calibrated = calibrate(model, backend.TABLE, scheme, data)
    assert calibrated is not None
    nodes = [*calibrated.placement.int8, *calibrated.placement.weight_only]
    moments = collect_moments(calibrated.model, nodes, lambda: data)
    assert moments
    return quantize(dataclasses.replace(calibrated, moments=moments), ALL)


@pytest.mark.parametrize("per_channel", [True, False])
def test_q02_biases_that_dwarf_their_weights(per_channel: bool) -> None:
    model = nets.tiny_weights()
    made = everything(model, noise(model, 16, 0), Int8Scheme(activation="uint8", per_channel=per_channel))
    means = np.mean([Interpreter(made.model).run(f)["y"].mean((0, 2, 3)) for f in noise(model, 4, 1)], axis=0)
    for channel, wanted in ((0, 6.25), (2, -3.0), (3, 0.5)):
        assert abs(means[channel] - wanted) <= 0.01 * abs(wanted) + (0.03 if not per_channel else 0.0)
    for node in made.model.graph:
        if node.op_type == "DequantizeLinear" and node.inputs[0].dtype == ir.DataType.INT32:  # type: ignore[union-attr]
            assert np.abs(node.inputs[0].const_value.numpy().astype(np.int64)).max() < 2**31 - 1  # type: ignore[union-attr]


@pytest.mark.parametrize("groups", [1, 2])
def test_q01_transposed_convs_gain_too(groups: int) -> None:
    model = nets.transposed(groups)
    data, other = noise(model, 32, 0, low=0.0), noise(model, 8, 1, low=0.0)
    calibrated = calibrate(model, backend.TABLE, COARSE, data)
    assert calibrated is not None
    plain = quantize(calibrated, Choice())
    made = everything(model, data, COARSE)
    assert made.weight_scale_counts == plain.weight_scale_counts
    assert square(model, made, other) < 0.7 * square(model, plain, other)


def square(model: Model, made: QuantizedModel, data: list[dict[str, np.ndarray]]) -> float:
    name = model.outputs[0].name
    reference, test = Interpreter(model), Interpreter(made.model)
    return float(np.mean([(reference.run(f)[name].astype(np.float64) - test.run(f)[name]) ** 2 for f in data]))


@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 2.0)])
@pytest.mark.parametrize("bias", [None, (10,), (1, 10), (), (1,)])
def test_q12_gemm_in_all_its_forms(trans_b: int, alpha: float, beta: float, bias: tuple[int, ...] | None) -> None:
    model = nets.gemm(trans_b, alpha, beta, bias)
    made = everything(model, noise(model, 24, 0), Int8Scheme(activation="uint8"))
    other = noise(model, 8, 2)
    name = model.outputs[0].name
    size = np.mean([Interpreter(model).run(f)[name] ** 2 for f in other])
    assert square(model, made, other) <= 0.03**2 * size
    assert made.weight_scale_counts == {"fc": 10}


def test_two_runs_give_the_same_bytes() -> None:
    model = OPERATORS["grouped"]()
    data = correlated(model)
    choice = Choice(rounding="second-order", weight_scales="mse", bias="mean")
    one, other = (quantize(prepared(model, d), choice) for d in (data, data[::-1]))
    assert ir.to_proto(one.model.ir).SerializeToString(deterministic=True) == ir.to_proto(
        other.model.ir
    ).SerializeToString(deterministic=True)
