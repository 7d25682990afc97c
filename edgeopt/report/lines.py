"""Memory timelines of two graphs of one network on one axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

REFERENCE = "float32"


def peak(moments: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The first moment with the most live bytes."""
    return max(moments, key=lambda m: m["live_bytes"])


def align(timelines: Mapping[str, Sequence[Mapping[str, Any]]]) -> tuple[dict[str, list[int]], int]:
    """Live bytes of each timeline at the nodes of the reference (``float32``, else the first), and their number.

    A node that the reference does not have, such as the Q/DQ nodes of an int8 graph, counts at the next one that it
    has: the larger value wins, so that no peak is lost. A reference node that another graph lacks keeps the value
    before it. Where fewer than half of the reference's nodes are shared, every timeline keeps its own nodes and the
    number is 0.
    """
    reference = timelines.get(REFERENCE) or next(iter(timelines.values()))
    index = {m["key"]: k for k, m in enumerate(reference)}
    shared = min(sum(m["key"] in index for m in moments) for moments in timelines.values())
    if 2 * shared < len(reference):
        return {name: [m["live_bytes"] for m in moments] for name, moments in timelines.items()}, 0
    return {name: _placed(moments, index) for name, moments in timelines.items()}, len(reference)


def _placed(moments: Sequence[Mapping[str, Any]], index: Mapping[str, int]) -> list[int]:
    values: list[int | None] = [None] * len(index)
    waiting, last = 0, 0
    for moment in moments:
        waiting = max(waiting, moment["live_bytes"])
        if moment["key"] in index:
            last = index[moment["key"]]
            values[last] = max(values[last] or 0, waiting)
            waiting = 0
    values[last] = max(values[last] or 0, waiting)
    filled: list[int] = []
    for value in values:
        filled.append(value if value is not None else (filled[-1] if filled else 0))
    return filled
