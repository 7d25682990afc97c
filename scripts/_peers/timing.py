"""Latency and memory of two models through ``edgeopt compare``, and what of its result is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from _peers import environments
from _peers.networks import Network
from _peers.records import Json, sha256, slug
from _peers.stages import ROOT, Made, Place, child, shape, why

MEMORY = ("a_bytes", "b_bytes", "ratio", "low", "high")


def compared(
    place: Place, name: str, network: Network, what: str, a: Made, b: Made, effort: str, seconds: float
) -> Json:
    """B over A, one thread, in alternation: ``summary`` of the result, or ``{"error"}``."""
    key = {
        "a": sha256(*a.files),
        "b": sha256(*b.files),
        "effort": effort,
        "seconds": seconds,
        "options": dict(b.options),
    }

    def make() -> Json:
        folder = place.work(name) / slug(f"compare {what}")
        out = folder / "comparison.json"
        out.unlink(missing_ok=True)
        python = environments.python_of("edgeopt", place.cache)
        shapes = [word for key, dims in network.shapes.items() for word in ("--shape", shape(key, dims))]
        command = [python, "-m", "edgeopt", "compare", a.source, b.source, "--threads", "1", "--effort", effort]
        done = child([*command, *shapes, "--seconds", str(seconds), "--quiet", "-o", out], folder, ROOT)
        if done.code or not out.is_file():
            return {"error": why(done)}
        try:
            return summary(json.loads(out.read_text(encoding="utf-8")))
        except (KeyError, TypeError, ValueError) as error:
            return {"error": f"{out.name} lacks what is wanted of it: {error!r}"}

    return place.records.get(f"{name}/{what}", key, make)


def summary(comparison: Mapping[str, Any]) -> Json:
    """The figures of both sides, the ratios with their intervals, the median of every process."""
    from runtime_bench.judge.stability import derive
    from runtime_bench.statistics import stats

    measurement = comparison["measurement"]
    derived = derive(measurement)["summaries"]
    sides = {}
    for label, subject in zip("ab", measurement["subjects"]):
        found = derived[subject["name"]]
        good = [process for process in subject["processes"] if not process["error"] and process["steady_ns"]]
        sides[f"side_{label}"] = {
            "memory_bytes": comparison["memory"]["peak"][f"{label}_bytes"],
            **{f"{figure}_ns": found[f"{figure}_ns"] for figure in ("median", "p99")},
            **{
                f"{figure}_{end}_ns": found[f"{figure}_{end}_ns"]
                for figure in ("median", "p99")
                for end in ("low", "high")
            },
            "calls": found["n"],
            "process_medians_ns": [stats.percentile(process["steady_ns"], 0.5) for process in good],
            "grade": comparison[label]["grade"],
            "runtime": comparison[label]["runtime"],
            "file": comparison[label]["file"],
        }
    memory = comparison["memory"]["peak"]
    latency = comparison["latency"]["median"]
    return {
        **sides,
        "latency": {figure: latency[figure] for figure in ("ratio", "low", "high", "verdict")},
        "memory": {figure: memory[figure] for figure in MEMORY},
        "machine": comparison["a"]["machine"],
        "effort": comparison["a"]["effort"],
        "notes": comparison["notes"],
    }
