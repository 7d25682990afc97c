"""IN01: a file that is not a model is named for what it is, in one line, with its size and what to do."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgeopt.errors import ModelError
from edgeopt.loaders import load
from edgeopt.model import Model
from tests.unit.loaders.files import conv_model, write

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 18689680\n"
RANDOM = np.random.default_rng(0).bytes(4096)


def zipped(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def npz() -> bytes:
    out = io.BytesIO()
    np.savez(out, a=np.zeros(3))
    return out.getvalue()


GOOD = conv_model().SerializeToString()
NO_GRAPH = onnx.ModelProto(ir_version=8).SerializeToString()
NO_OUTPUTS = conv_model()
del NO_OUTPUTS.graph.output[:]

CASES: dict[str, tuple[bytes, str, str]] = {
    "lfs": (LFS, "Git LFS pointer", "git lfs pull"),
    "html": (b"\n<!DOCTYPE html><html><body>Not Found</body></html>", "web page", "download"),
    "zip": (zipped({"model.onnx": GOOD}), "zip archive that holds model.onnx", "unpack"),
    "other-zip": (zipped({"a.txt": b"a"}), "zip archive of 1 files without a model", ".onnx"),
    "cut-zip": (zipped({"model.onnx": GOOD})[:200], "zip archive that is cut off", "again"),
    "truncated": (GOOD[: len(GOOD) * 6 // 10], "truncated", "again"),
    "empty": (b"", "empty", "again"),
    "random": (RANDOM, "not an ONNX model", ".onnx"),
    "no-graph": (NO_GRAPH, "without a graph", "again"),
    "torchscript": (zipped({"m/code/a.py": b"", "m/constants.pkl": b"", "m/data.pkl": b""}), "TorchScript", "again"),
    "checkpoint": (zipped({"m/data.pkl": b"", "m/data/0": b""}), "PyTorch checkpoint", "torch.export.save"),
    "old-checkpoint": (pickle.dumps(0x1950A86A20F9469CFC6C, 2), "PyTorch checkpoint", "torch.export.save"),
    "npz": (npz(), "NumPy .npz archive", ".onnx"),
    "npy": (b"\x93NUMPY\x01\x00", "NumPy array", ".onnx"),
    "keras": (zipped({"config.json": b"{}", "model.weights.h5": b""}), "Keras", "tf2onnx"),
    "pickle": (pickle.dumps({"w": [1, 2]}), "Python pickle", "torch.export.save"),
    "safetensors": ((2).to_bytes(8, "little") + b"{}", "safetensors", "weights without a graph"),
    "tflite": (b"\x1c\x00\x00\x00TFL3" + bytes(64), "TensorFlow Lite", "ONNX"),
    "ort": (b"\x1c\x00\x00\x00ORTM" + bytes(64), ".ort format", ".onnx"),
    "tensorrt": (b"ftrt" + bytes(64), "TensorRT engine", "built from"),
    "wrapped-tensorrt": (b"\x02\x00\x00\x00{}ftrt" + bytes(64), "TensorRT engine", "built from"),
    "gzip": (gzip.compress(GOOD), "gzip", "unpack"),
    "hdf5": (b"\x89HDF\r\n\x1a\n", "HDF5", "tf2onnx"),
    "xml": (b'<?xml version="1.0"?><net name="m" version="11">', "OpenVINO", ".onnx"),
    "text": (b"ir_version: 8\ngraph { }\n", "text file", ".onnx"),
    "tensorflow-graph": (b"\x0a\x04\x0a\x02ab" * 9, "no ONNX model", ".onnx"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_file_is_named_for_what_it_is(tmp_path: Path, name: str) -> None:
    data, what, remedy = CASES[name]
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        load(path)
    message = str(caught.value)
    assert caught.value.exit_code == 3
    assert "\n" not in message
    assert "model.onnx" in message
    assert what in message
    assert remedy in message
    assert f"({len(data)} bytes)" in message
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


def test_the_good_model_loads_whatever_its_name_is(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(GOOD)
    assert load(path).origin.format == "onnx"


@pytest.mark.parametrize("share", [0.01, 0.1, 0.35, 0.6, 0.9, 0.99])
def test_a_cut_file_never_loads_and_never_raises_another_error(tmp_path: Path, share: float) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(GOOD[: int(len(GOOD) * share)])
    with pytest.raises(ModelError, match=r"truncated|cut off|without a graph"):
        load(path)


def test_damaged_bytes_are_a_model_error_or_load(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    outcomes = set()
    for seed in range(120):
        rng = np.random.default_rng(seed)
        data = bytearray(GOOD)
        for position in rng.integers(0, len(data), 4):
            data[position] ^= int(rng.integers(1, 256))
        path.write_bytes(data)
        try:
            outcomes.add(type(load(path)))
        except ModelError:
            outcomes.add(ModelError)
    assert outcomes == {Model, ModelError}


def test_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "m.onnx"
    folder.mkdir()
    with pytest.raises(ModelError, match="is a folder, not a model file"):
        load(folder)
    (folder / "inner.onnx").write_bytes(GOOD)
    with pytest.raises(ModelError, match=r"such as .*inner\.onnx"):
        load(folder)
    (folder / "saved_model.pb").write_bytes(b"")
    with pytest.raises(ModelError, match="SavedModel"):
        load(folder)


def test_a_missing_file_suggests_its_neighbour(tmp_path: Path) -> None:
    write(tmp_path / "squeezenet.onnx", conv_model())
    with pytest.raises(ModelError, match=r'does not exist\. Did you mean "squeezenet\.onnx"') as caught:
        load(tmp_path / "squeezent.onnx")
    assert caught.value.exit_code == 3
    with pytest.raises(ModelError, match="there is no folder"):
        load(tmp_path / "none" / "m.onnx")
    with pytest.raises(ModelError, match="does not exist"):
        load(tmp_path / "squeezenet.onnx" / "m.onnx")


def test_a_device_and_a_pipe_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    for path in (Path("/dev/zero"), tmp_path / "pipe.onnx"):
        with pytest.raises(ModelError, match="not a regular file"):
            load(path)


def test_an_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "m.onnx", conv_model())

    def denied(*args: object, **kwargs: object) -> object:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(ModelError, match=r"m\.onnx cannot be read: Permission denied"):
        load(path)


def test_a_file_past_the_limit_of_protobuf_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(GOOD)
    os.truncate(path, 2**31 + 10)
    with pytest.raises(ModelError, match=r"2\.15 GB.*larger than an ONNX file can be"):
        load(path)


def test_without_outputs_or_operator_sets_or_with_old_ones(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no outputs"):
        load(write(tmp_path / "a.onnx", NO_OUTPUTS))
    proto = conv_model()
    proto.opset_import[0].version = 6
    with pytest.raises(ModelError, match="operator set 6; the oldest supported is 7"):
        load(write(tmp_path / "b.onnx", proto))
    proto.opset_import[0].version = 999
    with pytest.raises(ModelError, match="operator set 999"):
        load(write(tmp_path / "c.onnx", proto))
    del proto.opset_import[:]
    with pytest.raises(ModelError, match="without operator set versions"):
        load(write(tmp_path / "d.onnx", proto))
    proto = conv_model()
    proto.ir_version = 99
    with pytest.raises(ModelError, match="IR version 99"):
        load(write(tmp_path / "e.onnx", proto))


def test_the_words_of_a_fresh_process(tmp_path: Path) -> None:
    """No library below prints anything of its own."""
    path = tmp_path / "m.onnx"
    path.write_bytes(GOOD[:200])
    code = f"""
import sys
from edgeopt.errors import EdgeoptError
from edgeopt.loaders import load
try:
    load({str(path)!r})
except EdgeoptError as error:
    print(error)
    sys.exit(error.exit_code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert (
        done.stdout
        == f"{path} (200 bytes) is truncated: an ONNX file that stops before its end: copy or download it again.\n"
    )
    assert done.stderr == ""
