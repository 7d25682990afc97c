"""Find s (Q K^T) + m, Softmax and the product with V in a graph."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import onnx_ir as ir

from edgeopt.passes._graph import attr_int, attr_ints, constant, input_at, is_op, why_not_private

FAR_BELOW = -1e30
"""A score plus this, in float32, is this: masking by adding equals masking by replacing."""


class Scores(NamedTuple):
    """s (Q K^T) + m, as found above a Softmax."""

    product: ir.Node
    scale: float
    mask: Mask | None
    nodes: tuple[ir.Node, ...]


class Mask(NamedTuple):
    """What is added to the scores; with ``where``, the Where that puts it in their place, as its input ``side``."""

    value: ir.Value
    where: ir.Node | None = None
    side: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Site:
    """One attention, from Softmax to the Transpose back; ``guard`` is a Where that makes NaN probabilities 0."""

    scores: Scores
    softmax: ir.Node
    mixed: ir.Node
    back: ir.Node
    guard: ir.Node | None = None


def scalar(value: ir.Value | None) -> float | None:
    """The number in a constant of one element."""
    array = constant(value)
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 and array.ndim <= 1 else None


def strip_scale(value: ir.Value) -> tuple[ir.Value, float, tuple[ir.Node, ...]]:
    """The value before Mul and Div by constant scalars, their product, and the nodes."""
    factor, nodes = 1.0, []
    while (node := value.producer()) is not None and is_op(node, "Mul", "Div"):
        first, second = node.inputs
        number = scalar(second)
        source = first
        if number is None and is_op(node, "Mul"):
            number, source = scalar(first), second
        if number is None or source is None or (is_op(node, "Div") and number == 0):
            break
        factor = factor * number if is_op(node, "Mul") else factor / number
        nodes.append(node)
        value = source
    return value, factor, tuple(nodes)


def find_scores(value: ir.Value | None) -> Scores | str:
    """Follow a Softmax input up to the MatMul; or why it cannot be done."""
    if value is None:
        return "there is no product of queries and keys"
    if why := why_not_private(value):
        return "the scores are read elsewhere" if "second" in why else why
    node = value.producer()
    if node is None or node.domain != "":
        return "there is no product of queries and keys"
    if is_op(node, "MatMul"):
        return Scores(node, 1.0, None, (node,))
    if is_op(node, "Mul", "Div"):
        source, factor, nodes = strip_scale(value)
        below = find_scores(source) if nodes else "the scale is not one number"
        if isinstance(below, str):
            return below
        if below.mask is not None:
            return "the mask is scaled"
        return Scores(below.product, below.scale * factor, None, (*nodes, *below.nodes))
    if is_op(node, "Add", "Where"):
        return _masked(node)
    return "there is no product of queries and keys"


def _masked(node: ir.Node) -> Scores | str:
    why = "there is no product of queries and keys"
    for index in (0, 1) if is_op(node, "Add") else (1, 2):
        below = find_scores(node.inputs[index])
        if isinstance(below, str):
            why = below if "product" not in below else why
            continue
        if below.mask is not None:
            return "there are two masks"
        other = node.inputs[(1 if is_op(node, "Add") else 3) - index]
        assert other is not None
        if is_op(node, "Where"):
            fill = scalar(other)
            if fill is None or not fill <= FAR_BELOW:
                return "the mask replaces scores by a number that is not far below them"
        mask = Mask(other, node, 3 - index) if is_op(node, "Where") else Mask(other)
        return Scores(below.product, below.scale, mask, (node, *below.nodes))
    return why


def find_site(softmax: ir.Node) -> Site | str | None:
    """The attention around a Softmax, why it cannot be fused, or None when there is no attention."""
    guard = _guard(softmax)
    probabilities = softmax.outputs[0] if guard is None else guard.outputs[0]
    uses = list(probabilities.uses())
    if not any(is_op(user, "MatMul") and index == 0 for user, index in uses):
        return None
    scores = find_scores(input_at(softmax, 0))
    if isinstance(scores, str):
        return None if "no product" in scores else scores
    if why_not_private(probabilities):
        return "the probabilities are read elsewhere"
    mixed = uses[0][0]
    if attr_int(softmax, "axis", -1) not in (-1, 3):
        return "the Softmax is over another axis"
    follow = [user for user, _ in mixed.outputs[0].uses()]
    if mixed.outputs[0].is_graph_output() or len(follow) != 1 or not is_op(follow[0], "Transpose"):
        return "its result is not transposed back"
    if attr_ints(follow[0], "perm") not in ([0, 2, 1, 3], [2, 0, 1, 3]):
        return "its result is not transposed back"
    return Site(scores=scores, softmax=softmax, mixed=mixed, back=follow[0], guard=guard)


def _guard(softmax: ir.Node) -> ir.Node | None:
    """The Where of ``Where(IsNaN(p), 0, p)``, when that is all that reads p."""
    out = softmax.outputs[0]
    readers = {user for user, _ in out.uses()}
    where = next((user for user in readers if is_op(user, "Where")), None)
    test = next((user for user in readers if is_op(user, "IsNaN")), None)
    if where is None or test is None or len(readers) != 2 or out.is_graph_output() or why_not_private(test.outputs[0]):
        return None
    fits = where.inputs[0] is test.outputs[0] and where.inputs[2] is out and scalar(where.inputs[1]) == 0
    return where if fits else None
