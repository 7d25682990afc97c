"""Loads on a simulated clock: schedules, late calls, which samples are timed, limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from runtime_bench import loads

MS = 1000000


class Machine:
    """A clock that moves by what calls take and by sleeping. Reading it costs 50 ns."""

    def __init__(self) -> None:
        self.now = 7 * MS
        self.oversleep = 0
        self.slept: list[float] = []

    def perf_counter_ns(self) -> int:
        self.now += 50
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += round(seconds * 1e9) + self.oversleep

    def call(self, *durations: int) -> Callable[[], None]:
        """Takes these durations in turn, the last one for ever."""
        script = list(durations)

        def call() -> None:
            self.now += script.pop(0) if len(script) > 1 else script[0]

        return call


class Watch:
    """Counters that record how they are used."""

    def __init__(self) -> None:
        self.events: dict[str, list[list[int]]] = {}
        self.unread: dict[str, str] = {}
        self.log: list[Any] = []

    def mark(self) -> None:
        self.log.append("mark")

    def note(self, index: int, latency_ns: int, now_ns: int) -> None:
        self.log.append((index, latency_ns))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine()
    monkeypatch.setattr(loads, "time", found)
    return found


def plan(**changes: Any) -> dict[str, Any]:
    return {"iterations": 5, "steady_s": 0.0, "steady_cap_s": 100.0, "fps": None, **changes}


def about(*milliseconds: float) -> Any:
    """Within the cost of reading the clock and the spin's steps."""
    return pytest.approx([value * MS for value in milliseconds], abs=2000)


def test_back_to_back_is_timed_call_by_call(machine: Machine) -> None:
    watch = Watch()
    call = machine.call(2 * MS, 9 * MS, 2 * MS)
    result = loads.back_to_back([call], plan(), 2 * MS, watch, 5 * MS)  # type: ignore[arg-type]
    assert result["steady_ns"] == about(2, 9, 2, 2, 2)
    assert (result["every"], result["service_ns"]) == (1, [])
    assert result["steady_begin_ns"] == pytest.approx(2 * MS, abs=1000)
    assert result["steady_span_ns"] == pytest.approx(17 * MS, abs=2000)
    assert [entry[0] for entry in watch.log if entry != "mark"] == [0, 1, 2, 3, 4]
    assert watch.log.count("mark") == 1


def test_it_lasts_for_the_calls_and_for_the_time(machine: Machine) -> None:
    def run(**limits: Any) -> int:
        result = loads.back_to_back([machine.call(MS)], plan(**limits), MS, Watch(), 0)  # type: ignore[arg-type]
        return len(result["steady_ns"])

    assert run(iterations=5, steady_s=0.0299) == 30
    assert run(iterations=50, steady_s=0.03) == 50
    assert run(iterations=50, steady_s=0.03, steady_cap_s=0.0199) == 20
    assert run(iterations=50, steady_s=0.0, steady_cap_s=0.0) == 3
    # nearly three times as many calls as expected, as they got faster: the room for them grows
    result = loads.back_to_back([machine.call(MS)], plan(steady_s=1.0), 3 * MS, Watch(), 0)  # type: ignore[arg-type]
    assert len(result["steady_ns"]) == 1000
    assert set(result["steady_ns"]) == {result["steady_ns"][0]}


def test_short_calls_are_timed_now_and_then_and_counters_are_read_some_calls_before(machine: Machine) -> None:
    watch, count = Watch(), [0]

    def call() -> None:
        count[0] += 1
        watch.log.append("call")
        machine.now += 10000

    result = loads.back_to_back([call], plan(iterations=3, steady_s=0.4), 10000, watch, 0)  # type: ignore[arg-type]
    assert result["every"] == 10
    assert count[0] == 10 * len(result["steady_ns"])
    # 4 calls, reading, 5 more that warm the caches again (50 us), the timed one
    assert watch.log[1:12] == ["call"] * 3 + ["mark"] + ["call"] * 7


def test_every_sample_is_timed_however_many_there_are(machine: Machine) -> None:
    for samples in range(1, 9):
        calls = [machine.call(100 + i) for i in range(samples)]
        limits = plan(iterations=50, steady_s=0.0016, timed=4)
        result = loads.back_to_back(calls, limits, 100, Watch(), 0)  # type: ignore[arg-type]
        assert result["every"] >= 4
        assert len(set(result["steady_ns"])) == samples


def test_periodic_calls_start_on_schedule(machine: Machine) -> None:
    result = loads.periodic([machine.call(5 * MS)], plan(fps=50.0), 5 * MS, Watch(), 0)  # type: ignore[arg-type]
    assert result["steady_ns"] == result["service_ns"] == about(5, 5, 5, 5, 5)
    assert machine.slept == pytest.approx([0.0197, *[0.0147] * 4], abs=1e-5)
    assert result["steady_span_ns"] == pytest.approx(105 * MS, abs=2000)


def test_a_late_call_does_not_shift_the_schedule(machine: Machine) -> None:
    """50 ms in a 20 ms schedule: the calls after it wait, and their latency shows it, until the backlog is gone."""
    call = machine.call(5 * MS, 50 * MS, 5 * MS)
    result = loads.periodic([call], plan(fps=50.0, iterations=6), 5 * MS, Watch(), 0)  # type: ignore[arg-type]
    assert result["service_ns"] == about(5, 50, 5, 5, 5, 5)
    assert result["steady_ns"] == about(5, 50, 35, 20, 5, 5)


def test_a_model_that_cannot_keep_up_falls_behind_more_and_more(machine: Machine) -> None:
    result = loads.periodic([machine.call(25 * MS)], plan(fps=50.0), 25 * MS, Watch(), 0)  # type: ignore[arg-type]
    assert result["service_ns"] == about(25, 25, 25, 25, 25)
    assert result["steady_ns"] == about(25, 30, 35, 40, 45)


def test_waking_up_late_is_part_of_the_latency_and_of_its_cause(machine: Machine) -> None:
    machine.oversleep = 3 * MS
    watch = Watch()
    result = loads.periodic([machine.call(5 * MS)], plan(fps=50.0), 5 * MS, watch, 0)  # type: ignore[arg-type]
    assert result["steady_ns"] == about(*[7.7] * 5)
    assert result["service_ns"] == about(*[5] * 5)
    assert "mark" not in watch.log  # so that the wait before a late start is charged to its call
    machine.oversleep = 0
    loads.periodic([machine.call(5 * MS)], plan(fps=50.0), 5 * MS, watch, 0)  # type: ignore[arg-type]
    assert watch.log.count("mark") == 5


def test_a_schedule_does_not_drift(machine: Machine) -> None:
    result = loads.periodic([machine.call(MS)], plan(fps=30.0, iterations=300), MS, Watch(), 0)  # type: ignore[arg-type]
    assert result["steady_span_ns"] == pytest.approx(10_000 * MS + MS, abs=2000)


def test_a_burst_comes_after_a_rest(machine: Machine) -> None:
    calls = [machine.call(MS), machine.call(2 * MS)]
    assert loads.burst(calls, 3, 0.25) == about(1, 2, 1)
    assert machine.slept == [0.25]
