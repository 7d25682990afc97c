"""The state of a walk down the ladder, and what its steps are tried with."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
import weakref
from collections.abc import Callable, Mapping
from types import ModuleType

import numpy as np

from edgeopt import quality
from edgeopt.budget import CALIB_MEMORY, MAX_FLOAT_MACS
from edgeopt.interpreter import Interpreter
from edgeopt.memory import Footprint, footprint
from edgeopt.metrics.interval import Z
from edgeopt.model import Model, digest, node_key
from edgeopt.pipeline import checks
from edgeopt.pipeline.data import Sets
from edgeopt.pipeline.journal import Journal
from edgeopt.plan import Point, Status, Step, StepResult
from edgeopt.quality import Quality
from edgeopt.quantize import Calibrated, Choice, QuantizedModel
from edgeopt.quantize.bare import without_activations
from edgeopt.quantize.empirical import measure_shifts
from edgeopt.quantize.placement import Table
from edgeopt.target import Budget, Target

FLIPS = 2.5
"""Up to two samples may flip by chance."""

FEW = 16
"""Samples that a look at weights alone takes: nothing but their rounding is seen, so few are enough."""

SHIFT_SAMPLES = 12
"""Samples that both models run on for each depth at which biases are corrected."""

REMEMBERED = 24_000_000
"""Bytes of the float model's outputs on the choice samples that are kept from one quantizer choice to the next."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench:
    """What the quantizer's steps are tried with.

    Attributes:
        exclude: node keys that stay in float.
        limits: the stated ones steer the search for what else does.
        memory: bytes that statistics may hold.
        max_float_macs: share of the multiply-accumulates that the search may keep in float.
        journal: remembers what takes long.
    """

    target: Target
    backend: ModuleType
    sets: Sets
    exclude: frozenset[str] = frozenset()
    limits: Budget = dataclasses.field(default_factory=Budget)
    memory: int = CALIB_MEMORY
    max_float_macs: float = MAX_FLOAT_MACS
    journal: Journal = dataclasses.field(default_factory=Journal)


@dataclasses.dataclass(kw_only=True)
class Search:
    """The state of a walk down the ladder.

    Attributes:
        outputs: of ``model`` on the probes, None until they are asked for.
        finished: ``model`` after the backend's own rewrites.
        seen: quality of ``quantized`` on the choice samples.
        best: of all that was kept, the one with the best answers.
        weights_db: the model last asked for, and its SQNR with exact activations.
        table: of the target's backend, which may round less than the runtime that judges on the way.
        seconds, float_seconds: of a call of ``quantized`` and of ``model``, a quick look; None in simulation.
        journal: remembers comparisons.
    """

    model: Model
    outputs: checks.Outputs | None
    table: Table
    finished: Model | None = None
    calibrated: Calibrated | None = None
    choice: Choice = dataclasses.field(default_factory=Choice)
    quantized: QuantizedModel | None = None
    seen: Quality | None = None
    best: Quality | None = None
    seconds: float | None = None
    float_seconds: float | None = None
    chosen: Callable[[], quality.Run] | None = None
    few: Callable[[], quality.Run] | None = None
    weights_db: tuple[QuantizedModel, float] | None = None
    costs: dict[int, tuple[weakref.ref[Model], Footprint]] = dataclasses.field(default_factory=dict)
    journal: Journal = dataclasses.field(default_factory=Journal)

    def expected(self, sets: Sets) -> checks.Outputs:
        """``outputs``; the probes are run where nobody has yet."""
        if self.outputs is None:
            self.outputs = checks.runs(self.finished or self.model, sets)
        return self.outputs

    def cost(self, model: Model) -> Footprint:
        """The footprint of a model, which no step edits in place; most steps ask for that of the one before."""
        known = self.costs.get(id(model))
        if known is None or known[0]() is not model:
            known = self.costs[id(model)] = (weakref.ref(model), footprint(model))
        return known[1]

    def timed(self, quantized: QuantizedModel, sets: Sets) -> tuple[Quality, float | None]:
        """Quality of a reduced model on the choice samples, by the metric of their set where they have labels.

        Returns:
            And the seconds of its fastest call: a quick look on this machine that decides nothing. None in simulation.

        Raises:
            ModelError: the runtime refuses the model, or fails on a sample.
        """

        def compared() -> tuple[Quality, float | None, float | None]:
            self.chosen = self.chosen or remembered(self.model)
            reference, test = _Watch(self.chosen()), _Watch(Interpreter(quantized.model, simulate=simulated).run)
            seen = quality.compare_all(
                reference,
                {"": test},
                sets.choice_samples(),
                labels=sets.choice_labels(),
                metric=sets.choice_metric(),
                groups=sets.choice_groups(),
            )[""]
            return seen, None if simulated else test.fastest, self.float_seconds or reference.fastest

        simulated = self.table.simulates(quantized.model.graph, quantized.placement.int8)
        found = self.journal.remember("compared", lambda: [*self._pair(quantized.model), simulated], compared)
        seen, seconds, self.float_seconds = found
        return seen, seconds

    def _pair(self, model: Model) -> list[str]:
        return [digest(self.model), digest(model)]

    def of_weights(self, quantized: QuantizedModel, sets: Sets) -> float:
        """SQNR with rounded weights and exact activations, dB, on ``FEW`` of the choice samples."""
        if self.weights_db is None or self.weights_db[0] is not quantized:

            def compared() -> float:
                self.few = self.few or remembered(self.model)
                test = Interpreter(without_activations(quantized.model)).run
                return quality.compare(self.few(), test, sets.choice_samples(FEW)).sqnr_db

            found = self.journal.remember("weights", lambda: self._pair(quantized.model), compared)
            self.weights_db = quantized, found
        return self.weights_db[1]


