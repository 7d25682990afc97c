"""The planner: candidates one after another, until one holds the budget and the limits on quality.

What a build does that nothing presses comes first. Where that is over the budget, every other runtime of the target is
tried, then reductions that may cost more quality. With an objective all of them are tried, and the best one ships. What
is over and what was refused stays in the diary with its figures; memory and time never repeat exactly, so the choice
itself is written to the lock.
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeopt.backends.registry import BACKENDS, INSTALL
from edgeopt.bundle import Lock
from edgeopt.errors import BenchError, BudgetError, BundleError, EdgeoptError, ModelError, QualityError, ToolchainError
from edgeopt.memory import footprint
from edgeopt.pipeline import frontier
from edgeopt.pipeline.candidate import Brief, Candidate, Stage, make, relieved
from edgeopt.pipeline.choose import BackendChoice
from edgeopt.pipeline.decide import Final, choose
from edgeopt.pipeline.ending import lacking
from edgeopt.pipeline.frontier import Point
from edgeopt.pipeline.search import result
from edgeopt.plan import CANDIDATE, Step, StepResult, candidates
from edgeopt.report.text import size


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decided:
    """What ships.

    Attributes:
        made: the candidate that it belongs to.
        final: the decision, with the candidates that were tried at the end of its diary.
        frontier: what all of them reached, as plain values.
    """

    made: Candidate
    final: Final
    frontier: Mapping[str, Any]


@dataclasses.dataclass(kw_only=True)
class _Walk:
    """The state of a walk over the candidates. ``best`` is the one that would ship, with its precision and folder."""

    points: list[Point] = dataclasses.field(default_factory=list)
    rows: list[StepResult] = dataclasses.field(default_factory=list)
    best: tuple[Candidate, str, Path] | None = None
    refusal: QualityError | BudgetError | None = None
    diaries: dict[str, tuple[StepResult, ...]] = dataclasses.field(default_factory=dict)


def decide_on(brief: Brief, choice: BackendChoice, work: Path, stage: Stage) -> Decided:
    """Make candidates until one ships.

    Raises:
        BudgetError: none holds the budget; names the nearest, what it lacks and what would help.
        QualityError: the budget needs one that the gate refuses.
        BenchError: the objective needs figures, and nothing was measured.
    """
    objective = brief.request.objective
    if brief.lock is not None:
        return _replayed(brief, choice, brief.lock, work, stage)
    steps = _steps(brief, choice)
    folder, started = _folder(work, 0), time.perf_counter()
    first = make(brief, choice, brief.request.quantize, folder, stage)
    assert not isinstance(first, str)
    walk = _Walk()
    final = _look(walk, steps[0], first, folder, brief, stage, started)
    if objective is None and (final is not None or not _presses(walk)):
        if walk.best is None or final is None:
            raise _ended(walk, brief)
        made = walk.best[0]
        return Decided(made=made, final=final, frontier=_section(walk, made, final, objective))
    del first
    for number, step in enumerate(steps[1:], 1):
        final = _try(walk, step, brief, _folder(work, number), stage)
        if objective is None and final is not None:
            break
    if walk.best is None:
        raise _ended(walk, brief)
    made, precision, _ = walk.best
    if objective is not None:
        final = choose(made.judged, made.measured, brief.target, brief.budget, None, precision)
    assert final is not None
    return _concluded(walk, made, final, choice, objective)


def _steps(brief: Brief, choice: BackendChoice) -> tuple[Step, ...]:
    """The candidates, the one of a build that nothing presses first."""
    asked = brief.request.backend
    others = () if asked is not None else tuple(n for n in brief.target.backends if n != choice.name and n in BACKENDS)
    sets = brief.sets
    reducible = brief.admitted.quantizes and bool(sets.probes)
    known = sets.evaluation is not None or sets.calibration is not None
    return candidates((choice.name, *others), brief.request.quantize, reducible=reducible, known=known)


def _folder(work: Path, number: int) -> Path:
    folder = work / f"candidate-{number}"
    folder.mkdir(exist_ok=True)
    return folder


def _presses(walk: _Walk) -> bool:
    """Whether another candidate could help: figures are there, and they are over the budget."""
    return bool(walk.points) and all(check.measured is not None for check in walk.points[0].checks)


def _try(walk: _Walk, step: Step, brief: Brief, folder: Path, stage: Stage) -> Final | None:
    """Make one candidate and look at it; what it cannot be made for is its reason."""
    started = time.perf_counter()
    backend, quantize = str(step.params["backend"]), str(step.params["quantize"])
    made: Candidate | str | None = _pointless(walk, backend, brief)
    if made is None:
        choice = BackendChoice(backend=BACKENDS[backend], preferred=brief.target.backends[0], reason=None)
        try:
            made = make(brief, choice, quantize, folder, lambda title: stage(f"{step.name}: {title}"))
        except (ModelError, ToolchainError, QualityError, BenchError) as refusal:
            made = refusal.message
    if isinstance(made, str):
        shutil.rmtree(folder)
        cost = footprint(brief.model)
        walk.rows.append(result(step, "skipped", made, cost, cost, started))
        return None
    return _look(walk, step, made, folder, brief, stage, started)


def _pointless(walk: _Walk, backend: str, brief: Brief) -> str | None:
    """Why a candidate of a backend need not be made."""
    module, limit = BACKENDS[backend], brief.budget.peak_bytes
    if (reason := module.probe()) is not None:
        return str(reason)
    refuses = getattr(module, "refuses", None)
    seen = [point.runtime for point in walk.points if point.backend == backend]
    if not seen and refuses is not None and (reason := refuses(brief.model)) is not None:
        return str(reason)
    if limit is not None and (alone := [r for r in seen if r is not None and r >= limit]):
        return f"the runtime alone takes {size(min(alone))} of the {size(limit)} that memory may take"
    return None


def _look(
    walk: _Walk, step: Step, made: Candidate, folder: Path, brief: Brief, stage: Stage, started: float
) -> Final | None:
    """Note what a candidate reached and keep it where it is the best so far; the decision where it could ship."""
    objective = brief.request.objective
    fresh = made.choice.name not in {point.backend for point in walk.points}
    points = frontier.points_of(made, brief.budget, plain=fresh)
    if (heavy := _too_heavy(points, objective)) is not None:
        lighter = relieved(made, brief, heavy.precision, folder / "relieved", stage)
        if lighter.judged.outcome.artifacts != made.judged.outcome.artifacts:
            points += [
                p for p in frontier.points_of(lighter, brief.budget, plain=True) if p.precision == heavy.precision
            ]
        made = lighter
    outcome = made.judged.outcome
    walk.points += points
    walk.diaries[step.name] = outcome.results
    final, kept = None, False
    if objective is None:
        try:
            final = choose(made.judged, made.measured, brief.target, brief.budget, None)
            ships = final.default
            if not fresh and ships == outcome.plain:  # it was over the budget before, and is the same artifact
                final = None
            kept = final is not None
        except (BudgetError, QualityError) as refusal:
            walk.refusal = walk.refusal or refusal
    else:
        least = frontier.best(walk.points, objective)
        kept, ships = least is not None and least in points, "" if least is None else least.precision
    words = "; ".join(frontier.said(point) for point in points) or "nothing that was not there before"
    cost = footprint(outcome.float_model if outcome.quantized is None else outcome.quantized.model)
    walk.rows.append(result(step, "kept" if kept else "rolled-back", words, cost, cost, started))
    if kept:
        _drop(walk)
        walk.best = (made, ships, folder)
    else:
        shutil.rmtree(folder)
    return final


def _too_heavy(points: Sequence[Point], objective: str | None) -> Point | None:
    """The artifact of a candidate whose memory alone keeps it from shipping, or is what the objective asks for."""
    held = [point for point in points if point.refused is None and point.memory is not None]
    if not held:
        return None
    least = min(held, key=lambda point: point.excess)
    over = [check for check in least.checks if not check.ok]
    if objective == "memory" and not over:
        return least
    heavy = [check.name for check in over] == ["memory"] and (least.runtime or 0) < over[0].limit
    return least if heavy else None


def _drop(walk: _Walk) -> None:
    """The best so far is not the best any more: its files go, its row says so."""
    if walk.best is None:
        return
    name = f"{walk.best[0].choice.name} {walk.best[0].quantize}"
    shutil.rmtree(walk.best[2])
    walk.rows = [dataclasses.replace(r, status="rolled-back") if r.step.name == name else r for r in walk.rows]


def _concluded(walk: _Walk, made: Candidate, final: Final, choice: BackendChoice, objective: str | None) -> Decided:
    """The decision with the candidates in its diary; the one that ships holds what a lock needs."""
    if made.choice.name != choice.name:
        why = f"{choice.name} does not hold the budget" if objective is None else f"{objective} is better with it"
        made = dataclasses.replace(
            made, choice=dataclasses.replace(made.choice, preferred=choice.preferred, reason=why)
        )
    name = f"{made.choice.name} {made.quantize}"
    found = {"ships": final.default}
    rows = [dataclasses.replace(r, found=found) if r.step.name == name else r for r in walk.rows]
    final = dataclasses.replace(final, results=(*final.results, *rows))
    return Decided(made=made, final=final, frontier=_section(walk, made, final, objective))


def _section(walk: _Walk, made: Candidate, final: Final, objective: str | None) -> dict[str, Any]:
    name = f"{made.choice.name} {made.quantize}"
    mine = [p for p in walk.points if p.precision == final.default and p.backend == made.choice.name]
    chosen = next((p for p in reversed(mine) if p.candidate == name), mine[0] if mine else None)  # its options are last
    return frontier.section(walk.points, chosen, objective)


def _replayed(brief: Brief, choice: BackendChoice, lock: Lock, work: Path, stage: Stage) -> Decided:
    """The candidate that the lock has, and no other.

    Raises:
        BundleError: the lock's candidate is not one of those of this version, or its runtime is not here.
    """
    tried = [d for d in lock.decisions if d.kind == CANDIDATE]
    kept = next((d for d in tried if d.status == "kept"), None)
    quantize, ships = brief.request.quantize, None
    if kept is not None:
        backend, quantize = str(kept.params.get("backend")), str(kept.params.get("quantize"))
        ships = str(kept.found.get("ships"))
        reason = BACKENDS[backend].probe() if backend in BACKENDS else "this version does not build for it"
        if reason is not None:
            raise BundleError(
                f"the lock chose {backend}, which cannot build here: {reason}",
                remedy=INSTALL.get(backend, "Build again without --locked."),
            )
        reason = None if backend == choice.preferred else "as locked"
        choice = BackendChoice(backend=BACKENDS[backend], preferred=choice.preferred, reason=reason)
    made = make(brief, choice, quantize, _folder(work, 0), stage)
    if isinstance(made, str):
        raise BundleError(
            f"the lock kept {kept and kept.name}, and here there is nothing to reduce: {made}",
            remedy="Build again without --locked.",
        )
    final = choose(made.judged, made.measured, brief.target, brief.budget, lock, ships)
    cost = footprint(made.judged.outcome.float_model)
    rows = [
        result(
            Step(kind=d.kind, name=d.name, params=d.params),
            d.status,
            "as locked",
            cost,
            cost,
            time.perf_counter(),
            found=d.found,
        )
        for d in tried
    ]
    walk = _Walk(points=frontier.points_of(made, brief.budget, plain=True))
    final = dataclasses.replace(final, results=(*final.results, *rows))
    return Decided(made=made, final=final, frontier=_section(walk, made, final, brief.request.objective))


def _ended(walk: _Walk, brief: Brief) -> EdgeoptError:
    """Why nothing ships."""
    if walk.refusal is not None and (not _presses(walk) or frontier.nearest(walk.points) is None):
        return walk.refusal
    return lacking(walk.points, walk.rows, walk.diaries, brief)
