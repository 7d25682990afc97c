"""From a float model and calibration samples to a Q/DQ model, in two calls.

``calibrate`` runs the float model once over the set. ``quantize`` turns the statistics and a ``Choice``
into a graph without running anything, so that choices can be compared one change at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

import numpy as np
import onnx_ir as ir

from edgeopt.model import Model, node_key
from edgeopt.quantize import weights
from edgeopt.quantize.insert import Fit, QuantizedModel, quantize_model
from edgeopt.quantize.moments import Moments
from edgeopt.quantize.operators import input_name
from edgeopt.quantize.pixels import grids, on_grid, pixel_values
from edgeopt.quantize.placement import Placement, Rule, Table, activation_inputs, limits, plan_placement
from edgeopt.quantize.ranges import Statistics
from edgeopt.quantize.scheme import QParams, activation_qparams
from edgeopt.quantize.select import range_of
from edgeopt.quantize.statistics import collect, unchanging
from edgeopt.quantize.streaming import Samples
from edgeopt.quantize.tied import retie, untie
from edgeopt.quantize.weights import Fitted, How
from edgeopt.target import Int8Scheme

UNLIKE_RANGES = 16.0
"""A Concat of tensors whose ranges differ by more than this stays in float: one scale would erase the smaller."""

QUIET_STEPS = 32.0
"""A channel of a graph output with fewer steps than this errs by more than 1.5 % of its peak: it stays in float."""

SHARE_RANGES = 4.0
"""Up to this ratio the inputs of a Concat take its output's range: one rounding instead of two."""

FOUND = "kept in float by the search: its rounding costs the outputs most"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """What can be chosen after calibration; plain values, so that a lock can hold it.

    Attributes:
        ranges: how activations are clipped: ``"min-max"``, ``"percentile"``, ``"mse"`` or ``"kl"``. Graph outputs never
            are.
        percentile: share of the values that ``"percentile"`` keeps; equal tails are cut.
        weight_scales: ``"max"`` or ``"mse"``, the scale with the smallest squared error.
        rounding: of weights: ``"nearest"`` or ``"second-order"``, which needs moments.
        bias: ``"none"``, ``"mean"`` takes the mean error of rounded weights off it, ``"empirical"`` the mean error of
            the int8 model itself as far as ``Calibrated.shifts`` knows it.
        float_nodes: keys of nodes that stay in float besides the excluded ones.
    """

    ranges: str = "min-max"
    percentile: float = 99.999
    weight_scales: str = "max"
    rounding: str = "nearest"
    bias: str = "none"
    float_nodes: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibrated:
    """A float model with its placement and the statistics of every tensor that will be quantized.

    Attributes:
        exclude: node keys that were asked to stay in float.
        moments: of the inputs of weighted nodes, by node key; empty until they are collected.
        shifts: what an int8 model's outputs were off by on average, by node key and output channel; empty until
            measured.
        memo: scales and integers that were searched for before, see ``weights.fit``; of this model and these moments.
    """

    model: Model
    table: Table
    scheme: Int8Scheme
    placement: Placement
    statistics: Mapping[str, Statistics]
    exclude: Set[str] = frozenset()
    moments: Mapping[str, Moments] = dataclasses.field(default_factory=dict)
    shifts: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    memo: dict[object, np.ndarray] = dataclasses.field(default_factory=dict, compare=False, repr=False)


