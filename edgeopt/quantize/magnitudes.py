"""How large and how small the numbers in a network's tensors get, over real samples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable

import numpy as np
import onnx_ir as ir

from edgeopt.interpreter import Feeds, Interpreter
from edgeopt.model import Model

PASS_BYTES = 64_000_000
"""Bytes of tensors of one sample that are looked at in one pass over the samples."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seen:
    """What a tensor held over all samples: largest finite magnitude, smallest above 0, elements in one sample."""

    largest: float = 0.0
    smallest: float = math.inf
    size: int = 0


def look(model: Model, samples: Callable[[], Iterable[Feeds]]) -> dict[str, Seen]:
    """The magnitudes of every float tensor of the main graph, in as few passes as ``PASS_BYTES`` allows."""
    values = [v for v in model.graph.inputs if is_single(v) and not v.is_initializer()]
    values += [v for node in model.graph for v in node.outputs if v.name and is_single(v)]
    groups: list[list[ir.Value]] = [[]]
    room = PASS_BYTES
    for value in values:
        known = 4 * math.prod(d for d in value.shape if isinstance(d, int)) if value.shape is not None else 4
        if known > room and groups[-1]:
            groups.append([])
            room = PASS_BYTES
        groups[-1].append(value)
        room -= known
    seen: dict[str, Seen] = {}
    for group in groups:
        computed = [str(v.name) for v in group if not v.is_graph_input()]
        interpreter = Interpreter(model, tensors=computed) if computed else None
        for feeds in samples():
            arrays = {} if interpreter is None else interpreter.run(feeds)
            arrays |= {str(v.name): feeds[str(v.name)] for v in group if v.is_graph_input()}
            for name, array in arrays.items():
                seen[name] = _wider(seen.get(name, Seen()), array)
    return seen


def _wider(before: Seen, array: np.ndarray) -> Seen:
    sizes = np.abs(array[np.isfinite(array)])
    above = sizes[sizes > 0]
    return Seen(
        largest=max(before.largest, float(sizes.max(initial=0.0))),
        smallest=min(before.smallest, float(above.min(initial=math.inf))),
        size=max(before.size, array.size),
    )


def is_single(value: ir.Value | None) -> bool:
    """Whether a value is a float32 tensor."""
    return value is not None and isinstance(value.type, ir.TensorType) and value.dtype == ir.DataType.FLOAT
