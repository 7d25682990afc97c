"""Counters of the kernel, read around timed calls and outside the timed region: what happened to a slow call.

One reading costs 1 to 3 us: run-queue wait from ``schedstat``, switches and faults from ``getrusage``, the CPU from
``sched_getcpu``. The throttled time of the control group is read after slow calls and every 100 ms only.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Callable, Mapping, Optional, Sequence

from runtime_bench.machine.cgroup import throttled_ns

NAMES = ("wait_ns", "switches", "minor_faults", "major_faults", "migrations", "throttled_ns")

LEAST_WAIT_NS = 1000
"""A shorter wait in the run queue is not kept."""

REFRESH_NS = 100000000
"""How often the throttled time is read while no call is slow."""

SLOW = 1.25
"""A call that takes this many times as long as expected is followed by a look at the throttled time."""

SCHEDSTAT = "/proc/self/task/{}/schedstat"

Reader = Callable[[], Sequence[int]]


class Counters:
    """Events of timed calls. A held resource: open files, closed with the process.

    Attributes:
        events: name -> ``[[index of the timed call, how much the counter moved], ...]``, only where it moved.
        unread: name -> why that counter cannot be read here.
    """

    def __init__(self, threads: int, expected_ns: int, stat_path: Optional[str], *, movable: bool = True) -> None:
        """Open what the kernel offers.

        Args:
            threads: busy threads of the process. The wait of a call is the longest among as many, those that ran most
                so far; faults and switches count for this thread alone if 1, else for the whole process.
            expected_ns: of a call, to tell slow ones.
            stat_path: ``cpu.stat`` of the control group, None where there is none.
            movable: whether this thread may run on more than one CPU.
        """
        self.events: dict[str, list[list[int]]] = {name: [] for name in NAMES}
        self.unread: dict[str, str] = {}
        self._slow_ns = expected_ns * SLOW
        self._waits, self._usage = self._wait_reader(threads), self._usage_reader(threads)
        self._cpu = self._cpu_reader(movable)
        self._throttled = self._throttled_reader(stat_path)
        self._last_throttled, self._refreshed = self._throttled(), 0
        self.mark()

    def mark(self) -> None:
        """Read the counters: what they count from here on belongs to the next timed call."""
        self._last = (self._waits(), self._usage(), self._cpu())

    def note(self, index: int, latency_ns: int, now_ns: int) -> None:
        """Keep what moved since the last reading as events of the timed call ``index``, which took ``latency_ns``."""
        last_waits, last_usage, last_cpu = self._last
        waits, usage, cpu = self._waits(), self._usage(), self._cpu()
        wait = 0
        for new, old in zip(waits, last_waits):
            wait = max(wait, new - old)
        slow = latency_ns > self._slow_ns
        if wait < LEAST_WAIT_NS and usage == last_usage and cpu == last_cpu and not slow:
            self._last = (waits, usage, cpu)
            if now_ns - self._refreshed > REFRESH_NS:
                self._last_throttled, self._refreshed = self._throttled(), now_ns
            return
        moved = [wait if wait >= LEAST_WAIT_NS else 0]
        moved += [new - old for new, old in zip(usage, last_usage)] or [0, 0, 0]
        moved += [int(cpu != last_cpu), 0]
        if slow:
            throttled = self._throttled()
            moved[-1], self._last_throttled, self._refreshed = throttled - self._last_throttled, throttled, now_ns
        for name, value in zip(NAMES, moved):
            if value > 0:
                self.events[name].append([index, value])
        self.mark()  # what it cost to keep them is not charged to the next call

    def _wait_reader(self, threads: int) -> Reader:
        files = _schedstats(threads)
        if not files:
            self.unread["wait_ns"] = "no {}, or it stays 0".format(SCHEDSTAT.format("TID"))
            return _nothing
        read = os.pread
        if len(files) == 1:
            only = files[0]
            return lambda: (int(read(only, 80, 0).split()[1]),)
        return lambda: [int(read(file, 80, 0).split()[1]) for file in files]

    def _usage_reader(self, threads: int) -> Reader:
        try:
            import resource
        except ImportError:
            for name in NAMES[1:4]:
                self.unread[name] = "no getrusage on this system"
            return _nothing
        who = resource.RUSAGE_THREAD if threads == 1 and hasattr(resource, "RUSAGE_THREAD") else resource.RUSAGE_SELF
        if resource.getrusage(resource.RUSAGE_SELF).ru_minflt == 0:  # no process starts without any
            for name in NAMES[1:4]:
                self.unread[name] = "getrusage counts nothing here"
            return _nothing
        getrusage = resource.getrusage

        def read() -> Sequence[int]:
            usage = getrusage(who)
            return usage.ru_nivcsw, usage.ru_minflt, usage.ru_majflt

        return read

    def _cpu_reader(self, movable: bool) -> Callable[[], int]:
        if not movable:
            return int
        try:
            import ctypes

            function: Any = ctypes.PyDLL(None).sched_getcpu  # holds the lock: no switch of threads
        except (ImportError, OSError, AttributeError, TypeError):
            function = None
        if function is None or function() < 0:
            self.unread["migrations"] = "no sched_getcpu on this system"
            return int
        return function  # type: ignore[no-any-return]

    def _throttled_reader(self, path: Optional[str]) -> Callable[[], int]:
        file = -1 if path is None else _open(path)
        if file >= 0 and throttled_ns(_read(file)) is not None:
            return lambda: throttled_ns(_read(file)) or 0
        self.unread["throttled_ns"] = "no throttled time in a cpu.stat of the control group"
        return int


def minor_fault_ns(pages: int = 64, repeats: int = 9) -> Optional[int]:
    """Cost of one minor fault in ns: the first touch of fresh anonymous pages minus the second, median of repeats.

    None where the system has no private pages to map or the difference vanishes in the noise.
    """
    import mmap

    if not hasattr(mmap, "MAP_PRIVATE"):
        return None
    clock, size, flags = time.perf_counter_ns, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    costs = []
    for _ in range(repeats):
        with mmap.mmap(-1, pages * size, flags=flags) as block:
            if hasattr(mmap, "MADV_NOHUGEPAGE"):
                with contextlib.suppress(OSError):  # a kernel without huge pages
                    block.madvise(mmap.MADV_NOHUGEPAGE)
            times = []
            for _ in range(2):
                begin = clock()
                for offset in range(0, pages * size, size):
                    block[offset] = 1
                times.append(clock() - begin)
        costs.append((times[0] - times[1]) // pages)
    cost = sorted(costs)[repeats // 2]
    return cost if cost > 0 else None


def _schedstats(threads: int) -> list[int]:
    """Open files of the threads that ran longest, at most ``threads``; the first is the one that calls."""
    try:
        mine = os.readlink("/proc/thread-self").rpartition("/")[2]
        tasks = [mine] + [task for task in os.listdir("/proc/self/task") if task != mine and threads > 1]
    except OSError:
        return []
    files = {task: _open(SCHEDSTAT.format(task)) for task in tasks}
    ran = {task: int(os.pread(file, 80, 0).split()[0]) for task, file in files.items() if file >= 0}
    if not ran.get(mine):
        return []
    chosen = [mine, *sorted((task for task in ran if task != mine), key=lambda task: -ran[task])[: threads - 1]]
    for task in ran:
        if task not in chosen:
            os.close(files[task])
    return [files[task] for task in chosen]


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError:
        return -1


def _read(file: int) -> str:
    return os.pread(file, 4096, 0).decode("ascii", "replace")


def _nothing() -> Sequence[int]:
    return ()


def empty() -> Mapping[str, Any]:
    """The events of a process that made no timed call."""
    return {name: [] for name in NAMES}
