"""Two subjects against each other: ratios of known truth, their coverage, and what makes two measurements unlike."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from runtime_bench.judge import comparison
from runtime_bench.statistics import stats
from tests.unit import recordings
from tests.unit.runtime_bench import simulate

Json = dict[str, Any]


def subjects(a: simulate.Groups, b: simulate.Groups) -> tuple[Json, Json]:
    return simulate.subject(a, "a"), simulate.subject(b, "b")


def test_a_ratio_is_b_over_a_and_names_its_method() -> None:
    a, b = subjects([[100] * 5, [102] * 5, [98] * 5], [[200] * 5, [204] * 5, [196] * 5])
    found = comparison.latency(a, b, paired=True)
    assert (found["ratio"], found["low"], found["high"]) == (pytest.approx(2), pytest.approx(2), pytest.approx(2))
    assert (found["pairs"], found["verdict"]) == (3, "slower")
    assert "ratios of 3 pairs" in found["method"]
    apart = comparison.latency(a, b, paired=False)
    assert apart["ratio"] == pytest.approx(2)
    assert apart["low"] < 1.95 < 2.05 < apart["high"]  # what pairs cancel is noise without them
    assert "Welch" in apart["method"]


def test_compare_of_one_measurement_is_the_paired_ratio() -> None:
    rng = random.Random(3)
    made = recordings.measurement(*subjects(simulate.iid(rng, 6, 50), simulate.iid(rng, 6, 50)))
    found = comparison.compare(made, "a", "b")
    same = comparison.latency(*made["subjects"], paired=True)
    assert {key: found[key] for key in ("ratio", "low", "high", "pairs", "verdict")} == {
        key: same[key] for key in ("ratio", "low", "high", "pairs", "verdict")
    }
    with pytest.raises(KeyError):
        comparison.compare(made, "a", "c")


def test_a_failed_process_takes_its_pair_along_and_nothing_else() -> None:
    a, b = subjects([[100], [], [100], [100]], [[110], [999], [], [110]])
    found = comparison.latency(a, b, paired=True)
    assert (found["ratio"], found["pairs"]) == (pytest.approx(1.1), 2)
    assert comparison.latency(a, b, paired=False)["pairs"] == 3


def test_pairs_are_those_of_a_round_whatever_their_place() -> None:
    """A file from which one process was taken out: by place, each pair would be of two rounds."""
    a, b = subjects([[100 * (i + 1)] for i in range(5)], [[110 * (i + 1)] for i in range(5)])
    del a["processes"][1]
    found = comparison.latency(a, b, paired=True)
    assert (found["ratio"], found["pairs"]) == (pytest.approx(1.1), 4)
    assert found["high"] - found["low"] < 1e-6
    assert comparison.compare(recordings.measurement(a, b), "a", "b")["ratio"] == pytest.approx(1.1)


@pytest.mark.parametrize("paired", [True, False])
def test_a_latency_of_nothing_has_no_ratio_and_no_verdict(paired: bool) -> None:
    for values in ([[0]] * 3, [[0], [100], [100]]):
        found = comparison.latency(*subjects(values, [[0]] * 3), paired=paired)
        assert (found["ratio"], found["verdict"]) == (None, "inconclusive")
        assert found["reason"] == "a process has a value of 0, which has no logarithm"


def test_no_interval_from_one_pair_and_no_ratio_from_none() -> None:
    one = comparison.latency(*subjects([[100]], [[110]]), paired=True)
    assert (one["ratio"], one["low"], one["verdict"]) == (pytest.approx(1.1), None, "inconclusive")
    assert one["reason"] == "only one pair: no interval"
    none = comparison.latency(*subjects([[100], []], [[], [110]]), paired=True)
    assert (none["ratio"], none["reason"]) == (None, "there is no process in which both ran")
    assert comparison.latency(*subjects([[]], [[1]]), paired=False)["reason"] == "no process of one ran"


def test_p95_leaves_out_processes_with_too_few_calls() -> None:
    enough = [list(range(1, 73))] * 4
    a, b = subjects(enough, [[2 * v for v in values] for values in enough])
    assert comparison.latency(a, b, paired=True, q=0.95)["pairs"] == 4
    b["processes"][1]["steady_ns"] = [10**9] * 71
    found = comparison.latency(a, b, paired=True, q=0.95)
    assert (found["ratio"], found["pairs"]) == (pytest.approx(2), 3)
    for process in b["processes"]:
        process["steady_ns"] = process["steady_ns"][:71]
    short = comparison.latency(a, b, paired=True, q=0.95)
    assert short["ratio"] is None
    assert short["reason"] == "B: needs 72 calls in a process, no process has more than 71"


def tail(rng: random.Random, factor: float, center: float) -> list[int]:
    """A process of 150 calls: noise of 3 %, and 8 % of the calls ``factor`` times slower than that."""
    return [round(5e6 * center * (1 + rng.gauss(0, 0.03)) * (factor if rng.random() < 0.08 else 1)) for _ in range(150)]


def test_the_tail_is_compared_apart_from_the_median() -> None:
    """B's slow calls take 1.5 times as long as A's, its median is A's: the p95 says so, the median does not."""
    rng = random.Random(5)
    a, b = subjects([tail(rng, 2, 1) for _ in range(10)], [tail(rng, 3, 1) for _ in range(10)])
    assert comparison.latency(a, b, paired=True)["verdict"] == "equivalent"
    found = comparison.latency(a, b, paired=True, q=0.95)
    assert found["low"] < 1.5 < found["high"]
    assert found["verdict"] == "slower"


