"""Checks every stored tensor of an ONNX file before any work, and maps external data into memory.

Where external data may lie. A location is resolved against the folder of the model file as it was given,
never against the current directory. It must be a relative path without ``..``. What it resolves to, links
followed, must be a regular file inside that folder, or inside the folder of the file that the model itself
resolves to: download caches keep a model and its data as links into one folder of blobs.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from edgeopt.errors import ModelError
from edgeopt.loaders.sniff import size_words
from edgeopt.model import shown

_MOVED = "Keep the model and its data file together in one folder, as they were saved."
_HOSTILE = "Such a file may come from somebody who wants other files read; do not use it."

Buffers = dict[str, np.ndarray[Any, np.dtype[np.uint8]]]
"""External data by location: read-only memory maps as flat bytes."""


def graphs_of(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """The main graph, the functions, and every graph nested in them."""
    stack: list[onnx.GraphProto | onnx.FunctionProto] = [*proto.functions, proto.graph]
    while stack:
        graph = stack.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                stack.extend(attribute.graphs)
                if attribute.HasField("g"):
                    stack.append(attribute.g)


def tensors_of(proto: onnx.ModelProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Every dense tensor with the name to use in messages: initializers and attributes of all graphs."""
    for graph in graphs_of(proto):
        if isinstance(graph, onnx.GraphProto):
            for tensor in graph.initializer:
                yield tensor.name, tensor
        for node in graph.node:
            for attribute in node.attribute:
                for tensor in (*attribute.tensors, *([attribute.t] if attribute.HasField("t") else [])):
                    yield (
                        tensor.name or f"{node.op_type}.{attribute.name} of {node.output[0] if node.output else ''}",
                        tensor,
                    )
    for sparse in sparse_of(proto):
        yield sparse.values.name, sparse.values
        yield f"indices of {sparse.values.name}", sparse.indices


def sparse_of(proto: onnx.ModelProto) -> Iterator[onnx.SparseTensorProto]:
    """Every sparse tensor: initializers and attributes of all graphs."""
    for graph in graphs_of(proto):
        if isinstance(graph, onnx.GraphProto):
            yield from graph.sparse_initializer
        for node in graph.node:
            for attribute in node.attribute:
                yield from attribute.sparse_tensors
                if attribute.HasField("sparse_tensor"):
                    yield attribute.sparse_tensor


def check(proto: onnx.ModelProto, path: Path) -> tuple[Buffers, tuple[Path, ...]]:
    """Hold every tensor against its declared shape and type; open the external files.

    Returns the memory maps by location, and the files in order of first use, as named beside ``path``.

    Raises:
        ModelError: a tensor's data is missing, short, long, or lies where it must not; names tensor and file.
    """
    buffers: Buffers = {}
    for name, tensor in tensors_of(proto):
        wanted = _bytes_wanted(name, tensor, path)
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _check_external(name, tensor, wanted, path, buffers)
        else:
            _check_embedded(name, tensor, wanted, path)
    files = {(path.parent / location).resolve(): path.parent / location for location in buffers}
    return buffers, tuple(files.values())


