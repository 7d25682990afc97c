"""IN02: external data is found beside the model, reaches nothing else, and is complete before any work."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgeopt.errors import ModelError
from edgeopt.loaders import load
from edgeopt.model import summary
from tests.unit.loaders.files import (
    SIDE,
    WEIGHT_BYTES,
    dense_weight,
    external_model,
    external_tensor,
    model,
    run,
    value,
    write,
    write_external,
)

X = np.random.default_rng(2).normal(size=(1, SIDE)).astype(np.float32)


def assert_computes(path: Path) -> None:
    """The loaded network multiplies by the stored weight."""
    got = run(load(path).ir, {"x": X})[0]
    np.testing.assert_allclose(got, X @ dense_weight(), rtol=1e-4, atol=1e-4)


def refused(path: Path, *words: str) -> ModelError:
    with pytest.raises(ModelError) as caught:
        load(path)
    for word in (*words, path.name, '"w"'):
        assert word in str(caught.value), str(caught.value)
    assert caught.value.exit_code == 3
    return caught.value


def test_it_is_found_beside_the_model_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_external(tmp_path / "model")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "w.bin").write_bytes(np.zeros(WEIGHT_BYTES, np.uint8).tobytes())
    monkeypatch.chdir(elsewhere)
    assert_computes(path)
    monkeypatch.chdir(tmp_path / "model")
    assert_computes(Path("m.onnx"))
    loaded = load(Path("m.onnx"))
    assert [f.name for f in loaded.origin.files] == ["m.onnx", "w.bin"]
    assert loaded.origin.bytes == path.stat().st_size + WEIGHT_BYTES


def test_the_oracle_sees_one_wrong_weight(tmp_path: Path) -> None:
    path = write_external(tmp_path)
    damaged = dense_weight()
    damaged[5, 5] += 1
    (tmp_path / "w.bin").write_bytes(damaged.tobytes())
    with pytest.raises(AssertionError):
        assert_computes(path)


def test_offset_and_length_and_a_folder_below(tmp_path: Path) -> None:
    path = write_external(tmp_path, "data/w.bin", offset=12, length=WEIGHT_BYTES)
    (tmp_path / "data/w.bin").write_bytes(b"?" * 12 + dense_weight().tobytes() + b"tail")
    assert_computes(path)


def test_missing(tmp_path: Path) -> None:
    path = write_external(tmp_path)
    (tmp_path / "w.bin").unlink()
    refused(path, "w.bin", "missing")


def test_one_byte_short(tmp_path: Path) -> None:
    path = write_external(tmp_path)
    os.truncate(tmp_path / "w.bin", WEIGHT_BYTES - 1)
    refused(path, "w.bin", str(WEIGHT_BYTES - 1))


def test_empty_data_file(tmp_path: Path) -> None:
    path = write_external(tmp_path)
    os.truncate(tmp_path / "w.bin", 0)
    refused(path, "w.bin", "which has 0")


def test_past_the_end(tmp_path: Path) -> None:
    refused(write_external(tmp_path, offset=1, length=WEIGHT_BYTES), f"1 to {WEIGHT_BYTES + 1}", "w.bin")


def test_length_that_is_not_the_shape(tmp_path: Path) -> None:
    refused(write_external(tmp_path, length=WEIGHT_BYTES - 4), str(WEIGHT_BYTES), "w.bin")


@pytest.mark.parametrize("number", ["-1", "1e3", "0x10", "9" * 30, "٣"])
def test_offsets_that_are_no_numbers(tmp_path: Path, number: str) -> None:
    refused(write_external(tmp_path, offset=number), "offset")


@pytest.mark.parametrize(
    "location",
    ["../secret.bin", "a/../../secret.bin", "..\\secret.bin", "/etc/hostname", "C:\\secret.bin", "", "a\0b", "."],
)
def test_locations_that_leave_the_folder(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret.bin").write_bytes(dense_weight().tobytes())
    refused(write(tmp_path / "model" / "m.onnx", external_model(location)))


def test_a_link_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(dense_weight().tobytes())
    path = write(tmp_path / "model" / "m.onnx", external_model())
    (tmp_path / "model" / "w.bin").symlink_to(tmp_path / "secret.bin")
    refused(path, "w.bin", "link", "refused")


def test_a_linked_folder_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "w.bin").write_bytes(dense_weight().tobytes())
    path = write(tmp_path / "model" / "m.onnx", external_model("near/w.bin"))
    (tmp_path / "model" / "near").symlink_to(tmp_path / "far")
    refused(path, "refused")


def test_a_link_inside_the_folder_and_a_loop(tmp_path: Path) -> None:
    path = write_external(tmp_path, "real.bin")
    path = write(path, external_model("w.bin"))
    (tmp_path / "w.bin").symlink_to("real.bin")
    assert_computes(path)
    (tmp_path / "w.bin").unlink()
    (tmp_path / "w.bin").symlink_to("w.bin")
    refused(path, "w.bin")


def test_the_hub_cache_loads(tmp_path: Path) -> None:
    """Model and data are links into one folder of blobs."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    write(blobs / "1111", external_model())
    (blobs / "2222").write_bytes(dense_weight().tobytes())
    (snapshot / "m.onnx").symlink_to("../../blobs/1111")
    (snapshot / "w.bin").symlink_to("../../blobs/2222")
    assert_computes(snapshot / "m.onnx")
    (tmp_path / "other.bin").write_bytes(dense_weight().tobytes())
    (snapshot / "w.bin").unlink()
    (snapshot / "w.bin").symlink_to("../../other.bin")
    refused(snapshot / "m.onnx", "refused")


