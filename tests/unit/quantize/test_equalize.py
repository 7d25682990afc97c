from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from onnx import helper

from edgeopt.backends import onnxruntime as backend
from edgeopt.errors import CalibrationError
from edgeopt.interpreter import Interpreter
from edgeopt.model import Model
from edgeopt.quantize import Calibrated, Choice, calibrate, quantize
from edgeopt.quantize.equalize import MOST, Equalized, equalize
from edgeopt.quantize.moments import collect_moments
from edgeopt.target import Int8Scheme

from . import nets

SCHEME = Int8Scheme(activation="uint8")
GAINS = np.geomspace(0.05, 1, 12).astype(np.float32)


def conv(name: str, source: str, weight: str, target: str, **attributes: object) -> object:
    return helper.make_node("Conv", [source, weight, f"{weight}_b"], [target], name=name, **attributes)


def chain(middle: list, width: int = 12, extra: dict | None = None, inner: dict | None = None) -> Model:
    """Conv, something in between that reads ``a`` and makes ``m``, Conv; the channels between differ 20-fold."""
    first = nets.normal(1, 12, 3, 3, 3) * GAINS[:, None, None, None]
    last = nets.normal(3, 6, width, 1, 1)
    last[:, :12] /= GAINS[:width, None, None]  # what is quiet matters as much
    arrays = {
        "w1": first,
        "w1_b": nets.normal(2, 12, fan=1) * GAINS * 0.3,
        "w2": last,
        "w2_b": nets.normal(4, 6, fan=1),
        **(extra or {}),
    }
    nodes = [conv("one", "x", "w1", "a", pads=[1] * 4), *middle, conv("two", "m", "w2", "y")]
    return nets.make(nodes, [("x", ["N", 3, 8, 8])], [("y", ["N", 6, None, None])], arrays)


def relu() -> Model:
    return chain([helper.make_node("Relu", ["a"], ["m"], name="act")])


def pooled() -> Model:
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    return chain(
        [
            helper.make_node("LeakyRelu", ["a"], ["r"], name="act", alpha=0.1),
            helper.make_node("MaxPool", ["r"], ["p"], name="max", **pool),
            helper.make_node("AveragePool", ["p"], ["m"], name="mean", **pool),
        ]
    )


def depthwise() -> Model:
    extra = {"wd": nets.normal(6, 12, 1, 3, 3), "wd_b": nets.normal(7, 12, fan=1)}
    middle = [
        helper.make_node("Relu", ["a"], ["r"], name="act"),
        conv("deep", "r", "wd", "d", group=12, pads=[1] * 4),
        helper.make_node("Relu", ["d"], ["m"], name="act2"),
    ]
    return chain(middle, extra=extra)


def grouped() -> Model:
    extra = {"wg": nets.normal(6, 8, 3, 3, 3), "wg_b": nets.normal(7, 8, fan=1)}
    middle = [helper.make_node("Relu", ["a"], ["r"], name="act"), conv("group", "r", "wg", "m", group=4, pads=[1] * 4)]
    return chain(middle, width=8, extra=extra)


def residual() -> Model:
    """The sum is read again by its own branch: all its terms carry one factor a channel."""
    extra = {"wr": nets.normal(6, 12, 12, 1, 1) * GAINS[:, None, None, None], "wr_b": nets.normal(7, 12, fan=1) * GAINS}
    middle = [
        helper.make_node("Relu", ["a"], ["r"], name="act"),
        conv("branch", "r", "wr", "b"),
        helper.make_node("Add", ["b", "r"], ["s"], name="sum"),
        helper.make_node("Relu", ["s"], ["m"], name="act2"),
    ]
    return chain(middle, extra=extra)


def joined() -> Model:
    extra = {"wj": nets.normal(6, 5, 3, 3, 3) * 0.2, "wj_b": nets.normal(7, 5, fan=1) * 0.1}
    middle = [
        conv("other", "x", "wj", "o", pads=[1] * 4),
        helper.make_node("Concat", ["a", "o"], ["c"], name="cat", axis=1),
        helper.make_node("Relu", ["c"], ["m"], name="act"),
    ]
    return chain(middle, width=17, extra=extra)