Make = Callable[[random.Random], tuple[list[list[int]], list[list[int]]]]


def with_truth(paired: bool, q: float, effect: float) -> Make:
    """Ten processes a side, B 3 % slower; ``effect`` is what the processes of a round share (paired) or not."""

    def make(rng: random.Random) -> tuple[list[list[int]], list[list[int]]]:
        sides: tuple[list[list[int]], list[list[int]]] = ([], [])
        for _ in range(10):
            shared = rng.gauss(0, effect)
            for side, factor in zip(sides, (1.0, 1.03)):
                own = rng.gauss(0, 0.01) + (shared if paired else rng.gauss(0, effect))
                side.append([round(5e6 * factor * math.exp(own + rng.gauss(0, 0.03))) for _ in range(80)])
        return sides

    return make


@pytest.mark.parametrize("q", [0.5, 0.95])
@pytest.mark.parametrize("paired", [True, False])
def test_intervals_cover_the_true_ratio(paired: bool, q: float) -> None:
    """300 comparisons: 0.95 nominal. A planted shift of 2 % is outside in most of them, so the test can fail."""
    rng, covered, shifted, tries = random.Random(11), 0, 0, 300
    make = with_truth(paired, q, 0.02)
    for _ in range(tries):
        found = comparison.latency(*subjects(*make(rng)), paired=paired, q=q)
        covered += found["low"] <= 1.03 <= found["high"]
        shifted += found["low"] <= 1.03 * 1.02 <= found["high"]
    assert 0.91 * tries <= covered <= 0.99 * tries
    assert shifted < (0.4 if paired else 0.8) * tries


def test_memory_is_runtime_plus_model_repeat_by_repeat() -> None:
    a = recordings.subject("a", [[1]], recordings.memory(4_000_000, 6_000_000, 5_000_000, runtime=10_000_000))
    b = recordings.subject("b", [[1]], recordings.memory(7_000_000, 10_000_000, 8_500_000, runtime=10_000_000))
    assert comparison.memory_repeats(a["memory"]) == [14_000_000, 16_000_000, 15_000_000]
    found = comparison.memory(a, b, paired=True)
    expected = stats.log_interval([17 / 14, 20 / 16, 18.5 / 15])
    assert (found["ratio"], found["low"], found["high"]) == (expected.ratio, expected.low, expected.high)
    assert found["pairs"] == 3
    load = comparison.memory(a, b, paired=True, figure="load")
    assert load["ratio"] == pytest.approx((7 / 4 * 10 / 6 * 8.5 / 5) ** (1 / 3))
    apart = comparison.memory(a, b, paired=False)
    assert apart["low"] < found["low"]
    assert apart["high"] > found["high"]


