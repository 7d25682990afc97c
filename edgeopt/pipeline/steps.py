"""Try the ladder's steps one at a time on real inputs: keep, roll back, or skip, and say why."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType

from edgeopt import passes
from edgeopt.backends import Artifact
from edgeopt.budget import CALIB_MEMORY, MAX_FLOAT_MACS
from edgeopt.bundle import Decision, Lock
from edgeopt.errors import BundleError
from edgeopt.model import Model
from edgeopt.pipeline import checks, frugal
from edgeopt.pipeline.data import Sets
from edgeopt.pipeline.journal import Journal
from edgeopt.pipeline.quantizing import try_quantize
from edgeopt.pipeline.search import Bench, Search, result
from edgeopt.pipeline.walk import Noted, begin, put_back, state
from edgeopt.plan import Status, Step, StepResult, next_step
from edgeopt.quantize import QuantizedModel
from edgeopt.target import Budget, Target, target_dict


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """Where the ladder arrived.

    Attributes:
        original: the model as loaded, the reference of every comparison.
        rewritten: after the rewrites that were kept and before the backend's own; what int8 was made from.
        float_model: after the backend's own rewrites too.
        quantized: the reduced model, None when no such step was kept.
        artifacts: by precision (``plain`` and that of ``quantized``), once lowered.
        plain: the precision of the artifact that edgeopt did not quantize, ``float32`` as a rule.
        baseline: the model as loaded, as a file; it is measured and never shipped. None where the runtime reads only
            the rewritten one.
    """

    original: Model
    rewritten: Model
    float_model: Model
    quantized: QuantizedModel | None
    results: tuple[StepResult, ...]
    artifacts: Mapping[str, Artifact] = dataclasses.field(default_factory=dict)
    baseline: Artifact | None = None
    plain: str = "float32"

    @property
    def files(self) -> dict[str, Artifact]:
        """All that is measured: the baseline as ``original``, and the artifacts."""
        return {**({} if self.baseline is None else {"original": self.baseline}), **self.artifacts}

    @property
    def reduced(self) -> str | None:
        """Precision of the reduced model, None where there is none."""
        return None if self.quantized is None else self.quantized.precision


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
    limits: Budget | None = None,
    memory: int = CALIB_MEMORY,
    max_float_macs: float = MAX_FLOAT_MACS,
    journal: Journal | None = None,
) -> Outcome:
    """Walk the ladder from the model as loaded. ``rewrites`` are those that steps of the plan name.

    Args:
        journal: has what became of the steps in an earlier try of the same walk, and gets what becomes of them now.
    """
    journal = journal or Journal()
    search = Search(model=model, outputs=None, table=backend.TABLE, journal=journal)
    bench = Bench(
        target=target,
        backend=backend,
        sets=sets,
        exclude=frozenset(exclude),
        limits=limits or Budget(),
        memory=memory,
        max_float_macs=max_float_macs,
        journal=journal,
    )
    by_name = {p.name: p for p in rewrites}
    walk = begin(journal, search, _facts(bench, lock))
    results: list[StepResult] = []
    while step := next_step(plan, results):
        decision = None if lock is None else locked_decision(lock, step)
        locked = None if decision is None else decision.status
        if not results or results[-1].status != "skipped":  # a skipped step held no weights of its own
            frugal.release(search.cost(search.model).weight_bytes)
        known = walk.known(step)
        if known is not None and not _again(step, known, by_name, search, bench, stage):
            known = None
        if known is not None:
            results.append(dataclasses.replace(known.result, step=step))
        elif locked in ("skipped", "rolled-back"):
            cost = search.cost(search.finished or search.model)
            results.append(result(step, locked, "as locked", cost, cost, time.perf_counter()))
        elif step.kind == "pass":
            results.append(_try_pass(step, by_name[step.name], search, target, sets))
        elif step.kind == "finish":
            results.append(_try_finish(step, by_name[step.name], search, target, sets))
        else:
            with stage(step.name.replace("-", " ")):
                replayed = decision.found if decision is not None else None
                results.append(try_quantize(step, search, bench, replayed))
        if locked is not None and results[-1].status != locked:
            raise BundleError(
                f"the lock kept {step.name}, and here it is {results[-1].status}: {results[-1].reason}",
                remedy="Build again without --locked.",
            )
        walk.goes_on(results[-1], search, known)
    return Outcome(
        original=model,
        rewritten=search.model,
        float_model=search.finished or search.model,
        quantized=search.quantized,
        results=tuple(results),
    )


def _facts(bench: Bench, lock: Lock | None) -> object:
    """What decides how a walk goes besides its model and the data, as plain JSON values."""
    return {
        "target": target_dict(bench.target),
        "backend": str(bench.backend.NAME),
        "exclude": sorted(bench.exclude),
        "limits": dataclasses.asdict(bench.limits),
        "memory": bench.memory,
        "max_float_macs": bench.max_float_macs,
        "lock": None if lock is None else dataclasses.asdict(lock),
    }


def _again(
    step: Step,
    known: Noted,
    by_name: Mapping[str, passes.Pass],
    search: Search,
    bench: Bench,
    stage: Callable[[str], AbstractContextManager[object]],
) -> bool:
    """Put the search where a step that is known left it; False, and as it was, where it does not come out there."""
    if known.result.status != "kept":
        return True
    before = dataclasses.replace(search)
    if step.kind == "pass":
        search.model, search.outputs = passes.apply(by_name[step.name], search.model, bench.target).model, None
    elif step.kind == "finish":
        _try_finish(step, by_name[step.name], search, bench.target, bench.sets)
    else:
        with stage(step.name.replace("-", " ")):
            try_quantize(step, search, bench, known.result.found)
    if state(search) == known.state:
        return True
    put_back(search, before)
    return False


def locked_status(lock: Lock, step: Step) -> Status:
    """What became of a step by the lock; ``locked_decision`` says which errors there are."""
    return locked_decision(lock, step).status


def locked_decision(lock: Lock, step: Step) -> Decision:
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
            return decision
    raise BundleError(f"the lock does not know the step {step.name}", remedy="Build again without --locked.")


def _try_pass(step: Step, pass_: passes.Pass, search: Search, target: Target, sets: Sets) -> StepResult:
    """Rewrite, run the probes, compare with the outputs before; the pass's tolerance decides."""
    started, before = time.perf_counter(), search.cost(search.model)
    applied = passes.apply(pass_, search.model, target)
    if applied.count == 0:
        return result(step, "skipped", applied.reason, before, before, started)
    after = search.cost(applied.model)
    outputs, change = checks.verified(applied.model, search.expected(sets), pass_, sets)
    if outputs is None:
        return result(step, "rolled-back", change, before, after, started)
    search.model, search.outputs = applied.model, outputs
    return result(step, "kept", _said(applied, change), before, after, started)


