"""Severe outliers get the cause that their counters give evidence of, and no other."""

from __future__ import annotations

import random
from typing import Any

import pytest

from runtime_bench.judge import causes
from runtime_bench.statistics import spread

from . import measurements, simulate

MS = 1_000_000
SLOW_NS = 9 * MS
"""A planted call: 4 ms more than the median of 5 ms."""

AT = 77


def process(slow: dict[int, int] | None = None, seed: int = 1, **changes: Any) -> dict[str, Any]:
    (values,) = simulate.iid(random.Random(seed), 1, 150)
    for index, value in (slow if slow is not None else {AT: SLOW_NS}).items():
        values[index] = value
    record = simulate.process(values)
    record["events"].update(changes.pop("events", {}))
    return {**record, **changes}


def cause_of(record: dict[str, Any], environment: Any = None, **more: Any) -> str:
    (found,) = causes.attribute(record, environment, **more)
    assert found["index"] == AT
    assert found["ns"] == SLOW_NS
    assert 3.9 * MS < found["excess_ns"] < 4.1 * MS
    assert found["evidence"]
    return str(found["cause"])


@pytest.mark.parametrize(
    ("events", "cause"),
    [
        ({}, "unknown"),
        ({"wait_ns": [[AT, 3 * MS]]}, "preempted"),
        ({"wait_ns": [[AT, 1 * MS]]}, "unknown"),
        ({"wait_ns": [[AT + 1, 3 * MS]]}, "unknown"),
        ({"throttled_ns": [[AT, 3 * MS]]}, "throttled"),
        ({"throttled_ns": [[AT, 3 * MS]], "wait_ns": [[AT, 4 * MS]]}, "throttled"),
        ({"throttled_ns": [[AT, 1 * MS]], "wait_ns": [[AT, 4 * MS]]}, "preempted"),
        ({"switches": [[AT, 4]]}, "unknown"),
        ({"minor_faults": [[AT, 4096]]}, "page_fault"),
        ({"minor_faults": [[AT, 3900]]}, "unknown"),
        ({"major_faults": [[AT, 1]]}, "page_fault"),
        ({"migrations": [[AT, 1]]}, "migrated"),
        ({"migrations": [[AT, 1]], "minor_faults": [[AT, 16000]]}, "page_fault"),
        ({"migrations": [[AT, 1]], "wait_ns": [[AT, 3 * MS]]}, "preempted"),
    ],
)
def test_evidence_decides(events: dict[str, Any], cause: str) -> None:
    assert cause_of(process(events=events)) == cause


def test_switches_count_only_where_the_wait_is_unread() -> None:
    events = {"switches": [[AT, 4]]}
    assert cause_of(process(events=events, unread={"wait_ns": "no schedstat"})) == "preempted"
    assert cause_of(process(events={}, unread={"wait_ns": "no schedstat"})) == "unknown"


def test_minor_faults_explain_nothing_without_their_price() -> None:
    assert cause_of(process(events={"minor_faults": [[AT, 4096]]}, fault_ns=None)) == "unknown"
    assert cause_of(process(events={"minor_faults": [[AT, 4096]]}, fault_ns=20)) == "unknown"


@pytest.mark.parametrize(
    ("khz", "cause"),
    [
        (
            1_500_000,
            "frequency",
        ),  # half the clock: twice the time, excess of 100 %; explains more than a quarter of 80 %
        (2_920_000, "unknown"),  # 2.7 % lower
        (2_700_000, "unknown"),  # 10 % lower explains 11 % of the time, not a quarter of 80 %
    ],
)
def test_frequency_explains_what_it_can(khz: int, cause: str) -> None:
    record = process()
    environment = {"samples": measurements.steady_clock(record["steady_begin_ns"] + record["steady_span_ns"])}
    moment = record["steady_begin_ns"] + sum(record["steady_ns"][:AT])
    samples = environment["samples"]
    nearest = min(range(len(samples["t_ns"])), key=lambda i: abs(samples["t_ns"][i] - moment))
    samples["frequency_khz"]["cpu3"][nearest] = khz
    assert cause_of(record, environment, affinity=[3]) == cause
    assert cause_of(record, environment, affinity=[2]) == "unknown"  # another CPU's clock is no evidence
    assert cause_of(record, {"samples": None}, affinity=[3]) == "unknown"


def test_quiet_processes_have_no_outliers() -> None:
    found = [causes.attribute(simulate.process(values)) for values in simulate.iid(random.Random(3), 200, 150)]
    assert sum(map(len, found)) <= 2  # 3 interquartile ranges beyond the quartile: about 1 in 400,000 normal values


def test_every_severe_outlier_is_found_with_its_own_cause() -> None:
    slow = {10: SLOW_NS, 20: 2 * SLOW_NS, 30: 3 * SLOW_NS}
    record = process(slow, events={"wait_ns": [[10, 4 * MS]], "minor_faults": [[20, 50000]]})
    found = [(entry["index"], entry["ns"], entry["cause"]) for entry in causes.attribute(record)]
    assert found == [(10, SLOW_NS, "preempted"), (20, 2 * SLOW_NS, "page_fault"), (30, 3 * SLOW_NS, "unknown")]


def test_far_calls_are_explained_where_the_fences_are_wide() -> None:
    """Every third call waits for the CPU: by the fences none is an outlier, and all have the cause."""
    record = process(
        dict.fromkeys(range(0, 150, 3), SLOW_NS), events={"wait_ns": [[i, 4 * MS] for i in range(0, 150, 3)]}
    )
    assert spread.tukey(record["steady_ns"]).high_severe > SLOW_NS
    found = causes.attribute(record)
    assert [entry["index"] for entry in found] == list(range(0, 150, 3))
    assert {entry["cause"] for entry in found} == {"preempted"}


def test_fast_calls_have_no_cause() -> None:
    assert causes.attribute(process({AT: MS})) == []


def test_a_late_call_inherits_the_cause_of_the_one_before() -> None:
    """Every 10 ms one is due. Call 77 is preempted and ends 14 ms late; call 78 starts late for that reason."""
    period = 10 * MS
    record = process({AT: 24 * MS, AT + 1: 19 * MS}, events={"wait_ns": [[AT, 19 * MS]]})
    record["service_ns"] = list(record["steady_ns"])
    record["service_ns"][AT + 1] = 5 * MS
    found = {entry["index"]: entry for entry in causes.attribute(record, period_ns=period)}
    assert {i: entry["cause"] for i, entry in found.items()} == {AT: "preempted", AT + 1: "preempted"}
    assert found[AT + 1]["evidence"] == "started late after call 77"
    record["service_ns"][AT + 1] = 18 * MS  # it was on time, and slow for reasons of its own
    assert {e["index"]: e["cause"] for e in causes.attribute(record, period_ns=period)}[AT + 1] == "unknown"


def test_a_record_without_counters_is_read() -> None:
    record = process()
    for key in ("events", "unread", "fault_ns", "service_ns", "steady_begin_ns", "steady_span_ns"):
        del record[key]
    assert cause_of(record, measurements.ENVIRONMENT) == "unknown"
    assert causes.attribute({"steady_ns": []}) == []
