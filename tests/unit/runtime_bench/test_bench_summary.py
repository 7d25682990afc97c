"""Summaries by hand, and every block of them on made-up data whose truth is known."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import numpy as np
import pytest

import runtime_bench
from runtime_bench.judge import deadlines, summary, thermal, timeline

from . import measurements, simulate

MS = 1_000_000


def small(*processes: list[int], **changes: Any) -> dict[str, Any]:
    """A subject with phases of 10, 20 + i and 30 ns."""
    made = simulate.subject(processes)
    for i, record in enumerate(made["processes"]):
        if record["phases_ns"]:
            record["phases_ns"] = {"import": 10, "load": 20 + i, "first": 30}
    return {**made, **changes}


def made(generator: simulate.Generator, seed: int = 1, processes: int = 10, calls: int = 150) -> dict[str, Any]:
    return simulate.subject(generator.make(random.Random(seed), processes, calls))


def test_summary_by_hand() -> None:
    result = runtime_bench.summarize(small([100] * 30 + [200] * 6, [], [110] * 36))
    assert (result["n"], result["processes"], result["failed"]) == (72, 2, 1)
    assert (result["median_ns"], result["p90_ns"], result["p95_ns"]) == (110, 110, 200)
    assert (result["p99_ns"], result["p99_needs"]) == (None, 368)
    assert (result["p99.9_ns"], result["p99.9_needs"]) == (None, 3688)
    assert "p95_needs" not in result
    assert (result["min_ns"], result["max_ns"], result["mad_ns"]) == (100, 200, 0)
    assert result["mean_ns"] == pytest.approx((3000 + 1200 + 3960) / 72)
    assert result["cv"] == pytest.approx(np.std([100] * 30 + [200] * 6 + [110] * 36, ddof=1) / result["mean_ns"])
    assert (result["import_median_ns"], result["load_median_ns"], result["first_median_ns"]) == (10, 20, 30)
    assert result["median_low_ns"] < 105 < result["median_high_ns"]


def test_summary_of_fifty_calls_promises_no_tail() -> None:
    result = runtime_bench.summarize(small([1] * 35))
    names = ("p90", "p95", "p99", "p99.9")
    assert [result[f"{p}_ns"] for p in names] == [None] * 4
    assert [result[f"{p}_low_ns"] for p in names] == [None] * 4
    assert [result[f"{p}_needs"] for p in names] == [36, 72, 368, 3688]
    assert result["median_low_ns"] is None
    assert result["methods"]["median"] is None
    assert result["p90_upper99_ns"] is None


def test_summary_of_nothing() -> None:
    result = runtime_bench.summarize(small([], []))
    assert (result["n"], result["failed"], result["median_ns"], result["load_median_ns"]) == (0, 2, None, None)
    assert result["mean_ns"] is None
    assert result["drift"]["verdict"] == "too_few"
    assert result["outliers"]["severe"] == []
    assert result["first"] == {"median_ns": None, "low_ns": None, "high_ns": None, "max_ns": None}
    json.dumps(result, allow_nan=False)


@pytest.mark.parametrize("generator", simulate.GENERATORS, ids=lambda g: g.name)
def test_summaries_are_json_and_complete(generator: simulate.Generator) -> None:
    subject = made(generator, calls=400)
    result = runtime_bench.summarize(subject, {"kind": "back_to_back"}, measurements.ENVIRONMENT, [3])
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    for name in ("median", "p90", "p95", "p99", "p99.9"):
        value, low, high = (result[f"{name}{end}_ns"] for end in ("", "_low", "_high"))
        assert low <= value <= high
        assert isinstance(value, int)
        assert result["methods"][name]
    assert result["low_confidence"] == []
    assert result["p99_upper99_ns"] >= result["p99_ns"]
    assert set(result) == set(runtime_bench.summarize(made(simulate.IID, processes=3, calls=1300)))


def test_few_processes_are_marked() -> None:
    assert runtime_bench.summarize(made(simulate.IID, processes=6))["low_confidence"] == ["p90", "p95", "p99"]
    three = runtime_bench.summarize(made(simulate.IID, processes=3))
    assert (three["p90_low_ns"], three["methods"]["p90"]) == (None, None)
    assert three["low_confidence"] == ["p95", "p99"]


def test_a_longer_process_does_not_count_for_more_in_the_interval() -> None:
    """The interval rests on process medians: nine of 100 calls and one of 5000 make ten values.

    The median of all calls is that of the long process here; the interval is stretched to hold what is printed.
    """
    rng = random.Random(2)
    groups = [*simulate.iid(rng, 9, 100), *([2 * v for v in g] for g in simulate.iid(rng, 1, 5000))]
    result = runtime_bench.summarize(simulate.subject(groups))
    logs = [math.log(sorted(g)[(len(g) - 1) // 2]) for g in groups]
    half = 2.2622 * np.std(logs, ddof=1) / math.sqrt(10)
    assert result["median_low_ns"] == pytest.approx(math.exp(np.mean(logs) - half), rel=1e-4)
    assert math.exp(np.mean(logs) + half) < result["median_ns"] == result["median_high_ns"]


def test_phases_have_intervals_over_processes() -> None:
    result = runtime_bench.summarize(small(*[[100] * 40] * 5))
    assert result["load"]["median_ns"] == 22
    assert result["load"]["max_ns"] == 24
    assert result["load"]["low_ns"] <= 21 < 23 <= result["load"]["high_ns"]
    assert result["import"] == {"median_ns": 10, "low_ns": 10, "high_ns": 10, "max_ns": 10}


# variance


def test_processes_limit_where_they_differ() -> None:
    found = runtime_bench.summarize(made(simulate.PROCESS))["variance"]
    assert found["limited_by"] == "processes"
    assert found["between"] == pytest.approx(0.03, rel=0.6)
    assert found["within"] == pytest.approx(0.05, rel=0.1)
    assert found["processes"] == 10
    assert found["required_processes"] > 10


def test_calls_limit_where_they_vary_and_are_few() -> None:
    groups = [[simulate.ns(random.Random(10 * i + j).gauss(0, 0.2)) for j in range(30)] for i in range(4)]
    found = runtime_bench.summarize(simulate.subject(groups))["variance"]
    assert found["limited_by"] == "iterations"


def test_nothing_limits_precise_data() -> None:
    found = runtime_bench.summarize(made(simulate.IID))["variance"]
    assert found["limited_by"] is None
    assert found["required_processes"] <= 10
    assert runtime_bench.summarize(made(simulate.IID, processes=1))["variance"]["required_processes"] is None


# outliers


def test_outliers_are_counted_attributed_and_kept() -> None:
    groups = simulate.iid(random.Random(1), 10, 150)
    subject = simulate.subject(groups)
    for p, process in enumerate(subject["processes"]):
        process["steady_ns"][50] = 20 * MS
        if p < 4:
            process["events"]["wait_ns"] = [[50, 15 * MS]]
    result = runtime_bench.summarize(subject)
    found = result["outliers"]
    assert found["high_severe"] == 10
    assert found["causes"] == {"preempted": 4, "unknown": 6}
    assert found["far"] == {"calls": 10, "causes": {"preempted": 4, "unknown": 6}}
    assert {(entry["process"], entry["index"]) for entry in found["severe"]} == {(p, 50) for p in range(10)}
    assert result["max_ns"] == 20 * MS  # not dropped
    assert result["n"] == 1500
    outside = [v for values in groups for v in values]
    assert 10 * 20 * MS / sum(outside) <= found["time_share"] < 1.5 * 10 * 20 * MS / sum(outside)


def test_only_the_slowest_severe_outliers_are_listed_and_all_are_counted() -> None:
    subject = simulate.subject([[1000 + i % 7 for i in range(2000)] for _ in range(2)])
    for process in subject["processes"]:
        for i in range(40):
            process["steady_ns"][45 * i + 7] = 5000 + i
    found = runtime_bench.summarize(subject)["outliers"]
    assert found["high_severe"] == sum(found["causes"].values()) == 80
    assert len(found["severe"]) == 50
    assert [entry["ns"] for entry in found["severe"][:3]] == [5039, 5039, 5038]


def test_a_difference_between_processes_is_no_outlier() -> None:
    subject = simulate.subject([[1000 + i % 9 for i in range(200)]] * 9 + [[2000 + i % 9 for i in range(200)]])
    found = runtime_bench.summarize(subject)["outliers"]
    assert (found["high_severe"], found["high_mild"], found["low_mild"]) == (0, 0, 0)


# drift


def drift(subject: dict[str, Any], environment: Any = None) -> dict[str, Any]:
    return thermal.judge(subject, environment, affinity=[3])


def end_of(subject: dict[str, Any]) -> int:
    last = subject["processes"][-1]
    return int(last["steady_begin_ns"] + last["steady_span_ns"])


@pytest.mark.parametrize("seed", range(5))
def test_a_linear_drift_over_the_processes_is_found(seed: int) -> None:
    found = drift(made(simulate.LINEAR, seed))
    assert found["over"] == "processes"
    assert found["verdict"] == "unexplained"
    assert found["change"] == pytest.approx(0.09, abs=0.02)
    seconds = 10 * 150 * 0.00525 + 10 * 0.195
    assert found["slope_per_minute"] == pytest.approx(0.1 / seconds * 60, rel=0.3)
    assert found["low"] < found["slope_per_minute"] < found["high"]
    assert found["p"] < 0.01
    assert found["first_last"]["ratio"] == pytest.approx(1.07, abs=0.02)


@pytest.mark.parametrize("after", [4, 5, 6])
def test_one_step_between_processes_is_found(after: int) -> None:
    rng = random.Random(after)
    groups = [[round(v * (1.2 if i >= after else 1)) for v in g] for i, g in enumerate(simulate.iid(rng, 10, 150))]
    found = drift(simulate.subject(groups))
    assert found["verdict"] == "unexplained"
    assert found["change"] == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"thermal_throttles": 3}, "throttled itself 3 times"),
        ({"throttled_periods": 2}, "stopped 2 times for its CPU quota"),
        ({"khz": [3_000_000, 2_950_000, 2_800_000]}, "fell by 6.7 % from 3000 to 2800 MHz"),
    ],
)
def test_thermal_needs_evidence(environment: dict[str, Any], words: str) -> None:
    subject = made(simulate.LINEAR, 3)
    khz = environment.pop("khz", [3_000_000])
    environment["samples"] = measurements.steady_clock(end_of(subject), khz)
    found = drift(subject, environment)
    assert found["verdict"] == "thermal"
    assert len(found["evidence"]) == 1
    assert words in found["evidence"][0]


def test_no_evidence_no_thermal_verdict() -> None:
    subject = made(simulate.LINEAR, 3)
    samples = measurements.steady_clock(end_of(subject), [3_000_000, 2_950_000, 2_930_000])  # 2.3 % down
    samples["temperature_mc"] = {"cpu-thermal": [50_000 + 100 * i for i in range(len(samples["t_ns"]))]}
    quiet = {"samples": samples, "thermal_throttles": 0, "throttled_periods": None}
    assert drift(subject, quiet)["verdict"] == "unexplained"
    told = drift(subject, {**quiet, "thermal_throttles": 1})
    assert told["verdict"] == "thermal"
    assert "cpu-thermal went from 50 to" in told["evidence"][0]
    assert drift(subject, {"samples": None})["verdict"] == "unexplained"
    assert drift(subject, None)["verdict"] == "unexplained"


def test_getting_faster_is_never_thermal() -> None:
    subject = simulate.subject(list(reversed(simulate.drift(random.Random(1), 10, 150))))
    found = drift(subject, {"thermal_throttles": 3})
    assert (found["verdict"], found["evidence"]) == ("unexplained", [])
    assert found["change"] < -0.05


def test_a_trend_below_two_percent_is_none() -> None:
    groups = [[round(5e6 * (1 + 0.0015 * p)) + i % 50 for i in range(150)] for p in range(10)]
    found = drift(simulate.subject(groups))
    assert found["p"] < 0.01
    assert found["verdict"] == "none"


def test_five_processes_are_too_few() -> None:
    found = drift(made(simulate.LINEAR, processes=5))
    assert (found["verdict"], found["over"], found["p"]) == ("too_few", "processes", None)


def sustained(values: list[int], begin_ns: int = 10**10) -> dict[str, Any]:
    record = simulate.process(values, start_ns=begin_ns)
    return {key: record[key] for key in ("start_ns", "steady_begin_ns", "steady_span_ns", "steady_ns", "every")} | {
        "events": record["events"],
        "unread": {},
        "fault_ns": 250,
        "error": None,
        "cut_short": False,
    }


def test_a_sustained_process_is_judged_by_blocks() -> None:
    """60 s of calls of 5 ms that get 10 % slower after the first 20 s while the clock falls."""
    rng = random.Random(4)
    values = [simulate.ns((0.1 if i > 4000 else 0) + rng.gauss(0, 0.05)) for i in range(11000)]
    subject = {**made(simulate.IID), "sustained": sustained(values)}
    found = drift(subject)
    assert (found["over"], found["verdict"]) == ("sustained", "unexplained")
    assert found["change"] == pytest.approx(0.1, abs=0.05)
    assert len(found["changepoints"]) == 1
    assert found["changepoints"][0] == pytest.approx(10**10 + 20.1e9, abs=1.5e9)
    end = subject["sustained"]["steady_begin_ns"] + subject["sustained"]["steady_span_ns"]
    samples = measurements.steady_clock(end, [3_000_000] * 5 + [2_700_000] * 5)
    assert drift(subject, {"samples": samples})["verdict"] == "thermal"


def test_a_steady_sustained_process_is_quiet_and_processes_still_count() -> None:
    values = simulate.iid(random.Random(4), 1, 4000)[0]
    assert drift({**made(simulate.IID), "sustained": sustained(values)})["over"] == "sustained"
    found = drift({**made(simulate.LINEAR), "sustained": sustained(values)})
    assert (found["over"], found["verdict"]) == ("processes", "unexplained")


def test_a_planted_wrong_unit_would_be_caught() -> None:
    """Single calls as the unit call nearly every autocorrelated series drifting; processes as the unit do not."""
    rng = random.Random(6)
    wrong = right = 0
    for _ in range(30):
        groups = simulate.ar1(rng, 10, 150, phi=0.99)
        right += drift(simulate.subject(groups))["verdict"] != "none"
        series = np.concatenate(groups)[:400].astype(float)
        s = np.sign(np.subtract.outer(series, series)).T[np.triu_indices(400, 1)].sum()
        z = abs(s) / math.sqrt(400 * 399 * 805 / 18)
        wrong += z > 2.58
    assert right <= 2
    assert wrong >= 15


# the rest


def test_autocorrelation_and_effective_size() -> None:
    iid, chain = (runtime_bench.summarize(made(g))["autocorrelation"] for g in (simulate.IID, simulate.AR1))
    assert abs(iid["rho1"]) < 0.05
    assert iid["effective_n"] > 1000
    assert chain["rho1"] == pytest.approx(0.88, abs=0.04)
    assert chain["effective_n"] < 300
    assert len(chain["rho"]) == 20


def test_modes_are_told_with_their_shares() -> None:
    found = runtime_bench.summarize(made(simulate.MODES))["modality"]["modes"]
    assert [mode["ns"] for mode in found] == pytest.approx([5e6, 5e6 * math.exp(0.1)], rel=0.01)
    assert [mode["share"] for mode in found] == pytest.approx([0.7, 0.3], abs=0.05)
    assert len(runtime_bench.summarize(made(simulate.IID))["modality"]["modes"]) <= 1


def test_warm_up_classes_and_their_consistency() -> None:
    flat = runtime_bench.summarize(made(simulate.IID))["warmup"]
    assert flat["consistent"]
    assert flat["calls"] == [20] * 10
    subject = made(simulate.STEP_INSIDE)
    for process in subject["processes"]:
        process["warmup_ns"] = process["steady_ns"][:20]
    step = runtime_bench.summarize(subject)["warmup"]
    assert step["classes"].count("slowdown") >= 8
    assert not set(step["classes"]) & set(summary.STEADY)
    assert step["consistent"]  # they agree, in what is bad
    rng = random.Random(1)
    mixed = simulate.subject(simulate.iid(rng, 5, 150) + simulate.step(rng, 5, 150))
    assert not runtime_bench.summarize(mixed)["warmup"]["consistent"]


def test_more_than_chance_is_a_binomial_tail() -> None:
    """One in twenty is wrong by chance: P(2 of 3) = 0.7 %, P(2 of 10) = 8.6 %, P(3 of 10) = 1.2 %."""
    found = {n: next(k for k in range(n + 1) if summary.more_than_chance(k, n)) for n in (3, 5, 10, 20)}
    assert found == {3: 2, 5: 3, 10: 3, 20: 4}
    assert not summary.more_than_chance(0, 0)


def test_deadlines_are_counted_from_the_schedule() -> None:
    groups = [[10, 40, 50, 10], [33, 34, 10, 60], [70, 10, 10, 10]]
    found = deadlines.deadline(groups, {"kind": "periodic", "fps": 30.0, "period_ns": 33})
    assert found is not None
    assert (found["calls"], found["misses"], found["worst_run"]) == (12, 5, 2)
    assert found["rate"] == pytest.approx(5 / 12)
    # Clopper-Pearson for 5 of 12, from tables
    assert (found["rate_low"], found["rate_high"]) == pytest.approx((0.1517, 0.7233), abs=1e-4)
    assert deadlines.deadline(groups, {"kind": "back_to_back"}) is None
    assert deadlines.deadline(groups, None) is None
    empty = deadlines.deadline([], {"kind": "periodic", "period_ns": 33})
    assert empty is not None
    assert empty["rate"] is None


def test_no_miss_still_has_an_upper_bound() -> None:
    found = deadlines.deadline([[1] * 300], {"kind": "periodic", "period_ns": 33})
    assert found is not None
    assert (found["misses"], found["rate"], found["rate_low"]) == (0, 0, 0)
    assert found["rate_high"] == pytest.approx(1 - 0.025 ** (1 / 300), rel=1e-6)


def test_bursts_are_held_against_the_median() -> None:
    subject = small(*[[100] * 40] * 3)
    for process, first in zip(subject["processes"], (300, 250, 280), strict=True):
        process["burst_ns"] = [[first, 120, 100]]
    assert runtime_bench.summarize(subject)["burst"] == {"first_ns": 280, "ratio": 2.8}
    assert runtime_bench.summarize(small([100] * 40))["burst"] is None


def test_ends_of_calls_fill_the_phase() -> None:
    record = {"steady_ns": [10, 20, 10], "steady_begin_ns": 100, "steady_span_ns": 80}
    assert timeline.call_ends(record) == [120, 160, 180]
    assert timeline.call_ends(record, period_ns=30) == [140, 180, 200]
    assert timeline.call_ends({"steady_ns": [5]}) == [5]
    assert timeline.steady_window(record) == (100, 180)


def test_frequency_of_pinned_and_free_processes() -> None:
    samples = {"t_ns": [0, 10, 20], "frequency_khz": {"cpu0": [1, 9, None], "cpu1": [3, 3, 3]}}
    environment = {"samples": samples}
    assert timeline.Frequency(environment, [0]).khz == [1, 9]
    assert timeline.Frequency(environment, [0, 1]).khz == [2, 6, 3]
    free = timeline.Frequency(environment)
    assert free.khz == [3, 9, 3]
    assert free.median([(0, 21)]) == 3
    assert free.median([(0, 11)]) is None
    assert free.at(12, 5) == 9
    assert free.at(29, 5) is None
    assert timeline.Frequency(None).at(0, 5) is None


def test_energy_comes_with_its_reason() -> None:
    found = runtime_bench.summarize(made(simulate.IID), None, measurements.ENVIRONMENT)["energy"]
    assert found["joules_per_call"] is None
    assert found["reason"]
