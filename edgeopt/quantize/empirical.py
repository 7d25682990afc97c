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
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import onnx_ir as ir

from edgeopt.errors import CalibrationError
from edgeopt.interpreter import Feeds, Interpreter
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
    shifts: dict[str, np.ndarray] = {}
    for nodes in _depths(calibrated, passes):
        made = quantize(dataclasses.replace(calibrated, shifts=shifts), empirical)
        shifts.update(_measured(calibrated, made.model, nodes, samples()))
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


def _measured(
    calibrated: Calibrated, quantized: Model, nodes: Sequence[ir.Node], samples: Iterable[Feeds]
) -> dict[str, np.ndarray]:
    """The shift of what ``nodes`` make, by node key."""
    here = {node_key(n): n for n in quantized.graph}
    names = {node_key(n): (str(n.outputs[0].name), str(here[node_key(n)].outputs[0].name)) for n in nodes}
    reference = Interpreter(calibrated.model, tensors=sorted({name for name, _ in names.values()}))
    tensors = sorted({name for _, name in names.values()})
    test = Interpreter(quantized, tensors=tensors, simulate=calibrated.table.simulated)
    rows: dict[str, list[np.ndarray]] = {}
    for feeds in samples:
        wanted, found = reference.run(feeds), test.run(feeds)
        for key, (name, other) in names.items():
            gap = wanted[name].astype(np.float64) - found[other]
            axes = (0, *range(2, gap.ndim)) if here[key].op_type == "Conv" else tuple(range(gap.ndim - 1))
            rows.setdefault(key, []).append(gap.mean(axis=axes))
    if not rows:
        raise CalibrationError("there are no samples to correct biases with", remedy="Give a calibration set.")
    shifts = {}
    for key, gaps in rows.items():
        mean, variance = np.mean(gaps, axis=0), np.var(gaps, axis=0)
        share = np.divide(mean**2, mean**2 + variance, out=np.ones(mean.shape), where=variance > 0)
        shifts[key] = (mean * share).astype(np.float32).astype(np.float64)
    return shifts
