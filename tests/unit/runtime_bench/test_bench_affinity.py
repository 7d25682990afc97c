"""Which CPUs a worker gets: fast ones, of different cores, not CPU 0; a refusal is told and is no error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runtime_bench.machine import affinity


def tree(root: Path, name: str, values: dict[int, str]) -> str:
    for cpu, value in values.items():
        path = root / f"sys/devices/system/cpu/cpu{cpu}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value + "\n")
    return str(root)


def test_among_equals_the_highest_number_and_cpu_0_last(tmp_path: Path) -> None:
    for root in (str(tmp_path), tree(tmp_path, "cpu_capacity", dict.fromkeys(range(4), "1024"))):
        assert affinity.choose(1, root, [0, 1, 2, 3]) == [3]
        assert affinity.choose(2, root, [0, 1, 2, 3]) == [2, 3]
        assert affinity.choose(3, root, [0, 1, 2, 3]) == [1, 2, 3]
        assert affinity.choose(9, root, [0, 1, 2, 3]) == [0, 1, 2, 3]
        assert affinity.choose(1, root, [0]) == [0]


def test_big_cores_first_even_with_low_numbers(tmp_path: Path) -> None:
    root = tree(tmp_path, "cpu_capacity", {0: "1024", 1: "1024", 2: "446", 3: "446"})
    assert affinity.choose(1, root, [0, 1, 2, 3]) == [1]
    assert affinity.choose(2, root, [0, 1, 2, 3]) == [0, 1]
    assert affinity.choose(3, root, [0, 1, 2, 3]) == [0, 1, 3]
    assert affinity.choose(1, root, [2, 3]) == [3]


def test_without_capacity_the_highest_frequency_decides_where_all_tell_it(tmp_path: Path) -> None:
    root = tree(tmp_path, "cpufreq/cpuinfo_max_freq", {0: "5000000", 1: "5000000", 2: "3800000"})
    assert affinity.choose(1, root, [0, 1, 2]) == [1]
    assert affinity.choose(1, root, [0, 1, 2, 3]) == [3]  # CPU 3 does not tell: numbers alone


def test_one_cpu_of_each_core_before_its_sibling(tmp_path: Path) -> None:
    root = tree(tmp_path, "topology/thread_siblings_list", {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"})
    assert affinity.choose(2, root, [0, 1, 2, 3]) == [1, 3]
    assert affinity.choose(3, root, [0, 1, 2, 3]) == [1, 2, 3]


def test_it_chooses_from_what_this_process_is_allowed() -> None:
    chosen = affinity.choose(1000)
    assert chosen == (sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else chosen)


def test_a_refusal_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert affinity.pin([4000]).startswith("sched_setaffinity: ")
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    assert affinity.pin([0]) == "this system sets no affinity"
