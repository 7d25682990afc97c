"""A weight in 8 bits: its integers, how its readers get at them, and what became of every operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from edgeopt.model import Model, node_key
from edgeopt.quantize import scheme
from edgeopt.quantize.emit import Emitter
from edgeopt.quantize.insert import QuantizedModel
from edgeopt.quantize.moments import Moments
from edgeopt.quantize.placement import Placement
from edgeopt.quantize.rounding import round_second_order
from edgeopt.quantize.sites import Found, Weight


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stored:
    """Integers of one weight.

    Attributes:
        rows: int8, of the shape of ``weight.rows``.
        scales: float32, one an output channel, or a scalar.
    """

    weight: Weight
    rows: np.ndarray
    scales: np.ndarray
    _turned: dict[ir.Graph, ir.Value] = dataclasses.field(default_factory=dict)

    def integers(self, emitter: Emitter, node: ir.Node, *, turned: bool) -> ir.Value:
        """What ``node`` reads: the rows or their transpose. They are stored once, as most readers want them."""
        as_turned = self.weight.rows.ndim == 2 and all(site.turned for site in self.weight.sites)
        array = np.ascontiguousarray(self.rows.T) if as_turned else self.rows
        value = emitter.constant(self.weight.name, "quantized", array)
        if turned == as_turned or self.rows.ndim != 2:
            return value
        graph = node.graph
        assert graph is not None
        if graph not in self._turned:
            made = emitter.before(node, "Transpose", [value], dtype=ir.DataType.INT8, attributes={"perm": [1, 0]})
            made.outputs[0].shape = ir.Shape(self.rows.shape[::-1])
            self._turned[graph] = made.outputs[0]
        return self._turned[graph]


def store(weight: Weight, bits: int, *, per_channel: bool = True, second: np.ndarray | None = None) -> Stored:
    """Quantize a weight to int8 within ``bits`` bits, one scale an output channel or one in all.

    Args:
        second: second moments of its inputs as ``second_of`` gives them; None rounds to the nearest.
    """
    axis = weight.axis if per_channel else None
    scales = scheme.weight_scales(weight.rows, axis, bits)
    if second is not None and per_channel and weight.axis == 0:
        groups = second.shape[0] if second.ndim == 3 else 1
        matrix = weight.rows.reshape(groups, weight.rows.shape[0] // groups, -1).astype(np.float64)
        hessian = second.reshape(groups, *second.shape[-2:])
        rows = round_second_order(matrix, scales.reshape(groups, -1), hessian, bits).reshape(weight.rows.shape)
    else:
        rows = scheme.quantize_weights(weight.rows, scales, axis, bits)
    return Stored(weight=weight, rows=rows, scales=scales)


def second_of(weight: Weight, moments: Mapping[str, Moments] | None) -> np.ndarray | None:
    """Second moments of a weight's inputs, [K, K], or [G, K, K] for groups; None where one of its readers has none."""
    if not moments:
        return None
    found = []
    for site in weight.sites:
        known = moments.get(node_key(site.node))
        if known is None or site.index != 1 or site.node.op_type not in ("Conv", "MatMul", "Gemm"):
            return None
        groups, columns = known.second.shape[:2]
        if columns * weight.rows.shape[0] != weight.rows.size or weight.rows.shape[0] % groups:
            return None
        found.append(known.second / max(known.count, 1))
    if not found or any(f.shape != found[0].shape for f in found):
        return None
    total = np.asarray(np.sum(found, axis=0))
    return total[0] if len(total) == 1 else total


def described(
    model: Model,
    changed: Model,
    found: Found,
    int8: Iterable[str],
    counts: Mapping[str, int],
    notes: Mapping[str, str],
    precision: str,
) -> QuantizedModel:
    """The result with its placement: the nodes of the float model by what became of them, and why.

    Args:
        int8: keys of the nodes that compute in integers.
        counts: number of weight scales of every node that reads integers, those included.
        notes: by node key.
    """
    nodes = {node_key(n): n for n in model.graph.all_nodes()}
    integer = set(int8)
    alone = [key for key in nodes if key in counts and key not in integer]
    reasons = {key: why for key, why in found.stays_float.items() if key not in counts}
    told = {**reasons, **notes}
    reasons |= {key: notes.get(key, "computes in float from stored integers") for key in alone}
    for key in nodes:
        if key not in integer:
            reasons.setdefault(key, "it has no weight")
    placement = Placement(
        int8=tuple(node for key, node in nodes.items() if key in integer),
        weight_only=tuple(nodes[key] for key in alone),
        stays_float=reasons,
        values=(),
        from_int8=frozenset(),
        same_scale=(),
        shared=(),
    )
    return QuantizedModel(
        model=changed, placement=placement, weight_scale_counts=counts, notes=told, precision=precision
    )
