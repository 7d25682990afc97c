"""Predicted memory for several batches and resolutions of one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType

from edgeopt.backends.shapes import shaped
from edgeopt.memory import Predicted
from edgeopt.model import Model
from edgeopt.target import Target

Shapes = Mapping[str, tuple[int, ...]]


def predictions(
    model: Model, backend: ModuleType, target: Target, shapes: Sequence[Shapes], *, quantized: bool = False
) -> list[tuple[Shapes, Predicted]]:
    """What the backend predicts for each set of input shapes, in order.

    Raises:
        ModelError: an input does not exist or has another rank.
    """
    return [(given, backend.predict(shaped(model, given), target, {}, quantized=quantized)) for given in shapes]


def batches(model: Model, sizes: Sequence[int]) -> list[Shapes]:
    """Input shapes for each batch: axis 0 of every input that leaves it open.

    An input of fixed batch keeps it; axes other than 0 that are open count as 1.
    """
    return [
        {
            spec.name: tuple(_length(dim, batch if axis == 0 else 1) for axis, dim in enumerate(spec.shape))
            for spec in model.inputs
            if spec.shape != ("...",)
        }
        for batch in sizes
    ]


def _length(dim: int | str | None, open_: int) -> int:
    return dim if isinstance(dim, int) else open_
