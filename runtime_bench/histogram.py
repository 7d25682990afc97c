"""Histograms of latency in one row of characters."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from runtime_bench.judge.summary import steady_processes
from runtime_bench.statistics import stats
from runtime_bench.units import duration

BLOCKS = " " + "".join(chr(0x2581 + i) for i in range(8))
ASCII = " .:-=+*#%@"
FRAME, LEAST_BARS = 9, 12
BULK, BEYOND = 0.95, 1.7
"""The axis ends that many times as far from the fastest call as this percentile; what lies beyond is counted."""


def draws_blocks(stream: Any) -> bool:
    """Whether a text stream can write block characters."""
    try:
        BLOCKS.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def histogram_lines(measurement: Mapping[str, Any], width: int = 80, *, unicode: bool = False) -> list[str]:
    """One row a subject, each on an axis of its own: counts of calls from the fastest on. The tail is counted."""
    rows = []
    for subject in measurement["subjects"]:
        ordered = sorted(value for values in steady_processes(subject) for value in values)
        if ordered:
            limit = min(ordered[-1], ordered[0] + int(BEYOND * (stats.percentile(ordered, BULK) - ordered[0])))
            inside = [value for value in ordered if value <= limit]
            far = len(ordered) - len(inside)
            told = "  +{} to {}".format(far, duration(ordered[-1])) if far else ""
            rows.append((subject["name"], duration(ordered[0]), _end(ordered[0], limit), told, inside, limit))
    if not rows:
        return []
    name, first, last, rest = (max(map(len, texts)) for texts in list(zip(*rows))[:4])
    bars = max(width - FRAME - name - first - last - rest, LEAST_BARS)
    lines = ["  calls by latency" + (", each row on its own axis" if len(rows) > 1 else "")]
    for label, start, end, told, inside, limit in rows:
        drawn = _bars(inside, limit, bars, unicode)
        lines.append("  {}   {} |{}| {}{}".format(label.ljust(name), start.rjust(first), drawn, end, told))
    return lines


def _end(low: int, high: int) -> str:
    """The end of an axis; its length where three digits do not tell the two ends apart."""
    return "+" + duration(high - low) if high > low and duration(high) == duration(low) else duration(high)


def _bars(inside: Sequence[int], limit: int, bars: int, unicode: bool) -> str:
    levels, low = BLOCKS if unicode else ASCII, inside[0]
    bins = [0] * bars
    for value in inside:
        bins[min(bars - 1, (value - low) * bars // max(limit - low, 1))] += 1
    most = max(bins)
    top = len(levels) - 1
    return "".join(levels[-(-amount * top // most)] for amount in bins)
