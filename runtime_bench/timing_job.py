"""The timing job of a worker: phases, warm-up, steady state, bursts. Each part is handed over as soon as it is done."""

from __future__ import annotations

import gc
import time
from typing import Any, Iterator, Mapping

from runtime_bench import counters, loads, warmup
from runtime_bench.machine import affinity
from runtime_bench.runners import get

KEPT_WARMUP = 300
"""Warm-up calls kept per process, from the first."""

Plan = Mapping[str, Any]


def job_time(request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Measure one process. It is warmed up back to back under every load.

    Yields the fields of a process record as they become known: ``not_pinned`` (why the process is not kept on its
    CPUs, or an empty string); ``phases_ns`` and ``runtime``; warm-up; steady state with its events; bursts.
    """
    clock, cpus = time.perf_counter_ns, request["cpus"]
    refused = affinity.pin(cpus) if cpus else ""
    yield {"not_pinned": refused}
    runner = get(request["runner"])
    start = clock()
    runner.import_runtime()
    imported = clock()
    loaded = runner.load(request["path"], request["options"])
    done = clock()
    calls = [loaded.bind(runner.read_feeds(files)) for files in request["samples"]] or [loaded.bind({})]
    gc.collect()
    gc.freeze()
    gc.disable()
    begin = clock()
    calls[0]()
    first = clock() - begin
    phases = {"import": imported - start, "load": done - imported, "first": first}
    yield {"phases_ns": phases, "runtime": dict(loaded.runtime)}
    plan = fit(request["plan"], time.monotonic())
    warm, stable = warm_up(calls, plan)
    window = sorted(warm[-warmup.window_of(len(warm)) :])
    expected = window[len(window) // 2]
    yield {
        "warmup_ns": warm[:KEPT_WARMUP],
        "warmup_calls": len(warm),
        "warmup_stable": stable,
        "fault_ns": counters.minor_fault_ns(),
    }
    movable = bool(refused) or len(cpus) != 1
    watch = counters.Counters(request["threads"], expected, request["cpu_stat"], movable=movable)
    load = loads.periodic if plan["fps"] else loads.back_to_back
    yield load(calls, plan, expected, watch, int(request["epoch_ns"]))
    if plan["bursts"]:
        yield {"burst_ns": [loads.burst(calls, plan["burst_calls"], plan["idle_s"]) for _ in range(plan["bursts"])]}


def fit(plan: Plan, now: float) -> dict[str, Any]:
    """Shrink a plan to what is left until ``until`` (monotonic clock, the same in all processes).

    Bursts are dropped where their rest would take more than a fifth; of what remains, a fifth warms up.
    """
    fitted = dict(plan)
    if plan["until"] is not None:
        left = max(plan["until"] - now, 0.01)
        rest = plan["bursts"] * plan["idle_s"]
        if rest > 0.2 * left:
            fitted["bursts"], rest = 0, 0
        for key, part in (("warmup_s", 0.2), ("warmup_cap_s", 0.2), ("steady_s", 0.8), ("steady_cap_s", 0.8)):
            fitted[key] = min(plan[key], part * (left - rest))
    return fitted


def warm_up(calls: loads.Calls, plan: Plan) -> tuple[list[int], bool]:
    """Call until two windows agree and ``warmup_s`` has passed, or until ``warmup_cap_s``.

    Returns the latencies in ns and whether the windows agreed.
    """
    clock = time.perf_counter_ns
    latencies: list[int] = []
    start, next_check, n = clock(), 2 * warmup.WINDOW, len(calls)
    least, cap = start + int(plan["warmup_s"] * 1e9), start + int(plan["warmup_cap_s"] * 1e9)
    while True:
        call = calls[len(latencies) % n]
        before = clock()
        call()
        after = clock()
        latencies.append(after - before)
        if len(latencies) >= next_check and after >= least:
            if warmup.settled(latencies):
                return latencies, True
            next_check = len(latencies) + warmup.window_of(len(latencies))
        if after >= cap:
            return latencies, warmup.settled(latencies)
