"""Try the ladder's steps one at a time on real inputs: keep, roll back, or skip, and say why."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import time
import weakref
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
from edgeopt.pipeline import checks, frugal
from edgeopt.pipeline.data import Sets
from edgeopt.plan import Status, Step, StepResult, next_step
from edgeopt.quality import Quality
from edgeopt.quantize import Calibrated, Choice, QuantizedModel
from edgeopt.target import Target

MAX_FALL = 0.02
"""A refinement may lower the agreement by this share: one or two samples of a hundred flip by chance."""

REMEMBERED = 24_000_000
"""Bytes of the float model's outputs on the choice samples that are kept from one quantizer choice to the next."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """Where the ladder arrived.

    Attributes:
        original: the model as loaded, the reference of every comparison.
        rewritten: after the rewrites that were kept and before the backend's own; what int8 was made from.
        float_model: after the backend's own rewrites too.
        quantized: the int8 model, None when no int8 step was kept.
        artifacts: by precision (``plain``, ``int8``), once lowered.
        plain: the precision of the artifact that edgeopt did not quantize, ``float32`` as a rule.
        baseline: the model as loaded, as a file; it is measured and never shipped.
    """

    original: Model
    rewritten: Model
    float_model: Model
    quantized: QuantizedModel | None
    results: tuple[StepResult, ...]
    artifacts: Mapping[str, Artifact] = dataclasses.field(default_factory=dict)
    baseline: Path | None = None
    plain: str = "float32"


@dataclasses.dataclass(kw_only=True)
class _Search:
    """The state of a walk down the ladder."""

    model: Model
    outputs: checks.Outputs
    finished: Model | None = None
    calibrated: Calibrated | None = None
    choice: Choice = dataclasses.field(default_factory=Choice)
    quantized: QuantizedModel | None = None
    seen: Quality | None = None
    chosen: Callable[[], quality.Run] | None = None
    costs: dict[int, tuple[weakref.ref[Model], Footprint]] = dataclasses.field(default_factory=dict)

    def cost(self, model: Model) -> Footprint:
        """The footprint of a model, which no step edits in place; most steps ask for that of the one before."""
        known = self.costs.get(id(model))
        if known is None or known[0]() is not model:
            known = self.costs[id(model)] = (weakref.ref(model), footprint(model))
        return known[1]


def steps_of(kind: str, rewrites: Sequence[passes.Pass]) -> tuple[Step, ...]:
    """Rewrites as steps of a ladder; ``kind`` is ``"pass"`` or ``"finish"``."""
    return tuple(Step(kind=kind, name=p.name, params=p.params, why=p.gain) for p in rewrites)


def run(
    plan: Sequence[Step],
    rewrites: Sequence[passes.Pass],
    model: Model,
    target: Target,
    backend: ModuleType,
    sets: Sets,
    *,
    exclude: Set[str],
    lock: Lock | None,
    stage: Callable[[str], AbstractContextManager[object]],
) -> Outcome:
    """Walk the ladder from the model as loaded. ``rewrites`` are those that steps of the plan name."""
    search = _Search(model=model, outputs=checks.runs(model, sets))
    by_name = {p.name: p for p in rewrites}
    results: list[StepResult] = []
    while step := next_step(plan, results):
        locked = None if lock is None else _locked_status(lock, step)
        if not results or results[-1].status != "skipped":  # a skipped step held no weights of its own
            frugal.release(search.cost(search.model).weight_bytes)
        if locked in ("skipped", "rolled-back"):
            cost = search.cost(search.finished or search.model)
            results.append(_result(step, locked, "as locked", cost, cost, time.perf_counter()))
        elif step.kind == "pass":
            results.append(_try_pass(step, by_name[step.name], search, target, sets))
        elif step.kind == "finish":
            results.append(_try_finish(step, by_name[step.name], search, target, sets))
        else:
            with stage(step.name.replace("-", " ")):
                results.append(_try_quantize(step, search, target, backend, sets, exclude, locked == "kept"))
        if locked is not None and results[-1].status != locked:
            raise BundleError(
                f"the lock kept {step.name}, and here it is {results[-1].status}: {results[-1].reason}",
                remedy="Build again without --locked.",
            )
    return Outcome(
        original=model,
        rewritten=search.model,
        float_model=search.finished or search.model,
        quantized=search.quantized,
        results=tuple(results),
    )


def _locked_status(lock: Lock, step: Step) -> Status:
    """What the lock says about a step.

    Raises:
        BundleError: the lock does not know it (another version of edgeopt wrote it), or holds other parameters.
    """
    for decision in lock.decisions:
        if decision.name == step.name:
            if dict(decision.params) != dict(step.params):
                raise BundleError(
                    f"the lock was made with other parameters of {step.name}: {json.dumps(dict(decision.params))}, and "
                    f"here they are {json.dumps(dict(step.params))}",
                    remedy="Give the options of that build, or build again without --locked.",
                )
            return cast(Status, decision.status)
    raise BundleError(f"the lock does not know the step {step.name}", remedy="Build again without --locked.")


def _try_pass(step: Step, pass_: passes.Pass, search: _Search, target: Target, sets: Sets) -> StepResult:
    """Rewrite, run the probes, compare with the outputs before; the pass's tolerance decides."""
    started, before = time.perf_counter(), search.cost(search.model)
    applied = passes.apply(pass_, search.model, target)
    if applied.count == 0:
        return _result(step, "skipped", applied.reason, before, before, started)
    after = search.cost(applied.model)
    outputs, change = checks.verified(applied.model, search.outputs, pass_, sets)
    if outputs is None:
        return _result(step, "rolled-back", change, before, after, started)
    search.model, search.outputs = applied.model, outputs
    return _result(step, "kept", _said(applied, change), before, after, started)


