"""The runtime's own file format: what a ``.ort`` file holds, and the same bytes for the same model.

A ``.ort`` file is a FlatBuffer. onnxruntime writes its index of operator types in the order of a hash table, which
changes from run to run; ``ordered`` writes that index anew, sorted, and leaves the model behind it as it is.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from edgeopt.errors import ModelError
from edgeopt.model import shown

MAGIC = b"ORTM"
_ALIGN = 64

# Numbers of the fields in the tables of onnxruntime's schema, ort.fbs.
_VERSION, _MODEL, _RESOLVER = 0, 1, 3
_IR_VERSION, _OPSETS, _GRAPH = 0, 1, 7
_NODES = 2
_NAME, _DOMAIN, _OP, _INPUTS, _ATTRIBUTES = 0, 2, 5, 8, 10
_SUBGRAPH, _SUBGRAPHS = 7, 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class OrtNode:
    """A node: its key, operator, input names ("" where one is left out) and names of attributes."""

    name: str
    domain: str
    op: str
    inputs: tuple[str, ...]
    attributes: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class OrtModel:
    """What a ``.ort`` file says of itself; nodes of subgraphs stand behind the node that holds them."""

    format: str
    ir_version: int
    opsets: Mapping[str, int]
    nodes: tuple[OrtNode, ...]


def is_ort(path: Path) -> bool:
    """Whether the file has the mark of the format."""
    with path.open("rb") as stream:
        return stream.read(8)[4:] == MAGIC


def read(path: Path) -> OrtModel:
    """Parse a ``.ort`` file; no weight is read.

    Raises:
        ModelError: it is damaged, cut off, or something else.
    """
    data = path.read_bytes()
    if data[4:8] != MAGIC:
        raise ModelError(f"{shown(path)} is no .ort file.")
    try:
        return _parse(data)
    except (struct.error, IndexError, UnicodeDecodeError, RecursionError, _DamagedError) as error:
        raise ModelError(
            f"{shown(path)} is damaged: a .ort file that stops before its end, or points outside itself.",
            remedy="Copy or build it again.",
        ) from error


def ordered(data: bytes) -> bytes:
    """The same model with its index of operator types sorted.

    Raises:
        ModelError: the file is laid out in a way that this version of edgeopt does not know.
    """
    try:
        return _ordered(data)
    except (struct.error, IndexError, _DamagedError) as error:
        raise ModelError(
            "onnxruntime wrote a .ort file whose layout is not known here.",
            remedy='Set format = "onnx" in the profile, or use another release of onnxruntime.',
        ) from error


class _DamagedError(Exception):
    """An offset that leads outside the file."""


def _u32(data: bytes, at: int) -> int:
    if at < 0:
        raise _DamagedError
    return int(struct.unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, number: int) -> int | None:
    """Position of a field, None when the table does not have it."""
    vtable = table - int(struct.unpack_from("<i", data, table)[0])
    if vtable < 0:
        raise _DamagedError
    size = struct.unpack_from("<H", data, vtable)[0]
    slot = 4 + 2 * number
    offset = struct.unpack_from("<H", data, vtable + slot)[0] if slot + 2 <= size else 0
    return table + offset if offset else None


def _target(data: bytes, at: int | None) -> int | None:
    """Where an offset field leads."""
    if at is None:
        return None
    found = at + _u32(data, at)
    if not 0 < found <= len(data) - 4:
        raise _DamagedError
    return found


def _text(data: bytes, at: int | None) -> str:
    place = _target(data, at)
    if place is None:
        return ""
    size = _u32(data, place)
    if place + 4 + size > len(data):
        raise _DamagedError
    return data[place + 4 : place + 4 + size].decode("utf-8")


def _items(data: bytes, at: int | None) -> list[int]:
    """Positions of the elements of a vector of offsets."""
    place = _target(data, at)
    if place is None:
        return []
    count = _u32(data, place)
    if place + 4 + 4 * count > len(data):
        raise _DamagedError
    return [place + 4 + 4 * i for i in range(count)]


def _tables(data: bytes, table: int, number: int) -> list[int]:
    found = [_target(data, item) for item in _items(data, _field(data, table, number))]
    return [t for t in found if t is not None]


def _parse(data: bytes) -> OrtModel:
    root = _target(data, 0)
    model = None if root is None else _target(data, _field(data, root, _MODEL))
    graph = None if model is None else _target(data, _field(data, model, _GRAPH))
    if root is None or model is None or graph is None:
        raise _DamagedError
    version = _field(data, model, _IR_VERSION)
    opsets = {}
    for entry in _tables(data, model, _OPSETS):
        at = _field(data, entry, 1)
        opsets[_text(data, _field(data, entry, 0))] = 0 if at is None else struct.unpack_from("<q", data, at)[0]
    return OrtModel(
        format=_text(data, _field(data, root, _VERSION)),
        ir_version=0 if version is None else struct.unpack_from("<q", data, version)[0],
        opsets=opsets,
        nodes=tuple(_nodes(data, graph)),
    )


def _nodes(data: bytes, graph: int) -> Iterator[OrtNode]:
    for node in _tables(data, graph, _NODES):
        attributes = _tables(data, node, _ATTRIBUTES)
        yield OrtNode(
            name=_text(data, _field(data, node, _NAME)),
            domain=_text(data, _field(data, node, _DOMAIN)),
            op=_text(data, _field(data, node, _OP)),
            inputs=tuple(_text(data, item) for item in _items(data, _field(data, node, _INPUTS))),
            attributes=tuple(_text(data, _field(data, a, 0)) for a in attributes),
        )
        for attribute in attributes:
            inner = _target(data, _field(data, attribute, _SUBGRAPH))
            for subgraph in [*([] if inner is None else [inner]), *_tables(data, attribute, _SUBGRAPHS)]:
                yield from _nodes(data, subgraph)


Index = list[tuple[str, list[tuple[str, list[tuple[int, int]]]]]]
"""Operator -> (type parameter -> (0 for an input, 1 for an output; its place))."""


def _ordered(data: bytes) -> bytes:
    root = _target(data, 0)
    if root is None or data[4:8] != MAGIC:
        raise _DamagedError
    model = _target(data, _field(data, root, _MODEL))
    resolver = _target(data, _field(data, root, _RESOLVER))
    if model is None or resolver is None:
        raise _DamagedError
    # What is written first stands last: the model, and everything it refers to, behind the index.
    vtable = model - int(struct.unpack_from("<i", data, model)[0])
    start = min(model, vtable) if 0 < vtable < model else model
    index, end = _read_index(data, resolver)
    if not max(root, end) <= start < len(data):
        raise _DamagedError
    front = _front(sorted(index), _text(data, _field(data, root, _VERSION)))
    pad = -(len(front) + len(data) - start) % _ALIGN
    front += bytes(pad)
    struct.pack_into("<I", front, _MODEL_AT, len(front) + model - start - _MODEL_AT)
    return bytes(front) + data[start:]


def _read_index(data: bytes, resolver: int) -> tuple[Index, int]:
    """The index and where its last table, vector or string begins."""
    index: Index = []
    end = resolver
    for entry in _tables(data, resolver, 0):
        parameters = []
        for parameter in _tables(data, entry, 1):
            places = []
            for place in _tables(data, parameter, 1):
                kind, number = _field(data, place, 0), _field(data, place, 1)
                places.append((0 if kind is None else data[kind], 0 if number is None else _u32(data, number)))
                end = max(end, place)
            parameters.append((_text(data, _field(data, parameter, 0)), places))
            end = max(end, parameter)
        index.append((_text(data, _field(data, entry, 0)), sorted(parameters)))
        end = max(end, entry)
    return index, end


_MODEL_AT = 8 + 12 + 8
"""Where the front has the offset of the model: after the mark, the vtable of the root and two of its words."""


def _front(index: Index, version: str) -> bytearray:
    """The root table and the index. Offsets lead forward only, so each thing is written after what refers to it."""
    front = bytearray(struct.pack("<I4s", 20, MAGIC))
    front += struct.pack("<6H", 12, 16, 4, 8, 0, 12)  # vtable of the root: version, model, nothing, index
    root = len(front)
    front += struct.pack("<i3I", 12, 0, 0, 0)
    one, two, place = (len(front) + n for n in (0, 8, 16))
    front += struct.pack("<4H", 6, 8, 4, 0)  # a table of one offset
    front += struct.pack("<4H", 8, 12, 4, 8)  # of two offsets
    front += struct.pack("<4H", 8, 12, 8, 4)  # of a byte and a number

    def table(vtable: int, words: int) -> int:
        at = len(front)
        front.extend(struct.pack("<i", at - vtable) + bytes(4 * words))
        return at

    def link(at: int, target: int) -> None:
        struct.pack_into("<I", front, at, target - at)

    def text(word: str) -> int:
        at, raw = len(front), word.encode()
        front.extend(struct.pack("<I", len(raw)) + raw + bytes(4 - len(raw) % 4))
        return at

    def vector(count: int) -> int:
        at = len(front)
        front.extend(struct.pack("<I", count) + bytes(4 * count))
        return at

    link(root + 4, text(version))
    resolver = table(one, 1)
    link(root + 12, resolver)
    entries = vector(len(index))
    link(resolver + 4, entries)
    for i, (op, parameters) in enumerate(index):
        entry = table(two, 2)
        link(entries + 4 + 4 * i, entry)
        link(entry + 4, text(op))
        inner = vector(len(parameters))
        link(entry + 8, inner)
        for j, (word, places) in enumerate(parameters):
            parameter = table(two, 2)
            link(inner + 4 + 4 * j, parameter)
            link(parameter + 4, text(word))
            numbers = vector(len(places))
            link(parameter + 8, numbers)
            for k, (kind, number) in enumerate(places):
                at = table(place, 2)
                link(numbers + 4 + 4 * k, at)
                struct.pack_into("<IB", front, at + 4, number, kind)
    return front
