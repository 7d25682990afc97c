"""What a user asks for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set
from pathlib import Path

from edgeopt.budget import CALIB_MEMORY, MAX_FLOAT_MACS
from edgeopt.errors import CalibrationError, ModelError, did_you_mean
from edgeopt.model import Model
from edgeopt.pipeline.data import Sets
from edgeopt.plan import Wanted
from edgeopt.target import Budget, Target


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
        resume: go on from what an earlier try of this build found out, and keep that until one ends well.
        work: folder for the journal of a build; beside ``out`` when None.
        weights: ``.pth`` or ``.safetensors`` file for a factory ``package.module:function``.
        force_eval: take a network captured in training mode as if it had been exported in eval mode.
        custom_ops: shared library with the custom operators of the model.
        keep_custom_ops: build although operators are unknown; what cannot be run is marked unverified.
        input_type: ``"uint8"`` folds the set's arithmetic into the graph, so that raw pixels are the input.
        input_layout: axes of that input, ``"NHWC"`` or ``"NCHW"``; the model's own when None.
        input_color: order of its channels, ``"rgb"`` or ``"bgr"``; RGB when None.
        fold_limit: bytes that a folded constant may have over what it is made from.
        backend: build for this one, whatever the target lists; the first of its list that is here when None.
        quantize: one of ``plan.QUANTIZE``.
        calib_memory: bytes that the statistics of a calibration may hold.
        max_float_macs: share of the multiply-accumulates that the search may keep in float.
        objective: one of ``budget.OBJECTIVES``: try everything, and ship what is best by it; None stops at the first
            that holds the budget.
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
    resume: bool = False
    work: Path | None = None
    trust_pickle: bool = False
    weights: Path | None = None
    force_eval: bool = False
    custom_ops: Path | None = None
    keep_custom_ops: bool = False
    input_type: str | None = None
    input_layout: str | None = None
    input_color: str | None = None
    fold_limit: int | None = None
    backend: str | None = None
    quantize: str = "auto"
    calib_memory: int = CALIB_MEMORY
    max_float_macs: float = MAX_FLOAT_MACS
    objective: str | None = None


def limits(request: Request, target: Target) -> Budget:
    """The limits of the request, and where it states none those of the target that this build can check."""
    own = target.budget
    if request.effort == "none":
        own = dataclasses.replace(own, peak_bytes=None, latency_ms=None, load_ms=None)
    return request.budget.over(own)


def wish(request: Request, model: Model, exclude: Set[str]) -> Wanted:
    """What the quantizer is asked for.

    Raises:
        ModelError: a limit on the error of an output that the model does not have.
    """
    names = [spec.name for spec in model.outputs]
    for name in request.budget.max_error:
        if name not in names:
            raise ModelError(
                f'--max-error names the output "{name}", which the model does not have.{did_you_mean(name, names)}',
                remedy=f"Its outputs: {', '.join(names)}.",
            )
    return Wanted(
        quantize=request.quantize,
        exclude=sorted(exclude),
        calib_memory=request.calib_memory,
        max_float_macs=request.max_float_macs,
        floors=request.budget.floors,
    )


def check_data(request: Request, sets: Sets) -> None:
    """Refuse int8 activations that nothing calibrates, or that nothing judges.

    Raises:
        CalibrationError: they were asked for without real inputs.
    """
    kind, judged = request.quantize, sets.evaluation is not None or sets.calibration is not None
    if (kind == "static" and sets.calibration is None) or (kind == "dynamic" and not judged):
        raise CalibrationError(
            f"--quantize {kind} rounds activations, and there are no real inputs to "
            f"{'calibrate' if kind == 'static' else 'judge'} it on",
            remedy="Give a set with --calib, or take --quantize weights-int8, which needs none.",
        )
