"""Which channels of which tensors carry one scale: the variables of cross-layer equalization.

Every channel (axis 1) of a tensor that a weighted operator makes is a variable. Operators f with f(s x) = s f(x) per
channel pass it on, a sum joins those of its operands, a Concat puts them side by side. Whatever else reads or makes a
tensor pins its variables to 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from edgeopt.quantize.placement import constant_of, limits
from edgeopt.quantize.tied import SOURCE

_SAME = frozenset({"Relu", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Identity"})
_FLAT = frozenset({"Flatten", "Reshape", "Squeeze"})


class Channels:
    """The variables of a graph.

    Attributes:
        numbers: by value, the variable of each of its channels.
        bounds: by value, the upper bound of the Clip(0, h) that makes it.
        weighted: operators whose weights can take factors.
        pinned: by variable, whether its factor is 1.
        dense: by variable, whether weights that other channels share a scale with read it.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self.numbers: dict[ir.Value, np.ndarray] = {}
        self.bounds: dict[ir.Value, float] = {}
        self.weighted: list[ir.Node] = []
        self._count = 0
        self._equal: list[tuple[np.ndarray, np.ndarray]] = []
        fixed: list[np.ndarray] = []
        for node in graph:
            if not self._passes_on(node):
                for value in node.outputs:
                    self._new(value)
                fixed += [self.numbers[v] for v in (*node.inputs, *node.outputs) if v is not None and v in self.numbers]
        inner = [v for n in graph for v in n.outputs if any(use.node.graph is not graph for use in v.uses())]
        fixed += [self.numbers[v] for v in (*graph.outputs, *inner) if v in self.numbers]
        roots = self._roots()
        self.numbers = {value: roots[numbers] for value, numbers in self.numbers.items()}
        self.pinned = np.zeros(self._count, bool)
        for numbers in fixed:
            self.pinned[roots[numbers]] = True
        self.dense = np.zeros(self._count, bool)
        for node in self.weighted:
            source = node.inputs[0]
            if source in self.numbers and not depthwise(node):
                self.dense[self.numbers[source]] = True

    @property
    def count(self) -> int:
        """How many variables there are; not all are used."""
        return self._count

    def _passes_on(self, node: ir.Node) -> bool:
        """Take the node into account; False where its tensors have to stay as they are."""
        if node.domain not in ("", "ai.onnx") or len(node.outputs) != 1 or not node.inputs or node.inputs[0] is None:
            return False
        source, out = node.inputs[0], node.outputs[0]
        if _takes_factors(node):
            self.weighted.append(node)
            self._new(out)
            return True
        if node.op_type in _SAME or (node.op_type in _FLAT and _drops_ones(source, out)):
            return self._alike(source, out)
        if node.op_type == "Clip":
            found = limits(node)
            if found is None or found[0] != 0.0 or not self._alike(source, out):
                return False
            self.bounds[out] = found[1]
            return True
        if node.op_type == "Concat" and node.attributes.get_int("axis", 0) == 1:
            return self._together([v for v in node.inputs if v is not None], out)
        return node.op_type == "Add" and self._sum(source, node.inputs[1], out)

    def _new(self, value: ir.Value) -> None:
        channels = channels_of(value)
        if channels:
            self.numbers[value] = np.arange(self._count, self._count + channels)
            self._count += channels

    def _alike(self, source: ir.Value, out: ir.Value) -> bool:
        known = self.numbers.get(source)
        if known is None or channels_of(out) != len(known):
            return False
        self.numbers[out] = known
        return True

    def _together(self, members: Sequence[ir.Value], out: ir.Value) -> bool:
        known = [self.numbers[v] for v in members if v in self.numbers]
        if len(known) != len(members) or channels_of(out) != sum(map(len, known)):
            return False
        self.numbers[out] = np.concatenate(known)
        return True

    def _sum(self, first: ir.Value, second: ir.Value | None, out: ir.Value) -> bool:
        if second is None or first not in self.numbers or second not in self.numbers:
            return False
        ranks = {len(v.shape) for v in (first, second, out) if v.shape is not None}
        one, other = self.numbers[first], self.numbers[second]
        if len(ranks) != 1 or len(one) != len(other) or channels_of(out) != len(one):
            return False
        self._equal.append((one, other))
        self.numbers[out] = one
        return True

    def _roots(self) -> np.ndarray:
        """The smallest variable that each one is equal to."""
        roots, before = np.arange(self._count), None
        while before is None or not np.array_equal(roots, before):
            before = roots.copy()
            for one, other in self._equal:
                least = np.minimum(roots[one], roots[other])
                np.minimum.at(roots, one, least)
                np.minimum.at(roots, other, least)
            roots = roots[roots]
        return roots


def channels_of(value: ir.Value) -> int:
    """The size of axis 1 of a float tensor; 0 where it has none or it is not known."""
    if value.shape is None or len(value.shape) < 2 or value.dtype not in (None, ir.DataType.FLOAT):
        return 0
    size = value.shape[1]
    return size if isinstance(size, int) else 0


def depthwise(node: ir.Node) -> bool:
    """Whether each channel that a node reads has rows of weights, and scales, of its own."""
    weight = constant_of(node, 1)
    return node.op_type == "Conv" and weight is not None and weight.shape[1] == 1


def _takes_factors(node: ir.Node) -> bool:
    """Whether factors on a node's input and output channels can go into its constants."""
    source, weight = node.inputs[0], constant_of(node, 1)
    if node.op_type not in ("Conv", "Gemm", "MatMul") or source is None or weight is None or source.shape is None:
        return False
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None and constant_of(node, 2) is None:
        return False
    value = node.inputs[1]
    if value is None or SOURCE in value.metadata_props:
        return False
    if node.op_type == "Conv":
        return True
    return len(source.shape) == 2 and len(weight.shape) == 2 and not node.attributes.get_int("transA", 0)


def _drops_ones(source: ir.Value, out: ir.Value) -> bool:
    """Whether a reshape only drops axes of length 1 behind the channels."""
    if source.shape is None or out.shape is None or len(out.shape) != 2:
        return False
    return math.prod(d if isinstance(d, int) else 0 for d in list(source.shape)[2:]) == 1
