"""Run options that trade memory for time, and orders of the same nodes: tried one at a time and measured.

Each is a step of the kind ``option``. An artifact keeps one when its outputs on the probes stay what they were, when
runtime and model together take less memory at the peak in fresh processes, and when it does not become too slow. The
measured choice goes into the lock, which replays it without measuring.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np

from edgeopt import quality
from edgeopt.backends import Artifact, RunOption
from edgeopt.bundle import Decision, Lock
from edgeopt.errors import BenchError, BundleError, ToolchainError
from edgeopt.memory import footprint
from edgeopt.pipeline import checks, frugal, keys
from edgeopt.pipeline.data import Sets
from edgeopt.pipeline.journal import Journal
from edgeopt.pipeline.measure import Measured
from edgeopt.pipeline.search import result
from edgeopt.pipeline.steps import Outcome, locked_decision
from edgeopt.plan import Status, Step
from edgeopt.target import Target

KIND = "option"

LEAST_SHARE, LEAST_BYTES = 0.005, 200_000
"""An option is kept from so much less memory on: a share of what the budget counts, and bytes, both."""

SLOWEST = 2.0
"""An option is rolled back when the whole interval of its latency ratio lies above this."""

Look = Callable[[Mapping[str, Artifact], Sequence[Mapping[str, str]]], Measured]
"""Measures artifacts by name, in alternation, on samples: input name -> ``.npy`` file."""


def option_steps(target: Target, backend: ModuleType) -> tuple[Step, ...]:
    """The options of a backend as steps, those that cost no time first; none where the backend has none."""
    return tuple(
        Step(kind=KIND, name=option.name, params={"options": dict(option.options)}, why=option.why)
        for option in _options(backend, target)
    )


def apply(
    outcome: Outcome,
    steps: Sequence[Step],
    backend: ModuleType,
    target: Target,
    sets: Sets,
    work: Path,
    *,
    lock: Lock | None = None,
    precisions: Collection[str] | None = None,
    enough: int | None = None,
    known: Mapping[str, int] | None = None,
    slowest: float = SLOWEST,
    threads: int = 1,
    effort: str = "quick",
    seconds: float | None = None,
    look: Look | None = None,
    journal: Journal | None = None,
) -> Outcome:
    """Try the steps in order on the lowered artifacts, each against the best so far.

    Args:
        outcome: with its artifacts, the runtime's own graph in them where that is wanted.
        steps: from ``option_steps``; a lock needs all of them.
        work: folder for files; new ones go below it.
        precisions: artifacts to try; all when None.
        enough: bytes of runtime and model. An artifact that takes no more is left as it is.
        known: what artifacts were measured at before, by precision. A peak that is now one and now another counts as
            the higher.
        slowest: an option is rolled back when the whole interval of its latency ratio lies above this.
        threads, effort, seconds: of each measurement.
        look: measures; a fresh process for each figure unless given.
        journal: has what an earlier try of the build measured.

    Raises:
        BundleError: a lock holds another decision than the one here.
        BenchError, ToolchainError: a measurement failed.
    """
    if not steps:
        return outcome
    named = {option.name: option for option in _options(backend, target)}
    wanted = [p for p in outcome.artifacts if precisions is None or p in precisions]
    samples = _written(sets, work / "options" / "samples") if sets.probes else []
    measures = look or _looking(outcome, threads=threads, effort=effort, seconds=seconds)
    if journal is not None:
        measures = _remembering(measures, journal, {"effort": effort, "threads": threads, "seconds": seconds})
    bench = _Bench(outcome=outcome, sets=sets, samples=samples, look=measures, enough=enough, slowest=slowest)
    artifacts, results = dict(outcome.artifacts), []
    cost = footprint(outcome.float_model)
    charged = dict(known or {})
    for step in steps:
        started = time.perf_counter()
        decision = None if lock is None else locked_decision(lock, step)
        tries = {}
        for precision in wanted:
            out = work / "options" / step.name / artifacts[precision].path.name
            out.parent.mkdir(parents=True, exist_ok=True)
            tries[precision] = _try(named[step.name], precision, artifacts[precision], bench, charged, decision, out)
            artifacts[precision] = tries[precision].artifact
            frugal.release(cost.weight_bytes)
        kept = [precision for precision, tried in tries.items() if tried.status == "kept"]
        statuses = {tried.status for tried in tries.values()}
        status: Status = "kept" if kept else "rolled-back" if "rolled-back" in statuses else "skipped"
        if decision is not None and not kept:
            status = decision.status if decision.status != "kept" else status
        if decision is not None and (status != decision.status or kept != _locked(decision, wanted)):
            said = "; ".join(f"{precision}: {tried.said}" for precision, tried in tries.items())
            raise BundleError(
                f"the lock has {step.name} as {decision.status}, and here it is {status}: {said}",
                remedy="Build again without --locked.",
            )
        ratios = [ratio for tried in tries.values() if tried.status == "kept" and (ratio := tried.ratio) is not None]
        results.append(
            result(
                step,
                status,
                "; ".join(f"{precision}: {tried.said}" for precision, tried in tries.items()) or "no artifact",
                cost,
                cost,
                started,
                found={"kept": kept} if kept else None,
                ratio=max(ratios, default=None),
            )
        )
    return dataclasses.replace(outcome, artifacts=artifacts, results=(*outcome.results, *results))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Bench:
    """What an option is tried with."""

    outcome: Outcome
    sets: Sets
    samples: Sequence[Mapping[str, str]]
    look: Look
    enough: int | None
    slowest: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Tried:
    """What became of one artifact: the one to go on with, and why."""

    artifact: Artifact
    status: Status
    said: str
    ratio: tuple[float, float, float] | None = None


def _options(backend: ModuleType, target: Target) -> tuple[RunOption, ...]:
    found: tuple[RunOption, ...] = backend.run_options(target) if hasattr(backend, "run_options") else ()
    return found


def _locked(decision: Decision, wanted: Sequence[str]) -> list[str]:
    """The artifacts that kept an option by the lock, of those that are here."""
    kept = decision.found.get("kept", ())
    return [precision for precision in wanted if isinstance(kept, list | tuple) and precision in kept]


def _try(
    option: RunOption,
    precision: str,
    artifact: Artifact,
    bench: _Bench,
    charged: dict[str, int],
    decision: Decision | None,
    out: Path,
) -> _Tried:
    """One option on one artifact. ``charged`` has its bytes by precision, as last measured."""

    def stays(status: Status, said: str) -> _Tried:
        return _Tried(artifact=artifact, status=status, said=said)

    if decision is not None and precision not in _locked(decision, [precision]):
        return stays("skipped", "as locked")
    if not bench.samples:
        return stays("skipped", "nothing of this network can be run here, so nothing can be compared")
    if decision is None and bench.enough is not None:
        if precision not in charged and (now := bench.look({"before": artifact}, bench.samples).peak_bytes("before")):
            charged[precision] = now
        if precision in charged and charged[precision] <= bench.enough:
            return stays("skipped", f"{charged[precision]:,} bytes of runtime and model are within the budget")
    made = option.make(artifact, bench.sets.probes[0], out)
    if isinstance(made, str):
        return stays("skipped", made)
    said = _differs(artifact, made, bench)
    if said is not None:
        return stays("rolled-back", said)
    if decision is not None:
        return _Tried(artifact=made, status="kept", said="as locked")
    measured = bench.look({"before": artifact, "after": made}, bench.samples)
    before, after = measured.peak_bytes("before"), measured.peak_bytes("after")
    if before is None or after is None:
        return stays("rolled-back", "this machine does not tell how much memory it takes")
    ratio = measured.ratio("before", "after")
    figures = f"{before:,} to {after:,} bytes of runtime and model"
    if ratio is not None:
        figures += f", latency {ratio[0]:.2f}x ({ratio[1]:.2f} to {ratio[2]:.2f})"
    charged[precision] = max(before, charged.get(precision, 0))
    if before - after < max(LEAST_BYTES, LEAST_SHARE * before):
        return stays("rolled-back", f"it saves too little: {figures}")
    if ratio is not None and ratio[1] > bench.slowest:
        return stays("rolled-back", f"more than {bench.slowest:g} times as slow: {figures}")
    charged[precision] = after
    return _Tried(artifact=made, status="kept", said=figures, ratio=ratio)


def _differs(before: Artifact, after: Artifact, bench: _Bench) -> str | None:
    """What speaks against an artifact on the probes, run as on the device; None where nothing does."""
    from runtime_bench import BenchFailure
    from runtime_bench.runners import get

    runner, shared = get(before.runner), _libraries(bench.outcome)
    runs: list[list[Mapping[str, np.ndarray]]] = []
    try:
        for artifact in (before, after):
            kept = {key: value for key, value in artifact.options.items() if key != "heap"}  # of the whole process
            loaded = runner.load(str(artifact.path), {**kept, **shared})
            runs.append([loaded.infer(feeds) for feeds in bench.sets.probes])
            del loaded
    except BenchFailure as error:
        return f"with it {error}"
    moved = max(quality.relative_error(a, b) for a, b in zip(*runs))
    if moved <= checks.KERNEL_ROUNDING:
        return None
    return f"its outputs move by {moved:.2g} of their range, more than {checks.KERNEL_ROUNDING:.0e} allowed"


def _libraries(outcome: Outcome) -> dict[str, str]:
    library = next(iter(outcome.original.origin.libraries), None)
    return {} if library is None else {"custom_ops": str(library.resolve())}


def _written(sets: Sets, folder: Path) -> list[Mapping[str, str]]:
    """The probes as files, for processes that read them."""
    folder.mkdir(parents=True)
    rows: list[Mapping[str, str]] = []
    for number, feeds in enumerate(sets.probes):
        row = {}
        for index, spec in enumerate(sets.inputs):
            path = folder / f"{number:03d}.{index}.npy"
            np.save(path, np.ascontiguousarray(feeds[spec.name]).reshape(feeds[spec.name].shape), allow_pickle=False)
            row[spec.name] = str(path)
        rows.append(row)
    return rows


def _remembering(look: Look, journal: Journal, how: Mapping[str, object]) -> Look:
    """The same, but for what the journal has."""
    return lambda artifacts, samples: journal.remember(
        "option", lambda: keys.of_measurement(artifacts, samples, how), lambda: look(artifacts, samples)
    )


def _looking(outcome: Outcome, *, threads: int, effort: str, seconds: float | None) -> Look:
    def look(artifacts: Mapping[str, Artifact], samples: Sequence[Mapping[str, str]]) -> Measured:
        from runtime_bench import BenchFailure, Subject, measure

        subjects = [
            Subject(
                name=name,
                path=str(artifact.path),
                sha256=artifact.sha256,
                runner=artifact.runner,
                options={**artifact.options, **_libraries(outcome)},
                data=None if artifact.data is None else str(artifact.data.path),
            )
            for name, artifact in artifacts.items()
        ]
        try:
            return Measured(record=measure(subjects, samples, effort=effort, threads=threads, seconds=seconds))
        except BenchFailure as error:
            kind = ToolchainError if error.code == ToolchainError.exit_code else BenchError
            raise kind(
                f"the measurement of a run option failed: {error}",
                remedy="Run `edgeopt doctor`; without a budget for memory no run option is tried.",
            ) from error

    return look
