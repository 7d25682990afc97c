"""CPU quota, CPU set and throttling of the control group of this process, versions 1 and 2.

The files belong to the kernel, but a container may show anything in their place: what does not parse is not there.
"""

from __future__ import annotations

import os
import re
from typing import Iterator, List, Optional, Set, Tuple

MAX_DIGITS = 18
"""A longer number is no limit on any machine."""

MAX_CPU = 65535


def cpu_quota(root: str = "/") -> Optional[float]:
    """The smallest quota from this process's group up to the mount, in CPUs; None where there is none."""
    return min((quota for quota, _ in _quotas(root)), default=None)


def cpuset(root: str = "/") -> Optional[List[int]]:
    """CPUs that the control group may use, in order; None where no group says so."""
    for controller, name in (("", "cpuset.cpus.effective"), ("cpuset", "cpuset.cpus")):
        for folder in _folders(root, controller):
            cpus = parse_cpus(_text(folder, name))
            if cpus:
                return cpus
    return None


def throttled_periods(root: str = "/") -> Optional[int]:
    """How often this group or one above it was stopped for its quota so far; None where the kernel does not count.

    A group counts only the stops for its own quota, so the levels are added up.
    """
    for controller in ("", "cpu"):
        counts = [_field(_text(folder, "cpu.stat"), "nr_throttled") for folder in _folders(root, controller)]
        found = [count for count in counts if count is not None]
        if found:
            return sum(found)
    return None


def stat_path(root: str = "/") -> Optional[str]:
    """``cpu.stat`` of the group with the smallest quota; without a quota, of the innermost group that counts stops.

    None where the kernel does not count. ``throttled_ns`` reads its text.
    """
    folders = [folder for _, folder in sorted(_quotas(root))]
    folders += [folder for controller in ("", "cpu") for folder in _folders(root, controller)]
    for folder in folders:
        if _field(_text(folder, "cpu.stat"), "nr_throttled") is not None:
            return os.path.join(folder, "cpu.stat")
    return None


def throttled_ns(text: str) -> Optional[int]:
    """Nanoseconds for which the group was stopped, from the text of ``cpu.stat``; None where it does not say."""
    microseconds = _field(text, "throttled_usec")
    return _field(text, "throttled_time") if microseconds is None else microseconds * 1000


def parse_cpus(text: str) -> Optional[List[int]]:
    """CPU numbers of a list such as ``0-1,4``; None for a malformed one. An empty text is an empty list."""
    cpus: Set[int] = set()
    for part in text.strip().split(",") if text.strip() else []:
        found = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part.strip())
        if found is None:
            return None
        first = int(found.group(1))
        last = first if found.group(2) is None else int(found.group(2))
        if last < first or last > MAX_CPU:
            return None
        cpus.update(range(first, last + 1))
    return sorted(cpus)


def _quotas(root: str) -> Iterator[Tuple[float, str]]:
    """``(CPUs, folder)`` of every group with a quota."""
    for folder in _folders(root, ""):
        words = _text(folder, "cpu.max").split()
        quota = _share(*words) if len(words) == 2 else None
        if quota is not None:
            yield quota, folder
    for folder in _folders(root, "cpu"):
        quota = _share(_text(folder, "cpu.cfs_quota_us").strip(), _text(folder, "cpu.cfs_period_us").strip())
        if quota is not None:
            yield quota, folder


def _share(quota: str, period: str) -> Optional[float]:
    """None for no quota: ``max`` (version 2), -1 (version 1), or a text that is no number."""
    runtime, length = _whole(quota), _whole(period)
    return runtime / length if runtime and length else None


def _field(text: str, name: str) -> Optional[int]:
    words = text.split()
    return _whole(words[words.index(name) + 1]) if name in words[:-1] else None


def _whole(word: str) -> Optional[int]:
    return int(word) if re.fullmatch("[0-9]{1,%d}" % MAX_DIGITS, word) else None


def _folders(root: str, controller: str) -> Iterator[str]:
    """Folders of the group, innermost first, up to the mount. An empty controller means version 2.

    Inside a container the path may belong to the host's tree, of which only the container's part is mounted: a
    missing folder is skipped and the mount itself is always visited.
    """
    controllers, group = _group(_text(root, "proc/self/cgroup"), controller)
    names = ["", "unified"] if not controller else [controller, controllers, "cpu,cpuacct"]
    parts = [] if ".." in group.split("/") else [part for part in group.split("/") if part]
    seen = set()
    for name in names:
        for count in range(len(parts), -1, -1):
            folder = os.path.join(root, "sys/fs/cgroup", name, *parts[:count])
            real = os.path.realpath(folder)
            if real not in seen and os.path.isdir(folder):
                seen.add(real)
                yield folder


def _group(text: str, controller: str) -> Tuple[str, str]:
    """``(controllers, path)`` of the line of ``/proc/self/cgroup`` that names the controller."""
    for line in text.splitlines():
        number, controllers, group = (*line.split(":", 2), "", "")[:3]
        if (controller in controllers.split(",")) if controller else (number == "0" and not controllers):
            return controllers, group
    return "", "/"


def _text(folder: str, name: str) -> str:
    try:
        with open(os.path.join(folder, name), encoding="ascii", errors="replace") as stream:
            return stream.read(65536)
    except (OSError, ValueError):  # ValueError: a name with a zero byte
        return ""
