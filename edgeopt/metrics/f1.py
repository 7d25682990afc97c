"""F1: the harmonic mean of precision and recall, ``2 TP / (2 TP + FP + FN)``; 0 where nothing is there to find or is
found.

binary: of the positive class. macro: the plain mean over the classes that occur among labels or answers. A row of
scores answers with its greatest; a tie or NaN is an answer of no class. One score answers 1 at the threshold or above,
else 0.
"""

from __future__ import annotations

import numpy as np

from edgeopt.metrics.choices import best, side_of
from edgeopt.metrics.scorer import Label, Numbers, Outputs, Scorer, Weighted, pick, row_of_scores, unfit, whole

NONE = -1.0
"""The answer that is no class."""


def f1_by_class(answers: np.ndarray, labels: np.ndarray, weights: Numbers, classes: np.ndarray) -> Numbers:
    """F1 of each class; ``answers`` and ``labels`` are ``[n]``."""
    found = np.zeros(len(classes))
    for place, value in enumerate(classes):
        said, true = answers == value, labels == value
        hits = float(weights @ (said & true))
        total = float(weights @ said) + float(weights @ true)
        found[place] = 2 * hits / total if total > 0 else 0.0
    return found


def f1(*, average: str, threshold: float, positive: int, output: str | None = None) -> Scorer:
    """F1 of the ``positive`` class (``average="binary"``) or the mean over classes (``"macro"``)."""
    name = "F1" if average == "binary" else "macro F1"

    def reduce(outputs: Outputs, feeds: Outputs, label: Label) -> tuple[float, float]:
        where, value = pick(outputs, output, name)
        scores = row_of_scores(value)
        if scores is None and value.size != 1:
            raise unfit(name, where, value, "one score or one row of scores")
        if scores is None:
            return float(value.reshape(-1)[0] >= threshold), float(whole(label, name, 2))
        answer = best(scores)
        return NONE if answer is None else float(answer), float(whole(label, name, len(scores)))

    def prepare(rows: Numbers) -> Weighted:
        answers, labels = rows[:, 0], rows[:, 1]

        def of(weights: Numbers) -> float:
            seen = np.unique(rows[weights > 0])
            classes = np.array([float(positive)]) if average == "binary" else seen[seen != NONE]
            return float(np.mean(f1_by_class(answers, labels, weights, classes)))

        return of

    return Scorer(
        name=name,
        reduce=reduce,
        prepare=prepare,
        answer=side_of(threshold, output),
        agreement=f"decision at {threshold:g}",
    )
