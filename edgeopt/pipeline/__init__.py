"""build(): the straight line from a trained model to a bundle, one named stage a line."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from edgeopt import bundle, loaders, passes
from edgeopt.bundle import Bundle
from edgeopt.model import select_keys
from edgeopt.pipeline import data, decide, frugal, golden, measure, record, steps
from edgeopt.pipeline.choose import choose_backend
from edgeopt.plan import ladder
from edgeopt.target import Budget, load_target

Stage = Callable[[str], AbstractContextManager[object]]
"""Progress: entered around every stage with its title."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What a user asks for.

    Attributes:
        name: of the bundle and its artifacts; the model file's stem when None.
        calib, evaluate: data sets as ``calibration.load_set`` takes them.
        exclude: node names or keys that stay in float.
        shapes: fixed shapes by input name.
        effort: of the measurement: ``quick``, ``standard``, ``release``, or ``none``.
        threads: for the measurement; the target's when None.
        locked: a ``decisions.lock`` or a bundle to replay.
    """

    model: Path
    target: str
    out: Path
    name: str | None = None
    calib: str | None = None
    evaluate: str | None = None
    budget: Budget = dataclasses.field(default_factory=Budget)
    exclude: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    effort: str = "quick"
    seconds: float | None = None
    threads: int | None = None
    locked: Path | None = None
    trust_pickle: bool = False


def silent(title: str) -> AbstractContextManager[object]:
    """The default progress: none."""
    return contextlib.nullcontext()


def build(request: Request, stage: Stage = silent) -> Bundle:
    """Optimize, verify, measure and bundle a model.

    Raises:
        ModelError, TargetError, CalibrationError: bad input, before any work.
        QualityError: the budget needs a step that the quality gate refuses.
        BudgetError: the smallest footprint reached is over the budget.
        BundleError: the destination is not ours to replace, or cannot be written.
    """
    target = load_target(request.target)
    choice = choose_backend(target)
    name = bundle.safe_name(request.name or request.model.stem)
    bundle.check_destination(request.out, name)
    with stage("load"):
        model = loaders.load(request.model, shapes=request.shapes, trust_pickle=request.trust_pickle)
        exclude = select_keys(model, request.exclude)
        lock = decide.load_lock(request.locked, model, target)
    with stage("check data"):
        sets = data.prepare(model, calib=request.calib, evaluate=request.evaluate)
    rewrites = [p.name for p in (*passes.NORMALIZE, *passes.FUSIONS)]
    plan = ladder(rewrites, calibrated=sets.calibration is not None, exclude=sorted(exclude))
    with tempfile.TemporaryDirectory(prefix="edgeopt-") as folder:
        work = Path(folder)
        outcome = steps.run(plan, model, target, choice.backend, sets, exclude=exclude, lock=lock, stage=stage)
        frugal.release()
        with stage("lower"):
            outcome = steps.lower(outcome, choice.backend, target, name, work)
        with stage("judge quality"):
            judged = decide.judge(outcome, sets, request.budget, target, choice.backend, lock)
            samples = golden.record(outcome, sets, work)
        frugal.release()
        with stage(f"measure ({request.effort})"):
            threads = request.threads or target.threads
            measured = measure.run(outcome, samples, effort=request.effort, threads=threads, seconds=request.seconds)
        final = decide.choose(judged, measured, target, request.budget, lock)
        with stage("write bundle"):
            finished = record.Finished(
                name=name,
                target=target,
                choice=choice,
                sets=sets,
                budget=request.budget,
                golden=samples,
                measured=measured,
                final=final,
            )
            return bundle.write(request.out, record.content(finished))
