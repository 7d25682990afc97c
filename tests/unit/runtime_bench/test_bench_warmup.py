"""The warm-up rule: settles on flat and on noisy data, not on a trend or a step."""

from __future__ import annotations

import math
import random

from runtime_bench import timing_job, warmup


def noisy(rng: random.Random, level: float, n: int, spread: float = 0.01) -> list[int]:
    return [round(level * rng.lognormvariate(0, spread)) for _ in range(n)]


def test_flat_settles_at_once() -> None:
    assert warmup.settled([1000000] * 20)
    assert not warmup.settled([1000000] * 19)


def test_noise_alone_rarely_delays() -> None:
    rng = random.Random(1)
    assert sum(warmup.settled(noisy(rng, 1e6, 20, 0.1)) for _ in range(500)) >= 450


def test_step_inside_the_windows_is_seen() -> None:
    rng = random.Random(2)
    for _ in range(200):
        assert not warmup.settled(noisy(rng, 2e6, 10) + noisy(rng, 1e6, 10))


def test_trend_is_seen() -> None:
    rng = random.Random(3)
    for _ in range(200):
        falling = [round(1e6 * math.exp(-0.02 * i) * rng.lognormvariate(0, 0.01)) for i in range(20)]
        assert not warmup.settled(falling)


def test_windows_grow_with_the_number_of_calls() -> None:
    assert warmup.window_of(20) == 10
    assert warmup.window_of(5000) == 500
    # a slow first half does not matter any more once the last fifth is flat
    assert warmup.settled([5000] * 4000 + [1000] * 1000)


def plan(**changes: float) -> dict[str, float]:
    limits = {"iterations": 5, "steady_s": 0.0, "warmup_s": 0.0, "warmup_cap_s": 1.0, "steady_cap_s": 1.0}
    return {**limits, "bursts": 0, "idle_s": 0.25, **changes}


def test_warm_up_stops_at_its_cap() -> None:
    latencies, stable = timing_job.warm_up([lambda: None], plan(warmup_cap_s=0.0))
    assert len(latencies) == 1
    assert not stable


def test_a_plan_shrinks_to_the_time_that_is_left() -> None:
    whole = {**plan(warmup_s=0.5, warmup_cap_s=3, steady_s=0.5, steady_cap_s=30), "until": None}
    assert timing_job.fit(whole, now=100.0) == whole
    fitted = timing_job.fit({**whole, "until": 101.0}, now=100.0)
    assert (fitted["warmup_cap_s"], fitted["steady_s"], fitted["steady_cap_s"]) == (0.2, 0.5, 0.8)
    late = timing_job.fit({**whole, "until": 90.0}, now=100.0)
    assert 0 < late["steady_cap_s"] < 0.01


def test_bursts_give_way_first() -> None:
    whole = {**plan(warmup_s=0.5, warmup_cap_s=3, steady_s=9, steady_cap_s=30, bursts=2), "until": 105.0}
    with_bursts = timing_job.fit(whole, now=100.0)
    assert (with_bursts["bursts"], with_bursts["steady_s"]) == (2, 0.8 * 4.5)
    without = timing_job.fit(whole, now=103.0)
    assert (without["bursts"], without["steady_s"]) == (0, 0.8 * 2)
