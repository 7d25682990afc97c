"""What is counted for one model on one set, and what the counts say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Values = Mapping[str, np.ndarray]

RESAMPLES = 10_000
Z = 1.959963984540054


class Rows:
    """What the scorer makes of the outputs of each sample."""

    def __init__(self, scorer: Any) -> None:
        self.scorer = scorer
        self.rows: list[Any] = []

    def add(self, outputs: Values, feeds: Values, label: Any) -> None:
        if self.scorer is not None:
            self.rows.append(self.scorer.row(outputs, feeds, label))


class Compared(Rows):
    """Sums of squares by output, the largest error, whether the best class is the float model's."""

    def __init__(self, scorer: Any) -> None:
        super().__init__(scorer)
        self.signal: dict[str, float] = {}
        self.error: dict[str, float] = {}
        self.largest: dict[str, float] = {}
        self.agreed: list[int] = []
        self.count = 0
        self.ties = 0

    def _compare(self, expected: Values, found: Values) -> None:
        for name, value in expected.items():
            wanted, got = value.astype(np.float64), found[name].astype(np.float64)
            if wanted.shape != got.shape:
                raise ValueError(f"{name} is {list(got.shape)}, the float model gives {list(wanted.shape)}")
            off = wanted - got
            self.signal[name] = self.signal.get(name, 0.0) + float((wanted * wanted).sum())
            self.error[name] = self.error.get(name, 0.0) + float((off * off).sum())
            self.largest[name] = max(self.largest.get(name, 0.0), float(np.abs(off).max(initial=0.0)))
        scores, test = next(iter(expected.values())), found[next(iter(expected))]
        if scores.ndim == 2 and scores.shape[0] == 1 and scores.shape[1] > 1:
            best = np.flatnonzero(test[0] == test[0].max())
            self.agreed.append(int(len(best) == 1 and best[0] == scores[0].argmax()))
            self.ties += len(best) > 1

    def add_pair(self, expected: Values, found: Values, feeds: Values, label: Any) -> None:
        """One sample: the float original's outputs and the model's."""
        self.count += 1
        self._compare(expected, found)
        self.add(found, feeds, label)

    def result(self, wanted: Rows, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Plain JSON values. ``groups`` samples in turn are of one group each: the photos of crops."""
        told: dict[str, Any] = {
            "samples": self.count,
            "groups": entry.get("groups"),
            "sqnr_db": {name: decibel(self.signal[name], self.error[name]) for name in self.signal},
            "largest_error": self.largest,
        }
        groups = entry.get("groups")
        if self.agreed:
            flags = np.array(self.agreed, float)
            told["agreement"] = {
                "share": float(flags.mean()),
                "interval": mean_interval(flags, groups),
                "ties": self.ties,
            }
        if self.scorer is not None:
            told["metric"] = self.scorer.score(wanted.rows, self.rows, groups)
        return told


def decibel(signal: float, error: float) -> float | None:
    """None for no error at all, and for what is no number."""
    if not (math.isfinite(signal) and math.isfinite(error)) or signal <= 0 or error <= 0:
        return None
    return 10 * math.log10(signal / error)


def mean_interval(values: np.ndarray, groups: int | None) -> list[float]:
    """95 % interval of a mean: a bootstrap over groups where samples come in turn from so many, else the normal one."""
    if groups is None:
        half = Z * float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.inf
        return [float(values.mean()) - half, float(values.mean()) + half]
    means = np.array([values[start::groups].mean() for start in range(groups)])
    weights = np.array([len(values[start::groups]) for start in range(groups)], float)
    chosen = np.random.default_rng(0).integers(0, groups, (RESAMPLES, groups))
    drawn = (means * weights)[chosen].sum(1) / weights[chosen].sum(1)
    return [float(bound) for bound in np.percentile(drawn, [2.5, 97.5])]


def drop_interval(before: Sequence[float], after: Sequence[float], groups: int | None) -> dict[str, Any]:
    """How much lower the mean is, sample by sample, with its paired 95 % interval."""
    lost = np.array(before, float) - np.array(after, float)
    return {"drop": float(lost.mean()), "drop_interval": mean_interval(lost, groups)}
