"""DY01: dimensions open in name only are found by running; fixed ones are opened where the runs allow it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from edgeopt import findings, loaders
from edgeopt.findings import baked, opening, tracing
from edgeopt.interpreter import Interpreter

from . import nets


def samples(count: int = 2, size: int = 6) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.normal(size=(1, 3, size, size)).astype(np.float32)} for _ in range(count)]


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ([1, 4, 36], "a batch of 2 stops the run in Reshape tokens"),
        ([1, -1, 36], "with a batch of 2 the output y keeps the shape [1, 36]: both samples went into one"),
    ],
)
def test_a_batch_that_is_fixed_inside_is_found_with_its_node(target: list[int], why: str, tmp_path: Path) -> None:
    model = nets.load(tmp_path, nets.fixed_batch(target))
    (found,) = baked.find(model, samples())
    assert found.size == 1
    assert found.node == "tokens"
    assert why in found.text
    fixed = baked.fix(model, [found])
    assert [str(s) for s in (*fixed.inputs, *fixed.outputs)] == ["x: float32[1, 3, 6, 6]", "y: float32[1, 36]"]
    assert str(model.inputs[0]) == "x: float32[N, 3, 6, 6]", "the model passed in was edited"
    x = samples()[0]
    np.testing.assert_array_equal(Interpreter(fixed).run(x)["y"], Interpreter(model).run(x)["y"])


def test_a_batch_that_is_open_stays_open(tmp_path: Path) -> None:
    assert baked.find(nets.load(tmp_path, nets.fixed_batch([0, 4, 36])), samples()) == ()
    assert baked.find(nets.load(tmp_path, nets.fixed_batch([0, 4, 36])), samples(1)) == ()


def test_batch_statistics_are_a_fixed_batch(tmp_path: Path) -> None:
    nodes = [
        nets.node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1, name="mean"),
        nets.node("Sub", ["x", "m"], ["y"], name="centre"),
    ]
    model = nets.load(tmp_path, nets.proto(nodes, [nets.value("x", ["N", 4])], [nets.value("y", ["N", 4])]))
    rng = np.random.default_rng(0)
    (found,) = baked.find(model, [{"x": rng.normal(size=(1, 4)).astype(np.float32)} for _ in range(2)])
    assert "differs from each sample alone" in found.why


def test_an_output_that_needs_no_sample_does_not_count(tmp_path: Path) -> None:
    nodes = [nets.node("Relu", ["x"], ["y"]), nets.node("Identity", ["k"], ["constant"])]
    outputs = [nets.value("y", ["N", 4]), nets.value("constant", [1, 4])]
    proto = nets.proto(nodes, [nets.value("x", ["N", 4])], outputs, {"k": np.ones((1, 4), np.float32)})
    assert baked.find(nets.load(tmp_path, proto), [{"x": np.ones((1, 4), np.float32)}]) == ()


def test_a_batch_on_another_axis_is_followed(tmp_path: Path) -> None:
    model = nets.load(tmp_path, nets.recurrent())
    assert baked.batch_symbols(baked.open_dims(model.inputs)) == ["N"]
    rng = np.random.default_rng(0)
    probes = [
        {
            "input": rng.normal(size=(1, 32)).astype(np.float32),
            "state": rng.normal(size=(2, 1, 16)).astype(np.float32),
            "sr": np.array(16000),
        }
        for _ in range(2)
    ]
    assert baked.find(model, probes) == ()


@pytest.mark.parametrize("layers", ["two", "open"])
def test_a_batch_without_a_name_is_followed_to_another_axis(layers: str, tmp_path: Path) -> None:
    """Two of the same unnamed mark: the batch of the input is axis 0, that of the state axis 1."""
    proto = nets.recurrent()
    for value in proto.graph.input[:2]:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.Clear()
    if layers == "open":  # axis 0 of the state counts its layers; nothing says so
        proto.graph.input[1].type.tensor_type.shape.dim[0].Clear()
    model = nets.load(tmp_path, proto)
    assert [str(s.shape[1]) for s in model.inputs[:2]] == ["32", "?"]
    rng = np.random.default_rng(0)
    probes = [
        {
            "input": rng.normal(size=(1, 32)).astype(np.float32),
            "state": rng.normal(size=(2, 1, 16)).astype(np.float32),
            "sr": np.array(16000),
        }
        for _ in range(2)
    ]
    found = baked.find(model, probes)
    assert [(one.symbols, one.size) for one in found] == ([] if layers == "two" else [(("state[0]",), 2)])


def test_a_batch_without_a_name_that_no_axis_carries_is_fixed(tmp_path: Path) -> None:
    nodes = [nets.node("Reshape", ["x", "shape"], ["t"], name="flat"), nets.node("Add", ["t", "s"], ["y"])]
    inputs = [nets.value("x", [None, 4]), nets.value("s", [4, None])]
    arrays = {"shape": np.array([4, 1], np.int64)}
    model = nets.load(tmp_path, nets.proto(nodes, inputs, [nets.value("y", [4, None])], arrays))
    probe = {"x": np.ones((1, 4), np.float32), "s": np.arange(4, dtype=np.float32).reshape(4, 1)}
    found = baked.find(model, [probe])
    assert [(one.symbols, one.node) for one in found if one.symbols == ("x[0]",)] == [(("x[0]",), "flat")]


@pytest.mark.parametrize(
    ("target", "stuck"),
    [([0, 0, -1], False), ([0, -1], False), ([0, 40], True), ([0, -1, 10], True), ([0, 0, 5], True)],
)
def test_a_sequence_length_that_is_fixed_inside(target: list[int], stuck: bool, tmp_path: Path) -> None:
    """x[N, 8, S] with S = 5: a Reshape may fail at 10, or silently group other elements."""
    nodes = [nets.node("Reshape", ["x", "shape"], ["t"], name="tokens"), nets.node("Relu", ["t"], ["y"])]
    rank = len(target)
    model = nets.load(
        tmp_path,
        nets.proto(
            nodes,
            [nets.value("x", ["N", 8, "S"])],
            [nets.value("y", [f"d{i}" for i in range(rank)])],
            {"shape": np.array(target, np.int64)},
        ),
    )
    rng = np.random.default_rng(0)
    found = baked.find(model, [{"x": rng.normal(size=(1, 8, 5)).astype(np.float32)} for _ in range(2)])
    lengths = [one for one in found if one.symbols == ("S",)]
    assert bool(lengths) == stuck
    if stuck:
        assert lengths[0].size == 5
        assert lengths[0].node == "tokens"


def test_sizes_that_the_data_varies_are_open(tmp_path: Path) -> None:
    model = nets.load(
        tmp_path,
        nets.proto([nets.node("Relu", ["x"], ["y"])], [nets.value("x", ["N", "S"])], [nets.value("y", ["N", "S"])]),
    )
    assert baked.find(model, [{"x": np.ones((1, n), np.float32)} for n in (3, 5)]) == ()


def test_unnamed_dims_are_told_apart(tmp_path: Path) -> None:
    proto = nets.fixed_batch([1, 4, 36])
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "?"
    model = nets.load(tmp_path, proto)
    (found,) = baked.find(model, samples())
    assert found.symbols == ("x[0]",)
    assert baked.fix(model, [found]).inputs[0].shape == (1, 3, 6, 6)


def test_token_ids_are_not_made_up(tmp_path: Path) -> None:
    """The second sample of a lone integer sample has its values only: 9 would be no row of the table."""
    nodes = [nets.node("Gather", ["table", "ids"], ["e"]), nets.node("ReduceMean", ["e"], ["y"], axes=[1], keepdims=0)]
    table = {"table": np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)}
    ids = nets.value("ids", ["N", "S"], TensorProto.INT64)
    model = nets.load(tmp_path, nets.proto(nodes, [ids], [nets.value("y", ["N", 3])], table))
    assert baked.find(model, [{"ids": np.array([[0, 1, 3]])}]) == ()


def test_kept_boundaries() -> None:
    assert tracing.kept_boundaries((1, 4, 36), (1, 4, 36)) == {(0, 0), (1, 1), (2, 2)}
    assert tracing.kept_boundaries((2, 4, 36), (1, 8, 36)) == {(1, 1), (2, 2)}


def test_frozen_dims_are_opened_where_the_graph_allows(tmp_path: Path) -> None:
    """Exported at 10 x 3 x 8 x 8 although fully convolutional, and one whose classifier fixes the picture."""
    weights = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32)
    conv = nets.node("Conv", ["x", "w"], ["c"], name="conv", pads=[1] * 4, strides=[2, 2])
    inputs = [nets.value("x", [10, 3, 8, 8])]
    free = nets.proto(
        [conv, nets.node("Sigmoid", ["c"], ["y"])], inputs, [nets.value("y", [10, 4, 4, 4])], {"w": weights}, opset=9
    )
    texts = [f.text for f in findings.try_dimensions(nets.load(tmp_path, free))]
    assert texts == [
        "x axis 0 can be opened: --shape x=Nx3x8x8",
        "x axis 2 can be opened: --shape x=10x3xHx8",
        "x axis 3 can be opened: --shape x=10x3x8xW",
    ]
    head = [nets.node("Flatten", ["c"], ["f"]), nets.node("Gemm", ["f", "v"], ["y"], name="classifier")]
    arrays = {"w": weights, "v": np.ones((64, 5), np.float32)}
    stuck = nets.proto([conv, *head], inputs, [nets.value("y", [10, 5])], arrays)
    texts = [f.text for f in findings.try_dimensions(nets.load(tmp_path, stuck))]
    assert texts[0] == "x axis 0 can be opened: --shape x=Nx3x8x8"
    assert all("cannot be opened: 16 stops the run in Gemm classifier" in text for text in texts[1:])


def test_a_symbol_in_shape_opens_a_frozen_dim(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32)
    conv = nets.node("Conv", ["x", "w"], ["y"], name="conv", pads=[1] * 4, strides=[2, 2])
    proto = nets.proto(
        [conv], [nets.value("x", [10, 3, 8, 8])], [nets.value("y", [10, 4, 4, 4])], {"w": weights}, opset=9
    )
    path = nets.write(tmp_path / "m.onnx", proto)
    name, shape = loaders.parse_shape("x=Nx3x32x16")
    model = loaders.load(path, shapes={name: shape})
    assert [str(s) for s in (*model.inputs, *model.outputs)] == ["x: float32[N, 3, 32, 16]", "y: float32[N, 4, 16, 8]"]
    assert baked.find(model, opening.noise(model)) == ()
