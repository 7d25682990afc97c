"""Quality of B against A, sample by sample: from what two bundles recorded, or judged now on a set."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeopt import calibration, metrics
from edgeopt.backends.registry import BACKENDS
from edgeopt.bundle import JudgedOn, read_outcomes
from edgeopt.calibration import DataSet
from edgeopt.comparing.sources import Artifact, Recorded
from edgeopt.errors import BenchError, CalibrationError
from edgeopt.outcomes import Drop, Outcomes, paired_drop
from runtime_bench.golden import Tally
from runtime_bench.statistics.stats import proportion_interval

Json = dict[str, Any]
Side = Artifact | Recorded

PAIRED = "adjusted Wald interval of the paired difference (Bonett and Price 2012)"
MEAN = "1.96 standard errors of the paired difference of means (Cochran 1977)"
BOOTSTRAP = "1.96 standard deviations of a paired bootstrap (Efron and Tibshirani 1993)"
EXACT = "exact binomial interval (Clopper and Pearson 1934)"


def not_compared(reason: str) -> Json:
    """Quality that could not be compared, and why."""
    return {"compared": False, "reason": reason}


def recorded_quality(a: Side, b: Side) -> Json:
    """The drop from A to B over the samples that both builds judged; ``compared`` False with the reason otherwise.

    Raises:
        BundleError: recorded outcomes are damaged.
    """
    found = []
    for name, side in (("A", a), ("B", b)):
        if side.root is None:
            what = "a bare model" if isinstance(side, Artifact) else "a measurement file"
            return not_compared(f"{name} is {what}, which holds no outcomes")
        judged = read_outcomes(side.root)
        precision = side.precision if isinstance(side, Artifact) else side.name
        if judged is None:
            return not_compared(f"the bundle of {name} holds no outcomes: no evaluation set judged its answers")
        if precision not in judged.outcomes:
            return not_compared(f"the bundle of {name} holds no outcomes of {precision}")
        found.append((judged, judged.outcomes[str(precision)]))
    (judged_a, ours), (judged_b, theirs) = found
    reason = _unlike(judged_a, judged_b)
    if reason:
        return not_compared(reason)
    how = "recorded by the builds"
    if ours.groups or ours.values:
        return _of_rows(ours, theirs, judged_a.set_name, how)
    return _result(ours.kind, judged_a.set_name, paired_drop(ours.bits(), theirs.bits()), how)


def _unlike(a: JudgedOn, b: JudgedOn) -> str:
    """Why outcomes of two bundles do not pair; empty where they do."""
    ours, theirs = next(iter(a.outcomes.values())), next(iter(b.outcomes.values()))
    if ours.kind != theirs.kind:
        return f"A was judged by {ours.kind} and B by {theirs.kind}"
    if ours.samples_sha256 != theirs.samples_sha256 or ours.count != theirs.count:
        if a.set_sha256 == b.set_sha256:
            return f"both were judged on {a.set_name}, and not on the same samples of it, or they were prepared unlike"
        return f"A was judged on {a.set_name} ({ours.count} samples), B on {b.set_name} ({theirs.count}): not the same"
    if (ours.weights, ours.groups, ours.better, ours.unit) != (
        theirs.weights,
        theirs.groups,
        theirs.better,
        theirs.unit,
    ):
        return f"both were judged by {ours.kind}, and not with the same weights, groups or direction"
    if ours.kind == "agreement" and a.source_sha256 != b.source_sha256:
        if ours.judged_by:
            return (
                f"{ours.judged_by} has no value for a single sample, so builds cannot be paired by it, and each agrees "
                "with a float model of its own: judge both now with --data"
            )
        return "each agrees with its own float model, and those are two: there are no labels"
    return ""


def judge_now(a: Side, b: Side, spec: str) -> tuple[Json, list[str]]:
    """Run both on every sample of a set, and compare answers with its labels, or B's with A's where it has none.

    Returns the quality, and warnings about the set.

    Raises:
        CalibrationError: the set cannot be used.
        BenchError: a side is no artifact that runs here.
    """
    if not isinstance(a, Artifact) or not isinstance(b, Artifact):
        raise BenchError(
            "--data judges two artifacts, and a recorded measurement is none", remedy="Give bundles or .onnx models."
        )
    data = calibration.load_set(spec)
    if data.second_class:
        raise CalibrationError(
            "random data cannot judge quality: a network can match on noise and fail on every real input",
            remedy="Give a set of real inputs with --data.",
        )
    warnings = calibration.check(data, a.inputs, run=_run(a) if data.carried else None)
    return _judged(a, b, data), warnings


def _run(side: Artifact) -> Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]:
    run: Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
    run = BACKENDS[side.runner].interpreter(side.path, optimize=side.optimize).run
    return run


def _judged(a: Artifact, b: Artifact, data: DataSet) -> Json:
    """By the set's metric, else by agreement with A. Each gets the states that it carries over itself."""
    run_a, run_b = _run(a), _run(b)
    scorer, groups = calibration.scorer(data), calibration.groups(data)
    labels = itertools.repeat(None) if (found := calibration.targets(data)) is None else found
    rows = None if scorer is None else (metrics.Rows(scorer), metrics.Rows(scorer))
    right_a, right_b = bytearray(), bytearray()
    tallies: dict[str, Tally] = {}
    scored = True
    before: Mapping[str, np.ndarray] = {}
    samples = calibration.samples(data, a.inputs, run_a)
    for feeds, label, begin in zip(samples, labels, calibration.starts(data, groups)):
        fed = feeds if begin else {**feeds, **{c.name: before[c.output] for c in data.carried}}
        ours, theirs = run_a(feeds), run_b(fed)
        before = theirs if data.carried else {}
        for name, value in ours.items():
            tallies.setdefault(name, Tally()).add(value, theirs[name])
        if rows is not None:
            rows[0].add(ours, feeds, label)
            rows[1].add(theirs, fed, label)
            continue
        first = next(iter(ours))
        x, y = _answer(ours[first]), _answer(theirs[first])
        if x is None or y is None:
            scored = False
            continue
        right_a.append(x != ())
        right_b.append(y == x != ())
    if rows is not None:
        return _by_metric(*rows, groups, data.name)
    if not scored:
        worst = min(tally.sqnr_db for tally in tallies.values())
        return not_compared(
            "the first output is no row of scores, so there is no answer to compare; "
            f"SQNR of B against A {worst:.1f} dB on {data.count} samples of {data.name}"
        )
    bits_a, bits_b = (np.frombuffer(bytes(right), np.uint8).astype(bool) for right in (right_a, right_b))
    drop = paired_drop(bits_a, bits_b)
    low, high = proportion_interval(int((~bits_b).sum()), len(bits_b), 0.95)
    return {**_result("agreement with A", data.name, drop, "judged now"), "low": low, "high": high, "method": EXACT}


