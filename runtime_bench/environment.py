"""The machine that a measurement was made on. What cannot be read is None, with the reason under ``missing``."""

from __future__ import annotations

import glob
import math
import os
import platform
from typing import Any, Optional

from runtime_bench import cgroup

FLAGS = (
    *("sse4_2", "avx", "f16c", "fma", "avx2", "avx512f", "avx512bw", "avx512_vnni", "avx_vnni", "avx512_bf16"),
    *("amx_tile", "amx_int8", "neon", "asimd", "fphp", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2"),
)
"""Instruction-set features that decide which kernels run, as Linux spells them."""

ARM_PARTS = {
    ("0x41", "0xd03"): "Cortex-A53",
    ("0x41", "0xd04"): "Cortex-A35",
    ("0x41", "0xd05"): "Cortex-A55",
    ("0x41", "0xd07"): "Cortex-A57",
    ("0x41", "0xd08"): "Cortex-A72",
    ("0x41", "0xd09"): "Cortex-A73",
    ("0x41", "0xd0a"): "Cortex-A75",
    ("0x41", "0xd0b"): "Cortex-A76",
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd0d"): "Cortex-A77",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd41"): "Cortex-A78",
    ("0x41", "0xd42"): "Cortex-A78AE",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x4e", "0x003"): "Denver 2",
    ("0x4e", "0x004"): "Carmel",
}
"""(implementer, part) -> core; 64-bit Arm kernels print no model name."""


def allowed_cpus() -> list[int]:
    """CPUs that this process may run on (affinity and cpuset)."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def limited_threads(requested: int, cpus: int, quota: Optional[float]) -> int:
    """``min(requested, cpus, quota rounded up)``, at least 1."""
    limit = cpus if quota is None else min(cpus, math.ceil(quota - 1e-9))
    return max(1, min(requested, limit))


def usable_threads(requested: int) -> int:
    """Threads worth starting here: no more than asked, than the affinity allows, than the cgroup quota pays for."""
    return limited_threads(requested, len(allowed_cpus()), cgroup.cpu_quota())


def describe(root: str = "/") -> dict[str, Any]:
    """Describe the machine from ``/proc`` and ``/sys`` under ``root``."""
    missing: dict[str, str] = {}

    def note(key: str, value: Any, reason: str) -> Any:
        if value is None:
            missing[key] = reason
        return value

    cpus = allowed_cpus()
    info = _cpuinfo(_text(root, "proc/cpuinfo"))
    governors = sorted(
        {
            _text(path).strip()
            for path in glob.glob(os.path.join(root, "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"))
        }
    )
    board = _text(root, "proc/device-tree/model").strip("\0 \n")
    load = _text(root, "proc/loadavg").split()
    memory = [line.split()[1] for line in _text(root, "proc/meminfo").splitlines() if line.startswith("MemTotal:")]
    return {
        "machine": platform.machine(),
        "board": note("board", board or None, "no /proc/device-tree/model"),
        "cpu": note("cpu", info["model"], "/proc/cpuinfo names no processor"),
        "flags": note("flags", info["flags"], "/proc/cpuinfo lists no flags"),
        "cpus": len(cpus),
        "cpus_allowed": cpus,
        "cpus_online": os.cpu_count(),
        "quota_cpus": note("quota_cpus", cgroup.cpu_quota(root), "no cgroup quota"),
        "governor": note("governor", ", ".join(governors) or None, "no cpufreq in /sys"),
        "load1": note("load1", float(load[0]) if load else None, "no /proc/loadavg"),
        "memory_bytes": note("memory_bytes", int(memory[0]) * 1024 if memory else None, "no MemTotal in /proc/meminfo"),
        "kernel": "{} {}".format(platform.system(), platform.release()),
        "python": platform.python_version(),
        "missing": missing,
    }


def _cpuinfo(text: str) -> dict[str, Any]:
    """Model name and known flags. Arm parts are named; a core that lacks a flag removes it from the list."""
    models: list[str] = []
    flags: Optional[set[str]] = None
    implementer = ""
    for line in text.splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key in ("flags", "Features"):
            flags = set(value.split()) if flags is None else flags & set(value.split())
        elif key == "CPU implementer":
            implementer = value
        elif key == "CPU part":
            models.append(ARM_PARTS.get((implementer, value), "Arm implementer {} part {}".format(implementer, value)))
        elif key in ("model name", "Model name"):
            models.append(value)
    return {
        "model": " + ".join(sorted(set(models))) or None,
        "flags": None if flags is None else [flag for flag in FLAGS if flag in flags],
    }


def _text(*parts: str) -> str:
    try:
        with open(os.path.join(*parts), encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""
