"""A quiet measurement around made-up subjects, for tests to disturb."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from . import simulate

ENVIRONMENT: dict[str, Any] = {
    "machine": "x86_64",
    "board": None,
    "cpu": "Example CPU 3000",
    "flags": ["avx2", "avx_vnni"],
    "cpus": 4,
    "cpus_allowed": [0, 1, 2, 3],
    "cpus_online": 4,
    "quota_cpus": None,
    "governor": "performance",
    "load1": 0.1,
    "load1_after": 1.0,
    "container": None,
    "kernel": "Linux 6.1",
    "python": "3.11.7",
    "memory_bytes": 8_000_000_000,
    "throttled_periods": 0,
    "thermal_throttles": 0,
    "pressure_cpu_some_us": 0,
    "steal_share": 0.0,
    "samples": None,
    "idle_power_uw": None,
    "missing": {},
}


def steady_clock(end_ns: int, khz: Sequence[int] = (3_000_000,), cpu: str = "cpu3") -> dict[str, Any]:
    """Frequency samples every 200 ms until ``end_ns``; the values are spread evenly over that time."""
    times = list(range(0, end_ns, 200_000_000))
    values = [khz[min(len(khz) - 1, i * len(khz) // len(times))] for i in range(len(times))]
    return {
        "period_ms": 200,
        "t_ns": times,
        "frequency_khz": {cpu: values},
        "temperature_mc": {},
        "energy_uj": {},
        "power_uw": {},
    }


def measurement(*subjects: Mapping[str, Any], environment: Mapping[str, Any] | None = None, **changes: Any) -> Any:
    """A measurement of these subjects on a quiet machine whose frequency is sampled and constant."""
    copies = [copy.deepcopy(dict(subject)) for subject in subjects]
    processes = [process for subject in copies for process in subject["processes"]]
    end = max((p["steady_begin_ns"] + p["steady_span_ns"] for p in processes), default=0) + 1
    return {
        "schema": "edgeopt.measurement/2",
        "effort": "standard",
        "threads": 1,
        "threads_requested": 1,
        "affinity": [3],
        "seed": 7,
        "load": {"kind": "back_to_back"},
        "seconds": None,
        "cut": [],
        "clock": {"overhead_ns": 41, "resolution_ns": 1},
        "order": [subject["name"] for subject in copies],
        "subjects": copies,
        "environment": {**ENVIRONMENT, "samples": steady_clock(end), **(environment or {})},
        **changes,
    }


def flat(median: int = 1000, processes: int = 10, calls: int = 400, name: str = "s") -> dict[str, Any]:
    """A subject with next to no noise."""
    return simulate.subject([[median + i % 3 for i in range(calls)] for _ in range(processes)], name)


def codes(found: Mapping[str, Any], *severities: str) -> set[str]:
    """Codes of the reasons of a grade, of these severities (all if none is named)."""
    return {r["code"] for r in found["reasons"] if not severities or r["severity"] in severities}
