"""Counters around timed calls: what moved is kept with the call, what the kernel does not offer has a reason."""

from __future__ import annotations

import mmap
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from runtime_bench import counters


def watch(**readings: list[Any]) -> counters.Counters:
    """Counters that read a script: ``waits``, ``usage`` and ``cpu``, one value a reading, the last one repeated."""
    found = counters.Counters(1, 1000, None, movable=False)
    for name, script in readings.items():

        def read(script: list[Any] = script) -> Any:
            return script.pop(0) if len(script) > 1 else script[0]

        setattr(found, f"_{name}", read)
    found.mark()
    return found


STILL: dict[str, list[Any]] = {"waits": [(0,)], "usage": [(0, 0, 0)], "cpu": [3]}


def test_a_quiet_call_leaves_nothing() -> None:
    quiet = watch(**{name: list(script) for name, script in STILL.items()})
    for i in range(50):
        quiet.note(i, 1000, i)
    assert quiet.events == counters.empty()


def test_each_counter_is_kept_with_its_call_and_the_keeping_is_not_charged() -> None:
    # readings: mark, note 0, note 1 (moved), mark after it (moved by the keeping itself), note 2
    loud = watch(
        waits=[(100,), (1099,), (5000,), (9000,), (9000,)],
        usage=[(1, 10, 0), (1, 10, 0), (3, 17, 1), (3, 500, 1), (3, 500, 1)],
        cpu=[0, 0, 1, 1, 1],
    )
    for i in range(3):
        loud.note(i, 1000, i)
    assert loud.events == {
        "wait_ns": [[1, 3901]],
        "switches": [[1, 2]],
        "minor_faults": [[1, 7]],
        "major_faults": [[1, 1]],
        "migrations": [[1, 1]],
        "throttled_ns": [],
    }


def test_a_mark_forgets_what_came_before_it() -> None:
    loud = watch(waits=[(0,), (9000,), (9000,)], usage=[(0, 0, 0)], cpu=[0])
    loud.mark()
    loud.note(0, 1000, 1)
    assert loud.events["wait_ns"] == []


def test_the_longest_wait_of_several_threads_counts_once() -> None:
    loud = watch(waits=[[0, 0, 0], [2000, 7000, 50]], usage=[(0, 0, 0)], cpu=[0])
    loud.note(4, 1000, 1)
    assert loud.events["wait_ns"] == [[4, 7000]]


@pytest.mark.parametrize("words", ["throttled_usec {}\n", "nr_throttled 1\nthrottled_time {}000\n"])
def test_throttled_time_goes_to_the_slow_call_alone(tmp_path: Path, words: str) -> None:
    stat = tmp_path / "cpu.stat"
    stat.write_text(words.format(5))
    found = counters.Counters(1, 1000, str(stat), movable=False)
    for name, script in STILL.items():
        setattr(found, f"_{name}", lambda script=script: script[0])
    found.mark()
    found.note(0, 1000, counters.REFRESH_NS + 1)  # looks, as it has not for 100 ms: nothing new
    stat.write_text(words.format(45))
    found.note(1, 1200, counters.REFRESH_NS + 2)  # not slow: does not look
    assert found.events["throttled_ns"] == []
    found.note(2, 1300, counters.REFRESH_NS + 3)
    assert found.events["throttled_ns"] == [[2, 40000]]
    stat.write_text(words.format(99))
    found.note(3, 1000, 3 * counters.REFRESH_NS)  # stopped between calls: no call is charged
    found.note(4, 9000, 3 * counters.REFRESH_NS + 1)
    assert found.events["throttled_ns"] == [[2, 40000]]
    assert "throttled_ns" not in found.unread


def test_what_cannot_be_read_has_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(counters, "SCHEDSTAT", str(tmp_path / "{}"))
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.setitem(sys.modules, "ctypes", None)
    found = counters.Counters(1, 1000, str(tmp_path / "none"))
    found.mark()
    found.note(0, 10**9, 10**9)
    assert set(found.unread) == set(counters.NAMES)
    assert found.events == counters.empty()


def test_a_kernel_that_counts_nothing_is_not_believed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in gVisor: the files and calls are there and say 0."""
    (tmp_path / "schedstat").write_text("0 0 0\n")
    monkeypatch.setattr(counters, "SCHEDSTAT", str(tmp_path / "schedstat"))
    usage = types.SimpleNamespace(ru_nivcsw=0, ru_minflt=0, ru_majflt=0)
    monkeypatch.setitem(
        sys.modules, "resource", types.SimpleNamespace(getrusage=lambda who: usage, RUSAGE_SELF=0, RUSAGE_THREAD=1)
    )
    (tmp_path / "cpu.stat").write_text("usage_usec 5\n")
    found = counters.Counters(1, 1000, str(tmp_path / "cpu.stat"), movable=False)
    assert set(found.unread) == {"wait_ns", "switches", "minor_faults", "major_faults", "throttled_ns"}


def test_real_page_faults_are_charged_to_the_call_that_makes_them() -> None:
    found = counters.Counters(1, 10**9, None)
    if "minor_faults" in found.unread:
        pytest.skip(found.unread["minor_faults"])
    found.mark()
    found.note(0, 1, 1)
    with mmap.mmap(-1, 64 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            block.madvise(mmap.MADV_NOHUGEPAGE)
        found.mark()
        for offset in range(0, len(block), mmap.PAGESIZE):
            block[offset] = 1
        found.note(1, 1, 2)
    faults = dict(found.events["minor_faults"])
    assert faults[1] >= 64
    assert faults.get(0, 0) < 64


def test_the_price_of_a_fault() -> None:
    price = counters.minor_fault_ns()
    assert price is None or (isinstance(price, int) and price > 0)


def test_the_price_of_a_fault_without_private_mappings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MAP_PRIVATE")
    assert counters.minor_fault_ns() is None
