"""The float reference: inner tensors as outputs, and models that the runtime's own rewrites cannot take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from edgeopt import interpreter
from edgeopt.errors import ModelError
from edgeopt.interpreter import Interpreter
from edgeopt.model import Model, save
from tests.unit.quantize import nets


def resized() -> Model:
    """onnxruntime 1.32 pushes the second Transpose through the Resize and refuses what it made of it."""
    nodes = [
        helper.make_node("MatMul", ["x", "m"], ["t"]),
        helper.make_node("Relu", ["t"], ["r"]),
        helper.make_node("Transpose", ["t"], ["p"], perm=[0, 2, 3, 1]),
        helper.make_node("Add", ["t", "r"], ["a"]),
        helper.make_node("Resize", ["p", "", "scales"], ["u"], mode="linear"),
        helper.make_node("Sigmoid", ["u"], ["s"]),
        helper.make_node("Transpose", ["s"], ["q"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["s", "q"], ["y"]),
    ]
    arrays = {"m": nets.normal(0, 9, 6, fan=9), "scales": np.array([1, 1, 2, 2], np.float32)}
    outputs = [("y", [1, 9, 12, 12]), ("a", [1, 3, 9, 6]), ("p", [1, 9, 6, 3])]
    return nets.make(nodes, [("x", [1, 3, 9, 9])], outputs, arrays, opset=20)


def feeds() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).standard_normal((1, 3, 9, 9)).astype(np.float32)}


def test_inner_tensors_are_returned_in_the_order_asked_for() -> None:
    found = Interpreter(resized(), tensors=["r", "t"]).run(feeds())
    assert list(found) == ["r", "t"]
    assert np.array_equal(found["r"], np.maximum(found["t"], 0))


@pytest.mark.parametrize("tensor", ["t", "p", "a", "u", "s", "y"])
def test_any_tensor_can_be_asked_for(tensor: str) -> None:
    model = resized()
    found = Interpreter(model, tensors=[tensor]).run(feeds())[tensor]
    expected = feeds()["x"] @ nets.normal(0, 9, 6, fan=9)
    if tensor == "t":
        assert np.allclose(found, expected, atol=1e-5)
    assert np.isfinite(found).all()


def test_large_models_give_the_same_through_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    model = resized()
    inline = Interpreter(model).run(feeds())
    monkeypatch.setattr(interpreter, "INLINE_LIMIT", 0)
    for name, value in Interpreter(model).run(feeds()).items():
        assert np.array_equal(inline[name], value)


def test_a_model_that_loads_only_without_rewrites_is_run_without(monkeypatch: pytest.MonkeyPatch) -> None:
    model, real, levels = resized(), interpreter._session_of, []

    def failing(ort: object, model: object, settings: object) -> object:
        levels.append(settings.graph_optimization_level.name)  # type: ignore[attr-defined]
        if levels[-1] != "ORT_DISABLE_ALL":
            raise RuntimeError("[ONNXRuntimeError] : 1 : FAIL : a rewrite went wrong")
        return real(ort, model, settings)  # type: ignore[arg-type]

    expected = Interpreter(model).run(feeds())
    monkeypatch.setattr(interpreter, "_session_of", failing)
    found = Interpreter(model).run(feeds())
    assert levels[-1] == "ORT_DISABLE_ALL"
    assert max(float(np.abs(found[n] - v).max()) for n, v in expected.items()) <= 1e-5


def test_a_file_is_loaded_as_a_device_loads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(resized(), tmp_path / "m.onnx")

    def failing(*_: object) -> object:
        raise RuntimeError("TypeInferenceError in If")

    monkeypatch.setattr(interpreter, "_session_of", failing)
    with pytest.raises(ModelError, match="fewer of them with --shape"):
        Interpreter(tmp_path / "m.onnx")


def test_simulation_keeps_what_stands_in_float_in_float() -> None:
    """The runtime would round the weights of a Conv between two pairs, all of them with one scale."""
    weights = np.stack([np.full((1, 3, 3), 100.0), np.full((1, 3, 3), 0.3)]).astype(np.float32)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xr"]),
        helper.make_node("Conv", ["xr", "w"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "t", "z"], ["cq"]),
        helper.make_node("DequantizeLinear", ["cq", "t", "z"], ["y"]),
    ]
    scales = {"s": np.array(0.004, np.float32), "t": np.array(0.02, np.float32), "z": np.array(128, np.uint8)}
    shapes = [("x", [1, 1, 5, 5])], [("y", [1, 2, 3, 3])]
    model = nets.make(nodes, *shapes, {"w": weights, **scales})
    feeds = {"x": np.random.default_rng(0).uniform(-0.5, 0.5, (1, 1, 5, 5)).astype(np.float32)}
    exact = Interpreter(model, optimize=False).run(feeds)["y"][:, 1]
    np.testing.assert_allclose(Interpreter(model, simulate=True).run(feeds)["y"][:, 1], exact, atol=0.021)
    assert np.abs(Interpreter(model).run(feeds)["y"][:, 1] - exact).max() > 0.1


@pytest.mark.parametrize("two", [True, False])
def test_runs_ahead_are_the_runs(two: bool) -> None:
    runner = Interpreter(resized())
    samples = [{name: value + k for name, value in feeds().items()} for k in range(4)]
    sizes: list[int] = []
    found = list(runner.ahead(iter(samples), lambda size: sizes.append(size) or two))
    assert [fed is sample for (fed, _), sample in zip(found, samples, strict=True)] == [True] * 4
    for (_, outputs), sample in zip(found, samples):
        expected = runner.run(sample)
        assert all(np.array_equal(outputs[name], expected[name]) for name in expected)
    assert sizes == [sum(value.nbytes for value in found[0][1].values())] * 3
    assert list(runner.ahead([])) == []


def test_a_run_ahead_that_fails_is_told_at_its_sample() -> None:
    runner = Interpreter(resized())
    wrong = {name: value[..., :1] for name, value in feeds().items()}
    runs = runner.ahead([feeds(), wrong, feeds()])
    next(runs)
    with pytest.raises(ModelError, match="the model fails on a sample"):
        next(runs)
