"""CPU quota and throttling of the control group of this process, versions 1 and 2."""

from __future__ import annotations

import os
from typing import Iterator, Optional


def cpu_quota(root: str = "/") -> Optional[float]:
    """The smallest quota from this process's group up to the mount, in CPUs; None where there is none."""
    quotas = [_v2_quota(_words(folder, "cpu.max")) for folder in _folders(root, "")]
    for folder in _folders(root, "cpu"):
        quotas.append(_v1_quota(_words(folder, "cpu.cfs_quota_us"), _words(folder, "cpu.cfs_period_us")))
    return min((q for q in quotas if q is not None), default=None)


def throttled_periods(root: str = "/") -> Optional[int]:
    """How often the group was stopped for its quota so far; None where the kernel does not count."""
    for controller in ("", "cpu"):
        for folder in _folders(root, controller):
            words = _words(folder, "cpu.stat")
            if "nr_throttled" in words:
                return int(words[words.index("nr_throttled") + 1])
    return None


def _v2_quota(words: list[str]) -> Optional[float]:
    if len(words) != 2 or words[0] == "max":
        return None
    return int(words[0]) / int(words[1])


def _v1_quota(quota: list[str], period: list[str]) -> Optional[float]:
    if not quota or not period or int(quota[0]) <= 0:
        return None
    return int(quota[0]) / int(period[0])


def _folders(root: str, controller: str) -> Iterator[str]:
    """Folders of the group, innermost first, up to the mount. An empty controller means version 2.

    Inside a container the path may belong to the host's tree, of which only the container's part is mounted: a
    missing folder is skipped and the mount itself is always visited.
    """
    mounts = ["sys/fs/cgroup"] if not controller else ["sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct"]
    group = _group(os.path.join(root, "proc/self/cgroup"), controller)
    parts = [] if ".." in group.split("/") else [p for p in group.split("/") if p]
    for mount in mounts:
        for count in range(len(parts), -1, -1):
            folder = os.path.join(root, mount, *parts[:count])
            if os.path.isdir(folder):
                yield folder


def _group(path: str, controller: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            for line in stream:
                number, controllers, group = line.rstrip("\n").split(":", 2)
                if (controller in controllers.split(",")) if controller else (number == "0" and not controllers):
                    return group
    except (OSError, ValueError):
        pass
    return "/"


def _words(folder: str, name: str) -> list[str]:
    try:
        with open(os.path.join(folder, name), encoding="ascii", errors="replace") as stream:
            return stream.read().split()
    except OSError:
        return []
