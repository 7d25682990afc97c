"""The machine that a measurement was made on. What cannot be read is None, with the reason under ``missing``."""

from __future__ import annotations

import math
import os
import platform
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from runtime_bench.machine import cgroup, sensors
from runtime_bench.machine.sensors import read_number, read_text

FLAGS = (
    *("sse4_1", "sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx_vnni_int8", "avx512f", "avx512bw", "avx512dq"),
    *("avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "neon", "vfpv3"),
    *("vfpv4", "asimd", "fphp", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2", "svei8mm", "svebf16", "sme"),
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

THREAD_VARIABLES = (
    *("OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"),
    *("NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "TBB_NUM_THREADS"),
)
"""Variables that libraries take as their number of threads. Runners set threads explicitly, so none decides it here."""

CONTAINERS = (
    (r"[:/]kubepods", "kubernetes"),
    (r"/docker[/-]", "docker"),
    (r"/libpod[/-]", "podman"),
    (r"/lxc[./]", "lxc"),
)
"""Pattern in a control group's path -> the container runtime."""


class Counters(NamedTuple):
    """What ``begin`` read, for ``finish``. None is a counter that this machine does not have."""

    root: str
    throttled_periods: Optional[int]
    throttles: sensors.Throttles
    pressure_us: Optional[int]
    ticks: Optional[Tuple[int, int]]


def allowed_cpus() -> List[int]:
    """CPUs that this process may run on (affinity and cpuset)."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def limited_threads(requested: int, cpus: int, quota: Optional[float]) -> int:
    """``min(requested, cpus, quota rounded up)``, at least 1."""
    limit = cpus if quota is None or quota >= cpus else math.ceil(quota - 1e-9)
    return max(1, min(requested, limit))


def usable_threads(requested: int, root: str = "/") -> int:
    """Threads worth starting here: no more than asked, than affinity and cpuset allow, than the cgroup quota pays for.

    ``THREAD_VARIABLES`` do not count: the runner is told the number.
    """
    cpus = set(allowed_cpus())
    both = cpus & set(cgroup.cpuset(root) or cpus)  # some container runtimes show the host's affinity
    return limited_threads(requested, len(both or cpus), cgroup.cpu_quota(root))


def describe(root: str = "/") -> Dict[str, Any]:
    """Describe the machine from what lies under ``root``.

    Keys: ``machine``, ``board``, ``cpu``, ``flags``, ``cpus`` and ``cpus_allowed`` (affinity), ``cpus_online``,
    ``cpuset`` (list), ``quota_cpus``, ``thread_variables`` (found in the environment, see ``THREAD_VARIABLES``),
    ``governor``, ``frequency_khz`` (``{"cpu0": {"now", "min", "max"}}``), ``boost`` and ``smt`` (bool), ``aslr`` (0
    to 2), ``temperature_mc`` (by zone), ``power_source`` ("mains" or "battery"), ``power_mode``, ``container``,
    ``load1``, ``memory_bytes``, ``kernel``, ``python``. A value that cannot be read is None and ``missing`` says why.
    """
    missing: Dict[str, str] = {}

    def note(key: str, value: Any, reason: str) -> Any:
        if value is None:
            missing[key] = reason
        return value

    cpus = allowed_cpus()
    info = _cpuinfo(read_text(root, "proc/cpuinfo"))
    return {
        "machine": platform.machine(),
        "board": note("board", read_text(root, "proc/device-tree/model") or None, "no /proc/device-tree/model"),
        "cpu": note("cpu", info["model"], "/proc/cpuinfo names no processor"),
        "flags": note("flags", info["flags"], "/proc/cpuinfo lists no flags"),
        "cpus": len(cpus),
        "cpus_allowed": cpus,
        "cpus_online": os.cpu_count(),
        "cpuset": note("cpuset", cgroup.cpuset(root), "no cpuset in the control group"),
        "quota_cpus": note("quota_cpus", cgroup.cpu_quota(root), "no cgroup quota"),
        "thread_variables": {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ},
        "governor": note("governor", _governor(root), "no cpufreq in /sys"),
        "frequency_khz": note("frequency_khz", sensors.frequencies(root), "no cpufreq in /sys"),
        "boost": note("boost", _boost(root), "neither intel_pstate/no_turbo nor cpufreq/boost in /sys"),
        "smt": note("smt", _flag(read_number(root, "sys/devices/system/cpu/smt/active")), "no smt/active in /sys"),
        "aslr": note("aslr", read_number(root, "proc/sys/kernel/randomize_va_space"), "no randomize_va_space in /proc"),
        "temperature_mc": note("temperature_mc", sensors.temperatures(root), "no readable thermal zone in /sys"),
        "power_source": note("power_source", _power_source(root), "no /sys/class/power_supply tells"),
        "power_mode": note("power_mode", _power_mode(root), "neither nvpmodel nor platform_profile"),
        "container": note("container", _container(root), "no sign of a container"),
        "load1": note("load1", _load(root), "no /proc/loadavg"),
        "memory_bytes": note("memory_bytes", _memory(root), "no MemTotal in /proc/meminfo"),
        "kernel": "{} {}".format(platform.system(), platform.release()),
        "python": platform.python_version(),
        "missing": missing,
    }


def begin(root: str = "/") -> Counters:
    """Read the counters whose growth ``finish`` tells."""
    return Counters(
        root, cgroup.throttled_periods(root), sensors.throttle_counters(root), _pressure(root), _ticks(root)
    )


def finish(before: Counters, sampled: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
    """What happened on the machine since ``begin``, as keys of the environment.

    Args:
        before: from ``begin``.
        sampled: from ``sampler.Samples.result``; a Raspberry Pi tells of throttling only while it lasts.

    Returns ``throttled_periods`` (stops for the cgroup quota), ``thermal_throttles`` (signs that clocks were lowered
    for heat, current or voltage), ``pressure_cpu_some_us`` (time in which some task of the machine waited for a CPU),
    ``steal_share`` (stolen time over time that was wanted, that is busy plus stolen, over all CPUs), ``load1_after``,
    and ``missing``.
    """
    now = begin(before.root)
    flags = ((sampled or {}).get("samples") or {}).get("throttle_flags", {}).get("firmware", [])
    found = {
        "throttled_periods": _growth(before.throttled_periods, now.throttled_periods),
        "thermal_throttles": sensors.throttles(before.throttles, now.throttles, flags),
        "pressure_cpu_some_us": _growth(before.pressure_us, now.pressure_us),
        "steal_share": _steal_share(before.ticks, now.ticks),
        "load1_after": _load(before.root),
    }
    reasons = {
        "throttled_periods": "no nr_throttled in the control group's cpu.stat",
        "thermal_throttles": "no counter of throttling in /sys",
        "pressure_cpu_some_us": "no /proc/pressure/cpu",
        "steal_share": "no cpu line with stolen time in /proc/stat, or no CPU time passed",
        "load1_after": "no /proc/loadavg",
    }
    return {**found, "missing": {key: reasons[key] for key, value in found.items() if value is None}}


def merge(*parts: Mapping[str, Any]) -> Dict[str, Any]:
    """One environment from ``describe``, ``Samples.result`` and ``finish``, their ``missing`` united."""
    merged: Dict[str, Any] = {}
    missing: Dict[str, str] = {}
    for part in parts:
        merged.update(part)
        missing.update(part["missing"])
    return {**merged, "missing": missing}


def _growth(before: Optional[int], after: Optional[int]) -> Optional[int]:
    return None if before is None or after is None else max(after - before, 0)


def _steal_share(before: Optional[Tuple[int, int]], after: Optional[Tuple[int, int]]) -> Optional[float]:
    if before is None or after is None or after[1] <= before[1]:
        return None
    return min(max((after[0] - before[0]) / (after[1] - before[1]), 0.0), 1.0)


def _ticks(root: str) -> Optional[Tuple[int, int]]:
    """``(stolen, wanted)`` clock ticks of all CPUs. Guest time is part of user time and not counted again."""
    found = re.match(r"cpu((?: +[0-9]{1,19}){8})", read_text(root, "proc/stat"))
    if found is None:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, found.group(1).split())
    return steal, user + nice + system + irq + softirq + steal


def _pressure(root: str) -> Optional[int]:
    found = re.search(r"^some .*\btotal=([0-9]{1,19})", read_text(root, "proc/pressure/cpu"), re.MULTILINE)
    return int(found.group(1)) if found else None


def _governor(root: str) -> Optional[str]:
    folders = sensors.listed(root, "sys/devices/system/cpu", "cpu[0-9]*/cpufreq")
    return ", ".join(sorted({read_text(folder, "scaling_governor") for folder in folders} - {""})) or None


def _boost(root: str) -> Optional[bool]:
    off = _flag(read_number(root, "sys/devices/system/cpu/intel_pstate/no_turbo"))
    return _flag(read_number(root, "sys/devices/system/cpu/cpufreq/boost")) if off is None else not off


def _flag(value: Optional[int]) -> Optional[bool]:
    return None if value is None else bool(value)


def _power_source(root: str) -> Optional[str]:
    states = set()
    for folder in sensors.listed(root, "sys/class/power_supply", "*"):
        if read_text(folder, "scope") == "Device":  # the battery of a mouse
            continue
        if read_text(folder, "type") == "Battery":
            states.add("battery" if read_text(folder, "status") == "Discharging" else "charged")
        elif read_number(folder, "online") == 1:
            states.add("mains")
    if "mains" in states:
        return "mains"
    return "battery" if "battery" in states else "mains" if "charged" in states else None


def _power_mode(root: str) -> Optional[str]:
    """``nvpmodel 2 (MAXN_SUPER)`` of a Jetson, or the platform profile of a PC."""
    found = re.fullmatch(r"pmode:([0-9]{1,4})", read_text(root, "var/lib/nvpmodel/status"))
    if found is None:
        return read_text(root, "sys/firmware/acpi/platform_profile") or None
    number = int(found.group(1))
    pattern = r"^\s*<\s*POWER_MODEL\s+ID={}\s+NAME=(\S+)\s*>".format(number)
    name = re.search(pattern, read_text(root, "etc/nvpmodel.conf"), re.MULTILINE)
    return "nvpmodel {}{}".format(number, " ({})".format(name.group(1)) if name else "")


def _container(root: str) -> Optional[str]:
    told = read_text(root, "run/systemd/container")
    if told:
        return told
    if os.path.exists(os.path.join(root, "run/.containerenv")):
        return "podman"
    path = read_text(root, "proc/self/cgroup")
    for pattern, name in CONTAINERS:
        if re.search(pattern, path):
            return name
    return "docker" if os.path.exists(os.path.join(root, ".dockerenv")) else None


def _load(root: str) -> Optional[float]:
    found = re.match(r"([0-9]{1,9}\.[0-9]{1,9}) ", read_text(root, "proc/loadavg"))
    return float(found.group(1)) if found else None


def _memory(root: str) -> Optional[int]:
    found = re.search(r"^MemTotal: *([0-9]{1,15}) kB", read_text(root, "proc/meminfo"), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else None


def _cpuinfo(text: str) -> Dict[str, Any]:
    """Model name and known flags. Arm parts are named; a core that lacks a flag removes it from the list."""
    models: List[str] = []
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
