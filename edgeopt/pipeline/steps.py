"""Try the ladder's steps one at a time on real inputs: keep, roll back, or skip, and say why."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import cast

import numpy as np

from edgeopt import passes, quality, quantize
from edgeopt.backends import Artifact
from edgeopt.bundle import Lock
from edgeopt.errors import BundleError, ModelError
from edgeopt.interpreter import Interpreter
from edgeopt.memory import Footprint, footprint
from edgeopt.model import Model, save
from edgeopt.pipeline import frugal
from edgeopt.pipeline.data import Sets
from edgeopt.plan import Status, Step, StepResult, next_step
from edgeopt.quality import Quality
from edgeopt.quantize import Calibrated, Choice, QuantizedModel
from edgeopt.target import Target

MAX_FALL = 0.02
"""A refinement may lower the agreement by this share: one or two samples of a hundred flip by chance."""

KERNEL_ROUNDING = 1e-4
"""Even a rewrite that changes no value may let the runtime pick another kernel, which rounds differently."""

Outputs = list[Mapping[str, np.ndarray]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """Where the ladder arrived.

    Attributes:
        original: the model as loaded, the reference of every comparison.
        float_model: after the rewrites that were kept.
        quantized: the int8 model, None when no int8 step was kept.
        artifacts: by precision (``float32``, ``int8``), once lowered.
        baseline: the model as loaded, as a file; it is measured and never shipped.
    """

    original: Model
    float_model: Model
    quantized: QuantizedModel | None
    results: tuple[StepResult, ...]
    artifacts: Mapping[str, Artifact] = dataclasses.field(default_factory=dict)
    baseline: Path | None = None


@dataclasses.dataclass(kw_only=True)
class _Search:
    """The state of a walk down the ladder."""

    model: Model
    outputs: Outputs
    calibrated: Calibrated | None = None
    choice: Choice = dataclasses.field(default_factory=Choice)
    quantized: QuantizedModel | None = None
    seen: Quality | None = None


def run(
    plan: Sequence[Step],
    model: Model,
    target: Target,
    backend: ModuleType,
    sets: Sets,
    *,
    exclude: Set[str],
    lock: Lock | None,
    stage: Callable[[str], AbstractContextManager[object]],
) -> Outcome:
    """Walk the ladder from the model as loaded."""
    reference = Interpreter(model)
    search = _Search(model=model, outputs=[reference.run(p) for p in sets.probes])
    by_name = {p.name: p for p in (*passes.NORMALIZE, *passes.FUSIONS)}
    results: list[StepResult] = []
    while step := next_step(plan, results):
        locked = None if lock is None else _locked_status(lock, step)
        frugal.release()
        if locked in ("skipped", "rolled-back"):
            cost = footprint(search.model)
            results.append(_result(step, locked, "as locked", cost, cost, time.perf_counter()))
        elif step.kind == "pass":
            results.append(_try_pass(step, by_name[step.name], search, target, sets))
        else:
            with stage(step.name.replace("-", " ")):
                results.append(_try_quantize(step, search, target, backend, sets, exclude, locked == "kept"))
        if locked is not None and results[-1].status != locked:
            raise BundleError(
                f"the lock kept {step.name}, and here it is {results[-1].status}: {results[-1].reason}",
                remedy="Build again without --locked.",
            )
    return Outcome(original=model, float_model=search.model, quantized=search.quantized, results=tuple(results))


def _locked_status(lock: Lock, step: Step) -> Status:
    """What the lock says about a step.

    Raises:
        BundleError: the lock does not know it: another version of edgeopt wrote it.
    """
    for decision in lock.decisions:
        if decision.name == step.name:
            return cast(Status, decision.status)
    raise BundleError(f"the lock does not know the step {step.name}", remedy="Build again without --locked.")


def _try_pass(step: Step, pass_: passes.Pass, search: _Search, target: Target, sets: Sets) -> StepResult:
    """Rewrite, run the probes, compare with the outputs before; the pass's tolerance decides."""
    started, before = time.perf_counter(), footprint(search.model)
    applied = passes.apply(pass_, search.model, target)
    if applied.count == 0:
        return _result(step, "skipped", applied.reason, before, before, started)
    after = footprint(applied.model)
    try:
        interpreter = Interpreter(applied.model)
        outputs: Outputs = [interpreter.run(p) for p in sets.probes]
    except ModelError as refusal:
        return _result(step, "rolled-back", f"after it {refusal.message}", before, after, started)
    error = max(quality.relative_error(a, b) for a, b in zip(search.outputs, outputs))
    allowed = max(pass_.tolerance, KERNEL_ROUNDING)
    if error > allowed:
        reason = f"outputs changed by {error:.2g} of their range, more than {allowed:.0e} allowed"
        return _result(step, "rolled-back", reason, before, after, started)
    search.model, search.outputs = applied.model, outputs
    kind = "real inputs" if sets.probes_are_real else "seeded noise"
    places = f"{applied.count} place{'s' if applied.count != 1 else ''}"
    note = f"; {applied.reason}" if applied.reason else ""
    change = f"largest change {error:.1e}" if error else "no change"
    return _result(step, "kept", f"{places}, {change} on {kind}{note}", before, after, started)


