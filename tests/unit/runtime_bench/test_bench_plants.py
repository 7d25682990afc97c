"""Disturbances planted into real processes: each shows in the tail, and its calls get the cause that was planted.

Which calls are disturbed is known beforehand, so that other work on the machine cannot pass for the plant.
"""

from __future__ import annotations

from typing import Any

import pytest

from runtime_bench import protocol, session
from runtime_bench.judge import causes
from runtime_bench.judge.summary import summarize
from runtime_bench.machine import affinity, cgroup

CALLS = 1000
MS = 1000000


def run(path: str, processes: int = 1) -> list[dict[str, Any]]:
    """Records of processes with 1000 timed calls each, pinned to one CPU."""
    cpus = affinity.choose(1)
    plan = protocol.Effort(processes, CALLS, 0.02, 0.02, 0.2, 60.0)._asdict()
    request = {
        "runner": "null",
        "path": path,
        "options": {"threads": 1},
        "samples": [],
        "threads": 1,
        "cpus": cpus,
        "cpu_stat": cgroup.stat_path(),
        "epoch_ns": 0,
    }
    workers = session.Session({"a": request}, {**plan, "fps": None}, 0, lambda text: None)
    records = [workers.time_one("a", None) for _ in range(processes)]
    assert [record["error"] for record in records] == [None] * processes
    assert {record["every"] for record in records} == {1}
    if "wait_ns" in records[0]["unread"] or "minor_faults" in records[0]["unread"]:
        pytest.skip(f"the kernel does not count: {records[0]['unread']}")
    if workers.not_pinned:
        pytest.skip(workers.not_pinned)
    return records


def planted(record: dict[str, Any], every: int) -> list[int]:
    """Indices of the timed calls whose number ``every`` divides; the first call and the warm-up are counted too."""
    before = 1 + record["warmup_calls"]
    return [i for i in range(len(record["steady_ns"])) if (before + i + 1) % every == 0]


def found(record: dict[str, Any], every: int) -> dict[int, str | None]:
    """Causes of the planted calls by index; None for one that is no severe outlier."""
    by_index = {outlier["index"]: outlier["cause"] for outlier in causes.attribute(record)}
    return {i: by_index.get(i) for i in planted(record, every)}


def undisturbed(record: dict[str, Any], named: dict[int, str | None]) -> list[str | None]:
    """Causes of the planted calls that did not wait for a CPU as well: other work on this machine is no fault."""
    waits = dict(record["events"]["wait_ns"])
    return [cause for i, cause in named.items() if i not in waits]


def test_a_rival_on_the_same_cpu_is_found_as_preemption_and_shows_in_the_far_tail() -> None:
    """5 of 1000 calls in each of 4 processes give way for 3 ms: beyond p99, and p99.9 has it."""
    records = run("loop:3000,rival:200:3ms", processes=4)
    named = [cause for record in records for cause in found(record, 200).values()]
    assert len(named) >= 16
    assert named.count("preempted") >= 0.9 * len(named)
    waits = [dict(record["events"]["wait_ns"]).get(i, 0) for record in records for i in planted(record, 200)]
    assert sorted(waits)[len(waits) // 2] >= 1 * MS  # one that shares its time may get less than its 3 ms
    summary = summarize({"name": "a", "processes": records, "sustained": None})
    assert summary["n"] >= 3688
    assert summary["p99.9_ns"] >= 1 * MS
    assert summary["outliers"]["causes"]["preempted"] >= 0.9 * len(named)


def test_pages_given_back_are_found_as_page_faults() -> None:
    (record,) = run("loop:3000,drop:40:1MB")
    faults, named = dict(record["events"]["minor_faults"]), found(record, 40)
    assert len(named) >= 24
    assert all(faults[i] >= 244 for i in named)  # 1 MB in pages of 4096 bytes
    assert set(undisturbed(record, named)) == {"page_fault"}


def test_a_process_stopped_from_outside_has_no_known_cause() -> None:
    """The longest of all disturbances here, and no counter moves by as much: it is not blamed on a preemption."""
    (record,) = run("loop:3000,stop:100:50ms")
    named = found(record, 100)
    assert len(named) >= 9
    assert all(record["steady_ns"][i] >= 50 * MS for i in named)
    assert list(named.values()).count("unknown") >= 0.8 * len(named)
    assert set(undisturbed(record, named)) <= {"unknown"}
