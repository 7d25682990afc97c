"""Rows of one metric while samples stream by, and the two figures at the end."""

from __future__ import annotations

import array
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edgeopt.errors import CalibrationError
from edgeopt.metrics.interval import half_width
from edgeopt.metrics.scorer import Label, Numbers, Outputs, Scorer


class Rows:
    """The rows of one model, 4 or 8 bytes a number; ``last`` is that of the newest sample."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self.width = 0
        self.last: Numbers = np.zeros(0)
        self._kept = array.array("f" if scorer.compact else "d")

    def add(self, outputs: Outputs, feeds: Outputs, label: Label) -> None:
        """Reduce one sample.

        Raises:
            CalibrationError: its outputs or its label are not what the metric takes.
        """
        row = np.asarray(self.scorer.reduce(outputs, feeds, label), np.float64)
        if self.width and len(row) != self.width:
            raise CalibrationError(
                f"metric {self.scorer.name}: gives {len(row)} numbers for a sample and {self.width} for those before."
            )
        self.width, self.last = len(row), row
        self._kept.extend(row.tolist())

    def all(self) -> Numbers:
        """``float64[samples, numbers]``."""
        kind = np.float32 if self.scorer.compact else np.float64
        return np.frombuffer(self._kept.tobytes(), kind).astype(np.float64).reshape(-1, max(self.width, 1))


class Judged(NamedTuple):
    """A metric of two models over the same samples; ``half_width`` is that of the interval of their difference."""

    reference: float
    artifact: float
    half_width: float | None


def judged(reference: Rows, artifact: Rows, groups: npt.NDArray[np.int64] | None = None) -> Judged:
    """Both figures and how sure their difference is.

    Raises:
        CalibrationError: the figure is not defined on these samples.
    """
    scorer, before, after = reference.scorer, reference.all(), artifact.all()
    ones = np.ones(len(before))
    figures = [float(scorer.prepare(rows)(ones)) for rows in (before, after)]
    if not all(math.isfinite(figure) for figure in figures):
        raise CalibrationError(
            f"metric {scorer.name} is not defined on these {len(before)} samples.",
            remedy="It needs labels that differ: both classes, or more than one score; give more samples with --eval.",
        )
    return Judged(figures[0], figures[1], half_width(scorer, before, after, groups))