def _by_metric(ours: metrics.Rows, theirs: metrics.Rows, groups: npt.NDArray[np.int64] | None, name: str) -> Json:
    scorer = ours.scorer
    if scorer.right:
        bits = [rows.all()[:, 0] > 0 for rows in (ours, theirs)]
        return _of_bits(scorer.name, bits[0], bits[1], groups, name, "judged now")
    found = metrics.judged(ours, theirs, groups)
    lost = found.reference - found.artifact if scorer.better == "higher" else found.artifact - found.reference
    method = MEAN if scorer.weighted_mean else BOOTSTRAP
    result = _valued(scorer.name, name, "judged now", method, scorer.better, scorer.unit)
    return result | _figures(len(ours.all()), found.reference, found.artifact, lost, found.half_width)


def _of_rows(ours: Outcomes, theirs: Outcomes, name: str, how: str) -> Json:
    if not ours.values:
        return _of_bits(ours.kind, ours.bits(), theirs.bits(), ours.units(), name, how)
    before, after = ours.rows(), theirs.rows()
    a, b = (float(rows[:, 0] @ rows[:, 1] / rows[:, 1].sum()) for rows in (before, after))
    half = metrics.mean_half_width(before, after, ours.units())
    result = _valued(ours.kind, name, how, MEAN, ours.better, ours.unit)
    return result | _figures(ours.count, a, b, a - b if ours.better == "higher" else b - a, half)


def _of_bits(
    kind: str,
    a: npt.NDArray[np.bool_],
    b: npt.NDArray[np.bool_],
    units: npt.NDArray[np.int64] | None,
    name: str,
    how: str,
) -> Json:
    """Right and wrong; where samples belong together the interval is never narrower than if they stood alone."""
    drop = paired_drop(a, b)
    found = _result(kind, name, drop, how)
    if units is None:
        return found
    ones = np.ones(len(a))
    before, after = (np.stack([bits.astype(np.float64), ones], axis=1) for bits in (a, b))
    half = metrics.mean_half_width(before, after, units)
    if half is None:
        return {**found, "low": None, "high": None, "method": MEAN}
    low, high = min(drop.low, drop.drop - half), max(drop.high, drop.drop + half)
    return {**found, "low": low, "high": high, "method": f"the wider of {MEAN}, by group, and {PAIRED}"}


def _valued(kind: str, name: str, how: str, method: str, better: str, unit: str) -> Json:
    return {
        "compared": True,
        "kind": kind,
        "set": name,
        "how": how,
        "better": better,
        "unit": unit,
        "lost": None,
        "gained": None,
        "method": method,
    }


def _figures(samples: int, a: float, b: float, drop: float, half: float | None) -> Json:
    low, high = (None, None) if half is None else (drop - half, drop + half)
    return {"samples": samples, "a": a, "b": b, "drop": drop, "low": low, "high": high}


def _answer(scores: np.ndarray) -> tuple[int, ...] | None:
    """Indices of the greatest scores: one, more for a tie, none for NaN; None where there are no scores."""
    if scores.ndim != 2 or scores.shape[0] != 1 or scores.shape[1] < 2:
        return None
    return tuple(int(i) for i in np.flatnonzero(scores[0] == np.max(scores[0])))


def _result(kind: str, name: str, drop: Drop, how: str) -> Json:
    return {
        "compared": True,
        "kind": kind,
        "set": name,
        "how": how,
        "samples": drop.samples,
        "a": drop.a,
        "b": drop.b,
        "drop": drop.drop,
        "low": drop.low,
        "high": drop.high,
        "lost": drop.lost,
        "gained": drop.gained,
        "method": PAIRED,
    }
