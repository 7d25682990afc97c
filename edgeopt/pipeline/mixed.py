"""Precision as a search: where a limit on quality does not hold in int8, the worst operators stay in float.

Operators are ranked once by the error that rounding causes at the outputs (see ``quantize.sensitivity``). The sets that
the ranking gives grow; the smallest that holds the limits is found by bisection, on real quantized models and samples
that calibrate. Where none does, the nearest goes on if it is nearer than all in int8: the evaluation set has the last
word, and samples that calibrate are often the harder ones. What was tried is the curve in the report.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from edgeopt import quality, quantize
from edgeopt.errors import BundleError
from edgeopt.model import node_key
from edgeopt.pipeline.curve import Tried, points
from edgeopt.pipeline.search import Bench, Search, described, gate, result, shifts
from edgeopt.pipeline.work import mac_shares
from edgeopt.plan import MIN_GAIN_DB, Step, StepResult
from edgeopt.quality import Quality
from edgeopt.quantize import Calibrated, Choice
from edgeopt.quantize.quantizer import with_float
from edgeopt.quantize.sensitivity import Sensitivity, ranking, sensitivity
from edgeopt.target import Budget

MARGIN_DB = 1.0
"""The search aims this far above a stated SQNR: other samples than those that calibrate have to hold it too. Where that
is out of reach, the best that holds the limit itself will do."""

MARGIN_ERROR = 0.7
"""And at this share of a stated largest error: the extreme of a few samples is not that of many."""

QUIET = 0.05
"""Weight of the error of outputs that hold their limits beside those that do not."""

WORK = 4e10
"""Multiply-accumulates that ranking may spend, which gives the number of samples: the same on every machine."""

FEWEST, MOST = 2, 16
"""Samples of the ranking."""

SPREAD = 4
"""Sets that are tried where none reaches what the search aims at."""

NAMED = 5
"""Operators that cost most, named in the diary."""

NODE_BYTES = 400
"""What an operator takes in a file besides its weights, for a limit on size."""


def search_precision(
    step: Step, search: Search, bench: Bench, locked: Mapping[str, object] | None, started: float
) -> StepResult:
    """Try the step ``mixed-precision``.

    Args:
        locked: what a lock says that the search found.

    Raises:
        BundleError: a lock names operators that are not there.
    """
    assert search.calibrated is not None
    assert search.quantized is not None
    assert search.seen is not None
    before = search.cost(search.quantized.model)
    if locked is not None:
        return _replayed(step, search, bench, locked, started)
    limits = _tighter(bench.limits)
    why = gate(search.seen, limits)
    if why is None:
        return result(step, "skipped", "every limit on quality holds without it", before, before, started)
    shares = mac_shares(search.model, bench.sets)
    calibrated, quantized = search.calibrated, search.quantized
    errors = bench.journal.remember(
        "sensitivity",
        lambda: bench.journal.scope,
        lambda: sensitivity(calibrated, quantized, _few(search, bench, shares.total)),
    )
    sets = ranking(
        search.calibrated,
        errors,
        shares.share,
        _extra_bytes(search),
        most_macs=bench.max_float_macs,
        most_bytes=_room(bench.limits, before.weight_bytes + NODE_BYTES * before.nodes),
        weigh=_weights(search.seen, limits, errors),
    )
    worst = _worst(errors)
    if not sets:
        reason = f"{why}; no operator can be kept in float within {bench.max_float_macs:.0%} of the work ({worst})"
        return result(step, "rolled-back", reason, before, before, started)
    everything = [(how, _try(search, bench, sets[-1][0], limits, how)) for how in _ways(search.choice)]
    change, last = max(everything, key=lambda way: (way[1].refused is None, way[1].seen.sqnr_db))
    tried: dict[int, Tried] = {len(sets): last}

    def holds(count: int) -> bool:
        if count not in tried:
            tried[count] = _try(search, bench, sets[count - 1][0], limits, change)
        return tried[count].refused is None

    first = _bisection(len(sets), holds)
    if first is None:
        for part in range(1, SPREAD):
            holds(max(1, len(sets) * part // SPREAD))
        near = [count for count, one in tried.items() if gate(one.seen, bench.limits) is None]
        first = max(near, key=lambda count: (tried[count].seen.sqnr_db, -count), default=None)
    picked = first or min(tried, key=lambda count: (_missing(tried[count].seen, bench.limits), count))
    best = tried[picked]
    calibrated, anew = _corrected(search, bench, best, limits, change)
    if anew is not best:
        best = tried[picked] = anew
        change = {**change, "bias": "empirical"}
    share = sum(shares.share.get(key, 0.0) for key in best.nodes)
    told = f"{len(best.nodes)} operators in float, {share:.1%} of the multiply-accumulates: {described(best.seen)}"
    told += ", biases corrected anew" if change.get("bias") == "empirical" else ""
    after = search.cost(best.quantized.model)
    nearer = _missing(best.seen, bench.limits) < _missing(search.seen, bench.limits) - MIN_GAIN_DB
    curve = points(search, bench.limits, shares.share, sets, tried, picked if nearer or first is not None else None)
    if first is None and not nearer:
        reason = f"{why}. Not reached: {told}; {best.refused}; {worst}"
        return result(step, "rolled-back", reason, before, after, started, best.seen, points=curve)
    search.calibrated = calibrated
    search.choice = dataclasses.replace(search.choice, float_nodes=best.nodes, **change)
    search.quantized, search.seen = best.quantized, best.seen
    found = {"float_nodes": sorted(best.nodes), **({"change": dict(change)} if change else {})}
    reached = "" if first is not None or best.refused is None else "Not reached on these samples, the nearest goes on: "
    return result(step, "kept", f"{why}. {reached}{told}; {worst}", before, after, started, best.seen, found, curve)


def _missing(seen: Quality, limits: Budget) -> float:
    """How far a model is from its limits, in dB: of the SQNR, and of the largest errors. The least is the nearest."""
    least = quality.FLOOR_DB if limits.min_sqnr_db is None else limits.min_sqnr_db
    missing = [least - seen.sqnr_db]
    for drift in seen.outputs:
        if drift.output in limits.max_error and drift.max_abs > 0:
            missing.append(20 * math.log10(drift.max_abs / limits.max_error[drift.output]))
    return max(missing)


def _corrected(
    search: Search, bench: Bench, best: Tried, limits: Budget, change: Mapping[str, Any]
) -> tuple[Calibrated, Tried]:
    """The same operators in float, with biases corrected for what is left in int8 where that gains."""
    assert search.calibrated is not None
    if search.choice.bias != "empirical":
        return search.calibrated, best
    calibrated = _shifted(search.calibrated, search.choice, bench, best.nodes, change)
    anew = _try(search, bench, best.nodes, limits, {**change, "bias": "empirical"}, calibrated)
    gained = anew.seen.sqnr_db - best.seen.sqnr_db
    if gained < MIN_GAIN_DB or (anew.refused is not None and best.refused is None):
        return search.calibrated, best
    return calibrated, anew


def _shifted(
    calibrated: Calibrated, choice: Choice, bench: Bench, nodes: frozenset[str], change: Mapping[str, Any]
) -> Calibrated:
    """With the shifts of the model that has ``nodes`` in float."""
    rest = dataclasses.replace(choice, **{**change, "bias": "mean"})
    return dataclasses.replace(calibrated, shifts=shifts(with_float(calibrated, nodes), rest, bench))


def _bisection(count: int, holds: Callable[[int], bool]) -> int | None:
    """The smallest set that holds, if the largest does; every set is taken to hold what a smaller one does."""
    if not holds(count):
        return None
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _ways(choice: Choice) -> list[dict[str, Any]]:
    """Changes to try with operators in float: ranges and biases were chosen for the errors of all in int8."""
    ways: list[dict[str, Any]] = [{}]
    bias = {"bias": "mean"} if choice.bias == "empirical" else {}
    ways += [bias] if bias else []
    ways += [{**bias, "ranges": "min-max"}] if choice.ranges != "min-max" else []
    return ways


def _try(
    search: Search,
    bench: Bench,
    nodes: frozenset[str],
    limits: Budget,
    change: Mapping[str, Any],
    calibrated: Calibrated | None = None,
) -> Tried:
    assert search.calibrated is not None
    choice = dataclasses.replace(search.choice, float_nodes=nodes, **change)
    quantized = quantize.quantize(calibrated or search.calibrated, choice)
    seen, seconds = search.timed(quantized, bench.sets)
    return Tried(nodes=nodes, quantized=quantized, seen=seen, seconds=seconds, refused=gate(seen, limits))


def _replayed(step: Step, search: Search, bench: Bench, locked: Mapping[str, object], started: float) -> StepResult:
    """The set that a lock holds."""
    assert search.calibrated is not None
    assert search.quantized is not None
    named = locked.get("float_nodes")
    nodes = frozenset(map(str, named)) if isinstance(named, list) else frozenset()
    known = {node_key(n) for n in search.calibrated.placement.int8}
    if not nodes or not nodes <= known:
        missing = ", ".join(sorted(nodes - known)[:3]) or "no operators"
        raise BundleError(
            f"the lock keeps {missing} in float, which cannot be replayed here",
            remedy="Build again without --locked.",
        )
    before = search.cost(search.quantized.model)
    change = dict(cast(Mapping[str, Any], locked.get("change", {})))
    if not change.keys() <= {"bias", "ranges"}:
        raise BundleError("the lock changes what this edgeopt does not", remedy="Build again without --locked.")
    if change.get("bias") == "empirical":
        search.calibrated = _shifted(search.calibrated, search.choice, bench, nodes, change)
    one = _try(search, bench, nodes, bench.limits, change)
    search.choice = dataclasses.replace(search.choice, float_nodes=nodes, **change)
    search.quantized, search.seen = one.quantized, one.seen
    reason = f"{len(nodes)} operators in float as locked: {described(one.seen)}"
    after = search.cost(one.quantized.model)
    return result(step, "kept", reason, before, after, started, one.seen, dict(locked))


def _tighter(limits: Budget) -> Budget:
    """The limits that the search aims at."""
    least = None if limits.min_sqnr_db is None else limits.min_sqnr_db + MARGIN_DB
    most = {name: value * MARGIN_ERROR for name, value in limits.max_error.items()}
    return dataclasses.replace(limits, min_sqnr_db=least, max_error=most)


def _few(search: Search, bench: Bench, total: float) -> itertools.islice[Mapping[str, np.ndarray]]:
    """Samples for the ranking: as many as ``WORK`` allows."""
    assert search.calibrated is not None
    switches = len(search.calibrated.placement.values) + len(search.calibrated.placement.int8)
    count = int(min(MOST, max(FEWEST, WORK / max(total * switches, 1.0))))
    return itertools.islice(bench.sets.choice_samples(count), count)


def _extra_bytes(search: Search) -> dict[str, int]:
    """What an operator in float takes more: three bytes a weight."""
    assert search.calibrated is not None
    calibrated = search.calibrated
    found = {}
    for node in calibrated.placement.int8:
        index = calibrated.table.rules[node.op_type].weight
        constant = None if index is None else node.inputs[index]
        tensor = None if constant is None else constant.const_value
        found[node_key(node)] = 0 if tensor is None else 3 * tensor.size
    return found


def _room(limits: Budget, taken: int) -> float:
    return float("inf") if limits.artifact_bytes is None else float(limits.artifact_bytes - taken)


def _weights(seen: Quality, limits: Budget, errors: Sensitivity) -> np.ndarray:
    """Outputs that fail a limit weigh 1, the others ``QUIET``; all weigh 1 where no single output fails."""
    failing = set()
    for drift in seen.outputs:
        least = limits.min_sqnr_db if limits.min_sqnr_db is not None else quality.FLOOR_DB
        most = limits.max_error.get(drift.output)
        if drift.sqnr_db < least or (most is not None and drift.max_abs > most):
            failing.add(drift.output)
    failing |= {drift.output.partition("[")[0] for drift in seen.slices if drift.sqnr_db < quality.LOST_DB}
    if not failing:
        return np.ones(len(errors.outputs))
    return np.array([1.0 if name in failing else QUIET for name in errors.outputs])


def _worst(errors: Sensitivity) -> str:
    """The roundings that cost most, by name."""
    found = {f"{key} (weights)": float(e.max(initial=0.0)) for key, e in errors.weights.items()}
    found |= {f"{name} (tensor)": float(e.max(initial=0.0)) for name, e in errors.tensors.items()}
    total = sum(found.values())
    if not total:
        return "no rounding alone changes an output"
    ordered = sorted(found, key=lambda name: (-found[name], name))[:NAMED]
    return "most sensitive: " + ", ".join(f"{name} {found[name] / total:.0%}" for name in ordered)
