"""Normalization spelled out: d / sqrt(mean(d^2) + e) with d = x - mean(x), or d = x (RMS), anchored at the root.

TensorFlow multiplies out: x k + (shift - mean(x) k) with k = scale / sqrt(mean(d^2) + e).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from edgeopt.passes._chain import finite, number, operands, with_number
from edgeopt.passes._graph import (
    Array,
    attr_int,
    constant,
    constant_bytes,
    dims,
    input_at,
    integers,
    is_constant,
    is_op,
)

_MAX_AFFINE_BYTES = 1 << 24


class Normalized(NamedTuple):
    """A match.

    Attributes:
        x: what is normalized.
        axes: sorted, counted from the front.
        nodes: all of them; the last one makes the normalized tensor.
        centered: whether the mean is subtracted.
        folded: the constants that are multiplied in and added on the way; empty where they can only follow behind.
    """

    x: ir.Value
    axes: tuple[int, ...]
    epsilon: float
    nodes: list[ir.Node]
    centered: bool
    folded: dict[str, ir.Value]


def _mean(node: ir.Node | None) -> tuple[ir.Value, tuple[int, ...]] | None:
    """Input and axes of a ReduceMean that keeps its dims."""
    if node is None or not is_op(node, "ReduceMean") or not attr_int(node, "keepdims", 1):
        return None
    source, axes = input_at(node, 0), integers(input_at(node, 1))
    shape = dims(source)
    if source is None or not axes or shape is None or any(not -len(shape) <= a < len(shape) for a in axes):
        return None
    return source, tuple(sorted({a % len(shape) for a in axes}))


def _square(node: ir.Node | None) -> ir.Value | None:
    if node is None or len(node.inputs) != 2 or (value := node.inputs[0]) is None:
        return None
    squared = is_op(node, "Mul") and node.inputs[1] is value
    return value if squared or (is_op(node, "Pow") and number(node.inputs[1], value) == 2) else None


def _quotients(root: ir.Node, d: ir.Value, inverse: bool) -> list[list[ir.Node]]:
    """The ways from the root to d / root: Div, or Mul by the reciprocal."""
    ways: list[list[ir.Node]] = []
    out = root.outputs[0]
    for user, index in out.uses():
        if inverse:
            if is_op(user, "Mul") and any(a is out and b is d for a, b in operands(user)):
                ways.append([user])
        elif is_op(user, "Div") and index == 1 and user.inputs[0] is d:
            ways.append([user])
        elif is_op(user, "Reciprocal") or (is_op(user, "Div") and index == 1 and number(user.inputs[0], out) == 1):
            ways += [[user, *way] for way in _quotients(user, d, True)]
    return ways


def _multiplied_out(
    root: ir.Node, x: ir.Value, mean: ir.Value, inverse: bool
) -> tuple[list[ir.Node], dict[str, ir.Value]] | None:
    """The nodes from the root to x k + (shift - mean k), or x k - mean k, with the constants in them."""
    factors: list[tuple[ir.Value, list[ir.Node], dict[str, ir.Value]]] = []
    if inverse:
        factors.append((root.outputs[0], [], {}))
    for user, index in root.outputs[0].uses():
        if is_op(user, "Reciprocal") or (is_op(user, "Div") and index == 1 and number(user.inputs[0], None) == 1):
            factors.append((user.outputs[0], [user], {}))
    for k, nodes, _ in list(factors):
        for user, other in _readers(k, "Mul"):
            if is_constant(other):
                factors.append((user.outputs[0], [*nodes, user], {"scale": other}))
    for k, nodes, constants in factors:
        products = {other: user for user, other in _readers(k, "Mul")}
        if x not in products or mean not in products:
            continue
        large, small = products[x], products[mean]
        before = [*nodes, large, small]
        for user, index in small.outputs[0].uses():
            minuend = user.inputs[0] if is_op(user, "Sub") and index == 1 else None
            if minuend is large.outputs[0]:
                return [*before, user], constants
            if minuend is not None and is_constant(minuend):
                for last, partner in _readers(user.outputs[0], "Add"):
                    if partner is large.outputs[0]:
                        return [*before, user, last], {**constants, "shift": minuend}
    return None


def _readers(value: ir.Value, op: str) -> list[tuple[ir.Node, ir.Value]]:
    """The nodes of a commutative ``op`` that read the value, with the other operand of each."""
    found: list[tuple[ir.Node, ir.Value]] = []
    for user, index in value.uses():
        other = user.inputs[1 - index] if is_op(user, op) and len(user.inputs) == 2 else None
        if other is not None:
            found.append((user, other))
    return found


def normalized(root: ir.Node) -> Normalized | None:
    """The normalization whose square root ``root`` is (Sqrt, or Pow with 0.5 or -0.5); None when it is none."""
    total = input_at(root, 0)
    inverse = False
    if is_op(root, "Pow"):
        exponent = number(input_at(root, 1), total)
        inverse = exponent == -0.5
        if exponent not in (0.5, -0.5):
            return None
    elif not is_op(root, "Sqrt"):
        return None
    add = total.producer() if total is not None else None
    if add is None or (found := with_number(add, "Add")) is None or not (found[1] > 0 and finite(found[1])):
        return None
    variance = found[0].producer()
    mean = _mean(variance)
    square = mean[0].producer() if mean is not None else None
    d = _square(square)
    if mean is None or d is None or square is None or variance is None:
        return None
    axes = mean[1]
    x, before = d, list[ir.Node]()
    subtract = d.producer()
    if subtract is not None and is_op(subtract, "Sub"):
        minuend, subtrahend = subtract.inputs
        average = subtrahend.producer() if subtrahend is not None else None
        first = _mean(average)
        if first is not None and average is not None and minuend is not None and first == (minuend, axes):
            x, before = minuend, [average, subtract]
    nodes = [*before, square, variance, add, root]
    if ways := _quotients(root, d, inverse):
        return Normalized(x, axes, found[1], [*nodes, *ways[0]], bool(before), {})
    if before and (rest := _multiplied_out(root, x, before[0].outputs[0], inverse)) is not None:
        return Normalized(x, axes, found[1], [*nodes, *rest[0]], True, rest[1])
    return None


def affine_after(node: ir.Node, op: str) -> tuple[ir.Node, ir.Value] | None:
    """The only reader of a node, where it is ``op`` with a constant; with that constant."""
    out = node.outputs[0]
    uses = list(out.uses())
    if len(uses) != 1 or out.is_graph_output() or not is_op(uses[0][0], op):
        return None
    user = uses[0][0]
    for value, other in operands(user):
        if value is out and is_constant(other):
            return user, other
    return None


def fitted(value: ir.Value, rank: int, axes: tuple[int, ...], shape: tuple[int, ...]) -> Array | None:
    """A constant that is combined with a tensor of ``rank`` as an array of ``shape``, the sizes of ``axes``.

    None when it varies along another axis or would enlarge the tensor.
    """
    array = constant(value) if constant_bytes(value) <= _MAX_AFFINE_BYTES else None
    if array is None or array.ndim > rank:
        return None
    full = array.reshape((1,) * (rank - array.ndim) + array.shape)
    if any(size != 1 for axis, size in enumerate(full.shape) if axis not in axes):
        return None
    kept = full.reshape([full.shape[axis] for axis in axes])
    if any(size not in (1, wanted) for size, wanted in zip(kept.shape, shape, strict=True)):
        return None
    return np.ascontiguousarray(np.broadcast_to(kept, shape))


class Affine(NamedTuple):
    """What follows a normalization: scale and shift as arrays, with the nodes that apply them."""

    scale: Array | None
    shift: Array | None
    nodes: list[ir.Node]


def affine(found: Normalized, rank: int, axes: tuple[int, ...], shape: tuple[int, ...]) -> Affine | None:
    """Scale and shift: those inside the chain (None where one does not fit), else those that follow it and fit.

    Both are arrays of ``shape``, the sizes of ``axes``.
    """
    if found.folded:
        inside = {name: fitted(value, rank, axes, shape) for name, value in found.folded.items()}
        misfit = any(array is None for array in inside.values())
        return None if misfit else Affine(inside.get("scale"), inside.get("shift"), [])
    behind: dict[str, Array | None] = {"Mul": None, "Add": None}
    nodes: list[ir.Node] = []
    for op in behind:
        step = affine_after(nodes[-1] if nodes else found.nodes[-1], op)
        array = fitted(step[1], rank, axes, shape) if step is not None else None
        if step is not None and array is not None:
            behind[op] = array
            nodes.append(step[0])
    return Affine(behind["Mul"], behind["Add"], nodes)
