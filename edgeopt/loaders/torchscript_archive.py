"""TorchScript archives (``torch.jit.save``): what is in one, and a copy that is safe to give to torch.

torch.jit.load (seen in torch 2.13) does not run Python. Its own reader of pickles knows tensors, lists and the classes
of the archive, and the code in it is TorchScript: a language with arithmetic, loops and torch operators, without
imports. A planted Python pickle is an error there, not an execution. What remains: operators that read and write files
(``from_file``, ``save``) or call other machines, classes of compiled libraries, code that runs while loading
(``__setstate__``), and a reader that trusts the sizes in the pickles and reads past a short storage. So the code is
parsed here and searched for such operators, the pickles are read by a reader that builds nothing, every tensor is held
against its storage, and torch gets a new archive with these parts alone.
"""

from __future__ import annotations

import ast
import io
import math
import pickle
import pickletools
import re
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

from edgeopt.errors import ModelError
from edgeopt.loaders.pt2_archive import LARGEST_JSON, Archive, hostile, open_zip, refuse_members
from edgeopt.model import shown

WHAT = "TorchScript archive"

_PICKLES = ("data", "constants", "traced_inputs")
_CODE = re.compile(r"code/__torch__(/\w+)*\.py", re.ASCII)
_VERSION = re.compile(rb"\d{1,4}\s*")

_OPCODES = re.compile(
    "PROTO|GLOBAL|(LONG_)?BIN(PUT|GET)|MARK|NONE|NEWTRUE|NEWFALSE|BININT[12]?|LONG1|BINFLOAT|BINUNICODE|(EMPTY_)?TUPLE"
    "|TUPLE[123]|(EMPTY_)?LIST|APPENDS?|(EMPTY_)?DICT|SETITEMS?|BINPERSID|REDUCE|NEWOBJ|BUILD|STOP"
)
"""What torch's writer makes and its reader knows; Python's has more, and the two must not read differently."""

