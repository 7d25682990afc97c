"""Shapes that a run really has: a Shape operator behind tensors of the main graph, read as an output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from edgeopt.interpreter import Interpreter
from edgeopt.model import Model

Shape = tuple[int, ...]
Feeds = Mapping[str, np.ndarray]

_PREFIX = "edgeopt.shape."


class Traced:
    """A session of a model that returns its outputs and the shapes of some of its tensors.

    Args:
        nodes: nodes of the main graph whose inputs and outputs are traced.

    Raises:
        ModelError: the runtime refuses the model.
    """

    def __init__(self, model: Model, nodes: Iterable[ir.Node]) -> None:
        wanted = {v.name for node in nodes for v in (*node.inputs, *node.outputs) if v is not None and v.name}
        self._outputs = tuple(spec.name for spec in model.outputs)
        changed = model.clone()
        graph = changed.graph
        values = {v.name: v for v in (*graph.inputs, *graph.initializers.values())}
        values.update({v.name: v for node in graph for v in node.outputs})
        for name in sorted(str(n) for n in wanted if n in values):
            node = ir.node("Shape", [values[name]])
            node.outputs[0].name = _PREFIX + name
            node.outputs[0].type = ir.TensorType(ir.DataType.INT64)
            graph.append(node)
            graph.outputs.append(node.outputs[0])
        self._session = Interpreter(changed)

    def run(self, feeds: Feeds) -> tuple[dict[str, np.ndarray], dict[str, Shape]]:
        """Outputs by name, and traced shapes by tensor name.

        Raises:
            ModelError: the run fails.
        """
        found = self._session.run(feeds)
        shapes = {
            name.removeprefix(_PREFIX): tuple(int(d) for d in value)
            for name, value in found.items()
            if name.startswith(_PREFIX)
        }
        return {name: found[name] for name in self._outputs}, shapes


def reshapes(model: Model) -> list[ir.Node]:
    """The nodes of the main graph that may group axes in another way."""
    return [node for node in model.graph if node.domain == "" and node.op_type in ("Reshape", "Flatten")]


def kept_boundaries(source: Shape, result: Shape) -> set[tuple[int, int]]:
    """Where a reshape keeps a border between axes: (i, j) when the first i and the first j sizes multiply to the same.

    A reshape means the same at two sizes when it keeps the same borders: it merges and splits the same axes.
    """
    before, after = (np.cumprod(np.asarray(shape, np.int64)) for shape in (source, result))
    return {(i, j) for i, a in enumerate(before) for j, b in enumerate(after) if a == b}
