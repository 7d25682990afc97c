"""CPU quota, threads (B01) and the description of the machine, from fixture trees."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from runtime_bench import cgroup, environment


def tree(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


@pytest.mark.parametrize(
    ("text", "quota"),
    [("200000 100000\n", 2.0), ("max 100000\n", None), ("50000 100000\n", 0.5), ("150000 100000\n", 1.5)],
)
def test_b01_v2_quota(tmp_path: Path, text: str, quota: float | None) -> None:
    root = tree(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": text})
    assert cgroup.cpu_quota(root) == quota


def test_b01_v2_nested_takes_the_smallest(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/a/b\n",
        "sys/fs/cgroup/a/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
    }
    assert cgroup.cpu_quota(tree(tmp_path, files)) == 1.5


def test_b01_v2_path_of_the_host_inside_a_container(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/docker/abc\n", "sys/fs/cgroup/cpu.max": "300000 100000\n"}
    assert cgroup.cpu_quota(tree(tmp_path, files)) == 3.0
    (tmp_path / "proc/self/cgroup").write_text("0::/../../etc\n")
    assert cgroup.cpu_quota(str(tmp_path)) == 3.0


@pytest.mark.parametrize(("quota", "expected"), [("-1\n", None), ("150000\n", 1.5)])
def test_b01_v1_quota(tmp_path: Path, quota: str, expected: float | None) -> None:
    files = {
        "proc/self/cgroup": "5:memory:/x\n4:cpu,cpuacct:/jobs\n",
        "sys/fs/cgroup/cpu/jobs/cpu.cfs_quota_us": quota,
        "sys/fs/cgroup/cpu/jobs/cpu.cfs_period_us": "100000\n",
    }
    assert cgroup.cpu_quota(tree(tmp_path, files)) == expected


def test_no_cgroup_is_no_quota(tmp_path: Path) -> None:
    assert cgroup.cpu_quota(str(tmp_path)) is None
    assert cgroup.throttled_periods(str(tmp_path)) is None


def test_throttled_periods(tmp_path: Path) -> None:
    stat = "usage_usec 5\nnr_periods 40\nnr_throttled 7\nthrottled_usec 900\n"
    assert cgroup.throttled_periods(tree(tmp_path, {"sys/fs/cgroup/cpu.stat": stat})) == 7


@pytest.mark.parametrize(
    ("requested", "cpus", "quota", "threads"),
    [(4, 8, None, 4), (4, 2, None, 2), (4, 8, 1.5, 2), (4, 8, 2.0, 2), (4, 8, 0.5, 1), (1, 8, 4.0, 1), (4, 8, 1.01, 2)],
)
def test_b01_threads(requested: int, cpus: int, quota: float | None, threads: int) -> None:
    assert environment.limited_threads(requested, cpus, quota) == threads


def test_b01_threads_follow_the_affinity() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert environment.usable_threads(16) == 1
        assert environment.describe()["cpus"] == 1
    finally:
        os.sched_setaffinity(0, before)


def test_describe_an_arm_board(tmp_path: Path) -> None:
    core = "processor\t: {}\nFeatures\t: fp asimd {}\nCPU implementer\t: 0x41\nCPU part\t: {}\n\n"
    cpuinfo = core.format(0, "asimddp asimdhp", "0xd0b") + core.format(1, "asimdhp", "0xd05")
    files = {
        "proc/cpuinfo": cpuinfo,
        "proc/device-tree/model": "Raspberry Pi 5 Model B Rev 1.0\0",
        "proc/loadavg": "0.52 0.1 0.1 1/99 7\n",
        "proc/meminfo": "MemTotal:        8123456 kB\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "ondemand\n",
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "ondemand\n",
    }
    found = environment.describe(tree(tmp_path, files))
    assert found["board"] == "Raspberry Pi 5 Model B Rev 1.0"
    assert found["cpu"] == "Cortex-A55 + Cortex-A76"
    assert found["flags"] == ["asimd", "asimdhp"]  # what every core has
    assert found["governor"] == "ondemand"
    assert found["load1"] == 0.52
    assert found["memory_bytes"] == 8123456 * 1024
    assert set(found["missing"]) == {"quota_cpus"}


def test_what_is_not_there_is_null_with_a_reason(tmp_path: Path) -> None:
    found = environment.describe(str(tmp_path))
    for key in ("board", "cpu", "flags", "quota_cpus", "governor", "load1", "memory_bytes"):
        assert found[key] is None
        assert found["missing"][key]


def test_describe_this_machine_is_json() -> None:
    found = json.loads(json.dumps(environment.describe()))
    assert found["cpus"] == len(found["cpus_allowed"]) >= 1
    assert {key for key, value in found.items() if value is None} == set(found["missing"])
