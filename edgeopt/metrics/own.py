"""A metric of the user's own: a function of one sample's outputs and label, and perhaps one of all its values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edgeopt.errors import CalibrationError
from edgeopt.foreign import users_code
from edgeopt.metrics.scorer import Better, Label, Numbers, Outputs, Scorer, Unit, Weighted, weighted_mean

MAX_ROW = 4096
"""Most numbers that a function may keep of one sample."""


def _read_only(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A view that the user's code cannot write to: the same array is judged otherwise too."""
    view = np.asarray(value).view()  # a scalar, too, arrives as an array
    view.flags.writeable = False
    return view


def own(
    *,
    name: str,
    function: Callable[..., Any],
    score: Callable[..., Any] | None,
    better: Better,
    unit: Unit,
    needs_label: bool,
) -> Scorer:
    """A metric from a user's code.

    Args:
        function: outputs of one sample by name, and its label (None without labels) -> a number, or a row of numbers,
            always of one length, where ``score`` is given.
        score: ``float64[samples, numbers]`` -> the figure; without it the figure is the mean.
    """

    def reduce(outputs: Outputs, feeds: Outputs, label: Label) -> Numbers:
        with users_code(f"metric {name}"):
            given = function({key: _read_only(value) for key, value in outputs.items()}, label)
        try:
            row = np.asarray(given, np.float64).reshape(-1)
        except (TypeError, ValueError) as problem:
            raise CalibrationError(f"metric {name}: gives no number for a sample ({problem}).") from problem
        if given is None or not np.isfinite(row).all():
            raise CalibrationError(f"metric {name}: gives {given!r:.80} for a sample, wanted a finite number.")
        if not 1 <= len(row) <= (1 if score is None else MAX_ROW):
            wanted = "one number" if score is None else f"1 to {MAX_ROW} numbers"
            raise CalibrationError(f"metric {name}: gives {len(row)} numbers for a sample, wanted {wanted}.")
        return np.append(row, 1.0) if score is None else row

    def prepare(rows: Numbers) -> Weighted:
        if score is None:
            return weighted_mean(rows)

        def of(weights: Numbers) -> float:
            with users_code(f"metric {name}, its score"):
                given = score(np.repeat(rows, weights.astype(np.int64), axis=0))
            try:
                return float(given)
            except (TypeError, ValueError) as problem:
                raise CalibrationError(f"metric {name}: its score is no number ({problem}).") from problem

        return of

    return Scorer(
        name=name,
        better=better,
        unit=unit,
        needs_label=needs_label,
        reduce=reduce,
        prepare=prepare,
        weighted_mean=score is None,
    )
