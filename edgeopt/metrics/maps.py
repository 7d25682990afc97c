"""Mean intersection over union of segmentation maps: for every class, pixels of the class in answer and label over
pixels of it in either, both summed over the set; then the mean over the classes that occur in either (PASCAL VOC's
rule).

The answer is the class with the greatest score at the pixel, the lowest of equal ones. A map of one channel says
class 1 at the threshold or above. Pixels whose label is ``ignore`` count nowhere.
"""

from __future__ import annotations

import numpy as np

from edgeopt.errors import CalibrationError
from edgeopt.metrics.scorer import Label, Numbers, Outputs, Scorer, Weighted, pick, unfit

MAX_CLASSES = 4096


def overlaps(answer: np.ndarray, label: np.ndarray, classes: int, ignore: int | None) -> Numbers:
    """Intersections, then unions, by class: ``float64[2 * classes]``; the maps are integers of one shape."""
    counted = np.ones(label.shape, bool) if ignore is None else label != ignore
    said, true = answer[counted].astype(np.int64), label[counted].astype(np.int64)
    both = np.bincount(true[said == true], minlength=classes)
    union = np.bincount(said, minlength=classes) + np.bincount(true, minlength=classes) - both
    return np.concatenate([both, union]).astype(np.float64)


def mean_iou(rows: Numbers) -> Weighted:
    """Rows of :func:`overlaps` -> the mean over classes; NaN where no pixel counts."""
    classes = rows.shape[1] // 2

    def of(weights: Numbers) -> float:
        total = weights @ rows
        both, union = total[:classes], total[classes:]
        seen = union > 0
        return float(np.mean(both[seen] / union[seen])) if seen.any() else float("nan")

    return of


def iou(*, axis: int, threshold: float, ignore: int | None, output: str | None = None) -> Scorer:
    """Mean intersection over union; ``axis`` holds the classes in an output of rank 4 (1, or 3 for channels last)."""

    def reduce(outputs: Outputs, feeds: Outputs, label: Label) -> Numbers:
        where, value = pick(outputs, output, "mIoU")
        if value.ndim not in (3, 4) or value.shape[0] != 1 or not value.size:
            raise unfit("mIoU", where, value, "a map of scores [1, classes, height, width] or of classes [1, h, w]")
        if value.ndim == 4:
            scores = value[0] if axis == 1 else np.moveaxis(value[0], -1, 0)
            classes = len(scores)
            answer = np.argmax(scores, axis=0) if classes > 1 else (scores[0] >= threshold).astype(np.int64)
        elif value.dtype.kind in "iu":
            raise unfit("mIoU", where, value, "scores: the number of classes is not in a map of answers")
        else:
            classes, answer = 1, (value[0] >= threshold).astype(np.int64)
        truth = label if isinstance(label, np.ndarray) else np.asarray(label)
        while truth.ndim > 2 and truth.shape[0] == 1:
            truth = truth[0]
        return overlaps(answer, _checked(truth, answer, max(classes, 2), ignore), max(classes, 2), ignore)

    return Scorer(name="mIoU", reduce=reduce, prepare=mean_iou)


def _checked(truth: np.ndarray, answer: np.ndarray, classes: int, ignore: int | None) -> np.ndarray:
    if truth.dtype.kind not in "biu" or truth.shape != answer.shape:
        got = f"{truth.dtype.name}{list(truth.shape)}"
        raise CalibrationError(f"metric mIoU: a label map is {got}, wanted integers of {list(answer.shape)}.")
    counted = truth if ignore is None else truth[truth != ignore]
    low, high = (int(counted.min()), int(counted.max())) if counted.size else (0, 0)
    if low < 0 or high >= classes or classes > MAX_CLASSES:
        raise CalibrationError(
            f"metric mIoU: a label map holds classes {low} to {high}, and the model has {classes}.",
            remedy="Give the class that does not count as ignore = 255.",
        )
    return truth
