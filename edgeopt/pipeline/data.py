"""The data of a build: what calibrates, what judges, and a few probes that check every rewrite."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping

import numpy as np

from edgeopt import calibration
from edgeopt.calibration import DataSet
from edgeopt.errors import CalibrationError, ModelError
from edgeopt.model import Model, TensorSpec

PROBES = 4
"""Real samples on which every rewrite is compared; also the golden samples of the bundle."""

HOLD_OUT = 4
"""Without an evaluation set every fourth calibration sample judges and does not calibrate."""

CHOICE_SAMPLES = 96
"""Samples that compare quantizer choices, spread over the calibration set."""

Feeds = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sets:
    """Data ready to iterate.

    Attributes:
        calibration: None when there is none, or when it is random.
        evaluation: the judging set; the calibration set again when ``held_out``.
        probes: a few samples, noise when there is no data (``probes_are_real`` False).
        warnings: what a person must know about the data.
    """

    inputs: tuple[TensorSpec, ...]
    calibration: DataSet | None
    evaluation: DataSet | None
    held_out: bool
    probes: tuple[Feeds, ...]
    probes_are_real: bool
    warnings: tuple[str, ...]

    def calibration_samples(self) -> Iterator[Feeds]:
        """Samples that calibrate."""
        assert self.calibration is not None
        for index, feeds in enumerate(calibration.samples(self.calibration, self.inputs)):
            if not (self.held_out and index % HOLD_OUT == HOLD_OUT - 1):
                yield feeds

    def choice_samples(self) -> Iterator[Feeds]:
        """A few of the samples that calibrate, evenly spread."""
        assert self.calibration is not None
        stride = max(1, self.calibration.count // CHOICE_SAMPLES)
        return itertools.islice(self.calibration_samples(), 0, None, stride)

    def evaluation_samples(self) -> Iterator[Feeds]:
        """Samples that judge."""
        assert self.evaluation is not None
        for index, feeds in enumerate(calibration.samples(self.evaluation, self.inputs)):
            if not self.held_out or index % HOLD_OUT == HOLD_OUT - 1:
                yield feeds

    def labels(self) -> np.ndarray | None:
        """Labels of the evaluation samples."""
        if self.evaluation is None or self.held_out:
            return None
        return calibration.labels(self.evaluation)


def prepare(model: Model, *, calib: str | None, evaluate: str | None) -> Sets:
    """Load and check the sets against the model's inputs, before any work.

    Raises:
        CalibrationError: a set is unusable, or random data was asked to judge.
        ModelError: there is no data and the model's shapes are not fixed.
    """
    chosen = None if calib is None else calibration.load_set(calib)
    judging = None if evaluate is None else calibration.load_set(evaluate)
    warnings = []
    if chosen is None and judging is None:
        embedded = calibration.embedded_sets(model.origin.sha256())
        if embedded is not None:
            chosen, judging = embedded
            warnings.append("this is the embedded network: its own calibration and evaluation sets are used")
    if judging is not None and judging.second_class:
        raise CalibrationError(
            "random data cannot judge quality: a network can match on noise and fail on every real input",
            remedy="Give an evaluation set of real inputs with --eval.",
        )
    if chosen is not None:
        warnings += calibration.check(chosen, model.inputs)
    if judging is not None:
        warnings += calibration.check(judging, model.inputs, against=chosen)
    if chosen is not None and chosen.second_class:
        warnings.append(
            "RANDOM DATA is second-class: it does not calibrate int8, and nothing is claimed from it; "
            "give real inputs with --calib"
        )
        chosen = None
    held_out = judging is None and chosen is not None and chosen.count >= 2 * HOLD_OUT
    if judging is None and chosen is not None:
        if held_out:
            warnings.append(
                f"no evaluation set: every {HOLD_OUT}th calibration sample judges quality and does not calibrate"
            )
        else:
            warnings.append("no evaluation set and few samples: the calibration samples judge quality too")
        judging = chosen
    if chosen is None and calib is None:
        warnings.append("no calibration set: no int8 activation is tried (give --calib)")
    source = judging or chosen
    probes = _noise(model.inputs) if source is None else _spread(source, model.inputs)
    return Sets(
        inputs=model.inputs,
        calibration=chosen,
        evaluation=judging,
        held_out=held_out,
        probes=probes,
        probes_are_real=source is not None,
        warnings=tuple(warnings),
    )


def _spread(data_set: DataSet, inputs: tuple[TensorSpec, ...]) -> tuple[Feeds, ...]:
    stride = max(1, data_set.count // PROBES)
    return tuple(itertools.islice(calibration.samples(data_set, inputs), 0, stride * PROBES, stride))


def _noise(inputs: tuple[TensorSpec, ...]) -> tuple[Feeds, ...]:
    """Seeded noise: enough to compare a rewrite with what it rewrote, not enough to claim quality."""
    rng = np.random.default_rng(0)
    probes = []
    for _ in range(PROBES):
        feeds = {}
        for spec in inputs:
            open_dims = [d for d in spec.shape[1:] if not isinstance(d, int)]
            if open_dims:
                raise ModelError(
                    f"input {spec} has open dimensions and there is no data to fix them",
                    remedy=f"Give --shape {spec.name}=1x... or --calib.",
                )
            shape = tuple(d if isinstance(d, int) else 1 for d in spec.shape)
            dtype = np.dtype(spec.dtype)
            values = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
            feeds[spec.name] = values.astype(dtype)
        probes.append(feeds)
    return tuple(probes)
