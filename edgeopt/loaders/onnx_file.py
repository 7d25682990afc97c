"""ONNX files: parsed once, checked before any work, external data mapped, functions inlined."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from onnx_ir.passes.common import InlinePass

from edgeopt.errors import ModelError
from edgeopt.loaders import shapes as shapes_
from edgeopt.loaders import sparse, tensors
from edgeopt.loaders.order import sort_nodes
from edgeopt.loaders.sniff import refused, size_words, wire_report
from edgeopt.model import LAYOUTS, PROTOBUF_LIMIT, shown

OLDEST_OPSET = 7

_AGAIN = "copy or download it again"
_TRACES = ("pkg.torch.", "pkg.onnxscript.", "namespace", "edgeopt.")
"""Metadata of nodes and values that tells how a file was made: stack traces, paths, keys of another run."""


def load(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> tuple[ir.Model, tuple[Path, ...]]:
    """The checked model, and its files: the model first, then external data in order of use.

    Raises:
        ModelError: the file is not an ONNX model, is damaged, hostile, or does not fit ``shapes``.
    """
    return from_proto(parse(path), path, shapes)


def parse(path: Path) -> onnx.ModelProto:
    """Parse the protobuf and nothing else."""
    size = path.stat().st_size
    if size > PROTOBUF_LIMIT:
        raise refused(path, "larger than an ONNX file can be", "save it with external data, or check what the file is")
    data = path.read_bytes()
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, RecursionError) as error:
        found = wire_report(memoryview(data))
        if found == "truncated":
            raise refused(path, "truncated: an ONNX file that stops before its end", _AGAIN) from error
        if found == "damaged":
            raise refused(path, "a damaged ONNX file", _AGAIN) from error
        raise refused(path, "not an ONNX model (no known format)", "give an .onnx or .pt2 file") from error
    return proto


def from_proto(
    proto: onnx.ModelProto, path: Path, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[ir.Model, tuple[Path, ...]]:
    """Check, complete and convert a parsed model. ``proto`` is edited and belongs to the result."""
    if not _is_text(proto):
        raise ModelError(
            f"{shown(path)} is damaged: one of its names is not valid UTF-8.", remedy=_AGAIN.capitalize() + "."
        )
    _shorten_default_domain(proto)
    _check_header(proto, path)
    _refuse_layouts(proto, path)
    buffers, data_files = tensors.check(proto, path)
    sparse.densify(proto, path)
    _lift_external_constants(proto)
    if not sort_nodes(proto.graph):
        raise ModelError(f"{shown(path)}: the graph has a cycle, so no order of its nodes can be run.")
    shapes_.forget_placeholders(proto)
    _check_signature(proto, path, shapes)
    shapes_.complete(proto, shapes, path)
    _check_graph(proto, path)
    try:
        model = ir.from_proto(proto)
    except (ir.serde.SerdeError, NotImplementedError, ValueError) as error:
        raise ModelError(f"{shown(path)} uses a part of ONNX that is not supported: {_innermost(error)}") from error
    tensors.attach(model, buffers)
    if model.functions:
        try:
            model = InlinePass()(model).model
        except ir.passes.PassError as error:
            raise ModelError(f"{shown(path)}: its functions cannot be inlined: {_innermost(error)}") from error
    _strip_traces(model)
    return model, (path, *data_files)


def _is_text(message: Message) -> bool:
    """Whether all strings in a message are text: Python gets bytes for what is not valid UTF-8."""
    for field in message.DESCRIPTOR.fields:
        if field.type not in (field.TYPE_STRING, field.TYPE_MESSAGE):
            continue
        held = getattr(message, field.name)
        if not hasattr(held, "append"):  # one, not a list; protobuf 4 and 7 name this property differently
            held = [held] if message.HasField(field.name) else []
        if field.type == field.TYPE_STRING:
            if any(isinstance(text, bytes) for text in held):
                return False
        elif not all(_is_text(nested) for nested in held):
            return False
    return True


def _shorten_default_domain(proto: onnx.ModelProto) -> None:
    """``ai.onnx`` is the long name of the default domain; the checker knows only the empty one."""
    imports = [i for f in proto.functions for i in f.opset_import]
    for holder in (*proto.opset_import, *imports, *(n for g in tensors.graphs_of(proto) for n in g.node)):
        if holder.domain == "ai.onnx":
            holder.domain = ""


def _check_header(proto: onnx.ModelProto, path: Path) -> None:
    size = size_words(path.stat().st_size)
    graph = proto.graph
    if not proto.HasField("graph") and not proto.ir_version:
        raise refused(path, "a protobuf file but no ONNX model (TensorFlow?)", "give an .onnx or .pt2 file")
    if not proto.HasField("graph") or not (graph.node or graph.output):
        raise refused(path, "an ONNX file without a graph", _AGAIN)
    if not graph.output:
        raise ModelError(f"{shown(path)}: the graph has no outputs, so there is nothing to compute.")
    opsets = {entry.domain: entry.version for entry in proto.opset_import}
    if not opsets:
        raise refused(path, f"an ONNX file without operator set versions, cut off or damaged ({size})", _AGAIN)
    opset = opsets.setdefault("", onnx.defs.onnx_opset_version())
    if opset < OLDEST_OPSET:
        raise ModelError(
            f"{shown(path)} uses operator set {opset}; the oldest supported is {OLDEST_OPSET}.",
            remedy=f"Export it again, or use onnx.version_converter.convert_version(model, {OLDEST_OPSET}).",
        )
    newest = onnx.defs.onnx_opset_version()
    if opset > newest:
        raise ModelError(
            f"{shown(path)} uses operator set {opset}; onnx {onnx.__version__} knows up to {newest}.",
            remedy="Run pip install -U onnx, or export the network with an older operator set.",
        )
    if proto.ir_version > onnx.IR_VERSION:
        raise ModelError(
            f"{shown(path)} has IR version {proto.ir_version}; onnx {onnx.__version__} knows up to {onnx.IR_VERSION}.",
            remedy="Run pip install -U onnx, or export the network with an older onnx.",
        )


def _refuse_layouts(proto: onnx.ModelProto, path: Path) -> None:
    """A graph that a runtime made for one machine is a result: nothing here can read its blocked weights."""
    for node in (node for graph in tensors.graphs_of(proto) for node in graph.node):
        if node.domain in LAYOUTS:
            raise ModelError(
                f"{shown(path)} is a graph that onnxruntime optimized for one kind of processor: the node "
                f'"{shown(node.name)}" is {shown(node.op_type)} of {node.domain}, with weights in that processor\'s '
                "layout.",
                remedy="Give the model that it was made from; `edgeopt verify` and `bench` take the bundle it lies in.",
            )


def _check_signature(proto: onnx.ModelProto, path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    initialized = {t.name for t in proto.graph.initializer}
    for role, values in (("input", proto.graph.input), ("output", proto.graph.output)):
        for value in values:
            kind = value.type.WhichOneof("value")
            if kind not in ("tensor_type", None) or (kind is None and role == "input"):
                kind = (kind or "value of no type").removesuffix("_type")
                raise ModelError(
                    f'{shown(path)}: {role} "{value.name}" is a {kind}, not a tensor.',
                    remedy="Export the network with tensors as inputs and outputs.",
                )
            known = value.type.tensor_type.HasField("shape") or value.name in shapes or value.name in initialized
            if role == "input" and not known:
                raise ModelError(
                    f'{shown(path)}: input "{value.name}" has no shape.',
                    remedy=f"Give one: --shape {value.name}=1x3x224x224",
                )


def _check_graph(proto: onnx.ModelProto, path: Path) -> None:
    light = shapes_.light_copy(proto, for_checker=True)
    for value in light.graph.output:
        # The checker asks for shapes that runtimes do not need.
        if value.type.tensor_type.elem_type and not value.type.tensor_type.HasField("shape"):
            value.type.tensor_type.shape.SetInParent()
    try:
        onnx.checker.check_model(light)
    except (onnx.checker.ValidationError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"{shown(path)} is not a valid ONNX model: {reason}") from error


def _lift_external_constants(proto: onnx.ModelProto) -> None:
    """Constant nodes with external data become initializers, so that all large tensors are found in one place."""
    for graph in tensors.graphs_of(proto):
        if not isinstance(graph, onnx.GraphProto):
            continue
        for node in [n for n in graph.node if n.op_type == "Constant" and n.domain in ("", "ai.onnx")]:
            value = next((a.t for a in node.attribute if a.name == "value" and a.HasField("t")), None)
            if value is not None and value.data_location == onnx.TensorProto.EXTERNAL:
                graph.initializer.add().CopyFrom(value)
                graph.initializer[-1].name = node.output[0]
                graph.node.remove(node)


def _strip_traces(model: ir.Model) -> None:
    model.graph.doc_string = None
    for graph in model.graphs():
        for value in (*graph.inputs, *graph.initializers.values()):
            _strip(value)
        for node in graph:
            _strip(node)
            for value in node.outputs:
                _strip(value)


def _strip(item: ir.Node | ir.Value) -> None:
    item.doc_string = None
    for key in [k for k in item.metadata_props if k.startswith(_TRACES)]:
        del item.metadata_props[key]


def _innermost(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split())