def test_memory_that_was_not_read_says_whose_and_why() -> None:
    a, b = recordings.subject("a", [[1]]), recordings.subject("b", [[1]], recordings.memory())
    found = comparison.memory(a, b, paired=True)
    assert (found["ratio"], found["reason"]) == (None, "B: no VmHWM in /proc/self/status")
    del a["memory"]["load"]
    assert comparison.memory(a, b, paired=True, figure="load")["reason"] == "A: not measured"


def test_one_repeat_gives_no_interval_and_nothing_has_no_logarithm() -> None:
    one = [recordings.subject(name, [[1]], recordings.memory(5_000_000)) for name in "ab"]
    found = comparison.memory(one[0], one[1], paired=True)
    assert (found["ratio"], found["low"], found["reason"]) == (1, None, "only one pair: no interval")
    flat = [recordings.subject(name, [[1]], recordings.memory(-5, 10, runtime=5)) for name in "ab"]
    assert "no logarithm" in comparison.memory(flat[0], flat[1], paired=True)["reason"]


def test_like_is_like() -> None:
    a, b = (recordings.measurement(simulate.subject([[1]], name)) for name in "ab")
    b["effort"] = "release"
    b["environment"] |= {"load1": 3.0, "temperature_mc": None, "cpus_allowed": [0, 1]}
    b["affinity"] = [3]
    assert comparison.unlike(a, b) == []
    assert comparison.remarks(a, b) == ["effort: standard against release"]


UNLIKE: dict[str, tuple[Callable[[Json], object], str]] = {
    "architecture": (
        lambda m: m["environment"].update(machine="x86_64"), "architecture: aarch64 against x86_64"
    ),
    "board": (lambda m: m["environment"].update(board=None), "board: Raspberry Pi 5 against unknown"),
    "CPU": (lambda m: m["environment"].update(cpu="Cortex-A72"), "CPU: Cortex-A76 against Cortex-A72"),
    "flags": (
        lambda m: m["environment"].update(flags=["asimd", "i8mm"]),
        "CPU flags: only A has asimddp; only B has i8mm",
    ),
    "unknown flags": (lambda m: m["environment"].update(flags=None), "CPU flags: unknown on one side"),
    "governor": (lambda m: m["environment"].update(governor="powersave"), "governor: performance against powersave"),
    "quota": (lambda m: m["environment"].update(quota_cpus=1.5), "CPU quota of the control group: unknown against 1.5"),
    "power": (lambda m: m["environment"].update(power_mode="15W"), "power mode: unknown against 15W"),
    "runtime": (lambda m: m["subjects"][0]["runtime"].update(name="litert"), "runtime: null against litert"),
    "version": (lambda m: m["subjects"][0]["runtime"].update(version="2"), "runtime version: 1 against 2"),
    "provider": (lambda m: m["subjects"][0]["runtime"].update(provider="CUDA"), "provider: null against CUDA"),
    "threads": (lambda m: m.update(threads=4), "threads: 1 against 4"),
    "pinning": (lambda m: m.update(affinity=None), "pinning: pinned to 1 CPU against not pinned"),
    "load": (
        lambda m: m.update(load={"kind": "periodic", "fps": 30.0, "period_ns": 33_333_333}),
        "load: back_to_back against periodic at 30 fps",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", UNLIKE)
def test_each_difference_is_named(what: str) -> None:
    change, text = UNLIKE[what]
    a = recordings.measurement(simulate.subject([[1]], "a"))
    b = copy.deepcopy(a)
    change(b)
    (found,) = comparison.unlike(a, b)
    assert text in found


def test_the_runtime_is_that_of_the_subject_that_is_compared() -> None:
    a = recordings.measurement(simulate.subject([[1]], "x"), simulate.subject([[1]], "y"))
    b = copy.deepcopy(a)
    b["subjects"][1]["runtime"]["version"] = "9"
    assert comparison.unlike(a, b, "x", "x") == []
    assert comparison.unlike(a, b, "y", "y") == ["runtime version: 1 against 9"]


def test_other_frame_rates_are_unlike_and_the_same_are_not() -> None:
    a = recordings.measurement(simulate.subject([[1]], "a"), load={"kind": "periodic", "fps": 30.0})
    assert comparison.unlike(a, copy.deepcopy(a)) == []
    b = {**a, "load": {"kind": "periodic", "fps": 25.0}}
    assert comparison.unlike(a, b) == ["load: periodic at 30 fps against periodic at 25 fps"]
