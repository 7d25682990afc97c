"""A measurement in which everything happens: a periodic load, outliers of every cause, heat, a crash, a leak."""

from __future__ import annotations

import math
import random

from .recorded import COUNTERS, FAULT_NS, MEDIANS_MS, PERIOD_NS, PLANTED, SAMPLE_NS, Json, measurement

SUSTAINED_S = 90
DROOP = 0.11
"""Share of the frequency that the processor gives up by the end of a sustained phase."""


def troubled(processes: int = 10, samples: int = 150, seed: int = 5) -> Json:
    """Three subjects, ``release``-like, on a board with a governor, clocks and thermometers but no power sensor."""
    noise = random.Random(seed)
    found = measurement(processes, samples, seed, original=True)
    found.update(effort="release", load={"kind": "periodic", "fps": 30.0, "period_ns": PERIOD_NS}, affinity=[2])
    now = 300_000_000
    for name in found["order"]:
        subject = next(s for s in found["subjects"] if s["name"] == name)
        record = next(p for p in subject["processes"] if "service_ns" in p and "laid" not in p)
        now = _lay(record, now)
    for subject in found["subjects"]:
        for record in subject["processes"]:
            del record["laid"]
            _plant(noise, record)
    slow = _slow_clock(found["subjects"][2]["processes"][1])
    for subject in found["subjects"]:
        subject["sustained"], now = _sustained(noise, subject["name"], now)
        for record in subject["processes"]:
            record["burst_ns"] = [[int(1.9 * v), int(1.2 * v), v, v] for v in record["steady_ns"][:2]]
    _fail(found["subjects"][1]["processes"][4])
    _sense(found, now, slow)
    _leak(found["subjects"][2]["memory"])
    _fall_back(found["subjects"][2])
    found["subjects"][0]["audit"] = {"reason": "the profile of the runtime could not be read"}
    return found


def _lay(record: Json, now: int) -> int:
    """Place a process in time under the periodic load; the end of it."""
    shift = now - record["start_ns"]
    record.update(start_ns=now, laid=True, service_ns=list(record["steady_ns"]))
    record["steady_begin_ns"] += shift
    record["steady_span_ns"] = PERIOD_NS * len(record["steady_ns"])
    return int(record["steady_begin_ns"] + record["steady_span_ns"] + 150_000_000)


def _plant(noise: random.Random, record: Json) -> None:
    """One outlier of some causes in each process, with the counters that explain it."""
    events = record["events"]
    free = noise.sample(range(5, len(record["steady_ns"]) - 5, 4), len(PLANTED))
    for at, (cause, (excess_ms, counters)) in zip(free, PLANTED.items(), strict=True):
        if noise.random() < 0.5 and cause != "preempted":
            continue
        for times in ("steady_ns", "service_ns"):
            record[times][at] += int(excess_ms * 1e6 * noise.uniform(0.9, 1.1))
        for key, value in counters.items():
            events[key].append([at, value])
    for pairs in events.values():
        pairs.sort()


def _slow_clock(record: Json) -> int:
    """Three calls while the clock was low; the moment."""
    at = len(record["steady_ns"]) // 2
    for k in range(at, at + 3):
        for times in ("steady_ns", "service_ns"):
            record[times][k] = int(1.3 * MEDIANS_MS["int8"] * 1e6)
    return int(record["steady_begin_ns"] + (at + 1) * PERIOD_NS)


def _sustained(noise: random.Random, name: str, now: int) -> tuple[Json, int]:
    """The same rhythm for long: latency follows the clock down as the chip gets hot."""
    begin = now + 600_000_000
    spent = int(SUSTAINED_S * 1e9)
    values = [
        int(MEDIANS_MS[name] * 1e6 / (1 - DROOP * (1 - math.exp(-at / 30e9))) * math.exp(noise.gauss(0, 0.012)))
        for at in range(0, spent, PERIOD_NS)
    ]
    record = {
        "start_ns": now,
        "steady_begin_ns": begin,
        "steady_span_ns": spent,
        "steady_ns": values,
        "every": 1,
        "events": {key: [] for key in COUNTERS},
        "unread": {},
        "fault_ns": FAULT_NS,
        "error": None,
        "cut_short": False,
    }
    return record, begin + spent + 20_000_000_000


def _fail(record: Json) -> None:
    record.update(error="killed by SIGKILL (out of memory?)", steady_ns=[], service_ns=[], steady_span_ns=0)
    record.update(burst_ns=[], events={key: [] for key in COUNTERS}, warmup_stable=False)


def _sense(found: Json, end: int, slow: int) -> None:
    """Clock and temperature over the measurement."""
    moments = list(range(0, end, SAMPLE_NS))
    clock, heat = [], []
    for t in moments:
        share, celsius = 1.0, 52.0
        for subject in found["subjects"]:
            record = subject["sustained"]
            begin, length = record["steady_begin_ns"], record["steady_span_ns"]
            if begin <= t < begin + length:
                share, celsius = (
                    1 - DROOP * (1 - math.exp(-(t - begin) / 30e9)),
                    83 - 31 * math.exp(-(t - begin) / 25e9),
                )
            elif t >= begin + length:
                celsius = max(celsius, 52 + 31 * math.exp(-(t - begin - length) / 8e9))
        share = 0.77 if abs(t - slow) <= SAMPLE_NS else share
        clock.append(int(2_400_000 * share))
        heat.append(int(1000 * celsius))
    environment = found["environment"]
    environment["samples"].update(
        t_ns=moments,
        frequency_khz={f"cpu{k}": clock if k == 2 else [1_500_000] * len(clock) for k in range(4)},
        temperature_mc={"cpu-thermal": heat},
    )
    environment.update(
        machine="aarch64",
        board="Raspberry Pi 5 Model B Rev 1.0",
        cpu="Cortex-A76",
        flags=["asimd", "asimddp", "fphp"],
        cpus=4,
        cpus_allowed=[0, 1, 2, 3],
        cpus_online=4,
        governor="ondemand",
        kernel="Linux 6.6.51+rpt-rpi-2712",
        frequency_khz={f"cpu{k}": {"now": 1_500_000, "min": 1_500_000, "max": 2_400_000} for k in range(4)},
        temperature_mc={"cpu-thermal": 52_000},
        thermal_throttles=3,
        load1_after=1.4,
    )
    for key in ("board", "governor", "frequency_khz", "temperature_mc", "thermal_throttles"):
        environment["missing"].pop(key, None)
        environment["missing"].pop(f"samples.{key}", None)


def _fall_back(subject: Json) -> None:
    """Asked for XNNPACK, which took most of the network."""
    asked = "XnnpackExecutionProvider"
    subject["runtime"].update(asked=asked, provider=asked)
    subject["audit"].update(
        asked=asked,
        providers={asked: 58, "CPUExecutionProvider": 6},
        outside=[
            {"op": "Resize", "provider": "CPUExecutionProvider", "count": 2, "macs": 0},
            {"op": "QLinearConv", "provider": "CPUExecutionProvider", "count": 4, "macs": 31_000_000},
        ],
        macs={asked: 354_000_000, "CPUExecutionProvider": 31_000_000},
    )


def _leak(memory: Json) -> None:
    growth = memory["growth"]
    first = growth["points"][0][1]
    growth.update(bytes_per_call=2048.0, low=1990.0, high=2110.0, verdict="leak")
    growth["points"] = [[calls, first + 2048 * calls] for calls, _ in growth["points"]]
    memory["load"] = {"bytes": None, "reason": "no /proc/self/clear_refs in this container"}