def _try_finish(step: Step, pass_: passes.Pass, search: _Search, target: Target, sets: Sets) -> StepResult:
    """The same on the float and on the int8 model; each keeps it or not."""
    plain = search.finished or search.model
    started, before = time.perf_counter(), search.cost(plain)
    reference = search.outputs
    applied = passes.apply(pass_, plain, target)
    reason, refused = applied.reason, False
    if applied.count:
        outputs, change = checks.verified(applied.model, reference, pass_, sets)
        refused = outputs is None
        reason = change if refused else _said(applied, change)
        if outputs is not None:
            search.finished, search.outputs = applied.model, outputs
    kept = bool(applied.count) and not refused
    if search.quantized is not None:
        fused = passes.apply(pass_, search.quantized.model, target)
        change = fused.reason
        if fused.count:
            refusal, change = checks.int8_verified(search.quantized.model, fused.model, reference, pass_, sets)
            refused |= refusal
            if not refusal:
                search.quantized = dataclasses.replace(search.quantized, model=fused.model)
                kept, change = True, _said(fused, change)
        reason += f"; in the int8 model: {change}"
    after = search.cost(search.finished or search.model)
    return _result(step, "kept" if kept else "rolled-back" if refused else "skipped", reason, before, after, started)


def _said(applied: passes.Applied, change: str) -> str:
    places = f"{applied.count} place{'s' if applied.count != 1 else ''}"
    return f"{places}, {change}" + (f"; {applied.reason}" if applied.reason else "")


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
    before = search.cost(search.model if search.quantized is None else search.quantized.model)
    if step.name == "quantize-int8":
        scheme = quantize.scheme_for(search.model, target.int8, target.opset_max)
        search.calibrated = quantize.calibrate(
            search.model, backend.TABLE, scheme, sets.calibration_samples(), exclude=exclude
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
    after = search.cost(quantized.model)
    search.chosen = search.chosen or _remembered(search.model)
    try:
        test = Interpreter(quantized.model)
    except ModelError as refusal:
        return _result(step, "rolled-back", f"after it {refusal.message}", before, after, started)
    seen = quality.compare(search.chosen(), test.run, sets.choice_samples())
    reason, better = _judge_choice(seen, search.seen, float(str(step.params.get("min_gain_db", 0))))
    if not better and not keep:
        return _result(step, "rolled-back", reason, before, after, started, seen)
    search.quantized, search.choice, search.seen = quantized, trial, seen
    return _result(step, "kept", reason, before, after, started, seen)


def _remembered(model: Model) -> Callable[[], quality.Run]:
    """Makes references that are fed the choice samples in order: the float model, or what it gave the time before.

    Every quantizer choice is compared with the same outputs. ``REMEMBERED`` bytes of them are kept, and no session.
    """
    kept: list[Mapping[str, np.ndarray]] = []
    room = REMEMBERED

    def start() -> quality.Run:
        position = itertools.count()
        session: list[Interpreter] = []

        def run(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
            nonlocal room
            index = next(position)
            if index < len(kept):
                return kept[index]
            if not session:
                session.append(Interpreter(model))
            found = session[0].run(feeds)
            size = sum(value.nbytes for value in found.values())
            if index == len(kept) and size <= room:
                kept.append(found)
                room -= size
            return found

        return run

    return start


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
    models = {outcome.plain: outcome.float_model}
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
