"""The metrics of the networks, written apart from edgeopt's own: rows of single samples, and what all of them say."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from _peers import figures

Values = Mapping[str, np.ndarray]


def labels(folder: Path, entry: Mapping[str, Any]) -> Sequence[Any] | None:
    """The labels of a set in its own order, None for one without."""
    if "labels" not in entry:
        return None
    file, _, member = entry["labels"].partition("#")
    if file.endswith(".txt"):
        return (folder / file).read_text(encoding="utf-8").splitlines()
    known = np.load(folder / file)[member] if member else np.load(folder / file)
    return known[entry.get("start", 0) :: entry.get("stride", 1)]


def scorer(folder: Path, entry: Mapping[str, Any]) -> Any:
    """What judges a set, by the ``metric`` of its entry; None without one."""
    if "metric" not in entry:
        return None
    return {"top1": Top1, "peak": Peak, "cer": Characters, "pairs": Pairs, "auc": Area}[entry["metric"]](folder, entry)


class Top1:
    """1 where the best class is the label's; a tie is wrong."""

    def __init__(self, folder: Path, entry: Mapping[str, Any]) -> None:
        self.name = "top-1"

    def row(self, outputs: Values, feeds: Values, label: Any) -> int:
        scores = next(iter(outputs.values()))[0]
        best = np.flatnonzero(scores == scores.max())
        return int(len(best) == 1 and best[0] == label)

    def score(self, before: Sequence[int], after: Sequence[int], groups: int | None) -> dict[str, Any]:
        return {
            "name": self.name,
            "float": float(np.mean(before)),
            "value": float(np.mean(after)),
            **figures.drop_interval(before, after, groups),
            "right": "".join(map(str, after)),
        }


class Peak(Top1):
    """1 where the largest value of an output is on the label's side of a threshold."""

    def __init__(self, folder: Path, entry: Mapping[str, Any]) -> None:
        self.name = "accuracy"
        self.output, self.threshold = entry["output"], entry["threshold"]

    def row(self, outputs: Values, feeds: Values, label: Any) -> int:
        return int((outputs[self.output].max() > self.threshold) == bool(label))


class Characters:
    """Texts by best path; edits over characters for each part of the set."""

    def __init__(self, folder: Path, entry: Mapping[str, Any]) -> None:
        self.known = (folder / entry["charset"]).read_text(encoding="utf-8").split("\n")[:-1]
        self.parts = entry["parts"]

    def row(self, outputs: Values, feeds: Values, label: Any) -> tuple[str, str]:
        from _zoo import text_lines

        return text_lines.decoded(next(iter(outputs.values()))[0], self.known), label

    def score(self, before: Sequence[Any], after: Sequence[Any], groups: int | None) -> dict[str, Any]:
        from _zoo import text_lines

        each = len(after) // self.parts
        rates = []
        for rows in (before, after):
            cut = [rows[start : start + each] for start in range(0, len(rows), each)]
            rates.append([text_lines.error_rate([t for t, _ in part], [w for _, w in part]) for part in cut])
        worst = max(b - a for a, b in zip(*rates))
        return {"name": "character error rate", "float": rates[0], "value": rates[1], "drop": worst}


class Pairs:
    """Correlation of the cosines of mean vectors with what people say about pairs of texts."""

    def __init__(self, folder: Path, entry: Mapping[str, Any]) -> None:
        with (folder / entry["pairs"]).open(encoding="utf-8") as stream:
            self.pairs = np.array([[float(cell) for cell in row] for row in csv.reader(stream)])
        self.ranked, self.mask = entry["correlation"] == "spearman", entry["mask"]
        self.name = entry["correlation"]

    def row(self, outputs: Values, feeds: Values, label: Any) -> np.ndarray:
        hidden, weight = next(iter(outputs.values()))[0].astype(np.float64), feeds[self.mask][0][:, None]
        mean = (hidden * weight).sum(0) / weight.sum()
        return mean / np.linalg.norm(mean)

    def score(self, before: Sequence[Any], after: Sequence[Any], groups: int | None) -> dict[str, Any]:
        found = [self.correlation(np.stack(rows)) for rows in (before, after)]
        return {"name": self.name, "float": found[0], "value": found[1], "drop": found[0] - found[1]}

    def correlation(self, vectors: np.ndarray) -> float:
        first, second = (vectors[self.pairs[:, column].astype(int)] for column in (0, 1))
        cosines, human = (first * second).sum(1), self.pairs[:, 2]
        if self.ranked:
            cosines, human = ranks(cosines), ranks(human)
        return float(np.corrcoef(cosines, human)[0, 1])


class Area:
    """Area under the ROC curve over frames; a sample may hold many."""

    def __init__(self, folder: Path, entry: Mapping[str, Any]) -> None:
        self.output = entry.get("output")

    def row(self, outputs: Values, feeds: Values, label: Any) -> tuple[np.ndarray, np.ndarray]:
        name = self.output if self.output in outputs else next(iter(outputs))
        return outputs[name].astype(np.float64).ravel(), np.ravel(label)

    def score(self, before: Sequence[Any], after: Sequence[Any], groups: int | None) -> dict[str, Any]:
        found = []
        for rows in (before, after):
            scores, truth = (np.concatenate([row[part] for row in rows]) for part in (0, 1))
            found.append(area(scores, truth > 0))
        return {"name": "AUC", "float": found[0], "value": found[1], "drop": found[0] - found[1]}


def area(scores: np.ndarray, positive: np.ndarray) -> float:
    """Mann and Whitney's U by mean ranks."""
    count = int(positive.sum())
    total = ranks(scores)[positive].sum() - count * (count - 1) / 2
    return float(total / (count * (len(scores) - count)))


def ranks(values: np.ndarray) -> np.ndarray:
    """From 0, equal values sharing their mean rank."""
    ordered = np.sort(values)
    return (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right") - 1) / 2
