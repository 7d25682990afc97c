"""CPU quota, CPU set and throttling of the control group, and the threads that follow (B01)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime_bench.machine import cgroup, environment
from tests.conftest import clean_environment
from tests.unit.runtime_bench.machines import tree

REPOSITORY = Path(__file__).parents[3]


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


def test_b01_v2_beside_v1(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:cpu,cpuacct:/jobs\n0::/jobs\n",
        "sys/fs/cgroup/unified/jobs/cpu.max": "250000 100000\n",
    }
    assert cgroup.cpu_quota(tree(tmp_path, files)) == 2.5


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct", "cpuacct,cpu"])
@pytest.mark.parametrize(("quota", "expected"), [("-1\n", None), ("150000\n", 1.5)])
def test_b01_v1_quota(tmp_path: Path, mount: str, quota: str, expected: float | None) -> None:
    files = {
        "proc/self/cgroup": "5:memory:/x\n4:{}:/jobs\n".format(mount if "," in mount else "cpu,cpuacct"),
        f"sys/fs/cgroup/{mount}/jobs/cpu.cfs_quota_us": quota,
        f"sys/fs/cgroup/{mount}/jobs/cpu.cfs_period_us": "100000\n",
    }
    assert cgroup.cpu_quota(tree(tmp_path, files)) == expected


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-1,4\n", [0, 1, 4]),
        ("3", [3]),
        ("", []),
        ("\n", []),
        ("7,5-6", [5, 6, 7]),
        ("4-2", None),
        ("0-", None),
        ("-1", None),
        ("0,,1", None),
        ("all", None),
        ("0-99999999999", None),
        ("0-999999", None),
    ],
)
def test_b01_list_of_cpus(text: str, cpus: list[int] | None) -> None:
    assert cgroup.parse_cpus(text) == cpus


def test_b01_cpuset(tmp_path: Path) -> None:
    second = {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpuset.cpus.effective": "0-1,4\n"}
    assert cgroup.cpuset(tree(tmp_path / "v2", second)) == [0, 1, 4]
    inherited = {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpuset.cpus.effective": "2\n"}
    assert cgroup.cpuset(tree(tmp_path / "parent", inherited)) == [2]
    first = {"proc/self/cgroup": "3:cpuset:/jobs\n", "sys/fs/cgroup/cpuset/jobs/cpuset.cpus": "0-1,4\n"}
    assert cgroup.cpuset(tree(tmp_path / "v1", first)) == [0, 1, 4]
    garbage = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpuset.cpus.effective": "some\n"}
    assert cgroup.cpuset(tree(tmp_path / "garbage", garbage)) is None


def test_no_cgroup_is_no_quota(tmp_path: Path) -> None:
    root = str(tmp_path)
    assert cgroup.cpu_quota(root) is None
    assert cgroup.cpuset(root) is None
    assert cgroup.throttled_periods(root) is None
    assert cgroup.stat_path(root) is None


BAD = ["", " ", "\n\n", "max", "-5 100000", "100000 0", "100000 -1", "1e5 100000", "9" * 30 + " 100000", "٣ ٣", "a b c"]


@pytest.mark.parametrize("text", [*BAD, "\0", "9" * 5000])
def test_b01_malformed_files_are_no_limit(tmp_path: Path, text: str) -> None:
    groups = "0::/\n3:cpu:/\n2:cpuset:/\n\nno line\n:::\n"
    names = ("cpu.max", "cpuset.cpus.effective", "cpu.stat", "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")
    files = {f"sys/fs/cgroup/{name}": text for name in (*names, "cpu/cpu.stat", "cpuset/cpuset.cpus")}
    root = tree(tmp_path, {"proc/self/cgroup": groups, **files})
    assert cgroup.cpu_quota(root) is None
    assert cgroup.cpuset(root) is None
    assert cgroup.throttled_periods(root) is None
    assert cgroup.throttled_ns(text) is None
    assert environment.usable_threads(1, root) == 1


@settings(max_examples=60, deadline=None)
@given(st.text(), st.text(), st.text())
def test_b01_nothing_raises(groups: str, limit: str, stat: str) -> None:
    assert cgroup.parse_cpus(limit) is None or all(cpu >= 0 for cpu in cgroup.parse_cpus(limit) or [])
    cgroup.throttled_ns(stat)
    assert cgroup._group(groups, "cpu")[1] is not None


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 512), st.integers(1, 512), st.one_of(st.none(), st.floats(0.001, 1e18)))
def test_b01_threads_are_the_least_limit(requested: int, cpus: int, quota: float | None) -> None:
    threads = environment.limited_threads(requested, cpus, quota)
    paid = [k for k in range(1, min(requested, cpus) + 1) if k == 1 or quota is None or k - 1 < quota - 1e-9]
    assert threads == paid[-1]  # the last thread would still run for a part of the time


@pytest.mark.parametrize(
    ("requested", "cpus", "quota", "threads"),
    [(4, 8, None, 4), (4, 2, None, 2), (4, 8, 1.5, 2), (4, 8, 2.0, 2), (4, 8, 0.5, 1), (1, 8, 4.0, 1), (4, 8, 1.01, 2)],
)
def test_b01_threads(requested: int, cpus: int, quota: float | None, threads: int) -> None:
    assert environment.limited_threads(requested, cpus, quota) == threads


@pytest.fixture
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "allowed_cpus", lambda: list(range(8)))


@pytest.mark.usefixtures("eight_cpus")
@pytest.mark.parametrize(
    ("files", "threads"),
    [
        ({}, 8),
        ({"cpu.max": "200000 100000"}, 2),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpuset.cpus.effective": "0-1,4"}, 3),
        ({"cpuset.cpus.effective": "0-1,4", "cpu.max": "150000 100000"}, 2),
        ({"cpuset.cpus.effective": "60-63"}, 8),  # not ours: none of them is in the affinity
    ],
)
def test_b01_usable_threads(tmp_path: Path, files: dict[str, str], threads: int) -> None:
    groups = {"proc/self/cgroup": "0::/\n"}
    root = tree(tmp_path, groups | {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert environment.usable_threads(64, root) == threads


def test_b01_threads_follow_the_affinity() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert environment.usable_threads(16) == 1
        assert environment.describe()["cpus"] == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("eight_cpus")
def test_b01_variables_are_told_and_do_not_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in environment.THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert environment.describe(str(tmp_path))["thread_variables"] == {}
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert environment.usable_threads(4, str(tmp_path)) == 4
    assert environment.describe(str(tmp_path))["thread_variables"] == {"OMP_NUM_THREADS": "1"}


UNDER_TASKSET = """
import os
from runtime_bench.machine import environment
from runtime_bench.runners import get

