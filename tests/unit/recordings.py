"""Measurements as a device would record them, with latencies and memory whose truth is known."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeopt import comparing
from edgeopt.comparing import Limits, Request
from tests.unit.runtime_bench import simulate

Json = dict[str, Any]

ENVIRONMENT: Mapping[str, Any] = {
    "machine": "aarch64",
    "board": "Raspberry Pi 5",
    "cpu": "Cortex-A76",
    "flags": ["asimd", "asimddp"],
    "cpus": 4,
    "cpus_allowed": [0, 1, 2, 3],
    "cpus_online": 4,
    "quota_cpus": None,
    "governor": "performance",
    "load1": 0.1,
    "load1_after": 0.2,
    "memory_bytes": 8_000_000_000,
    "kernel": "Linux 6.6",
    "python": "3.11.2",
    "container": None,
    "frequency_khz": {"cpu0": {"now": 2_400_000, "min": 1_500_000, "max": 2_400_000}},
    "boost": None,
    "smt": False,
    "aslr": 2,
    "cpuset": None,
    "power_source": None,
    "power_mode": None,
    "temperature_mc": {"cpu-thermal": 51_000},
    "throttled_periods": 0,
    "thermal_throttles": None,
    "pressure_cpu_some_us": 0,
    "steal_share": 0.0,
    "samples": {
        "period_ms": 200,
        "t_ns": [0, 200_000_000, 400_000_000],
        "frequency_khz": {"cpu0": [2_400_000, 2_400_000, 2_400_000]},
        "temperature_mc": {"cpu-thermal": [51_000, 51_000, 52_000]},
        "energy_uj": {},
        "power_uw": {},
    },
    "idle_power_uw": None,
    "missing": {"quota_cpus": "no cgroup quota"},
}


def figure(*raw: int) -> Json:
    """A memory figure with these repeats; without any, one that was not read."""
    if not raw:
        return {"bytes": None, "reason": "no VmHWM in /proc/self/status"}
    return {
        "bytes": max(sorted(raw)[len(raw) // 2], 0),
        "anonymous_bytes": 1_000_000,
        "file_bytes": 500_000,
        "raw_bytes": list(raw),
        "source": "/proc/self/status VmHWM",
        "method": "fresh process, peak reset",
    }


def memory(*model: int, runtime: int = 12_000_000) -> Json:
    """The figures of a subject: one value of the model a repeat; without any, nothing was read."""
    shared = figure(*(runtime for _ in model))
    return {
        "interpreter": figure(*(9_000_000 for _ in model)),
        "runtime": shared,
        "model": figure(*model),
        "load": figure(*(value * 2 for value in model)),
        "steady": figure(*model),
        "growth": {"bytes_per_call": None, "reason": "not asked for"},
    }


def subject(name: str, groups: simulate.Groups, figures: Json | None = None, **changes: Any) -> Json:
    """A subject of a measurement."""
    found = simulate.subject(groups, name)
    return {**found, "memory": memory(5_000_000, 5_010_000, 5_020_000) if figures is None else figures, **changes}


def measurement(*subjects: Json, environment: Mapping[str, Any] | None = None, **changes: Any) -> Json:
    """A measurement around subjects."""
    return {
        "schema": "edgeopt.measurement/2",
        "effort": "standard",
        "threads": 1,
        "threads_requested": 1,
        "affinity": [1],
        "seed": 7,
        "load": {"kind": "back_to_back"},
        "seconds": None,
        "cut": [],
        "clock": {"overhead_ns": 41, "resolution_ns": 1},
        "order": [s["name"] for s in subjects],
        "subjects": list(subjects),
        "environment": {**ENVIRONMENT, **(environment or {})},
        **changes,
    }


def groups(
    factor: float = 1.0, *, seed: int = 1, processes: int = 10, calls: int = 150, effect: float = 0.004
) -> simulate.Groups:
    """Latencies around 5 ms times ``factor``: 2 % noise in a process, processes that differ by ``effect``."""
    rng = random.Random(seed)
    centers = [factor * (1 + rng.gauss(0, effect)) for _ in range(processes)]
    return [[round(simulate.BASE_NS * c * (1 + rng.gauss(0, 0.02))) for _ in range(calls)] for c in centers]


def recording(
    path: Path,
    factor: float = 1.0,
    *,
    seed: int = 1,
    model: Sequence[int] = (5_000_000, 5_010_000, 5_020_000),
    **changes: Any,
) -> Path:
    """Write a measurement of one subject to a file."""
    made = measurement(subject("model", groups(factor, seed=seed), memory(*model)), **changes)
    path.write_text(json.dumps(made))
    return path


def compared(a: Path, b: Path, **settings: Any) -> Json:
    """The result for two paths; ``slowdown``, ``growth`` and ``drop`` are limits."""
    limits = {key: settings.pop(key) for key in ("slowdown", "growth", "drop") if key in settings}
    return comparing.run(Request(a=a, b=b, limits=Limits(**limits), **settings))
