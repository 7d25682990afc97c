"""What a task metric is: a row of numbers from each sample, and one figure from all rows.

Outputs are never kept. A metric reduces the outputs of one sample and its label to a short row; the figure is a
function of the rows and of a weight for each, so that a resample is a vector of weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from edgeopt.errors import CalibrationError

Outputs = Mapping[str, np.ndarray]
Label = int | float | str | tuple[int, ...] | np.ndarray | None
Numbers = npt.NDArray[np.float64]
Weighted = Callable[[Numbers], float]
"""The figure as a function of weights, ``float64[n]``, one for each row."""

Better = Literal["higher", "lower"]
Unit = Literal["share", "index", "number"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scorer:
    """One metric, ready to judge.

    Attributes:
        name: as it is shown.
        better: which direction is good.
        unit: ``"share"`` is shown in percent and compared in points; an ``"index"`` without a unit, at most 1 (a
            correlation, an area), is shown and compared as it is; a ``"number"`` is compared with the float model's
            own.
        needs_label: whether every sample has a label.
        reduce: outputs, inputs and label of one sample -> its row; always of one length.
        prepare: rows ``float64[n, k]`` -> the figure as a function of weights. NaN where it is not defined.
        weighted_mean: the rows are ``(value, weight)`` and the figure is the weighted mean of the values.
        right: the values are 1 for right and 0 for wrong, the weights 1.
        answer: the decision in the outputs of one sample; None where the outputs hold none.
        show: an answer in words; None where it speaks for itself.
        agreement: what it means that two answers agree.
        units: for each sample the unit that is resampled, where the metric itself says so.
        compact: rows are kept in 32 bits.
    """

    name: str
    reduce: Callable[[Outputs, Outputs, Label], Sequence[float] | np.ndarray]
    prepare: Callable[[Numbers], Weighted]
    better: Better = "higher"
    unit: Unit = "share"
    needs_label: bool = True
    weighted_mean: bool = False
    right: bool = False
    answer: Callable[[Outputs], Hashable | None] | None = None
    show: Callable[[Any], str] | None = None
    agreement: str = "top-1"
    units: npt.NDArray[np.int64] | None = None
    compact: bool = False


def weighted_mean(rows: Numbers) -> Weighted:
    """Rows ``(value, weight)`` -> ``sum(w weight value) / sum(w weight)``; NaN without weight."""

    def of(weights: Numbers) -> float:
        total = float(weights @ rows[:, 1])
        return float(weights @ (rows[:, 0] * rows[:, 1])) / total if total > 0 else float("nan")

    return of


def pick(outputs: Outputs, output: str | None, metric: str) -> tuple[str, np.ndarray]:
    """The output that a metric judges, the first when none is named.

    Raises:
        CalibrationError: the model has no such output.
    """
    name = next(iter(outputs)) if output is None else output
    if name not in outputs:
        raise CalibrationError(
            f'metric {metric}: the model has no output "{name}".', remedy=f"Its outputs: {', '.join(outputs)}."
        )
    return name, np.asarray(outputs[name])


def row_of_scores(value: np.ndarray) -> np.ndarray | None:
    """Scores of one sample as ``float64[classes]``, at least two; None for any other shape."""
    return value.reshape(-1).astype(np.float64) if value.size == max(value.shape, default=0) > 1 else None


def unfit(metric: str, name: str, value: np.ndarray, wanted: str) -> CalibrationError:
    """The error for an output that the metric cannot judge."""
    got = f"{value.dtype.name}[{', '.join(map(str, value.shape))}]"
    return CalibrationError(
        f"metric {metric}: wants {wanted}, and output {name} is {got}.",
        remedy='Name the right output: metric = { name = "...", output = "..." }, or take another metric.',
    )


def whole(label: Label, metric: str, classes: int) -> int:
    """A label as a class index below ``classes``.

    Raises:
        CalibrationError: it is none.
    """
    if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < classes:
        raise CalibrationError(
            f"metric {metric}: a label is {label!r:.40}, and the model has {classes} classes, counted from 0."
        )
    return label
