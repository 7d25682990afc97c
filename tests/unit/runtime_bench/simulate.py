"""Made-up latencies whose truth is known: lists of processes of nanoseconds, and a measurement's subject around them.

Every generator takes ``(rng, processes, iterations)`` and returns one list of latencies in ns a process. The logarithm
of a latency is ``log(BASE_NS)`` plus noise; ``Generator.truth(q)`` is the percentile of the distribution that a call at
a random place of a random process has.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from runtime_bench.statistics import drift as trends
from runtime_bench.statistics import modes, phases, spread, stats, tails

BASE_NS = 5_000_000
NOISE = 0.05
"""Standard deviation of the logarithm inside a process, where a generator says nothing else."""

PROCESS_EFFECT = 0.03
PHI = 0.9
STEP_AT, STEP = 1 / 3, 0.30
"""The last two thirds of every process are slower by this much (of the logarithm), six standard deviations."""

DRIFT = 0.10
"""Growth of the logarithm from the first call of the first process to the last call of the last."""

MODE_NOISE, MODE_DISTANCE, MODE_SHARE = 0.02, 5.0, 0.30
SPIKE_SHARE = 0.015

Groups = list[list[int]]
Make = Callable[[random.Random, int, int], Groups]


class Generator(NamedTuple):
    """``truth(q)`` is in ns."""

    name: str
    make: Make
    truth: Callable[[float], float]


def ns(log_factor: float) -> int:
    return round(BASE_NS * math.exp(log_factor))


def iid(rng: random.Random, processes: int = 10, iterations: int = 150) -> Groups:
    return [[ns(rng.gauss(0, NOISE)) for _ in range(iterations)] for _ in range(processes)]


def ar1(rng: random.Random, processes: int = 10, iterations: int = 150, phi: float = PHI) -> Groups:
    """Autocorrelated noise inside each process, of the same spread as ``iid``."""
    return [[ns(v) for v in _chain(rng, iterations, phi)] for _ in range(processes)]


def process_effect(rng: random.Random, processes: int = 10, iterations: int = 150) -> Groups:
    effects = [rng.gauss(0, PROCESS_EFFECT) for _ in range(processes)]
    return [[ns(effect + rng.gauss(0, NOISE)) for _ in range(iterations)] for effect in effects]


def step(rng: random.Random, processes: int = 10, iterations: int = 150) -> Groups:
    at = round(STEP_AT * iterations)
    return [[ns(STEP * (i >= at) + rng.gauss(0, NOISE)) for i in range(iterations)] for _ in range(processes)]


def drift(rng: random.Random, processes: int = 10, iterations: int = 150) -> Groups:
    slope = DRIFT / (processes * iterations)
    return [
        [ns(slope * (p * iterations + i) + rng.gauss(0, NOISE)) for i in range(iterations)] for p in range(processes)
    ]


def two_modes(rng: random.Random, processes: int = 10, iterations: int = 150) -> Groups:
    """Each call by itself falls into the slower mode with a chance of 30 %."""
    far = MODE_DISTANCE * MODE_NOISE

    def one() -> int:
        return ns(far * (rng.random() < MODE_SHARE) + rng.gauss(0, MODE_NOISE))

    return [[one() for _ in range(iterations)] for _ in range(processes)]


def spikes(rng: random.Random, processes: int = 10, iterations: int = 150, share: float = SPIKE_SHARE) -> Groups:
    """1.5 % of the calls take 1.5 to 4 times as long."""

    def one() -> int:
        return ns(rng.gauss(0, NOISE) + (rng.uniform(math.log(1.5), math.log(4)) if rng.random() < share else 0.0))

    return [[one() for _ in range(iterations)] for _ in range(processes)]


def _chain(rng: random.Random, length: int, phi: float) -> list[float]:
    value = rng.gauss(0, NOISE)
    fresh = NOISE * math.sqrt(1 - phi * phi)
    chain = []
    for _ in range(length):
        chain.append(value)
        value = phi * value + rng.gauss(0, fresh)
    return chain


def _normal(x: float, center: float, sd: float) -> float:
    return math.erfc((center - x) / (sd * math.sqrt(2))) / 2


def _truth(parts: Sequence[tuple[float, float, float]]) -> Callable[[float], float]:
    """Percentile in ns of a mixture of lognormals, given as (share, center, standard deviation) of the logarithm."""

    @functools.cache
    def truth(q: float) -> float:
        low, high = -1.0, 3.0
        for _ in range(60):
            middle = (low + high) / 2
            if math.fsum(share * _normal(middle, center, sd) for share, center, sd in parts) < q:
                low = middle
            else:
                high = middle
        return BASE_NS * math.exp(low)

    return truth


def _spread(share: float, low: float, high: float, sd: float, parts: int = 200) -> list[tuple[float, float, float]]:
    """A center that is uniform between two bounds, cut into equal parts."""
    return [(share / parts, low + (high - low) * (i + 0.5) / parts, sd) for i in range(parts)]


IID = Generator("iid", iid, _truth([(1, 0, NOISE)]))
AR1 = Generator("ar1", ar1, _truth([(1, 0, NOISE)]))
PROCESS = Generator("process effect", process_effect, _truth([(1, 0, math.hypot(NOISE, PROCESS_EFFECT))]))
STEP_INSIDE = Generator("step", step, _truth([(STEP_AT, 0, NOISE), (1 - STEP_AT, STEP, NOISE)]))
LINEAR = Generator("drift", drift, _truth(_spread(1, 0, DRIFT, NOISE)))
MODES = Generator(
    "two modes",
    two_modes,
    _truth([(1 - MODE_SHARE, 0, MODE_NOISE), (MODE_SHARE, MODE_DISTANCE * MODE_NOISE, MODE_NOISE)]),
)
SPIKES = Generator(
    "spikes", spikes, _truth([(1 - SPIKE_SHARE, 0, NOISE), *_spread(SPIKE_SHARE, math.log(1.5), math.log(4), NOISE)])
)
GENERATORS = (IID, AR1, PROCESS, STEP_INSIDE, LINEAR, MODES, SPIKES)


FASTER = 0.9
"""True ratio of the second subject to the first in ``covered``."""


def covered(
    generator: Generator, rng: random.Random, processes: int = 10, iterations: int = 150, resamples: int = 2000
) -> dict[str, bool | None]:
    """Whether each 95 % interval of one run holds the truth; None where there is no interval.

    ``pooled median`` and ``pooled p90`` take all calls for independent: what must not be done.
    """
    a = generator.make(rng, processes, iterations)
    b = [[round(FASTER * v) for v in values] for values in generator.make(rng, processes, iterations)]
    medians = [[stats.percentile(values, 0.5) for values in groups] for groups in (a, b)]
    pooled = sorted(v for values in a for v in values)
    results: dict[str, bool | None] = {
        "median": _holds(stats.log_interval(medians[0]), generator.truth(0.5)),
        "ratio": _holds(stats.ratio(a, b), FASTER),
        "unpaired ratio": _holds(stats.welch_ratio(*medians), FASTER),
    }
    for q in (0.9, 0.95, 0.99):
        interval = tails.tail_interval(a, q, resamples=resamples) if resamples else None
        results[stats.name_of(q)] = _holds(interval, generator.truth(q)) if interval else None
    for q, name in ((0.5, "pooled median"), (0.9, "pooled p90")):
        low, high = tails.order_interval(pooled, q)
        results[name] = None if low is None or high is None else low <= generator.truth(q) <= high
    return results


def _holds(interval: Any, truth: float) -> bool | None:
    return None if interval.low is None else interval.low <= truth <= interval.high


def alarms(groups: Groups) -> dict[str, float]:
    """What is said about one run, 0 or 1; where it is said of each process, the share of the processes."""
    medians = [stats.percentile(values, 0.5) for values in groups]
    rho = [spread.autocorrelation(values, 1)[0] for values in groups]
    severe = [spread.classify(values, spread.tukey(values)) for values in groups]
    count = len(groups)
    return {
        "drift": float(trends.mann_kendall(medians)[1] < 0.05),
        "changepoints": sum(bool(trends.changepoints(values)) for values in groups) / count,
        "not flat": sum(phases.process_class([], values) != "flat" for values in groups) / count,
        "modes": float(len(modes.modes_within(groups).modes) > 1),
        "rho1 > 0.3": float(stats.mean(rho) > 0.3),
        "outliers": float(any(counts.low_severe or counts.high_severe for counts in severe)),
    }


def subject(groups: Sequence[Sequence[int]], name: str = "float32", start_ns: int = 0) -> dict[str, Any]:
    """A measurement's subject with these steady latencies; an empty list becomes a process that failed.

    Processes run one after the other, back to back, from ``start_ns``; every warm-up is flat, no counter moved and
    memory was not measured.
    """
    records, now = [], start_ns
    for i, values in enumerate(groups):
        record = process(list(values), round_=i, start_ns=now)
        records.append(record)
        now = record["steady_begin_ns"] + record["steady_span_ns"] + 5_000_000
    missing = {"bytes": None, "reason": "not asked for"}
    return {
        "name": name,
        "file": name + ".onnx",
        "sha256": "0" * 64,
        "bytes": 1_000_000,
        "precision": None,
        "runtime": {"name": "null", "version": "1", "provider": "null", "asked": "null"},
        "audit": {"reason": "the null runner runs no graph"},
        "processes": records,
        "sustained": None,
        "memory": {
            **{key: dict(missing) for key in ("interpreter", "runtime", "model", "load", "steady")},
            "growth": {"bytes_per_call": None, "reason": "not asked for"},
        },
    }


def process(values: list[int], round_: int = 0, start_ns: int = 0) -> dict[str, Any]:
    """One process of a subject."""
    failed = not values
    warmup = [values[(7 * i) % len(values)] for i in range(20)] if values else []
    phases = {} if failed else {"import": 60_000_000, "load": 20_000_000, "first": 2 * values[0]}
    return {
        "round": round_,
        "start_ns": start_ns,
        "phases_ns": phases,
        "warmup_ns": warmup,
        "warmup_calls": len(warmup),
        "warmup_stable": not failed,
        "steady_begin_ns": start_ns + sum(phases.values()) + sum(warmup),
        "steady_span_ns": sum(values),
        "steady_ns": values,
        "every": 1,
        "service_ns": [],
        "events": {
            "wait_ns": [],
            "switches": [],
            "minor_faults": [],
            "major_faults": [],
            "migrations": [],
            "throttled_ns": [],
        },
        "unread": {},
        "fault_ns": 250,
        "burst_ns": [],
        "cut_short": failed,
        "error": "killed by SIGKILL (out of memory?)" if failed else None,
    }
