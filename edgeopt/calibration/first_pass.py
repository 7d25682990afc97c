"""One pass over a set before any work is done with it: errors stop here, doubts come back as warnings."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from edgeopt.calibration.labelling import labels
from edgeopt.calibration.stream import bind, samples
from edgeopt.calibration.types import DataSet
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


def check(dataset: DataSet, inputs: tuple[TensorSpec, ...], against: DataSet | None = None) -> list[str]:
    """Read every sample and label once.

    Args:
        dataset: the set.
        inputs: the model's inputs.
        against: another set for the same model; its first samples are compared in range, and looked for in this set.

    Returns:
        Warnings, each naming the set: all zero, constant, a single sample, identical samples, raw pixels, random
        values, a range unlike the other set's, samples that are in both.

    Raises:
        CalibrationError: anything that makes the set unusable; names file, sample and input.
    """
    labels(dataset)
    seen = {spec.name: _Seen() for spec in inputs}
    first: dict[str, npt.NDArray[np.generic]] | None = None
    alike = True
    digests: set[bytes] = set()
    for feed in samples(dataset, inputs):
        for name, value in feed.items():
            seen[name].add(value)
        if against is not None:
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
    elif alike and not all(figures.low == figures.high for figures in seen.values()):
        warnings.append(f"{dataset.name}: all {dataset.count} samples are identical")
    return warnings + (_compared(dataset, against, inputs, seen, digests) if against is not None else [])


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
    dataset: DataSet, other: DataSet, inputs: tuple[TensorSpec, ...], seen: dict[str, _Seen], digests: set[bytes]
) -> list[str]:
    theirs = {spec.name: _Seen() for spec in inputs}
    shared = 0
    for feed in itertools.islice(samples(other, inputs), _COMPARED):
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