def classifier() -> Model:
    """Through global pooling and a Flatten into a Gemm."""
    arrays = {
        "w1": nets.normal(1, 12, 3, 3, 3) * GAINS[:, None, None, None],
        "w1_b": nets.normal(2, 12, fan=1) * GAINS,
        "wf": nets.normal(3, 12, 5) / GAINS[:, None],
        "wf_b": nets.normal(4, 5),
    }
    nodes = [
        conv("one", "x", "w1", "a", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["r"], name="act"),
        helper.make_node("GlobalAveragePool", ["r"], ["g"], name="pool"),
        helper.make_node("Flatten", ["g"], ["f"], name="flat"),
        helper.make_node("Gemm", ["f", "wf", "wf_b"], ["y"], name="fc"),
    ]
    return nets.make(nodes, [("x", ["N", 3, 8, 8])], [("y", ["N", 5])], arrays)


NETS = {n.__name__: n for n in (relu, pooled, depthwise, grouped, residual, joined, classifier)}


def samples(model: Model, count: int = 24, seed: int = 0, size: float = 1.0) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    shape = [d if isinstance(d, int) else 1 for d in model.inputs[0].shape]
    return [{"x": (rng.uniform(-1, 1, shape) * size).astype(np.float32)} for _ in range(count)]


def calibrated(model: Model, data: list[dict[str, np.ndarray]]) -> Calibrated:
    found = calibrate(model, backend.TABLE, SCHEME, data)
    assert found is not None
    return found


def equalized(model: Model, data: list[dict[str, np.ndarray]], strength: float = 0.5) -> Equalized:
    found = equalize(model, calibrated(model, data).placement, lambda: data, strength=strength)
    assert isinstance(found, Equalized), found
    return found


def differences(one: Model, other: Model, data: list[dict[str, np.ndarray]]) -> tuple[float, float]:
    """Largest difference of the outputs, and their largest magnitude."""
    first, second = Interpreter(one), Interpreter(other)
    runs = [(first.run(f)["y"], second.run(f)["y"]) for f in data]
    return max(float(np.abs(a - b).max()) for a, b in runs), max(float(np.abs(a).max()) for a, _ in runs)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_the_function_stays_the_same(name: str, strength: float) -> None:
    """On any input, ten times as large as those seen too."""
    model = NETS[name]()
    found = equalized(model, samples(model), strength)
    assert found.channels >= 8
    assert 1 < found.widest <= MOST
    difference, magnitude = differences(model, found.model, samples(model, 8, 5, size=10.0))
    assert difference <= 2e-5 * magnitude


@pytest.mark.parametrize("name", NETS)
def test_int8_gains(name: str) -> None:
    model = NETS[name]()
    data, other = samples(model), samples(model, 16, 9)
    plain = quantize(calibrated(model, data), Choice()).model
    better = quantize(calibrated(equalized(model, data).model, data), Choice()).model
    assert square(model, better, other) < 0.8 * square(model, plain, other)


def square(model: Model, test: Model, data: list[dict[str, np.ndarray]]) -> float:
    one, other = Interpreter(model), Interpreter(test)
    return float(np.mean([(one.run(f)["y"] - other.run(f)["y"]) ** 2 for f in data]))


def clipped(bound: float) -> Model:
    extra = {"low": np.float32(0), "high": np.float32(bound)}
    return chain([helper.make_node("Clip", ["a", "low", "high"], ["m"], name="act")], extra=extra)


def test_before_a_clip_only_quiet_channels_are_scaled_and_only_up_to_its_bound() -> None:
    model = clipped(2.0)
    data = samples(model)
    found = equalized(model, data, strength=1.0)
    difference, magnitude = differences(model, found.model, data)
    assert difference <= 2e-5 * magnitude
    inner = Interpreter(model, tensors=["m"])
    peaks = np.max([inner.run(f)["m"].max((0, 2, 3)) for f in data], axis=0)
    before, after = (weight(m) for m in (model, found.model))
    factors = np.abs(after).max((1, 2, 3)) / np.abs(before).max((1, 2, 3))
    assert (factors >= 1 - 1e-6).all()
    assert (factors * peaks <= 2.0 * (1 + 1e-5)).all()
    assert factors[0] > 1.5
    wide, _ = differences(model, found.model, samples(model, 8, 5, size=3.0))
    assert wide > 100 * difference, "beyond what was seen the Clip cuts earlier: the oracle can tell"


