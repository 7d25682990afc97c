"""IN11: networks captured in training mode are seen, refused, and taken to eval mode where that can be done."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from edgeopt.errors import ModelError
from edgeopt.findings import look, training
from edgeopt.interpreter import Interpreter
from edgeopt.model import Model

from . import nets


def refusals(model: Model) -> list[str]:
    return [finding.text for finding in look(model) if finding.level == "refusal"]


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        ({"norm": False}, ("live Dropout (drop)",)),
        ({"dropout": False}, ("live BatchNormalization (norm)",)),
        ({"dropout": False, "opset": 9}, ("live BatchNormalization (norm)",)),
        ({}, ("live Dropout (drop)", "live BatchNormalization (norm)")),
    ],
)
def test_live_nodes_are_named(parts: dict[str, object], names: tuple[str, ...], tmp_path: Path) -> None:
    model = nets.load(tmp_path, nets.training(**parts))
    (text,) = refusals(model)
    assert all(name in text for name in names)
    (finding,) = training.find(model)
    assert finding.remedy is not None
    assert "--force-eval" in finding.remedy


def test_a_branch_is_looked_into(tmp_path: Path) -> None:
    live = nets.node("Dropout", ["x", "", "mode"], ["t"], name="drop")
    then = nets.subgraph("t", [live], nets.value("t", [4]))
    other = nets.subgraph("e", [nets.node("Relu", ["x"], ["e"])], nets.value("e", [4]))
    proto = nets.proto(
        [nets.node("If", ["flag"], ["y"], name="choose", then_branch=then, else_branch=other)],
        [nets.value("x", [4]), nets.value("flag", [], TensorProto.BOOL)],
        [nets.value("y", [4])],
        {"mode": np.bool_(True)},
    )
    assert "drop" in refusals(nets.load(tmp_path, proto))[0]


@pytest.mark.parametrize(
    ("inputs", "opset"),
    [(["x"], 17), (["x", "ratio"], 17), (["x", "ratio", "off"], 17), (["x", "zero", "on"], 17), (["x"], 10)],
)
def test_a_dropout_that_drops_nothing_is_fine(inputs: list[str], opset: int, tmp_path: Path) -> None:
    arrays = {"ratio": np.float32(0.5), "zero": np.float32(0), "on": np.bool_(True), "off": np.bool_(False)}
    proto = nets.proto(
        [nets.node("Dropout", inputs, ["y"], name="drop")],
        [nets.value("x", [2, 4])],
        [nets.value("y", [2, 4])],
        arrays,
        opset=opset,
    )
    assert refusals(nets.load(tmp_path, proto)) == []


def test_a_batchnorm_in_eval_mode_is_fine(tmp_path: Path) -> None:
    proto = nets.training(dropout=False)
    (norm,) = [n for n in proto.graph.node if n.op_type == "BatchNormalization"]
    del norm.output[1:], norm.attribute[:]
    assert refusals(nets.load(tmp_path, proto)) == []


@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize("use", ["", "mask"])
def test_eval_mode_is_the_identity_and_the_stored_statistics(use: str, opset: int, tmp_path: Path) -> None:
    if opset == 9 and use:
        pytest.skip("no live Dropout before opset 12")
    proto = nets.training(use=use, opset=opset, dropout=opset > 9)
    model = nets.load(tmp_path, proto)
    before = onnx.load(tmp_path / "model.onnx").SerializeToString()
    changed, lines = training.to_eval(model)
    assert refusals(changed) == []
    assert refusals(model), "the model passed in was edited"
    assert onnx.load(tmp_path / "model.onnx").SerializeToString() == before
    assert [line.split(":")[0] for line in lines] == ["--force-eval"] * (1 + (opset > 9))
    x = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    found = Interpreter(changed).run({"x": x})
    arrays = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    a = x @ arrays["w"]
    n = (a - arrays["mean"]) / np.sqrt(arrays["var"] + 1e-5) * arrays["gamma"] + arrays["beta"]
    np.testing.assert_allclose(found["y"], np.maximum(n, 0), rtol=1e-4, atol=1e-5)
    if use:
        assert found["mask"].all()
        assert found["mask"].shape == (3, 8)


def test_statistics_that_are_outputs_cannot_be_taken_away(tmp_path: Path) -> None:
    model = nets.load(tmp_path, nets.training(use="running_mean"))
    with pytest.raises(ModelError, match='norm .* uses its batch statistics \\("running_mean"\\)'):
        training.to_eval(model)


def test_an_eval_network_is_handed_back(tmp_path: Path) -> None:
    model = nets.load(tmp_path, nets.fixed_batch([0, 4, 36]))
    assert training.to_eval(model) == (model, ())


@pytest.mark.parametrize("op", ["RandomNormalLike", "RandomUniformLike", "Bernoulli"])
def test_random_operators_are_refused_seeded_or_not(op: str, tmp_path: Path) -> None:
    proto = nets.proto(
        [nets.node(op, ["x"], ["n"], name="noise", seed=1.0), nets.node("Add", ["x", "n"], ["y"])],
        [nets.value("x", [4])],
        [nets.value("y", [4])],
    )
    (text,) = refusals(nets.load(tmp_path, proto))
    assert text == f"1 random operator ({op} noise): every run gives another result"
