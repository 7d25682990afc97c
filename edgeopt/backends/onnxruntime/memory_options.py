"""What makes onnxruntime take less memory for the same model: run options, another order of nodes, weights beside it.

A session holds, at its worst moment: the file as it was read, a copy of each weight, a packed copy of those that a
kernel wants in another order, the arena, and a block of the memory pattern beside it from the second call on. Each
option takes one of them away. Where the saving is small a measurement says so, and the option stays off.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from edgeopt.backends import Artifact, DataFile, RunOption
from edgeopt.backends.onnxruntime import node_order
from edgeopt.errors import ModelError
from edgeopt.model import file_sha256
from edgeopt.target import Target

Feeds = Mapping[str, Any]

SUFFIX = ".data"
"""Of the file of weights, which lies beside the model under its name."""

SMALL = 1024
"""Bytes. Smaller tensors stay in the model's file: the runtime needs some of them to know shapes."""


def run_options(target: Target) -> tuple[RunOption, ...]:
    """All options, those that cost no time first. Each is tried against the best so far."""
    found = [
        RunOption(
            name="node-order",
            why="branches run in the order that keeps the fewest bytes alive",
            options={},
            make=_ordered,
        ),
        RunOption(
            name="mapped-weights",
            why="weights in a file of their own, which the runtime maps and does not copy",
            options={},
            make=_mapped,
        ),
        _switch("small-heap", "heap", "small", "what loading and each call free goes back to the system (glibc)"),
        _switch("no-memory-pattern", "memory_pattern", "off", "no block for the second call beside that of the first"),
        _switch("no-arena", "arena", "off", "a tensor takes memory only from its node to its last reader"),
        _switch("no-prepacking", "prepacking", "off", "no second copy of weights in the order that kernels like best"),
    ]
    return tuple(found)


def _switch(name: str, key: str, value: str, why: str) -> RunOption:
    def make(artifact: Artifact, feeds: Feeds, out: Path) -> Artifact | str:
        if key in artifact.options:
            return f"{key} is {artifact.options[key]} already"
        return dataclasses.replace(artifact, options={**artifact.options, key: value})

    return RunOption(name=name, why=why, options={key: value}, make=make)


def _mapped(artifact: Artifact, feeds: Feeds, out: Path) -> Artifact | str:
    if artifact.path.suffix != ".onnx":
        return f"a {artifact.path.suffix} file holds its weights itself"
    if artifact.data is not None:
        return "its weights lie in a file of their own already"
    data = out.with_suffix(SUFFIX)
    model = ir.load(artifact.path)
    if not any(v.const_value is not None and v.const_value.nbytes >= SMALL for v in model.graph.initializers.values()):
        return f"none of its weights has {SMALL:,} bytes"
    _save(model, out, data)
    return _written(artifact, out, data)


def _ordered(artifact: Artifact, feeds: Feeds, out: Path) -> Artifact | str:
    if artifact.path.suffix != ".onnx":
        return f"a {artifact.path.suffix} file keeps the order that the runtime gave it"
    try:
        found = node_order.lower_peak(artifact.path, feeds, out.parent, own=not artifact.optimize)
    except ModelError as error:
        return error.message
    if isinstance(found, str):
        return found
    data = None if artifact.data is None else out.with_suffix(SUFFIX)
    _save(found.model, out, data)
    made = _written(artifact, out, data)
    return dataclasses.replace(made, options={**made.options, **found.options})


def _save(model: ir.Model, out: Path, data: Path | None) -> None:
    """Write a model, with its weights in ``data`` where that is given."""
    if data is None:
        ir.external_data.load_to_model(model)
        out.write_bytes(ir.to_proto(model).SerializeToString(deterministic=True))
    else:
        ir.save(model, out, external_data=data.name, size_threshold_bytes=SMALL)


def _written(artifact: Artifact, out: Path, data: Path | None) -> Artifact:
    beside = None if data is None else DataFile(path=data, bytes=data.stat().st_size, sha256=file_sha256(data))
    return dataclasses.replace(
        artifact,
        path=out,
        bytes=out.stat().st_size + (0 if beside is None else beside.bytes),
        sha256=file_sha256(out),
        data=beside,
    )
