"""The one representation of a network inside edgeopt: an onnx-ir graph with its signature and origin."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import secrets
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import onnx_ir
import onnx_ir as ir

from edgeopt.errors import ModelError, did_you_mean

INTERNAL_OPSET = 20
"""Opset of the default domain that passes and the quantizer may rely on."""

NODE_KEY = "edgeopt.key"
"""Metadata property that carries a node's stable key through rewrites."""

ABSORBED = "edgeopt.absorbed"
"""Metadata property: keys of the nodes that were fused into this one, comma-joined, in order of fusion."""

NODE_NAME = "edgeopt.name"
"""Metadata property that keeps the name a node had in the file, where its key had to differ."""

PROTOBUF_LIMIT = 2**31 - 1
"""Largest protobuf message in bytes; a bigger model needs its tensors in a file beside it."""

LAYOUTS = ("com.microsoft.nchwc", "com.ms.internal.nhwc")
"""Domains of onnxruntime's operators in a layout that belongs to one kind of processor or provider."""

_EXTERNAL_THRESHOLD = 1024
_EXTERNAL_ALIGNMENT = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """Name, numpy dtype name and shape of a graph input or output.

    Symbolic dims are strings, unknown ones are ``"?"``; a tensor of unknown rank has the shape ``("...",)``.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a model came from. ``files`` lists the model file first, then its external data files.

    ``libraries`` are shared libraries with the custom operators that running it takes; they are no part of it.
    ``notes`` says what the loader changed or fixed, one line each.
    """

    path: Path
    format: str
    files: tuple[Path, ...]
    libraries: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Size on disk of all files, in bytes."""
        return sum(f.stat().st_size for f in self.files)

    def sha256(self) -> str:
        """Digest over the contents of all files in order; one file gives its plain sha256."""
        if len(self.files) == 1:
            return file_sha256(self.files[0])
        return hashlib.sha256("".join(file_sha256(f) for f in self.files).encode()).hexdigest()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """A network: the onnx-ir model, its inputs and outputs in order, and its origin.

    The graph inside is never edited in place once a ``Model`` exists: passes work on a clone
    (``clone`` shares tensors) and return a new ``Model``.
    """

    ir: ir.Model
    origin: Origin

    @property
    def graph(self) -> onnx_ir.Graph:
        """The main graph."""
        return self.ir.graph

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """What the caller feeds, in order; initializers that old files list as inputs are left out."""
        return tuple(spec_of(v) for v in self.graph.inputs if not v.is_initializer())

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """What the network returns, in order."""
        return tuple(spec_of(v) for v in self.graph.outputs)

    def clone(self) -> Model:
        """A copy whose graph may be edited; tensors are shared."""
        return dataclasses.replace(self, ir=self.ir.clone())

    def nodes(self) -> Iterator[onnx_ir.Node]:
        """Every node of the main graph and its subgraphs."""
        return iter(self.graph.all_nodes())


def spec_of(value: ir.Value) -> TensorSpec:
    """Describe a graph input or output."""
    dims: tuple[int | str, ...] = ("...",)
    if value.shape is not None:
        dims = tuple(d if isinstance(d, int) else (d.value or "?") for d in value.shape)
    dtype = value.dtype.numpy().name if value.dtype is not None else "unknown"
    return TensorSpec(name=value.name or "", dtype=dtype, shape=dims)


def node_key(node: ir.Node) -> str:
    """The stable key of a node: what reports print and ``--exclude`` takes."""
    return node.metadata_props.get(NODE_KEY) or node.name or ""


def assign_keys(model: ir.Model) -> None:
    """Give every node a unique stable key, kept in its metadata through rewrites.

    A node keeps the key it has. The first node of a name gets that name as its key, the others
    ``name#2``, ``name#3``; an unnamed one gets ``OpType:first_output``. Names that are taken are
    stepped over, so a node called ``conv#2`` in the file stays ``conv#2``. Node names become the
    keys, because runtimes need them unique.
    """
    taken: set[str] = set()
    unnamed_or_repeated: list[ir.Node] = []
    nodes = list(model.graph.all_nodes())
    fresh = []
    for node in nodes:
        key = node.metadata_props.get(NODE_KEY, "")
        if key and key not in taken:
            _set_key(node, key, taken)
        else:
            fresh.append(node)
    for node in fresh:
        if node.name and node.name not in taken:
            _set_key(node, node.name, taken)
        else:
            unnamed_or_repeated.append(node)
    counts: dict[str, int] = {}
    for node in unnamed_or_repeated:
        first_output = next((v.name for v in node.outputs if v.name), "")
        base = node.name or f"{node.op_type}:{first_output}"
        key = base
        while key in taken:
            counts[base] = counts.get(base, 1) + 1
            key = f"{base}#{counts[base]}"
        if node.name:
            node.metadata_props[NODE_NAME] = node.name
        _set_key(node, key, taken)


def _set_key(node: ir.Node, key: str, taken: set[str]) -> None:
    taken.add(key)
    node.metadata_props[NODE_KEY] = key
    node.name = key


def select_keys(model: Model, names: Iterable[str]) -> set[str]:
    """The keys that ``--exclude`` means: a name stands for every node that had it in the file, a key for one node.

    Raises:
        ModelError: no node has that name or key.
    """
    by_name: dict[str, set[str]] = {}
    for node in model.nodes():
        key = node_key(node)
        for name in (key, node.metadata_props.get(NODE_NAME, key)):
            by_name.setdefault(name, set()).add(key)
    selected: set[str] = set()
    for name in names:
        if name not in by_name:
            raise ModelError(
                f'no node is called "{name}".{did_you_mean(name, sorted(by_name))}',
                remedy="`edgeopt inspect MODEL --nodes` lists the keys of all nodes.",
            )
        selected |= by_name[name]
    return selected


def save(model: Model, path: Path, *, external_data: bool = False, in_place: bool = False) -> tuple[Path, ...]:
    """Write the model atomically and return the files written; the same model gives the same bytes.

    Args:
        model: what to write.
        path: the ``.onnx`` file; an existing one is replaced only by a complete new one.
        external_data: put tensors of 1 KiB and more into ``<name>.data`` beside it.
        in_place: allow ``path`` to be a file the model was loaded from.

    Raises:
        ModelError: the path is an input and ``in_place`` is off, the model does not fit into one file,
            or the files cannot be written.
    """
    data_path = path.with_name(path.name + ".data")
    targets = (path, data_path) if external_data else (path,)
    if not in_place:
        for target in targets:
            if any(_same_file(target, source) for source in model.origin.files):
                raise ModelError(
                    f"{shown(target.name)} is the file the model was loaded from; it is not overwritten.",
                    remedy="Write to another path, or ask for in-place writing.",
                )
    tensors: list[tuple[int, ir.TensorProtocol]] = []
    written = model.ir
    if external_data:
        if any("\ud800" <= c <= "\udfff" for c in data_path.name):  # not UTF-8, which protobuf cannot hold
            raise ModelError(
                f"{shown(path.name)} is no valid UTF-8, so the model cannot refer to a data file named after it.",
                remedy="Choose another name, or save into one file.",
            )
        written, tensors = _with_external_tensors(model.ir, data_path.name)
    embedded = sum(t.nbytes for t in _tensors(written) if not isinstance(t, ir.ExternalTensor))
    if embedded >= PROTOBUF_LIMIT:
        raise ModelError(
            f"{shown(path.name)} would hold {embedded:,} bytes of tensors; one ONNX file ends at {PROTOBUF_LIMIT:,}.",
            remedy="Save it with external data.",
        )
    try:
        data = ir.to_proto(written).SerializeToString(deterministic=True)
        if tensors:
            with _replacing(data_path) as stream:
                for offset, tensor in tensors:
                    stream.seek(offset)
                    stream.write(tensor.tobytes())
        with _replacing(path) as stream:
            stream.write(data)
    except OSError as error:
        raise ModelError(f"{shown(path)} cannot be written: {error.strerror or error}") from error
    return targets if tensors else (path,)


def _with_external_tensors(model: ir.Model, location: str) -> tuple[ir.Model, list[tuple[int, ir.TensorProtocol]]]:
    """A clone whose large initializers point into ``location``, and what goes there at which offset."""
    clone = model.clone()
    placed: list[tuple[int, ir.TensorProtocol]] = []
    end = 0
    for graph in clone.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.dtype == ir.DataType.STRING or tensor.nbytes < _EXTERNAL_THRESHOLD:
                continue
            offset = -(-end // _EXTERNAL_ALIGNMENT) * _EXTERNAL_ALIGNMENT
            value.const_value = ir.ExternalTensor(
                location,
                offset,
                tensor.nbytes,
                tensor.dtype,
                shape=ir.Shape(tensor.shape.numpy()),
                name=value.name or "",
            )
            placed.append((offset, tensor))
            end = offset + tensor.nbytes
    return clone, placed


def digest(model: Model) -> str:
    """sha256 over the graph and every tensor in it: alike for models that ``save`` writes as the same bytes."""
    written, placed = _with_external_tensors(model.ir, "")
    found = hashlib.sha256(ir.to_proto(written).SerializeToString(deterministic=True))
    small = [t for t in _tensors(model.ir) if isinstance(t, ir.ExternalTensor) and t.nbytes < _EXTERNAL_THRESHOLD]
    for tensor in (*(tensor for _, tensor in placed), *small):
        found.update(_tensor_digest(tensor))
    return found.hexdigest()


_digests: dict[int, tuple[weakref.ref[ir.TensorProtocol], bytes]] = {}


def _tensor_digest(tensor: ir.TensorProtocol) -> bytes:
    """sha256 of a tensor's bytes. Clones share tensors, and nobody edits one in place, so each is read once."""
    known = _digests.get(id(tensor))
    if known is None or known[0]() is not tensor:
        number = id(tensor)
        gone = weakref.ref(tensor, lambda _: _digests.pop(number, None))
        known = _digests[number] = (gone, hashlib.sha256(tensor.tobytes()).digest())
    return known[1]


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file beside ``path`` that takes its place when the block ends well, and goes away when not."""
    # A short name of its own: the file name may already be as long as the file system allows.
    temporary = path.with_name(f".edgeopt-{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as stream:
            yield stream
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _same_file(a: Path, b: Path) -> bool:
    try:
        return a.samefile(b)
    except OSError:
        return False


def _tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Every tensor stored in the model: initializers of all graphs, and tensors in attributes."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value
    for node in model.graph.all_nodes():
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.TENSOR:
                yield attribute.as_tensor()
            elif attribute.type == ir.AttributeType.TENSORS:
                yield from attribute.as_tensors()


def summary(model: Model) -> dict[str, Any]:
    """What ``inspect`` prints, computed from shapes alone: no weight is read.

    Keys: format, file, bytes, external_files, producer, ir_version, opset, opsets, inputs, outputs, dynamic_dims,
    nodes, ops (count by operator, most frequent first), parameters (elements), weight_bytes.
    """
    counts = collections.Counter(f"{n.domain}.{n.op_type}" if n.domain else n.op_type for n in model.nodes())
    tensors = list(_tensors(model.ir))
    specs = (*model.inputs, *model.outputs)
    opsets = dict(sorted(model.ir.opset_imports.items()))
    return {
        "format": model.origin.format,
        "file": model.origin.path.name,
        "bytes": model.origin.bytes,
        "external_files": [{"file": f.name, "bytes": f.stat().st_size} for f in model.origin.files[1:]],
        "producer": " ".join(filter(None, (model.ir.producer_name, model.ir.producer_version))),
        "ir_version": model.ir.ir_version,
        "opset": opsets.get(""),
        "opsets": {domain or "ai.onnx": version for domain, version in opsets.items()},
        "inputs": [dataclasses.asdict(s) for s in model.inputs],
        "outputs": [dataclasses.asdict(s) for s in model.outputs],
        "dynamic_dims": sorted({d for s in specs for d in s.shape if isinstance(d, str)}),
        "nodes": sum(counts.values()),
        "ops": dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
        "parameters": sum(t.size for t in tensors),
        "weight_bytes": sum(t.nbytes for t in tensors if t.dtype != ir.DataType.STRING),
    }


def shown(path: Path | str) -> str:
    """A path or name for a message: one line of valid UTF-8, whatever bytes it has."""
    text = str(path).encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def file_sha256(path: Path) -> str:
    """sha256 of a file's contents, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