class _Watch:
    """Runs a model and remembers its fastest call, in seconds."""

    def __init__(self, run: quality.Run) -> None:
        self._run = run
        self.fastest = math.inf

    def __call__(self, feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        started = time.perf_counter()
        found = self._run(feeds)
        self.fastest = min(self.fastest, time.perf_counter() - started)
        return found


def remembered(model: Model) -> Callable[[], quality.Run]:
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


def shifts(calibrated: Calibrated, choice: Choice, bench: Bench) -> dict[str, np.ndarray]:
    """What the biases of ``calibrated``'s int8 operators have to take up, see ``quantize.empirical``."""
    nodes = sorted(node_key(node) for node in calibrated.placement.int8)
    return bench.journal.remember(
        "shifts",
        lambda: [bench.journal.scope, nodes, choice.ranges],
        lambda: measure_shifts(calibrated, choice, lambda: bench.sets.choice_samples(SHIFT_SAMPLES)),
    )


def gate(seen: Quality, limits: Budget) -> str | None:
    """``quality.gate`` on choice samples, few as they are: what may be chance is not held against a stated drop.

    One or two answers may flip; a metric that is no share of right answers may miss its limit by a standard error.
    """
    if limits.max_drop is not None:
        metric, allowed = seen.metric, max(limits.max_drop, FLIPS / max(seen.samples, 1))
        if metric is not None and seen.paired is None and metric.half_width is not None:
            allowed = limits.max_drop + metric.half_width / Z / metric.scale
        limits = dataclasses.replace(limits, max_drop=allowed)
    return quality.gate(seen, limits)


def described(seen: Quality) -> str:
    """What the choice samples say."""
    reason = f"SQNR {seen.sqnr_db:.1f} dB"
    if seen.metric is not None:
        reason += f", {seen.metric.name} {seen.metric.shown(seen.metric.artifact)}"
        reason += f" (float {seen.metric.shown(seen.metric.reference)})"
    if seen.agreement is not None:
        reason += f", agreement {seen.agreement.top1:.1%}"
    return f"{reason} on {seen.samples} calibration samples"


def result(
    step: Step,
    status: Status,
    reason: str,
    before: Footprint,
    after: Footprint,
    started: float,
    seen: Quality | None = None,
    found: Mapping[str, object] | None = None,
    points: tuple[Point, ...] = (),
    ratio: tuple[float, float, float] | None = None,
) -> StepResult:
    """What a step did; ``started`` is a ``time.perf_counter``, ``ratio`` the latency after/before, where timed."""
    return StepResult(
        step=step,
        status=status,
        reason=reason,
        before=before,
        after=after,
        drift=() if seen is None else seen.outputs,
        latency_ratio=ratio,
        seconds=time.perf_counter() - started,
        found=found or {},
        points=points,
    )
