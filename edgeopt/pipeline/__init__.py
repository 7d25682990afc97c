"""build(): the straight line from a trained model to a bundle, one named stage a line."""

from __future__ import annotations

import contextlib
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

from edgeopt import bundle, loaders
from edgeopt.bundle import Bundle
from edgeopt.model import select_keys
from edgeopt.pipeline import admit, data, decide, keys, pixels, planner, record
from edgeopt.pipeline.candidate import Brief
from edgeopt.pipeline.candidate import Stage as Stage
from edgeopt.pipeline.choose import choose_backend, settle_backend
from edgeopt.pipeline.request import Request as Request
from edgeopt.pipeline.request import check_data, limits
from edgeopt.target import load_target


def silent(title: str) -> AbstractContextManager[object]:
    """The default progress: none."""
    return contextlib.nullcontext()


def build(request: Request, stage: Stage = silent) -> Bundle:
    """Optimize, verify, measure and bundle a model.

    Raises:
        ModelError, TargetError, CalibrationError: bad input, before any work.
        QualityError: the budget needs a step that the quality gate refuses.
        BudgetError: nothing that was tried holds the budget.
        BundleError: the destination is not ours to replace, or cannot be written.
    """
    target = load_target(request.target)
    choice = choose_backend(target, request.backend)
    name = bundle.safe_name(request.name or loaders.default_name(request.model, request.weights))
    bundle.check_destination(request.out, name)
    with stage("load"):
        admitted = admit.load(request, target)
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
    sets = taken.sets
    if lock is not None:
        lock.check_data(sets.digests())
    kept = keys.journal_of(request, taken.model, sets, stage)
    with kept as notes, tempfile.TemporaryDirectory(prefix="edgeopt-") as folder:
        brief = Brief(
            request=request,
            name=name,
            target=target,
            admitted=admitted,
            taken=taken,
            budget=limits(request, target),
            exclude=frozenset(exclude),
            lock=lock,
            journal=notes,
        )
        decided = planner.decide_on(brief, choice, Path(folder), stage)
        with stage("write bundle"):
            finished = record.Finished(
                name=name,
                target=target,
                choice=decided.made.choice,
                sets=sets,
                budget=brief.budget,
                golden=decided.made.golden,
                measured=decided.made.measured,
                final=decided.final,
                frontier=decided.frontier,
            )
            return bundle.write(request.out, record.content(finished))