def weight(model: Model) -> np.ndarray:
    first = next(n for n in model.graph if n.name == "one")
    return first.inputs[1].const_value.numpy()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("op", "attributes"), [("Sigmoid", {}), ("Softplus", {}), ("Tanh", {}), ("Elu", {}), ("Softmax", {"axis": 1})]
)
def test_what_is_not_homogeneous_is_left_alone(op: str, attributes: dict) -> None:
    model = chain([helper.make_node(op, ["a"], ["m"], name="act", **attributes)])
    data = samples(model)
    found = equalize(model, calibrated(model, data).placement, lambda: data)
    if isinstance(found, Equalized):
        difference, magnitude = differences(model, found.model, samples(model, 8, 5, size=10.0))
        assert difference <= 2e-5 * magnitude


def test_a_clip_that_lets_negative_values_through_is_left_alone() -> None:
    extra = {"low": np.float32(-1), "high": np.float32(1)}
    model = chain([helper.make_node("Clip", ["a", "low", "high"], ["m"], name="act")], extra=extra)
    data = samples(model)
    assert isinstance(equalize(model, calibrated(model, data).placement, lambda: data), str)


def test_a_graph_output_in_between_keeps_its_values() -> None:
    model = relu()
    for node in model.graph:
        if node.op_type == "Relu":
            model.graph.outputs.append(node.outputs[0])
    data = samples(model)
    assert isinstance(equalize(model, calibrated(model, data).placement, lambda: data), str)


def test_a_weight_of_two_operators_gets_factors_of_its_own_in_each() -> None:
    arrays = {
        "w1": nets.normal(1, 6, 3, 1, 1) * np.geomspace(0.05, 1, 6).astype(np.float32)[:, None, None, None],
        "w2": nets.normal(3, 6, 6, 1, 1),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="one"),
        helper.make_node("Relu", ["a"], ["r"], name="r1"),
    ]
    nodes += [
        helper.make_node("Conv", ["r", "w2"], ["b"], name="two"),
        helper.make_node("Relu", ["b"], ["s"], name="r2"),
    ]
    nodes += [helper.make_node("Conv", ["s", "w2"], ["y"], name="three")]
    model = nets.make(nodes, [("x", ["N", 3, 8, 8])], [("y", ["N", 6, 8, 8])], arrays)
    found = equalized(model, samples(model))
    difference, magnitude = differences(model, found.model, samples(model, 8, 5, size=10.0))
    assert difference <= 2e-5 * magnitude


def test_moments_follow_from_those_before() -> None:
    model = grouped()
    data = samples(model)
    before = calibrated(model, data)
    found = equalized(model, data)
    moments = [
        collect_moments(m, [n for n in m.graph if n.op_type == "Conv"], lambda: data)
        for m in (before.model, found.model)
    ]
    derived = found.moments(moments[0])
    assert set(found.read) == {"group", "two"}
    for key, wanted in moments[1].items():
        scale = float(np.abs(wanted.second).max())
        np.testing.assert_allclose(derived[key].second, wanted.second, atol=2e-5 * scale)
        np.testing.assert_allclose(derived[key].first, wanted.first, rtol=1e-3, atol=1e-4 * wanted.count)
        assert derived[key].count == wanted.count


def test_order_of_samples_has_no_influence() -> None:
    model = residual()
    data = samples(model)
    one, other = (equalized(model, d).model for d in (data, data[::-1]))
    for first, second in zip(one.graph.initializers.values(), other.graph.initializers.values(), strict=True):
        np.testing.assert_array_equal(first.const_value.numpy(), second.const_value.numpy())  # type: ignore[union-attr]


def test_no_samples() -> None:
    model = relu()
    placement = calibrated(model, samples(model)).placement
    with pytest.raises(CalibrationError):
        equalize(model, placement, list)


def test_a_planted_factor_on_one_side_is_caught() -> None:
    model = relu()
    found = equalized(model, samples(model))
    broken = dataclasses.replace(found, model=found.model.clone())
    for node in broken.model.graph:
        if node.name == "two":
            original = next(n for n in model.graph if n.name == "two")
            name = str(original.inputs[1].name)  # type: ignore[union-attr]
            array = model.graph.initializers[name].const_value
            node.inputs[1].const_value = array  # type: ignore[union-attr]
    difference, magnitude = differences(model, broken.model, samples(model, 4, 5))
    assert difference > 0.01 * magnitude
