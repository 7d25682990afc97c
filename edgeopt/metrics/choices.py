"""Right or wrong by sample: top-k over a row of scores, accuracy of a score against a threshold.

top-k: the label is among the k best. Ties count against: a class that scores as much as the label stands before it,
so a tie for the best place is wrong in top-1. NaN stands before every number.

accuracy: a score of ``threshold`` or more says class 1, anything else (NaN too) class 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgeopt.metrics.scorer import Label, Outputs, Scorer, pick, row_of_scores, unfit, weighted_mean, whole


def in_top_k(scores: np.ndarray, label: int, k: int) -> bool:
    """Whether fewer than ``k`` other classes score as much as the label; ``scores`` is ``float[classes]``."""
    own = scores[label]
    return not np.isnan(own) and int(np.count_nonzero(~(scores < own))) <= k


def best(scores: np.ndarray) -> int | None:
    """The only class with the greatest score; None for a tie or NaN."""
    found = np.flatnonzero(scores == np.max(scores))
    return int(found[0]) if len(found) == 1 else None


def top_k(*, k: int, output: str | None = None) -> Scorer:
    """Share of samples whose label is among the ``k`` best classes."""
    name = f"top{k}"

    def reduce(outputs: Outputs, feeds: Outputs, label: Label) -> tuple[float, float]:
        where, value = pick(outputs, output, name)
        scores = row_of_scores(value)
        if scores is None:
            raise unfit(name, where, value, "one row of scores")
        return float(in_top_k(scores, whole(label, name, len(scores)), k)), 1.0

    return Scorer(name=name, reduce=reduce, prepare=weighted_mean, weighted_mean=True, right=True)


def accuracy(*, threshold: float, output: str | None = None) -> Scorer:
    """Share of samples on whose side of the threshold the one score lies."""

    def reduce(outputs: Outputs, feeds: Outputs, label: Label) -> tuple[float, float]:
        where, value = pick(outputs, output, "accuracy")
        if value.size != 1:
            raise unfit("accuracy", where, value, "one score a sample (top1 is for a row of scores)")
        return float(int(value.reshape(-1)[0] >= threshold) == whole(label, "accuracy", 2)), 1.0

    return Scorer(
        name="accuracy",
        reduce=reduce,
        prepare=weighted_mean,
        weighted_mean=True,
        right=True,
        answer=side_of(threshold, output),
        agreement=f"decision at {threshold:g}",
    )


def side_of(threshold: float, output: str | None) -> Callable[[Outputs], bool | None]:
    """The side of the threshold on which the one score of a sample lies."""

    def answer(outputs: Outputs) -> bool | None:
        _, value = pick(outputs, output, "agreement")
        return bool(value.reshape(-1)[0] >= threshold) if value.size == 1 else None

    return answer
