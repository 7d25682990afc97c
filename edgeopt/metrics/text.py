"""Character error rate: insertions, deletions and substitutions over the length of the reference, summed over the set
(Levenshtein 1966). Text comes from scores by greedy CTC decoding (Graves et al. 2006, section 3.2): the best class of
every step, runs of one class joined, blanks left out. Of equal scores the lowest class is taken, as argmax does.

Characters are code points as they stand; nothing is normalized, folded or stripped.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgeopt.errors import CalibrationError
from edgeopt.metrics.scorer import Label, Outputs, Scorer, pick, unfit, weighted_mean

MAX_LENGTH = 20_000
"""Longest text, in characters, that is compared: the work grows with the product of the two lengths."""


def greedy(scores: np.ndarray, blank: int) -> tuple[int, ...]:
    """Classes of a text from ``float[steps, classes]``."""
    path = np.argmax(np.nan_to_num(scores, nan=-np.inf, posinf=np.inf, neginf=-np.inf), axis=1)
    keep = np.r_[True, path[1:] != path[:-1]] & (path != blank)
    return tuple(int(step) for step in path[keep])


def edit_distance(a: Sequence[int], b: Sequence[int]) -> int:
    """Fewest insertions, deletions and substitutions that turn ``a`` into ``b``."""
    if len(a) < len(b):
        a, b = b, a
    other, places = np.asarray(b, np.int64), np.arange(len(b) + 1)
    row = places.copy()
    for item in a:
        best = np.empty_like(row)
        best[0] = row[0] + 1
        best[1:] = np.minimum(row[1:] + 1, row[:-1] + (other != item))
        # an insertion costs 1 more than the place before it: a running minimum of (cost - place)
        row = np.minimum.accumulate(best - places) + places
    return int(row[-1])


def cer(*, blank: int, charset: Sequence[str] | None, axes: str, output: str | None = None) -> Scorer:
    """Character error rate.

    Args:
        blank: class of the CTC blank.
        charset: text of every class but the blank, in order; None where labels are class indices.
        axes: ``"BTC"`` or ``"TBC"``.
    """
    index = None if charset is None else {text: i + (i >= blank) for i, text in enumerate(charset)}
    longest = 1 if charset is None else max(map(len, charset))

    def reference(label: Label) -> tuple[int, ...]:
        if isinstance(label, tuple) and index is None:
            return label
        if not isinstance(label, str) or index is None:
            wanted = "class indices (there is no charset)" if index is None else "a text"
            raise CalibrationError(f"metric CER: a label is {label!r:.60}, wanted {wanted}.")
        return _classes(label, index, longest)

    def decode(outputs: Outputs) -> tuple[int, ...] | None:
        _, value = pick(outputs, output, "CER")
        steps = _steps(value, axes)
        return None if steps is None else greedy(steps, blank)

    def show(classes: tuple[int, ...]) -> str:
        if charset is None:
            return " ".join(map(str, classes))
        letters = [*charset[:blank], "", *charset[blank:]]
        return "".join(letters[k] if k < len(letters) else "\ufffd" for k in classes)

    def reduce(outputs: Outputs, feeds: Outputs, label: Label) -> tuple[float, float]:
        where, value = pick(outputs, output, "CER")
        steps = _steps(value, axes)
        if steps is None or steps.shape[1] <= blank:
            raise unfit("CER", where, value, f"scores with the axes {axes} and a batch of one")
        if charset is not None and steps.shape[1] != len(charset) + 1:
            got = f"{len(charset)} classes and the blank, and output {where} has {steps.shape[1]}"
            raise CalibrationError(f"metric CER: the charset has {got}.", remedy="One class a line, all but the blank.")
        wanted = reference(label)
        if not 0 < len(wanted) <= MAX_LENGTH or steps.shape[0] > MAX_LENGTH:
            raise CalibrationError(f"metric CER: a text of {len(wanted)} characters, wanted 1 to {MAX_LENGTH}.")
        return edit_distance(greedy(steps, blank), wanted) / len(wanted), float(len(wanted))

    return Scorer(
        name="CER",
        better="lower",
        reduce=reduce,
        prepare=weighted_mean,
        weighted_mean=True,
        answer=decode,
        show=show,
        agreement="decoded text",
    )


def _steps(value: np.ndarray, axes: str) -> np.ndarray | None:
    batch = axes.index("B")
    if value.ndim != 3 or value.shape[batch] != 1 or value.shape[2] < 2 or not value.size:
        return None
    return value.reshape(value.shape[1 - batch], value.shape[2])


def _classes(text: str, index: dict[str, int], longest: int) -> tuple[int, ...]:
    """A text as classes, the longest entry of the charset first; a character that no class has is an error always."""
    found, place = [], 0
    while place < len(text):
        for size in range(min(longest, len(text) - place), 0, -1):
            known = index.get(text[place : place + size])
            if known is not None:
                found.append(known)
                place += size
                break
        else:
            found.append(-1)
            place += 1
    return tuple(found)
