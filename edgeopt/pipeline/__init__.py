"""build(): the straight line from a trained model to a bundle, one named stage a line."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from edgeopt import bundle, loaders, passes
from edgeopt.bundle import Bundle
from edgeopt.memory import footprint
from edgeopt.model import select_keys
from edgeopt.pipeline import admit, data, decide, frugal, golden, measure, native, pixels, record, steps
from edgeopt.pipeline.choose import choose_backend, settle_backend
from edgeopt.pipeline.request import Request as Request
from edgeopt.pipeline.request import check_data, wish
from edgeopt.plan import ladder
from edgeopt.target import load_target

Stage = Callable[[str], AbstractContextManager[object]]
"""Progress: entered around every stage with its title."""


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
    choice = choose_backend(target, request.backend)
    name = bundle.safe_name(request.name or loaders.default_name(request.model, request.weights))
    bundle.check_destination(request.out, name)
    with stage("load"):
        model = loaders.load(
            request.model,
            shapes=request.shapes,
            trust_pickle=request.trust_pickle,
            weights=request.weights,
            force_eval=request.force_eval,
        )
        admitted = admit.admit(
            model,
            target,
            force_eval=request.force_eval,
            custom_ops=request.custom_ops,
            keep_custom_ops=request.keep_custom_ops,
            shapes=request.shapes,
        )
        model = admitted.model
        exclude = select_keys(model, request.exclude)
        lock = decide.load_lock(request.locked, model, target)
    with stage("check data"):
        sets = data.prepare(model, calib=request.calib, evaluate=request.evaluate)
        check_data(request, sets)
    with stage("check dimensions"):
        model, sets = admit.settle(admitted, sets)
        choice = settle_backend(choice, target, model, request.backend)
    asked = pixels.Asked(kind=request.input_type, layout=request.input_layout, color=request.input_color)
    taken = pixels.take(model, sets, asked, lock, stage)
    model, sets = taken.model, taken.sets
    if lock is not None:
        lock.check_data(sets.digests())
    weights = footprint(model).weight_bytes
    rewrites = (*passes.normalize(request.fold_limit), *passes.FUSIONS)
    finishing = choice.backend.passes(target)
    wanted = wish(request, model, exclude)
    plan = ladder(
        steps.steps_of("pass", rewrites),
        calibrated=sets.calibration is not None,
        wanted=wanted,
        finishing=steps.steps_of("finish", finishing),
    )
    with tempfile.TemporaryDirectory(prefix="edgeopt-") as folder:
        work = Path(folder)
        outcome = steps.run(
            plan,
            (*rewrites, *finishing),
            model,
            target,
            choice.backend,
            sets,
            exclude=exclude,
            lock=lock,
            stage=stage,
            limits=request.budget,
            memory=request.calib_memory,
            max_float_macs=request.max_float_macs,
        )
        outcome = dataclasses.replace(taken.conclude(outcome), plain=admitted.precision)
        frugal.release(weights)
        with stage("lower"):
            outcome = steps.lower(outcome, choice.backend, target, name, work)
            outcome = native.apply(outcome, choice.backend, target, sets, work, lock)
        with stage("judge quality"):
            judged = decide.judge(outcome, sets, request.budget, target, choice.backend, lock, request.quantize)
            samples = golden.record(outcome, sets, choice.backend, work)
        frugal.release(weights)
        with stage(f"measure ({request.effort})"):
            threads = request.threads or target.threads
            effort = request.effort if admitted.runnable else "none"
            measured = measure.run(outcome, samples, effort=effort, threads=threads, seconds=request.seconds)
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
