"""Weight files for a factory: ``.safetensors`` and what ``torch.save`` wrote, looked at before anything is read.

safetensors: 8 bytes of length, a JSON header of that length with name, type, shape and byte range of every tensor, the
bytes. https://huggingface.co/docs/safetensors
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

from edgeopt.errors import ModelError, did_you_mean
from edgeopt.loaders import pt2_archive
from edgeopt.loaders.sniff import LEGACY_TORCH, refused, size_words
from edgeopt.model import shown

LARGEST_HEADER = 100_000_000
"""Bytes; the format's own limit."""

_TYPES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2}
_TYPES |= {"I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8}
_TORCH_TYPES = {"BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn"}
_TORCH_TYPES |= {"I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16", "I32": "int32", "U32": "uint32"}
_TORCH_TYPES |= {"F32": "float32", "I64": "int64", "U64": "uint64", "F64": "float64"}

_INSIDE = ("state_dict", "model_state_dict", "model")
"""Keys under which training scripts keep the weights beside other things."""
_NAMED = 3
_LEGACY_PICKLES = 5
"""In what torch 1.5 and older wrote: magic number, version, system, the weights, the keys of their storages."""
_EXPORTED = "save the weights with torch.save(model.state_dict(), path) or as safetensors"


class Stored(NamedTuple):
    """One tensor of a safetensors file; ``begin`` counts from the start of the file."""

    name: str
    type: str
    shape: tuple[int, ...]
    begin: int
    bytes: int


def check(path: Path, *, trust_pickle: bool) -> str:
    """``safetensors`` or ``torch``, after the file was looked at without unpickling.

    Raises:
        ModelError: there is no such file, it is something else, damaged, hostile, or asks for more than tensors and
            ``trust_pickle`` is off.
    """
    try:
        if not path.is_file():
            raise ModelError(f"{shown(path)} does not exist.", remedy="--weights takes a .pth or .safetensors file.")
        with path.open("rb") as stream:
            head = stream.read(len(LEGACY_TORCH) + 9)
        if head.startswith(b"PK\x03\x04"):
            _check_zip(path, trust_pickle)
            return "torch"
        if head.startswith(LEGACY_TORCH):
            _check_pickles(path, path.read_bytes(), trust_pickle, count=_LEGACY_PICKLES)
            return "torch"
        if head[:1] == b"\x80":
            raise refused(path, "a Python pickle, but nothing that torch.save wrote", _EXPORTED)
        if head[8:9] == b"{":
            index(path)
            return "safetensors"
    except OSError as error:
        raise ModelError(f"{shown(path)} cannot be read: {error.strerror or error}") from error
    raise refused(path, "no file of weights", _EXPORTED)


def _check_zip(path: Path, trust_pickle: bool) -> None:
    with pt2_archive.open_zip(path) as file:
        archive = pt2_archive.Archive(path, file, "PyTorch checkpoint")
        if any(name in archive.members for name in ("archive_format", "constants.pkl")):
            raise refused(path, "a whole network, not its weights alone", "give it as the model, without --weights")
        if "data.pkl" not in archive.members:
            raise refused(path, "a zip archive without weights", _EXPORTED)
        if archive.members["data.pkl"].file_size > pt2_archive.LARGEST_JSON:
            raise pt2_archive.hostile(path, "its data.pkl is too large")
        _check_pickles(path, archive.read("data.pkl"), trust_pickle)


def _check_pickles(path: Path, data: bytes, trust_pickle: bool, count: int = 1) -> None:
    why = None if trust_pickle else pt2_archive.unusual_pickle(data, count)
    if why:
        raise pt2_archive.hostile(path, f"it is a pickle that {why}, and unpickling runs code")


def index(path: Path) -> list[Stored]:
    """The tensors of a safetensors file, in order of their bytes.

    Raises:
        ModelError: the header is damaged, or tensors lie outside the file, over each other, or apart.
        OSError: the file cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= min(size - 8, LARGEST_HEADER):
            raise _bad(path, f"its header of {length:,} bytes does not fit into {size_words(size)}")
        header = stream.read(length)
    try:
        held = json.loads(header.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"its header is not what safetensors writes ({error})") from error
    if not isinstance(held, dict):
        raise _bad(path, "its header is no table")
    held.pop("__metadata__", None)
    found = sorted((_stored(path, name, entry) for name, entry in held.items()), key=lambda s: (s.begin, s.bytes))
    end = 0
    for one in found:
        if one.begin != end:
            where = "overlaps another tensor" if one.begin < end else "leaves a gap before it"
            raise _bad(path, f"its tensor {shown(one.name)} {where}")
        end = one.begin + one.bytes
    if end != size - 8 - length:
        raise _bad(path, f"its tensors have {end:,} bytes, the file holds {size - 8 - length:,}")
    return [one._replace(begin=one.begin + 8 + length) for one in found]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _stored(path: Path, name: str, entry: Any) -> Stored:
    label = f"its tensor {shown(name)}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _bad(path, f"{label} is not described as safetensors does")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in _TYPES:
        raise _bad(path, f"{label} has the unknown type {shown(str(kind))}")
    for numbers in (shape, offsets):
        if not isinstance(numbers, list) or not all(type(n) is int and 0 <= n < 2**63 for n in numbers):
            raise _bad(path, f"{label} has a shape or place that is no list of numbers")
    if len(offsets) != 2 or len(shape) > 64:
        raise _bad(path, f"{label} has no plain shape and place")
    wanted = math.prod(shape) * _TYPES[kind]
    if offsets[1] - offsets[0] != wanted:
        raise _bad(path, f"{label} has {offsets[1] - offsets[0]:,} bytes, its shape {shape} needs {wanted:,}")
    return Stored(name, kind, tuple(shape), offsets[0], wanted)


def _bad(path: Path, why: str) -> ModelError:
    return ModelError(f"{shown(path)} is a damaged safetensors file: {why}.", remedy="Copy or save it again.")


def read(path: Path, kind: str, *, trust_pickle: bool) -> dict[str, Any]:
    """The state dict in a file that ``check`` accepted: torch tensors by name, on the CPU. Imports torch.

    What training scripts keep beside the weights is left out, and the ``module.`` that DataParallel writes.

    Raises:
        ModelError: torch cannot read it, or it holds no state dict.
    """
    import torch

    if kind == "safetensors":
        with path.open("rb") as stream:
            return {one.name: _tensor(stream, one) for one in index(path)}
    try:
        held = torch.load(path, map_location="cpu", weights_only=not trust_pickle)
    except Exception as error:  # a trusted pickle may raise anything
        lines = str(error).strip().splitlines()
        raise ModelError(
            f"{shown(path)} cannot be read by torch: {lines[0] if lines else type(error).__name__}",
            remedy=f"{_EXPORTED[0].upper()}{_EXPORTED[1:]}.",
        ) from error
    if isinstance(held, torch.nn.Module):
        held = held.state_dict()
    for key in _INSIDE:
        if isinstance(held, dict) and isinstance(held.get(key), dict):
            held = held[key]
            break
    if not isinstance(held, dict) or not held or not all(isinstance(t, torch.Tensor) for t in held.values()):
        raise ModelError(f"{shown(path)} holds no state dict.", remedy=f"{_EXPORTED[0].upper()}{_EXPORTED[1:]}.")
    if all(name.startswith("module.") for name in held):
        held = {name.removeprefix("module."): tensor for name, tensor in held.items()}
    return dict(held)


def _tensor(stream: Any, one: Stored) -> Any:
    import torch

    kind = getattr(torch, _TORCH_TYPES[one.type])
    if one.bytes == 0:
        return torch.empty(one.shape, dtype=kind)
    stream.seek(one.begin)
    return torch.frombuffer(bytearray(stream.read(one.bytes)), dtype=kind).reshape(one.shape)


def put(module: Any, state: dict[str, Any], weights: str, factory: str) -> None:
    """Load ``state`` into ``module``: every weight, and no other.

    Tied weights may be stored under one of their names.

    Raises:
        ModelError: names are missing or left over, or shapes differ; the first few are named.
    """
    own = module.state_dict(keep_vars=True)
    given = {own[name].data_ptr() for name in state if name in own and own[name].numel()}
    missing = [name for name, held in own.items() if name not in state and held.data_ptr() not in given]
    left = [name for name in state if name not in own]
    if missing or left:
        parts = [f"{weights} does not fit the network of {factory}"]
        parts += [f"{len(missing)} weights are missing ({_few(missing)})"] if missing else []
        parts += [f"{len(left)} are unknown ({_few(left)})"] if left else []
        hint = did_you_mean(left[0], missing) if left and missing else ""
        raise ModelError("; ".join(parts) + f".{hint}", remedy="Give the weights of this network, or another factory.")
    wrong = [
        f"{name} {list(tensor.shape)} for {list(own[name].shape)}"
        for name, tensor in state.items()
        if tensor.shape != own[name].shape
    ]
    if wrong:
        raise ModelError(f"{weights} does not fit the network of {factory}: {_few(wrong)}.")
    module.load_state_dict(state, strict=False)


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(re.sub(r"[^ -~]", "?", name) for name in names[:_NAMED]) + more
