"""Float input -> raw pixels: the arithmetic before the network becomes part of it.

    x = (u * scale - mean) / std = (u - m) * k,   m = mean / scale,  k = scale / std

A graph input ``u`` of unsigned bytes takes the place and the name of the float input ``x``; Transpose and Gather bring
layout and channel order while the values are still bytes, then Cast, Sub and Mul. This changes the interface, so it
is no pass: it is asked for, and done once, before the passes, which fold what it adds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from edgeopt.calibration.raw import Pixels
from edgeopt.errors import ModelError
from edgeopt.model import Model, assign_keys
from edgeopt.passes._graph import register, value_names


def absorb_input(model: Model, pixels: Sequence[Pixels]) -> Model:
    """The model with raw pixels as its inputs ``pixels``; other inputs, all outputs and all node keys stay.

    Raises:
        ModelError: an input is a graph output as well.
    """
    changed = model.clone()
    for entry in pixels:
        _absorb(changed.ir, entry)
    assign_keys(changed.ir)
    return changed


def _absorb(model: ir.Model, pixels: Pixels) -> None:
    graph = model.graph
    index = next(i for i, value in enumerate(graph.inputs) if value.name == pixels.name)
    old = graph.inputs[index]
    if old.is_graph_output():
        raise ModelError(f"{pixels.name} is an input and an output in one", remedy="Leave --input out.")
    shape, wanted = old.shape, old.dtype
    assert shape is not None
    assert wanted is not None
    taken = value_names(model)
    inverse = [pixels.order.index(axis) for axis in range(len(pixels.order))]
    fed = ir.Value(
        name=pixels.name,
        type=ir.TensorType(ir.DataType.UINT8),
        shape=ir.Shape([shape[axis] for axis in inverse]),
    )
    old.name = None
    graph.inputs[index] = fed
    last, nodes = fed, list[ir.Node]()

    def constant(array: np.ndarray) -> ir.Value:
        return register(graph, _fresh(taken, f"{pixels.name}.constant"), array)

    def then(
        op: str, *operands: ir.Value, kind: ir.DataType = ir.DataType.UINT8, **attributes: int | list[int]
    ) -> None:
        nonlocal last
        node = ir.node(op, [last, *operands], attributes=attributes)
        last = node.outputs[0]
        last.name, last.type, last.shape = _fresh(taken, f"{pixels.name}.{op}"), ir.TensorType(kind), shape
        nodes.append(node)

    float32 = ir.DataType.FLOAT
    axis = pixels.inner_layout.index("C")
    if inverse != sorted(inverse):
        then("Transpose", perm=list(pixels.order))
    if pixels.swapped:
        then("Gather", constant(np.array([2, 1, 0], np.int64)), axis=axis)
    then("Cast", kind=float32, to=int(float32))
    mean, std = np.array(pixels.mean, np.float64), np.array(pixels.std, np.float64)
    for op, numbers, neutral in (("Sub", mean / pixels.scale, 0.0), ("Mul", pixels.scale / std, 1.0)):
        if (numbers != neutral).any():
            sides = [-1 if a == axis and numbers.size > 1 else 1 for a in range(len(shape))]
            then(op, constant(numbers.reshape(sides).astype(np.float32)), kind=float32)
    if wanted != float32:
        then("Cast", kind=wanted, to=int(wanted))
    old.replace_all_uses_with(last)
    if len(graph):
        graph.insert_before(graph[0], nodes)


def _fresh(taken: set[str], base: str) -> str:
    name, count = base, 1
    while name in taken:
        count += 1
        name = f"{base}_{count}"
    taken.add(name)
    return name
