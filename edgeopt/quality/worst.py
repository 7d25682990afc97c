"""The samples on which an artifact is worst, before and after: kept while samples stream by, a few at a time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from edgeopt.metrics import Label, Scorer

WORST = 8
"""Samples that are kept."""

_SHOWN = 60
"""Characters of an answer or a label that are kept."""

Values = Mapping[str, np.ndarray]
Look = Callable[[Values], bytes | None]
"""Makes a picture of a sample's inputs, as a file; None where they are no picture."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorstSample:
    """One sample as the float model and as the artifact see it.

    Attributes:
        index: position among the samples that judge, from 0.
        label: as the metric takes it; None without one.
        before, after: the answers of the float model and of the artifact; empty where the outputs hold none.
        changed: whether the answers differ (a tie differs); None where there are none.
        score_before, score_after: the sample's own value of a metric that is a mean over samples.
        output: the output with the largest error against its mean energy.
        sqnr_db: of that output in this sample.
        max_abs: its largest error; ``element`` is where, ``reference`` and ``artifact`` are the values there.
        finite: False where the artifact gives NaN, infinity or another shape; ``artifact`` is then NaN.
        picture: a file, None where the inputs are no picture.
    """

    index: int
    label: str | None
    before: str
    after: str
    changed: bool | None
    score_before: float | None
    score_after: float | None
    output: str
    sqnr_db: float
    max_abs: float
    element: tuple[int, ...]
    reference: float
    artifact: float
    finite: bool = True
    picture: bytes | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Energies:
    """Signal and error of one output in one sample, with the mean signal so far; ``good`` is False for NaN."""

    signal: float
    error: float
    mean: float
    good: bool

    @property
    def relative(self) -> float:
        """Error against the mean energy of the output: what ranks samples."""
        if not self.good:
            return math.inf
        if self.error == 0:
            return 0.0
        return self.error / self.mean if self.mean > 0 else math.inf


class Worst:
    """The worst samples so far. Ranked: not finite, then right before and wrong after, changed answers, the error."""

    def __init__(self, scorer: Scorer | None, look: Look | None, most: int = WORST) -> None:
        self._scorer, self._look, self._most = scorer, look, most
        self._kept: list[tuple[tuple[float, ...], WorstSample]] = []

    def add(
        self,
        index: int,
        expected: Values,
        found: Values,
        feeds: Values,
        label: Label,
        *,
        energies: Mapping[str, Energies],
        changed: bool | None,
        scores: tuple[float, float] | None,
    ) -> None:
        """Keep the sample where it is among the worst.

        Args:
            energies: of every output.
            scores: the sample's own value of the metric, before and after.
        """
        if not energies:
            return
        output = max(energies, key=lambda name: energies[name].relative)
        worst = energies[output]
        lost = 0.0
        if scores is not None and self._scorer is not None:
            lost = (scores[0] - scores[1]) * (1 if self._scorer.better == "higher" else -1)
        rank = (float(not worst.good), max(lost, 0.0), float(bool(changed)), worst.relative, -float(index))
        if len(self._kept) == self._most and rank <= self._kept[-1][0]:
            return
        sample = self._sample(index, expected, found, feeds, label, output, worst, changed, scores)
        self._kept.append((rank, sample))
        self._kept.sort(key=lambda entry: entry[0], reverse=True)
        del self._kept[self._most :]

    def _sample(
        self,
        index: int,
        expected: Values,
        found: Values,
        feeds: Values,
        label: Label,
        output: str,
        energies: Energies,
        changed: bool | None,
        scores: tuple[float, float] | None,
    ) -> WorstSample:
        ref = np.asarray(expected[output], np.float64)
        got = np.asarray(found[output], np.float64)
        element: tuple[int, ...] = ()
        at = of = math.nan
        if ref.size and got.shape == ref.shape:
            with np.errstate(invalid="ignore"):
                distance = np.abs(ref - got)
            flat = int(np.argmax(np.where(np.isfinite(ref), np.where(np.isnan(distance), np.inf, distance), -1.0)))
            element = tuple(int(k) for k in np.unravel_index(flat, ref.shape))
            at, of = float(ref[element]), float(got[element])
        return WorstSample(
            index=index,
            label=None if label is None or isinstance(label, np.ndarray) else _short(label),
            before=self._answer(expected),
            after=self._answer(found),
            changed=changed,
            score_before=None if scores is None else scores[0],
            score_after=None if scores is None else scores[1],
            output=output,
            sqnr_db=_decibels(energies),
            max_abs=abs(at - of),
            element=element,
            reference=at,
            artifact=of,
            finite=energies.good,
            picture=None if self._look is None else self._look(feeds),
        )

    def _answer(self, outputs: Values) -> str:
        """The answer in words: the metric's own, the best class with its score, or the one probability."""
        scorer = self._scorer
        if scorer is not None and scorer.answer is not None:
            answer = scorer.answer(outputs)
            if answer is None:
                return ""
            return _short(answer if scorer.show is None else scorer.show(answer))
        scores = np.asarray(next(iter(outputs.values())))
        if scores.ndim == 2 and scores.shape[0] == 1 and scores.shape[1] > 1:
            if np.isnan(scores).any():
                return "NaN"
            best = np.flatnonzero(scores[0] == scores[0].max())
            words = " = ".join(str(k) for k in best[:3]) + (" = ..." if len(best) > 3 else "")
            return f"class {words} ({float(scores[0][best[0]]):.4g})"
        if scores.size == 1 and scores.dtype.kind == "f":
            return f"{float(scores.reshape(-1)[0]):.4g}"
        return ""

    def samples(self) -> tuple[WorstSample, ...]:
        """The worst first."""
        return tuple(sample for _, sample in self._kept)


def _short(value: Any) -> str:
    value = int(value) if isinstance(value, bool) else value
    shown = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 1]}…"


def _decibels(energies: Energies) -> float:
    if not energies.good or energies.signal <= 0:
        return math.inf if energies.good and energies.error == 0 else -math.inf
    return math.inf if energies.error == 0 else 10 * math.log10(energies.signal / energies.error)
