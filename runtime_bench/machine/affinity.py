"""Which CPUs a worker runs on, and the attempt to keep it there."""

from __future__ import annotations

import os
from typing import Optional, Sequence


def choose(threads: int, root: str = "/", allowed: Optional[Sequence[int]] = None) -> list[int]:
    """Choose CPUs for a process with that many busy threads.

    The fastest CPUs come first, one of each physical core before its siblings, and among equals the highest number:
    CPU 0 serves interrupts. Speed is ``cpu_capacity``, else the highest frequency, where every CPU tells it.

    Args:
        threads: how many CPUs are wanted.
        root: where ``sys`` is mounted.
        allowed: CPUs to choose from; those that the affinity of this process allows if None.

    Returns the numbers in ascending order; all that are allowed where more are wanted.
    """
    if allowed is None:
        from runtime_bench.machine.environment import allowed_cpus  # here, as workers import this module

        allowed = allowed_cpus()
    speed = _speeds(root, allowed)
    cpus = sorted(allowed, key=lambda cpu: (-speed[cpu], -cpu))
    cores = [_core(root, cpu) for cpu in cpus]
    siblings = [cpu for i, cpu in enumerate(cpus) if cores[i] in cores[:i]]
    first = [cpu for cpu in cpus if cpu not in siblings]
    return sorted((first + siblings)[:threads])


def pin(cpus: Sequence[int]) -> str:
    """Keep this thread, and those that it starts later, on these CPUs; the reason where that cannot be done, or ""."""
    if not hasattr(os, "sched_setaffinity"):
        return "this system sets no affinity"
    try:
        os.sched_setaffinity(0, cpus)
    except (OSError, ValueError) as error:
        return "sched_setaffinity: {}".format(error)
    return ""


def _speeds(root: str, cpus: Sequence[int]) -> dict[int, int]:
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        values = {cpu: _text(root, cpu, name) for cpu in cpus}
        if all(value.isdigit() for value in values.values()):
            return {cpu: int(value) for cpu, value in values.items()}
    return dict.fromkeys(cpus, 0)


def _core(root: str, cpu: int) -> str:
    """CPUs of one physical core have the same list of siblings."""
    return _text(root, cpu, "topology/thread_siblings_list") or str(cpu)


def _text(root: str, cpu: int, name: str) -> str:
    try:
        with open(os.path.join(root, "sys/devices/system/cpu/cpu{}".format(cpu), name), encoding="ascii") as stream:
            return stream.read().strip()
    except (OSError, ValueError):
        return ""