def test_hard_links_are_files_like_others(tmp_path: Path) -> None:
    path = write_external(tmp_path)
    (tmp_path / "copy.bin").hardlink_to(tmp_path / "w.bin")
    assert_computes(path)


def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", external_model())
    os.mkfifo(tmp_path / "w.bin")
    refused(path, "not a regular file")


def nested(kind: str, location: str) -> onnx.ModelProto:
    """A tensor at ``location`` hidden in an attribute, a subgraph, a function or a sparse initializer."""
    tensor = external_tensor("w", location, (2,))
    constant = helper.make_node("Constant", [], ["c"], value=tensor)
    add = helper.make_node("Add", ["x", "c"], ["y"])
    if kind == "attribute":
        return model([constant, add], [value("x", [2])], [value("y", [2])])
    if kind == "subgraph":
        branch = helper.make_graph([helper.make_node("Identity", ["w"], ["b"])], "b", [], [value("b", [2])])
        branch.initializer.append(tensor)
        condition = helper.make_node("Constant", [], ["t"], value=helper.make_tensor("t", TensorProto.BOOL, [], [True]))
        choice = helper.make_node("If", ["t"], ["c"], then_branch=branch, else_branch=branch)
        return model([condition, choice, add], [value("x", [2])], [value("y", [2])])
    if kind == "function":
        proto = model([helper.make_node("F", ["x"], ["y"], domain="my")], [value("x", [2])], [value("y", [2])])
        imports = [helper.make_opsetid("", 17)]
        proto.functions.append(helper.make_function("my", "F", ["x"], ["y"], [constant, add], imports))
        proto.opset_import.append(helper.make_opsetid("my", 1))
        return proto
    sparse = onnx.SparseTensorProto(
        dims=[4], values=tensor, indices=helper.make_tensor("i", TensorProto.INT64, [2], [0, 2])
    )
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])], [value("x", [4])], [value("y", [4])])
    proto.graph.sparse_initializer.append(sparse)
    return proto


@pytest.mark.parametrize("kind", ["attribute", "subgraph", "function", "sparse"])
def test_tensors_hidden_deeper_are_checked_as_well(tmp_path: Path, kind: str) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(8))
    refused(write(tmp_path / "model" / "m.onnx", nested(kind, "../secret.bin")), "refused")
    refused(write(tmp_path / "model" / "m.onnx", nested(kind, "none.bin")), "missing")


