"""Growth per call: the verdict on readings, the watch that takes them, and real processes that leak or do not."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from runtime_bench import growth, memory, memory_job, process

PAGE = 4096


def readings(used: Callable[[int], float], calls: int = 500, step: int = 5) -> list[list[int]]:
    return [[i, int(50e6 + used(i))] for i in range(0, calls + 1, step)]


def noise(seed: int, size: float = 20e3) -> Callable[[int], float]:
    rng = random.Random(seed)
    return lambda i: rng.gauss(0, size)


def test_a_leak_of_two_kilobytes_a_call_is_found_with_its_size() -> None:
    jitter = noise(1)
    for used in (
        lambda i: 2048 * i,
        lambda i: 2048 * i + jitter(i),
        lambda i: 2048 * i // PAGE * PAGE,  # seen by the page
        lambda i: 2048 * i // 131072 * 131072,  # and by the heap's steps
    ):
        found = growth.judge(readings(used))
        assert found["verdict"] == "leak"
        assert found["low"] <= found["bytes_per_call"] <= found["high"]
        assert found["bytes_per_call"] == pytest.approx(2048, rel=0.1)
        assert 0 < found["low"] <= 2048 * 1.05
        assert found["high"] >= 2048 * 0.95
        assert found["calls"] == 500


def test_what_ends_is_no_leak() -> None:
    """A warm-up of the allocator, a pool that fills, steps, and growth below the limit."""
    for used in (
        lambda i: 0,
        lambda i: 8192 * min(i, 100),
        lambda i: 2048 * min(i, 240),
        lambda i: 2048 * min(i, 280),
        lambda i: 1e6 * (i > 100) + 1e6 * (i > 180) + 1e6 * (i > 230),
        lambda i: 4e6 * (i > 300),
        lambda i: 800 * i,
        lambda i: -3000 * i,
    ):
        found = growth.judge(readings(used))
        assert found["verdict"] == "none", found


def test_what_levels_off_only_at_the_end_is_neither_called_a_leak_nor_cleared() -> None:
    for used in (lambda i: 4096 * min(i, 420), lambda i: 4096 * min(i, 350)):
        found = growth.judge(readings(used))
        assert found["verdict"] == "unknown"
        assert found["reason"] == "the readings scatter, or level off only at their end"


def test_noise_alone_is_never_a_leak_and_rarely_unknown() -> None:
    verdicts = [growth.judge(readings(noise(seed)))["verdict"] for seed in range(100)]
    assert verdicts.count("leak") == 0
    assert verdicts.count("none") >= 95
    wild = [growth.judge(readings(noise(seed, 5e6)))["verdict"] for seed in range(60)]
    assert wild.count("leak") <= 3


def test_few_readings_have_no_slope_but_say_why() -> None:
    found = growth.judge([[0, 100], [3, 200]])
    assert found["verdict"] == "unknown"
    assert found["bytes_per_call"] is found["low"] is found["high"] is None
    assert found["points"] == [[0, 100], [3, 200]]
    assert found["reason"] == "2 readings over 3 calls; a slope needs 20"
    assert growth.judge([])["calls"] == 0


def test_the_figure_has_source_method_and_reason() -> None:
    answer = {"points": readings(lambda i: 0), "ended": "flat", "source": "somewhere"}
    found = growth.figure(answer)
    assert found["source"] == "somewhere"
    assert found["method"].startswith("Theil-Sen slope, Sen's 95 % interval, 101 readings over 500 calls in a process")
    assert found["method"].endswith("ended as the later half gained no more than 128 bytes a call")
    assert growth.figure({"reason": "no such file"}) == {"bytes_per_call": None, "reason": "no such file"}


class Machine:
    """Memory and a clock that move with every call."""

    def __init__(self, used: Callable[[int], float], call_s: float = 0.001) -> None:
        self.made: list[int] = []
        self.used, self.call_s = used, call_s

    def calls(self, count: int) -> list[Callable[[], None]]:
        return [lambda i=i: self.made.append(i) for i in range(count)]  # type: ignore[misc]

    def watch(self, calls: int = 1, *, seconds: float = 10.0, least: int = 500) -> dict[str, Any]:
        return memory_job.watch(
            self.calls(calls),
            lambda: int(self.used(len(self.made))),
            least,
            seconds,
            growth.FLAT,
            lambda: len(self.made) * self.call_s,
        )


def even(points: Sequence[Sequence[int]]) -> bool:
    return len({after[0] - before[0] for before, after in itertools.pairwise(points)}) == 1


def test_the_watch_ends_where_nothing_grows() -> None:
    machine = Machine(lambda i: 7)
    found = machine.watch()
    assert (found["ended"], len(machine.made)) == ("flat", 500)
    assert found["points"][0] == [0, 7]
    assert found["points"][-1][0] == 500
    assert even(found["points"])


def test_the_watch_goes_on_while_memory_grows_and_keeps_few_readings() -> None:
    machine = Machine(lambda i: 2048 * i)
    found = machine.watch()
    assert (found["ended"], len(machine.made)) == ("time", pytest.approx(10_000, abs=200))
    assert 100 <= len(found["points"]) <= memory_job.MAX_POINTS + 1
    assert even(found["points"])
    assert all(used == 2048 * calls for calls, used in found["points"])
    assert growth.judge(found["points"])["verdict"] == "leak"


def test_a_long_warm_up_is_waited_for() -> None:
    """At 500 calls it looks like a leak; at twice the warm-up the later half is flat."""
    machine = Machine(lambda i: 4096 * min(i, 900))
    found = machine.watch()
    assert found["ended"] == "flat"
    assert 1100 < len(machine.made) < 1900
    assert growth.judge(found["points"])["verdict"] == "none"
    assert growth.judge(readings(lambda i: 4096 * min(i, 900)))["verdict"] == "leak"  # what a short look would say


def test_a_huge_leak_ends_before_it_fills_the_machine() -> None:
    machine = Machine(lambda i: 20e6 * i)
    found = machine.watch()
    assert (found["ended"], len(machine.made)) == ("grown", memory_job.ENOUGH_POINTS - 1)
    assert growth.judge(found["points"])["verdict"] == "leak"


def test_slow_calls_end_by_time() -> None:
    machine = Machine(lambda i: 0, call_s=0.5)
    found = machine.watch(seconds=2.0)
    assert (found["ended"], [calls for calls, _ in found["points"]]) == ("time", [0, 1, 2, 3, 4])


def test_readings_lie_between_whole_turns_of_the_shapes() -> None:
    """Memory that depends on the shape called last does not look like growth."""
    machine = Machine(lambda i: 1e6 * (i % 3))
    found = machine.watch(3)
    assert {used for _, used in found["points"]} == {0}
    assert machine.made[:6] == [0, 1, 2, 0, 1, 2]
    assert found["points"][-1][0] == 501  # whole turns


@pytest.fixture
def grow() -> Callable[[str], dict[str, Any]]:
    """Growth of what the null runner does, in a real process, by the plan of a quick measurement."""

    def measured(path: str) -> dict[str, Any]:
        request = {"runner": "null", "path": path, "options": {}, "samples": []}
        plan = memory.Plan(1, memory.PLANS["quick"].growth_s)
        found = memory.figures(request, 60, lambda job: process.run(job, job["timeout_s"]), plan=plan)
        return dict(found["growth"])

    return measured


def test_a_planted_leak_of_two_kilobytes_is_found_in_a_real_process(grow: Callable[[str], dict[str, Any]]) -> None:
    found = grow("leak:2048")
    assert found["verdict"] == "leak"
    assert 2048 <= found["low"] <= found["bytes_per_call"] <= found["high"] <= 2048 * 1.15
    assert found["calls"] >= growth.LEAST_CALLS
    assert found["source"].startswith("/proc/self/smaps_rollup Private_Dirty")


@pytest.mark.parametrize("path", ["spin:20us", "plateau:2048:200", "plateau:4096:1500", "leak:500", "drop:3:2MB"])
def test_a_plateau_and_no_leak_are_no_leak_in_a_real_process(path: str, grow: Callable[[str], dict[str, Any]]) -> None:
    found = grow(path)
    assert found["verdict"] == "none"
    assert found["calls"] >= growth.LEAST_CALLS
    if path == "spin:20us":
        assert abs(found["bytes_per_call"]) < 100


def test_growth_is_told_where_there_is_no_rollup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_job.rss, "own", lambda: None)
    request = {"runner": "null", "path": "spin:1us", "options": {}, "samples": [], "stage": "model"}
    found = memory_job.job_growth({**request, "calls": 1, "least": 1, "seconds": 1.0, "flat": 1.0})
    assert found == {"reason": "neither Private_Dirty in /proc/self/smaps_rollup nor RssAnon in /proc/self/status"}


def test_a_worker_that_dies_in_the_growth_pass_leaves_the_other_figures() -> None:
    request = {"runner": "null", "path": f"killat:{memory.CALLS + 5}:9", "options": {}, "samples": []}
    plan = memory.Plan(1, 1.0)
    found = memory.figures(request, 60, lambda job: process.run(job, job["timeout_s"]), plan=plan)
    assert found["growth"] == {"bytes_per_call": None, "reason": "killed by SIGKILL (out of memory?)"}
    assert found["model"]["bytes"] is not None
    assert Path("/proc/self/smaps_rollup").exists() == ("missing" not in found["model"])
