"""What a network takes of memory on a device, and whether that is within what is known of it. Nothing is run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import ModuleType

from edgeopt.budget import Budget
from edgeopt.memory import footprint
from edgeopt.model import Model
from edgeopt.target import Target

FLOAT, INT8 = "float", "int8"

Limit = tuple[str, int, str]
"""``("memory", bytes, where from)`` or ``("size", ...)``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Need:
    """Bytes that one form of the network takes, the runtime's own aside.

    Attributes:
        form: ``"float"`` as it computes without a quantizer, or ``"int8"`` with made-up ranges.
        model: weights and activations at the peak as the runtime holds them; None where a shape is not known.
        by: ``"the backend's memory model"`` or ``"weights and live activations"``.
        peak: operators at the peak, where the backend's model names them.
    """

    form: str
    weights: int
    model: int | None
    by: str
    peak: tuple[str, ...] = ()


def need(backend: ModuleType, target: Target, form: str, model: Model) -> Need:
    """What a form takes, by the backend's own model of memory where it has one."""
    cost = footprint(model)
    predict = getattr(backend, "predict", None)
    predicted = None if predict is None else predict(model, target, {}, quantized=form == INT8)
    if predicted is not None and predicted.total is not None:
        return Need(
            form=form,
            weights=cost.weight_bytes,
            model=int(predicted.total),
            by="the backend's memory model",
            peak=tuple(predicted.peak_operators),
        )
    live = cost.peak_activation_bytes
    return Need(
        form=form,
        weights=cost.weight_bytes,
        model=None if live is None else cost.weight_bytes + live,
        by="weights and live activations",
    )


def limits_of(target: Target, budget: Budget) -> tuple[Limit, ...]:
    """Limits that are stated by the request, else by the profile, else the board's memory where that is verified."""
    found = []
    for name, field in (("memory", "peak_bytes"), ("size", "artifact_bytes")):
        for stated, source in ((budget, "budget"), (target.budget, "budget of the profile")):
            limit = getattr(stated, field)
            if limit is not None:
                found.append((name, int(limit), source))
                break
    board = target.facts.get("memory_bytes")
    if board is not None and board.verified and not any(name == "memory" for name, _, _ in found):
        found.append(("memory", int(board.value), "the board has"))
    return tuple(found)


def fits(needs: Sequence[Need], limits: Sequence[Limit]) -> bool | None:
    """The model's share alone: over a limit it cannot fit; within it the runtime's own memory decides.

    Where a shape is open the weights alone may be over it.
    """
    if not limits or not needs:
        return None
    answers = [within(one, limits) for one in needs]
    if any(answers):
        return True
    return None if None in answers else False


def within(need: Need, limits: Sequence[Limit]) -> bool | None:
    """Whether one form is within every limit; None where its memory is not known."""
    least = need.weights if need.model is None else need.model
    if any((least if name == "memory" else need.weights) > limit for name, limit, _ in limits):
        return False
    return None if need.model is None and any(name == "memory" for name, _, _ in limits) else True