def _bytes_wanted(name: str, tensor: onnx.TensorProto, path: Path) -> int | None:
    """Bytes that shape and type ask for; None for strings."""
    label = f'{shown(path)}: tensor "{name}"'
    if any(d < 0 for d in tensor.dims):
        raise ModelError(f"{label} has a negative dimension: {list(tensor.dims)}.")
    if tensor.data_type == onnx.TensorProto.STRING:
        return None
    try:
        bits: int = ir.DataType(tensor.data_type).bitwidth
    except (ValueError, TypeError) as error:
        raise ModelError(f"{label} has the unknown data type {tensor.data_type}.") from error
    elements: int = math.prod(tensor.dims)
    return -(-elements * bits // 8)


def _check_embedded(name: str, tensor: onnx.TensorProto, wanted: int | None, path: Path) -> None:
    elements = math.prod(tensor.dims)
    if wanted is None:
        held, expected, unit = len(tensor.string_data), elements, "strings"
    elif tensor.HasField("raw_data"):
        held, expected, unit = len(tensor.raw_data), wanted, "bytes"
    else:
        held = sum(
            len(field)
            for field in (
                tensor.float_data,
                tensor.double_data,
                tensor.int32_data,
                tensor.int64_data,
                tensor.uint64_data,
            )
        )
        kind = ir.DataType(tensor.data_type)
        expected, unit = elements, "values"
        if kind in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
            expected = 2 * elements
        elif kind.bitwidth < 8:
            expected = wanted  # packed: one value of the field is one byte
    if held != expected:
        raise ModelError(
            f'{shown(path)}: tensor "{name}" holds {held} {unit}, its shape {list(tensor.dims)} needs {expected}.',
            remedy="The file is damaged or was edited; export or download it again.",
        )


def _check_external(name: str, tensor: onnx.TensorProto, wanted: int | None, path: Path, buffers: Buffers) -> None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    label = f'{shown(path)}: tensor "{name}"'
    if wanted is None:
        raise ModelError(f"{label} is a string tensor with external data, which ONNX does not allow.")
    offset, length = _number(label, entries, "offset", 0), _number(label, entries, "length", wanted)
    if location not in buffers:
        buffers[location] = _open(label, location, path)
    file, size = shown(location), buffers[location].size
    if length != wanted:
        raise ModelError(f"{label} has {length} bytes in {file}, its shape {list(tensor.dims)} needs {wanted}.")
    if offset + length > size:
        raise ModelError(
            f"{label} needs the bytes {offset} to {offset + length} of {file}, which has {size} ({size_words(size)}).",
            remedy=f"{file} is cut off or belongs to another model; copy it again.",
        )
    # What is read later is what was checked now: one entry a key, plain numbers.
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def _number(label: str, entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ModelError(f'{label} has the {key} "{shown(text)}" for its external data, not a number.')
    return int(text)


def _open(label: str, location: str, path: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Map the file at ``location``; the checks are made on the open file, so that it cannot be swapped after them."""
    name = shown(location)
    parts = (*PurePosixPath(location).parts, *PureWindowsPath(location).parts)
    if not location or "\0" in location:
        raise ModelError(f"{label} has external data without a usable location.", remedy=_MOVED)
    if PurePosixPath(location).is_absolute() or PureWindowsPath(location).anchor or ".." in parts:
        raise ModelError(f"{label} has its data at {name}, outside the model's folder: refused.", remedy=_HOSTILE)
    given = path.parent / location
    try:
        real = given.resolve(strict=True)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ModelError(f"{label} has its data in {name}, which is missing.", remedy=_MOVED) from error
    except (OSError, RuntimeError) as error:  # a loop of links
        raise ModelError(f"{label} has its data in {name}, which cannot be read: {error}.") from error
    homes = (path.parent.resolve(), path.resolve().parent)
    if not any(real.is_relative_to(home) for home in homes):
        raise ModelError(
            f"{label} has its data at {name}, a link that leaves the model's folder: refused.", remedy=_HOSTILE
        )
    try:
        # Without O_NONBLOCK opening a named pipe waits for a writer.
        descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise ModelError(f"{label} has its data in {name}, which cannot be read: {error.strerror}.") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ModelError(f"{label} has its data in {name}, which is not a regular file: refused.", remedy=_HOSTILE)
        if status.st_size == 0:
            return np.empty(0, np.uint8)
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            return np.asarray(np.memmap(stream, np.uint8, mode="r"))
    finally:
        os.close(descriptor)


def attach(model: ir.Model, buffers: Buffers) -> None:
    """Replace external tensors by views of the memory maps; nothing is read yet."""
    if not buffers:
        return
    for graph in (*model.graphs(), *(f.graph for f in model.functions.values())):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = _view(value.const_value, buffers)
        for node in graph.all_nodes():
            for attribute in list(node.attributes.values()):
                if attribute.is_ref():
                    continue
                if attribute.type == ir.AttributeType.TENSOR and isinstance(attribute.value, ir.ExternalTensor):
                    node.attributes.add(ir.AttrTensor(attribute.name, _view(attribute.value, buffers)))
                elif attribute.type == ir.AttributeType.TENSORS:
                    held = attribute.as_tensors()
                    views = [_view(t, buffers) if isinstance(t, ir.ExternalTensor) else t for t in held]
                    node.attributes.add(ir.AttrTensors(attribute.name, views))


def _view(tensor: ir.ExternalTensor, buffers: Buffers) -> ir.TensorProtocol:
    offset, length = tensor.offset or 0, tensor.length or 0
    data = buffers[str(tensor.location)][offset : offset + length]
    shape = ir.Shape(tensor.shape.numpy())
    if tensor.dtype.bitwidth < 8:
        return ir.PackedTensor(data, tensor.dtype, shape=shape, name=tensor.name)
    return ir.Tensor(
        data.view(tensor.dtype.numpy()).reshape(shape.numpy()), dtype=tensor.dtype, shape=shape, name=tensor.name
    )
