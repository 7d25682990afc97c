"""Values as bytes that hold no code: plain ones, numpy arrays, and the dataclasses and named tuples of edgeopt.

    length of the head, 8 bytes | head: JSON | arrays, each from a multiple of 64 bytes on | sha256 of all before

What ``unpack`` gives is equal to what ``pack`` took, and of the same types: floats bit by bit, tuples as tuples, an
array that two places share as one array. Classes are looked up by name among the loaded modules of edgeopt; making one
runs its ``__init__`` and nothing else.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

_ALIGNMENT = 64
_DIGEST = 32
_KINDS = "biuf"
"""Kinds of numpy types that are held: bool, integers, floats."""


class UnpackableError(ValueError):
    """A value of a kind that is not held."""


class UnreadableError(ValueError):
    """Bytes that are not what ``pack`` made under that name."""


def pack(value: object, name: str) -> list[bytes | memoryview]:
    """The parts of a file, in order.

    Args:
        name: what ``unpack`` asks for, so that a file cannot stand for another.

    Raises:
        UnpackableError: an object of another class, or an array of objects.
    """
    arrays: list[np.ndarray] = []
    tree = _encoded(value, arrays, {})
    rows, offset = [], 0
    for array in arrays:
        rows.append([array.dtype.str, list(array.shape), offset])
        offset += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    text = json.dumps({"name": name, "arrays": rows, "value": tree}, allow_nan=False, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    parts: list[bytes | memoryview] = [len(text).to_bytes(8, "little"), text]
    for array in arrays:
        parts.append(array.reshape(-1).view(np.uint8).data)
        parts.append(bytes(-array.nbytes % _ALIGNMENT))
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return [*parts, digest.digest()]


def unpack(data: bytearray, name: str) -> Any:
    """The value that ``pack`` took; arrays are views of ``data``.

    Raises:
        UnreadableError: it is damaged, of another name, or of classes that are not here.
    """
    body = memoryview(data)[:-_DIGEST]
    if len(data) < 8 + _DIGEST or hashlib.sha256(body).digest() != bytes(data[-_DIGEST:]):
        raise UnreadableError("the digest is not that of the contents")
    start = 8 + int.from_bytes(body[:8], "little")
    try:
        head = json.loads(bytes(body[8:start]))
        if head["name"] != name:
            raise UnreadableError("it is of another key")
        arrays = [_array(data, start + offset, dtype, shape) for dtype, shape, offset in head["arrays"]]
        return _decoded(head["value"], arrays)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise UnreadableError(str(error)) from error


def _array(data: bytearray, offset: int, dtype: str, shape: list[int]) -> np.ndarray:
    kind = np.dtype(dtype)
    if kind.kind not in _KINDS:
        raise UnreadableError(f"an array of {dtype}")
    return np.frombuffer(data, kind, math.prod(shape), offset).reshape(shape)


def _encoded(value: Any, arrays: list[np.ndarray], seen: dict[int, int]) -> Any:
    """JSON for a value; every object in it says what it is by its only key."""
    if isinstance(value, np.generic):
        return {"scalar": _encoded(np.asarray(value), arrays, {})}
    if value is None or type(value) in (bool, int, str):  # no subclass: an enum would come back as a number
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in _KINDS:
            raise UnpackableError(str(value.dtype))
        if id(value) not in seen:
            seen[id(value)] = len(arrays)
            arrays.append(np.ascontiguousarray(value).reshape(value.shape))
        return {"array": seen[id(value)]}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, list):
        return [_encoded(item, arrays, seen) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f.name for f in dataclasses.fields(value)]
        return {"class": _named(type(value)), "of": [[n, _encoded(getattr(value, n), arrays, seen)] for n in fields]}
    if isinstance(value, tuple):
        items = [_encoded(item, arrays, seen) for item in value]
        return {"class": _named(type(value)), "items": items} if hasattr(value, "_fields") else {"tuple": items}
    if isinstance(value, (frozenset, set)):
        items = sorted((_encoded(item, arrays, seen) for item in value), key=json.dumps)
        return {"frozenset" if isinstance(value, frozenset) else "set": items}
    if isinstance(value, Mapping):
        return {"map": [[_encoded(k, arrays, seen), _encoded(v, arrays, seen)] for k, v in value.items()]}
    raise UnpackableError(type(value).__name__)


def _decoded(tree: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(tree, list):
        return [_decoded(item, arrays) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "class" in tree:
        made = _class(tree["class"])
        if "items" in tree:
            return made(*(_decoded(item, arrays) for item in tree["items"]))
        return made(**{name: _decoded(item, arrays) for name, item in tree["of"]})
    ((kind, inside),) = tree.items()
    match kind:
        case "array":
            return arrays[inside]
        case "scalar":
            return _decoded(inside, arrays)[()]
        case "float":
            return float(inside)
        case "bytes":
            return base64.b64decode(inside, validate=True)
        case "tuple" | "set" | "frozenset":
            builtin = {"tuple": tuple, "set": set, "frozenset": frozenset}[kind]
            return builtin(_decoded(item, arrays) for item in inside)
        case "map":
            return {_decoded(k, arrays): _decoded(v, arrays) for k, v in inside}
    raise UnreadableError(f"a value of kind {kind}")


def _named(found: type) -> str:
    name = f"{found.__module__}:{found.__qualname__}"
    if _class(name) is not found:
        raise UnpackableError(name)
    return name


def _class(name: str) -> Any:
    """A dataclass or named tuple of edgeopt."""
    module, _, qualified = name.partition(":")
    found: Any = sys.modules.get(module) if module.startswith("edgeopt.") else None
    for part in qualified.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or not (dataclasses.is_dataclass(found) or hasattr(found, "_fields")):
        raise UnpackableError(name)
    if not found.__module__.startswith("edgeopt."):
        raise UnpackableError(name)
    return found
