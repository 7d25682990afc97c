"""Measures two artifacts now, in alternation, on the same inputs."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgeopt import calibration, host
from edgeopt.comparing.sources import Artifact
from edgeopt.errors import BenchError, ToolchainError
from edgeopt.model import TensorSpec

HALF_WIDTH = 0.01
"""Pairs of processes are added until the interval of the ratio is this narrow to either side, or time is up."""

Measure = Callable[..., Mapping[str, Any]]


def check_signatures(a: Artifact, b: Artifact) -> None:
    """Refuse two artifacts that cannot run on the same inputs, or give other outputs.

    Raises:
        BenchError: names every difference.
    """
    found = [*_differences("input", a.inputs, b.inputs), *_differences("output", a.outputs, b.outputs)]
    for name, color in a.colors.items():
        if b.colors.get(name, color) != color:
            found.append(f"the input {name} of A takes {color} and that of B {b.colors[name]}")
    if found:
        raise BenchError(
            f"A and B do not have the same signature: {'; '.join(found)}",
            remedy="Compare models with the same inputs and outputs; fix dims when you build: edgeopt build --shape.",
        )


def _differences(kind: str, a: Sequence[TensorSpec], b: Sequence[TensorSpec]) -> Iterator[str]:
    ours, theirs = {spec.name: spec for spec in a}, {spec.name: spec for spec in b}
    for name, spec in ours.items():
        if name not in theirs:
            yield f"only A has the {kind} {spec}"
        elif spec.dtype != theirs[name].dtype or not _fit(spec.shape, theirs[name].shape):
            yield f"the {kind} {spec} of A is {theirs[name]} in B"
    yield from (f"only B has the {kind} {spec}" for name, spec in theirs.items() if name not in ours)


def _fit(a: tuple[int | str, ...], b: tuple[int | str, ...]) -> bool:
    """Whether two shapes can be the same one: an open dim, or an open rank, takes anything."""
    if ("...",) in (a, b):
        return True
    return len(a) == len(b) and all(x == y or isinstance(x, str) or isinstance(y, str) for x, y in zip(a, b))


def threads_of(a: Artifact, b: Artifact, asked: int | None) -> int:
    """Threads for both: as asked, else those of the bundles, which must agree; of two bare models, all.

    Raises:
        BenchError: the bundles run with different numbers of threads.
    """
    stated = sorted({side.threads for side in (a, b) if side.threads is not None})
    if asked is not None:
        return asked
    if len(stated) > 1:
        raise BenchError(
            f"A runs with {a.threads} threads and B with {b.threads}", remedy="Say with how many to compare: --threads."
        )
    return stated[0] if stated else host.usable_threads()[0]


def foreign(side: Artifact) -> list[str]:
    """What this machine is not of what a bundle was built for, as sentences; nothing for a bare model."""
    if side.root is None:
        return []
    from runtime_bench import manifest, verify

    return verify.machine_warnings(manifest.parse(manifest.read(str(side.root))))


def run_now(
    a: Artifact,
    b: Artifact,
    *,
    effort: str,
    threads: int,
    seconds: float | None = None,
    progress: Callable[[str], None] | None = None,
    measure: Measure | None = None,
) -> Mapping[str, Any]:
    """Measure the subjects ``A`` and ``B`` in alternation and return the measurement.

    Args:
        a, b: with equal signatures. A bare model runs with the options of the other side where that is a bundle for the
            same runtime.
        effort, threads, seconds, progress: as ``runtime_bench.measure`` takes them.
        measure: stands in for ``runtime_bench.measure`` in tests.

    Raises:
        BenchError: no process of a side could be measured.
        ToolchainError: the runtime is missing.
    """
    import runtime_bench

    take = measure or runtime_bench.measure
    given = {side.runner: side.options for side in (b, a) if side.options is not None}
    subjects = [
        runtime_bench.Subject(
            name=name,
            path=str(side.path),
            sha256=side.sha256,
            runner=side.runner,
            options={**(given.get(side.runner, {}) if side.options is None else side.options), **side.own},
            file=side.file,
            precision=side.precision,
            data=None if side.data is None else str(side.data),
        )
        for name, side in (("A", a), ("B", b))
    ]
    with _samples(a, b) as samples:
        try:
            return take(
                subjects,
                samples,
                effort=effort,
                threads=threads,
                seconds=seconds,
                half_width=HALF_WIDTH,
                progress=progress,
            )
        except runtime_bench.BenchFailure as error:
            kind = ToolchainError if error.code == ToolchainError.exit_code else BenchError
            raise kind(str(error), remedy="Run `edgeopt doctor` to see what this machine has.") from error


@contextlib.contextmanager
def _samples(a: Artifact, b: Artifact) -> Iterator[list[dict[str, str]]]:
    """The golden inputs of the first side that has some; else one sample of seeded random values."""
    golden = a.samples or b.samples
    if golden:
        yield [dict(sample) for sample in golden]
        return
    (feeds,) = _noise(a.inputs)
    with tempfile.TemporaryDirectory(prefix="edgeopt-") as folder:
        sample = {}
        for index, (name, value) in enumerate(feeds.items()):
            sample[name] = str(Path(folder) / f"{index}.npy")
            np.save(sample[name], np.ascontiguousarray(value).reshape(np.shape(value)), allow_pickle=False)
        yield [sample]


def _noise(inputs: tuple[TensorSpec, ...]) -> list[Mapping[str, np.ndarray]]:
    import dataclasses

    noise = dataclasses.replace(calibration.load_set("random"), total=1, count=1)
    return list(calibration.samples(noise, inputs))


def inputs_words(a: Artifact, b: Artifact) -> str:
    """What both were run on."""
    for name, side in (("A", a), ("B", b)):
        if side.samples:
            return f"{len(side.samples)} golden sample{'' if len(side.samples) == 1 else 's'} of {name}"
    return "one sample of seeded random values"
