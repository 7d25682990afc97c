"""The order in which processes run, and when no further one is started."""

from __future__ import annotations

import math
import time
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Sequence

from runtime_bench.errors import BenchFailure
from runtime_bench.statistics import stats

MOST_ROUNDS = 4
"""Rounds that are made for a narrow interval, in multiples of the effort's processes."""

Record = Dict[str, Any]
TimeOne = Callable[[str, Optional[float]], Record]


class Rounds(NamedTuple):
    """Processes in the order in which they ran; ``cut`` says that time ended before the effort's rounds were made."""

    order: list[str]
    processes: dict[str, list[Record]]
    cut: bool


def run(
    names: Sequence[str],
    time_one: TimeOne,
    *,
    processes: int,
    until: Optional[float] = None,
    half_width: Optional[float] = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Rounds:
    """Run every subject once a round, forward in even rounds and backward in odd ones (ABBA).

    Args:
        names: of the subjects.
        time_one: runs one process of a subject, which should end its calls at a time (monotonic clock).
        processes: rounds to make.
        until: monotonic time at which all should be done; what is left is shared out equally. One round is always made.
        half_width: then go on until the interval of the last subject over the first is narrower, relative to the
            ratio, while time is left, up to ``MOST_ROUNDS`` times as many rounds.
        tell: is told what runs.

    Raises BenchFailure when every process of a subject fails.
    """
    order: list[str] = []
    records: dict[str, list[Record]] = {name: [] for name in names}
    costs: dict[str, list[_Cost]] = {name: [] for name in names}
    rounds = processes if half_width is None else MOST_ROUNDS * processes
    cut = False
    for round_ in range(rounds):
        extra = round_ >= processes
        if extra and _half_width(records[names[0]], records[names[-1]]) <= (half_width or 0.0):
            break
        if round_ and until is not None and time.monotonic() + _least_s(costs, whole=extra) > until:
            cut = not extra
            break
        for position, name in enumerate(names if round_ % 2 == 0 else list(reversed(names))):
            tell("{}: process {} of {}".format(name, round_ + 1, rounds if extra else processes))
            left = (1 if extra else processes - round_) * len(names) - position
            now = time.monotonic()
            record = time_one(name, None if until is None else now + max(until - now, 0) / left)
            costs[name].append(_cost(record, time.monotonic() - now))
            order.append(name)
            records[name].append({"round": round_, **record})
        for name in names:
            _give_up(name, records[name], last=round_ + 1 == processes)
    for name in names:
        _give_up(name, records[name], last=True)
    return Rounds(order, records, cut)


class _Cost(NamedTuple):
    """Seconds of one process: all of them, and those that no time limit shortens."""

    whole: float
    fixed: float


def _cost(record: Mapping[str, Any], seconds: float) -> _Cost:
    kept = record["warmup_ns"]
    warmup = sum(kept) * record["warmup_calls"] / len(kept) if kept else 0
    return _Cost(seconds, max(seconds - (record["steady_span_ns"] + warmup) / 1e9, 0.0))


def _least_s(costs: Mapping[str, Sequence[_Cost]], *, whole: bool) -> float:
    """Seconds that one more round needs: at least, or as a ``whole`` one."""
    if whole:
        return sum(sum(cost.whole for cost in seen) / len(seen) for seen in costs.values())
    return sum(min(cost.fixed for cost in seen) for seen in costs.values())


def _half_width(first: Sequence[Mapping[str, Any]], last: Sequence[Mapping[str, Any]]) -> float:
    """Half the width of the interval of the ratio, relative to the ratio; infinite without an interval."""
    a, b = ([[] if record["error"] else record["steady_ns"] for record in records] for records in (first, last))
    ratio = stats.ratio(a, b)
    if ratio.ratio is None or ratio.low is None or ratio.high is None:
        return math.inf
    return (ratio.high - ratio.low) / 2 / ratio.ratio


def _give_up(name: str, records: Sequence[Mapping[str, Any]], *, last: bool) -> None:
    """Raise when nothing of a subject works: at the end, or after three failures and no success."""
    errors = [record["error"] for record in records if record["error"]]
    if len(errors) == len(records) and (last or len(errors) >= 3):
        raise BenchFailure("{}: no process could measure it: {}".format(name, errors[-1]))
