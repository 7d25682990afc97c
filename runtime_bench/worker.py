"""One job in one fresh process: a JSON request on stdin, one JSON line as the answer on stdout.

What a runtime prints to stdout goes to stderr, so the answer stays clean. An exception ends the process with its
traceback on stderr; the parent keeps the last line of it.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from typing import Any, Callable, Mapping, Sequence

from runtime_bench import rss, warmup
from runtime_bench.errors import RuntimeMissing
from runtime_bench.runners import Loaded, Runner, get

MAX_TIMED = 4000
"""Timed calls kept per process. A faster model is timed at every k-th call, so that the minimum duration is covered."""

KEPT_WARMUP = 300
"""Warm-up calls kept per process, from the first."""

Request = Mapping[str, Any]


def main() -> int:
    """Read the request, do the job, write the answer."""
    answer = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    request = json.loads(sys.stdin.buffer.read())
    _die_with(request["parent"])
    try:
        result = JOBS[request["job"]](request)
    except RuntimeMissing as error:
        result = {"missing": str(error)}
    answer.write(json.dumps(result) + "\n")
    answer.flush()
    sys.stderr.flush()
    os._exit(0)  # the answer is complete: a runtime that hangs or crashes while it unloads cannot spoil it


def job_time(request: Request) -> dict[str, Any]:
    """Phases, warm-up and steady latencies in nanoseconds."""
    clock = time.perf_counter_ns
    runner = get(request["runner"])
    start = clock()
    runner.import_runtime()
    imported = clock()
    loaded = runner.load(request["path"], request["options"])
    done = clock()
    phases = {"import": imported - start, "load": done - imported}
    calls = _bind(runner, loaded, request["samples"])
    gc.collect()
    gc.freeze()
    gc.disable()
    begin = clock()
    calls[0]()
    phases["first"] = clock() - begin
    plan = fit(request["plan"], time.monotonic())
    warm, stable = warm_up(calls, plan)
    steady, every = steady_state(calls, plan, warmup.window_of(len(warm)), warm)
    return {
        "phases_ns": phases,
        "warmup_ns": warm[:KEPT_WARMUP],
        "warmup_calls": len(warm),
        "warmup_stable": stable,
        "steady_ns": steady,
        "every": every,
        "runtime": loaded.runtime,
    }


def fit(plan: Mapping[str, Any], now: float) -> dict[str, Any]:
    """Shrink a plan to what is left until ``until`` (monotonic clock, the same in all processes): a fifth warms up."""
    fitted = dict(plan)
    if plan["until"] is not None:
        left = max(plan["until"] - now, 0.01)
        for key, part in (("warmup_s", 0.2), ("warmup_cap_s", 0.2), ("steady_s", 0.8), ("steady_cap_s", 0.8)):
            fitted[key] = min(plan[key], part * left)
    return fitted


def warm_up(calls: Sequence[Callable[[], Any]], plan: Mapping[str, Any]) -> tuple[list[int], bool]:
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


def steady_state(
    calls: Sequence[Callable[[], Any]], plan: Mapping[str, Any], window: int, warm: Sequence[int]
) -> tuple[list[int], int]:
    """Call for at least ``iterations`` timed calls and ``steady_s`` seconds, or until ``steady_cap_s``.

    Returns the latencies in ns of every k-th call, and k. The calls cycle over the samples.
    """
    clock = time.perf_counter_ns
    latencies: list[int] = []
    expected = sorted(warm[-window:])[len(warm[-window:]) // 2]
    every = max(1, int(plan["steady_s"] * 1e9 / max(expected, 1) / MAX_TIMED))
    i, n, iterations = 0, len(calls), int(plan["iterations"])
    start = clock()
    least, cap = start + int(plan["steady_s"] * 1e9), start + int(plan["steady_cap_s"] * 1e9)
    while True:
        for _ in range(every - 1):
            calls[i % n]()
            i += 1
        call = calls[i % n]
        i += 1
        before = clock()
        call()
        after = clock()
        latencies.append(after - before)
        if (len(latencies) >= iterations and after >= least) or (after >= cap and len(latencies) >= 3):
            return latencies, every


def job_memory(request: Request) -> dict[str, Any]:
    """Peak and resident memory of nothing (``interpreter``), the one-node model (``runtime``) or the artifact."""
    runner = get(request["runner"])
    if request["stage"] == "interpreter":
        return rss.usage()
    runner.import_runtime()
    if request["stage"] == "runtime":
        loaded = runner.load(runner.BASELINE, request["options"])
        call = loaded.bind(runner.baseline_feeds())
    else:
        loaded = runner.load(request["path"], request["options"])
        call = _bind(runner, loaded, request["samples"][:1])[0]
    for _ in range(int(request["calls"])):
        call()
    return rss.usage()


def job_probe(request: Request) -> dict[str, Any]:
    """What runtime is installed."""
    runner = get(request["runner"])
    runner.import_runtime()
    return dict(runner.runtime_info())


def job_golden(request: Request) -> dict[str, Any]:
    """Run the golden inputs and compare; see ``golden.check``."""
    from runtime_bench import golden

    runner = get(request["runner"])
    runner.import_runtime()
    loaded = runner.load(request["path"], request["options"])
    return golden.check(loaded, runner.read_feeds, request["outputs"], request["samples"])


JOBS: Mapping[str, Callable[[Request], dict[str, Any]]] = {
    "time": job_time,
    "memory": job_memory,
    "probe": job_probe,
    "golden": job_golden,
}


def _bind(runner: Runner, loaded: Loaded, samples: Sequence[Mapping[str, str]]) -> list[Callable[[], Any]]:
    return [loaded.bind(runner.read_feeds(files)) for files in samples] or [loaded.bind({})]


def _die_with(parent: int) -> None:
    """Ask Linux to kill this process when its parent is gone, whatever happened to the parent."""
    if not sys.platform.startswith("linux"):
        return
    try:
        import ctypes

        ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL
    except (ImportError, OSError, AttributeError):
        return
    if os.getppid() != parent:  # it was gone before we asked
        os._exit(1)
