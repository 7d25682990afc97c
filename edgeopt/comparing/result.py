"""The result of a comparison as one JSON value, schema ``edgeopt.comparison/1``. Every ratio is B over A."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgeopt.comparing.answers import Side
from edgeopt.comparing.gates import Limits, judge
from edgeopt.comparing.sources import Artifact
from edgeopt.errors import BenchError

Json = Mapping[str, Any]

SCHEMA = "edgeopt.comparison/1"

HOW = {
    "now": "measured now, in alternation",
    "paired": "recorded in one measurement, in alternation",
    "apart": "recorded apart: no pairs, and what differed between the two runs is in the ratio",
}
"""How the two sides were measured, and what that is called."""


def assemble(
    sides: Sequence[Side],
    measurements: Sequence[Json],
    names: Sequence[str],
    *,
    how: str,
    unlike: Sequence[str],
    notes: Sequence[str],
    quality: Json,
    limits: Limits,
) -> dict[str, Any]:
    """Compare two subjects in everything.

    Args:
        sides: A and B as given.
        measurements: that of A and that of B; the same one where they were measured together.
        names: the subject in each.
        how: a key of ``HOW``.
        unlike: differences between the two that were let pass.
        notes: what a reader should know besides.

    Raises:
        BenchError: the measurement of a side is graded ``invalid``.
    """
    from runtime_bench.judge import comparison

    a, b = (_subject(m, name) for m, name in zip(measurements, names))
    summaries, grades = _derived(measurements, names)
    paired = how != "apart"
    latency = {
        key: {
            "a_ns": summaries[0][f"{key}_ns"],
            "b_ns": summaries[1][f"{key}_ns"],
            **comparison.latency(a, b, paired=paired, q=q),
        }
        for key, q in (("median", 0.5), ("p95", 0.95))
    }
    memory = {
        figure: {
            "a_bytes": _bytes(a["memory"], figure),
            "b_bytes": _bytes(b["memory"], figure),
            **comparison.memory(a, b, paired=paired, figure=figure),
        }
        for figure in ("peak", "load")
    }
    sizes = [side.bytes if isinstance(side, Artifact) else s.get("bytes") for side, s in zip(sides, (a, b))]
    return {
        "schema": SCHEMA,
        "verdict": latency["median"]["verdict"],
        "how": how,
        "unlike": list(unlike),
        "notes": list(notes),
        "a": _side(sides[0], a, measurements[0], grades[0]),
        "b": _side(sides[1], b, measurements[1], grades[1]),
        "latency": latency,
        "memory": memory,
        "artifact": {"a_bytes": sizes[0], "b_bytes": sizes[1], "ratio": _exact(sizes[0], sizes[1])},
        "quality": dict(quality),
        "gates": judge(limits, latency["median"], memory["peak"], quality),
    }


def _derived(measurements: Sequence[Json], names: Sequence[str]) -> tuple[list[Json], list[Json]]:
    """Summary and grade of each side, made anew from the raw samples."""
    from runtime_bench.judge.stability import derive

    same = measurements[0] is measurements[1]
    first = derive(measurements[0])
    found = [first, first if same else derive(measurements[1])]
    grades: list[Json] = []
    for label, name, results in zip("AB", names, found):
        stability = results["stability"]
        reasons = [r for r in stability["reasons"] if r["subject"] in (None, name)]
        grades.append({"grade": stability["subjects"][name], "reasons": reasons})
        if grades[-1]["grade"] == "invalid":
            told = "; ".join(str(r["text"]) for r in reasons if r["severity"] == "invalid")
            advice = next((r["advice"] for r in reasons if r["severity"] == "invalid" and r["advice"]), None)
            raise BenchError(f"the measurement of {label} is invalid: {told}", remedy=_sentence(advice))
    return [results["summaries"][name] for name, results in zip(names, found)], grades


def _sentence(advice: Any) -> str | None:
    return None if not advice else f"{str(advice)[:1].upper()}{str(advice)[1:].rstrip('.')}."


def _subject(measurement: Json, name: str) -> Json:
    found: Json = next(s for s in measurement["subjects"] if s["name"] == name)
    return found


def _bytes(memory: Json, figure: str) -> int | None:
    from runtime_bench import charged_bytes

    if figure == "peak":
        return charged_bytes(memory, worst=False)
    found: int | None = (memory.get(figure) or {}).get("bytes")
    return found


def _exact(a: int | None, b: int | None) -> float | None:
    return b / a if a and b is not None else None


def _side(side: Side, subject: Json, measurement: Json, grade: Json) -> dict[str, Any]:
    environment = measurement["environment"]
    return {
        "given": side.given,
        "file": subject.get("file"),
        "sha256": subject.get("sha256"),
        "precision": subject.get("precision"),
        "runtime": {key: subject["runtime"][key] for key in ("name", "version", "provider")},
        "threads": measurement["threads"],
        "effort": measurement["effort"],
        "load": dict(measurement.get("load") or {"kind": "back_to_back"}),
        "machine": {key: environment.get(key) for key in ("board", "cpu", "machine", "cpus", "kernel")},
        "processes": sum(not p["error"] for p in subject["processes"]),
        "grade": grade["grade"],
        "reasons": [{key: r[key] for key in ("code", "severity", "text", "advice")} for r in grade["reasons"]],
    }
