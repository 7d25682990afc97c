"""What loading makes of a valid file, and which invalid graphs it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgeopt.errors import ModelError
from edgeopt.loaders import load
from tests.unit.loaders.files import conv_model, model, run, value, write

X = np.array([-1.0, 2.0], np.float32)


def chain(*nodes: onnx.NodeProto, **options: int) -> onnx.ModelProto:
    return model(nodes, [value("x", [2])], [value("y", [2])], **options)


def test_nodes_out_of_order_are_sorted(tmp_path: Path) -> None:
    late = [
        helper.make_node("Neg", ["b"], ["y"]),
        helper.make_node("Exp", ["a"], ["b"]),
        helper.make_node("Abs", ["x"], ["a"]),
    ]
    loaded = load(write(tmp_path / "m.onnx", chain(*late)))
    assert [n.op_type for n in loaded.nodes()] == ["Abs", "Exp", "Neg"]
    np.testing.assert_allclose(run(loaded.ir, {"x": X})[0], -np.exp(np.abs(X)), rtol=1e-6)


def test_sorting_sees_what_branches_capture(tmp_path: Path) -> None:
    branch = helper.make_graph([helper.make_node("Neg", ["a"], ["n"])], "b", [], [value("n", [2])])
    truth = helper.make_tensor("t", TensorProto.BOOL, [], [True])
    choice = helper.make_node("If", ["t"], ["y"], then_branch=branch, else_branch=branch)
    proto = chain(choice, helper.make_node("Abs", ["x"], ["a"]), helper.make_node("Constant", [], ["t"], value=truth))
    loaded = load(write(tmp_path / "m.onnx", proto))
    np.testing.assert_array_equal(run(loaded.ir, {"x": X})[0], -np.abs(X))


def test_nodes_in_order_are_not_moved(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Abs", ["x"], ["b"]),
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    assert [n.op_type for n in load(write(tmp_path / "m.onnx", chain(*nodes))).nodes()] == ["Abs", "Neg", "Add"]


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([helper.make_node("Add", ["x", "y"], ["a"]), helper.make_node("Abs", ["a"], ["y"])], "cycle"),
        ([helper.make_node("Abs", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["y"])], "single static assignment"),
        ([helper.make_node("Abs", ["nowhere"], ["y"])], "nowhere"),
        ([helper.make_node("Abs", ["x"], ["z"])], "output 'y'"),
        ([helper.make_node("Upsample", ["x", "x"], ["y"])], "Upsample"),  # gone since opset 10
        ([helper.make_node("Abs", ["x"], ["y"], alpha=1.0)], "alpha"),
    ],
)
def test_invalid_graphs(tmp_path: Path, nodes: list[onnx.NodeProto], words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        load(write(tmp_path / "m.onnx", chain(*nodes)))
    assert "m.onnx" in str(caught.value)


def test_operators_that_the_default_domain_never_had_load_as_they_are(tmp_path: Path) -> None:
    (node,) = load(write(tmp_path / "m.onnx", chain(helper.make_node("NoSuchOperator", ["x"], ["y"], k=3)))).nodes()
    assert (node.domain, node.op_type, node.attributes["k"].as_int()) == ("", "NoSuchOperator", 3)


def test_operators_of_other_domains_load(tmp_path: Path) -> None:
    proto = chain(helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft"))
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    assert [n.domain for n in load(write(tmp_path / "m.onnx", proto)).nodes()] == ["com.microsoft"]


def test_the_long_name_of_the_default_domain(tmp_path: Path) -> None:
    proto = chain(helper.make_node("Abs", ["x"], ["y"], domain="ai.onnx"))
    proto.opset_import[0].domain = "ai.onnx"
    loaded = load(write(tmp_path / "m.onnx", proto))
    assert loaded.ir.opset_imports == {"": 17}
    np.testing.assert_array_equal(run(loaded.ir, {"x": X})[0], np.abs(X))


def test_functions_are_inlined(tmp_path: Path) -> None:
    body = [helper.make_node("Abs", ["a"], ["t"]), helper.make_node("Add", ["t", "t"], ["b"])]
    proto = chain(helper.make_node("F", ["x"], ["m"], domain="my"), helper.make_node("F", ["m"], ["y"], domain="my"))
    proto.functions.append(helper.make_function("my", "F", ["a"], ["b"], body, [helper.make_opsetid("", 17)]))
    proto.opset_import.append(helper.make_opsetid("my", 1))
    loaded = load(write(tmp_path / "m.onnx", proto))
    assert [n.op_type for n in loaded.nodes()] == ["Abs", "Add", "Abs", "Add"]
    np.testing.assert_array_equal(run(loaded.ir, {"x": X})[0], 4 * np.abs(X))


def test_traces_go_and_the_users_metadata_stays(tmp_path: Path) -> None:
    proto = conv_model()
    proto.metadata_props.add(key="names", value="{0: 'cat'}")
    node = proto.graph.node[0]
    node.doc_string = "/home/somebody/train.py(12)"
    node.metadata_props.add(key="pkg.torch.onnx.stack_trace", value="/home/somebody/train.py")
    node.metadata_props.add(key="mine", value="1")
    loaded = load(write(tmp_path / "m.onnx", proto))
    (conv,) = loaded.nodes()
    assert loaded.ir.metadata_props == {"names": "{0: 'cat'}"}
    assert set(conv.metadata_props) == {"mine", "edgeopt.key"}
    assert not conv.doc_string


@pytest.mark.parametrize("kind", ["sequence", "optional", "map"])
def test_values_that_are_no_tensors(tmp_path: Path, kind: str) -> None:
    proto = chain(helper.make_node("Abs", ["x"], ["y"]))
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    made = {
        "sequence": lambda: helper.make_sequence_type_proto(tensor),
        "optional": lambda: helper.make_optional_type_proto(tensor),
        "map": lambda: helper.make_map_type_proto(TensorProto.INT64, tensor),
    }[kind]()
    proto.graph.output[0].type.CopyFrom(made)
    with pytest.raises(ModelError, match=f'output "y" is a {kind}, not a tensor'):
        load(write(tmp_path / "m.onnx", proto))


def test_two_loads_give_the_same_graph(tmp_path: Path) -> None:
    import onnx_ir as ir

    path = write(tmp_path / "m.onnx", conv_model())
    first, second = (ir.to_proto(load(path).ir).SerializeToString(deterministic=True) for _ in range(2))
    assert first == second
