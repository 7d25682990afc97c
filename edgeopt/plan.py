"""Steps, what became of them, and the ladder: which steps to try, in which order, and why. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

from edgeopt.memory import Footprint

MIN_GAIN_DB = 0.1
"""A refinement of the quantizer is kept from this gain in SQNR on: less is the noise of the samples."""

MIN_CLIPPING_GAIN_DB = 1.0
"""Clipping has to gain this: it raises SQNR on what was seen and can cost the metric on what was not."""

Status = Literal["kept", "rolled-back", "skipped"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One change to try.

    Attributes:
        kind: ``"pass"`` (a rewrite that keeps semantics), ``"quantize"`` or ``"finish"`` (a rewrite of all artifacts).
        params: plain JSON values.
        requires: name of the step that must have been kept before this one makes sense.
    """

    kind: str
    name: str
    params: Mapping[str, object] = dataclasses.field(default_factory=dict)
    why: str = ""
    requires: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drift:
    """Error of one output (or one slice of it) of the changed model against the float one.

    Attributes:
        output: name of the graph output, ``name[axis1=k]`` for a slice.
        sqnr_db: 10 log10(sum ref^2 / sum (ref - test)^2); infinite (None in JSON) when equal.
        cosine: cosine similarity over all samples.
        max_abs: largest absolute difference.
    """

    output: str
    sqnr_db: float
    cosine: float
    max_abs: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step did. ``latency_ratio`` is after/before as (ratio, low, high), None when not timed."""

    step: Step
    status: Status
    reason: str
    before: Footprint
    after: Footprint
    drift: tuple[Drift, ...]
    latency_ratio: tuple[float, float, float] | None
    seconds: float


def ladder(
    rewrites: Sequence[Step],
    *,
    calibrated: bool,
    exclude: Sequence[str] = (),
    finishing: Sequence[Step] = (),
) -> tuple[Step, ...]:
    """The steps in the order of their risk: rewrites that keep every value, int8, its refinements, finishing rewrites.

    Args:
        rewrites: in their order.
        finishing: the backend's own; they run on the float and on the int8 model.
        calibrated: real calibration data exists. Without it there is no int8 activation.
        exclude: node keys that stay in float.
    """
    if not calibrated:
        return (*rewrites, *finishing)
    int8 = Step(
        kind="quantize",
        name="quantize-int8",
        params={"ranges": "min-max", "exclude": sorted(exclude)},
        why="weights and activations in a quarter of the bytes, integer kernels where the runtime has them",
    )
    bias = Step(
        kind="quantize",
        name="bias-correction",
        params={"min_gain_db": MIN_GAIN_DB},
        why="rounding weights shifts the mean output; the bias takes it back",
        requires=int8.name,
    )
    percentile = Step(
        kind="quantize",
        name="percentile-ranges",
        params={"percentile": 99.999, "min_gain_db": MIN_CLIPPING_GAIN_DB},
        why="rare outliers stretch the grid for everything else",
        requires=int8.name,
    )
    return (*rewrites, int8, bias, percentile, *finishing)


def next_step(steps: Sequence[Step], results: Sequence[StepResult]) -> Step | None:
    """The first step without a result whose requirement was kept; None at the end of the ladder."""
    status = {r.step.name: r.status for r in results}
    for step in steps:
        if step.name not in status and (step.requires is None or status.get(step.requires) == "kept"):
            return step
    return None
