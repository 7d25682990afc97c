"""Loads: in what rhythm a model is called, and what is kept of each call.

``back_to_back`` calls again at once. ``periodic`` calls at given times, as a camera would: latency counts from the
scheduled start, so that a call which waits for a late one before it shows the wait (no "coordinated omission": a late
call does not shift the schedule). ``burst`` calls a few times after a rest.
"""

from __future__ import annotations

import math
import time
from array import array
from typing import Any, Callable, Mapping, Sequence

from runtime_bench.counters import Counters

MAX_TIMED = 4000
"""Timed calls expected per phase. A faster model is timed at every k-th call, so that the duration is covered."""

SPIN_NS = 300000
"""A periodic load sleeps until so long before the scheduled start, then spins: sleeping alone ends late."""

WARM_AGAIN_NS = 50000
"""Reading counters cools the caches: short calls measured right after it took 3 to 5 % longer on x86. So many
nanoseconds of untimed calls in between bring that below 0.5 %; what moves in them is charged to the timed call."""

LEAST_CALLS = 3
"""Calls made before ``steady_cap_s`` ends a phase."""

Calls = Sequence[Callable[[], Any]]
Plan = Mapping[str, Any]


def back_to_back(calls: Calls, plan: Plan, expected_ns: int, counters: Counters, epoch_ns: int) -> dict[str, Any]:
    """Call for at least ``iterations`` timed calls and ``steady_s`` seconds, or until ``steady_cap_s``.

    Args:
        calls: they are made in turn.
        plan: holds the three limits.
        expected_ns: duration of a call; decides how many calls are timed.
        counters: read around the timed calls.
        epoch_ns: when the measurement began.

    Returns ``steady_begin_ns``, ``steady_span_ns``, ``steady_ns`` (latency of every k-th call), ``every`` (k),
    ``service_ns`` (empty) and ``events``.
    """
    clock, n, iterations = time.perf_counter_ns, len(calls), int(plan["iterations"])
    every = max(1, int(plan["steady_s"] * 1e9 / max(expected_ns, 1) / plan.get("timed", MAX_TIMED)))
    while math.gcd(every, n) > 1:  # or some samples would never be timed
        every += 1
    again = min(every - 1, 1 + WARM_AGAIN_NS // max(expected_ns, 1))
    latencies = _room(max(iterations, int(plan["steady_s"] * 1e9 / max(expected_ns, 1) / every)))
    i, timed = 0, 0
    counters.mark()
    start = clock()
    least, cap = start + int(plan["steady_s"] * 1e9), start + int(plan["steady_cap_s"] * 1e9)
    while True:
        if every > 1:
            for _ in range(every - 1 - again):
                calls[i % n]()
                i += 1
            counters.mark()
            for _ in range(again):
                calls[i % n]()
                i += 1
        call = calls[i % n]
        i += 1
        before = clock()
        call()
        after = clock()
        if timed == len(latencies):
            latencies.extend(latencies)
        latencies[timed] = after - before
        counters.note(timed, after - before, after)
        timed += 1
        if (timed >= iterations and after >= least) or (after >= cap and timed >= LEAST_CALLS):
            return _steady(start, after, epoch_ns, latencies[:timed], every, array("q"), counters)


def periodic(calls: Calls, plan: Plan, expected_ns: int, counters: Counters, epoch_ns: int) -> dict[str, Any]:
    """Call ``fps`` times a second with the limits of ``back_to_back``; arguments and result are the same.

    ``steady_ns`` is the end of a call minus its scheduled start, ``service_ns`` its end minus its own start.
    """
    clock, n, iterations, fps = time.perf_counter_ns, len(calls), int(plan["iterations"]), plan["fps"]
    room = max(iterations, int(plan["steady_s"] * fps))
    latencies, services = _room(room), _room(room)
    i = 0
    start = clock()
    least, cap = start + int(plan["steady_s"] * 1e9), start + int(plan["steady_cap_s"] * 1e9)
    while True:
        call, due = calls[i % n], start + int((i + 1) * 1e9 / fps)
        rest = due - clock() - SPIN_NS
        if rest > 0:
            time.sleep(rest / 1e9)
        before = clock()
        if before < due:
            counters.mark()  # unless it woke up late: then what made it late is part of the latency
            before = clock()
            while before < due:
                before = clock()
        call()
        after = clock()
        if i == len(latencies):
            latencies.extend(latencies)
            services.extend(services)
        latencies[i], services[i] = after - due, after - before
        counters.note(i, after - due, after)
        i += 1
        if (i >= iterations and after >= least) or (after >= cap and i >= LEAST_CALLS):
            return _steady(start, after, epoch_ns, latencies[:i], 1, services[:i], counters)


def burst(calls: Calls, count: int, idle_s: float) -> list[int]:
    """Latencies in ns of that many calls back to back after a rest, in which a processor lowers its frequency."""
    clock, latencies = time.perf_counter_ns, []
    time.sleep(idle_s)
    for i in range(count):
        before = clock()
        calls[i % len(calls)]()
        latencies.append(clock() - before)
    return latencies


def _room(count: int) -> array[int]:
    """Touched memory for that many latencies and some more: growing lists fault between the calls."""
    return array("q", [0]) * (count + count // 4 + 64)


def _steady(
    start: int,
    end: int,
    epoch_ns: int,
    latencies: array[int],
    every: int,
    services: array[int],
    counters: Counters,
) -> dict[str, Any]:
    return {
        "steady_begin_ns": start - epoch_ns,
        "steady_span_ns": end - start,
        "steady_ns": latencies.tolist(),
        "every": every,
        "service_ns": services.tolist(),
        "events": counters.events,
        "unread": counters.unread,
    }
