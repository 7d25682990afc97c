"""Loads that real devices have: a call every period with a deadline, and a call after a pause."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

from runtime_bench.statistics import stats


def deadline(processes: Sequence[Sequence[int]], load: Optional[Mapping[str, Any]]) -> Optional[dict[str, Any]]:
    """Misses under a periodic load; None for another load. A call misses when it ends after the next one is due.

    Args:
        processes: latencies in ns from the scheduled start, one list a process.
        load: ``{"kind": "periodic", "fps", "period_ns"}`` or another kind.

    Returns ``{"period_ns", "calls", "misses", "rate", "rate_low", "rate_high", "worst_run"}``: the share of missed
    calls with the 95 % interval of Clopper and Pearson (1934), which takes misses as independent, and the most misses
    in a row in one process.
    """
    if not load or load.get("kind") != "periodic":
        return None
    period = load["period_ns"]
    calls = misses = worst = 0
    for values in processes:
        row = 0
        for value in values:
            row = row + 1 if value > period else 0
            misses += value > period
            worst = max(worst, row)
        calls += len(values)
    low, high = stats.proportion_interval(misses, calls, 0.95) if calls else (None, None)
    return {
        "period_ns": period,
        "calls": calls,
        "misses": misses,
        "rate": misses / calls if calls else None,
        "rate_low": low,
        "rate_high": high,
        "worst_run": worst,
    }


def burst(processes: Sequence[Mapping[str, Any]], median_ns: Optional[int]) -> Optional[dict[str, Any]]:
    """The first call after a pause: its median and its ratio to the steady median; None where no burst was made."""
    firsts = [calls[0] for process in processes for calls in process.get("burst_ns") or [] if calls]
    if not firsts or not median_ns:
        return None
    first = stats.percentile(firsts, 0.5)
    return {"first_ns": first, "ratio": first / median_ns}
