"""Attention heads [B, N, S, D] as rows [B, S, N D]: recognize how an export made them, and undo it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from edgeopt.passes._graph import (
    attr_int,
    attr_ints,
    constant,
    dims,
    input_at,
    integers,
    is_op,
    new_constant,
    value_names,
)
from edgeopt.passes._symbols import Symbols, product


class Picked(NamedTuple):
    """Element ``place`` of axis ``axis`` of ``source``."""

    source: ir.Value
    axis: int
    place: int


class View(NamedTuple):
    """Rows of heads in front of the Transpose: [B, S, N, D], or [S, B, N, D] when ``sequence_first``."""

    source: ir.Value | Picked
    sequence_first: bool


def picked(value: ir.Value) -> tuple[ir.Value, int, int] | None:
    """``(source, axis, index)`` when the value is one slice of ``source`` and the axis is gone."""
    node = value.producer()
    if node is None:
        return None
    source = input_at(node, 0)
    if is_op(node, "Gather") and source is not None:
        index = constant(input_at(node, 1))
        return (source, attr_int(node, "axis", 0), int(index)) if index is not None and index.ndim == 0 else None
    axes = integers(input_at(node, 1)) if is_op(node, "Squeeze") else None
    inner = source.producer() if source is not None else None
    if axes is None or len(axes) != 1 or inner is None or source is None:
        return None
    whole = input_at(inner, 0)
    if whole is None:
        return None
    if is_op(inner, "Split") and attr_int(inner, "axis", 0) == axes[0]:
        shape = dims(source)
        if shape is None or not -len(shape) <= axes[0] < len(shape) or shape[axes[0]] != 1:
            return None
        return whole, axes[0], list(inner.outputs).index(source)
    if is_op(inner, "Slice"):
        bounds = [integers(input_at(inner, i)) for i in (1, 2, 3)]
        step = integers(input_at(inner, 4)) if input_at(inner, 4) is not None else [1]
        if any(b is None or len(b) != 1 for b in bounds) or step != [1]:
            return None
        start, end, axis = (b[0] for b in bounds if b is not None)
        if axis == axes[0] and start >= 0 and end == start + 1:
            return whole, axis, start
    return None


def rows_of(value: ir.Value) -> View | str:
    """How heads [B, N, S, D] were made from rows."""
    return _view(value, {(0, 2, 1, 3): False, (1, 2, 0, 3): True})


def columns_of(value: ir.Value) -> View | str:
    """How transposed heads [B, N, D, S] were made from rows by one Transpose."""
    return _view(value, {(0, 2, 3, 1): False, (1, 2, 3, 0): True})


def _view(value: ir.Value, perms: Mapping[tuple[int, ...], bool]) -> View | str:
    node = value.producer()
    source = input_at(node, 0) if node is not None else None
    if node is not None and is_op(node, "Transpose") and source is not None:
        found = perms.get(tuple(attr_ints(node, "perm") or ()))
        return "the heads are transposed in another way" if found is None else View(source, found)
    taken = picked(value)
    if taken is None:
        return "the heads are not made by a Transpose"
    whole = taken[0].producer()
    perm = attr_ints(whole, "perm") if whole is not None and is_op(whole, "Transpose") else None
    source = input_at(whole, 0) if whole is not None else None
    if perm is None or source is None or len(perm) != 5:
        return "the heads are not made by a Transpose"
    axis = taken[1] % 5
    rest = [p for i, p in enumerate(perm) if i != axis]
    order = tuple(p - (p > perm[axis]) for p in rest)
    found = perms.get(order)
    if found is None:
        return "the heads are transposed in another way"
    return View(Picked(source, perm[axis], taken[2]), found)


class Rows:
    """Builds rows [B, S, N D] in a graph; one Split for all that is picked from one tensor."""

    def __init__(self, model: ir.Model, known: Symbols) -> None:
        self._model, self._known = model, known
        self._splits: dict[ir.Value, Sequence[ir.Value]] = {}

    def build(self, view: View, at: ir.Node) -> ir.Value:
        """The rows of a view, by nodes in front of ``at`` where the graph does not have them."""
        rows = self._picked(view.source, at) if isinstance(view.source, Picked) else self._flat(view.source, at)
        return self.add(at, "Transpose", [rows], {"perm": [1, 0, 2]}) if view.sequence_first else rows

    def _flat(self, heads: ir.Value, at: ir.Node) -> ir.Value:
        """[a, b, N, D] -> [a, b, N D]."""
        shape, node = self._known.dims(heads), heads.producer()
        assert shape is not None
        source = input_at(node, 0) if node is not None and is_op(node, "Reshape") else None
        if source is not None and self._known.dims(source) == (*shape[:2], product(*shape[2:])):
            return self._unpacked(source, at)
        return self._reshape(heads, [0, 0, product(*shape[2:])], at)

    def _unpacked(self, rows: ir.Value, at: ir.Node) -> ir.Value:
        """Rows that were picked from [a, b, 3, E] by a Transpose to the front and an index: a Split of [a, b, 3 E]."""
        taken = picked(rows)
        whole = taken[0].producer() if taken is not None else None
        source = input_at(whole, 0) if whole is not None else None
        if taken is None or source is None or not is_op(whole, "Transpose") or taken[1] != 0:
            return rows
        assert whole is not None
        if attr_ints(whole, "perm") != [2, 0, 1, 3]:
            return rows
        return self._picked(Picked(source, 2, taken[2]), at)

    def _picked(self, picked_: Picked, at: ir.Node) -> ir.Value:
        source, axis, place = picked_
        shape = self._known.dims(source)
        assert shape is not None
        if axis != 2 or not all(isinstance(d, int) for d in shape[2:]):
            number = new_constant(self._model, _graph(at), "attention.index", np.array(place, np.int64))
            return self._flat(self._noted(self.add(at, "Gather", [source, number], {"axis": axis}), picked_), at)
        if source not in self._splits:
            parts, width = shape[2], product(*shape[3:])
            assert isinstance(parts, int)
            node, whole = source.producer(), product(*shape[2:])
            flat = input_at(node, 0) if node is not None and is_op(node, "Reshape") else None
            if flat is None or self._known.dims(flat) != (*shape[:2], whole):
                flat = self._reshape(source, [0, 0, whole], at)
            sizes = new_constant(self._model, _graph(at), "attention.split", np.array([width] * parts, np.int64))
            split = ir.Node("", "Split", [flat, sizes], [ir.AttrInt64("axis", 2)], num_outputs=parts)
            self._place(split, at)
            self._splits[source] = split.outputs
        return self._splits[source][place]

    def _noted(self, value: ir.Value, picked_: Picked) -> ir.Value:
        shape = self._known.dims(picked_.source) or ()
        self._known.note(value, tuple(d for a, d in enumerate(shape) if a != picked_.axis))
        return value

    def _reshape(self, value: ir.Value, target: Sequence[object], at: ir.Node) -> ir.Value:
        shape = np.array([d if isinstance(d, int) else -1 for d in target], np.int64)
        return self.add(at, "Reshape", [value, new_constant(self._model, _graph(at), "attention.shape", shape)])

    def add(
        self,
        at: ir.Node,
        op: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, int | float | list[int]] | None = None,
        domain: str = "",
    ) -> ir.Value:
        """Insert a node in front of ``at``; returns its output."""
        made = [_attribute(name, value) for name, value in (attributes or {}).items()]
        node = ir.Node(domain, op, inputs, made)
        self._place(node, at)
        return node.outputs[0]

    def _place(self, node: ir.Node, at: ir.Node) -> None:
        for index, out in enumerate(node.outputs):
            out.name = free_name(self._model, f"{at.outputs[0].name}.{node.op_type}.{index}")
        _graph(at).insert_before(at, node)


def free_name(model: ir.Model, name: str) -> str:
    """``name``, or ``name_2``, ``name_3``... where it is taken."""
    taken, unique, n = value_names(model), name, 1
    while unique in taken:
        n += 1
        unique = f"{name}_{n}"
    return unique


def _graph(node: ir.Node) -> ir.Graph:
    assert isinstance(node.graph, ir.Graph)
    return node.graph


def _attribute(name: str, value: int | float | list[int]) -> ir.Attr:
    if isinstance(value, list):
        return ir.AttrInt64s(name, value)
    return ir.AttrInt64(name, value) if isinstance(value, int) else ir.AttrFloat32(name, value)
