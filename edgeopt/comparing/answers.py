"""Quality of B against A, sample by sample: from what two bundles recorded, or judged now on a set."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeopt import calibration
from edgeopt.bundle import JudgedOn, read_outcomes
from edgeopt.calibration import DataSet
from edgeopt.comparing.sources import Artifact, Recorded
from edgeopt.errors import BenchError, CalibrationError
from edgeopt.interpreter import Interpreter
from edgeopt.outcomes import Drop, paired_drop
from runtime_bench.golden import Tally
from runtime_bench.statistics.stats import proportion_interval

Json = dict[str, Any]
Side = Artifact | Recorded

PAIRED = "adjusted Wald interval of the paired difference (Bonett and Price 2012)"
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
    return _result(ours.kind, judged_a.set_name, paired_drop(ours.bits(), theirs.bits()), "recorded by the builds")


def _unlike(a: JudgedOn, b: JudgedOn) -> str:
    """Why outcomes of two bundles do not pair; empty where they do."""
    ours, theirs = next(iter(a.outcomes.values())), next(iter(b.outcomes.values()))
    if ours.kind != theirs.kind:
        return f"A was judged by {ours.kind} and B by {theirs.kind}"
    if ours.samples_sha256 != theirs.samples_sha256 or ours.count != theirs.count:
        if a.set_sha256 == b.set_sha256:
            return f"both were judged on {a.set_name}, and not on the same samples of it, or they were prepared unlike"
        return f"A was judged on {a.set_name} ({ours.count} samples), B on {b.set_name} ({theirs.count}): not the same"
    if ours.kind == "agreement" and a.source_sha256 != b.source_sha256:
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
    warnings = calibration.check(data, a.inputs)
    return _judged(a, b, data), warnings


def _judged(a: Artifact, b: Artifact, data: DataSet) -> Json:
    labels = calibration.labels(data)
    run_a, run_b = Interpreter(a.path).run, Interpreter(b.path).run
    right_a, right_b = bytearray(), bytearray()
    tallies: dict[str, Tally] = {}
    scored = True
    for index, feeds in enumerate(calibration.samples(data, a.inputs)):
        ours, theirs = run_a(feeds), run_b(feeds)
        for name, value in ours.items():
            tallies.setdefault(name, Tally()).add(value, theirs[name])
        first = next(iter(ours))
        x, y = _answer(ours[first]), _answer(theirs[first])
        if x is None or y is None:
            scored = False
            continue
        wanted = x if labels is None else (int(labels[index]),)
        right_a.append(x == wanted != ())
        right_b.append(y == wanted != ())
    if not scored:
        worst = min(tally.sqnr_db for tally in tallies.values())
        return not_compared(
            "the first output is no row of scores, so there is no answer to compare; "
            f"SQNR of B against A {worst:.1f} dB on {data.count} samples of {data.name}"
        )
    bits_a, bits_b = (np.frombuffer(bytes(right), np.uint8).astype(bool) for right in (right_a, right_b))
    drop = paired_drop(bits_a, bits_b)
    if labels is not None:
        return _result("top1", data.name, drop, "judged now")
    low, high = proportion_interval(int((~bits_b).sum()), len(bits_b), 0.95)
    return {**_result("agreement with A", data.name, drop, "judged now"), "low": low, "high": high, "method": EXACT}


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
