"""What is known about dims beyond numbers: which dims of which tensors are equal, and what shape arithmetic computes.

A ``Dim`` is a number, or a ``Term``: a number times symbols. A dim of a graph input that is not a number is a symbol.
Two inputs share one where the file gives both one proper name; a placeholder (``?``, ``None``, ``unk__3``), or a name
that one input has twice, names nothing: exporters write those for any dim. What an operator does to dims in an unknown
way makes a new symbol. Equal terms are equal in every run of the model; unequal ones may be equal all the same.

    Shape(x: [b, 3, h]) = (b, 3, h),   Gather(that, 0) * 12 = 12 b,   Reshape(y, (b, 12, -1)): [b, 12, |y| / (12 b)]
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import onnx_ir as ir

from edgeopt.passes._graph import constant, constant_bytes, dims, is_constant, static_shape
from edgeopt.passes._shape_numbers import numbers_of
from edgeopt.passes._shape_rules import BROADCAST, attention_of, parts_of, shape_of
from edgeopt.passes._terms import INTEGERS, Dim, Dims, Numbers, Term, broadcast, product, quotient

__all__ = ["BROADCAST", "Dim", "Dims", "Numbers", "Symbols", "Term", "broadcast", "product", "quotient"]

PLACEHOLDER = re.compile(r"(?i)\W*|-?\d+|none.*|unk.*|any.*|dyn.*|dim.*|axis.*|.*\?.*")
"""Names of input dims that say nothing; matched as a whole."""

MOST = 512
"""Bytes of a constant that is looked at as shape arithmetic."""


class Symbols:
    """The dims of every value of a model, and the contents of its shape arithmetic. Edits must keep shapes."""

    def __init__(self, model: ir.Model) -> None:
        self._dims: dict[ir.Value, Dims] = {}
        self._numbers: dict[ir.Value, Numbers] = {}
        self._clipped: dict[tuple[Term, int], Term] = {}
        self._wholes: dict[Dim, Term] = {}
        self._fresh = 0
        for graph in model.graphs():
            named = graph is model.graph
            for value in graph.inputs:
                self._keep(value, self._declared(value) if named else None)
        self._walk(model.graph)

    def dims(self, value: ir.Value | None) -> Dims | None:
        """The shape, None when the rank is unknown."""
        if value is None:
            return None
        if value in self._dims:
            return self._dims[value]
        return static_shape(value)

    def numbers(self, value: ir.Value | None) -> Numbers | None:
        """The elements of an integer tensor, None when they are not followed."""
        if value is None:
            return None
        if value in self._numbers:
            return self._numbers[value]
        if not is_constant(value) or constant_bytes(value) > MOST or value.dtype not in INTEGERS:
            return None
        array = constant(value)
        if array is None or array.ndim > 1:
            return None
        return Numbers(tuple(int(i) for i in array.reshape(-1)), array.ndim == 0)

    def note(self, value: ir.Value, shape: Dims) -> None:
        """Remember the shape of a value that was made after the walk."""
        self._dims[value] = shape

    def new(self) -> Term:
        """A symbol that is like no other."""
        self._fresh += 1
        return Term(1, (f"s{self._fresh}",))

    def clipped(self, length: Dim, size: Dim) -> Dim:
        """``min(length, size)``: a symbol, the same for all that is clipped alike to a number, else a new one."""
        if isinstance(length, Term) and length.factor > 0 and isinstance(size, int) and size > 0:
            if (length, size) not in self._clipped:
                self._clipped[length, size] = self.new()
                self._wholes[self._clipped[length, size]] = length
            return self._clipped[length, size]
        return self.new()

    def whole(self, dim: Dim) -> Dim | None:
        """``length`` where ``dim`` is ``min(length, size)`` for a number ``size`` > 0, else None."""
        return self._wholes.get(dim)

    def _declared(self, value: ir.Value) -> Dims | None:
        """The shape of a graph input with its proper names as symbols."""
        if value.shape is None:
            return None
        names = [None if isinstance(d, int) else d.value for d in value.shape]
        proper = [n is not None and names.count(n) == 1 and not PLACEHOLDER.fullmatch(n) for n in names]
        return tuple(
            d if isinstance(d, int) else Term(1, (f"input {n}",)) if ok else self.new()
            for d, n, ok in zip(value.shape, names, proper, strict=True)
        )

    def _walk(self, graph: ir.Graph) -> None:
        for node in graph:
            for inner in _subgraphs(node):
                self._walk(inner)
            shape = shape_of(self, node) if node.domain == "" else None
            if node.op_identifier()[:2] == ("com.microsoft", "MultiHeadAttention"):
                shape = attention_of(self, node)
            parts = parts_of(self, node) if node.domain == "" and node.op_type == "Split" else None
            for index, out in enumerate(node.outputs):
                self._keep(out, parts[index] if parts is not None else shape if index == 0 else None)
            if node.domain == "" and node.outputs and (numbers := numbers_of(self, node)) is not None:
                self._numbers[node.outputs[0]] = numbers

    def _keep(self, value: ir.Value, derived: Dims | None) -> None:
        """Known numbers win over what was derived; where nothing is known, a new symbol stands for the dim."""
        known = dims(value)
        if known is None and derived is None:
            return
        if known is not None and (derived is None or len(derived) != len(known)):
            derived = tuple(self.new() for _ in known)
        assert derived is not None
        numbers = known or (None,) * len(derived)
        self._dims[value] = tuple(d if n is None else n for n, d in zip(numbers, derived, strict=True))


def _subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    for attr in node.attributes.values():
        if attr.type == ir.AttributeType.GRAPH:
            yield attr.as_graph()
        elif attr.type == ir.AttributeType.GRAPHS:
            yield from attr.as_graphs()
