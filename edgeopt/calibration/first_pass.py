"""One pass over a set before any work is done with it: errors stop here, doubts come back as warnings."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from edgeopt.calibration.given import Feed, Run
from edgeopt.calibration.labelling import groups, targets
from edgeopt.calibration.metric import scorer
from edgeopt.calibration.stream import bind, samples
from edgeopt.calibration.types import DataSet
from edgeopt.errors import CalibrationError
from edgeopt.model import TensorSpec

_COMPARED = 32
"""Samples of the other set that are compared with this one."""

_FAR = 16.0
"""Two sets whose largest magnitudes differ by more than this were not prepared alike."""


@dataclasses.dataclass(kw_only=True)
class _Seen:
    """Running figures of one input; the only state of the pass, whatever the number of samples."""

    low: float = np.inf
    high: float = -np.inf
    whole: bool = True

    def add(self, value: npt.NDArray[np.generic]) -> None:
        numbers = value if value.dtype.kind in "biuf" else value.astype(np.float32)
        self.low = min(self.low, float(np.min(numbers)))
        self.high = max(self.high, float(np.max(numbers)))
        if self.whole and numbers.dtype.kind == "f":
            self.whole = bool(np.array_equal(numbers, np.rint(numbers)))


def check(
    dataset: DataSet,
    inputs: tuple[TensorSpec, ...],
    against: DataSet | None = None,
    run: Run | None = None,
    *,
    judges: bool = True,
) -> list[str]:
    """Read every sample and label once.

    Args:
        dataset: the set.
        inputs: the model's inputs.
        run: the float model, where inputs are carried over from one sample to the next.
        against: another set for the same model; its first samples are compared in range, and looked for in this set.
        judges: whether the set's metric is asked for; one that only calibrates may hold labels of one kind.

    Returns:
        Warnings, each naming the set: all zero, constant, a single sample, identical samples, raw pixels, random
        values, a range unlike the other set's, samples that are in both.

    Raises:
        CalibrationError: anything that makes the set unusable; names file, sample and input.
    """
    groups(dataset)
    scorer(dataset)
    _check_labels(dataset, judges)
    seen = {spec.name: _Seen() for spec in inputs}
    first: dict[str, npt.NDArray[np.generic]] | None = None
    alike = True
    digests: set[bytes] = set()
    every, inputs = inputs, tuple(spec for spec in inputs if spec.name not in dataset.given)
    for found in samples(dataset, every, run):
        feed = {spec.name: found[spec.name] for spec in inputs}
        for name, value in feed.items():
            seen[name].add(value)
        if against is not None and any(value.any() for value in feed.values()):  # silence is in every recording
            digests.add(_digest(feed))
        if first is None:
            first = feed
        elif alike:
            alike = all(np.array_equal(value, first[name]) for name, value in feed.items())
    warnings = _doubts(dataset, inputs, seen)
    if dataset.second_class:
        warnings.insert(0, f"{dataset.name}: random values: ranges are guesses and nothing is said about quality")
    if dataset.count == 1:
        warnings.append(f"{dataset.name}: a single sample: ranges will not hold for other inputs")
    elif alike and not all(seen[spec.name].low == seen[spec.name].high for spec in inputs):
        warnings.append(f"{dataset.name}: all {dataset.count} samples are identical")
    if against is None:
        return warnings
    theirs = samples(against, every, run)
    own = tuple(spec for spec in inputs if spec.name not in against.given)
    return warnings + _compared(dataset, against, theirs, own, seen, digests)


def _check_labels(dataset: DataSet, judges: bool) -> None:
    """Read every label; where the metric judges by comparing unlike ones, there must be some.

    Raises:
        CalibrationError: a label is unusable, or all are alike.
    """
    seen: set[object] = set()
    for label in targets(dataset) or ():
        if len(seen) < 2 and isinstance(label, int | float):
            seen.add(label)
    name = "" if dataset.metric is None else dataset.metric.name
    if judges and len(seen) == 1 and name in ("auc", "pearson", "spearman"):
        raise CalibrationError(
            f"{dataset.path}: metric {name} is not defined: every label is {next(iter(seen))}.",
            remedy="It compares samples with different labels; use more of the set, or another metric.",
        )


def _digest(feed: Mapping[str, npt.NDArray[np.generic]]) -> bytes:
    """Eight bytes that tell one sample from another."""
    found = hashlib.blake2b(digest_size=8)
    for name in sorted(feed):
        found.update(np.ascontiguousarray(feed[name]).tobytes())
    return found.digest()


def _doubts(dataset: DataSet, inputs: tuple[TensorSpec, ...], seen: dict[str, _Seen]) -> list[str]:
    stated = {}
    if dataset.sources:
        stated = {name: source.transform.stated for name, source in bind(dataset, inputs).items()}
    warnings = []
    for spec in inputs:
        figures, where = seen[spec.name], f'{dataset.name}: input "{spec.name}"'
        if figures.low == figures.high == 0:
            warnings.append(f"{where} is zero in every sample")
        elif figures.low == figures.high:
            warnings.append(f"{where} is {figures.low:g} in every sample")
        is_float = not spec.dtype.startswith(("int", "uint", "bool"))
        if is_float and not stated.get(spec.name, False) and _like_pixels(figures):
            warnings.append(
                f"{where} holds whole numbers up to {figures.high:g}: raw pixels? "
                "If the model wants them scaled, state scale, mean and std; if not, state scale = 1"
            )
    return warnings


def _like_pixels(figures: _Seen) -> bool:
    return figures.whole and figures.low >= 0 and 32 < figures.high <= 255


def _compared(
    dataset: DataSet,
    other: DataSet,
    others: Iterator[Feed],
    inputs: tuple[TensorSpec, ...],
    seen: dict[str, _Seen],
    digests: set[bytes],
) -> list[str]:
    theirs = {spec.name: _Seen() for spec in inputs}
    shared = 0
    for found in itertools.islice(others, _COMPARED):
        feed = {spec.name: found[spec.name] for spec in inputs}
        shared += _digest(feed) in digests
        for name, value in feed.items():
            theirs[name].add(value)
    warnings = []
    if shared:
        looked = min(_COMPARED, other.count)
        warnings.append(
            f"{dataset.name}: {shared} of the first {looked} samples of {other.name} are in it too: "
            "the quality is judged on what calibrated, and says little about other inputs"
        )
    for spec in inputs:
        here, there = seen[spec.name], theirs[spec.name]
        mine, yours = max(abs(here.low), abs(here.high)), max(abs(there.low), abs(there.high))
        if mine and yours and max(mine / yours, yours / mine) > _FAR:
            warnings.append(
                f'{dataset.name}: input "{spec.name}" lies in {here.low:g}..{here.high:g}, '
                f"in {other.name} in {there.low:g}..{there.high:g}: the two were not prepared alike"
            )
    return warnings
