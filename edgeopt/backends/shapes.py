"""A model with the shapes of all its values, for other input shapes too: what the memory models work on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from edgeopt.errors import ModelError, did_you_mean
from edgeopt.model import Model
from edgeopt.passes.infer_shapes import refresh_shapes

_ROUNDS = 64


def shaped(model: Model, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Model:
    """A copy whose values carry shapes, tensors shared.

    Inference knows no operators of a runtime's own. Those that edgeopt writes give the shape of their first input.

    Args:
        shapes: for inputs by name; those that are not named keep theirs.

    Raises:
        ModelError: an input does not exist or has another rank.
    """
    copy = model.clone()
    given = shapes or {}
    inputs = {str(value.name): value for value in copy.graph.inputs}
    for name, shape in given.items():
        value = inputs.get(name)
        if value is None:
            raise ModelError(
                f'the model has no input "{name}".{did_you_mean(name, list(inputs))}',
                remedy=f"Its inputs: {', '.join(inputs)}.",
            )
        if value.shape is not None and len(value.shape) != len(shape):
            raise ModelError(
                f'the input "{name}" has {len(value.shape)} dimensions, and {len(shape)} are given',
                remedy=f"Give a shape such as {value.shape}.",
            )
        value.shape = ir.Shape(shape)
    if given:
        for node in _own(copy):
            for out in node.outputs:
                out.shape = None
        refresh_shapes(copy.ir)
    for _ in range(_ROUNDS):
        if not _fill(copy) and not _missing(copy):
            break
        changed, _ = refresh_shapes(copy.ir)
        if not changed:
            break
    return copy


def _own(model: Model) -> Iterator[ir.Node]:
    return (node for node in model.nodes() if node.domain not in ("", "ai.onnx"))


def _fill(model: Model) -> bool:
    filled = False
    for node in _own(model):
        out, source = node.outputs[0], node.inputs[0] if node.inputs else None
        if source is None or source.shape is None or out.shape == source.shape:
            continue
        if out.shape is None or (_open(out) and not _open(source) and len(out.shape) == len(source.shape)):
            out.shape, filled = source.shape, True
            if out.dtype is None and source.type is not None:
                out.type = source.type
    return filled


def _open(value: ir.Value) -> bool:
    return value.shape is None or not all(isinstance(dim, int) for dim in value.shape)


def _missing(model: Model) -> bool:
    return any(value.shape is None for node in model.graph for value in node.outputs if value.name)
