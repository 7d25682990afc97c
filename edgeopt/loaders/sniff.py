"""Says what a file is from its first bytes, so that a file that is no model is named for what it is."""

from __future__ import annotations

import io
import stat
import zipfile
from pathlib import Path

from edgeopt.errors import ModelError, did_you_mean
from edgeopt.model import shown

HEAD = 1024

PT2_MARKS = ("archive_format", "serialized_exported_program.json")
"""Members that make a zip archive a torch.export program: today's, and that of torch 2.7 and older."""

_EXPORT = "export the network with torch.export.save or torch.onnx.export"
_WEIGHTS = f"{_EXPORT}, or give package.module:function as the model and this file with --weights"
LEGACY_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."

# (offset, magic, what it is, what to do)
_MAGIC: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"version https://git-lfs", "a Git LFS pointer, not the model", "run git lfs pull"),
    (4, b"TFL3", "a TensorFlow Lite model", "give the ONNX or torch.export file it was made from"),
    (4, b"ORTM", "a model in ONNX Runtime's own .ort format", "give the .onnx file it was made from"),
    (0, b"ftrt", "a TensorRT engine, built for one device", "give the .onnx file it was built from"),
    (0, LEGACY_TORCH, "a PyTorch checkpoint: weights without a graph", _WEIGHTS),
    (0, b"\x89HDF\r\n", "an HDF5 file (Keras weights or model)", "convert it with tf2onnx first"),
    (0, b"GGUF", "a GGUF language model", "give an .onnx, .pt2 or TorchScript file"),
    (0, b"\x93NUMPY", "a NumPy array", "give an .onnx, .pt2 or TorchScript file"),
    (0, b"\x1f\x8b", "gzip data", "unpack it first (gunzip, or tar xzf)"),
    (0, b"BZh", "bzip2 data", "unpack it first"),
    (0, b"\xfd7zXZ", "xz data", "unpack it first"),
    (0, b"\x28\xb5\x2f\xfd", "zstandard data", "unpack it first"),
    (0, b"7z\xbc\xaf", "a 7-zip archive", "unpack it first"),
    (257, b"ustar", "a tar archive", "unpack it first"),
    (0, b"\x7fELF", "a program or shared library", "give an .onnx, .pt2 or TorchScript file"),
    (0, b"\x89PNG", "a PNG image", "give an .onnx, .pt2 or TorchScript file"),
    (0, b"\xff\xd8\xff", "a JPEG image", "give an .onnx, .pt2 or TorchScript file"),
    (0, b"%PDF", "a PDF document", "give an .onnx, .pt2 or TorchScript file"),
)


def size_words(size: int) -> str:
    """``130 bytes``, ``18.6 MB``: decimal units, as the file managers show."""
    if size < 10_000:
        return f"{size} bytes"
    for unit, scale in (("kB", 1e3), ("MB", 1e6)):
        if size < scale * 1000:
            return f"{size / scale:.1f} {unit}"
    return f"{size / 1e9:.2f} GB"


def refused(path: Path, what: str, remedy: str) -> ModelError:
    """The one line for a file that is no model: name, size, what it looks like, what to do."""
    return ModelError(f"{shown(path)} ({size_words(path.stat().st_size)}) is {what}: {remedy}.")


