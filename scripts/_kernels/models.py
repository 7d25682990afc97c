"""Models of one operator each: those that the package onnx tests operators with."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto


class Case(NamedTuple):
    """A model of one node, with a set of inputs to run it on."""

    domain: str
    op: str
    since: int
    model: onnx.ModelProto
    inputs: tuple[np.ndarray, ...]


def cases() -> Iterator[Case]:
    """The test models of onnx that are one node of an operator that it defines, at their own opset."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        found = collect_testcases(None)
    for case in found:
        model = case.model
        if model is None or len(model.graph.node) != 1 or not case.data_sets:
            continue
        node = model.graph.node[0]
        opsets = {entry.domain: entry.version for entry in model.opset_import}
        if node.domain in opsets and "training" not in node.domain:
            since = onnx.defs.get_schema(node.op_type, opsets[node.domain], node.domain).since_version
            inputs = case.data_sets[0][0]
            if all(isinstance(value, np.ndarray) for value in inputs):
                yield Case(node.domain, node.op_type, since, model, tuple(inputs))


def at(model: onnx.ModelProto, opset: int, kind: int) -> onnx.ModelProto:
    """A copy at another opset of the default domain, as old a file as any release reads, floats of another type."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    changed.ir_version = 8
    for entry in changed.opset_import:
        if entry.domain == "":
            entry.version = opset
    for value in (*changed.graph.input, *changed.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = kind
    return changed
