"""Area under the ROC curve as the Mann-Whitney statistic: the share of (positive, negative) pairs in which the positive
scores higher, a tie counting as half (Hanley and McNeil, Radiology 143 (1982) 29). NaN counts against: it is the lowest
score of a positive and the highest of a negative. With one class only it is not defined.
"""

from __future__ import annotations

import numpy as np

from edgeopt.metrics.choices import side_of
from edgeopt.metrics.scorer import Label, Numbers, Outputs, Scorer, Weighted, pick, row_of_scores, unfit, whole


def roc_auc(scores: np.ndarray, positive: np.ndarray) -> Weighted:
    """The area as a function of weights; ``scores`` is ``float[n]``, ``positive`` is ``bool[n]``. NaN for one class."""
    order = np.argsort(scores, kind="stable")
    ranked, good = scores[order], positive[order]
    starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]])

    def of(weights: Numbers) -> float:
        heavy = weights[order]
        up = np.add.reduceat(heavy * good, starts)
        down = np.add.reduceat(heavy * ~good, starts)
        pairs = float(up.sum() * down.sum())
        below = np.cumsum(down) - down
        return float(np.sum(up * (below + down / 2))) / pairs if pairs > 0 else float("nan")

    return of


def auc(*, positive: int, threshold: float, output: str | None = None) -> Scorer:
    """Area under the ROC curve of the one score, or of the score of class ``positive`` in a row."""

    def reduce(outputs: Outputs, feeds: Outputs, label: Label) -> tuple[float, float]:
        where, value = pick(outputs, output, "AUC")
        scores = row_of_scores(value)
        if value.size == 1:
            score, truth = float(value.reshape(-1)[0]), whole(label, "AUC", 2) == 1
        elif scores is None or positive >= len(scores):
            raise unfit("AUC", where, value, f"one score, or a row of scores with class {positive}")
        else:
            score, truth = float(scores[positive]), whole(label, "AUC", len(scores)) == positive
        if np.isnan(score):
            score = -np.inf if truth else np.inf
        return score, float(truth)

    return Scorer(
        name="AUC",
        reduce=reduce,
        prepare=lambda rows: roc_auc(rows[:, 0], rows[:, 1] > 0),
        unit="index",
        answer=side_of(threshold, output),
        agreement=f"decision at {threshold:g}",
    )
