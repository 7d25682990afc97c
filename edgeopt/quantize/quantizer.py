"""From a float model and calibration samples to a Q/DQ model, in two calls.

``calibrate`` runs the float model once over the set. ``quantize`` turns the statistics and a ``Choice``
into a graph without running anything, so that choices can be compared one change at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Set

import numpy as np
import onnx_ir as ir

from edgeopt.model import Model, node_key
from edgeopt.quantize.insert import QuantizedModel, quantize_model
from edgeopt.quantize.pixels import grids, on_grid, pixel_values
from edgeopt.quantize.placement import Placement, Rule, Table, activation_inputs, limits, plan_placement
from edgeopt.quantize.ranges import Statistics
from edgeopt.quantize.scheme import QParams, activation_qparams
from edgeopt.quantize.statistics import collect
from edgeopt.quantize.tied import retie, untie
from edgeopt.target import Int8Scheme

UNLIKE_RANGES = 16.0
"""A Concat of tensors whose ranges differ by more than this stays in float: one scale would erase the smaller."""

QUIET_STEPS = 32.0
"""A channel of a graph output with fewer steps than this errs by more than 1.5 % of its peak: it stays in float."""

SHARE_RANGES = 4.0
"""Up to this ratio the inputs of a Concat take its output's range: one rounding instead of two."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """What can be chosen after calibration.

    Attributes:
        percentile: 100 is min-max; less cuts equal tails. Graph outputs are never cut.
        bias_correction: shift biases by the mean error of rounded weights.
    """

    percentile: float = 100.0
    bias_correction: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibrated:
    """A float model with its placement and the statistics of every tensor that will be quantized."""

    model: Model
    table: Table
    scheme: Int8Scheme
    placement: Placement
    statistics: Mapping[str, Statistics]


def calibrate(
    model: Model,
    table: Table,
    scheme: Int8Scheme,
    samples: Iterable[Mapping[str, np.ndarray]],
    *,
    exclude: Set[str] = frozenset(),
) -> Calibrated | None:
    """Place, then collect statistics in one pass; None when no operator can run in int8.

    The model of the result has raw pixels on their grid (see ``pixels``); else it is the one given.

    Raises:
        CalibrationError: no samples, or non-finite tensors.
    """
    model = untie(model)
    first = plan_placement(model.ir, table, exclude=exclude, given=pixel_values(model))
    if not first.int8 and not first.weight_only:
        return None
    prepared = on_grid(model, {node_key(n) for n in first.int8})
    if prepared is not model:
        model = prepared
        first = plan_placement(model.ir, table, exclude=exclude, given=pixel_values(model))
    axes = {
        str(node.inputs[0].name): axis  # type: ignore[union-attr]
        for node in first.int8
        if (axis := _channel_axis(node, table.rules[node.op_type])) is not None
    }
    outputs = [v for v in first.values if v.is_graph_output() and v.shape is not None and len(v.shape) >= 3]
    axes |= {str(v.name): 1 for v in outputs}
    statistics = collect(model, first.values, axes, samples)

    def apart(node: ir.Node) -> str | None:
        return _unlike_inputs(node, table, statistics) or _quiet_output(node, statistics)

    placement = plan_placement(model.ir, table, exclude=exclude, apart=apart, given=pixel_values(model))
    return Calibrated(model=model, table=table, scheme=scheme, placement=placement, statistics=statistics)


def _unlike_inputs(node: ir.Node, table: Table, statistics: Mapping[str, Statistics]) -> str | None:
    """Whether one scale for a Concat would erase one of its inputs."""
    if node.op_type != "Concat":
        return None
    names = [str(v.name) for v in activation_inputs(node, table.rules["Concat"])]
    widths = [_width(statistics[name]) for name in names if name in statistics]
    if not widths or max(widths) <= UNLIKE_RANGES * min(widths):
        return None
    ratio = max(widths) / max(min(widths), 1e-30)
    return f"its inputs' ranges differ {ratio:.0f}-fold: one scale would erase the smaller"


def _quiet_output(node: ir.Node, statistics: Mapping[str, Statistics]) -> str | None:
    """Whether one scale for a graph output would leave too few steps for one of its channels."""
    value = node.outputs[0]
    if not value.is_graph_output() or str(value.name) not in statistics:
        return None
    seen = statistics[str(value.name)]
    if seen.channel_peak is None or seen.channel_peak.size < 2:
        return None
    steps = seen.channel_peak / max(_width(seen) / 255, 1e-30)
    quiet = int(np.argmin(np.where(steps > 0, steps, np.inf)))
    if 0 < steps[quiet] < QUIET_STEPS:
        return f"channel {quiet} of this graph output would have {steps[quiet]:.0f} of 255 steps"
    return None


def quantize(calibrated: Calibrated, choice: Choice) -> QuantizedModel:
    """Build the Q/DQ model for one choice; deterministic in statistics and choice."""

    def means(name: str) -> np.ndarray | None:
        return calibrated.statistics[name].channel_mean

    made = quantize_model(
        calibrated.model,
        calibrated.table,
        calibrated.placement,
        tensor_params(calibrated, choice),
        weight_bits=calibrated.scheme.weight_bits,
        per_channel=calibrated.scheme.per_channel,
        means=means if choice.bias_correction else None,
    )
    notes = retie(made.model.graph, calibrated.model.graph)
    return dataclasses.replace(made, notes={**made.notes, **notes})


def tensor_params(calibrated: Calibrated, choice: Choice) -> dict[str, QParams]:
    """Scale and zero point of every quantized tensor; tensors that must agree get the union of their ranges."""
    placement, statistics = calibrated.placement, calibrated.statistics
    outputs = {v.name for v in calibrated.model.graph.outputs}
    ranges = {}
    for value in placement.values:
        name = str(value.name)
        percentile = 100.0 if name in outputs else choice.percentile
        ranges[name] = statistics[name].percentile_range(percentile)
    fixed = grids(calibrated.model, set(ranges), calibrated.scheme.activation)
    inside = {str(v.name): found for v in placement.from_int8 if (found := _limits(v, calibrated.table)) is not None}
    groups = _Groups(ranges)
    for output, source in placement.same_scale:
        groups.join(str(output.name), str(source.name))
    for members in placement.shared:
        joined = [str(v.name) for v in members]
        widths = [high - low for low, high in (ranges[n] for n in joined if n in ranges)]
        low, high = min(ranges[n][0] for n in joined), max(ranges[n][1] for n in joined)
        # Behind a folded Relu or Clip a range beyond its bounds would let through what it cuts off: it would not fold.
        fits = all(
            inside[n][0] <= low and high <= inside[n][1] for m in joined for n in groups.members(m) if n in inside
        )
        pixels = [{fixed[m] for m in groups.members(n) if m in fixed} for n in joined]
        alike = len(set.union(*pixels)) == 1 and all(pixels[:-1])  # parts of one frame put together
        free = not any(pixels) and max(widths) <= SHARE_RANGES * min(widths)
        if fits and (alike or (free and all(len(v.uses()) == 1 for v in members[:-1]))):
            for name in joined[:-1]:
                groups.join(name, joined[-1])
    params = {}
    for name in ranges:
        agreeing = groups.members(name)
        stated = {fixed[m] for m in agreeing if m in fixed}
        if len(stated) == 1:  # what only moves pixels keeps their grid
            params[name] = stated.pop()
            continue
        low, high = min(ranges[m][0] for m in agreeing), max(ranges[m][1] for m in agreeing)
        bounds = [inside[m] for m in agreeing if m in inside]
        grid = activation_qparams(low, high, calibrated.scheme.activation)
        params[name] = grid.within(max(b[0] for b in bounds), min(b[1] for b in bounds)) if bounds else grid
    return params


def _limits(value: ir.Value, table: Table) -> tuple[float, float] | None:
    """What a Relu or Clip that was folded into the int8 operator before it lets through."""
    producer = value.producer()
    return limits(producer) if producer is not None and producer.op_type in table.folded else None


def _channel_axis(node: ir.Node, rule: Rule) -> int | None:
    """The axis of a weighted node's input that carries input channels."""
    if rule.weight is None:
        return None
    return 1 if node.op_type in ("Conv", "ConvTranspose", "Gemm") else None


def _width(statistics: Statistics) -> float:
    return max(statistics.maximum, 0.0) - min(statistics.minimum, 0.0)


class _Groups:
    """Union-find over tensor names."""

    def __init__(self, names: Iterable[str]) -> None:
        self._parent = {name: name for name in names}

    def _root(self, name: str) -> str:
        while self._parent[name] != name:
            name = self._parent[name]
        return name

    def join(self, a: str, b: str) -> None:
        if a in self._parent and b in self._parent:
            self._parent[self._root(a)] = self._root(b)

    def members(self, name: str) -> list[str]:
        root = self._root(name)
        return [other for other in self._parent if self._root(other) == root]
