"""Write a graph as the file that the runtime loads: ``.onnx``, or ``.ort`` where the profile asks for it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from edgeopt.backends import Artifact
from edgeopt.backends.onnxruntime import kernels, ort_format
from edgeopt.backends.onnxruntime.releases import OWN, OwnNode, oldest, reads, version_key
from edgeopt.errors import ModelError, ToolchainError
from edgeopt.interpreter import Interpreter, import_onnxruntime, register_library, session_errors
from edgeopt.model import LAYOUTS, Model, file_sha256, save
from edgeopt.passes import apply
from edgeopt.passes.lower_opset import OLDEST, lower_opset
from edgeopt.passes.lower_opset._site import since
from edgeopt.target import Target

ML = "ai.onnx.ml"

_NEWER_TYPES: Mapping[str, int] = {
    **dict.fromkeys(("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"), 9),
    **dict.fromkeys(("UINT4", "INT4"), 10),
    "FLOAT4E2M1": 11,
    "FLOAT8E8M0": 12,
    **dict.fromkeys(("UINT2", "INT2"), 13),
}
"""Element types and the IR version that brought them."""


def minimum(*artifacts: Path) -> dict[str, object]:
    """The oldest runtime that reads all artifacts, with the numbers that say so.

    Keys: ``onnxruntime`` (a release; the one installed here where no older one is known), ``opset``, ``ir_version``,
    and where they matter ``ai.onnx.ml`` and ``ort_format``.
    """
    highest: dict[str, object] = {}
    for artifact in artifacts:
        for key, value in _minimum(artifact).items():
            highest[key] = max(highest.get(key, value), value, key=lambda v: version_key(str(v)))
    return highest


def _minimum(artifact: Path) -> dict[str, object]:
    if ort_format.is_ort(artifact):
        held = ort_format.read(artifact)
        own = [OwnNode(op=n.op, uses=_uses(n.inputs, n.attributes)) for n in held.nodes if n.domain == OWN]
        uses_ml = any(n.domain == ML for n in held.nodes)
        return _needed(held.opsets, held.ir_version, own, uses_ml, held.format)
    return _minimum_of(ir.load(artifact))


def _minimum_of(model: ir.Model) -> dict[str, object]:
    own, uses_ml = _special(model)
    found = _needed(model.opset_imports, model.ir_version, own, uses_ml, None)
    if any(node.domain in LAYOUTS for node in model.graph.all_nodes()):
        found["onnxruntime"] = import_onnxruntime().__version__
    return found


def _needed(
    opsets: Mapping[str, int], ir_version: int, own: list[OwnNode], uses_ml: bool, format_: str | None
) -> dict[str, object]:
    opset, ml = opsets.get("", 1), opsets.get(ML, 0) if uses_ml else 0
    version = oldest(opset=opset, ir_version=ir_version, ml=ml, own=own, ort_format=format_)
    release = version or import_onnxruntime().__version__
    found: dict[str, object] = {"onnxruntime": release, "opset": opset, "ir_version": ir_version}
    if ml:
        found[ML] = str(ml)
    if format_ is not None:
        found["ort_format"] = format_
    return found


def _special(model: ir.Model) -> tuple[list[OwnNode], bool]:
    nodes = list(model.graph.all_nodes())
    own = [
        OwnNode(op=n.op_type, uses=_uses([v is not None for v in n.inputs], n.attributes))
        for n in nodes
        if n.domain == OWN
    ]
    return own, any(n.domain == ML for n in nodes)


def _uses(inputs: list[bool] | tuple[str, ...], attributes: object) -> tuple[str, ...]:
    assert isinstance(attributes, Mapping | tuple)
    return (*(f"input {i}" for i, given in enumerate(inputs) if given), *(str(name) for name in attributes))


def lower(model: Model, target: Target, out: Path, *, precision: str) -> Artifact:
    """Write the graph for the target: deterministic bytes; opset, IR and ai.onnx.ml versions within what it reads.

    Imports of operator sets that no node uses are dropped. ``out`` has the suffix ``.onnx``; the artifact has the one
    of the format that the profile asks for.

    Raises:
        ToolchainError: the graph needs something newer than the target's runtime, or an operator that it has no kernel
            for; what, and the release that has it.
        ModelError: the runtime cannot write it in its own format.
    """
    levelled = at_opset(model, target)
    prepared = _prepared(levelled, target)
    kernels.require(levelled, target)
    if target.format == "ort":
        path = out.with_suffix(".ort")
        _write_ort(prepared, target, path)
    else:
        path = out
        save(prepared, path)
    try:
        _require(minimum(path), target)
    except ToolchainError:
        path.unlink()
        raise
    return Artifact(
        path=path,
        format=target.format,
        precision=precision,
        bytes=path.stat().st_size,
        sha256=file_sha256(path),
        toolchain={"onnxruntime": import_onnxruntime().__version__},
    )


def check(model: Model, target: Target) -> None:
    """What ``lower`` would refuse of a model from ``at_opset`` before its operators are looked at, without a file.

    Raises:
        ToolchainError: the graph needs something newer than the target's runtime.
    """
    _require(_minimum_of(_prepared(model, target).ir), target)


def _prepared(model: Model, target: Target) -> Model:
    """A copy of a model from ``at_opset`` that the target's runtime reads, with nothing else in it.

    Raises:
        ToolchainError: there is none.
    """
    prepared = stripped(model)
    drop_unused_imports(prepared.ir)
    _lower_ml(prepared.ir, target)
    _lower_ir_version(prepared.ir, target)
    prepared.ir.producer_name, prepared.ir.producer_version = "edgeopt", ""
    return prepared


def at_opset(model: Model, target: Target) -> Model:
    """The model at an opset that the target reads; the finish steps did this already unless they were refused.

    Raises:
        ToolchainError: it cannot be taken down to it.
    """
    opset = model.ir.opset_imports.get("", 0)
    if opset <= target.opset_max:
        return model
    applied = apply(lower_opset(max(OLDEST, target.opset_max)), model, target)
    if applied.count and applied.model.ir.opset_imports[""] <= target.opset_max:
        return applied.model
    raise ToolchainError(
        f"the model needs opset {opset}; {target.name} reads up to {target.opset_max}: {applied.reason}",
        remedy=_remedy(oldest(opset=opset, ir_version=0), "with an older opset"),
    )


def drop_unused_imports(model: ir.Model) -> None:
    """Take away operator sets that no node uses, the default one aside."""
    used = {node.domain for node in model.graph.all_nodes()}
    for function in model.functions.values():
        used |= {function.domain, *(node.domain for node in function.all_nodes())}
    imports = model.graph.opset_imports
    for domain in [d for d in imports if d and d not in used]:
        del imports[domain]


def _lower_ml(model: ir.Model, target: Target) -> None:
    """Stamp ai.onnx.ml with what the runtime reads, where none of its operators changed in between.

    Raises:
        ToolchainError: one did.
    """
    version, top = model.graph.opset_imports.get(ML, 0), reads(_runtime(target))[2]
    if version <= top:
        return
    for node in model.graph.all_nodes():
        if node.domain == ML and since(node.op_type, version, ML) != since(node.op_type, top, ML):
            release = oldest(opset=0, ir_version=0, ml=version)
            raise ToolchainError(
                f"{node.op_type} (node {node.name}) needs {ML} {version}; onnxruntime {_runtime(target)} of "
                f"{target.name} reads up to {top}",
                remedy=_remedy(release, f"with {ML} {top}"),
            )
    model.graph.opset_imports[ML] = top


def _lower_ir_version(model: ir.Model, target: Target) -> None:
    """IR versions differ in what a file may hold, not in what it means: only newer element types cannot go back."""
    if model.ir_version <= target.ir_version_max:
        return
    names = {t.dtype.name for g in model.graphs() for v in g.initializers.values() if (t := v.const_value) is not None}
    names |= {v.dtype.name for g in model.graphs() for v in (*g.inputs, *g.outputs) if v.dtype is not None}
    for name in sorted(names):
        if _NEWER_TYPES.get(name, 0) > target.ir_version_max:
            raise ToolchainError(
                f"the model holds {name.lower()}, which needs IR version {_NEWER_TYPES[name]}; {target.name} reads up "
                f"to {target.ir_version_max}",
                remedy=_remedy(oldest(opset=0, ir_version=_NEWER_TYPES[name]), "without that type"),
            )
    model.ir_version = target.ir_version_max


def _require(needed: Mapping[str, object], target: Target) -> None:
    """Compare what an artifact needs with what the device has.

    Raises:
        ToolchainError: the device's release is older.
    """
    release, here = str(needed["onnxruntime"]), target.runtime.get("onnxruntime")
    if here is None or version_key(release) <= version_key(here):
        return
    numbers = sorted(((k, v) for k, v in needed.items() if k != "onnxruntime"), reverse=True)
    why = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in numbers)
    raise ToolchainError(
        f"the model needs onnxruntime {release} or newer ({why}); {target.name} has {here}",
        remedy=_remedy(release, "without the operators that are newer"),
    )


def _remedy(release: str | None, how: str) -> str:
    update = f"Update onnxruntime on the device to {release} or newer" if release else "Update the device's runtime"
    return f"{update}, or export the model {how}."


def _runtime(target: Target) -> str:
    """The release on the device; where the profile names none, the oldest that reads its opset."""
    return target.runtime.get("onnxruntime") or oldest(opset=target.opset_max, ir_version=0) or "0"


def _write_ort(model: Model, target: Target, out: Path) -> None:
    """Have onnxruntime write its own format at the extended level, and order its index.

    The level joins operators (Q/DQ around a Conv into an integer kernel), which loading a ``.ort`` file does not do
    any more, and stops before layouts of one kind of processor; the layout that every processor has is chosen when
    the file is loaded.

    Raises:
        ModelError: onnxruntime does not take the model.
        ToolchainError: what it wrote runs on one kind of processor only.
    """
    ort = import_onnxruntime()
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    settings.intra_op_num_threads = 1
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    settings.add_session_config_entry("session.save_model_format", "ORT")
    for library in model.origin.libraries:
        register_library(settings, library)
    if target.int8.activation == "int8":
        settings.add_session_config_entry("session.qdqisint8allowed", "1")
    with tempfile.TemporaryDirectory(prefix="edgeopt-", dir=out.parent) as folder:
        source, written = Path(folder) / "model.onnx", Path(folder) / "model.ort"
        save(model, source)
        settings.optimized_model_filepath = str(written)
        try:
            ort.InferenceSession(str(source), settings, providers=["CPUExecutionProvider"])
        except session_errors() as error:
            raise ModelError(
                f"onnxruntime {ort.__version__} cannot write the model as .ort: {str(error).strip().splitlines()[0]}",
                remedy='Set format = "onnx" in the profile.',
            ) from error
        written.write_bytes(ort_format.ordered(written.read_bytes()))
        bound = [n for n in ort_format.read(written).nodes if n.domain in LAYOUTS]
        if bound:
            raise ToolchainError(
                f"onnxruntime {ort.__version__} wrote {bound[0].op} of {bound[0].domain} into the .ort file, which "
                "runs on this kind of processor only",
                remedy='Set format = "onnx" in the profile.',
            )
        Interpreter(written, libraries=model.origin.libraries)
        written.replace(out)


def stripped(model: Model) -> Model:
    """A copy without what a runtime does not read: notes of the rewrites, texts, shapes inside the graph."""
    bare = model.clone()
    bare.ir.metadata_props.clear()
    bare.ir.doc_string = bare.graph.doc_string = None
    bare.graph.metadata_props.clear()
    for node in bare.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
            if not value.is_graph_output():
                value.type = value.shape = None
    for graph in bare.ir.graphs():
        for value in graph.initializers.values():  # the tensor itself says both
            if not (value.is_graph_input() or value.is_graph_output()):
                value.type = value.shape = None
    return bare
