"""Measure the baseline and every artifact in alternation, from fresh processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from edgeopt.errors import BenchError, ToolchainError
from edgeopt.pipeline.golden import Golden
from edgeopt.pipeline.steps import Outcome


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """A measurement as JSON, with the figures decisions ask for. ``record`` None: nothing was measured."""

    record: Mapping[str, Any] | None

    def subject(self, name: str) -> Mapping[str, Any] | None:
        """One subject's record."""
        if self.record is None:
            return None
        return next((s for s in self.record["subjects"] if s["name"] == name), None)

    def ratio(self, a: str, b: str) -> tuple[float, float, float] | None:
        """Latency of ``b`` over ``a`` with its 95 % interval, None when not both were measured."""
        from runtime_bench import compare

        if self.record is None or self.subject(a) is None or self.subject(b) is None:
            return None
        result = compare(self.record, a, b)
        return None if result["low"] is None else (result["ratio"], result["low"], result["high"])

    def verdict(self, a: str, b: str) -> str | None:
        """``faster``, ``slower``, ``equivalent`` or ``inconclusive``: ``b`` against ``a``."""
        from runtime_bench import compare

        return None if self.ratio(a, b) is None or self.record is None else str(compare(self.record, a, b)["verdict"])

    @property
    def grade(self) -> str | None:
        """``stable``, ``noisy``, ``unstable`` or ``invalid``; None when nothing was measured."""
        from runtime_bench.judge.stability import results

        return None if self.record is None else str(results(self.record)["stability"]["grade"])

    def missing(self, percentile: float) -> str:
        """Why a percentile has no value: how many calls it needs, how many were made."""
        from runtime_bench import summarize

        if self.record is None:
            return "nothing was measured (--effort none)"
        found = [summarize(s) for s in self.record["subjects"]]
        key = f"p{percentile * 100:g}"
        needs = max((s.get(f"{key}_needs") or 0 for s in found), default=0)
        made = min((s["n"] for s in found), default=0)
        return f"{key} needs {needs} calls and {made} were made (--effort standard makes more)" if needs else "unknown"

    def peak_bytes(self, name: str) -> int | None:
        """Runtime plus model in the worst repeat, what a budget counts of peak memory; None when unreadable."""
        from runtime_bench import charged_bytes

        subject = self.subject(name)
        return charged_bytes(subject["memory"]) if subject is not None and subject.get("memory") else None

    def latency_ms(self, name: str, percentile: float) -> float | None:
        """A percentile of steady latency, None when there are too few samples for it."""
        from runtime_bench import summarize

        subject = self.subject(name)
        if subject is None:
            return None
        value = summarize(subject).get("median_ns" if percentile == 0.5 else f"p{percentile * 100:g}_ns")
        return None if value is None else float(value) / 1e6

    def load_ms(self, name: str) -> float | None:
        """The longest that any process took from a path to a session; None when nothing was measured."""
        from runtime_bench import summarize

        subject = self.subject(name)
        longest = None if subject is None else summarize(subject)["load"]["max_ns"]
        return None if longest is None else float(longest) / 1e6

    def runtime_bytes(self, name: str) -> int | None:
        """What the runtime takes with a model of one node; None when unreadable."""
        subject = self.subject(name)
        stage = ((subject or {}).get("memory") or {}).get("runtime")
        return None if stage is None else stage["bytes"]


def run(outcome: Outcome, golden: Golden, *, effort: str, threads: int, seconds: float | None) -> Measured:
    """Measure the model as loaded (``original``) and every artifact on the golden inputs.

    Raises:
        BenchError: no process of a subject finished.
        ToolchainError: the runtime is missing.
    """
    if effort == "none":
        return Measured(record=None)
    from runtime_bench import BenchFailure, Subject, measure

    library = next(iter(outcome.original.origin.libraries), None)
    libraries = {} if library is None else {"custom_ops": str(library.resolve())}
    candidates = {} if outcome.baseline is None else {"original": outcome.baseline}
    subjects = [
        Subject(
            name=name,
            path=str(artifact.path),
            sha256=artifact.sha256,
            runner=artifact.runner,
            options={**artifact.options, **libraries},
            file=None if name == "original" else f"model/{artifact.path.name}",
            precision=None if name == "original" else name,
            data=None if artifact.data is None else str(artifact.data.path),
        )
        for name, artifact in {**candidates, **outcome.artifacts}.items()
    ]
    try:
        record = measure(subjects, list(golden.inputs), effort=effort, threads=threads, seconds=seconds)
    except BenchFailure as error:
        kind = ToolchainError if error.code == ToolchainError.exit_code else BenchError
        raise kind(
            f"the measurement failed: {error}", remedy="Run `edgeopt doctor`; --effort none builds without measuring."
        ) from error
    return Measured(record=record)
