"""Raw pixels in: the preprocessing of the set becomes part of the model, checked on real inputs, before the ladder."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from edgeopt import quality, quantize
from edgeopt.bundle import Lock
from edgeopt.calibration.raw import Pixels, pixels_of, raw_set
from edgeopt.calibration.stream import samples
from edgeopt.errors import BundleError, CalibrationError, QualityError
from edgeopt.interpreter import Interpreter
from edgeopt.memory import footprint
from edgeopt.model import Model
from edgeopt.passes.absorb_input import absorb_input
from edgeopt.pipeline.checks import KERNEL_ROUNDING
from edgeopt.pipeline.data import Sets, spread
from edgeopt.pipeline.search import result
from edgeopt.pipeline.steps import Outcome
from edgeopt.plan import Step, StepResult

STEP = "absorb-input"

Stage = Callable[[str], AbstractContextManager[object]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """What the user asks of the inputs: ``kind`` None keeps them; layout and color None are the defaults."""

    kind: str | None = None
    layout: str | None = None
    color: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Taken:
    """A model and its sets, both with raw pixels as inputs where that was asked for; ``result`` None where not."""

    model: Model
    sets: Sets
    result: StepResult | None = None

    def conclude(self, outcome: Outcome) -> Outcome:
        """The outcome with the step in its diary, which says where a float copy of a frame remains."""
        if self.result is None:
            return outcome
        said = [_copies("float32", quantize.float_copies(outcome.float_model))]
        if outcome.quantized is not None:
            said.append(_copies(outcome.quantized.precision, quantize.float_copies(outcome.quantized.model)))
        row = dataclasses.replace(self.result, reason="; ".join([self.result.reason, *said]))
        return dataclasses.replace(outcome, results=(row, *outcome.results))


def take(model: Model, sets: Sets, asked: Asked, lock: Lock | None, stage: Stage) -> Taken:
    """Put the preprocessing into the graph and take it out of the sets.

    Raises:
        CalibrationError: no set states the arithmetic, the two sets state different ones, or a sample is no bytes.
        QualityError: the model with its preprocessing does not do what the two did apart.
        BundleError: a lock was made with other inputs.
    """
    if asked.kind is None:
        if asked.layout or asked.color:
            raise CalibrationError(
                "a layout or colour order of raw pixels is asked for, and no raw pixels",
                remedy="Give --input uint8 with --input-layout and --input-color.",
            )
        _check_lock(lock, None)
        return Taken(model=model, sets=sets)
    with stage("take raw pixels in"):
        return _taken(model, sets, asked, lock)


def _taken(model: Model, sets: Sets, asked: Asked, lock: Lock | None) -> Taken:
    started = time.perf_counter()
    given = [found for found in (sets.calibration, sets.evaluation) if found is not None]
    if not given:
        raise CalibrationError(
            "--input uint8 needs a set that says how raw pixels become the input",
            remedy="Give --calib with scale, mean, std, layout and color; docs/uint8-input.md shows one.",
        )
    stated = [pixels_of(found, model.inputs, layout=asked.layout, color=asked.color) for found in given]
    pixels = stated[0]
    if pixels != stated[-1]:
        raise CalibrationError(
            f"the calibration set {given[0].name} and the evaluation set {given[-1].name} state different arithmetic: "
            f"{_words(pixels)} and {_words(stated[-1])}",
            remedy="Both sets have to prepare pixels as the training did.",
        )
    params: dict[str, object] = {"input": asked.kind, "pixels": [dataclasses.asdict(p) | _lists(p) for p in pixels]}
    _check_lock(lock, params)
    changed = absorb_input(model, pixels)
    raw = {id(found): raw_set(found, pixels) for found in given}
    fed = dataclasses.replace(
        sets,
        inputs=changed.inputs,
        calibration=None if sets.calibration is None else raw[id(sets.calibration)],
        evaluation=None if sets.evaluation is None else raw[id(sets.evaluation)],
    )
    probed = raw[id(given[-1])]
    fed = dataclasses.replace(fed, probes=spread(probed, changed.inputs), warnings=(*sets.warnings, _baseline(pixels)))
    for found in raw.values():
        for _ in samples(found, changed.inputs):
            pass  # every sample must be bytes, before any work
    step = Step(kind="pass", name=STEP, params=params, why="a camera frame is the input: nothing to prepare in float")
    reason = f"{_words(pixels)}; {_verified(model, changed, sets, fed)}"
    row = result(step, "kept", reason, footprint(model), footprint(changed), started)
    return Taken(model=changed, sets=fed, result=row)


def _verified(model: Model, changed: Model, sets: Sets, fed: Sets) -> str:
    """Outputs for raw pixels against outputs for what the set makes of the same pixels."""
    before, after = Interpreter(model), Interpreter(changed)
    pairs = zip(sets.probes, fed.probes, strict=True)
    error = max(quality.relative_error(before.run(plain), after.run(raw)) for plain, raw in pairs)
    if error > KERNEL_ROUNDING:
        raise QualityError(
            f"the model with its preprocessing in the graph differs by {error:.2g} of the outputs' range from the "
            f"model fed as its set says, more than {KERNEL_ROUNDING:.0e} allowed",
            remedy="This is a bug in edgeopt, or the model is unstable; build without --input and report it.",
        )
    return f"{f'largest change {error:.1e}' if error else 'no change'} on real inputs"


def _check_lock(lock: Lock | None, params: dict[str, object] | None) -> None:
    if lock is None:
        return
    locked = next((dict(d.params) for d in lock.decisions if d.name == STEP), None)
    if locked != params:
        raise BundleError(
            "the lock was made with other inputs: "
            + ("it takes raw pixels in as this build does not" if locked else "it takes no raw pixels in"),
            remedy="Give the --input options and the sets of that build, or build without --locked.",
        )


def _lists(pixels: Pixels) -> dict[str, object]:
    """Tuples as they come back from JSON."""
    return {"mean": list(pixels.mean), "std": list(pixels.std)}


def _words(pixels: tuple[Pixels, ...]) -> str:
    parts = []
    for p in pixels:
        color = "" if p.color is None else f" {p.color}" + (f" for {p.inner_color}" if p.swapped else "")
        axes = p.layout + (f" for {p.inner_layout}" if p.layout != p.inner_layout else "")
        mean, std = (", ".join(f"{v:g}" for v in values) for values in (p.mean, p.std))
        parts.append(f"{p.name}: uint8 {axes}{color}, (raw * {p.scale:g} - [{mean}]) / [{std}]")
    return "; ".join(parts)


def _baseline(pixels: tuple[Pixels, ...]) -> str:
    names = ", ".join(p.name for p in pixels)
    return (
        f"raw pixels are the input ({names}): original is the model with its preprocessing in the graph, fed the same "
        "bytes; what a program spends on preparing frames for the model as it came is not measured"
    )


def _copies(precision: str, found: dict[str, int | None]) -> str:
    if not found:
        return f"{precision}: no float copy of a frame"
    sizes = ", ".join(
        f"{name}: {'of unknown size' if size is None else f'{size:,} bytes a frame'}" for name, size in found.items()
    )
    why = (
        "its first operators compute in float"
        if precision == "float32"
        else ("the pixels do not reach an integer operator alone and on their grid")
    )
    return f"{precision}: a float copy of a frame remains ({sizes}) because {why}"
