"""What is counted while samples stream by: sums of squares, answers, rows of the metric."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from edgeopt.metrics import Label, Rows, Scorer, judged
from edgeopt.outcomes import Outcomes, pack
from edgeopt.plan import Drift
from edgeopt.quality.result import Agreement, Metric, Quality

MAX_SLICES = 256
"""Channels of an output that are judged one by one; wider axes are judged as a whole."""

FIELD_PEAK = 0.05
"""A field on the last axis that never gets larger decides nothing: a class that no sample shows, say."""

_DECISION = "decision at 0.5"

Values = Mapping[str, np.ndarray]


class _Sums:
    """Sums over samples for a whole tensor (``by_channel`` False) or per index of axis 1."""

    def __init__(self) -> None:
        self.signal = self.error = self.other = self.product = np.float64(0)
        self.peak = self.top = np.float64(0)

    def add(self, reference: np.ndarray, test: np.ndarray, axes: tuple[int, ...] | None) -> None:
        difference, total = reference - test, np.add.reduce  # np.sum and np.max without their wrappers
        self.signal = self.signal + total(reference * reference, axis=axes)
        self.other = self.other + total(test * test, axis=axes)
        self.error = self.error + total(difference * difference, axis=axes)
        self.product = self.product + total(reference * test, axis=axes)
        self.peak = np.maximum(self.peak, np.maximum.reduce(np.abs(difference), axis=axes, initial=0.0))
        self.top = np.maximum(self.top, np.maximum.reduce(np.abs(reference), axis=axes, initial=0.0))


class Tally:
    """One artifact against the reference."""

    def __init__(self, scorer: Scorer | None) -> None:
        self.scorer = scorer
        self.rows = None if scorer is None else Rows(scorer)
        self.whole: dict[str, _Sums] = {}
        self.channels: dict[tuple[str, int], _Sums] = {}
        self.sizes: dict[tuple[str, int], int] = {}
        self.count = self.ties = 0
        self.agreed = bytearray()
        self.of: str | None = None
        self.answers = True
        self.finite = True

    def add(self, expected: Values, found: Values, feeds: Values, label: Label) -> None:
        """Count one sample.

        Raises:
            CalibrationError: the outputs are not what the metric takes.
        """
        for name, value in expected.items():
            ref, got = np.asarray(value, np.float64), np.asarray(found[name], np.float64)
            if ref.shape != got.shape:
                got = np.zeros_like(ref)
                self.finite = False
            known, good = np.isfinite(ref), np.isfinite(got)
            if not (known.all() and good.all()):
                self.finite &= bool(good[known].all())
                ref, got = np.where(known, ref, 0.0), np.where(known & good, got, 0.0)
            self.whole.setdefault(name, _Sums()).add(ref, got, None)
            for axis in (1, 2) if ref.ndim == 3 else (1,) if ref.ndim > 3 else ():
                self._slice(name, axis, ref, got)
        if self.rows is not None and self.finite:
            self.rows.add(found, feeds, label)
        self._agree(expected, found)
        self.count += 1

    def _agree(self, expected: Values, found: Values) -> None:
        """Count whether the answers agree: the metric's own, else the best of a row of scores, else a probability."""
        if not self.answers:
            return
        kind, agrees = _agreement(self.scorer, expected, found)
        if kind is None or self.of not in (None, kind):
            self.answers = False
            return
        self.of = kind
        self.agreed.append(agrees == 1)
        self.ties += agrees is None

    def quality(self, rows: Rows | None, samples_sha256: str, groups: npt.NDArray[np.int64] | None) -> Quality:
        """The figures over everything counted; ``rows`` are the reference's.

        Raises:
            CalibrationError: the metric is not defined on these samples.
        """
        agreed = self.answers and self.count > 0 and self.of is not None
        metric = self._metric(rows, groups) if rows is not None and self.finite and self.count else None
        return Quality(
            samples=self.count,
            outputs=tuple(_drift(name, sums) for name, sums in self.whole.items()),
            slices=tuple(
                drift
                for (name, axis), sums in self.channels.items()
                if axis == 1 or metric is None  # classes on the last axis are what a metric is for
                for drift in _worst_slices(name, axis, sums)
            ),
            agreement=Agreement(top1=sum(self.agreed) / self.count, ties=self.ties / self.count, of=str(self.of))
            if agreed
            else None,
            metric=metric,
            finite=self.finite,
            outcomes=self._outcomes(metric, agreed, samples_sha256, groups),
        )

    def _slice(self, name: str, axis: int, ref: np.ndarray, got: np.ndarray) -> None:
        """Count an output by index of ``axis``: channels, or the fields of the boxes in a list."""
        key, size = (name, axis), ref.shape[axis]
        if not (1 < size <= MAX_SLICES and self.sizes.setdefault(key, size)):
            return
        if self.sizes[key] == size:
            self.channels.setdefault(key, _Sums()).add(ref, got, tuple(k for k in range(ref.ndim) if k != axis))
        else:  # an axis of unlike length holds steps of time, not channels
            self.sizes[key] = 0
            self.channels.pop(key, None)

    def _metric(self, rows: Rows, groups: npt.NDArray[np.int64] | None) -> Metric:
        assert self.rows is not None
        found, scorer = judged(rows, self.rows, groups), rows.scorer
        return Metric(
            name=scorer.name,
            reference=found.reference,
            artifact=found.artifact,
            half_width=found.half_width,
            better=scorer.better,
            unit=scorer.unit,
        )

    def _outcomes(
        self, metric: Metric | None, agreed: bool, samples_sha256: str, groups: npt.NDArray[np.int64] | None
    ) -> Outcomes | None:
        together = b"" if groups is None else groups.astype("<i4").tobytes()
        if metric is not None and self.rows is not None and self.rows.scorer.weighted_mean:
            scorer, rows = self.rows.scorer, self.rows.all()
            return Outcomes(
                kind=metric.name,
                samples_sha256=samples_sha256,
                count=self.count,
                right=pack(bytearray(rows[:, 0].astype(np.uint8).tobytes())) if scorer.right else b"",
                values=b"" if scorer.right else rows[:, 0].astype("<f4").tobytes(),
                weights=b"" if scorer.right else rows[:, 1].astype("<f4").tobytes(),
                groups=together,
                better=metric.better,
                unit=metric.unit,
            )
        if not agreed:
            return None
        return Outcomes(
            kind="agreement",
            samples_sha256=samples_sha256,
            count=self.count,
            right=pack(self.agreed),
            groups=together,
            judged_by=None if metric is None else metric.name,
        )


