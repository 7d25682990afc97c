"""New input shapes: read from text, put into the graph, and followed by everything inside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgeopt.errors import ModelError
from edgeopt.loaders import load, parse_shape
from tests.unit.loaders.files import model, run, value, write


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x=1x3x224x224", ("x", (1, 3, 224, 224))),
        ("input:0=8", ("input:0", (8,))),
        ("a=b=2x2", ("a=b", (2, 2))),
        ("x=1,3", ("x", (1, 3))),
        ("s=", ("s", ())),
    ],
)
def test_parse_shape(text: str, expected: tuple[str, tuple[int, ...]]) -> None:
    assert parse_shape(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "=1x3",
        "x=1xx3",
        "x=-1x3",
        "x=0x3",
        "x=1.5",
        "x=nx3",
        "x=1x3:int128",
        "x=1x3:",
        "x=1x99999999999",
        "x=٣",
    ],
)
def test_parse_shape_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="is not|between") as caught:
        parse_shape(text)
    assert text in str(caught.value)


def convolutional(dims: tuple[int | str, ...] = (10, 3, 32, 32)) -> onnx.ModelProto:
    """Fully convolutional, frozen at a shape it does not need, with stale shapes inside; IR 4, weights among inputs."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(4, 3, 3, 3)).astype(np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    inputs = [value("x", dims), value("w", [4, 3, 3, 3])]
    half = [d // 2 if isinstance(d, int) else None for d in dims[2:]]
    proto = model(nodes, inputs, [value("y", [dims[0], 4, *half])], weights, opset=11, ir_version=4)
    proto.graph.value_info.append(value("h", [dims[0], 4, *half]))
    return proto


@pytest.mark.parametrize("unknown", ["?", "-1", "None", -1])
def test_dims_called_unknown_are_not_one_size(unknown: str | int, tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", convolutional((unknown, 3, unknown, unknown)))
    assert [str(s) for s in load(path).inputs] == ["x: float32[?, 3, ?, ?]"]
    assert [str(s) for s in load(path, shapes={"x": (1, 3, 48, 96)}).outputs] == ["y: float32[1, 4, 24, 48]"]


def test_fixed_sizes_are_replaced_and_the_rest_follows(tmp_path: Path) -> None:
    loaded = load(write(tmp_path / "m.onnx", convolutional()), shapes={"x": (1, 3, 160, 96)})
    assert [str(s) for s in loaded.inputs] == ["x: float32[1, 3, 160, 96]"]
    assert [str(s) for s in loaded.outputs] == ["y: float32[1, 4, 80, 48]"]
    inner = {v.name: v.shape for n in loaded.nodes() for v in n.outputs}
    assert list(inner["h"]) == [1, 4, 80, 48]
    assert run(loaded.ir, {"x": np.zeros((1, 3, 160, 96), np.float32)})[0].shape == (1, 4, 80, 48)


def test_without_shapes_symbolic_sizes_stay(tmp_path: Path) -> None:
    loaded = load(write(tmp_path / "m.onnx", convolutional(("N", 3, "H", "W"))))
    assert loaded.inputs[0].shape == ("N", 3, "H", "W")
    assert loaded.outputs[0].shape == ("N", 4, "?", "?")


def test_a_symbol_that_is_fixed_is_fixed_in_every_input(tmp_path: Path) -> None:
    proto = model(
        [helper.make_node("Add", ["a", "b"], ["y"])],
        [value("a", ["N", 4]), value("b", ["N", "M"])],
        [value("y", ["N", "M"])],
    )
    path = write(tmp_path / "m.onnx", proto)
    loaded = load(path, shapes={"a": (2, 4)})
    assert [s.shape for s in loaded.inputs] == [(2, 4), (2, "M")]
    assert loaded.outputs[0].shape[0] == 2
    with pytest.raises(ModelError, match='dimension "N" cannot be 2 and 3'):
        load(path, shapes={"a": (2, 4), "b": (3, 4)})


def test_an_unknown_input(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", convolutional())
    with pytest.raises(ModelError, match=r'no input "xx"\. Did you mean "x"') as caught:
        load(path, shapes={"xx": (1, 3, 8, 8)})
    assert caught.value.exit_code == 3
    with pytest.raises(ModelError, match='no input "w"'):  # a weight, though the file lists it among its inputs
        load(path, shapes={"w": (4, 3, 1, 1)})


def test_another_rank_or_an_impossible_size(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", convolutional())
    with pytest.raises(ModelError, match=r"has 4 dimensions, 1x3x8 has 3"):
        load(path, shapes={"x": (1, 3, 8)})
    with pytest.raises(ModelError, match="below 1"):
        load(path, shapes={"x": (1, 3, 8, 0)})


def test_a_shape_that_the_network_cannot_take(tmp_path: Path) -> None:
    weights = {"w": np.zeros((8, 4), np.float32)}
    proto = model([helper.make_node("Gemm", ["x", "w"], ["y"])], [value("x", [1, 8])], [value("y", [1, 4])], weights)
    path = write(tmp_path / "m.onnx", proto)
    assert load(path, shapes={"x": (5, 8)}).outputs[0].shape == (5, 4)
    with pytest.raises(ModelError, match="cannot work with x=1x9"):
        load(path, shapes={"x": (1, 9)})


def test_an_output_that_nothing_can_infer_keeps_its_rank_only(tmp_path: Path) -> None:
    node = helper.make_node("Secret", ["x"], ["y"], domain="acme")
    proto = model([node], [value("x", [1, 8])], [value("y", [1, 4])])
    proto.opset_import.append(helper.make_opsetid("acme", 1))
    loaded = load(write(tmp_path / "m.onnx", proto), shapes={"x": (2, 8)})
    assert loaded.outputs[0].shape == ("?", "?")


def test_inputs_and_outputs_without_a_shape(tmp_path: Path) -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    unknown = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    path = write(tmp_path / "m.onnx", model([relu], [value("x", [1, 8])], [unknown]))
    assert load(path).outputs[0].shape == (1, 8)
    path = write(path, model([relu], [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)], [unknown]))
    with pytest.raises(ModelError, match="--shape x="):
        load(path)
    assert load(path, shapes={"x": (3, 8)}).outputs[0].shape == (3, 8)


def test_shapes_with_external_weights(tmp_path: Path) -> None:
    from tests.unit.loaders.files import SIDE, write_external

    loaded = load(write_external(tmp_path), shapes={"x": (7, SIDE)})
    assert loaded.outputs[0].shape == (7, SIDE)