_ITEM_BYTES = {"Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4}
_ITEM_BYTES |= {"Long": 8, "Double": 8, "ComplexFloat": 8, "ComplexDouble": 16}
_DTYPES = {"Byte": "uint8", "Char": "int8", "Bool": "bool", "Short": "int16", "Half": "float16", "Int": "int32"}
_DTYPES |= {"Float": "float32", "Long": "int64", "Double": "float64"}

_REACHES_OUT = re.compile(
    r"from_file|save|load|rpc_\w+|(Ignored)?PythonOp|AddStatValue|_unsafe_(masked_)?index\w*|_sparse_\w+_unsafe|_backward",
    re.ASCII,
)
"""Operators that touch files, other machines or unchecked memory."""
_NAMESPACES = ("aten", "prim", "torchvision")


class TracedInput(NamedTuple):
    """An input as ``torch.jit.trace`` saw it."""

    sizes: tuple[int, ...]
    dtype: str


class _RefusedError(Exception):
    """What no exporter writes; the message goes on after "its member NAME "."""


def refuse_hostile(path: Path) -> None:
    """The checks that hold for trusted files too: names, sizes, damage.

    Raises:
        ModelError: the archive is damaged, or its members leave their folder.
    """
    with open_zip(path) as file:
        Archive(path, file, WHAT)


def rewrite(path: Path, copy: Path) -> list[TracedInput]:
    """Write an archive with the checked code, pickles and tensors of ``path`` to ``copy``.

    Returns the inputs that the file itself tells of: those of a traced network, in order; none of a scripted one.

    Raises:
        ModelError: a member holds what no exporter writes, or the archive is damaged.
    """
    with open_zip(path) as file:
        archive = Archive(path, file, WHAT)
        _check_format(archive)
        refuse_members(archive)
        traced: list[TracedInput] = []
        with zipfile.ZipFile(copy, "w", zipfile.ZIP_STORED) as out:
            out.writestr("network/version", archive.read("version"))
            out.writestr("network/byteorder", b"little")
            for name in archive.members:
                if _CODE.fullmatch(name):
                    _check(archive, name, _check_code)
                    out.writestr(f"network/{name}", archive.read(name))
            for folder in _PICKLES:
                name = f"{folder}.pkl"
                if name not in archive.members and folder == "traced_inputs":
                    continue
                reader = _Reader(archive, folder)
                held = _check(archive, name, reader.read)
                if folder == "traced_inputs":
                    traced = _traced(held)
                    continue
                out.writestr(f"network/{name}", archive.read(name))
                for key in sorted(reader.storages):
                    out.writestr(f"network/{folder}/{key}", archive.read(f"{folder}/{key}"))
    return traced


def _check(archive: Archive, name: str, check: Any) -> Any:
    if name in archive.members and archive.members[name].file_size > LARGEST_JSON:
        raise hostile(archive.path, f"its member {name} has {archive.members[name].file_size:,} bytes")
    data = archive.read(name)
    try:
        return check(data)
    except _RefusedError as error:
        raise hostile(archive.path, f"its member {shown(name)} {error}") from error
    except RecursionError as error:
        raise hostile(archive.path, f"its member {shown(name)} is nested too deeply") from error


def _check_format(archive: Archive) -> None:
    path, names = archive.path, archive.members
    for name in ("version", "byteorder"):
        if name in names and names[name].file_size > 64:
            raise hostile(path, f"its member {name} is not what torch writes")
    if not _VERSION.fullmatch(archive.read("version")):
        raise hostile(path, "its member version is not what torch writes")
    if "byteorder" in names and archive.read("byteorder") != b"little":
        raise ModelError(
            f"{shown(path)} was saved on a big-endian machine.", remedy="Save it again on an ordinary one."
        )


def _check_code(data: bytes) -> None:
    """TorchScript reads as Python, so Python's parser finds every name in it; nothing is compiled."""
    try:
        tree = ast.parse(data.decode("utf-8"))
    except (SyntaxError, ValueError, MemoryError) as error:
        raise _RefusedError("is no TorchScript") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and _REACHES_OUT.fullmatch(node.id):
            raise _RefusedError(f"uses {node.id}, which reaches outside the network")
        if isinstance(node, ast.Attribute):
            _check_attribute(node)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "torch.classes" in node.value:
            raise _RefusedError("uses a class of a compiled library")


def _check_attribute(node: ast.Attribute) -> None:
    if _REACHES_OUT.fullmatch(node.attr):
        raise _RefusedError(f"uses {node.attr}, which reaches outside the network")
    chain: list[str] = [node.attr]
    root = node.value
    while isinstance(root, ast.Attribute):
        chain.insert(0, root.attr)
        root = root.value
    if not isinstance(root, ast.Name):
        return
    if root.id == "ops" and chain[0] not in _NAMESPACES:
        raise _RefusedError(f"uses the operator {'.'.join(chain)}, which torch alone does not have")
    if root.id == "__torch__" and chain[:2] == ["torch", "classes"]:
        raise _RefusedError(f"uses the class {'.'.join(chain[2:])} of a compiled library")


class _Stub:
    """Stands for an object of the archive's own classes, and for every container that torch tags with a type."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Tensor(NamedTuple):
    sizes: tuple[int, ...]
    kind: str


class _Storage(NamedTuple):
    key: str
    kind: str
    elements: int


class _Reader:
    """Reads a pickle of the archive without building anything: names stay names, tensors become their sizes."""

    def __init__(self, archive: Archive, folder: str) -> None:
        self.archive = archive
        self.folder = folder
        self.storages: set[str] = set()

    def read(self, data: bytes) -> object:
        try:
            for count, (code, argument, _) in enumerate(pickletools.genops(data)):
                if not _OPCODES.fullmatch(code.name):
                    raise _RefusedError(f"is a pickle with the instruction {code.name}, which torch does not write")
                # Python's reader would make its table of names as long as this number.
                if code.name == "LONG_BINPUT" and int(str(argument)) > count:
                    raise _RefusedError("is a pickle that numbers its parts as torch does not")
        except ValueError as error:
            raise _RefusedError("is a pickle that cannot be read") from error
        outer = self

        class Unpickler(pickle.Unpickler):
            def find_class(self, module: str, name: str) -> Any:
                return outer.named(module, name)

            def persistent_load(self, pid: Any) -> Any:
                return outer.storage(pid)

        try:
            return Unpickler(io.BytesIO(data)).load()
        except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
            raise _RefusedError("is a pickle that cannot be read") from error

    def named(self, module: str, name: str) -> Any:
        """What a name in the pickle stands for here."""
        full = f"{module}.{name}"
        if full == "torch._utils._rebuild_tensor_v2":
            return self.tensor
        if full == "torch.jit._pickle.restore_type_tag":
            return lambda held, tag: held
        if re.fullmatch(r"torch\.jit\._pickle\.build_(int|tensor|double|bool)list", full):
            return lambda held: held
        if full in ("collections.OrderedDict", "torch.device", "builtins.complex"):
            return _Stub
        storage = re.fullmatch(r"torch\.(\w+)Storage", full, re.ASCII)
        if storage and storage[1] in _ITEM_BYTES:
            return storage[1]
        if full.startswith("__torch__.torch.classes."):
            raise _RefusedError(
                f"holds an object of the compiled class {shown(full[len('__torch__.torch.classes.') :])}"
            )
        if re.fullmatch(r"__torch__(\.\w+)+", full, re.ASCII):
            return _Stub
        raise _RefusedError(f"is a pickle that asks for {shown(full)}")

    def storage(self, pid: Any) -> _Storage:
        """A stored tensor's bytes, which must be as many as the pickle says."""
        word, kind, key, device, elements = pid
        plain = word == "storage" and kind in _ITEM_BYTES and isinstance(elements, int) and elements >= 0
        if not plain or not isinstance(key, str) or not re.fullmatch(r"\d{1,9}", key, re.ASCII):
            raise _RefusedError("has a tensor storage that torch does not write")
        if not isinstance(device, str) or not re.fullmatch(r"[a-z]{1,16}(:\d{1,3})?", device, re.ASCII):
            raise _RefusedError("has a tensor on no known device")
        if self.folder == "traced_inputs":  # torch writes sizes without values
            return _Storage(key, kind, elements)
        held = self.archive.members.get(f"{self.folder}/{key}")
        if elements and (held is None or held.file_size != elements * _ITEM_BYTES[kind]):
            size = "is missing" if held is None else f"has {held.file_size} bytes"
            raise _RefusedError(f"has {elements} elements of type {kind} in {self.folder}/{key}, which {size}")
        if held is not None:
            self.storages.add(key)
        return _Storage(key, kind, elements)

    def tensor(self, storage: Any, offset: Any, sizes: Any, strides: Any, grad: Any, hooks: Any) -> _Tensor:
        """A tensor, which must lie inside its storage."""
        numbers = (offset, *sizes, *strides)
        if not isinstance(storage, _Storage) or not all(type(n) is int and n >= 0 for n in numbers):
            raise _RefusedError("has a tensor without a plain shape")
        elements = math.prod(sizes)
        extent = offset + 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        if elements and extent > storage.elements:
            raise _RefusedError(f"has a tensor of shape {list(sizes)} in a storage of {storage.elements} elements")
        return _Tensor(tuple(sizes), storage.kind)


def _traced(held: object) -> list[TracedInput]:
    """The inputs of forward; none where one of them is no plain tensor."""
    inputs = held.get("forward") if isinstance(held, dict) else None
    if not isinstance(inputs, list) or not all(isinstance(i, _Tensor) and i.kind in _DTYPES for i in inputs):
        return []
    return [TracedInput(i.sizes, _DTYPES[i.kind]) for i in inputs]
