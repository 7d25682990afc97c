"""The numbers that shape arithmetic computes: Shape, Gather, Slice, Concat, products and sums of dims."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgeopt.passes._graph import attr_int, constant, input_at, integers
from edgeopt.passes._terms import INTEGERS, Dim, Known, Numbers, Term, product, quotient


def numbers_of(known: Known, node: ir.Node) -> Numbers | None:
    """The elements of what shape arithmetic computes."""
    op, source = node.op_type, input_at(node, 0)
    if op == "Shape" and (shape := known.dims(source)) is not None:
        end = node.attributes["end"].as_int() if "end" in node.attributes else None
        return Numbers(shape[slice(attr_int(node, "start", 0), end)], False)
    if op == "Size" and (shape := known.dims(source)) is not None:
        return Numbers((product(*shape),), True)
    if op == "Concat":
        parts = [known.numbers(v) for v in node.inputs]
        if any(p is None or p.scalar for p in parts):
            return None
        return Numbers(tuple(d for p in parts if p is not None for d in p.items), False)
    if op == "Where":
        return _replaced(known, node)
    first = known.numbers(source)
    if first is None:
        return None
    if op in ("Identity", "Unsqueeze", "Squeeze", "Reshape", "Cast"):
        return _carried(node, first)
    if op == "Gather":
        return _picked(node, first)
    if op == "Slice":
        return _cut(node, first)
    if op == "ReduceProd" and not first.scalar and input_at(node, 1) is None:
        return Numbers((product(*first.items),), not attr_int(node, "keepdims", 1))
    second = known.numbers(input_at(node, 1))
    return None if second is None or op not in ("Add", "Sub", "Mul", "Div", "Mod") else _computed(op, first, second)


def _replaced(known: Known, node: ir.Node) -> Numbers | None:
    """``Where(dims == -1, ones, dims)``, which exports spell in front of an Expand: no dim is negative."""
    test = node.inputs[0].producer() if node.inputs[0] is not None else None
    if test is None or test.domain != "" or test.op_type != "Equal":
        return None
    for index in (0, 1):
        negative, tested = integers(test.inputs[index]), known.numbers(test.inputs[1 - index])
        if negative and max(negative) < 0 and tested is not None:
            kept = all(isinstance(d, Term) or d >= 0 for d in tested.items)
            return known.numbers(node.inputs[2]) if kept and node.inputs[2] is test.inputs[1 - index] else None
    return None


def _carried(node: ir.Node, first: Numbers) -> Numbers | None:
    if node.op_type == "Identity":
        return first
    if node.op_type == "Cast":
        return first if attr_int(node, "to", 0) in INTEGERS else None
    if node.op_type == "Reshape":
        target = integers(input_at(node, 1))
        if target is None or len(target) > 1 or (len(target) == 1 and target[0] not in (-1, len(first.items))):
            return None
        return Numbers(first.items, not target)
    if node.op_type == "Unsqueeze":
        return Numbers(first.items, False) if first.scalar and len(integers(input_at(node, 1)) or ()) == 1 else None
    return Numbers(first.items, True) if len(first.items) == 1 and not first.scalar else None


def _picked(node: ir.Node, first: Numbers) -> Numbers | None:
    index = constant(input_at(node, 1))
    if first.scalar or index is None or index.ndim > 1:
        return None
    picks = [int(i) for i in index.reshape(-1)]
    if not all(-len(first.items) <= i < len(first.items) for i in picks):
        return None
    return Numbers(tuple(first.items[i] for i in picks), index.ndim == 0)


def _cut(node: ir.Node, first: Numbers) -> Numbers | None:
    bounds = [integers(input_at(node, i)) for i in (1, 2)]
    steps = integers(input_at(node, 4)) if input_at(node, 4) is not None else [1]
    if first.scalar or any(b is None or len(b) != 1 for b in (*bounds, steps)):
        return None
    start, end, step = (b[0] for b in (*bounds, steps) if b is not None)
    if step == 0 or (step < 0 and end < -len(first.items)):
        return None
    return Numbers(first.items[start:end:step], False)


def _computed(op: str, left: Numbers, right: Numbers) -> Numbers | None:
    size = max(len(left.items), len(right.items))
    lefts, rights = (n.items * size if len(n.items) == 1 else n.items for n in (left, right))
    if len(lefts) != len(rights):
        return None
    result = [_calculated(op, a, b) for a, b in zip(lefts, rights, strict=True)]
    if any(r is None for r in result):
        return None
    return Numbers(tuple(r for r in result if r is not None), left.scalar and right.scalar)


def _calculated(op: str, a: Dim, b: Dim) -> Dim | None:
    if op == "Mul":
        return product(a, b)
    if op == "Div":
        exact = quotient(a, b)
        if exact is not None or isinstance(a, Term) or isinstance(b, Term) or b == 0:
            return exact
        return int(np.trunc(a / b)) if abs(a) < 2**53 else None
    if isinstance(a, Term) or isinstance(b, Term):
        return a if b == 0 and op in ("Add", "Sub") else b if a == 0 and op == "Add" else None
    if op == "Mod":
        return a % b if b > 0 else None
    return a + b if op == "Add" else a - b
