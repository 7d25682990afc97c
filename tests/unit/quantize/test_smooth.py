from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from edgeopt.backends import onnxruntime as backend
from edgeopt.interpreter import Interpreter
from edgeopt.model import Model
from edgeopt.quantize import Calibrated, Choice, calibrate, quantize
from edgeopt.quantize.equalize import Equalized
from edgeopt.quantize.loudness import channel_peaks
from edgeopt.quantize.moments import collect_moments
from edgeopt.quantize.smooth import MOST, smooth
from edgeopt.target import Int8Scheme

from . import nets

WIDTH = 24


def block(*, residual: bool = False, gemm: bool = False, given: bool = False) -> Model:
    """LayerNormalization with two channels 30 times as loud as the others, and what reads it."""
    gain = np.abs(nets.normal(1, WIDTH)) + 0.5
    gain[[3, 17]] *= 30
    arrays = {
        "g": gain,
        "b": nets.normal(2, WIDTH) * gain,
        "wq": nets.normal(3, WIDTH, 16),
        "wk": nets.normal(4, WIDTH, 16),
    }
    shape: list[object] = ["N", 6, WIDTH]
    nodes = [helper.make_node("LayerNormalization", ["x", "g", "b"], ["n"], name="norm", axis=-1)]
    if gemm:
        shape = ["N", WIDTH]
        arrays |= {"wk": np.ascontiguousarray(arrays["wk"].T), "c": nets.normal(5, 16)}
        nodes.append(helper.make_node("Gemm", ["n", "wk", "c"], ["k"], name="key", transB=1))
    else:
        nodes.append(helper.make_node("MatMul", ["n", "wk"], ["k"], name="key"))
    nodes.append(helper.make_node("MatMul", ["n", "wq"], ["q"], name="query"))
    nodes.append(helper.make_node("Add", ["q", "k"], ["y"], name="sum"))
    outputs = [("y", [*shape[:-1], 16])]
    if residual:
        nodes.append(helper.make_node("Sigmoid", ["n"], ["z"], name="other"))
        outputs.append(("z", shape))
    if given:
        outputs.append(("n", shape))
    return nets.make(nodes, [("x", shape)], outputs, arrays)


def samples(model: Model, count: int = 16, seed: int = 0) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    shape = [d if isinstance(d, int) else 2 for d in model.inputs[0].shape]
    return [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(count)]


def calibrated(model: Model, data: list[dict[str, np.ndarray]]) -> Calibrated:
    found = calibrate(model, backend.TABLE, Int8Scheme(activation="uint8"), data)
    assert found is not None
    return found


def smoothed(model: Model, data: list[dict[str, np.ndarray]]) -> Equalized | str:
    return smooth(model, calibrated(model, data).placement, channel_peaks(model, data))


def error(model: Model, test: Model, data: list[dict[str, np.ndarray]]) -> float:
    one, other = Interpreter(model), Interpreter(test)
    return float(np.mean([(one.run(f)["y"].astype(np.float64) - other.run(f)["y"]) ** 2 for f in data]))


@pytest.mark.parametrize("gemm", [False, True])
def test_the_function_stays_and_int8_gains(gemm: bool) -> None:
    model = block(gemm=gemm)
    data, other = samples(model, 200), samples(model, 8, 3)
    found = smoothed(model, data)
    assert isinstance(found, Equalized)
    assert set(found.read) == {"key", "query"}
    assert 1 < found.widest <= MOST
    size = float(np.mean([Interpreter(model).run(f)["y"] ** 2 for f in other]))
    assert error(model, found.model, other) < 1e-10 * size
    plain = quantize(calibrated(model, data), Choice()).model
    better = quantize(calibrated(found.model, data), Choice()).model
    assert error(model, better, other) < 0.75 * error(model, plain, other)


@pytest.mark.parametrize("what", ["residual", "given"])
def test_a_tensor_that_others_read_is_left_alone(what: str) -> None:
    model = block(residual=what == "residual", given=what == "given")
    assert smoothed(model, samples(model)) == "what a LayerNormalization makes is read by more than products"


def test_no_normalization() -> None:
    model = nets.outputs_in_the_middle()
    rng = np.random.default_rng(0)
    data = [{"x": rng.standard_normal([1, 3, *model.inputs[0].shape[2:]]).astype(np.float32)} for _ in range(2)]  # type: ignore[list-item]
    assert smooth(model, calibrated(model, data).placement, {}) == "no LayerNormalization"


def test_moments_follow() -> None:
    model = block()
    data = samples(model)
    found = smoothed(model, data)
    assert isinstance(found, Equalized)
    before, wanted = (
        collect_moments(m, [n for n in m.graph if n.op_type == "MatMul"], lambda: data) for m in (model, found.model)
    )
    derived = found.moments(before)
    for key in wanted:
        scale = np.sqrt(wanted[key].squares)
        gap = np.abs(derived[key].second - wanted[key].second) / (scale[:, :, None] * scale[:, None, :])
        assert gap.max() < 2e-3