def _try_finish(step: Step, pass_: passes.Pass, search: Search, target: Target, sets: Sets) -> StepResult:
    """The same on the float and on the reduced model; each keeps it or not."""
    plain = search.finished or search.model
    started, before = time.perf_counter(), search.cost(plain)
    reference = search.expected(sets)
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
        reason += f"; in the {search.quantized.precision} model: {change}"
    after = search.cost(search.finished or search.model)
    return result(step, "kept" if kept else "rolled-back" if refused else "skipped", reason, before, after, started)


def _said(applied: passes.Applied, change: str) -> str:
    places = f"{applied.count} place{'s' if applied.count != 1 else ''}"
    return f"{places}, {change}" + (f"; {applied.reason}" if applied.reason else "")


def lower(outcome: Outcome, backend: ModuleType, target: Target, name: str, work: Path) -> Outcome:
    """Write every candidate as a file of the backend.

    ``original`` is the model as loaded, the baseline of the measurement; it is never shipped.
    """
    folder = work / "model"
    folder.mkdir()
    models = {outcome.plain: outcome.float_model}
    if outcome.quantized is not None:
        models[outcome.quantized.precision] = outcome.quantized.model
    artifacts = {
        precision: backend.lower(model, target, folder / f"{name}.{precision}.onnx", precision=precision)
        for precision, model in models.items()
    }
    baseline = backend.baseline(outcome.original, target, work / "original.onnx")
    return dataclasses.replace(outcome, artifacts=artifacts, baseline=baseline)
