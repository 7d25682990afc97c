"""The statistics of every tensor asked for, from the float model over the calibration set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from edgeopt.errors import CalibrationError
from edgeopt.model import Model
from edgeopt.quantize.ranges import BINS, Statistics
from edgeopt.quantize.streaming import Feeds, Group, Item, Samples, in_passes

LISTED = 4
"""Tensors named in a warning."""

HELD = 2 * 8 * (BINS + 1)
"""Bytes of one tensor's histogram, of both signs."""


def collect(
    model: Model,
    values: Iterable[ir.Value],
    channel_axes: Mapping[str, int],
    samples: Samples,
    *,
    budget: int | None = None,
) -> dict[str, Statistics]:
    """Statistics by tensor name, in as many passes over the samples as the budget asks for.

    Neither the number of passes nor the order of samples changes them. Memory does not grow with the samples.

    Args:
        values: graph inputs or computed tensors of the main graph.
        channel_axes: axis along which means are kept, by tensor name.
        samples: feeds by input name; a function that starts them anew where one pass does not fit the budget.
        budget: bytes that statistics and one sample's tensors may hold; None for one pass.

    Raises:
        CalibrationError: no samples, or a tensor becomes NaN or infinite.
    """
    wanted = [str(v.name) for v in values]
    found: dict[str, Statistics] = {}

    def consume(group: Group, stream: Iterator[tuple[int, Feeds]]) -> int:
        own = {item.name: Statistics(channel_axis=channel_axes.get(item.name)) for item in group}
        for index, tensors in stream:
            for name, statistics in own.items():
                try:
                    statistics.add(tensors[name])
                except FloatingPointError as error:
                    raise not_finite(index, name, error) from error
        found.update(own)
        return sum(statistics.nbytes for statistics in own.values())

    in_passes(model, [Item(name, HELD) for name in wanted], samples, budget, consume)
    return {name: found[name] for name in wanted}


def unchanging(values: Iterable[ir.Value], statistics: Mapping[str, Statistics]) -> str | None:
    """What to say of computed tensors that held one value in the whole set, or None: any range fits them."""
    seen = [(str(v.name), statistics[str(v.name)]) for v in values if not v.is_graph_input()]
    same = [f"{name} ({s.minimum:g})" for name, s in seen if s.minimum == s.maximum]
    if not same:
        return None
    listed = ", ".join(same[:LISTED]) + (f" and {len(same) - LISTED} more" if len(same) > LISTED else "")
    return f"never changes in the calibration set: {listed}; its scale fits no other value"


def not_finite(index: int, name: str, error: Exception) -> CalibrationError:
    """What to say of a tensor that cannot be counted."""
    return CalibrationError(
        f"calibration sample {index}: tensor {name} of the float model holds {error}",
        remedy="The model overflows on it, or the preprocessing is not the one it was trained with.",
    )
