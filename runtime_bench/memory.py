"""The three memory figures of a subject, each the difference of two fresh processes.

``interpreter`` is a worker that runs nothing; ``runtime`` is the runtime with a one-node model, minus the interpreter;
``model`` is the artifact, loaded and called, minus the runtime with the one-node model. All are peaks: what loading
needs is in them.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

from runtime_bench import process, stats

REPEATS = 3
CALLS = 3
"""Calls before the peak is read: the second may allocate again, by the plan that the runtime made in the first."""

STAGES = ("interpreter", "runtime", "model")

Run = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def figures(request: Mapping[str, Any], timeout_s: float, run: Run) -> dict[str, Any]:
    """Measure the three figures of one subject.

    Args:
        request: ``runner``, ``path``, ``options`` and ``samples`` as for a timing job.
        timeout_s: of each process.
        run: does one job; injected so that shared stages can be cached.

    Returns ``{"interpreter", "runtime", "model"}``, each ``{"bytes", "anonymous_bytes", "file_bytes", "raw_bytes",
    "source", "method"}`` or ``{"bytes": None, "reason"}``. ``raw_bytes`` has one difference a repeat; ``bytes`` is
    their median, not below 0. The anonymous and file-backed parts are resident after the last call, not at the peak.
    """
    rounds: dict[str, list[Mapping[str, Any]]] = {stage: [] for stage in STAGES}
    result: dict[str, Any] = {}
    broken = ""
    for stage in STAGES:
        for repeat in range(REPEATS):
            if not broken:
                job = {
                    **request,
                    "job": "memory",
                    "stage": stage,
                    "repeat": repeat,
                    "calls": CALLS,
                    "timeout_s": timeout_s,
                }
                broken = _collect(rounds[stage], job, run)
        below = STAGES[STAGES.index(stage) - 1] if stage != STAGES[0] else None
        result[stage] = (
            {"bytes": None, "reason": broken} if broken else _difference(rounds[stage], rounds[below] if below else [])
        )
    return result


def _collect(into: list[Mapping[str, Any]], job: Mapping[str, Any], run: Run) -> str:
    """Run one job; a reason where it gave no figure."""
    try:
        usage = run(job)
    except process.WorkerError as error:
        return str(error)
    into.append(usage)
    return str(usage.get("reason", ""))


def _difference(upper: Sequence[Mapping[str, Any]], lower: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    def parts(key: str) -> list[int]:
        if any(usage[key] is None for usage in [*upper, *lower]):
            return []
        if not lower:
            return [usage[key] for usage in upper]
        return [a[key] - b[key] for a, b in zip(upper, lower)]

    def median(key: str) -> Any:
        values = parts(key)
        return max(stats.percentile(values, 0.5), 0) if values else None

    return {
        "bytes": median("peak"),
        "anonymous_bytes": median("anonymous"),
        "file_bytes": median("file"),
        "raw_bytes": parts("peak"),
        "source": upper[0]["source"],
        "method": upper[0]["method"],
    }
