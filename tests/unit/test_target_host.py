"""The probe of this machine, on recorded /proc and control groups and on the machine itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeopt import host
from edgeopt.host import Host, cpuinfo, usable_memory, usable_threads
from edgeopt.target import Int8Scheme, host_target, load_target
from runtime_bench.machine import environment

X86 = "processor : 0\nmodel name : Some CPU\nflags : fpu avx avx2 avx512_vnni\n\n"
ARM = "processor : 0\nBogoMIPS : 108.00\nFeatures : fp asimd asimddp\n\n"


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def machine(**changes: object) -> Host:
    values: dict[str, object] = {
        "arch": "x86_64",
        "cpu": "Some CPU",
        "isa": (),
        "threads": 4,
        "threads_source": "affinity mask",
        "memory_bytes": 1 << 30,
        "memory_source": "test",
        "runtimes": {"onnxruntime": "1.32.0"},
    }
    return Host(**(values | changes))  # type: ignore[arg-type]


def test_features_are_those_of_every_processor(tmp_path: Path) -> None:
    put(tmp_path, "proc/cpuinfo", X86 + X86.replace(" avx512_vnni", ""))
    assert cpuinfo(tmp_path) == ("Some CPU", frozenset({"fpu", "avx", "avx2"}))


def test_arm_features_and_a_missing_file(tmp_path: Path) -> None:
    assert cpuinfo(tmp_path) == ("", frozenset())
    put(tmp_path, "proc/cpuinfo", ARM)
    assert cpuinfo(tmp_path)[1] == {"fp", "asimd", "asimddp"}


@pytest.mark.parametrize(
    ("group", "files", "threads"),
    [
        ("0::/a/b", {"a/b/cpu.max": "150000 100000"}, 1),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3),
        ("0::/a/b", {"a/b/cpu.max": "50000 100000"}, 1),
        ("0::/", {"cpu.max": "max 100000"}, 64),
        ("0::/../..", {"cpu.max": "200000 100000"}, 2),
        (
            "4:cpu,cpuacct:/x",
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "250000", "cpu,cpuacct/x/cpu.cfs_period_us": "100000"},
            2,
        ),
        ("4:cpu:/x", {"cpu/x/cpu.cfs_quota_us": "-1", "cpu/x/cpu.cfs_period_us": "100000"}, 64),
        ("4:memory:/x", {"cpu/x/cpu.cfs_quota_us": "100000", "cpu/x/cpu.cfs_period_us": "100000"}, 64),
        ("0::/a", {"a/cpu.max": "nonsense"}, 64),
        ("0::/a", {"a/cpu.max": "100000 0"}, 64),
    ],
)
def test_a_cpu_quota_cuts_the_threads(
    group: str, files: dict[str, str], threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "affinity", lambda: (64, "affinity mask"))
    put(tmp_path, "proc/self/cgroup", group + "\n")
    for name, text in files.items():
        put(tmp_path, f"sys/fs/cgroup/{name}", text)
    count, source = usable_threads(tmp_path)
    assert count == threads
    assert ("quota" in source) == (threads != 64)


@pytest.mark.parametrize(
    ("group", "name", "text", "limit"),
    [
        ("0::/a", "a/memory.max", "1048576", 1 << 20),
        ("0::/a", "a/memory.max", "max", None),
        ("7:memory:/a", "memory/a/memory.limit_in_bytes", "2097152", 2 << 20),
        ("7:memory:/a", "memory/a/memory.limit_in_bytes", str(2**63 - 4096), None),
    ],
)
def test_a_memory_limit_cuts_the_memory(group: str, name: str, text: str, limit: int | None, tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", group)
    put(tmp_path, f"sys/fs/cgroup/{name}", text)
    found, source = usable_memory(tmp_path)
    if limit is None:
        assert source == "psutil.virtual_memory"
        assert found > 1 << 27
    else:
        assert (found, source) == (limit, "control group memory limit")


@pytest.mark.parametrize(
    ("arch", "isa", "scheme", "slow"),
    [
        ("x86_64", ("avx2", "avx512_vnni"), Int8Scheme(activation="uint8"), False),
        ("x86_64", ("avx2", "avx_vnni"), Int8Scheme(activation="uint8"), False),
        ("x86_64", ("avx2", "avx512f"), Int8Scheme(activation="uint8", weight_bits=7), True),
        ("x86_64", ("sse4_2",), Int8Scheme(activation="uint8", weight_bits=7), True),
        ("aarch64", ("asimd", "asimddp"), Int8Scheme(activation="int8"), False),
        ("aarch64", ("asimd",), Int8Scheme(activation="int8"), True),
    ],
)
def test_int8_of_a_probed_machine(arch: str, isa: tuple[str, ...], scheme: Int8Scheme, slow: bool) -> None:
    found = host_target(machine(arch=arch, isa=isa))
    assert found.int8 == scheme
    assert any("no 8-bit dot product" in note for note in found.notes) == slow


@pytest.mark.parametrize(("version", "limits"), [("1.32.0", (21, 10)), ("1.17.3", (20, 9)), ("1.16.0", (19, 9))])
def test_opset_of_a_probed_machine_follows_its_runtime(version: str, limits: tuple[int, int]) -> None:
    found = host_target(machine(runtimes={"onnxruntime": version}))
    assert (found.opset_max, found.ir_version_max) == limits
    assert found.runtime == {"onnxruntime": version}


def test_this_machine_is_probed() -> None:
    import onnxruntime
    import psutil

    found = load_target("host")
    assert found.name == "host"
    assert 1 <= found.threads <= psutil.cpu_count(logical=True)
    assert 0 < int(found.facts["memory_bytes"].value) <= psutil.virtual_memory().total
    assert found.runtime["onnxruntime"] == onnxruntime.__version__
    assert set(found.isa) <= set(host.ISA.get(found.arch, ()))


def test_the_measuring_program_reads_every_feature_that_a_target_may_name() -> None:
    named = {flag for flags in host.ISA.values() for flag in flags}
    assert named <= set(environment.FLAGS)
