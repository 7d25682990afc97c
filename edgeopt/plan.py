"""Steps, what became of them, and the ladder: which steps to try, in which order, and why. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

from edgeopt.budget import CALIB_MEMORY, MAX_FLOAT_MACS
from edgeopt.memory import Footprint

MIN_GAIN_DB = 0.1
"""A refinement of the quantizer is kept from this gain in SQNR on: less is the noise of the samples."""

MIN_EMPIRICAL_GAIN_DB = 0.5
"""Empirical biases are fitted to the samples that judge them: they have to gain this."""

MIN_CLIPPING_GAIN_DB = 1.0
"""What is fitted to the samples themselves has to gain this: it raises SQNR on what was seen and can cost the metric on
what was not."""

Status = Literal["kept", "rolled-back", "skipped"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One change to try.

    Attributes:
        kind: ``"pass"`` (a rewrite that keeps semantics), ``"quantize"``, ``"finish"`` (a rewrite of all artifacts),
            ``"lower"`` (another file for the same graph), ``"option"`` (how the runtime runs it) or ``"candidate"``
            (all of them, for one runtime and one kind of reduction).
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
class Point:
    """One model on the curve from all in integers to all in float.

    Attributes:
        float_macs: share of the multiply-accumulates in float, 0 to 1.
        kept: node keys kept in float, in the order of the search.
        bytes: of the weights.
        metric: of the set that calibrates, None without labels.
        latency_ms: a quick look on the build host, None where none was taken.
        chosen: whether it is the one that goes on.
    """

    label: str
    float_macs: float
    kept: tuple[str, ...]
    bytes: int
    sqnr_db: float
    agreement: float | None
    metric: float | None
    holds: bool
    latency_ms: float | None = None
    chosen: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step did. ``latency_ratio`` is after/before as (ratio, low, high), None when not timed.

    Attributes:
        found: what a search decided, as plain values that a lock replays: ``{"float_nodes": [...]}``.
        points: the models that the search tried.
    """

    step: Step
    status: Status
    reason: str
    before: Footprint
    after: Footprint
    drift: tuple[Drift, ...]
    latency_ratio: tuple[float, float, float] | None
    seconds: float
    found: Mapping[str, object] = dataclasses.field(default_factory=dict)
    points: tuple[Point, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a build is asked to reduce to, and within which limits.

    Attributes:
        quantize: one of ``budget.QUANTIZE``.
        exclude: node keys that stay in float.
        floors: stated limits on quality, as plain values.
    """

    quantize: str = "auto"
    exclude: Sequence[str] = ()
    calib_memory: int = CALIB_MEMORY
    max_float_macs: float = MAX_FLOAT_MACS
    floors: Mapping[str, object] = dataclasses.field(default_factory=dict)


def ladder(
    rewrites: Sequence[Step],
    *,
    calibrated: bool,
    wanted: Wanted = Wanted(),
    finishing: Sequence[Step] = (),
) -> tuple[Step, ...]:
    """The steps in the order of their risk: rewrites that keep every value, the quantizer's, finishing rewrites.

    Args:
        rewrites: in their order.
        finishing: the backend's own; they run on the float and on the reduced model.
        calibrated: real calibration data exists. Without it there is no int8 activation.
    """
    exclude: dict[str, object] = {"exclude": sorted(wanted.exclude)}
    steps: tuple[Step, ...] = ()
    match wanted.quantize:
        case "auto" if calibrated:
            steps = (*_static(wanted, exclude), _reduced("dynamic", {**exclude, "fallback": True}))
        case "static" if calibrated:
            steps = _static(wanted, exclude)
        case "auto" | "static" | "none":
            pass
        case kind:
            steps = (_reduced(kind, exclude),)
    return (*rewrites, *steps, *finishing)


CANDIDATE = "candidate"
"""Kind of the steps that are whole candidates."""

_KINDS = {
    "float16": "half the bytes at next to no loss",
    "dynamic": "weights in a quarter of the bytes, and activations rounded by what they are",
    "weights-int8": "weights in a quarter of the bytes, nothing else is rounded",
    "weights-int4": "weights in an eighth of the bytes",
}
"""What is tried after ``auto``, in the order of what it may cost in quality."""


def candidates(backends: Sequence[str], asked: str = "auto", *, reducible: bool, known: bool) -> tuple[Step, ...]:
    """Whole candidates in the order in which a planner tries them: other runtimes before more loss.

    Args:
        backends: that can build here, the preferred one first.
        asked: kind of reduction; a person who names one gets no other.
        reducible: the model computes in float32 and can be run here.
        known: there are real inputs, so that what is lost can be seen.
    """
    kinds = [asked]
    if asked == "auto" and reducible:
        kinds += [kind for kind in _KINDS if known or kind != "dynamic"]
    return tuple(
        Step(
            kind=CANDIDATE,
            name=f"{backend} {kind}",
            params={"backend": backend, "quantize": kind},
            why=_KINDS.get(kind, "what a build does that nothing presses"),
        )
        for kind in kinds
        for backend in backends
    )


STATIC = "quantize-int8"
"""The step that gives activations their scales."""

MIXED = "mixed-precision"
"""The step that keeps the worst operators in float."""

_RANGES = {
    "percentile": "rare outliers stretch the grid for everything else",
    "mse": "the range with the smallest squared error: a little is cut off, everything else is rounded finer",
    "kl": "the range whose rounded distribution tells most about the real one",
}

_REDUCED = {
    "dynamic": ("dynamic-int8", "int8 weights; activations take their scales from every input as it comes"),
    "weights-int8": ("weights-int8", "weights in a quarter of the bytes, everything computes in float"),
    "weights-int4": ("weights-int4", "weights in an eighth of the bytes, everything computes in float"),
    "float16": ("float16", "half the bytes, and half the memory traffic where the processor computes in float16"),
    "bfloat16": ("bfloat16", "half the bytes, with the range of float32"),
}
REDUCED = {name: kind for kind, (name, _) in _REDUCED.items()}
"""Kinds of reduction by the name of their one step."""


def _reduced(kind: str, exclude: Mapping[str, object]) -> Step:
    name, why = _REDUCED[kind]
    return Step(kind="quantize", name=name, params=dict(exclude), why=why)


def _static(wanted: Wanted, exclude: Mapping[str, object]) -> tuple[Step, ...]:
    """Static int8, the refinements that each must gain something, and the search for what must stay in float."""

    def refine(name: str, why: str, gain: float = MIN_GAIN_DB, **change: object) -> Step:
        params = {"change": change, "min_gain_db": gain}
        return Step(kind="quantize", name=name, params=params, why=why, requires=STATIC)

    return (
        Step(
            kind="quantize",
            name=STATIC,
            params={"ranges": "min-max", "calib_memory": wanted.calib_memory, **exclude},
            why="weights and activations in a quarter of the bytes, integer kernels where the runtime has them",
        ),
        Step(
            kind="quantize",
            name="equalize",
            params={"min_gain_db": MIN_GAIN_DB},
            why="channels that share a scale use all of it",
            requires=STATIC,
        ),
        Step(
            kind="quantize",
            name="smooth-quant",
            params={"min_gain_db": MIN_GAIN_DB},
            why="loud channels behind a LayerNormalization hand a part of their range to the weights that read them",
            requires=STATIC,
        ),
        refine("bias-correction", "rounding weights shifts the mean output; the bias takes it back", bias="mean"),
        refine(
            "second-order-rounding",
            "what rounding one weight does to the output the others undo",
            rounding="second-order",
        ),
        refine("weight-scales", "a scale that cuts a few weights rounds all others finer", weight_scales="mse"),
        *(refine(f"ranges-{name}", why, MIN_CLIPPING_GAIN_DB, ranges=name) for name, why in _RANGES.items()),
        refine(
            "empirical-bias",
            "what roundings of activations shift on average, the next bias takes back",
            MIN_EMPIRICAL_GAIN_DB,
            bias="empirical",
        ),
        Step(
            kind="quantize",
            name=MIXED,
            params={"floors": dict(wanted.floors), "max_float_macs": wanted.max_float_macs},
            why="where a limit on quality does not hold, the operators that cost most of it stay in float",
            requires=STATIC,
        ),
    )


def next_step(steps: Sequence[Step], results: Sequence[StepResult]) -> Step | None:
    """The first step without a result whose requirement was kept; None at the end of the ladder."""
    status = {r.step.name: r.status for r in results}
    for step in steps:
        if step.name not in status and (step.requires is None or status.get(step.requires) == "kept"):
            return step
    return None
