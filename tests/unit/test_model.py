"""Model: signature, saving, keys, summary."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import edgeopt.model as model_module
from edgeopt.errors import ModelError
from edgeopt.loaders import load
from edgeopt.model import Model, Origin, save, spec_of, summary
from tests.unit.loaders.files import SIDE, conv_model, dense_weight, model, run, value, write, write_external

X = np.random.default_rng(2).normal(size=(1, SIDE)).astype(np.float32)


@pytest.fixture
def external(tmp_path: Path) -> Model:
    return load(write_external(tmp_path / "in"))


def computed(path: Path) -> np.ndarray:
    return run(load(path).ir, {"x": X})[0]


def test_signature_leaves_out_weights_listed_as_inputs(tmp_path: Path) -> None:
    proto = conv_model()
    proto.ir_version = 3
    proto.graph.input.append(value("w", [4, 3, 3, 3]))
    loaded = load(write(tmp_path / "m.onnx", proto))
    assert [str(s) for s in loaded.inputs] == ["x: float32[1, 3, 8, 8]"]
    assert [str(s) for s in loaded.outputs] == ["y: float32[1, 4, 8, 8]"]


def test_specs_of_unknown_rank_scalars_and_symbols() -> None:
    def spec(shape: ir.Shape | None) -> tuple[int | str, ...]:
        return spec_of(ir.Value(name="v", shape=shape, type=ir.TensorType(ir.DataType.INT8))).shape

    assert spec(None) == ("...",)
    assert spec(ir.Shape([])) == ()
    assert spec(ir.Shape(["N", None, 3])) == ("N", "?", 3)


def test_origin_digest_of_one_and_of_several_files(external: Model) -> None:
    first, second = external.origin.files
    one = Origin(path=first, format="onnx", files=(first,))
    assert one.sha256() == hashlib.sha256(first.read_bytes()).hexdigest()
    before = external.origin.sha256()
    second.write_bytes(second.read_bytes()[:-1] + b"\0")
    assert external.origin.sha256() != before
    assert one.sha256() == hashlib.sha256(first.read_bytes()).hexdigest()


def test_a_clone_may_be_edited(tmp_path: Path) -> None:
    loaded = load(write(tmp_path / "m.onnx", conv_model()))
    clone = loaded.clone()
    clone.graph.remove(next(clone.nodes()), safe=False)
    assert len(list(loaded.nodes())) == 1
    assert clone.graph.initializers["w"].const_value is loaded.graph.initializers["w"].const_value


@pytest.mark.parametrize("external_data", [False, True])
def test_saving_twice_gives_the_same_bytes(external: Model, tmp_path: Path, external_data: bool) -> None:
    out = tmp_path / "out.onnx"
    written = save(external, out, external_data=external_data)
    first = {p.name: p.read_bytes() for p in written}
    assert set(first) == ({"out.onnx", "out.onnx.data"} if external_data else {"out.onnx"})
    assert save(external, out, external_data=external_data) == written
    assert {p.name: p.read_bytes() for p in written} == first
    assert {p.name for p in tmp_path.iterdir()} == {"in", *first}
    again = save(load(out), tmp_path / "out2.onnx", external_data=external_data)
    assert [p.stat().st_size for p in again] == pytest.approx([len(b) for b in first.values()], abs=8)
    np.testing.assert_allclose(computed(out), X @ dense_weight(), rtol=1e-4, atol=1e-4)


def test_the_input_is_overwritten_only_on_request(external: Model, tmp_path: Path) -> None:
    path, data = external.origin.files
    original = path.read_bytes(), data.read_bytes()
    with pytest.raises(ModelError, match=r"m\.onnx is the file the model was loaded from"):
        save(external, path)
    (tmp_path / "link.onnx").symlink_to(path)
    with pytest.raises(ModelError, match="loaded from"):
        save(external, tmp_path / "link.onnx")
    data.rename(data.with_name("n.onnx.data"))
    path = write(path, helper_external("n.onnx.data"))
    other = load(path)
    with pytest.raises(ModelError, match=r"n\.onnx\.data is the file"):
        save(other, path.with_name("n.onnx"), external_data=True)
    assert data.with_name("n.onnx.data").read_bytes() == original[1]
    save(other, path, in_place=True)
    np.testing.assert_allclose(computed(path), X @ dense_weight(), rtol=1e-4, atol=1e-4)
    assert len(load(path).origin.files) == 1


def helper_external(location: str) -> onnx.ModelProto:
    from tests.unit.loaders.files import external_model

    return external_model(location)


def test_in_place_with_external_data_reads_the_old_file_while_it_is_replaced(external: Model) -> None:
    path, _ = external.origin.files
    save(external, path, external_data=True, in_place=True)
    save(external, path, external_data=True, in_place=True)
    assert [f.name for f in load(path).origin.files] == ["m.onnx", "m.onnx.data"]
    assert path.with_name("m.onnx.data").stat().st_size == dense_weight().nbytes
    np.testing.assert_allclose(computed(path), X @ dense_weight(), rtol=1e-4, atol=1e-4)


def test_what_is_too_large_for_one_file_is_refused_before_writing(
    external: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_module, "PROTOBUF_LIMIT", dense_weight().nbytes)
    with pytest.raises(ModelError, match="16,384 bytes") as caught:
        save(external, tmp_path / "out.onnx")
    assert "external data" in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["in"]
    save(external, tmp_path / "out.onnx", external_data=True)


def test_a_failed_write_leaves_the_old_file(external: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.onnx"
    out.write_bytes(b"old")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(ModelError, match="No space left"):
        save(external, out)
    assert out.read_bytes() == b"old"
    assert {p.name for p in tmp_path.iterdir()} == {"in", "out.onnx"}


def test_tensors_of_all_graphs_go_into_the_data_file(tmp_path: Path) -> None:
    big = helper.make_tensor("b", TensorProto.FLOAT, [SIDE, SIDE], dense_weight().tobytes(), raw=True)
    small = helper.make_tensor("s", TensorProto.FLOAT, [1], [1.0])
    branch = helper.make_graph([helper.make_node("MatMul", ["x", "b"], ["m"])], "b", [], [value("m", [1, SIDE])], [big])
    nodes = [
        helper.make_node("If", ["t"], ["c"], then_branch=branch, else_branch=branch),
        helper.make_node("Add", ["c", "s"], ["y"]),
    ]
    proto = model(nodes, [value("x", [1, SIDE]), value("t", [], TensorProto.BOOL)], [value("y", [1, SIDE])])
    proto.graph.initializer.append(small)
    loaded = load(write(tmp_path / "m.onnx", proto))
    save(loaded, tmp_path / "out.onnx", external_data=True)
    assert (tmp_path / "out.onnx").stat().st_size < 2000
    assert (tmp_path / "out.onnx.data").stat().st_size == 2 * dense_weight().nbytes
    got = run(load(tmp_path / "out.onnx").ir, {"x": X, "t": np.array(True)})[0]
    np.testing.assert_allclose(got, X @ dense_weight() + 1, rtol=1e-4, atol=1e-4)


def test_summary(tmp_path: Path) -> None:
    proto = conv_model()
    proto.graph.node.append(helper.make_node("Gelu", ["y"], ["z"], domain="com.microsoft"))
    proto.graph.output.append(value("z", ["N", 4, 8, 8]))
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    proto.producer_name, proto.producer_version = "maker", "2"
    found = summary(load(write(tmp_path / "m.onnx", proto)))
    assert found["ops"] == {"Conv": 1, "com.microsoft.Gelu": 1}
    assert found["nodes"] == 2
    assert found["opset"] == 17
    assert found["opsets"] == {"ai.onnx": 17, "com.microsoft": 1}
    assert found["ir_version"] == 8
    assert found["producer"] == "maker 2"
    assert found["parameters"] == 4 * 3 * 3 * 3
    assert found["weight_bytes"] == 4 * found["parameters"]
    assert found["inputs"] == [{"name": "x", "dtype": "float32", "shape": (1, 3, 8, 8)}]
    assert found["dynamic_dims"] == ["N"]
    assert found["external_files"] == []
    assert found["bytes"] == (tmp_path / "m.onnx").stat().st_size
