"""The runtime's own graph as the artifact: what onnxruntime makes of a file on this machine, so that it need not again.

Loading a file costs onnxruntime its own rewrites, and their memory, every time. Written out once and loaded with the
optimizer off, the graph is the same and the work is not done. The price: blocked convolutions hold their weights in the
layout of one kind of processor, and their operators belong to one release. Such a file says so (``Artifact.bound``).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Set
from pathlib import Path

import onnx_ir as ir

from edgeopt import host
from edgeopt.backends import Artifact
from edgeopt.backends.onnxruntime.canonical import canonical
from edgeopt.backends.onnxruntime.lowering import drop_unused_imports, stripped
from edgeopt.backends.onnxruntime.releases import OWN, knows, version_key
from edgeopt.errors import ModelError
from edgeopt.interpreter import Interpreter, import_onnxruntime, register_library, session_errors
from edgeopt.model import LAYOUTS, PROTOBUF_LIMIT, Model, file_sha256, save
from edgeopt.target import Target
from runtime_bench.native import BLOCKS, block_of

LARGEST = PROTOBUF_LIMIT // 2
"""A portable file larger than this is not tried: blocked weights may be padded to twice as many, and one file ends
at 2 GB."""

GROWTH, GROWTH_BYTES = 0.02, 65_536
"""The file may be larger than the portable one by this share or so many bytes, whichever is more."""

BOUND = "edgeopt.bound"
"""Metadata property of the file: what it is bound to, as JSON."""

OPTIONS: Mapping[str, str] = {"optimizer": "off"}
"""How the runner loads it."""


def native(artifact: Artifact, model: Model, target: Target, out: Path) -> Artifact | str:
    """Write the runtime's own graph of a lowered artifact; why not, where it cannot be shipped.

    The bytes depend on the portable file, the release and the kind of processor alone. What it computes is for the
    caller to compare.

    Args:
        artifact: portable, from ``lower``.
        model: what it was lowered from.
        out: the file to write.
    """
    reason = unfit(target, host.probe())
    if reason is not None:
        return reason
    if artifact.bytes > LARGEST:
        return f"the file has {artifact.bytes:,} bytes: with its weights in blocks it may not fit into one file"
    raw = out.with_suffix(".raw.onnx")
    try:
        _write(artifact.path, raw, model)
        made, domains = _normalized(raw, artifact.path, model)
    except ModelError as error:
        return error.message
    finally:
        raw.unlink(missing_ok=True)
    bound = bound_to(made.ir, domains, target)
    if bound:
        made.ir.metadata_props[BOUND] = json.dumps(bound, sort_keys=True, separators=(",", ":"))
    save(made, out)
    reason = _refused(out, artifact, model)
    if reason is not None:
        out.unlink()
        return reason
    return dataclasses.replace(
        artifact,
        path=out,
        bytes=out.stat().st_size,
        sha256=file_sha256(out),
        built_on_device=True,
        options=OPTIONS,
        bound=bound,
        portable=artifact.path,
    )


def unfit(target: Target, machine: host.Host) -> str | None:
    """Why the runtime's graph on ``machine`` is not that of the target; None where it is."""
    installed, wanted = import_onnxruntime().__version__, target.runtime.get("onnxruntime")
    if machine.arch != target.arch:
        return f"the runtime's own graph is that of this machine ({machine.arch}), and {target.name} is {target.arch}"
    if machine.arch in BLOCKS and not machine.isa:
        return "the features of this processor cannot be read, so what the file would be bound to is not known"
    here, there = block_of(machine.arch, machine.isa), block_of(target.arch, target.isa)
    if here != there:
        return f"the runtime puts {here} channels into a block on this machine, and {there} on {target.name}"
    if wanted is None or version_key(wanted) != version_key(installed):
        return f"onnxruntime {installed} is installed here, and {target.name} has {wanted or 'no release stated'}"
    return None


def bound_to(model: ir.Model, domains: Set[str], target: Target) -> dict[str, str | int]:
    """What a graph is bound to; empty where its operators are those that releases keep, in no special layout.

    Args:
        model: the runtime's graph.
        domains: of the operators in the portable graph; one of them, such as that of custom operators, binds nothing.
    """
    known = {"", OWN, *domains}
    nodes = list(model.graph.all_nodes())
    bound: dict[str, str | int] = {}
    if any(node.domain in LAYOUTS for node in nodes):
        bound["arch"] = target.arch
        block = block_of(target.arch, target.isa)
        if block is not None:
            bound["block"] = block
    inside = any(node.domain not in known for node in nodes)
    if bound or inside or any(node.domain == OWN and not knows(node.op_type) for node in nodes):
        bound["onnxruntime"] = import_onnxruntime().__version__
    return bound


def _write(source: Path, out: Path, model: Model) -> None:
    """Have the runtime write its graph at the highest level. Weights are not packed: that is for running."""
    ort = import_onnxruntime()
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    settings.enable_cpu_mem_arena = settings.enable_mem_pattern = False
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    settings.add_session_config_entry("session.disable_prepacking", "1")
    settings.optimized_model_filepath = str(out)
    for library in model.origin.libraries:
        register_library(settings, library)
    try:
        ort.InferenceSession(str(source), settings, providers=["CPUExecutionProvider"])
    except session_errors() as error:
        line = str(error).strip().splitlines()[0]
        raise ModelError(f"onnxruntime {ort.__version__} cannot write its own graph of the model: {line}") from error


def _normalized(raw: Path, portable: Path, model: Model) -> tuple[Model, set[str]]:
    """The graph without what a runtime does not read, in an order and with names that do not depend on chance.

    Beside it the domains of the operators in the portable graph.
    """
    made = stripped(Model(ir=ir.load(raw), origin=model.origin))
    before = ir.load(portable)
    canonical(made.ir, before)
    drop_unused_imports(made.ir)
    imports = made.ir.graph.opset_imports
    ordered = sorted(imports.items())
    imports.clear()
    imports.update(ordered)
    made.ir.graph.name = before.graph.name
    made.ir.producer_name, made.ir.producer_version = before.producer_name, before.producer_version
    return made, {node.domain for node in before.graph.all_nodes()}


def _refused(made: Path, portable: Artifact, model: Model) -> str | None:
    size, most = made.stat().st_size, portable.bytes + max(int(portable.bytes * GROWTH), GROWTH_BYTES)
    if size > most:
        return f"it has {size:,} bytes, and the portable file {portable.bytes:,}: more than {most:,} allowed"
    try:
        Interpreter(made, libraries=model.origin.libraries, optimize=False)
    except ModelError as error:
        return f"with its optimizer off {error.message}"
    return None
