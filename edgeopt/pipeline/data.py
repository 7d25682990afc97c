"""The data of a build: what calibrates, what judges, and a few probes that check every rewrite."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from edgeopt import calibration
from edgeopt.calibration import DataSet, Run
from edgeopt.errors import CalibrationError, ModelError
from edgeopt.interpreter import Interpreter
from edgeopt.metrics import Label, Scorer
from edgeopt.model import Model, TensorSpec
from edgeopt.quality import Carry

T = TypeVar("T")

PROBES = 4
"""Real samples on which every rewrite is compared; also the golden samples of the bundle."""

HOLD_OUT = 4
"""Without an evaluation set every fourth calibration sample judges and does not calibrate."""

CHOICE_SAMPLES = 96
"""Samples that compare quantizer choices, spread over the calibration set."""

REMEMBERED = 16_000_000
"""Bytes of the float model's outputs that are kept where its states are carried from sample to sample."""

Feeds = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sets:
    """Data ready to iterate.

    Attributes:
        calibration: None when there is none, or when it is random.
        evaluation: the judging set; the calibration set again when ``held_out``.
        probes: a few samples, noise when there is no data (``probes_are_real`` False).
        warnings: what a person must know about the data.
        units: when ``held_out`` by groups, the group of every calibration sample.
        run: the model as loaded, for sets that carry states over from sample to sample.
    """

    inputs: tuple[TensorSpec, ...]
    calibration: DataSet | None
    evaluation: DataSet | None
    held_out: bool
    probes: tuple[Feeds, ...]
    probes_are_real: bool
    warnings: tuple[str, ...]
    units: npt.NDArray[np.int64] | None = None
    run: Run | None = None

    def _judges(self, index: int) -> bool:
        """Whether a sample of the evaluation set judges: all of them, or those that are held out."""
        return not self.held_out or _is_held(index if self.units is None else int(self.units[index]))

    def digests(self) -> dict[str, str]:
        """Digest of each set by its role, for a lock."""
        roles = {"calibration": self.calibration, "evaluation": self.evaluation}
        return {role: found.digest() for role, found in roles.items() if found is not None}

    def calibration_samples(self) -> Iterator[Feeds]:
        """Samples that calibrate."""
        assert self.calibration is not None
        return self._calibrating(calibration.samples(self.calibration, self.inputs, self.run))

    def _calibrating(self, items: Iterable[T]) -> Iterator[T]:
        return (item for index, item in enumerate(items) if not (self.held_out and self._judges(index)))

    def choice_samples(self, most: int = CHOICE_SAMPLES) -> Iterator[Feeds]:
        """A few of the samples that calibrate, evenly spread: ``most`` of them at most."""
        assert self.calibration is not None
        return self._chosen(calibration.samples(self.calibration, self.inputs, self.run), most)

    def _chosen(self, items: Iterable[T], most: int = CHOICE_SAMPLES) -> Iterator[T]:
        assert self.calibration is not None
        return itertools.islice(self._calibrating(items), 0, None, max(1, -(-self.calibration.count // most)))

    def choice_labels(self) -> Iterator[Label] | None:
        """Their labels; those of the evaluation set never have a say in a choice."""
        found = None if self.calibration is None else calibration.targets(self.calibration)
        return None if found is None else self._chosen(found)

    def choice_metric(self) -> Scorer | None:
        """The metric of the set that calibrates; None without one, and for pairs, of which a few samples hold none."""
        if self.calibration is None or self.calibration.pairs is not None:
            return None
        return calibration.scorer(self.calibration)

    def choice_groups(self) -> npt.NDArray[np.int64] | None:
        """Group of every choice sample."""
        found = None if self.calibration is None else calibration.groups(self.calibration)
        return None if found is None else np.array(list(self._chosen(found)), np.int64)

    def evaluation_samples(self) -> Iterator[Feeds]:
        """Samples that judge."""
        assert self.evaluation is not None
        return self._judging(calibration.samples(self.evaluation, self.inputs, self.run))

    def evaluation_positions(self) -> Iterator[int]:
        """Position of each of them in the set as stored."""
        assert self.evaluation is not None
        return self._judging(self.evaluation.indices)

    def _judging(self, items: Iterable[T]) -> Iterator[T]:
        return (item for index, item in enumerate(items) if self._judges(index))

    def labels(self) -> Iterator[Label] | None:
        """Labels of the evaluation samples."""
        found = None if self.evaluation is None else calibration.targets(self.evaluation)
        return None if found is None else self._judging(found)

    def metric(self) -> Scorer | None:
        """The metric that judges; None without one, and for pairs of samples some of which calibrate."""
        if self.evaluation is None or (self.held_out and self.evaluation.pairs is not None):
            return None
        return calibration.scorer(self.evaluation)

    def groups(self) -> npt.NDArray[np.int64] | None:
        """Group of every evaluation sample."""
        found = None if self.evaluation is None else calibration.groups(self.evaluation)
        return None if found is None else np.array(list(self._judging(found)), np.int64)

    def carry(self) -> Carry | None:
        """The states that an artifact carries over itself; None without any, and where its sequences have gaps."""
        if self.evaluation is None or not self.evaluation.carried or (self.held_out and self.units is None):
            return None
        groups = calibration.groups(self.evaluation)
        return Carry(inputs=self.evaluation.carried, starts=self._judging(calibration.starts(self.evaluation, groups)))


def _is_held(number: int) -> bool:
    return number % HOLD_OUT == HOLD_OUT - 1


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
    run = _lazily(model) if any(found is not None and found.carried for found in (chosen, judging)) else None
    if chosen is not None:
        warnings += calibration.check(chosen, model.inputs, run=run, judges=judging is None)
    if judging is not None:
        warnings += calibration.check(judging, model.inputs, against=chosen, run=run)
    if chosen is not None and chosen.second_class:
        warnings.append(
            "RANDOM DATA is second-class: it does not calibrate int8, and nothing is claimed from it; "
            "give real inputs with --calib"
        )
        chosen = None
    held_out, units = False, None
    if judging is None and chosen is not None:
        units = calibration.groups(chosen)
        held_out = (chosen.count if units is None else len(np.unique(units))) >= 2 * HOLD_OUT
        warnings += _held_out_words(chosen, held_out, grouped=units is not None)
        judging = chosen
    if chosen is None and calib is None:
        warnings.append("no calibration set: no int8 activation is tried (give --calib)")
    source = judging or chosen
    probes = _noise(model.inputs) if source is None else spread(source, model.inputs, run)
    sets = Sets(
        inputs=model.inputs,
        calibration=chosen,
        evaluation=judging,
        held_out=held_out,
        probes=probes,
        probes_are_real=source is not None,
        warnings=tuple(warnings),
        units=units if held_out else None,
        run=run,
    )
    if judging is not None:
        _try_metric(model, sets.metric(), sets.labels(), sets.evaluation_samples())
    if chosen is not None and chosen is not judging:
        _try_metric(model, sets.choice_metric(), sets.choice_labels(), sets.choice_samples())
    return sets


def _held_out_words(chosen: DataSet, held_out: bool, *, grouped: bool) -> list[str]:
    """What a person must know where one set calibrates and judges."""
    if not held_out:
        return ["no evaluation set and few samples: the calibration samples judge quality too"]
    unit = "group of calibration samples" if grouped else "calibration sample"
    words = [f"no evaluation set: every {HOLD_OUT}th {unit} judges quality and does not calibrate"]
    if chosen.pairs is not None:
        words.append("no evaluation set: the metric is over pairs of samples, and needs one; it is left out")
    if chosen.carried and not grouped:
        names = ", ".join(found.name for found in chosen.carried)
        words.append(
            f"every {HOLD_OUT}th sample alone has no sequence: it is judged with the float model's own {names}"
        )
    return words


def _lazily(model: Model) -> Run:
    """The model as loaded, its session made when it is first run.

    Every pass over a set that carries states runs it on the same samples: ``REMEMBERED`` bytes of outputs stay.
    """
    sessions: list[Interpreter] = []
    kept: dict[bytes, Mapping[str, np.ndarray]] = {}
    room = REMEMBERED

    def run(feeds: Feeds) -> Mapping[str, np.ndarray]:
        nonlocal room
        key = _key(feeds)
        if key in kept:
            return kept[key]
        if not sessions:
            sessions.append(Interpreter(model))
        found = sessions[0].run(feeds)
        size = sum(value.nbytes + 200 for value in found.values())  # and what an array itself takes
        if size <= room:
            kept[key] = found
            room -= size
        return found

    return run


def _key(feeds: Feeds) -> bytes:
    """A digest of the inputs of one sample."""
    found = hashlib.blake2b(digest_size=16)
    for name, value in feeds.items():
        found.update(f"{name} {value.dtype.str} {value.shape};".encode())
        found.update(np.ascontiguousarray(value).tobytes())
    return found.digest()


def _try_metric(model: Model, scorer: Scorer | None, labels: Iterator[Label] | None, samples: Iterator[Feeds]) -> None:
    """Judge one sample, so that a metric which does not fit the outputs stops the build before any work.

    Raises:
        CalibrationError: it does not.
    """
    if scorer is None or (scorer.needs_label and labels is None):
        return
    try:
        feeds = next(samples)
        outputs = Interpreter(model).run(feeds)
    except ModelError:  # what cannot be run here is said, or refused, where it is looked at
        return
    scorer.reduce(outputs, feeds, None if labels is None else next(labels))


def spread(data_set: DataSet, inputs: tuple[TensorSpec, ...], run: Run | None = None) -> tuple[Feeds, ...]:
    """``PROBES`` samples, evenly spread over the set."""
    stride = _stride(data_set)
    return tuple(itertools.islice(calibration.samples(data_set, inputs, run), 0, stride * PROBES, stride))


def _stride(data_set: DataSet) -> int:
    return max(1, data_set.count // PROBES)


def probed(data_set: DataSet) -> tuple[int, ...]:
    """Positions of those samples in the set as stored."""
    stride = _stride(data_set)
    return tuple(itertools.islice(data_set.indices, 0, stride * PROBES, stride))


def _noise(inputs: tuple[TensorSpec, ...]) -> tuple[Feeds, ...]:
    """Seeded noise: enough to compare a rewrite with what it rewrote, not enough to claim quality.

    A symbol on the first axis of an input is the batch, wherever else it stands, and is 1.
    """
    rng = np.random.default_rng(0)
    batch = {spec.shape[0] for spec in inputs if spec.shape and isinstance(spec.shape[0], str)} - {"?"}
    probes = []
    for _ in range(PROBES):
        feeds = {}
        for spec in inputs:
            sizes = [1 if d in batch or (d == "?" and axis == 0) else d for axis, d in enumerate(spec.shape)]
            shape = tuple(d for d in sizes if isinstance(d, int))
            if len(shape) < len(sizes):
                known = "x".join(str(d) if isinstance(d, int) else "..." for d in sizes)
                raise ModelError(
                    f"input {spec} has open dimensions and there is no data to fix them",
                    remedy=f"Give --shape {spec.name}={known} with numbers in place of the dots, or --calib.",
                )
            dtype = np.dtype(spec.dtype)
            values = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
            feeds[spec.name] = values.astype(dtype)
        probes.append(feeds)
    return tuple(probes)