@pytest.mark.parametrize("kind", ["attribute", "subgraph", "function"])
def test_tensors_hidden_deeper_are_read(tmp_path: Path, kind: str) -> None:
    (tmp_path / "w.bin").write_bytes(np.array([3, 4], np.float32).tobytes())
    loaded = load(write(tmp_path / "m.onnx", nested(kind, "w.bin")))
    np.testing.assert_array_equal(run(loaded.ir, {"x": np.array([1, 1], np.float32)})[0], [4, 5])
    assert not loaded.ir.functions


def test_sparse_tensors_become_dense(tmp_path: Path) -> None:
    proto = nested("sparse", "w.bin")
    proto.graph.sparse_initializer[0].values.CopyFrom(helper.make_tensor("w", TensorProto.FLOAT, [2], [7.0, 9.0]))
    loaded = load(write(tmp_path / "m.onnx", proto))
    np.testing.assert_array_equal(run(loaded.ir, {"x": np.zeros(4, np.float32)})[0], [7, 0, 9, 0])
    proto.graph.sparse_initializer[0].indices.CopyFrom(helper.make_tensor("i", TensorProto.INT64, [2], [0, 4]))
    with pytest.raises(ModelError, match="indices outside"):
        load(write(tmp_path / "m.onnx", proto))
    proto.graph.sparse_initializer[0].dims[:] = [2**40]
    with pytest.raises(ModelError, match="largest supported"):
        load(write(tmp_path / "m.onnx", proto))


@pytest.mark.parametrize("dims", [[64, 65], [2**40, 2**20], [64, -1]])
def test_embedded_data_must_fit_its_shape(tmp_path: Path, dims: list[int]) -> None:
    proto = external_model()
    tensor = proto.graph.initializer[0]
    tensor.Clear()
    tensor.CopyFrom(onnx.numpy_helper.from_array(dense_weight(), "w"))
    tensor.dims[:] = dims
    refused(write(tmp_path / "m.onnx", proto))


def test_four_bit_data_is_packed(tmp_path: Path) -> None:
    tensor = external_tensor("w", "w.bin", (3,))
    tensor.data_type = TensorProto.INT4
    cast = helper.make_node("Cast", ["w"], ["c"], to=TensorProto.FLOAT)
    add = helper.make_node("Add", ["x", "c"], ["y"])
    proto = model([cast, add], [value("x", [3])], [value("y", [3])], opset=21, ir_version=10)
    proto.graph.initializer.append(tensor)
    (tmp_path / "w.bin").write_bytes(bytes([0x21, 0x0F]))
    loaded = load(write(tmp_path / "m.onnx", proto))
    assert loaded.graph.initializers["w"].const_value.numpy().tolist() == [1, 2, -1]


def test_two_gigabytes_are_inspected_without_being_read(tmp_path: Path) -> None:
    side = 24_000
    proto = model([helper.make_node("Gemm", ["x", "w"], ["y"])], [value("x", [1, side])], [value("y", [1, side])])
    proto.graph.initializer.append(external_tensor("w", "w.bin", (side, side)))
    path = write(tmp_path / "m.onnx", proto)
    (tmp_path / "w.bin").touch()
    os.truncate(tmp_path / "w.bin", 4 * side * side)
    before = resident()
    found = summary(load(path))
    assert resident() - before < 64e6
    assert found["weight_bytes"] == 2_304_000_000
    assert found["parameters"] == side * side
    assert found["external_files"] == [{"file": "w.bin", "bytes": 2_304_000_000}]
    assert found["ops"] == {"Gemm": 1}
    os.truncate(tmp_path / "w.bin", 4 * side * side - 1)
    refused(path, "w.bin", "2303999999")


def resident() -> int:
    """Resident memory of this process in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
