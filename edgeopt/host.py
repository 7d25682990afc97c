"""What this machine is: architecture, instruction set, usable processors and memory, installed runtimes.

Every probe takes the root of the file system, so that a recorded ``/proc`` and ``/sys`` can stand in for the real one.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import math
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

ARCHES = ("aarch64", "armv7l", "x86_64")
"""Architectures a target may have, as ``uname -m`` spells them."""

ISA: Mapping[str, tuple[str, ...]] = {
    "aarch64": ("asimd", "asimdhp", "fphp", "asimddp", "i8mm", "bf16", "sve", "sve2", "svei8mm", "svebf16", "sme"),
    "armv7l": ("neon", "vfpv3", "vfpv4", "asimdhp", "fphp", "asimddp", "i8mm"),
    "x86_64": (
        *("sse4_1", "sse4_2", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx_vnni_int8"),
        *("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
        *("amx_tile", "amx_int8", "amx_bf16"),
    ),
}
"""Features that change which kernels a runtime picks, by architecture, as Linux spells them in /proc/cpuinfo."""

VNNI = ("avx512_vnni", "avx_vnni")
"""x86 features that add u8*s8 products into 32 bits without saturating pairs at 16 bits."""

_MACHINES = {"arm64": "aarch64", "amd64": "x86_64", "x64": "x86_64", "armv8l": "armv7l"}
_RUNTIMES = {"onnxruntime": ("onnxruntime", "onnxruntime-gpu"), "openvino": ("openvino",), "tensorrt": ("tensorrt",)}
_UNLIMITED = 1 << 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class Host:
    """This machine. ``memory_bytes`` is what a process here may use; the sources say where each number is from."""

    arch: str
    cpu: str
    isa: tuple[str, ...]
    threads: int
    threads_source: str
    memory_bytes: int
    memory_source: str
    runtimes: Mapping[str, str]


def probe(root: Path = Path("/")) -> Host:
    """Probe this machine with psutil, ``/proc`` and the control groups."""
    arch = machine()
    cpu, flags = cpuinfo(root)
    threads, threads_source = usable_threads(root)
    memory, memory_source = usable_memory(root)
    return Host(
        arch=arch,
        cpu=cpu or platform.processor() or arch,
        isa=tuple(flag for flag in ISA.get(arch, ()) if flag in flags),
        threads=threads,
        threads_source=threads_source,
        memory_bytes=memory,
        memory_source=memory_source,
        runtimes=installed_runtimes(),
    )


def machine() -> str:
    """The architecture as ``uname -m`` would spell it on Linux."""
    name = platform.machine().lower()
    return _MACHINES.get(name, name)


def cpuinfo(root: Path = Path("/")) -> tuple[str, frozenset[str]]:
    """Model name and the features that **every** processor has; empty where there is no /proc/cpuinfo."""
    name = ""
    common: frozenset[str] | None = None
    for line in _read(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            flags = frozenset(value.split())
            common = flags if common is None else common & flags
        elif key.strip() in ("model name", "Model") and not name:
            name = value.strip()
    return name, common or frozenset()


def usable_threads(root: Path = Path("/")) -> tuple[int, str]:
    """Threads that can run at once: the affinity mask, cut by the control group's CPU quota; and what decided."""
    count, source = affinity()
    quota = min(_cpu_quotas(root), default=math.inf)
    if quota < count:
        return max(1, math.floor(quota)), f"control group CPU quota of {quota:g}"
    return count, source


def affinity() -> tuple[int, str]:
    """Processors this process may run on, and which call said so."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)), "affinity mask"
    return psutil.cpu_count(logical=True) or 1, "psutil.cpu_count"


def usable_memory(root: Path = Path("/")) -> tuple[int, str]:
    """Bytes of memory a process here may use: the total, cut by the control group's limit; and what decided."""
    total = int(psutil.virtual_memory().total)
    limit = min(_memory_limits(root), default=_UNLIMITED)
    return (limit, "control group memory limit") if limit < total else (total, "psutil.virtual_memory")


def installed_runtimes() -> dict[str, str]:
    """Version of every runtime installed in this environment, by backend name. Nothing is imported."""
    found: dict[str, str] = {}
    for name, distributions in _RUNTIMES.items():
        for distribution in distributions:
            try:
                found.setdefault(name, importlib.metadata.version(distribution))
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


def _cpu_quotas(root: Path) -> Iterator[float]:
    for folder in _groups(root, "cpu"):
        maximum = _read(folder / "cpu.max").split()
        if len(maximum) == 2 and maximum[0].isdigit() and maximum[1].isdigit() and int(maximum[1]):
            yield int(maximum[0]) / int(maximum[1])
        quota, period = _read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()
        if quota.isdigit() and period.isdigit() and int(period):  # a quota of -1 is none
            yield int(quota) / int(period)


def _memory_limits(root: Path) -> Iterator[int]:
    for folder in _groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _read(folder / name).strip()
            if text.isdigit() and 0 < int(text) < _UNLIMITED:
                yield int(text)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's control groups for a controller and of all their parents, version 1 and 2."""
    base = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, inside = (*line.split(":", 2), "", "")[:3]
        if controllers and controller not in controllers.split(","):
            continue
        for top in (base / controllers, base / controller) if controllers else (base, base / "unified"):
            parts = [part for part in inside.split("/") if part not in ("", "..")]
            for depth in range(len(parts), -1, -1):
                yield top.joinpath(*parts[:depth])


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