def _try_quantize(
    step: Step,
    search: _Search,
    target: Target,
    backend: ModuleType,
    sets: Sets,
    exclude: Set[str],
    keep: bool,
) -> StepResult:
    """Calibrate once, then change one choice at a time and compare on the choice samples; a lock may ``keep`` it."""
    started = time.perf_counter()
    before = footprint(search.model if search.quantized is None else search.quantized.model)
    if step.name == "quantize-int8":
        search.calibrated = quantize.calibrate(
            search.model, backend.TABLE, target.int8, sets.calibration_samples(), exclude=exclude
        )
        if search.calibrated is None:
            return _result(step, "skipped", "no operator of this model has an integer kernel", before, before, started)
        trial = search.choice
    elif step.name == "bias-correction":
        trial = dataclasses.replace(search.choice, bias_correction=True)
    else:
        trial = dataclasses.replace(search.choice, percentile=float(str(step.params["percentile"])))
    assert search.calibrated is not None
    quantized = quantize.quantize(search.calibrated, trial)
    after = footprint(quantized.model)
    reference = Interpreter(search.model)
    try:
        test = Interpreter(quantized.model)
    except ModelError as refusal:
        return _result(step, "rolled-back", f"after it {refusal.message}", before, after, started)
    seen = quality.compare(reference.run, test.run, sets.choice_samples())
    reason, better = _judge_choice(seen, search.seen, float(str(step.params.get("min_gain_db", 0))))
    if not better and not keep:
        return _result(step, "rolled-back", reason, before, after, started, seen)
    search.quantized, search.choice, search.seen = quantized, trial, seen
    return _result(step, "kept", reason, before, after, started, seen)


def _judge_choice(seen: Quality, before: Quality | None, min_gain: float) -> tuple[str, bool]:
    """What a quantizer choice did on calibration samples, and whether it helped.

    Clipping can raise SQNR while clearly more arg-maxima change, so both have their say.
    """
    reason = f"SQNR {seen.sqnr_db:.1f} dB"
    if seen.agreement is not None:
        reason += f", agreement {seen.agreement.top1:.1%}"
    reason += f" on {seen.samples} calibration samples"
    if before is None:
        return reason, True
    gain = seen.sqnr_db - before.sqnr_db if math.isfinite(before.sqnr_db) else 0.0
    if gain < min_gain:
        return f"{reason}: {gain:+.2f} dB, less than {min_gain:g} dB gained", False
    before_top1, top1 = (1.0 if q.agreement is None else q.agreement.top1 for q in (before, seen))
    if before_top1 - top1 > MAX_FALL:
        return f"{reason}: {gain:+.2f} dB, but agreement was {before_top1:.1%} without it", False
    return f"{reason}: {gain:+.2f} dB", True


def lower(outcome: Outcome, backend: ModuleType, target: Target, name: str, work: Path) -> Outcome:
    """Write every candidate as a file of the backend.

    ``original`` is the model as loaded, the baseline of the measurement; it is never shipped.
    """
    folder = work / "model"
    folder.mkdir()
    models = {"float32": outcome.float_model}
    if outcome.quantized is not None:
        models["int8"] = outcome.quantized.model
    artifacts = {
        precision: backend.lower(model, target, folder / f"{name}.{precision}.onnx", precision=precision)
        for precision, model in models.items()
    }
    baseline = work / "original.onnx"
    save(outcome.original, baseline)
    return dataclasses.replace(outcome, artifacts=artifacts, baseline=baseline)


def _result(
    step: Step,
    status: Status,
    reason: str,
    before: Footprint,
    after: Footprint,
    started: float,
    seen: Quality | None = None,
) -> StepResult:
    return StepResult(
        step=step,
        status=status,
        reason=reason,
        before=before,
        after=after,
        drift=() if seen is None else seen.outputs,
        latency_ratio=None,
        seconds=time.perf_counter() - started,
    )
