"""Is the changed model still the model: drift against the float reference, agreement, the task's metric, the gate.

Everything streams: one sample's outputs are in memory at a time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from edgeopt.outcomes import Outcomes, SampleDigest, pack
from edgeopt.plan import Drift

Run = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]

MAX_SLICES = 256
"""Channels of an output that are judged one by one; wider axes are judged as a whole."""

LOST_DB = 6.0
"""A channel whose error is half its signal or more is lost, whatever the whole tensor says."""

FLOOR_DB = 10.0
"""Without labels: the error of every output stays below a tenth of its energy."""

DEFAULT_MAX_DROP = 0.01
"""When the user names no limit, the drop of the metric must not lie above this with its whole interval."""

DROP_CEILING = 0.05
"""And never above this, however few samples there are."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agreement:
    """Share of samples on which the arg-max equals the float model's; a tie counts as wrong."""

    top1: float
    ties: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metric:
    """The set's metric for the float model and for the artifact; ``drop`` is their difference.

    ``half_width`` is that of the paired 95 % interval of the drop: 1.96 standard errors of the per-sample differences.
    """

    name: str
    reference: float
    artifact: float
    half_width: float = 0.0

    @property
    def drop(self) -> float:
        """What the artifact lost, in the metric's own unit; negative where it is better."""
        return self.reference - self.artifact


@dataclasses.dataclass(frozen=True, kw_only=True)
class Quality:
    """The comparison over a set: one Drift per output, the worst slices, agreement and metric where they exist.

    ``outcomes`` has the artifact's answers sample by sample: against the labels where there is a metric, else against
    the float model; None where the first output is no row of scores.
    """

    samples: int
    outputs: tuple[Drift, ...]
    slices: tuple[Drift, ...]
    agreement: Agreement | None
    metric: Metric | None
    finite: bool
    outcomes: Outcomes | None = None

    @property
    def sqnr_db(self) -> float:
        """The lowest SQNR of any output."""
        return min((d.sqnr_db for d in self.outputs), default=math.inf)


class _Sums:
    """Sums over samples for a whole tensor (``by_channel`` False) or per index of axis 1."""

    def __init__(self) -> None:
        self.signal = self.error = self.other = self.product = np.float64(0)
        self.peak = np.float64(0)

    def add(self, reference: np.ndarray, test: np.ndarray, axes: tuple[int, ...] | None) -> None:
        difference = reference - test
        self.signal = self.signal + np.sum(reference * reference, axis=axes)
        self.other = self.other + np.sum(test * test, axis=axes)
        self.error = self.error + np.sum(difference * difference, axis=axes)
        self.product = self.product + np.sum(reference * test, axis=axes)
        self.peak = np.maximum(self.peak, np.max(np.abs(difference), axis=axes, initial=0.0))


def compare(
    reference: Run,
    test: Run,
    samples: Iterable[Mapping[str, np.ndarray]],
    *,
    labels: np.ndarray | None = None,
    metric: str | None = None,
) -> Quality:
    """Run both on every sample.

    Args:
        labels: class index per sample, for ``metric="top1"``.

    Returns:
        The drift of every float output; integer outputs count towards ``max_abs`` only.
    """
    return compare_all(reference, {"": test}, samples, labels=labels, metric=metric)[""]


def compare_all(
    reference: Run,
    tests: Mapping[str, Run],
    samples: Iterable[Mapping[str, np.ndarray]],
    *,
    labels: np.ndarray | None = None,
    metric: str | None = None,
) -> dict[str, Quality]:
    """``compare`` for several artifacts, with one run of the reference for each sample."""
    tallies, digest = {name: _Tally(labels=labels) for name in tests}, SampleDigest()
    for index, feeds in enumerate(samples):
        digest.add(feeds, None if labels is None or metric is None else int(labels[index]))
        expected = reference(feeds)
        for name, test in tests.items():
            tallies[name].add(expected, test(feeds))
    return {name: tally.quality(metric, digest.hexdigest()) for name, tally in tallies.items()}


