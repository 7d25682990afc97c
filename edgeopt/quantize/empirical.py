"""Bias correction by what the int8 model does: the mean difference of every output channel, over real samples.

    b' = b + E[y - y_int8]

``weights`` takes the mean error of rounded weights off a bias; the roundings of activations before the operator shift
its output too (Nagel et al., "A White Paper on Neural Network Quantization", 2021, section 3.2). Both models are run,
and what an operator makes is compared before its activation. A shift is passed on by the operators that read it, so
operators are corrected from the inputs on, one depth after the other: what is measured at a depth is what the
corrections before it left. With more depths than ``PASSES`` only every n-th one is corrected, the last one always.

A shift that changes from sample to sample is no shift. With its mean m over samples and its variance v over them only
m m^2 / (m^2 + v) is taken.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import onnx_ir as ir

from edgeopt.errors import CalibrationError
from edgeopt.interpreter import AHEAD, Feeds, Interpreter
from edgeopt.model import Model, node_key
from edgeopt.quantize.quantizer import Calibrated, Choice, quantize

PASSES = 4
"""Times that both models are run over the samples at most."""


def measure_shifts(
    calibrated: Calibrated, choice: Choice, samples: Callable[[], Iterable[Feeds]], *, passes: int = PASSES
) -> dict[str, np.ndarray]:
    """What to add to biases, float64, by node key and output channel: ``Calibrated.shifts`` for an "empirical" bias.

    Args:
        choice: everything but the bias, which is taken as "empirical".
        samples: starts them anew; a few dozen.

    Raises:
        CalibrationError: no samples.
    """
    empirical = dataclasses.replace(choice, bias="empirical")
    depths = _depths(calibrated, passes)
    every = list(itertools.chain.from_iterable(depths))
    wanted = _means(calibrated.model, every, samples()) if every else {}
    shifts: dict[str, np.ndarray] = {}
    for nodes in depths:
        made = quantize(dataclasses.replace(calibrated, shifts=shifts), empirical)
        simulate = calibrated.table.simulates(made.model.graph, calibrated.placement.int8)
        found = _means(made.model, nodes, samples(), simulate=simulate)
        shifts.update({key: _steady(wanted[key] - rows) for key, rows in found.items()})
    return shifts


def _depths(calibrated: Calibrated, passes: int) -> list[list[ir.Node]]:
    """Int8 operators with a bias by the number of such operators before them, in at most ``passes`` of these depths."""
    rules = calibrated.table.rules
    wanted = {n for n in calibrated.placement.int8 if rules[n.op_type].bias is not None}
    depth: dict[ir.Value, int] = {}
    found: dict[int, list[ir.Node]] = {}
    for node in calibrated.model.graph:
        before = max((depth.get(v, 0) for v in node.inputs if v is not None), default=0)
        if node in wanted:
            found.setdefault(before, []).append(node)
            before += 1
        depth.update(dict.fromkeys(node.outputs, before))
    levels = [found[d] for d in sorted(found)]
    stride = max(1, -(-len(levels) // passes))
    return levels[::-1][::stride][::-1]


def _means(
    model: Model, nodes: Sequence[ir.Node], samples: Iterable[Feeds], *, simulate: bool = False
) -> dict[str, np.ndarray]:
    """Mean of each output channel of each sample, float64 [samples, channels], by key of a node."""
    here = {node_key(n): n for n in model.graph}
    names = {node_key(n): str(here[node_key(n)].outputs[0].name) for n in nodes}
    interpreter = Interpreter(model, tensors=sorted(set(names.values())), simulate=simulate)
    rows: dict[str, list[np.ndarray]] = {}
    for _, found in interpreter.ahead(samples, lambda size: size <= AHEAD):
        for key, name in names.items():
            tensor = found[name]
            axes = (0, *range(2, tensor.ndim)) if here[key].op_type == "Conv" else tuple(range(tensor.ndim - 1))
            rows.setdefault(key, []).append(tensor.mean(axis=axes, dtype=np.float64))
    if not rows:
        raise CalibrationError("there are no samples to correct biases with", remedy="Give a calibration set.")
    return {key: np.array(means) for key, means in rows.items()}


def _steady(gaps: np.ndarray) -> np.ndarray:
    """The part of the gaps [samples, channels] that is a shift."""
    mean, variance = gaps.mean(axis=0), gaps.var(axis=0)
    share = np.divide(mean**2, mean**2 + variance, out=np.ones(mean.shape), where=variance > 0)
    found: np.ndarray = (mean * share).astype(np.float32).astype(np.float64)
    return found
