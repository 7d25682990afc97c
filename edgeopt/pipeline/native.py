"""The last step, where the profile asks for it: artifacts that hold the runtime's own graph of this machine."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from types import ModuleType

from edgeopt import quality
from edgeopt.backends import Artifact
from edgeopt.bundle import Lock
from edgeopt.errors import BundleError, ModelError
from edgeopt.interpreter import Interpreter
from edgeopt.memory import footprint
from edgeopt.model import Model
from edgeopt.pipeline import checks, frugal
from edgeopt.pipeline.data import Sets
from edgeopt.pipeline.search import result
from edgeopt.pipeline.steps import Outcome, locked_status
from edgeopt.plan import Status, Step
from edgeopt.target import Target

STEP = Step(
    kind="lower",
    name="native-graph",
    why="the runtime rewrites nothing when it loads: less time to load, less memory at the peak",
)


def step_for(target: Target) -> Step | None:
    """The step, where the profile asks for it."""
    return STEP if target.optimized == "native" else None


def apply(
    outcome: Outcome, backend: ModuleType, target: Target, sets: Sets, work: Path, lock: Lock | None = None
) -> Outcome:
    """Put the runtime's own graph in the place of each artifact whose outputs on the probes it gives.

    No timing decides: one model, release and kind of processor make one choice.

    Raises:
        BundleError: a lock holds another decision than the one here.
    """
    step = step_for(target)
    if step is None:
        return outcome
    started, cost = time.perf_counter(), footprint(outcome.float_model)
    locked = None if lock is None else locked_status(lock, step)
    artifacts = dict(outcome.artifacts)
    status: Status = "skipped"
    if locked in ("skipped", "rolled-back"):
        status, reason = locked, "as locked"
    elif not sets.probes:
        reason = "nothing of this network can be run here, so nothing can be compared"
    else:
        words = []
        folder = work / "native"
        folder.mkdir()
        for precision, artifact in outcome.artifacts.items():
            made, said = _tried(artifact, _source(outcome, precision), backend, target, sets, folder)
            words.append(f"{precision}: {said}")
            artifacts[precision] = made or artifact
            frugal.release(cost.weight_bytes)
        kept = any(artifact.portable is not None for artifact in artifacts.values())
        status, reason = "kept" if kept else "rolled-back", "; ".join(words)
    if locked is not None and status != locked:
        raise BundleError(
            f"the lock has {step.name} as {locked}, and here it is {status}: {reason}",
            remedy="Build again without --locked.",
        )
    row = result(step, status, reason, cost, cost, started)
    return dataclasses.replace(outcome, artifacts=artifacts, results=(*outcome.results, row))


def _source(outcome: Outcome, precision: str) -> Model:
    if outcome.quantized is not None and precision == outcome.quantized.precision:
        return outcome.quantized.model
    return outcome.float_model


def _tried(
    artifact: Artifact, model: Model, backend: ModuleType, target: Target, sets: Sets, folder: Path
) -> tuple[Artifact | None, str]:
    """The artifact with the runtime's graph in it, and what it is; None, and why not."""
    if not hasattr(backend, "native"):
        return None, f"{backend.NAME} has no such file"
    made: Artifact | str = backend.native(artifact, model, target, folder / artifact.path.name)
    if isinstance(made, str):
        return None, made
    libraries = model.origin.libraries
    reference = Interpreter(artifact.path, libraries=libraries)
    expected = [reference.run(feeds) for feeds in sets.probes]
    del reference
    try:
        test = Interpreter(made.path, libraries=libraries, optimize=made.optimize)
        outputs = [test.run(feeds) for feeds in sets.probes]
    except ModelError as refusal:
        made.path.unlink()
        return None, refusal.message
    error = max(quality.relative_error(a, b) for a, b in zip(expected, outputs))
    if not error <= checks.KERNEL_ROUNDING:
        made.path.unlink()
        allowed = f"{checks.KERNEL_ROUNDING:.0e}"
        return None, f"its outputs are {error:.2g} of their range from the portable file's, more than {allowed} allowed"
    words = f"largest difference {error:.1e}" if error else "the same outputs"
    return made, f"{words} as the portable file, {made.bytes - artifact.bytes:+,} bytes{_bound(made)}"


def _bound(made: Artifact) -> str:
    from runtime_bench.native import parse, words

    found = parse({"bound": dict(made.bound)})
    return f"; bound to {words(found.bound)}" if found is not None and made.bound else ""