@dataclasses.dataclass(kw_only=True)
class _Tally:
    """What is counted while samples stream by."""

    labels: np.ndarray | None
    whole: dict[str, _Sums] = dataclasses.field(default_factory=dict)
    channels: dict[str, _Sums] = dataclasses.field(default_factory=dict)
    count: int = 0
    agreed: bytearray = dataclasses.field(default_factory=bytearray)
    correct: bytearray = dataclasses.field(default_factory=bytearray)
    ties: int = 0
    right_reference: int = 0
    changed: int = 0
    finite: bool = True
    classifies: bool = True

    def add(self, expected: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray]) -> None:
        """Count one sample."""
        for name, value in expected.items():
            ref, got = np.asarray(value, np.float64), np.asarray(found[name], np.float64)
            if ref.shape != got.shape:
                got = np.zeros_like(ref)
                self.finite = False
            known = np.isfinite(ref)
            self.finite &= bool(np.isfinite(got[known]).all())
            ref, got = np.where(known, ref, 0.0), np.where(known & np.isfinite(got), got, 0.0)
            self.whole.setdefault(name, _Sums()).add(ref, got, None)
            if ref.ndim >= 3 and 1 < ref.shape[1] <= MAX_SLICES:
                self.channels.setdefault(name, _Sums()).add(ref, got, (0, *range(2, ref.ndim)))
        name, scores = next(iter(expected.items()))
        if scores.ndim == 2 and scores.shape[0] == 1 and scores.shape[1] > 1 and found[name].shape == scores.shape:
            self._classify(scores[0], found[name][0])
        else:
            self.classifies = False
        self.count += 1

    def _classify(self, reference: np.ndarray, test: np.ndarray) -> None:
        wanted, best = int(np.argmax(reference)), np.flatnonzero(test == np.max(test))
        answer = int(best[0]) if len(best) == 1 else None
        self.ties += len(best) > 1
        self.agreed.append(int(answer == wanted))
        if self.labels is not None:
            before, after = (int(found == self.labels[self.count]) for found in (wanted, answer))
            self.right_reference += before
            self.correct.append(after)
            self.changed += before != after

    def quality(self, metric: str | None, samples_sha256: str) -> Quality:
        """The figures over everything counted."""
        classes = self.classifies and self.count > 0
        judged = metric == "top1" and self.labels is not None and classes
        kind, right = ("top1", self.correct) if judged else ("agreement", self.agreed)
        return Quality(
            samples=self.count,
            outputs=tuple(_drift(name, sums) for name, sums in self.whole.items()),
            slices=tuple(d for name, sums in self.channels.items() for d in _worst_slices(name, sums)),
            agreement=Agreement(top1=sum(self.agreed) / self.count, ties=self.ties / self.count) if classes else None,
            metric=self._top1() if judged else None,
            finite=self.finite,
            outcomes=Outcomes(kind=kind, samples_sha256=samples_sha256, count=self.count, right=pack(right))
            if classes
            else None,
        )

    def _top1(self) -> Metric:
        """Top-1 of both, with the interval of a mean of per-sample differences that are -1, 0 or 1."""
        reference, test = self.right_reference / self.count, sum(self.correct) / self.count
        variance = self.changed / self.count - (reference - test) ** 2
        half_width = 1.96 * math.sqrt(variance / self.count)
        return Metric(name="top1", reference=reference, artifact=test, half_width=half_width)


def gate(quality: Quality, max_drop: float | None) -> str | None:
    """Why the artifact is not good enough, or None.

    In order: non-finite values; an output channel that is lost; the metric's drop; without labels the
    agreement when ``max_drop`` was asked for, and the SQNR floor. A limit that was asked for binds the drop itself;
    without one the drop must be shown: 1 % of 400 samples is four of them, within chance.
    """
    if not quality.finite:
        return "the artifact gives NaN, infinity or another shape where the float model gives numbers"
    for drift in quality.slices:
        if drift.sqnr_db < LOST_DB:
            return f"{drift.output} is lost: SQNR {drift.sqnr_db:.1f} dB, largest error {drift.max_abs:.3g}"
    if quality.metric is not None:
        return _metric_reason(quality.metric, max_drop)
    if max_drop is not None and quality.agreement is not None and 1 - quality.agreement.top1 > max_drop:
        agreement = quality.agreement.top1
        found = f"top-1 agreement with the float model is {agreement:.2%} on {quality.samples} samples"
        return f"{found}, more than {max_drop:.2%} below 100 %"
    if quality.sqnr_db < FLOOR_DB:
        worst = min(quality.outputs, key=lambda d: d.sqnr_db)
        return f"{worst.output}: SQNR {worst.sqnr_db:.1f} dB is below the floor of {FLOOR_DB:.0f} dB"
    return None


def _metric_reason(metric: Metric, max_drop: float | None) -> str | None:
    falls = f"{metric.name} falls from {metric.reference:.2%} to {metric.artifact:.2%}"
    if max_drop is not None:
        return f"{falls}, more than {max_drop:.2%} allowed" if metric.drop > max_drop else None
    if metric.drop > DROP_CEILING:
        return f"{falls}, more than {DROP_CEILING:.0%}"
    if metric.drop - metric.half_width > DEFAULT_MAX_DROP:
        return (
            f"{falls} (95 % interval of the drop +-{metric.half_width:.2%}), clearly more than {DEFAULT_MAX_DROP:.0%}"
        )
    return None


def relative_error(reference: Mapping[str, np.ndarray], test: Mapping[str, np.ndarray]) -> float:
    """max |difference| / max |reference| over all outputs: what a pass's tolerance bounds. NaN gives infinity."""
    worst = 0.0
    for name, value in reference.items():
        ref, got = np.asarray(value, np.float64), np.asarray(test[name], np.float64)
        if ref.shape != got.shape:
            return math.inf
        with np.errstate(invalid="ignore"):
            difference = float(np.max(np.abs(ref - got), initial=0.0))
        if not math.isfinite(difference):
            return 0.0 if np.array_equal(ref, got, equal_nan=True) else math.inf
        worst = max(worst, difference / max(float(np.max(np.abs(ref), initial=0.0)), 1e-30) if difference else 0.0)
    return worst


def _drift(name: str, sums: _Sums) -> Drift:
    return Drift(
        output=name,
        sqnr_db=_decibel(float(sums.signal), float(sums.error)),
        cosine=float(sums.product / math.sqrt(sums.signal * sums.other))
        if sums.signal * sums.other > 0
        else float(sums.signal == sums.other),
        max_abs=float(sums.peak),
    )


def _worst_slices(name: str, sums: _Sums, keep: int = 4) -> list[Drift]:
    """The channels with the lowest SQNR; channels without any signal say nothing and are left out."""
    signal, error = np.atleast_1d(sums.signal), np.atleast_1d(sums.error)
    drifts = []
    for index in np.flatnonzero(signal > 0):
        energy = math.sqrt(float(signal[index]) * float(np.atleast_1d(sums.other)[index]))
        drifts.append(
            Drift(
                output=f"{name}[axis1={index}]",
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
