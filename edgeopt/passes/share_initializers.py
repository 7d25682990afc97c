"""Equal initializers are stored once: for tensors a = b, readers of b read a, and b goes.

1. Equal means same type, shape and bytes (so 0.0 and -0.0 differ, and equal NaNs are equal).
2. The first of the main graph stays. An initializer of a subgraph may be replaced by an equal one of the main graph
   or of the same subgraph, which it can see.
3. Graph inputs and outputs, and strings, are left alone.
4. A tensor is read only where another one has its type and shape.
"""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np
import onnx_ir as ir

from edgeopt.passes._graph import is_constant
from edgeopt.passes._pass import Pass

Kind = tuple[ir.DataType, tuple[int, ...]]


def _kind(value: ir.Value) -> Kind | None:
    tensor = value.const_value
    if tensor is None or not is_constant(value) or value.is_graph_output() or tensor.dtype == ir.DataType.STRING:
        return None
    return tensor.dtype, tuple(tensor.shape.numpy())


def _digest(value: ir.Value) -> bytes:
    assert value.const_value is not None
    array = np.ascontiguousarray(value.const_value.numpy())
    return hashlib.sha256(array.reshape(-1).view(np.uint8).data).digest()


def _rewrite(model: ir.Model) -> int:
    graphs = list(model.graphs())
    values = [(graph, value) for graph in graphs for value in graph.initializers.values()]
    frequent = Counter(kind for _, value in values if (kind := _kind(value)) is not None)
    kept: dict[tuple[ir.Graph, Kind, bytes], ir.Value] = {}
    count = 0
    for graph, value in values:
        kind = _kind(value)
        if kind is None or frequent[kind] < 2:
            continue
        digest = _digest(value)
        first = kept.get((model.graph, kind, digest)) or kept.get((graph, kind, digest))
        if first is None:
            kept[graph, kind, digest] = value
            continue
        value.replace_all_uses_with(first)
        graph.initializers.pop(value.name or "")
        count += 1
    return count


SHARE_INITIALIZERS = Pass(
    name="share-initializers", rewrite=_rewrite, tolerance=1e-6, gain="equal weights are stored once"
)
