"""Arithmetic on a tensor read as a polynomial in it: any order of the same factors and sums gives the same numbers."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from edgeopt.passes._chain import near, number
from edgeopt.passes._graph import constant, is_op

Polynomial = dict[int, float]
"""Coefficient by power."""

_ARITHMETIC = ("Mul", "Add", "Sub", "Div", "Neg", "Pow")


def polynomial(value: ir.Value, x: ir.Value, degree: int) -> tuple[Polynomial, list[ir.Node]] | None:
    """``value`` as a polynomial in ``x`` of at most ``degree``, with the nodes that compute it; None if it is none."""
    nodes: dict[ir.Node, None] = {}

    def walk(v: ir.Value | None, depth: int) -> Polynomial | None:
        if v is x:
            return {1: 1.0}
        if v is None or depth > 2 * degree + 2:
            return None
        if (k := number(v, x)) is not None:
            return {0: k}
        node = v.producer()
        if node is None or not is_op(node, *_ARITHMETIC):
            return None
        terms = [walk(source, depth + 1) for source in node.inputs]
        result = _combine(node.op_type, [t for t in terms if t is not None], degree) if None not in terms else None
        if result is not None:
            nodes[node] = None
        return result

    result = walk(value, 0)
    return None if result is None else (result, list(nodes))


def _combine(op: str, terms: list[Polynomial], degree: int) -> Polynomial | None:
    if op == "Neg":
        return {n: -k for n, k in terms[0].items()}
    a, b = terms
    if op in ("Add", "Sub"):
        sign = 1.0 if op == "Add" else -1.0
        return {n: a.get(n, 0.0) + sign * b.get(n, 0.0) for n in sorted({*a, *b})}
    if op == "Div":
        return {n: k / b[0] for n, k in a.items()} if set(b) == {0} and b[0] else None
    if op == "Pow":
        if set(b) != {0} or b[0] not in range(1, degree + 1):
            return None
        power = dict(a)
        for _ in range(int(b[0]) - 1):
            power = _times(power, a)
        return power if max(power) <= degree else None
    product = _times(a, b)
    return product if max(product) <= degree else None


def _times(a: Polynomial, b: Polynomial) -> Polynomial:
    result: Polynomial = {}
    for n, k in a.items():
        for m, q in b.items():
            result[n + m] = result.get(n + m, 0.0) + k * q
    return result


def is_polynomial(found: Polynomial, wanted: Mapping[int, float]) -> bool:
    """Whether the coefficients are those of ``wanted``, within the tolerance of constants."""
    return all(near(found.get(n, 0.0), k) for n, k in wanted.items()) and not any(
        k for n, k in found.items() if n not in wanted
    )


def sources(value: ir.Value, depth: int) -> list[ir.Value]:
    """``value`` and the tensors it is computed from by arithmetic in at most ``depth`` nodes, nearest first."""
    found, level = {value: None}, [value]
    for _ in range(depth):
        following: list[ir.Value] = []
        for v in level:
            node = v.producer()
            if node is None or not is_op(node, *_ARITHMETIC):
                continue
            following += [i for i in node.inputs if i is not None and i not in found and constant(i) is None]
        found.update(dict.fromkeys(following))
        level = following
    return list(found)
