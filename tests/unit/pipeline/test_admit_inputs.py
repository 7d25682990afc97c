"""What stands at the ends of a network, from the file to the bundle: batch, names, types and sizes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from edgeopt import bundle
from edgeopt.interpreter import Interpreter
from edgeopt.loaders import parse_shape
from tests.unit.findings import nets
from tests.unit.pipeline.builds import artifact, built, rand, refused, rms, warnings

# DY01


@pytest.mark.parametrize("target", [[1, 4, 36], [1, -1, 36]])
def test_dy01_nothing_claims_a_batch_that_is_fixed(target: list[int], tmp_path: Path) -> None:
    found = built(tmp_path, nets.fixed_batch(target))
    assert "N is declared dynamic and is fixed at 1 inside" in warnings(found)
    assert "tokens" in warnings(found)
    signature = found.manifest["signature"]
    assert signature["inputs"][0]["shape"] == [1, 3, 6, 6]
    assert signature["outputs"][0]["shape"] == [1, 36]
    graph = onnx.load(artifact(found)).graph
    assert not [d for v in (*graph.input, *graph.output) for d in v.type.tensor_type.shape.dim if d.dim_param]


def test_dy01_a_real_batch_stays_dynamic(tmp_path: Path) -> None:
    found = built(tmp_path, nets.fixed_batch([0, 4, 36]))
    assert found.manifest["signature"]["inputs"][0]["shape"] == ["N", 3, 6, 6]
    assert Interpreter(artifact(found)).run({"x": rand(0, 2, 3, 6, 6)})["y"].shape == (2, 36)


def test_dy01_a_dimension_that_was_asked_to_open_must_be(tmp_path: Path) -> None:
    shapes = dict([parse_shape("x=Mx3x6x6")])
    refused(tmp_path, nets.fixed_batch([1, 4, 36]), "M cannot be opened: a batch of 2 stops the run", shapes=shapes)


def test_dy01_a_frozen_batch_is_opened(tmp_path: Path) -> None:
    weights = {"w": rand(0, 4, 3, 3, 3)}
    conv = nets.node("Conv", ["x", "w"], ["y"], name="conv", pads=[1] * 4, strides=[2, 2])
    proto = nets.proto([conv], [nets.value("x", [10, 3, 8, 8])], [nets.value("y", [10, 4, 4, 4])], weights, opset=9)
    found = built(tmp_path, proto, shapes=dict([parse_shape("x=Nx3x16x16")]))
    assert found.manifest["signature"]["inputs"][0]["shape"] == ["N", 3, 16, 16]
    assert found.manifest["signature"]["outputs"][0]["shape"] == ["N", 4, 8, 8]
    for batch in (1, 3):
        assert Interpreter(artifact(found)).run({"x": rand(1, batch, 3, 16, 16)})["y"].shape == (batch, 4, 8, 8)


# DY04


def contract() -> onnx.ModelProto:
    arrays = {
        "top": np.float32(1.5),
        "sizes": np.array([1, 3, 4, 4], np.int64),
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64),
        "w": rand(0, 4, 3, 3, 3),
        "w2": rand(1, 5, 4),
        "k": np.array([[1, 2, 3, 4]], np.float32),
    }
    nodes = [
        nets.node("Clip", ["b_first", "", "top"], ["c"], name="clip"),
        nets.node("Resize", ["c", "", "", "sizes"], ["r"], name="resize"),
        nets.node("Pad", ["r", "pads", ""], ["p"], name="pad"),
        nets.node("Conv", ["p", "w"], ["cv"], name="conv"),
        nets.node("GlobalAveragePool", ["cv"], ["g"], name="gap"),
        nets.node("Flatten", ["g"], ["zeta"], name="flat"),
        nets.node("Cast", ["a_second"], ["af"], name="cast", to=TensorProto.FLOAT),
        nets.node("MatMul", ["af", "w2"], ["alpha"], name="mm"),
        nets.node("Identity", ["k"], ["beta"], name="constant"),
    ]
    inputs = [
        nets.value("b_first", [1, 3, 8, 8]),
        nets.value("a_second", [1, 5], TensorProto.INT64),
        nets.value("meta", [1]),
    ]
    return nets.proto(nodes, inputs, [nets.value(n, [1, 4]) for n in ("zeta", "alpha", "beta")], arrays)


@pytest.mark.parametrize("calibrated", [False, True])
def test_dy04_names_order_and_types_are_kept(calibrated: bool, tmp_path: Path) -> None:
    ids = np.random.default_rng(2).integers(-3, 4, (16, 5))
    data = {"b_first": rand(3, 16, 3, 8, 8), "a_second": ids, "meta": rand(4, 16, 1)}
    calib = nets.calibration(tmp_path / "c.npz", **data) if calibrated else None
    found = built(tmp_path, contract(), calib, target="host")
    signature = found.manifest["signature"]
    assert [(i["name"], i["dtype"]) for i in signature["inputs"]] == [
        ("b_first", "float32"),
        ("a_second", "int64"),
        ("meta", "float32"),
    ]
    assert [o["name"] for o in signature["outputs"]] == ["zeta", "alpha", "beta"]
    feeds = {"b_first": data["b_first"][:1], "a_second": ids[:1], "meta": data["meta"][:1].reshape(1)}
    expected = Interpreter(tmp_path / "net.onnx").run(feeds)
    for entry in found.manifest["artifacts"]:
        graph = onnx.load(found.root / entry["path"]).graph
        assert [i.name for i in graph.input] == ["b_first", "a_second", "meta"]
        assert [o.name for o in graph.output] == ["zeta", "alpha", "beta"]
        assert all(n.name and all(n.output) for n in graph.node)
        assert not [n for n in graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear") and not n.input[0]]
        values = Interpreter(found.root / entry["path"]).run(feeds)
        for name, reference in expected.items():
            assert rms(reference, values[name]) <= 0.03, name
        np.testing.assert_array_equal(values["beta"], [[1, 2, 3, 4]])


def test_dy04_outputs_that_alias(tmp_path: Path) -> None:
    """An output that is an input, one that repeats an input, two that are one tensor."""
    nodes = [
        nets.node("Identity", ["x"], ["copy"], name="copy"),
        nets.node("Relu", ["x"], ["r"], name="relu"),
        nets.node("Identity", ["r"], ["one"], name="one"),
        nets.node("Identity", ["r"], ["two"], name="two"),
    ]
    names = ["copy", "one", "two", "x"]
    found = built(tmp_path, nets.proto(nodes, [nets.value("x", [1, 4])], [nets.value(n, [1, 4]) for n in names]))
    assert [o["name"] for o in found.manifest["signature"]["outputs"]] == names
    x = rand(0, 1, 4)
    values = Interpreter(artifact(found)).run({"x": x})
    assert list(values) == names
    for name in names:
        np.testing.assert_array_equal(values[name], x if name in ("copy", "x") else np.maximum(x, 0))


# Q13


def test_q13_resize_keeps_float_scales_and_an_empty_roi(tmp_path: Path) -> None:
    arrays = {
        "w": rand(0, 8, 3, 3, 3) / 5,
        "roi": np.zeros(0, np.float32),
        "scales": np.array([1, 1, 2, 2], np.float32),
    }
    nodes = [
        nets.node("Conv", ["x", "w"], ["c"], name="conv"),
        nets.node("Resize", ["c", "roi", "scales"], ["y"], name="resize", mode="nearest"),
    ]
    proto = nets.proto(nodes, [nets.value("x", ["N", 3, 8, 8])], [nets.value("y", ["N", 8, 12, 12])], arrays)
    found = built(tmp_path, proto, nets.calibration(tmp_path / "c.npz", x=rand(1, 16, 3, 8, 8)))
    graph = onnx.load(artifact(found)).graph
    (resize,) = [n for n in graph.node if n.op_type == "Resize"]
    kinds = {t.name: t.data_type for t in graph.initializer}
    assert kinds[resize.input[2]] == TensorProto.FLOAT
    assert kinds.get(resize.input[1], TensorProto.FLOAT) == TensorProto.FLOAT
    feeds = {"x": rand(2, 1, 3, 8, 8)}
    assert rms(Interpreter(tmp_path / "net.onnx").run(feeds)["y"], Interpreter(artifact(found)).run(feeds)["y"]) < 0.03


def conv_of(kind: int, dtype: type) -> onnx.ModelProto:
    weights = {"w": (rand(0, 8, 3, 3, 3) / 5).astype(dtype)}
    nodes = [nets.node("Conv", ["x", "w"], ["c"], name="conv"), nets.node("Relu", ["c"], ["y"], name="relu")]
    return nets.proto(nodes, [nets.value("x", ["N", 3, 8, 8], kind)], [nets.value("y", ["N", 8, 6, 6], kind)], weights)


def test_q13_a_network_of_halves_is_called_that_and_int8_is_not_tried(tmp_path: Path) -> None:
    calib = nets.calibration(tmp_path / "c.npz", x=rand(1, 16, 3, 8, 8).astype(np.float16))
    found = built(tmp_path, conv_of(TensorProto.FLOAT16, np.float16), calib)
    assert [a["precision"] for a in found.manifest["artifacts"]] == ["float16"]
    assert "the network computes in float16: int8 is not tried on it" in warnings(found)
    assert found.manifest["signature"]["inputs"][0]["dtype"] == "float16"
    golden = np.load(found.root / found.manifest["golden"]["samples"][0]["inputs"][0])
    assert golden.dtype == np.float16
    assert bundle.verify(found.root)["ok"]


def test_q13_doubles_without_a_kernel_are_refused_with_the_node(tmp_path: Path) -> None:
    refused(tmp_path, conv_of(TensorProto.DOUBLE, np.float64), "Could not find an implementation for Conv.* 'conv'")


def test_q13_doubles_with_a_kernel_are_built(tmp_path: Path) -> None:
    proto = nets.proto(
        [nets.node("MatMul", ["x", "w"], ["y"], name="mm")],
        [nets.value("x", ["N", 8], TensorProto.DOUBLE)],
        [nets.value("y", ["N", 4], TensorProto.DOUBLE)],
        {"w": np.random.default_rng(0).normal(size=(8, 4))},
    )
    calib = nets.calibration(tmp_path / "c.npz", x=np.random.default_rng(1).normal(size=(16, 8)))
    found = built(tmp_path, proto, calib)
    assert [a["precision"] for a in found.manifest["artifacts"]] == ["float64"]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_q13_token_ids(dtype: type, tmp_path: Path) -> None:
    kind = TensorProto.INT32 if dtype is np.int32 else TensorProto.INT64
    nodes = [
        nets.node("Gather", ["table", "ids"], ["e"], name="embed"),
        nets.node("MatMul", ["e", "w"], ["y"], name="head"),
    ]
    arrays = {"table": rand(0, 40, 16), "w": rand(1, 16, 24)}
    proto = nets.proto(nodes, [nets.value("ids", ["N", "S"], kind)], [nets.value("y", ["N", "S", 24])], arrays)
    ids = np.random.default_rng(2).integers(0, 40, (16, 5)).astype(dtype)
    found = built(tmp_path, proto, nets.calibration(tmp_path / "c.npz", ids=ids))
    assert found.manifest["signature"]["inputs"][0]["dtype"] == np.dtype(dtype).name
    assert found.manifest["signature"]["inputs"][0]["shape"] == ["N", "S"]
    feeds = {"ids": ids[:2]}
    assert rms(Interpreter(tmp_path / "net.onnx").run(feeds)["y"], Interpreter(artifact(found)).run(feeds)["y"]) < 0.03


def test_q13_a_state_with_its_batch_on_axis_1_and_a_scalar(tmp_path: Path) -> None:
    data = {"input": rand(0, 16, 32), "state": rand(1, 16, 2, 16), "sr": np.full(16, 16000, np.int64)}
    found = built(tmp_path, nets.recurrent(), nets.calibration(tmp_path / "c.npz", **data))
    shapes = {i["name"]: i["shape"] for i in found.manifest["signature"]["inputs"]}
    assert shapes == {"input": ["N", 32], "state": [2, "N", 16], "sr": []}
    golden = found.manifest["golden"]["samples"][0]["inputs"]
    assert [np.load(found.root / name).shape for name in golden] == [(1, 32), (2, 1, 16), ()]
    feeds = {"input": rand(2, 3, 32), "state": rand(3, 2, 3, 16), "sr": np.array(16000)}
    expected, values = Interpreter(tmp_path / "net.onnx").run(feeds), Interpreter(artifact(found)).run(feeds)
    assert values["stateN"].shape == (2, 3, 16)
    assert all(rms(expected[name], values[name]) < 0.05 for name in expected)


def test_q13_without_data_the_batch_is_1_wherever_it_stands(tmp_path: Path) -> None:
    found = built(tmp_path, nets.recurrent())
    golden = found.manifest["golden"]["samples"][0]["inputs"]
    assert [np.load(found.root / name).shape for name in golden] == [(1, 32), (2, 1, 16), ()]


def test_q13_strings_and_sequences_are_refused(tmp_path: Path) -> None:
    proto = nets.proto(
        [nets.node("StringNormalizer", ["text"], ["y"])],
        [nets.value("text", [1], TensorProto.STRING)],
        [nets.value("y", [1], TensorProto.STRING)],
    )
    refused(tmp_path, proto, "strings at text, y: no set can feed or compare them")
    sequence = nets.proto(
        [nets.node("SequenceConstruct", ["x"], ["y"])],
        [nets.value("x", [1])],
        [onnx.helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)],
    )
    refused(tmp_path, sequence, 'output "y" is a sequence, not a tensor')
    optional = nets.proto(
        [nets.node("OptionalHasElement", ["x"], ["y"])],
        [onnx.helper.make_value_info("x", onnx.helper.make_optional_type_proto(
            onnx.helper.make_tensor_type_proto(TensorProto.FLOAT, [1])))],
        [nets.value("y", [], TensorProto.BOOL)],
    )  # fmt: skip
    refused(tmp_path, optional, 'input "x" is a optional, not a tensor')


def test_findings_are_shown_by_inspect(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from edgeopt.cli.inspect import command

    path = nets.write(tmp_path / "net.onnx", nets.plugin("default"))
    result = CliRunner().invoke(command, [str(path)])
    assert result.exit_code == 0
    assert "refusal" in result.output
    path = nets.write(tmp_path / "net.onnx", nets.fixed_batch([1, -1, 36]))
    shown = json.loads(CliRunner().invoke(command, [str(path), "--run", "--json"]).output)
    assert [f["kind"] for f in shown["findings"]][:1] == ["baked-dims"]
    assert json.loads(CliRunner().invoke(command, [str(path), "--json"]).output)["findings"] == []


def test_dy01_a_number_that_breaks_a_branch_never_taken_is_not_written(tmp_path: Path) -> None:
    """The runtime works out shapes in both branches; with 6 the other one does not load, whatever the flag says."""
    arrays = {"x": rand(0, 8, 1, 6), "sr": np.full(8, 16000)}
    proto = nets.two_rates()
    found = built(tmp_path, proto, nets.calibration(tmp_path / "c.npz", **arrays))
    assert "L is declared dynamic and is fixed at 6 inside" in warnings(found)
    assert "it is left open, because onnxruntime does not load the network with it: " in warnings(found)
    assert found.manifest["signature"]["inputs"][0]["shape"] == [1, "L"]
    feeds = {"x": rand(1, 1, 6), "sr": np.array(16000)}
    expected = Interpreter(tmp_path / "net.onnx").run(feeds)["y"]
    np.testing.assert_allclose(Interpreter(artifact(found)).run(feeds)["y"], expected, rtol=1e-6)
    assert bundle.verify(found.root)["ok"]


def test_dy01_the_same_number_from_the_user_is_refused_with_the_way_out(tmp_path: Path) -> None:
    shapes = dict([parse_shape("x=1x6")])
    calib = nets.calibration(tmp_path / "c.npz", x=rand(0, 8, 1, 6), sr=np.full(8, 16000))
    error = refused(tmp_path, nets.two_rates(), "onnxruntime .* does not load", calib, shapes=shapes)
    assert error.exit_code == 3
    assert "fix fewer" in str(error.remedy)
