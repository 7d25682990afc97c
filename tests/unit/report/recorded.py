"""Measurements (``edgeopt.measurement/2``) of the made-up build: seeded, of realistic size, laid out in time."""

from __future__ import annotations

import math
import random
from typing import Any

Json = dict[str, Any]

MEDIANS_MS = {"original": 18.9, "float32": 17.1, "int8": 8.04}
DIGESTS = {"original": "d", "float32": "a", "int8": "b"}
MODEL_BYTES = {"original": 36_100_000, "float32": 34_209_792, "int8": 12_926_976}
RUNTIME_BYTES = 21_340_160
FAULT_NS = 250
PERIOD_NS = 33_333_333
SAMPLE_NS = 200_000_000
PLANTED = {  # cause -> (excess in ms, counters that explain it)
    "preempted": (14.0, {"wait_ns": 13_200_000, "switches": 1}),
    "migrated": (6.0, {"migrations": 1}),
    "page_fault": (9.0, {"minor_faults": 14_000}),
    "throttled": (61.0, {"throttled_ns": 58_000_000}),
    "unknown": (24.0, {}),
}
COUNTERS = ("wait_ns", "switches", "minor_faults", "major_faults", "migrations", "throttled_ns")


def measurement(processes: int = 3, samples: int = 60, seed: int = 7, *, original: bool = False) -> Json:
    """float32 and int8 in alternation, ``original`` besides if asked: lognormal noise, a process effect, a tail."""
    noise, names = random.Random(seed), [*(["original"] if original else []), "float32", "int8"]
    effects = {name: [noise.gauss(0, 0.006) for _ in range(processes)] for name in names}
    records: dict[str, list[Json]] = {name: [] for name in names}
    order, now = [], 300_000_000
    for round_ in range(processes):
        for name in names if round_ % 2 == 0 else reversed(names):
            steady = _steady(noise, MEDIANS_MS[name], effects[name][round_], samples)
            for _ in range(max(1, samples // 60)):
                at = noise.randrange(samples)
                steady[at] = int(steady[at] * noise.uniform(1.03, 1.06))
            records[name].append(_process(noise, name, round_, now, steady))
            now += records[name][-1]["steady_begin_ns"] - now + records[name][-1]["steady_span_ns"] + 120_000_000
            order.append(name)
    return _measurement(names, records, order, now)


def _steady(noise: random.Random, median_ms: float, effect: float, samples: int) -> list[int]:
    return [int(1e6 * median_ms * math.exp(effect + noise.gauss(0, 0.012))) for _ in range(samples)]


def _process(noise: random.Random, name: str, round_: int, start: int, steady: list[int]) -> Json:
    center = MEDIANS_MS[name] * 1e6
    warm = [int(center * (1 + 0.5 / (k + 1)) * math.exp(noise.gauss(0, 0.01))) for k in range(24)]
    phases = {
        "import": int(9.1e7 * math.exp(noise.gauss(0, 0.02))),
        "load": int(center * 3.1 * math.exp(noise.gauss(0, 0.05))),
        "first": int(center * 1.6 * math.exp(noise.gauss(0, 0.05))),
    }
    return {
        "round": round_,
        "start_ns": start,
        "phases_ns": phases,
        "warmup_ns": warm,
        "warmup_calls": len(warm),
        "warmup_stable": True,
        "steady_begin_ns": start + 40_000_000 + sum(phases.values()) + sum(warm),
        "steady_span_ns": int(1.01 * sum(steady)),
        "steady_ns": steady,
        "every": 1,
        "service_ns": [],
        "events": {key: [] for key in COUNTERS},
        "unread": {},
        "fault_ns": FAULT_NS,
        "burst_ns": [],
        "cut_short": False,
        "error": None,
    }


def _measurement(names: list[str], records: dict[str, list[Json]], order: list[str], end: int) -> Json:
    return {
        "schema": "edgeopt.measurement/2",
        "effort": "quick",
        "threads": 1,
        "threads_requested": 1,
        "affinity": [1],
        "seed": 7,
        "load": {"kind": "back_to_back"},
        "seconds": None,
        "cut": [],
        "isa": [],
        "clock": {"overhead_ns": 41, "resolution_ns": 1},
        "order": order,
        "subjects": [_subject(name, records[name]) for name in names],
        "environment": _environment(end),
    }


def _subject(name: str, records: list[Json]) -> Json:
    whole = name == "int8"
    return {
        "name": name,
        "file": f"model/efficientnet-lite0.{name}.onnx",
        "sha256": DIGESTS[name] * 64,
        "bytes": 5_071_904 if whole else 18_634_112,
        "precision": name if name != "original" else None,
        "runtime": {
            "name": "onnxruntime",
            "version": "1.32.0",
            "provider": "CPUExecutionProvider",
            "asked": "CPUExecutionProvider",
        },
        "audit": {
            "asked": "CPUExecutionProvider",
            "nodes": 64 if whole else 62,
            "providers": {"CPUExecutionProvider": 64 if whole else 62},
            "outside": [],
            "shape_nodes_outside": 0,
            "opaque_nodes": 0,
            "macs": {"CPUExecutionProvider": 385_000_000},
            "macs_reason": None,
            "integer_nodes": 60 if whole else 0,
            "float_nodes": 3 if whole else 62,
            "integer_macs": 383_720_000 if whole else 0,
            "float_macs": 1_280_000 if whole else 385_000_000,
        },
        "processes": records,
        "sustained": None,
        "memory": memory(MODEL_BYTES[name], RUNTIME_BYTES),
    }


def memory(model: int, runtime: int) -> Json:
    """The figures of one subject."""
    peaks = ("bytes", "raw_bytes", "source", "method")
    growth = {
        "bytes_per_call": 0.0,
        "low": -1.5,
        "high": 2.0,
        "calls": 500,
        "points": [[50 * k, model - 3_000_000] for k in range(11)],
        "verdict": "none",
        "source": "/proc/self/smaps_rollup Private_*",
        "method": "Theil-Sen slope over the calls of one process",
    }
    return {
        "interpreter": _figure(28_311_552, 9_437_184),
        "runtime": _figure(runtime, 7_340_032),
        "model": _figure(model, model - 1_800_000),
        "load": {k: v for k, v in _figure(model + 4_200_000, model).items() if k in (*peaks, "anonymous_bytes")},
        "calls": {k: v for k, v in _figure(model - 100_000, model - 1_900_000).items() if k in peaks},
        "steady": _figure(model - 3_000_000, model - 4_000_000),
        "growth": growth,
    }


def _figure(total: int, anonymous: int) -> Json:
    return {
        "bytes": total,
        "anonymous_bytes": anonymous,
        "file_bytes": total - anonymous,
        "pss_bytes": total - 200_000,
        "uss_bytes": total - 400_000,
        "raw_bytes": [total] * 3,
        "source": "/proc/self/status VmHWM",
        "method": "fresh process, peak reset",
    }


MISSING = {
    "board": "no /proc/device-tree/model",
    "governor": "no cpufreq in /sys",
    "quota_cpus": "no cgroup quota",
    "frequency_khz": "no cpufreq in /sys",
    "boost": "no cpufreq in /sys",
    "temperature_mc": "no thermal zones in /sys",
    "thermal_throttles": "no thermal_throttle in /sys",
    "power_source": "no /sys/class/power_supply",
    "power_mode": "not a Jetson",
    "container": "no sign of a container",
    "idle_power_uw": "no energy or power sensor",
    "samples.frequency_khz": "no cpufreq in /sys",
    "samples.temperature_mc": "no readable thermal zone in /sys",
    "samples.energy_uj": "energy_uj of RAPL is for root only",
    "samples.power_uw": "no INA sensor in /sys/class/hwmon",
}
"""What a cloud machine cannot tell."""


def _environment(end: int) -> Json:
    return {
        "machine": "x86_64",
        "board": None,
        "cpu": "AMD EPYC 9R14",
        "flags": ["sse4_2", "avx", "f16c", "fma", "avx2", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16"],
        "cpus": 2,
        "cpus_allowed": [0, 1],
        "cpus_online": 2,
        "quota_cpus": None,
        "governor": None,
        "load1": 0.42,
        "load1_after": 1.02,
        "memory_bytes": 8_127_901_696,
        "kernel": "Linux 6.1.0-13-amd64",
        "python": "3.11.2",
        "container": None,
        "frequency_khz": None,
        "boost": None,
        "smt": False,
        "aslr": 2,
        "cpuset": [0, 1],
        "thread_variables": {},
        "power_source": None,
        "power_mode": None,
        "temperature_mc": None,
        "throttled_periods": 0,
        "thermal_throttles": None,
        "pressure_cpu_some_us": 12_000,
        "steal_share": 0.0,
        "idle_power_uw": None,
        "samples": {
            "period_ms": 200,
            "t_ns": list(range(0, end, SAMPLE_NS)),
            "frequency_khz": {},
            "temperature_mc": {},
            "energy_uj": {},
            "power_uw": {},
        },
        "missing": dict(MISSING),
    }
