"""One candidate: a model reduced in one way for one runtime, judged and measured. A build makes one or several."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType

from edgeopt import passes
from edgeopt.bundle import Lock
from edgeopt.memory import footprint
from edgeopt.model import Model
from edgeopt.pipeline import decide, frugal, golden, keys, measure, native, options, steps
from edgeopt.pipeline.admit import Admitted
from edgeopt.pipeline.choose import BackendChoice
from edgeopt.pipeline.data import Sets
from edgeopt.pipeline.decide import Judged
from edgeopt.pipeline.golden import Golden
from edgeopt.pipeline.journal import Journal
from edgeopt.pipeline.measure import Measured
from edgeopt.pipeline.pixels import Taken
from edgeopt.pipeline.request import Request, wish
from edgeopt.pipeline.steps import Outcome
from edgeopt.plan import ladder
from edgeopt.target import Budget, Target

Stage = Callable[[str], AbstractContextManager[object]]
"""Progress: entered around every stage with its title."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Brief:
    """What all candidates of a build have in common.

    Attributes:
        budget: the request's over that of the target.
        exclude: node keys that stay in float.
        journal: what an earlier try of the build found out.
    """

    request: Request
    name: str
    target: Target
    admitted: Admitted
    taken: Taken
    budget: Budget
    exclude: frozenset[str]
    lock: Lock | None
    journal: Journal = dataclasses.field(default_factory=Journal)

    @property
    def model(self) -> Model:
        """As loaded, with raw pixels as its input where that was asked for."""
        return self.taken.model

    @property
    def sets(self) -> Sets:
        """The data, as that model takes it."""
        return self.taken.sets

    @property
    def threads(self) -> int:
        """Of the runtime while it is measured."""
        return self.request.threads or self.target.threads

    @property
    def effort(self) -> str:
        """Of the measurement; none where nothing can be run."""
        return self.request.effort if self.admitted.runnable else "none"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """One candidate with all that is known of it.

    Attributes:
        quantize: what it was asked to reduce to, one of ``budget.QUANTIZE``.
        predicted: bytes at the peak by precision, runtime left out, as its backend's memory model has them.
    """

    choice: BackendChoice
    quantize: str
    judged: Judged
    golden: Golden
    measured: Measured
    predicted: Mapping[str, int]


def make(brief: Brief, choice: BackendChoice, quantize: str, work: Path, stage: Stage) -> Candidate | str:
    """Walk the ladder, lower, judge and measure; why there is nothing to measure where a reduction reduced nothing.

    Args:
        work: a folder of its own; what the candidate refers to lies there.

    Raises:
        EdgeoptError: what was asked for cannot be had from this runtime or for this network.
    """
    request, target, sets, backend = brief.request, brief.target, brief.sets, choice.backend
    rewrites = (*passes.normalize(request.fold_limit), *passes.FUSIONS)
    finishing = backend.passes(target)
    plan = ladder(
        steps.steps_of("pass", rewrites),
        calibrated=sets.calibration is not None,
        wanted=wish(dataclasses.replace(request, quantize=quantize), brief.model, brief.exclude),
        finishing=steps.steps_of("finish", finishing),
    )
    outcome = steps.run(
        plan,
        (*rewrites, *finishing),
        brief.model,
        target,
        backend,
        sets,
        exclude=brief.exclude,
        lock=brief.lock,
        stage=stage,
        limits=brief.budget,
        memory=request.calib_memory,
        max_float_macs=request.max_float_macs,
        journal=brief.journal,
    )
    if brief.lock is None and quantize != request.quantize and outcome.quantized is None:
        tried = [r for r in outcome.results if r.step.kind == "quantize"]
        return tried[-1].reason if tried else "nothing was reduced"
    outcome = dataclasses.replace(brief.taken.conclude(outcome), plain=brief.admitted.precision)
    weights = footprint(brief.model).weight_bytes
    frugal.release(weights)
    with stage("lower"):
        outcome = steps.lower(outcome, backend, target, brief.name, work)
        outcome = native.apply(outcome, backend, target, sets, work, brief.lock)
        if brief.lock is not None and any(d.kind == options.KIND for d in brief.lock.decisions):
            outcome = _with_options(outcome, brief, backend, work, list(outcome.artifacts))
    with stage("judge quality"):
        asked = "auto" if quantize != request.quantize else quantize
        judged = decide.judge(outcome, sets, brief.budget, target, backend, brief.lock, asked, brief.journal)
    frugal.release(weights)
    return _measured(brief, choice, quantize, judged, work, stage)


def relieved(made: Candidate, brief: Brief, precision: str, work: Path, stage: Stage) -> Candidate:
    """The candidate with the run options with which one of its artifacts takes less memory, measured again.

    Its quality is the one it had: an option that moves an output is not kept. Where none is kept, only its diary grows.

    Args:
        work: a folder of its own, beside that of ``made``.
    """
    backend, before = made.choice.backend, made.judged.outcome
    with stage("run options"):
        seen = made.measured.peak_bytes(precision)
        outcome = _with_options(before, brief, backend, work, [precision], {} if seen is None else {precision: seen})
    judged = dataclasses.replace(made.judged, outcome=outcome)
    if outcome.artifacts == before.artifacts:
        return dataclasses.replace(made, judged=judged)
    return _measured(brief, made.choice, made.quantize, judged, work, stage)


def _with_options(
    outcome: Outcome,
    brief: Brief,
    backend: ModuleType,
    work: Path,
    precisions: list[str],
    known: Mapping[str, int] | None = None,
) -> Outcome:
    return options.apply(
        outcome,
        options.option_steps(brief.target, backend),
        backend,
        brief.target,
        brief.sets,
        work,
        lock=brief.lock,
        precisions=precisions,
        enough=brief.budget.peak_bytes,
        known=known,
        threads=brief.threads,
        effort=brief.effort,
        seconds=brief.request.seconds,
        journal=brief.journal,
    )


def _measured(
    brief: Brief, choice: BackendChoice, quantize: str, judged: Judged, work: Path, stage: Stage
) -> Candidate:
    outcome = judged.outcome
    work.mkdir(exist_ok=True)
    asked = brief.budget.peak_bytes is not None or brief.request.objective is not None
    predicted = _predicted(outcome, brief.target, choice.backend, asked=asked)
    with stage("golden samples"):
        samples = golden.record(outcome, brief.sets, choice.backend, work)
    with stage(f"measure ({brief.request.effort})"):
        how = {"effort": brief.effort, "threads": brief.threads, "seconds": brief.request.seconds}
        measured = brief.journal.remember(
            "measured",
            lambda: keys.of_measurement(outcome.files, samples.inputs, how),
            lambda: measure.run(
                outcome, samples, effort=brief.effort, threads=brief.threads, seconds=brief.request.seconds
            ),
        )
    return Candidate(
        choice=choice,
        quantize=quantize,
        judged=judged,
        golden=samples,
        measured=measured,
        predicted=predicted,
    )


def _predicted(outcome: Outcome, target: Target, backend: ModuleType, *, asked: bool) -> dict[str, int]:
    """What the backend's memory model says of each artifact; none where it has no such model or nobody asked."""
    if not hasattr(backend, "predict") or not asked:
        return {}
    models = {outcome.plain: outcome.float_model}
    if outcome.quantized is not None:
        models[outcome.quantized.precision] = outcome.quantized.model
    found = {
        precision: backend.predict(
            model, target, outcome.artifacts[precision].options, quantized=precision != outcome.plain
        ).total
        for precision, model in models.items()
    }
    return {precision: total for precision, total in found.items() if total is not None}
