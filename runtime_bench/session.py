"""The worker processes of one measurement: audit, timing, sustained, memory. What they tell is kept by subject."""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from typing import Any, Callable, Mapping, NamedTuple, Optional

from runtime_bench import counters, memory, process

SEED = 7

STARTUP_S, LEAST_STARTUP_S, SLOWER = 300.0, 30.0, 10.0
"""Time that a worker may take beyond its calls: start, imports, load. Under a time limit, once one has started, so many
times as long as the slowest start."""

MEMORY_SHARE, SUSTAINED_SHARE = 0.2, 0.25
"""Shares of the time limit that are kept for the memory pass and for the sustained processes; timing has the rest."""

LEAST_SUSTAINED_S = 3.0
MAX_SUSTAINED = 20000
"""Timed calls expected of a sustained process."""

NO_RECORD: Mapping[str, Any] = {
    "start_ns": 0,
    "phases_ns": {},
    "warmup_ns": [],
    "warmup_calls": 0,
    "warmup_stable": False,
    "steady_begin_ns": None,
    "steady_span_ns": 0,
    "steady_ns": [],
    "every": 1,
    "service_ns": [],
    "events": counters.empty(),
    "unread": {},
    "fault_ns": None,
    "burst_ns": [],
    "cut_short": True,
    "error": None,
}
"""What the record of a process holds that died before it told anything."""

SUSTAINED_KEYS = (
    *("start_ns", "steady_begin_ns", "steady_span_ns", "steady_ns", "every", "service_ns", "events", "unread"),
    *("fault_ns", "cut_short", "error"),
)

Request = Mapping[str, Any]


class Limit(NamedTuple):
    """Monotonic times at which timing, the sustained processes and everything should be done; None = no limit."""

    timing: Optional[float]
    sustained: Optional[float]
    all: Optional[float]


def limit(seconds: Optional[float], *, sustained: bool, memory: bool) -> Limit:
    """Share out the time from now. A part that ends early leaves its time to those after it."""
    if seconds is None:
        return Limit(None, None, None)
    now = time.monotonic()
    before_memory = seconds * (1 - MEMORY_SHARE * memory)
    return Limit(now + before_memory - seconds * SUSTAINED_SHARE * sustained, now + before_memory, now + seconds)


class Session:
    """Runs the processes of one measurement.

    Attributes:
        runtimes: what each subject's runtime said of itself.
        not_pinned: why a worker could not be kept on its CPUs; empty where all were.
    """

    def __init__(
        self, requests: Mapping[str, Request], plan: Mapping[str, Any], epoch_ns: int, tell: Callable[[str], None]
    ) -> None:
        self.runtimes: dict[str, Any] = {}
        self.not_pinned = ""
        self._requests, self._plan, self._epoch_ns, self._tell = requests, plan, epoch_ns, tell
        self._rng = random.Random(SEED)
        self._slowest_s = 0.0

    def audit(self, name: str) -> dict[str, Any]:
        """What the runtime of a subject really ran, or ``{"reason"}``. Raises RuntimeMissing."""
        self._tell("{}: audit".format(name))
        request = {**self._requests[name], "job": "audit"}
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # where none can be made the audit says so
                request["scratch"] = stack.enter_context(tempfile.TemporaryDirectory(prefix="runtime-bench-"))
            try:
                return process.run(request, STARTUP_S)
            except process.WorkerError as error:
                return {"reason": str(error)}

    def time_one(self, name: str, until: Optional[float]) -> dict[str, Any]:
        """Run one timing process; its record as in the measurement. Raises RuntimeMissing."""
        return self._timed(name, {**self._plan, "until": until})

    def sustained(self, name: str, until: Optional[float]) -> Optional[dict[str, Any]]:
        """Run one process for ``sustained_s``, or for what is left of it; None where too little is."""
        seconds = self._plan["sustained_s"]
        if until is not None and until - time.monotonic() < LEAST_SUSTAINED_S:
            return None
        self._tell("{}: sustained, {:.0f} s".format(name, seconds))
        times = {"iterations": 1, "steady_s": seconds, "steady_cap_s": seconds, "timed": MAX_SUSTAINED}
        record = self._timed(name, {**self._plan, **times, "bursts": 0, "until": until})
        record["cut_short"] = record["steady_span_ns"] < 0.9 * seconds * 1e9
        return {key: record[key] for key in SUSTAINED_KEYS}

    def memory(self, name: str, effort: str, deadline: Optional[float], shared: dict[str, Any]) -> dict[str, Any]:
        """Measure the memory of a subject. ``shared`` keeps the answers that subjects have in common."""
        self._tell("{}: memory".format(name))

        def run(job: Request) -> Mapping[str, Any]:
            """Subjects with one runner and one set of options share the two lower stages."""
            if job["stage"] == "model":
                return process.run(job, job["timeout_s"], self._rng)
            options = sorted(job["options"].items()) if job["stage"] == "runtime" else ""
            key = "{} {} {} {}".format(job["stage"], job["runner"], options, job["repeat"])
            if key not in shared:
                shared[key] = process.run(job, job["timeout_s"], self._rng)
            return dict(shared[key])

        startup_s, plan = self._startup_s(deadline is not None), memory.PLANS[effort]
        return memory.figures(self._requests[name], startup_s, run, plan=plan, deadline=deadline)

    def _startup_s(self, limited: bool) -> float:
        if not limited or not self._slowest_s:
            return STARTUP_S
        return min(STARTUP_S, max(LEAST_STARTUP_S, SLOWER * self._slowest_s))

    def _timed(self, name: str, plan: Mapping[str, Any]) -> dict[str, Any]:
        calls_s, limited = plan["warmup_cap_s"] + plan["steady_cap_s"], plan["until"] is not None
        if limited:
            calls_s = min(calls_s, max(plan["until"] - time.monotonic(), 0.0))
        timeout = self._startup_s(limited) + 2 * calls_s
        start, error = time.perf_counter_ns() - self._epoch_ns, None
        told: Mapping[str, Any]
        try:
            told = process.run({**self._requests[name], "job": "time", "plan": plan}, timeout, self._rng)
        except process.WorkerError as failure:
            told, error = failure.partial, str(failure)
        record = {**NO_RECORD, **told, "start_ns": start, "error": error}
        if record["steady_begin_ns"] is not None:
            self._slowest_s = max(self._slowest_s, (record["steady_begin_ns"] - start) / 1e9)
        runtime = record.pop("runtime", None)
        if runtime is not None:
            asked = self._requests[name]["options"].get("provider") or runtime["provider"]
            self.runtimes.setdefault(name, {"asked": asked, **runtime})
        not_pinned = record.pop("not_pinned", "")
        self.not_pinned = self.not_pinned or not_pinned
        record["cut_short"] = len(record["steady_ns"]) < plan["iterations"]
        return record