runner = get("onnxruntime")
runner.import_runtime()
before = len(os.listdir("/proc/self/task"))
threads = environment.usable_threads(4)
loaded = runner.load(runner.BASELINE, {"threads": int(os.environ.get("PLANTED", threads))})
loaded.infer(runner.baseline_feeds())
print(threads, len(os.listdir("/proc/self/task")) - before)
"""


@pytest.fixture
def pinned() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Loads a model in a process that may use one CPU; prints the threads to use and those that the pool added."""

    def run(**variables: str) -> subprocess.CompletedProcess[str]:
        cpu = str(min(os.sched_getaffinity(0)))
        command = [shutil.which("taskset") or "taskset", "-c", cpu, sys.executable, "-c", UNDER_TASKSET]
        env = clean_environment(PYTHONPATH=str(REPOSITORY), ORT_DISABLE_TELEMETRY="1", **variables)
        return subprocess.run(command, env=env, check=True, capture_output=True, text=True)

    return run


@pytest.mark.skipif(shutil.which("taskset") is None, reason="needs taskset")
def test_b01_onnxruntime_under_taskset(pinned: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = pinned(OMP_NUM_THREADS="8")
    assert done.stdout.split() == ["1", "0"]  # the calling thread alone
    assert done.stderr == ""  # no complaint about affinity, nor any other
    assert pinned(PLANTED="3").stdout.split() == ["1", "2"]  # a pool of the wrong size would show


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("usage_usec 5\nnr_throttled 7\nthrottled_usec 900\n", 900000),
        ("nr_periods 4\nnr_throttled 1\nthrottled_time 123456789\n", 123456789),
        ("usage_usec 5\n", None),
        ("", None),
        ("throttled_usec", None),
        ("throttled_usec -4", None),
        ("throttled_usec " + "9" * 40, None),
    ],
)
def test_throttled_ns(text: str, nanoseconds: int | None) -> None:
    assert cgroup.throttled_ns(text) == nanoseconds


def test_stops_are_counted_where_the_quota_is(tmp_path: Path) -> None:
    stat = "nr_periods 40\nnr_throttled {}\nthrottled_usec {}\n"
    files = {
        "proc/self/cgroup": "0::/pod/box\n",
        "sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/pod/cpu.stat": stat.format(7, 900),
        "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n",
        "sys/fs/cgroup/pod/box/cpu.stat": stat.format(0, 0),
        "sys/fs/cgroup/cpu.stat": "usage_usec 5\n",
    }
    root = tree(tmp_path, files)
    assert cgroup.throttled_periods(root) == 7
    assert cgroup.stat_path(root) == str(tmp_path / "sys/fs/cgroup/pod/cpu.stat")
    (tmp_path / "sys/fs/cgroup/pod/box/cpu.max").write_text("100000 100000\n")  # now the inner one stops first
    assert cgroup.stat_path(root) == str(tmp_path / "sys/fs/cgroup/pod/box/cpu.stat")
