"""Cross-layer equalization: every channel of a tensor with one scale is made to use the whole range of that scale.

For f that is positively homogeneous per channel (Relu, pooling, a sum of tensors scaled alike),
with S = diag(s), s > 0:

    W2 f(W1 x + b1)  =  (W2 S^-1) f((S W1) x + S b1)

so the values in between are scaled channel by channel and the function is the same (Nagel et al., "Data-Free
Quantization Through Weight Equalization and Bias Correction", ICCV 2019). There s balances ranges of weights; here
weights have a scale per channel of their own, and s comes from the values seen:

    s_c = (range of the tensor / range of its channel c) ** strength

Where a depthwise operator reads the channel this costs nothing, and the strength is 1. A dense one pays with the
resolution of the weights that share a row.

Clip(0, h) is not homogeneous: Clip(s x) = s Clip(x) holds for x <= h / s only. A channel that stays below h by so much
on all samples may be scaled up to h: beyond that an int8 tensor saturates as well. It is never scaled down. So the
result is for quantization alone: it is no replacement for the float model.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

import numpy as np
import onnx_ir as ir

from edgeopt.errors import CalibrationError
from edgeopt.interpreter import AHEAD, Feeds, Interpreter
from edgeopt.model import Model, node_key
from edgeopt.quantize.channels import Channels
from edgeopt.quantize.moments import Moments
from edgeopt.quantize.operators import input_name
from edgeopt.quantize.placement import Placement, constant_of
from edgeopt.quantize.weights import layout_of
from edgeopt.quantize.writer import Writer

STRENGTH = 0.75
"""Between no equalization (0) and equal ranges (1), where a dense operator reads the channels."""

CAUTION = 0.7
"""How much room a channel is given whose peak varies from sample to sample: see ``_extremes``."""

CLIPPED_CAUTION = 3.0
"""The same before a Clip: what goes beyond is not only rounded off in int8, it is another function."""

MOST = 32.0
"""A channel is scaled by no more: one that calibration hardly saw may wake up."""

Extremes = Mapping[str, tuple[np.ndarray, ...]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Equalized:
    """A model with channels scaled.

    Attributes:
        channels: how many were scaled.
        widest: by how much at most.
        read: factors of what weighted operators read, [groups, channels of one], by node key; those that changed.
    """

    model: Model
    channels: int
    widest: float
    read: Mapping[str, np.ndarray]

    def moments(self, before: Mapping[str, Moments]) -> dict[str, Moments]:
        """The moments of the scaled model from those of the model it was made from: S E[x x^T] S."""
        found = dict(before)
        for key, factors in self.read.items():
            if (old := before.get(key)) is not None:
                each = np.repeat(factors, old.first.shape[1] // factors.shape[1], axis=1)
                second = old.second * each[:, :, None] * each[:, None, :]
                found[key] = Moments.of(second, old.first * each, old.count)
        return found


def equalize(
    model: Model,
    placement: Placement,
    samples: Callable[[], Iterable[Feeds]],
    *,
    strength: float = STRENGTH,
) -> Equalized | str:
    """Scale channels between weighted operators; the reason when there is nothing to scale.

    Args:
        placement: of int8 in ``model``; only what its tensors gain counts.
        samples: starts the calibration set anew; one pass over it finds the range of every channel.

    Raises:
        CalibrationError: no samples.
    """
    channels = Channels(model.graph)
    wanted = [v for v in placement.values if v in channels.numbers and not channels.pinned[channels.numbers[v]].all()]
    if not wanted:
        return "no tensor between two weighted operators can be scaled by channel"
    clipped = {str(v.name) for v, bound in channels.bounds.items() if bound < math.inf}
    factors = _factors(channels, wanted, _extremes(model, wanted, clipped, samples()), strength)
    scaled = int(np.count_nonzero(factors > 1.001))
    if not scaled:
        return "all channels use their range already"
    read = {
        node_key(node): factors[channels.numbers[source]].reshape(_groups(node), -1)
        for node in channels.weighted
        if (source := node.inputs[0]) in channels.numbers and np.any(factors[channels.numbers[source]] != 1)
    }
    made = _applied(model, channels, factors)
    return Equalized(model=made, channels=scaled, widest=float(factors.max()), read=read)


def _extremes(model: Model, values: Sequence[ir.Value], clipped: Set[str], samples: Iterable[Feeds]) -> Extremes:
    """The bounds that every channel, axis 1, is likely to keep on other samples, by tensor name; 0 is within.

    A channel whose peak varies from sample to sample can go further than it did: with the largest peak p of a sample
    and their mean m, the bound is p (p / m) ** ``CAUTION``.
    """
    interpreter = Interpreter(model, tensors=[str(v.name) for v in values])
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    count = 0
    for _, tensors in interpreter.ahead(samples, lambda size: size <= AHEAD):
        count += 1
        for name, tensor in tensors.items():
            axes = tuple(a for a in range(tensor.ndim) if a != 1)
            peaks = np.stack([-tensor.min(axis=axes, initial=0.0), tensor.max(axis=axes, initial=0.0)])
            highest, total = found.get(name, (peaks, np.zeros(peaks.shape)))
            found[name] = np.maximum(highest, peaks), total + peaks.astype(np.float64)
    if not count:
        raise CalibrationError("the calibration set is empty", remedy="Give a set with at least one sample.")
    bounds = {}
    for name, (highest, total) in found.items():
        spread = np.divide(highest, total / count, out=np.ones(total.shape), where=total > 0)
        caution = CLIPPED_CAUTION if name in clipped else CAUTION
        low, high = (highest * spread**caution).astype(np.float32).astype(np.float64)
        bounds[name] = -low, high, -highest[0].astype(np.float64), highest[1].astype(np.float64)
    return bounds


def _factors(channels: Channels, values: Sequence[ir.Value], extremes: Extremes, strength: float) -> np.ndarray:
    """s of every variable, at least 1."""
    room = np.full(channels.count, np.inf)
    for value in values:
        low, high, lowest, highest = extremes[str(value.name)]
        np.minimum.at(room, channels.numbers[value], np.minimum(_room(highest.max(), high), _room(lowest.min(), low)))
    room = np.where(np.isfinite(room), np.maximum(room, 1.0), 1.0)
    factors = np.minimum(np.where(channels.dense, room**strength, room), MOST)
    for value, bound in channels.bounds.items():
        if bound < math.inf:
            seen = extremes.get(str(value.name))  # of a tensor that stays float nobody looked how much room there is
            high = np.full(len(channels.numbers[value]), bound) if seen is None else seen[1]
            np.minimum.at(factors, channels.numbers[value], np.maximum(_room(np.float64(bound), high), 1.0))
    factors[channels.pinned] = 1.0
    return factors


def _room(bound: np.floating, seen: np.ndarray) -> np.ndarray:
    """How often a channel fits into the bound; infinite where it was always 0."""
    found: np.ndarray = np.divide(
        float(bound), seen, out=np.full(seen.shape, np.inf), where=seen != 0, dtype=np.float64
    )
    return found


def _groups(node: ir.Node) -> int:
    return node.attributes.get_int("group", 1) if node.op_type == "Conv" else 1


def _applied(model: Model, channels: Channels, factors: np.ndarray) -> Model:
    """The model with factors in its constants."""
    changed = model.clone()
    writer = Writer(changed.graph)
    copies = dict(zip(model.graph, changed.graph, strict=True))
    for node in channels.weighted:
        source, out, copy = node.inputs[0], node.outputs[0], copies[node]
        weight = constant_of(node, 1)
        assert weight is not None
        real = weight.numpy()
        layout = layout_of(node, real.shape)
        assert layout is not None
        rows = layout.rows(real.astype(np.float64))
        groups, outputs, _ = rows.shape
        made = factors[channels.numbers[out]] if out in channels.numbers else np.ones(groups * outputs)
        read = factors[channels.numbers[source]] if source in channels.numbers else np.ones(1)
        if not (np.any(made != 1) or np.any(read != 1)):
            continue
        if read.size > 1:
            split = rows.reshape(groups, outputs, read.size // groups, -1) / read.reshape(groups, 1, -1, 1)
            rows = split.reshape(rows.shape)
        rows = rows * made.reshape(groups, outputs, 1)
        name = input_name(copy, 1)
        scaled = layout.tensor(rows).astype(np.float32)
        writer.replace(copy, 1, writer.initializer(name, "equalized", scaled))
        bias = constant_of(node, 2)
        if bias is not None and np.any(made != 1):
            total = (bias.numpy().astype(np.float64) * made).astype(np.float32)
            writer.replace(copy, 2, writer.initializer(name, "equalized_bias", total))
    writer.drop_unused_constants()
    return changed
