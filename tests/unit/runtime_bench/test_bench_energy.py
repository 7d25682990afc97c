"""Joules a call, from samples whose power is known."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from runtime_bench.judge import energy
from runtime_bench.statistics import stats

MS = 1_000_000
SECOND = 1000 * MS
Power = Callable[[float], float]
"""Watts at a time in seconds."""


def timeline(seconds: float, period_ms: int = 200, jitter_ms: int = 3) -> list[int]:
    rng = random.Random(5)
    return [t * MS + rng.randrange(jitter_ms * MS) for t in range(0, round(seconds * 1000), period_ms)]


def rapl(power: Power, t_ns: list[int], name: str = "package-0") -> dict[str, Any]:
    """A cumulative counter, integrated in steps of 1 ms."""
    total, values, t = 0.0, [], t_ns[0]
    for moment in t_ns:
        while t < moment:
            step = min(MS, moment - t)
            total += power(t / SECOND) * step / 1000
            t += step
        values.append(round(total))
    return {"period_ms": 200, "t_ns": t_ns, "energy_uj": {name: values}, "power_uw": {}}


def ina(power: Power, t_ns: list[int], name: str = "VDD_IN") -> dict[str, Any]:
    rows = {name: [round(power(t / SECOND) * 1e6) for t in t_ns]}
    return {"period_ms": 200, "t_ns": t_ns, "energy_uj": {}, "power_uw": rows}


def process(begin_s: float, span_s: float, calls: int, every: int = 1, **more: Any) -> dict[str, Any]:
    window = {"steady_begin_ns": round(begin_s * SECOND), "steady_span_ns": round(span_s * SECOND)}
    return {**window, "steady_ns": [1] * calls, "every": every, "error": None, **more}


IDLE_W = 2.0
WINDOWS = [(2.1 + 2 * i, 1.5) for i in range(10)]
"""The steady phases of ten processes; in the half second between them the power is another."""


def power(t: float) -> float:
    """5 W while calls run, 9 W while the next process starts, 2 W before the first."""
    if t < 1.5:
        return IDLE_W
    return 5.0 if any(begin <= t <= begin + span for begin, span in WINDOWS) else 9.0


def subject(calls: int = 100, every: int = 1) -> dict[str, Any]:
    return {"processes": [process(begin, span, calls, every) for begin, span in WINDOWS]}


def environment(samples: dict[str, Any] | None, idle_uw: float | None = IDLE_W * 1e6) -> dict[str, Any]:
    return {"samples": samples, "idle_power_uw": idle_uw, "missing": {}}


TRUTH = (5.0 - IDLE_W) * 1.5 / 100
"""Joules: 3 W above idle for 1.5 s, 100 calls."""


def check(found: dict[str, Any], truth: float = TRUTH) -> None:
    assert found["joules_per_call"] == pytest.approx(truth, rel=0.002)
    assert found["low"] <= found["joules_per_call"] <= found["high"]
    assert found["high"] - found["low"] < 0.01 * truth


@pytest.mark.parametrize("sensor", [rapl, ina])
def test_known_power(sensor: Callable[[Power, list[int]], dict[str, Any]]) -> None:
    found = energy.per_call(subject(), environment(sensor(power, timeline(24))))
    check(found)
    assert found["processes"] == 10
    assert found["idle_watts"] == IDLE_W
    assert found["source"] in ("RAPL: package-0", "INA: VDD_IN")


def test_every_kth_call_is_timed() -> None:
    check(energy.per_call(subject(every=7), environment(rapl(power, timeline(24)))), TRUTH / 7)


def test_planted_errors_are_caught() -> None:
    samples = rapl(power, timeline(24))
    with pytest.raises(AssertionError):  # idle not subtracted
        check(energy.per_call(subject(), environment(samples, 0.0)))
    with pytest.raises(AssertionError):  # a unit
        check(energy.per_call(subject(), environment({**samples, "t_ns": [t * 1000 for t in samples["t_ns"]]})))
    with pytest.raises(AssertionError):  # untimed calls forgotten
        check(energy.per_call(subject(), environment(samples)), TRUTH / 7)
    shifted = {"processes": [process(begin + 0.4, span, 100) for begin, span in WINDOWS]}
    with pytest.raises(AssertionError):  # windows that reach into other work
        check(energy.per_call(shifted, environment(samples)))


def test_a_counter_that_was_not_unwrapped_is_caught() -> None:
    samples = rapl(power, timeline(24))
    wrapped = [value % 20_000_000 for value in samples["energy_uj"]["package-0"]]
    with pytest.raises(AssertionError):
        check(energy.per_call(subject(), environment({**samples, "energy_uj": {"package-0": wrapped}})))


@pytest.mark.parametrize("sensor", [rapl, ina])
def test_a_power_that_changes(sensor: Callable[[Power, list[int]], dict[str, Any]]) -> None:
    def rising(t: float) -> float:
        return 4.0 + 0.05 * t  # a heating chip leaks more

    one = {"processes": [process(1.0, 8.0, 1000)]}
    found = energy.per_call(one, environment(sensor(rising, timeline(12, jitter_ms=1)), 1e6))
    assert found["joules_per_call"] == pytest.approx((4.0 + 0.05 * 5.0 - 1.0) * 8.0 / 1000, rel=0.003)
    assert (found["low"], found["high"], found["processes"]) == (None, None, 1)


def test_mean_power_by_hand() -> None:
    t_ns = [0, SECOND, 3 * SECOND, 4 * SECOND, 9 * SECOND]
    rail = {"t_ns": t_ns, "power_uw": {"VDD_IN": [2, 4, 4, 0, 1000]}}
    assert energy.mean_power_uw(rail, 0, 5 * SECOND) == pytest.approx((3 + 8 + 2) / 4)
    counter = {"t_ns": t_ns, "energy_uj": {"package-0": [50, 53, 61, 63, 1000]}}
    assert energy.mean_power_uw(counter, 0, 5 * SECOND) == pytest.approx(13 / 4)
    assert energy.mean_power_uw(counter, 1, 4 * SECOND) == pytest.approx(10 / 3)
    assert energy.mean_power_uw(counter, 1, 4 * SECOND - 1) is None  # two samples


def test_the_interval_covers() -> None:
    rng = random.Random(11)
    t_ns, hits, tries = timeline(24, jitter_ms=1), 0, 300
    for _ in range(tries):
        watts = [rng.gauss(5.0, 0.4) for _ in WINDOWS]
        levels = [
            (round(begin * SECOND), round((begin + span) * SECOND), w) for (begin, span), w in zip(WINDOWS, watts)
        ]
        row = [next((round(w * 1e6) for low, high, w in levels if low <= t <= high), 9_000_000) for t in t_ns]
        samples = {"period_ms": 200, "t_ns": t_ns, "energy_uj": {}, "power_uw": {"VDD_IN": row}}
        found = energy.per_call(subject(), environment(samples))
        hits += found["low"] <= TRUTH <= found["high"]
    assert 0.91 <= hits / tries <= 0.99


def test_the_interval_is_students() -> None:
    t_ns = timeline(24, jitter_ms=1)

    def stepped(t: float) -> float:
        return 4.0 if t < 12 else 6.0

    found = energy.per_call(subject(), environment(rapl(stepped, t_ns)))
    values = [0.03] * 5 + [0.06] * 5
    half = 2.262157 * stats.standard_deviation(values) / 10**0.5  # t(0.975, 9)
    assert found["joules_per_call"] == pytest.approx(0.045, rel=0.002)
    assert found["high"] - found["joules_per_call"] == pytest.approx(half, rel=0.005)


def test_a_figure_may_be_below_zero() -> None:
    found = energy.per_call(subject(), environment(rapl(power, timeline(24)), 5.5e6))
    assert found["joules_per_call"] == pytest.approx(-0.5 * 1.5 / 100, rel=0.02)


# which sensor


def chosen(counters: list[str], rails: list[str]) -> energy.Source | None:
    return energy.source({"energy_uj": {name: [0] for name in counters}, "power_uw": {name: [0] for name in rails}})


@pytest.mark.parametrize(
    ("counters", "rails", "expected"),
    [
        (["package-0", "package-0/core", "package-0/uncore"], [], ["package-0"]),
        (["package-0", "package-0/core", "package-0/dram"], [], ["package-0", "package-0/dram"]),
        (["package-0", "package-1", "psys"], [], ["package-0", "package-1"]),
        (["package-0"], ["VDD_IN"], ["package-0"]),
        (["psys"], ["VDD_IN", "VDD_SOC"], ["VDD_IN"]),
        ([], ["VDD_CPU_GPU_CV", "VDD_SOC", "VDD_IN"], ["VDD_IN"]),
        (
            [],
            ["VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0", "VDDQ_VDD2_1V8AO"],
            ["VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"],
        ),
    ],
)
def test_source(counters: list[str], rails: list[str], expected: list[str]) -> None:
    found = chosen(counters, rails)
    assert found is not None
    assert found.names == expected


def test_packages_and_rails_are_added_up() -> None:
    t_ns = timeline(24)
    two = rapl(power, t_ns)
    two["energy_uj"]["package-1"] = two["energy_uj"]["package-0"]
    check(energy.per_call(subject(), environment(two, 2 * IDLE_W * 1e6)), 2 * TRUTH)
    three = ina(power, t_ns, "VDD_GPU_SOC")
    three["power_uw"]["VDD_CPU_CV"] = three["power_uw"]["VIN_SYS_5V0"] = three["power_uw"]["VDD_GPU_SOC"]
    check(energy.per_call(subject(), environment(three, 3 * IDLE_W * 1e6)), 3 * TRUTH)


# no figure, and why


def test_no_sensor() -> None:
    assert chosen([], []) is None
    nothing = environment(None, None) | {"missing": {"samples": "nothing can be read", "idle_power_uw": "no sensor"}}
    assert energy.per_call(subject(), nothing) == {"joules_per_call": None, "reason": "nothing can be read"}
    refused = environment({"t_ns": [1], "energy_uj": {}, "power_uw": {}}, None)
    refused["missing"] = {"samples.energy_uj": "only root may read energy_uj", "samples.power_uw": "no power monitor"}
    assert energy.per_call(subject(), refused)["reason"] == "only root may read energy_uj; no power monitor"
    assert energy.per_call(subject(), {})["reason"] == "no energy or power sensor was sampled"


def test_no_idle_power() -> None:
    samples = rapl(power, timeline(24))
    found = energy.per_call(subject(), environment(samples, None) | {"missing": {"idle_power_uw": "nobody waited"}})
    assert found == {"joules_per_call": None, "reason": "nobody waited"}


def test_windows_shorter_than_three_samples() -> None:
    short = {"processes": [process(begin, 0.35, 10) for begin, _ in WINDOWS]}
    found = energy.per_call(short, environment(rapl(power, timeline(24))))
    assert found["joules_per_call"] is None
    assert "3 samples of every 200 ms" in found["reason"]


def test_a_sensor_that_failed_half_way() -> None:
    samples = rapl(power, timeline(24))
    samples["energy_uj"]["package-0"] = samples["energy_uj"]["package-0"][:50]  # 10 s: the first four processes
    found = energy.per_call(subject(), environment(samples))
    assert found["processes"] == 4
    assert found["joules_per_call"] == pytest.approx(TRUTH, rel=0.005)


def test_failed_processes_do_not_count() -> None:
    failed = {"steady_ns": [], "every": 1, "error": "killed by SIGKILL"}
    mixed = {"processes": [*subject()["processes"], failed, process(3.0, 1.0, 5, error="no answer")]}
    assert energy.per_call(mixed, environment(rapl(power, timeline(24))))["processes"] == 10
    older = {"processes": [{"steady_ns": [1], "every": 1, "error": None}]}  # recorded without times
    assert energy.per_call(older, environment(rapl(power, timeline(24))))["joules_per_call"] is None