def identify(path: Path) -> str:
    """``onnx``, ``pt2`` or ``torchscript``; a file that may be a model is taken for ONNX and parsed.

    Raises:
        ModelError: there is no such file, or it is recognized as something else.
        OSError: the file cannot be read.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _missing(path) from error
    except ValueError as error:  # a NUL in the name
        raise ModelError(f"{shown(path)} is not a possible file name.") from error
    if stat.S_ISDIR(mode):
        raise _folder(path)
    if not stat.S_ISREG(mode):
        raise ModelError(f"{shown(path)} is not a regular file: give the model file itself.")
    with path.open("rb") as stream:
        head = stream.read(HEAD)
    if not head:
        raise refused(path, "an empty file", "copy or download the model again")
    for offset, magic, what, remedy in _MAGIC:
        if head.startswith(magic, offset):
            raise refused(path, what, remedy)
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _zip(path)
    _safetensors_pickle_or_text(path, head)
    return "onnx"


def _missing(path: Path) -> ModelError:
    try:
        names = sorted(p.name for p in path.parent.iterdir() if p.suffix in (".onnx", ".pt2"))
    except OSError:
        return ModelError(f"{shown(path)} does not exist: there is no folder {shown(path.parent)}.")
    hint = did_you_mean(path.name, names)
    return ModelError(f"{shown(path)} does not exist.{shown(hint) if hint else ''}")


def _folder(path: Path) -> ModelError:
    what, remedy = "a folder, not a model file", "give the model file inside"
    if (path / "saved_model.pb").exists():
        what, remedy = "a TensorFlow SavedModel folder", "convert it with tf2onnx first"
    models = sorted(p.name for p in path.iterdir() if p.suffix in (".onnx", ".pt2") and p.is_file())
    if models:
        remedy = f"give the model file inside, such as {shown(path / models[0])}"
    return ModelError(f"{shown(path)} is {what}: {remedy}.")


def _zip(path: Path) -> str:
    """``pt2``, ``torchscript``, or the refusal that tells the zip-based formats apart by the names of their members."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError) as error:
        raise refused(path, "a zip archive that is cut off or damaged", "copy or download it again") from error
    tails = {name.split("/", 1)[-1] for name in names}
    if tails & set(PT2_MARKS):
        return "pt2"
    if "constants.pkl" in tails and any(t.startswith("code/") for t in tails):
        return "torchscript"
    if "data.pkl" in tails:
        raise refused(path, "a PyTorch checkpoint: weights without a graph", _WEIGHTS)
    if names and all(name.endswith(".npy") for name in names):
        raise refused(path, "a NumPy .npz archive of arrays", "give an .onnx, .pt2 or TorchScript file")
    if "model.weights.h5" in tails:
        raise refused(path, "a Keras model", "convert it with tf2onnx first")
    inner = [name for name in names if name.endswith((".onnx", ".pt2"))]
    if inner:
        raise refused(path, f"a zip archive that holds {shown(inner[0])}", "unpack it and give the file inside")
    raise refused(
        path, f"a zip archive of {len(names)} files without a model", "give an .onnx, .pt2 or TorchScript file"
    )


def _safetensors_pickle_or_text(path: Path, head: bytes) -> None:
    size = path.stat().st_size
    length = int.from_bytes(head[:8], "little")
    if head[8:9] == b"{" and 2 <= length <= size - 8:
        raise refused(path, "a safetensors file: weights without a graph", _WEIGHTS)
    wrapped = 4 + int.from_bytes(head[:4], "little")
    if head[4:5] == b"{" and wrapped < size and _at(path, wrapped, 4) == b"ftrt":
        raise refused(path, "a TensorRT engine, built for one device", "give the .onnx file it was built from")
    if head[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        raise refused(path, "a Python pickle, which is never opened", _EXPORT)
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<!--")):
        raise refused(path, "a web page (HTML)", "the download went wrong, download the file itself")
    if text.startswith((b"<?xml", b"<net")):
        if b"<net" in text:
            raise refused(path, "an OpenVINO model", "give the .onnx file it was made from")
        raise refused(path, "an XML file", "give an .onnx, .pt2 or TorchScript file")
    if _is_text(head, size):
        raise refused(path, "a text file", "give an .onnx, .pt2 or TorchScript file")


def _at(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb") as stream:
        stream.seek(offset)
        return stream.read(length)


def _is_text(head: bytes, size: int) -> bool:
    try:
        # A character may be cut at the end of the block.
        text = io.TextIOWrapper(io.BytesIO(head if size <= HEAD else head[:-4]), encoding="utf-8").read()
    except UnicodeDecodeError:
        return False
    return all(c.isprintable() or c in "\r\n\t\f" for c in text)


def wire_report(data: memoryview) -> str:
    """Why bytes do not parse as an ONNX file: ``truncated`` (a field runs past the end) or ``foreign``.

    Walks the fields of the outermost protobuf message; nothing is copied.
    """
    at, fields = 0, 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        # ModelProto has the fields 1 to 9, 14, 20, 25 and 26.
        if at < 0 or not 1 <= number <= 26 or wire not in (0, 1, 2, 5):
            return "truncated" if at < 0 and fields else "foreign"
        if wire == 0:
            _, at = _varint(data, at)
            if at < 0:
                return "truncated" if fields else "foreign"
        elif wire == 2:
            length, at = _varint(data, at)
            if at < 0 or at + length > len(data):
                # ir_version stands before everything that is long.
                return "truncated" if fields else "foreign"
            at += length
        else:
            at += 8 if wire == 1 else 4
        fields += 1
    return "damaged"


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Value and next position of the variable-length number at ``at``; the position is -1 where it is cut off."""
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
        shift += 7
    return 0, -1
