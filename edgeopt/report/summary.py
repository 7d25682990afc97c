"""The figures of a build, once: ``report.json`` is this, and the page, the Markdown and the README read from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from runtime_bench import charged_bytes, compare
from runtime_bench.judge.stability import derive

Json = dict[str, Any]

SCHEMA = "edgeopt.report/2"
BASELINES = ("original", "float32")
"""Subjects that a default artifact is compared with, in this order."""

FIGURES = ("model", "runtime", "interpreter")


def summary(manifest: Mapping[str, Any], diary: Sequence[Mapping[str, Any]], measurements: Mapping[str, Json]) -> Json:
    """Everything that a release script asks for; schema ``edgeopt.report/2``. Times in ns, sizes in bytes."""
    default = default_artifact(manifest)
    return {
        "schema": SCHEMA,
        "edgeopt": manifest.get("edgeopt"),
        "name": manifest["name"],
        "target": manifest["target"]["name"],
        "backend": manifest.get("backend"),
        "verdict": manifest["verdict"],
        "measured_on": manifest.get("measured_on"),
        "default": {key: default.get(key) for key in ("path", "precision", "format", "bytes", "sha256")},
        "size": _size(manifest, default),
        "memory": {name: _memory(figures) for name, figures in (manifest.get("memory") or {}).items()},
        "latency": _latency(default["precision"], measurements),
        "quality": manifest.get("quality"),
        "budget": (manifest.get("budget") or {}).get("checked", []),
        **({"frontier": manifest["frontier"]} if manifest.get("frontier") else {}),
        "placement": {key: (manifest.get("placement") or {}).get(key) for key in ("int8", "fused", "float")},
        "steps": [_step(row) for row in diary],
        **({"frontier": manifest["frontier"]} if manifest.get("frontier") else {}),
    }


def default_artifact(manifest: Mapping[str, Any]) -> Json:
    """The entry of ``artifacts`` that ``default_artifact`` names."""
    found: Json = next(a for a in manifest["artifacts"] if a["path"] == manifest["default_artifact"])
    return found


def worst_sqnr(drift: Sequence[Mapping[str, Any]]) -> float | str | None:
    """The lowest SQNR of any output in dB; None when every output is identical (or there is none).

    ``"-inf"``, the diary's word for an output that has error where the reference is all zeros, is the lowest.
    """
    values = [d["sqnr_db"] for d in drift if d["sqnr_db"] is not None]
    return "-inf" if "-inf" in values else min(values, default=None)


def _size(manifest: Mapping[str, Any], default: Json) -> Json:
    """Bytes of the default artifact against the float artifact of the bundle, else against the source file."""
    floats = [a for a in manifest["artifacts"] if a["precision"] == "float32" and a["path"] != default["path"]]
    baseline, count = (
        ("float32 artifact", floats[0]["bytes"]) if floats else ("source file", manifest["source"]["bytes"])
    )
    factor = count / default["bytes"] if default["bytes"] else None
    return {"default": default["bytes"], "baseline": count, "baseline_is": baseline, "factor": factor}


def _memory(figures: Mapping[str, Any]) -> Json:
    """The three figures, ``charged`` = runtime + model, and ``charged_worst``, its largest over the repeats.

    Budgets count the last one. Both are None where a figure is missing.
    """
    found: Json = {key: figures.get(key) or {"bytes": None, "reason": "not measured"} for key in FIGURES}
    return {
        **{key: figures[key] for key in ("load", "calls", "steady", "growth") if figures.get(key)},
        **found,
        "charged": charged_bytes(found, worst=False),
        "charged_worst": charged_bytes(found, worst=True),
    }


def _latency(precision: str, measurements: Mapping[str, Json]) -> Json:
    """Summaries and grade of the measurement that holds the default artifact, and its ratio to the baseline.

    ``subjects`` has the whole summary of each subject, ``stability`` the grade with its reasons; both are made from
    the raw samples, whatever the measurement says of itself.
    """
    for name, measurement in sorted(measurements.items()):
        subjects = {s["name"]: s for s in measurement["subjects"]}
        if precision not in subjects:
            continue
        baseline = next((b for b in BASELINES if b in subjects and b != precision), None)
        results = derive(measurement)
        return {
            "measurement": name,
            "effort": measurement.get("effort"),
            "threads": measurement.get("threads"),
            "load": measurement.get("load"),
            "affinity": measurement.get("affinity"),
            "clock": measurement.get("clock"),
            "subjects": results["summaries"],
            "ratio": compare(measurement, baseline, precision) if baseline else None,
            "stability": results["stability"],
        }
    reason = "no measurement of the default artifact" if measurements else "the build made no measurement"
    return {"measurement": None, "reason": reason, "subjects": {}, "ratio": None, "stability": None}


def _step(row: Mapping[str, Any]) -> Json:
    return {
        "kind": row["step"]["kind"],
        "name": row["step"]["name"],
        "status": row["status"],
        "reason": row["reason"],
        "before": row["before"],
        "after": row["after"],
        "outputs_compared": len(row["drift"]),
        "sqnr_db": worst_sqnr(row["drift"]),
        "latency_ratio": row["latency_ratio"],
        "seconds": row["seconds"] if math.isfinite(row["seconds"]) else None,
        **({"points": row["points"]} if row.get("points") else {}),
    }