def calibrate(
    model: Model,
    table: Table,
    scheme: Int8Scheme,
    samples: Samples,
    *,
    exclude: Set[str] = frozenset(),
    budget: int | None = None,
    remember: Callable[[Callable[[], dict[str, Statistics]]], dict[str, Statistics]] = lambda collected: collected(),
) -> Calibrated | None:
    """Place, then collect statistics; None when no operator can run in int8.

    The model of the result has raw pixels on their grid (see ``pixels``); else it is the one given.

    Args:
        samples: feeds by input name; a function that starts them anew where one pass does not fit the budget.
        budget: bytes that statistics and one sample's tensors may hold; None for one pass.
        remember: gives the statistics, which it may know from an earlier call with the same arguments.

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
        input_name(node, 0): axis
        for node in first.int8
        if (axis := _channel_axis(node, table.rules[node.op_type])) is not None
    }
    outputs = [v for v in first.values if v.is_graph_output() and v.shape is not None and len(v.shape) >= 3]
    axes |= {str(v.name): 1 for v in outputs}
    statistics = remember(lambda: collect(model, first.values, axes, samples, budget=budget))

    placement = plan_placement(
        model.ir,
        table,
        exclude=exclude,
        apart=lambda node: _apart(node, table, statistics),
        given=pixel_values(model),
    )
    return Calibrated(
        model=model, table=table, scheme=scheme, placement=placement, statistics=statistics, exclude=frozenset(exclude)
    )


def _apart(node: ir.Node, table: Table, statistics: Mapping[str, Statistics]) -> str | None:
    """Why the statistics want a node in float."""
    return _unlike_inputs(node, table, statistics) or _quiet_output(node, statistics)


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
    if choice.float_nodes:
        calibrated = with_float(calibrated, choice.float_nodes)
    made = quantize_model(
        calibrated.model,
        calibrated.table,
        calibrated.placement,
        tensor_params(calibrated, choice),
        fitting(calibrated, choice),
    )
    notes = retie(made.model.graph, calibrated.model.graph)
    doubt = unchanging(calibrated.placement.values, calibrated.statistics)
    return dataclasses.replace(made, notes={**made.notes, **notes}, warnings=() if doubt is None else (doubt,))


def fitting(calibrated: Calibrated, choice: Choice) -> Fit:
    """How ``choice`` makes integers of one operator's weights."""
    scheme = calibrated.scheme
    how = How(
        bits=scheme.weight_bits,
        per_channel=scheme.per_channel,
        scales=choice.weight_scales,
        rounding=choice.rounding,
        correct=choice.bias != "none",
    )

    def fit(
        node: ir.Node, rule: Rule, real: np.ndarray, bias: np.ndarray | None, activation: np.float32 | None
    ) -> Fitted:
        key, source = node_key(node), node.inputs[0]
        seen = None if source is None else calibrated.statistics.get(str(source.name))
        return weights.fit(
            node,
            real,
            bias,
            rule.channel_axis(node) if scheme.per_channel else None,
            activation,
            how,
            moments=calibrated.moments.get(key),
            means=None if seen is None else seen.channel_mean,
            shift=calibrated.shifts.get(key) if choice.bias == "empirical" else None,
            takes_bias=rule.bias is not None and activation is not None,
            memo=calibrated.memo,
        )

    return fit


def with_float(calibrated: Calibrated, keys: Set[str]) -> Calibrated:
    """The same statistics with more nodes in float: what is then quantized was quantized, and measured, before."""
    placement = plan_placement(
        calibrated.model.ir,
        calibrated.table,
        exclude=calibrated.exclude | (keys & {node_key(n) for n in calibrated.placement.int8}),
        apart=lambda node: _apart(node, calibrated.table, calibrated.statistics),
        given=pixel_values(calibrated.model),
    )
    reasons = {key: FOUND if key in keys else why for key, why in placement.stays_float.items()}
    return dataclasses.replace(calibrated, placement=dataclasses.replace(placement, stays_float=reasons))


def tensor_params(calibrated: Calibrated, choice: Choice) -> dict[str, QParams]:
    """Scale and zero point of every quantized tensor; tensors that must agree get the union of their ranges."""
    placement, statistics = calibrated.placement, calibrated.statistics
    outputs = {v.name for v in calibrated.model.graph.outputs}

    def shared(names: Sequence[str]) -> tuple[float, float]:
        return range_of(
            [statistics[n] for n in names],
            choice.ranges,
            percentile=choice.percentile,
            uncut=[statistics[n] for n in names if n in outputs],
        )

    ranges = {str(v.name): shared([str(v.name)]) for v in placement.values}
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
        low, high = ranges[name] if len(agreeing) == 1 else shared(agreeing)
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
