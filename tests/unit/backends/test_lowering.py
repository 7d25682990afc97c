"""IN08: what the device's runtime reads decides what is written, and the manifest says what it takes."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeopt import loaders
from edgeopt.backends import onnxruntime as backend
from edgeopt.backends.onnxruntime.releases import RELEASES, OwnNode, oldest, reads, version_key
from edgeopt.errors import ToolchainError
from edgeopt.interpreter import Interpreter
from edgeopt.passes import NORMALIZE, apply
from edgeopt.target import Target, load_target

SHAPE = [1, 3, 8, 8]


def board(opset: int = 19, ir_version: int = 9, runtime: str = "1.16.3", **changes: object) -> Target:
    base = load_target("raspberry-pi-5")
    return dataclasses.replace(
        base, opset_max=opset, ir_version_max=ir_version, runtime={"onnxruntime": runtime}, **changes
    )


def network(
    *ops: str, opset: int, ir_version: int, imports: tuple[tuple[str, int], ...] = (), domain: str = ""
) -> onnx.ModelProto:
    """A Conv and then one-input operators."""
    w = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32)
    nodes, last = [helper.make_node("Conv", ["x", "w"], ["c"])], "c"
    for i, op in enumerate(ops):
        nodes.append(helper.make_node(op, [last], [f"y{i}"], domain=domain))
        last = f"y{i}"
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, [1, 4, 6, 6])],
        [numpy_helper.from_array(w, "w")],
    )
    sets = [helper.make_opsetid("", opset), *(helper.make_opsetid(*i) for i in imports)]
    return helper.make_model(graph, opset_imports=sets, ir_version=ir_version)


def loaded(proto: onnx.ModelProto, folder: Path):
    path = folder / "in.onnx"
    path.write_bytes(proto.SerializeToString())
    return loaders.load(path)


def prepared(proto: onnx.ModelProto, folder: Path, target: Target):
    """As a build does it: NORMALIZE, and what the backend wants."""
    model = loaded(proto, folder)
    for pass_ in (*NORMALIZE, *backend.passes(target)):
        model = apply(pass_, model, target).model
    return model


def outputs(path: Path) -> np.ndarray:
    x = np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)
    [y] = Interpreter(path).run({"x": x}).values()
    return y


EXTRA = (("ai.onnx.ml", 5), ("ai.onnx.preview.training", 1))


def test_in08_stamps_are_lowered_and_imports_that_no_node_uses_are_dropped(tmp_path: Path) -> None:
    proto = network("Relu", opset=23, ir_version=13, imports=EXTRA)
    target = board()
    artifact = backend.lower(prepared(proto, tmp_path, target), target, tmp_path / "out.onnx", precision="float32")
    written = onnx.load(artifact.path)
    onnx.checker.check_model(written, full_check=True)
    assert written.ir_version == 9
    assert {(o.domain, o.version) for o in written.opset_import} == {("", 19)}
    assert np.array_equal(outputs(artifact.path), outputs(tmp_path / "in.onnx"))
    assert backend.minimum(artifact.path) == {"onnxruntime": "1.15.0", "opset": 19, "ir_version": 9}


def test_in08_the_opset_is_lowered_even_where_the_finish_step_did_not_run(tmp_path: Path) -> None:
    proto = network("Relu", opset=23, ir_version=13, imports=EXTRA)
    artifact = backend.lower(loaded(proto, tmp_path), board(), tmp_path / "out.onnx", precision="float32")
    assert np.array_equal(outputs(artifact.path), outputs(tmp_path / "in.onnx"))
    assert onnx.load(artifact.path).opset_import[0].version == 19


def test_in08_a_gelu_is_written_out_for_a_runtime_that_has_none(tmp_path: Path) -> None:
    proto = network("Gelu", "Softplus", opset=20, ir_version=9)
    target = board()
    artifact = backend.lower(loaded(proto, tmp_path), target, tmp_path / "out.onnx", precision="float32")
    written = onnx.load(artifact.path)
    assert "Gelu" not in {n.op_type for n in written.graph.node}
    assert written.opset_import[0].version == 19
    np.testing.assert_allclose(outputs(artifact.path), outputs(tmp_path / "in.onnx"), rtol=1e-5, atol=1e-6)


def test_in08_what_cannot_be_written_out_names_both_numbers_and_the_release(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.STRING, [2])
    y = helper.make_tensor_value_info("y", TensorProto.STRING, [2])
    graph = helper.make_graph([helper.make_node("StringConcat", ["x", "x"], ["y"])], "g", [x], [y])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    with pytest.raises(ToolchainError) as refusal:
        backend.lower(loaded(proto, tmp_path), board(), tmp_path / "out.onnx", precision="float32")
    assert "the model needs opset 20; raspberry-pi-5 reads up to 19" in refusal.value.message
    assert "StringConcat-20 has no counterpart in opset 19" in refusal.value.message
    assert "onnxruntime on the device to 1.17.0 or newer" in str(refusal.value.remedy)
    assert not (tmp_path / "out.onnx").exists()


def ml_network(op: str, version: int, **attributes: object) -> onnx.ModelProto:
    kind = TensorProto.INT64 if op == "LabelEncoder" else TensorProto.FLOAT
    x = helper.make_tensor_value_info("x", kind, [1, 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3])
    node = helper.make_node(op, ["x"], ["y"], domain="ai.onnx.ml", name="ml", **attributes)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", version)]
    graph = helper.make_graph([node], "g", [x], [y])
    return helper.make_model(graph, opset_imports=sets, ir_version=8)


def test_in08_ai_onnx_ml_is_lowered_where_its_operators_did_not_change(tmp_path: Path) -> None:
    proto = ml_network("Scaler", 5, offset=[0.5, 1.0, 2.0], scale=[2.0, 1.0, 0.5])
    artifact = backend.lower(loaded(proto, tmp_path), board(), tmp_path / "out.onnx", precision="float32")
    written = onnx.load(artifact.path)
    assert {(o.domain, o.version) for o in written.opset_import} == {("", 17), ("ai.onnx.ml", 3)}
    x = np.array([[1, 2, 3]], np.float32)
    before, after = (Interpreter(p).run({"x": x})["y"] for p in (tmp_path / "in.onnx", artifact.path))
    assert np.array_equal(before, after)
    assert backend.minimum(artifact.path)["ai.onnx.ml"] == "3"


def test_in08_ai_onnx_ml_stays_where_an_operator_changed(tmp_path: Path) -> None:
    tensor = [helper.make_tensor(n, t, [1], [1]) for n, t in (("k", TensorProto.INT64), ("v", TensorProto.FLOAT))]
    proto = ml_network("LabelEncoder", 4, keys_tensor=tensor[0], values_tensor=tensor[1])
    with pytest.raises(ToolchainError, match="LabelEncoder .* needs ai.onnx.ml 4; onnxruntime 1.16.3") as refusal:
        backend.lower(loaded(proto, tmp_path), board(), tmp_path / "out.onnx", precision="float32")
    assert "1.17.0 or newer" in str(refusal.value.remedy)


def test_types_that_need_a_newer_ir_version_are_refused(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    weights = helper.make_tensor("w", TensorProto.INT4, [4], [1, 2, 3, 4])
    scale = helper.make_tensor("s", TensorProto.FLOAT, [], [0.5])
    nodes = [helper.make_node("DequantizeLinear", ["w", "s"], ["d"]), helper.make_node("Add", ["x", "d"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], [weights, scale])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with pytest.raises(ToolchainError, match="the model holds int4, which needs IR version 10"):
        backend.lower(
            loaded(proto, tmp_path), board(opset=21, runtime="1.18.0"), tmp_path / "out.onnx", precision="float32"
        )
    with pytest.raises(ToolchainError, match="takes no tensor"):
        backend.lower(
            loaded(proto, tmp_path), board(opset=20, runtime="1.17.0"), tmp_path / "out.onnx", precision="float32"
        )


def test_own_operators_need_the_release_that_has_them(tmp_path: Path) -> None:
    proto = network("QuickGelu", opset=17, ir_version=8, imports=(("com.microsoft", 1),), domain="com.microsoft")
    model = loaded(proto, tmp_path)
    artifact = backend.lower(model, board(), tmp_path / "out.onnx", precision="float32")
    assert backend.minimum(artifact.path)["onnxruntime"] == "1.16.0"
    with pytest.raises(ToolchainError, match="needs onnxruntime 1.16.0 or newer .*; raspberry-pi-5 has 1.15.1"):
        backend.lower(model, board(runtime="1.15.1"), tmp_path / "again.onnx", precision="float32")
    assert not (tmp_path / "again.onnx").exists()


@pytest.mark.parametrize(
    ("opset", "ir_version", "ml", "release"),
    [
        (7, 3, 0, "1.7.0"),
        (13, 7, 0, "1.7.0"),
        (15, 7, 0, "1.9.0"),
        (16, 8, 0, "1.11.0"),
        (17, 8, 3, "1.12.0"),
        (18, 8, 0, "1.14.0"),
        (17, 9, 0, "1.15.0"),
        (19, 9, 0, "1.15.0"),
        (20, 9, 4, "1.17.0"),
        (21, 10, 0, "1.18.0"),
        (22, 10, 0, "1.21.0"),
        (23, 11, 0, "1.23.0"),
        (24, 12, 0, "1.24.1"),
        (13, 7, 5, "1.18.0"),
        (28, 14, 5, "1.32.0"),
    ],
)
def test_the_oldest_release_for_each_stamp(opset: int, ir_version: int, ml: int, release: str) -> None:
    assert oldest(opset=opset, ir_version=ir_version, ml=ml) == release


def test_releases_are_in_order_and_end_at_the_one_installed() -> None:
    assert [version_key(r[0]) for r in RELEASES] == sorted(version_key(r[0]) for r in RELEASES)
    assert all(a[1:] <= b[1:] for a, b in itertools.pairwise(RELEASES))
    assert oldest(opset=99, ir_version=9) is None
    assert reads("1.16.3") == (19, 9, 3)
    assert reads("1.0.0") == (13, 7, 2)


def stamped(opset: int, ir_version: int) -> bytes:
    return network("Relu", opset=opset, ir_version=ir_version).SerializeToString()


def test_the_table_agrees_with_the_installed_runtime() -> None:
    opset, ir_version, _ = reads(ort.__version__)
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    ort.InferenceSession(stamped(opset, ir_version), settings, providers=["CPUExecutionProvider"])
    if ort.__version__.startswith(RELEASES[-1][0].rsplit(".", 1)[0]):
        for proto in (stamped(opset + 1, ir_version), stamped(opset, ir_version + 1)):
            with pytest.raises(Exception, match="till opset|max supported IR version"):
                ort.InferenceSession(proto, settings, providers=["CPUExecutionProvider"])


def test_a_later_attribute_or_input_counts() -> None:
    plain = OwnNode(op="MatMulNBits", uses=("input 0", "input 1", "input 2", "K", "N"))
    assert oldest(opset=17, ir_version=8, own=[plain]) == "1.17.0"
    assert oldest(opset=17, ir_version=8, own=[dataclasses.replace(plain, uses=("input 5",))]) == "1.19.0"
    assert oldest(opset=17, ir_version=8, own=[OwnNode(op="NotThere", uses=())]) is None


def test_the_minimum_of_several_artifacts_is_that_of_the_newest(tmp_path: Path) -> None:
    paths = []
    for opset, ir_version in ((13, 9), (19, 8)):
        path = tmp_path / f"{opset}.onnx"
        path.write_bytes(stamped(opset, ir_version))
        paths.append(path)
    assert backend.minimum(*paths) == {"onnxruntime": "1.15.0", "opset": 19, "ir_version": 9}


def test_the_finish_step_is_there_for_old_runtimes_only() -> None:
    assert backend.passes(board(opset=17))[-1].name == "lower-opset-17"
    assert not any(p.name.startswith("lower-opset") for p in backend.passes(board(opset=20, runtime="1.17.0")))


def test_the_same_graph_gives_the_same_bytes(tmp_path: Path) -> None:
    model = loaded(network("Gelu", opset=20, ir_version=9), tmp_path)
    first, second = (backend.lower(model, board(), tmp_path / n, precision="float32") for n in ("a.onnx", "b.onnx"))
    assert first.sha256 == second.sha256
    assert ir.load(first.path).producer_name == "edgeopt"
