"""What a build would try, with the bytes that shapes and types alone predict. No model is run."""

from __future__ import annotations

import dataclasses
from types import ModuleType

from edgeopt import calibration, loaders, passes, quantize
from edgeopt.memory import Footprint, footprint
from edgeopt.model import Model, select_keys
from edgeopt.passes.infer_shapes import INFER_SHAPES
from edgeopt.pipeline import native
from edgeopt.pipeline.admit import admit
from edgeopt.pipeline.choose import BackendChoice, choose_backend, settle_backend
from edgeopt.pipeline.request import Request, wish
from edgeopt.pipeline.steps import steps_of
from edgeopt.plan import STATIC, Step, ladder
from edgeopt.quantize.quantizer import fitting
from edgeopt.quantize.scheme import activation_qparams
from edgeopt.target import Target, load_target


@dataclasses.dataclass(frozen=True, kw_only=True)
class Planned:
    """One step of the ladder, before anything ran.

    Attributes:
        status: ``"applies"``, ``"nothing to do"``, or ``"needs results"`` where only a run can tell.
        reason: places it would change, or why it would change none.
        after: footprint of the model after it.
    """

    step: Step
    status: str
    reason: str
    after: Footprint


@dataclasses.dataclass(frozen=True, kw_only=True)
class StaticPlan:
    """The whole ladder. ``before`` is the model as loaded."""

    target: Target
    choice: BackendChoice
    before: Footprint
    steps: tuple[Planned, ...]
    warnings: tuple[str, ...]


def plan(request: Request) -> StaticPlan:
    """Walk the ladder on shapes and types.

    Raises:
        ModelError, TargetError, CalibrationError: bad input.
    """
    target = load_target(request.target)
    choice = choose_backend(target, request.backend)
    model = loaders.load(
        request.model,
        shapes=request.shapes,
        trust_pickle=request.trust_pickle,
        weights=request.weights,
        force_eval=request.force_eval,
    )
    admitted = admit(
        model,
        target,
        force_eval=request.force_eval,
        custom_ops=request.custom_ops,
        keep_custom_ops=request.keep_custom_ops,
        shapes=request.shapes,
    )
    model = admitted.model
    choice = settle_backend(choice, target, model, request.backend)
    backend = choice.backend
    exclude = select_keys(model, request.exclude)
    rewrites = (*passes.normalize(request.fold_limit), *passes.FUSIONS)
    finishing = backend.passes(target)
    steps = ladder(
        steps_of("pass", rewrites),
        calibrated=_calibrated(request, model) and admitted.quantizes,
        wanted=wish(request, model, exclude),
        finishing=steps_of("finish", finishing),
    )
    by_name = {p.name: p for p in (*rewrites, *finishing)}
    planned: list[Planned] = []
    seen = model
    for step in steps:
        if step.kind in ("pass", "finish"):
            applied = passes.apply(by_name[step.name], seen, target)
            seen = applied.model
            places = f"{applied.count} place{'s' if applied.count != 1 else ''}"
            reason = f"{places}; {applied.reason}" if applied.count and applied.reason else applied.reason or places
            status = "applies" if applied.count else "nothing to do"
        elif step.name == STATIC:
            int8 = quantized(seen, backend, target, exclude)
            status, reason = (
                ("nothing to do", "no operator has an integer kernel") if int8 is None else ("applies", int8[1])
            )
            seen = seen if int8 is None else int8[0]
        else:
            status, reason = "needs results", "kept if it gains on the calibration samples"
        planned.append(Planned(step=step, status=status, reason=reason, after=footprint(seen)))
    last = native.step_for(target)
    if last is not None:
        reason = "kept if its outputs are those of the portable file"
        planned.append(Planned(step=last, status="needs results", reason=reason, after=footprint(seen)))
    shaped = passes.apply(INFER_SHAPES, model).model
    return StaticPlan(
        target=target, choice=choice, before=footprint(shaped), steps=tuple(planned), warnings=admitted.warnings
    )


def _calibrated(request: Request, model: Model) -> bool:
    """Whether real data would calibrate; the embedded network has its own where none is given."""
    if request.calib is None and request.evaluate is None:
        return calibration.embedded_sets(model.origin.sha256()) is not None
    return request.calib not in (None, "random")


def quantized(model: Model, backend: ModuleType, target: Target, exclude: set[str]) -> tuple[Model, str] | None:
    """The Q/DQ model with made-up ranges: its bytes are those of the real one, its numbers are not."""
    placement = quantize.plan_placement(model.ir, backend.TABLE, exclude=exclude)
    if not placement.int8 and not placement.weight_only:
        return None
    grid = activation_qparams(-1.0, 1.0, target.int8.activation)
    made_up = quantize.Calibrated(
        model=model, table=backend.TABLE, scheme=target.int8, placement=placement, statistics={}
    )
    written = quantize.quantize_model(
        model,
        backend.TABLE,
        placement,
        {str(value.name): grid for value in placement.values},
        fitting(made_up, quantize.Choice()),
    )
    nodes = f"{len(placement.int8)} operators in int8"
    return written.model, f"{nodes}, {len(placement.stays_float)} in float; calibration can leave more in float"
