from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from onnx import helper

from edgeopt.backends import onnxruntime as backend
from edgeopt.errors import CalibrationError
from edgeopt.interpreter import Interpreter
from edgeopt.model import Model
from edgeopt.quantize import Calibrated, Choice, calibrate, quantize, weights
from edgeopt.quantize.empirical import PASSES, _depths, measure_shifts
from edgeopt.target import Int8Scheme

from . import nets

SCHEME = Int8Scheme(activation="uint8")
CHOICE = Choice(bias="mean", ranges="percentile", percentile=97.0)
"""Clipping shifts the mean of what is quantized, which no correction of weights sees."""


def chain(length: int) -> Model:
    """Conv and Relu, again and again; then a Gemm."""
    nodes, arrays, source = [], {}, "x"
    for i in range(length):
        arrays |= {
            f"w{i}": np.abs(nets.normal(i, 8, 3 if i == 0 else 8, 3, 3)) * 0.5,
            f"b{i}": nets.normal(50 + i, 8, fan=1),
        }
        nodes.append(helper.make_node("Conv", [source, f"w{i}", f"b{i}"], [f"c{i}"], name=f"conv{i}", pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"], name=f"relu{i}"))
        source = f"r{i}"
    arrays |= {"wf": nets.normal(90, 8, 5), "bf": nets.normal(91, 5)}
    nodes += [
        helper.make_node("GlobalAveragePool", [source], ["g"], name="pool"),
        helper.make_node("Flatten", ["g"], ["f"], name="flat"),
        helper.make_node("Gemm", ["f", "wf", "bf"], ["y"], name="fc"),
    ]
    return nets.make(nodes, [("x", ["N", 3, 8, 8])], [("y", ["N", 5])], arrays)


def samples(count: int = 24, seed: int = 0) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_exponential((1, 3, 8, 8)).astype(np.float32)} for _ in range(count)]


def prepared(model: Model) -> Calibrated:
    found = calibrate(model, backend.TABLE, SCHEME, samples())
    assert found is not None
    return found


def gaps(model: Model, test: Model, data: list[dict[str, np.ndarray]], name: str) -> np.ndarray:
    one, other = Interpreter(model, tensors=[name]), Interpreter(test, tensors=[name])
    return np.mean([(one.run(f)[name].astype(np.float64) - other.run(f)[name]) for f in data], axis=0)


def corrected(calibrated: Calibrated, shifts: dict[str, np.ndarray]) -> Model:
    found = dataclasses.replace(calibrated, shifts=shifts)
    return quantize(found, dataclasses.replace(CHOICE, bias="empirical")).model


@pytest.mark.parametrize("length", [1, 3, PASSES + 3])
def test_the_mean_of_the_outputs_comes_back(length: int) -> None:
    model = chain(length)
    calibrated = prepared(model)
    shifts = measure_shifts(calibrated, CHOICE, samples)
    before = np.abs(gaps(model, quantize(calibrated, CHOICE).model, samples(), "y")).max()
    after = np.abs(gaps(model, corrected(calibrated, shifts), samples(), "y")).max()
    assert after < 0.5 * before, (before, after)
    other = samples(24, 7)
    before = np.abs(gaps(model, quantize(calibrated, CHOICE).model, other, "y")).max()
    assert np.abs(gaps(model, corrected(calibrated, shifts), other, "y")).max() < 0.75 * before


def test_no_shift_is_corrected_twice() -> None:
    """All at once, each correction would take off what those before it took off too."""
    model = chain(3)
    calibrated = prepared(model)
    at_once: dict[str, np.ndarray] = {}
    plain = quantize(calibrated, CHOICE).model
    for node in model.graph:
        if node.op_type in ("Conv", "Gemm"):
            gap = gaps(model, plain, samples(), str(node.outputs[0].name))
            at_once[str(node.name)] = gap.mean(axis=(0, *range(2, gap.ndim)))
    by_depth = measure_shifts(calibrated, CHOICE, samples)
    assert set(by_depth) == set(at_once)
    left = [np.abs(gaps(model, corrected(calibrated, s), samples(), "y")).max() for s in (at_once, by_depth)]
    assert left[1] < 0.5 * left[0], left


def test_depths_are_few_and_end_with_the_last() -> None:
    calibrated = prepared(chain(11))
    for passes in (1, 2, 5, 12, 50):
        depths = _depths(calibrated, passes)
        assert len(depths) <= passes
        assert [str(n.name) for n in depths[-1]] == ["fc"]
    assert [str(d[0].name) for d in _depths(calibrated, 50)] == [*(f"conv{i}" for i in range(11)), "fc"]


def test_a_shift_that_changes_sign_is_not_taken() -> None:
    model = chain(1)
    calibrated = prepared(model)
    steady = measure_shifts(calibrated, CHOICE, samples)["fc"]
    plain = quantize(calibrated, CHOICE).model
    one, other = Interpreter(model), Interpreter(plain)
    seen = np.array([(one.run(f)["y"] - other.run(f)["y"])[0] for f in samples()], np.float64)
    assert (np.abs(steady) <= np.abs(seen).max(axis=0)).all()
    noisy = measure_shifts(calibrated, CHOICE, lambda: samples(3, 5))
    assert np.isfinite(noisy["fc"]).all()


def test_no_samples() -> None:
    with pytest.raises(CalibrationError):
        measure_shifts(prepared(chain(1)), CHOICE, list)


def test_weights_are_rounded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calibrated = prepared(chain(3))
    calls = []
    inner = weights._integers

    def counted(*args, **how):  # type: ignore[no-untyped-def]
        calls.append(args)
        return inner(*args, **how)

    monkeypatch.setattr(weights, "_integers", counted)
    measure_shifts(calibrated, CHOICE, samples)
    assert len(calls) == 4
