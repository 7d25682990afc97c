"""IN03: unnamed nodes, two nodes of one name, names that look generated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from edgeopt.errors import ModelError
from edgeopt.loaders import load
from edgeopt.model import NODE_KEY, Model, assign_keys, node_key, save, select_keys
from tests.unit.loaders.files import model, run, value, write

ODD = "block/1: conv a"
TENSORS = ("x_scale", "x_zero_point", "x_quantized", "x_DequantizeLinear_Output")


def awkward() -> onnx.ModelProto:
    """Convs named "", "", conv, conv, post_quant_conv and ODD over tensors whose names look generated."""
    rng = np.random.default_rng(0)
    names = ("", "", "conv", "conv", "post_quant_conv", ODD)
    through = ("x", *TENSORS, "t5", "y")
    weights = {f"w{i}": rng.normal(size=(8, 8, 1, 1)).astype(np.float32) for i in range(len(names))}
    nodes = [
        helper.make_node("Conv", [through[i], f"w{i}"], [through[i + 1]], name=name) for i, name in enumerate(names)
    ]
    return model(nodes, [value("x", [1, 8, 6, 6])], [value("y", [1, 8, 6, 6])], weights)


@pytest.fixture
def loaded(tmp_path: Path) -> Model:
    return load(write(tmp_path / "m.onnx", awkward()))


def test_every_node_has_a_unique_key(loaded: Model) -> None:
    keys = [node_key(n) for n in loaded.nodes()]
    assert keys == ["Conv:x_scale", "Conv:x_zero_point", "conv", "conv#2", "post_quant_conv", ODD]
    assert [n.name for n in loaded.nodes()] == keys
    assert [n.metadata_props[NODE_KEY] for n in loaded.nodes()] == keys


def test_keys_are_stable_and_survive_a_clone_and_a_second_pass(loaded: Model, tmp_path: Path) -> None:
    keys = [node_key(n) for n in loaded.nodes()]
    again = load(tmp_path / "m.onnx").clone()
    assign_keys(again.ir)
    assert [node_key(n) for n in again.nodes()] == keys


def test_a_node_added_later_gets_a_key_and_leaves_the_others(loaded: Model) -> None:
    clone = loaded.clone()
    first = next(clone.nodes())
    clone.graph.insert_before(first, ir.node("Relu", [first.inputs[0]], name="conv"))
    assign_keys(clone.ir)
    keys = [node_key(n) for n in clone.nodes()]
    assert keys == ["conv#3", "Conv:x_scale", "Conv:x_zero_point", "conv", "conv#2", "post_quant_conv", ODD]


def test_no_tensor_is_renamed(loaded: Model) -> None:
    names = {v.name for n in loaded.nodes() for v in (*n.inputs, *n.outputs) if v is not None}
    assert {*TENSORS, "x", "y"} <= names


def test_it_still_computes_the_same(loaded: Model, tmp_path: Path) -> None:
    feeds = {"x": np.random.default_rng(3).normal(size=(1, 8, 6, 6)).astype(np.float32)}
    reference = awkward()
    for i, node in enumerate(reference.graph.node):
        node.name = str(i)  # the runtime refuses the repeated name
    expected = run(reference.SerializeToString(), feeds)[0]
    np.testing.assert_array_equal(run(loaded.ir, feeds)[0], expected)
    (written,) = save(loaded, tmp_path / "out.onnx")
    np.testing.assert_array_equal(run(written.read_bytes(), feeds)[0], expected)


def test_excluding_a_name_means_every_node_of_that_name(loaded: Model) -> None:
    assert select_keys(loaded, ["conv"]) == {"conv", "conv#2"}
    assert select_keys(loaded, ["conv#2"]) == {"conv#2"}
    assert select_keys(loaded, ["Conv:x_scale", ODD]) == {"Conv:x_scale", ODD}
    assert select_keys(loaded, []) == set()


def test_excluding_an_unknown_name_is_an_error(loaded: Model) -> None:
    with pytest.raises(
        ModelError, match=r'no node is called "post_quant_cnv"\. Did you mean "post_quant_conv"'
    ) as caught:
        select_keys(loaded, ["conv", "post_quant_cnv"])
    assert caught.value.exit_code == 3


def test_a_name_that_looks_like_a_key_keeps_it(tmp_path: Path) -> None:
    proto = awkward()
    for node, name in zip(proto.graph.node, ("conv", "conv", "conv#2", "Conv:y", "", "")):
        node.name = name
    loaded = load(write(tmp_path / "m.onnx", proto))
    keys = [node_key(n) for n in loaded.nodes()]
    assert keys == ["conv", "conv#3", "conv#2", "Conv:y", "Conv:t5", "Conv:y#2"]
    assert select_keys(loaded, ["conv"]) == {"conv", "conv#3"}
    assert select_keys(loaded, ["conv#2"]) == {"conv#2"}


def test_keys_inside_a_file_are_not_believed(tmp_path: Path) -> None:
    proto = awkward()
    for node in proto.graph.node:
        node.metadata_props.add(key=NODE_KEY, value="same")
    loaded = load(write(tmp_path / "m.onnx", proto))
    assert [node_key(n) for n in loaded.nodes()][2:4] == ["conv", "conv#2"]


def test_a_saved_model_keeps_its_keys(loaded: Model, tmp_path: Path) -> None:
    (written,) = save(loaded, tmp_path / "out.onnx")
    assert [node_key(n) for n in load(written).nodes()] == [node_key(n) for n in loaded.nodes()]


def test_nodes_in_branches_have_keys_too(tmp_path: Path) -> None:
    branch = helper.make_graph([helper.make_node("Relu", ["x"], ["b"], name="conv")], "b", [], [value("b", [2])])
    nodes = [helper.make_node("If", ["t"], ["y"], then_branch=branch, else_branch=branch)]
    proto = model(nodes, [value("x", [2]), value("t", [], onnx.TensorProto.BOOL)], [value("y", [2])])
    loaded = load(write(tmp_path / "m.onnx", proto))
    assert sorted(node_key(n) for n in loaded.nodes()) == ["If:y", "conv", "conv#2"]
    assert select_keys(loaded, ["conv"]) == {"conv", "conv#2"}
