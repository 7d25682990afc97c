"""Is B worse than A? Two bundles, models or recorded measurements, compared in latency, memory, size and quality."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from edgeopt.comparing import answers, now, sources
from edgeopt.comparing.gates import Limits, enforce, parse_share
from edgeopt.comparing.markdown import markdown
from edgeopt.comparing.result import HOW, SCHEMA, assemble
from edgeopt.comparing.sources import Artifact, Recorded, Source
from edgeopt.errors import BenchError

__all__ = ["HOW", "SCHEMA", "Limits", "Request", "enforce", "markdown", "parse_share", "run"]

Stage = Callable[[str], AbstractContextManager[object]]
"""Progress: entered around every stage with its title."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What a user asks for.

    Attributes:
        a, b: paths, each perhaps with ``#NAME``.
        recorded: compare what bundles recorded instead of measuring.
        allow_unlike: compare recordings although their conditions differ.
        data: a set on which both are judged now, as ``calibration.load_set`` takes it.
        effort, seconds, threads: of the measurement; threads of the bundles where None.
        shapes: fixed shapes of a bare model's inputs.
    """

    a: Path
    b: Path
    limits: Limits = dataclasses.field(default_factory=Limits)
    recorded: bool = False
    allow_unlike: bool = False
    data: str | None = None
    effort: str = "standard"
    seconds: float | None = None
    threads: int | None = None
    shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)


def silent(title: str) -> AbstractContextManager[object]:
    """The default progress: none."""
    return contextlib.nullcontext()


def is_recorded(request: Request) -> bool:
    """Whether nothing is measured: asked for, or a side is a measurement file.

    Raises:
        ModelError, BenchError: there is nothing at a path.
    """
    found = (sources.locate(request.a), sources.locate(request.b))
    return request.recorded or any(source.kind == "measurement" for source in found)


def run(request: Request, stage: Stage = silent, measure: now.Measure | None = None) -> dict[str, Any]:
    """Compare A and B and return the result (``edgeopt.comparison/1``), gates judged and not enforced.

    Args:
        measure: stands in for ``runtime_bench.measure`` in tests.

    Raises:
        BenchError: the two cannot be compared: other signatures, unlike conditions, an invalid measurement, a gate
            on quality where there is none.
        BundleError, ModelError, CalibrationError, ToolchainError: a side or the set cannot be used.
    """
    found = sources.locate(request.a), sources.locate(request.b)
    if request.recorded or any(source.kind == "measurement" for source in found):
        return _recorded(request, found, stage)
    return _measured(request, found, stage, measure)


def _measured(request: Request, found: Sequence[Source], stage: Stage, measure: now.Measure | None) -> dict[str, Any]:
    with stage("read"):
        a, b = (sources.open_artifact(source, request.shapes) for source in found)
        now.check_signatures(a, b)
        threads = now.threads_of(a, b, request.threads)
    quality, notes = _quality(request, a, b, stage)
    with stage(f"measure A and B ({request.effort})"):
        measurement = now.run_now(
            a, b, effort=request.effort, threads=threads, seconds=request.seconds, measure=measure
        )
    if a.sha256 == b.sha256:
        notes.append("A and B are the same file")
    notes.append(f"both ran on {now.inputs_words(a, b)}")
    notes += [f"{name}: {text}" for name, side in (("A", a), ("B", b)) for text in now.foreign(side)]
    result = assemble(
        (a, b),
        (measurement, measurement),
        ("A", "B"),
        how="now",
        unlike=(),
        notes=notes,
        quality=quality,
        limits=request.limits,
    )
    return {**result, "measurement": measurement}


def _recorded(request: Request, found: Sequence[Source], stage: Stage) -> dict[str, Any]:
    from runtime_bench.judge import comparison

    with stage("read"):
        a, b = (sources.open_recorded(source) for source in found)
    same = a.measurement == b.measurement
    if same and a.name == b.name:
        raise BenchError(
            f"A and B are one recording, {a.name} of {a.given}: there is nothing to compare",
            remedy="Give two measurements, or choose two subjects with #.",
        )
    unlike: list[str] = []
    notes: list[str] = []
    if not same:
        unlike = comparison.unlike(a.measurement, b.measurement, a.name, b.name)
        notes = comparison.remarks(a.measurement, b.measurement)
    if unlike and not request.allow_unlike:
        raise BenchError(
            f"A and B were measured under unlike conditions: {'; '.join(unlike)}",
            remedy="Measure both alike, or compare them all the same with --allow-unlike.",
        )
    quality, more = _quality(request, a, b, stage)
    return assemble(
        (a, b),
        (a.measurement, a.measurement if same else b.measurement),
        (a.name, b.name),
        how="paired" if same else "apart",
        unlike=unlike,
        notes=[*more, *notes],
        quality=quality,
        limits=request.limits,
    )


def _quality(
    request: Request, a: Artifact | Recorded, b: Artifact | Recorded, stage: Stage
) -> tuple[dict[str, Any], list[str]]:
    """Quality and remarks on it; before the measurement, so that a gate without a figure costs no time."""
    notes: list[str] = []
    if request.data is None:
        quality = answers.recorded_quality(a, b)
    else:
        with stage("judge A and B"):
            quality, notes = answers.judge_now(a, b, request.data)
    if request.limits.drop is not None and not quality["compared"]:
        raise BenchError(
            f"--max-drop cannot be judged: {quality['reason']}",
            remedy="Give --data SET to judge both on a set now, or leave --max-drop out.",
        )
    return quality, notes
