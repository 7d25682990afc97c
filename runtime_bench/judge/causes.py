"""Why was a call slow? Each outlier that matters gets the cause that the counters around it give evidence of.

It matters beyond the severe fence of its process, or from half as long again as the median on: where every third call
is preempted, the fences are so wide that none of them is an outlier.

A cause must explain the excess, which is the call's latency minus the median of its process. The rules are tried in
this order; the first that holds gives the cause:

1. ``throttled``: the control group was stopped for its quota during at least half of the excess.
2. ``preempted``: the process waited in the run queue for at least half of the excess. Where the kernel does not tell
   the wait, involuntary switches stand for it.
3. ``page_fault``: a major fault, or minor faults that cost at least a quarter of the excess at the price calibrated in
   the process.
4. ``migrated``: the call moved to another CPU and found cold caches.
5. ``frequency``: the CPU ran at least 3 % slower than in the rest of the process, and that explains at least a quarter
   of the excess.
6. ``unknown``: none of these. A process stopped by a signal, for instance, waits in no queue.

Under a periodic load a call is late when the one before it was: it inherits that one's cause.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence, Tuple

from runtime_bench.judge.timeline import Frequency, call_ends, steady_window
from runtime_bench.statistics import spread, stats
from runtime_bench.units import count, duration, percent

CAUSES = ("throttled", "preempted", "page_fault", "migrated", "frequency", "unknown")
MOST, SOME = 0.5, 0.25
FAR = 0.5
"""A call that is off the median by this share is far."""

FREQUENCY_DROP = 0.03
NEAR_NS = 400_000_000
"""Distance in time from which a frequency sample no longer says anything about a call: two periods of the sampler."""

Found = Tuple[str, str]
"""A cause and its evidence in words."""


def attribute(
    process: Mapping[str, Any],
    environment: Optional[Mapping[str, Any]] = None,
    *,
    affinity: Optional[Sequence[int]] = None,
    period_ns: Optional[int] = None,
    fences: Optional[spread.Fences] = None,
) -> list[dict[str, Any]]:
    """The calls that were far too slow, each with its cause.

    Args:
        process: a record of the measurement, or a sustained one.
        environment: of the measurement, for its frequency samples.
        affinity: CPUs that the process was pinned to.
        period_ns: of a periodic load.
        fences: of ``process["steady_ns"]``, where the caller has them already.

    Returns ``[{"index", "ns", "excess_ns", "cause", "evidence"}]`` in the order of the calls; ``cause`` is one of
    ``CAUSES``. Calls below the low fence lost no time and get no cause.
    """
    values = process["steady_ns"]
    if not values:
        return []
    median = stats.percentile(values, 0.5)
    limit = min((fences or spread.tukey(values)).high_severe, (1 + FAR) * median)
    slow = [i for i, value in enumerate(values) if value > limit]
    if not slow:
        return []
    moved = {name: dict(pairs) for name, pairs in (process.get("events") or {}).items() if pairs}
    clock = _Clock(process, environment, affinity, period_ns)
    found: dict[int, Found] = {}
    for i in slow:
        excess = values[i] - median
        counters = {name: seen[i] for name, seen in moved.items() if i in seen}
        found[i] = (
            _late(process, i, excess, found)
            or _counted(counters, excess, process)
            or clock.slowed(i, excess / max(median, 1))
            or ("unknown", "no counter explains it")
        )
    return [
        {"index": i, "ns": values[i], "excess_ns": values[i] - median, "cause": cause, "evidence": evidence}
        for i, (cause, evidence) in found.items()
    ]


def _late(process: Mapping[str, Any], i: int, excess: int, found: Mapping[int, Found]) -> Optional[Found]:
    """A call that started late because the one before it, itself an outlier, ran into its slot."""
    service = process.get("service_ns") or []
    if i >= len(service) or process["steady_ns"][i] - service[i] < MOST * excess or i - 1 not in found:
        return None
    return found[i - 1][0], "started late after call {}".format(i - 1)


def _counted(counters: Mapping[str, int], excess: int, process: Mapping[str, Any]) -> Optional[Found]:
    """What the counters that moved during a call say about it."""
    stopped, waited = counters.get("throttled_ns", 0), counters.get("wait_ns", 0)
    lost = duration(excess)
    if stopped >= MOST * excess:
        return "throttled", "the control group was stopped for {} of {}".format(duration(stopped), lost)
    if waited >= MOST * excess:
        return "preempted", "waited for a CPU for {} of {}".format(duration(waited), lost)
    if counters.get("switches") and "wait_ns" in (process.get("unread") or {}):
        return "preempted", count(counters["switches"], "involuntary switch")
    if counters.get("major_faults"):
        return "page_fault", count(counters["major_faults"], "major fault")
    price = process.get("fault_ns") or 0
    faults = counters.get("minor_faults", 0)
    if faults * price >= SOME * excess:
        text = "{} of about {}, {} lost".format(count(faults, "minor fault"), duration(price), lost)
        return "page_fault", text
    if counters.get("migrations"):
        return "migrated", "moved to another CPU"
    return None


class _Clock:
    """Was the CPU slow during a call? Laid out only when the first outlier asks."""

    def __init__(
        self,
        process: Mapping[str, Any],
        environment: Optional[Mapping[str, Any]],
        affinity: Optional[Sequence[int]],
        period_ns: Optional[int],
    ) -> None:
        self.frequency = Frequency(environment, affinity)
        self.usual = self.frequency.median([steady_window(process)])
        if self.usual is not None:
            self.ends = call_ends(process, period_ns)
            self.values = process["steady_ns"]

    def slowed(self, i: int, excess: float) -> Optional[Found]:
        """``excess`` is relative to the median."""
        if self.usual is None:
            return None
        now = self.frequency.at(self.ends[i] - self.values[i] // 2, NEAR_NS + self.values[i] // 2)
        if now is None or now > (1 - FREQUENCY_DROP) * self.usual or self.usual / now - 1 < SOME * excess:
            return None
        text = "the CPU ran at {:.0f} MHz, {} below its median"
        return "frequency", text.format(now / 1000, percent(1 - now / self.usual))