def _agreement(scorer: Scorer | None, expected: Values, found: Values) -> tuple[str | None, bool | None]:
    """What kind of answer the outputs hold, None for none; and whether they agree, None for a tie."""
    if scorer is not None and scorer.answer is not None:
        wanted = scorer.answer(expected)
        if wanted is not None:
            return scorer.agreement, scorer.answer(found) == wanted
    name, scores = next(iter(expected.items()))
    test = found[name]
    if scores.ndim == 2 and scores.shape[0] == 1 and scores.shape[1] > 1 and test.shape == scores.shape:
        best = np.flatnonzero(test[0] == np.max(test[0]))
        return "top-1", None if len(best) > 1 else len(best) == 1 and int(best[0]) == int(np.argmax(scores[0]))
    probability = scores.size == 1 == test.size and scores.dtype.kind == "f" and 0 <= scores.item() <= 1
    return (_DECISION, (test.item() >= 0.5) == (scores.item() >= 0.5)) if probability else (None, None)


def _drift(name: str, sums: _Sums) -> Drift:
    return Drift(
        output=name,
        sqnr_db=_decibel(float(sums.signal), float(sums.error)),
        cosine=float(sums.product / math.sqrt(sums.signal * sums.other))
        if sums.signal * sums.other > 0
        else float(sums.signal == sums.other),
        max_abs=float(sums.peak),
    )


def _worst_slices(name: str, axis: int, sums: _Sums, keep: int = 4) -> list[Drift]:
    """The channels with the lowest SQNR; channels without any signal say nothing and are left out."""
    signal, error = np.atleast_1d(sums.signal), np.atleast_1d(sums.error)
    drifts = []
    loud = np.atleast_1d(sums.top) >= (FIELD_PEAK if axis > 1 else 0.0)
    for index in np.flatnonzero((signal > 0) & loud):
        energy = math.sqrt(float(signal[index]) * float(np.atleast_1d(sums.other)[index]))
        drifts.append(
            Drift(
                output=f"{name}[axis{axis}={index}]",
                sqnr_db=_decibel(float(signal[index]), float(error[index])),
                cosine=float(np.atleast_1d(sums.product)[index]) / energy if energy else 0.0,
                max_abs=float(np.atleast_1d(sums.peak)[index]),
            )
        )
    return sorted(drifts, key=lambda d: d.sqnr_db)[:keep]


def _decibel(signal: float, error: float) -> float:
    if error == 0:
        return math.inf
    return 10 * math.log10(signal / error) if signal > 0 else -math.inf
