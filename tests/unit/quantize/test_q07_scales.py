"""Q07: whatever the calibration set holds, every scale is finite and above zero, and doubtful data is said."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from edgeopt.backends import onnxruntime as backend
from edgeopt.interpreter import Interpreter
from edgeopt.quantize import Choice, calibrate, quantize
from edgeopt.quantize.select import METHODS
from edgeopt.target import Int8Scheme

from . import nets

RNG = np.random.default_rng(7)
ORDINARY = RNG.uniform(0, 1, (6, 1, 3, 8, 8)).astype(np.float32)


def network(bias: float = 0.0) -> nets.Model:
    """Conv, Relu, Conv; far below zero the Relu never fires."""
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["a"], name="first", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node("Conv", ["r", "w2"], ["y"], name="second", pads=[1] * 4),
    ]
    arrays = {
        "w1": nets.normal(1, 8, 3, 3, 3),
        "b1": np.full(8, bias, np.float32),
        "w2": nets.normal(2, 4, 8, 3, 3),
    }
    return nets.make(nodes, [("x", [1, 3, 8, 8])], [("y", [1, 4, 8, 8])], arrays)


@pytest.mark.parametrize("activation", ["uint8", "int8"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("data", "bias", "said"),
    [
        (np.zeros((4, 1, 3, 8, 8), np.float32), 0.0, "never changes in the calibration set: r (0), y (0)"),
        (np.full((4, 1, 3, 8, 8), 0.5, np.float32), 0.0, None),
        (ORDINARY[:1], 0.0, None),
        (ORDINARY, 0.0, None),
        (ORDINARY, -100.0, "never changes in the calibration set: r (0), y (0)"),
        (255 * ORDINARY, 0.0, None),
        (ORDINARY * np.float32(1e-38), 0.0, None),
        (ORDINARY * np.float32(1e36), 0.0, None),
    ],
    ids=["zero", "constant", "one sample", "ordinary", "dead relu", "pixels", "tiny", "huge"],
)
def test_q07_scales_are_finite_and_positive(
    data: np.ndarray, bias: float, said: str | None, method: str, activation: str
) -> None:
    model = network(bias)
    found = calibrate(model, backend.TABLE, Int8Scheme(activation=activation), ({"x": x} for x in data))
    assert found is not None
    made = quantize(found, Choice(ranges=method, percentile=99.0))
    scales = [
        node.inputs[1].const_value.numpy()  # type: ignore[union-attr]
        for node in made.model.graph
        if node.op_type in ("QuantizeLinear", "DequantizeLinear")
    ]
    assert len(scales) >= 5
    for scale in scales:
        assert np.isfinite(scale).all()
        assert (scale > 0).all()
    assert [w.startswith(said or "?") for w in made.warnings] == ([True] if said else [])
    expected, got = (Interpreter(m).run({"x": data[-1]})["y"] for m in (model, made.model))
    assert np.isfinite(got).all()
    if method == "min-max":
        assert np.abs(expected - got).max() <= 0.03 * np.abs(expected).max() + 1e-20
