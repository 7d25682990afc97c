"""What a build would try, with the bytes that shapes and types alone predict. No model is run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import NamedTuple

from edgeopt import calibration, passes, quantize
from edgeopt.backends.shapes import shaped
from edgeopt.memory import Footprint, Predicted, footprint
from edgeopt.model import Model, select_keys
from edgeopt.passes.infer_shapes import INFER_SHAPES
from edgeopt.pipeline import native
from edgeopt.pipeline.admit import load
from edgeopt.pipeline.choose import BackendChoice, choose_backend, settle_backend
from edgeopt.pipeline.request import Request, wish
from edgeopt.pipeline.steps import steps_of
from edgeopt.plan import STATIC, Step, ladder
from edgeopt.quantize.quantizer import fitting
from edgeopt.quantize.scheme import activation_qparams
from edgeopt.target import Target, load_target

Shapes = Mapping[str, tuple[int, ...]]


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
    """The whole ladder.

    Attributes:
        before: the model as loaded.
        memory: what the runtime is expected to need for the model at the end of it, for the shapes that it has and
            for each that was asked for; empty where the backend has no memory model.
    """

    target: Target
    choice: BackendChoice
    before: Footprint
    steps: tuple[Planned, ...]
    warnings: tuple[str, ...]
    memory: tuple[Foreseen, ...] = ()


class Foreseen(NamedTuple):
    """Memory for one set of input shapes (empty: those of the model); ``int8`` is None where nothing is quantized."""

    shapes: Shapes
    plain: Predicted
    int8: Predicted | None


def plan(request: Request, vary: Sequence[Shapes] = ()) -> StaticPlan:
    """Walk the ladder on shapes and types.

    Args:
        vary: other batches and resolutions, input name -> shape, that memory is predicted for.

    Raises:
        ModelError, TargetError, CalibrationError: bad input.
    """
    target = load_target(request.target)
    choice = choose_backend(target, request.backend)
    admitted = load(request, target)
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
    seen = plain = model
    for step in steps:
        if step.kind in ("pass", "finish"):
            applied = passes.apply(by_name[step.name], seen, target)
            seen = applied.model
            plain = seen if step.kind == "pass" else plain
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
    inferred = passes.apply(INFER_SHAPES, model).model
    return StaticPlan(
        target=target,
        choice=choice,
        before=footprint(inferred),
        steps=tuple(planned),
        warnings=admitted.warnings,
        memory=_memory(plain, seen, backend, target, vary),
    )


def _memory(
    plain: Model, last: Model, backend: ModuleType, target: Target, vary: Sequence[Shapes]
) -> tuple[Foreseen, ...]:
    """Predictions for the float model and for the last one, if that is another in its types."""
    if not hasattr(backend, "predict"):
        return ()
    quantized = any(node.op_type == "QuantizeLinear" for node in last.graph)

    def foreseen(model: Model, shapes: Shapes, *, int8: bool) -> Predicted:
        found: Predicted = backend.predict(shaped(model, shapes), target, {}, quantized=int8)
        return found

    return tuple(
        Foreseen(
            shapes=shapes,
            plain=foreseen(plain, shapes, int8=False),
            int8=foreseen(last, shapes, int8=True) if quantized else None,
        )
        for shapes in ({}, *vary)
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
