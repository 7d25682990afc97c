"""Budgets as a user writes them."""

from __future__ import annotations

import dataclasses
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeopt.target import Budget, parse_budget

UNITS = {"B": 1, "kB": 10**3, "KB": 10**3, "KiB": 2**10, "MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30}


def test_nothing_is_no_limit() -> None:
    assert parse_budget(None) == parse_budget("") == parse_budget("  ") == Budget()


def test_all_limits_at_once() -> None:
    found = parse_budget("memory=64MB, size = 5.5 MiB,p99=20ms,load=0.2s", "1.5%")
    assert found == Budget(
        peak_bytes=64_000_000,
        artifact_bytes=5_767_168,
        latency_ms=20.0,
        latency_percentile=0.99,
        load_ms=200.0,
        max_drop=0.015,
    )
    assert found.measured == ["memory", "p99", "load"]


def test_limits_over_those_of_a_device_win_one_by_one() -> None:
    device = parse_budget("memory=64MB,p99=20ms,load=1s")
    found = parse_budget("p50=2ms,size=1MB", "1%").over(device)
    assert found == dataclasses.replace(parse_budget("memory=64MB,p50=2ms,load=1s,size=1MB"), max_drop=0.01)
    assert parse_budget("size=1MB").over(device).latency_percentile == 0.99
    assert Budget(max_error={"y": 1.0}).over(Budget(max_error={"y": 2.0, "z": 3.0})).max_error == {"y": 1.0, "z": 3.0}


@given(st.integers(1, 10**9), st.sampled_from(sorted(UNITS)), st.sampled_from(["memory", "size"]))
def test_bytes_are_exact(number: int, unit: str, key: str) -> None:
    found = parse_budget(f"{key}={number}{unit}")
    assert (found.peak_bytes if key == "memory" else found.artifact_bytes) == number * UNITS[unit]
    assert (found.artifact_bytes if key == "memory" else found.peak_bytes) is None


@given(st.decimals("0.001", 10**6, places=3), st.sampled_from(["MB", "GiB"]))
def test_fractions_are_rounded_down_and_never_through_a_float(number: Decimal, unit: str) -> None:
    assert parse_budget(f"size={number}{unit}").artifact_bytes == int(number * UNITS[unit])


@given(
    st.integers(1, 10**6), st.sampled_from([("us", 1e-3), ("ms", 1.0), ("s", 1e3)]), st.sampled_from([50, 90, 95, 99])
)
def test_latency(number: int, unit: tuple[str, float], percentile: int) -> None:
    found = parse_budget(f"p{percentile}={number}{unit[0]}")
    assert found.latency_ms == pytest.approx(number * unit[1], rel=1e-12)
    assert found.latency_percentile == percentile / 100


@given(st.decimals(0, 100, places=2))
def test_max_drop(percent: Decimal) -> None:
    assert parse_budget(None, f"{percent}%").max_drop == pytest.approx(float(percent) / 100, abs=1e-15)


@pytest.mark.parametrize(
    ("text", "drop", "words"),
    [
        (
            "mem=1MB",
            None,
            'budget: unknown limit "mem". Did you mean "memory"? Known: memory, size, p50, p90, p95, p99, load.',
        ),
        ("memory=1MB,", None, 'budget: unknown limit "". Known:'),
        ("memory", None, 'budget: "memory" has no value; write memory=<number><unit>.'),
        ("memory=64", None, 'budget memory: "64" has no unit. Units: B, kB, KB, KiB, MB, MiB, GB, GiB.'),
        ("memory=64Mb", None, 'budget memory: unknown unit "Mb". Did you mean "MB"?'),
        ("memory=64ms", None, 'budget memory: unknown unit "ms".'),
        ("size=-1MB", None, 'budget size: "-1MB" is not a positive number with a unit, like 5MB.'),
        ("size=1e9MB", None, 'budget size: "1e9MB" is not a positive number with a unit'),
        ("size=nanMB", None, 'budget size: "nanMB" is not a positive number with a unit'),
        ("size=0MB", None, "budget size: a limit of zero cannot be met; give a positive number."),
        ("size=1MB,size=2MB", None, "budget: more than one limit for size; give one."),
        ("p95=1ms,p90=2ms", None, "budget: more than one limit for latency; give one."),
        ("p95=20", None, 'budget p95: "20" has no unit. Units: us, ms, s.'),
        ("p75=20ms", None, 'budget: unknown limit "p75". Did you mean "p95"?'),
        (None, "1", 'max-drop: "1" has no unit. Units: %.'),
        (None, "0.01", 'max-drop: "0.01" has no unit.'),
        (None, "-1%", 'max-drop: "-1%" is not a positive number with a unit, like 5%.'),
        (None, "101%", 'max-drop: "101%" is more than 100%.'),
    ],
)
def test_what_cannot_be_meant_is_refused_in_words(text: str | None, drop: str | None, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_budget(text, drop)
    assert words in str(caught.value)
