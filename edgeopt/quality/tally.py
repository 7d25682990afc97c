"""What is counted while samples stream by: sums of squares, answers, rows of the metric."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeopt.metrics import Label, Rows, Scorer, judged
from edgeopt.outcomes import Drop, Outcomes, pack, paired_drop
from edgeopt.plan import Drift
from edgeopt.quality.result import Agreement, Metric, Quality
from edgeopt.quality.spread import Moments, share_interval
from edgeopt.quality.worst import Energies, Worst

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
        self.moments = Moments()

    def add(
        self, reference: np.ndarray, test: np.ndarray, axes: tuple[int, ...] | None, new_unit: bool
    ) -> tuple[Any, Any]:
        """Count one sample. Returns its energy of the reference and of the error."""
        difference, total = reference - test, np.add.reduce  # np.sum and np.max without their wrappers
        signal, error = total(reference * reference, axis=axes), total(difference * difference, axis=axes)
        self.signal, self.error = self.signal + signal, self.error + error
        self.other = self.other + total(test * test, axis=axes)
        self.moments.add(signal, error, new_unit)
        self.product = self.product + total(reference * test, axis=axes)
        self.peak = np.maximum(self.peak, np.maximum.reduce(np.abs(difference), axis=axes, initial=0.0))
        self.top = np.maximum(self.top, np.maximum.reduce(np.abs(reference), axis=axes, initial=0.0))
        return signal, error

    def half_width_db(self, index: int | None = None) -> float | None:
        """Half the width of the interval of the SQNR, of a channel where ``index`` names one."""
        signal, error = (float(np.atleast_1d(total)[index or 0]) for total in (self.signal, self.error))
        return self.moments.half_width_db(signal, error, index)


class Tally:
    """One artifact against the reference; ``worst`` collects the samples on which it is worst."""

    def __init__(self, scorer: Scorer | None, worst: Worst | None = None) -> None:
        self.scorer, self.worst = scorer, worst
        self.rows = None if scorer is None else Rows(scorer)
        self.whole: dict[str, _Sums] = {}
        self.channels: dict[tuple[str, int], _Sums] = {}
        self.sizes: dict[tuple[str, int], int] = {}
        self.count = self.ties = self.broken = 0
        self.agreed = bytearray()
        self.of: str | None = None
        self.answers = True
        self.finite = True
        self.unit: int | None = None
        self.units: set[int] = set()
        self.scattered = False

    def add(
        self,
        expected: Values,
        found: Values,
        feeds: Values,
        label: Label,
        *,
        unit: int | None = None,
        before: np.ndarray | None = None,
    ) -> None:
        """Count one sample.

        Args:
            unit: number of the group that it belongs to; it stands alone when None.
            before: the reference's row of the metric.

        Raises:
            CalibrationError: the outputs are not what the metric takes.
        """
        new_unit, energies, good_all = self._new_unit(unit), {}, True
        for name, value in expected.items():
            ref, got = np.asarray(value, np.float64), np.asarray(found[name], np.float64)
            whole = ref.shape == got.shape
            if not whole:
                got = np.zeros_like(ref)
            known, good = np.isfinite(ref), np.isfinite(got)
            if not (known.all() and good.all()):
                whole &= bool(good[known].all())
                ref, got = np.where(known, ref, 0.0), np.where(known & good, got, 0.0)
            self.finite, good_all = self.finite and whole, good_all and whole
            sums = self.whole.setdefault(name, _Sums())
            signal, error = sums.add(ref, got, None, new_unit)
            mean = float(sums.signal) / (self.count + 1)
            energies[name] = Energies(signal=float(signal), error=float(error), mean=mean, good=whole)
            for axis in (1, 2) if ref.ndim == 3 else (1,) if ref.ndim > 3 else ():
                self._slice(name, axis, ref, got, new_unit)
        self.broken += not good_all
        scores = None
        if self.rows is not None and self.finite:
            self.rows.add(found, feeds, label)
            if before is not None and self.rows.scorer.weighted_mean:
                scores = float(before[0]), float(self.rows.last[0])
        agrees = self._agree(expected, found)
        if self.worst is not None:
            changed = None if agrees is None else not agrees
            self.worst.add(self.count, expected, found, feeds, label, energies=energies, changed=changed, scores=scores)
        self.count += 1

    def _new_unit(self, unit: int | None) -> bool:
        """Whether a unit begins; one that goes on after another is scattered, and then no interval is known."""
        if unit is None or unit != self.unit:
            self.scattered |= unit is not None and unit in self.units
            self.unit = unit
            self.units |= set() if unit is None else {unit}
            return True
        return False

    def _agree(self, expected: Values, found: Values) -> bool | None:
        """Count whether the answers agree: the metric's own, else the best of a row of scores, else a probability.

        Returns None where the outputs hold no answer.
        """
        if not self.answers:
            return None
        kind, agrees = _agreement(self.scorer, expected, found)
        if kind is None or self.of not in (None, kind):
            self.answers = False
            return None
        self.of = kind
        self.agreed.append(agrees == 1)
        self.ties += agrees is None
        return agrees == 1

    def quality(self, rows: Rows | None, samples_sha256: str, groups: npt.NDArray[np.int64] | None) -> Quality:
        """The figures over everything counted; ``rows`` are the reference's.

        Raises:
            CalibrationError: the metric is not defined on these samples.
        """
        agreed = self.answers and self.count > 0 and self.of is not None
        metric = self._metric(rows, groups) if rows is not None and self.finite and self.count else None
        agreement = None
        if agreed:
            agreement = Agreement(top1=sum(self.agreed) / self.count, ties=self.ties / self.count, of=str(self.of))
        slices = [
            found
            for (name, axis), sums in self.channels.items()
            if axis == 1 or metric is None  # classes on the last axis are what a metric is for
            for found in _worst_slices(name, axis, sums)
        ]
        spread = {name: sums.half_width_db() for name, sums in self.whole.items()}
        spread |= {drift.output: half for drift, half in slices}
        return Quality(
            samples=self.count,
            outputs=tuple(_drift(name, sums) for name, sums in self.whole.items()),
            slices=tuple(drift for drift, _ in slices),
            agreement=agreement,
            metric=metric,
            finite=self.finite,
            outcomes=self._outcomes(metric, agreed, samples_sha256, groups),
            broken=self.broken,
            units=self.count if groups is None else len(np.unique(groups[: self.count])),
            half_widths_db={} if self.scattered else {n: half for n, half in spread.items() if half is not None},
            agreement_interval=share_interval(self.agreed, groups) if agreed else None,
            paired=self._paired(metric, rows) if groups is None else None,
            worst=() if self.worst is None else self.worst.samples(),
        )

    def _paired(self, metric: Metric | None, rows: Rows | None) -> Drop | None:
        if metric is None or rows is None or self.rows is None or not rows.scorer.right:
            return None
        before, after = (found.all()[:, 0] > 0 for found in (rows, self.rows))
        return paired_drop(before, after)

    def _slice(self, name: str, axis: int, ref: np.ndarray, got: np.ndarray, new_unit: bool) -> None:
        """Count an output by index of ``axis``: channels, or the fields of the boxes in a list."""
        key, size = (name, axis), ref.shape[axis]
        if not (1 < size <= MAX_SLICES and self.sizes.setdefault(key, size)):
            return
        if self.sizes[key] == size:
            others = tuple(k for k in range(ref.ndim) if k != axis)
            self.channels.setdefault(key, _Sums()).add(ref, got, others, new_unit)
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


def _worst_slices(name: str, axis: int, sums: _Sums, keep: int = 4) -> list[tuple[Drift, float | None]]:
    """The channels with the lowest SQNR and half its interval; channels without any signal say nothing: left out."""
    signal, error = np.atleast_1d(sums.signal), np.atleast_1d(sums.error)
    drifts = []
    loud = np.atleast_1d(sums.top) >= (FIELD_PEAK if axis > 1 else 0.0)
    for index in np.flatnonzero((signal > 0) & loud):
        energy = math.sqrt(float(signal[index]) * float(np.atleast_1d(sums.other)[index]))
        drift = Drift(
            output=f"{name}[axis{axis}={index}]",
            sqnr_db=_decibel(float(signal[index]), float(error[index])),
            cosine=float(np.atleast_1d(sums.product)[index]) / energy if energy else 0.0,
            max_abs=float(np.atleast_1d(sums.peak)[index]),
        )
        drifts.append((drift, int(index)))
    drifts.sort(key=lambda found: found[0].sqnr_db)
    return [(drift, sums.half_width_db(index)) for drift, index in drifts[:keep]]


def _decibel(signal: float, error: float) -> float:
    if error == 0:
        return math.inf
    return 10 * math.log10(signal / error) if signal > 0 else -math.inf
