"""When is a process warm? A two-window test on the logarithm of latency.

After ``n`` calls the last ``2 w`` of them, ``w = max(10, n // 10)``, are split into an earlier and a later window. The
process is warm when their medians differ by no more than 2 %, or by no more than the noise explains: with ``s`` the
robust standard deviation inside the windows, the difference of two medians of ``w`` normal values has the standard
error ``1.2533 s sqrt(2 / w)``, and two of those are allowed. A trend inside the windows makes them differ by far more.
"""

from __future__ import annotations

import math
from typing import Sequence

WINDOW = 10
TOLERANCE = 0.02


def window_of(n: int) -> int:
    """Length of each of the two windows after ``n`` calls."""
    return max(WINDOW, n // 10)


def settled(latencies_ns: Sequence[int]) -> bool:
    """Whether the last two windows agree. False while there are too few calls for two windows."""
    w = window_of(len(latencies_ns))
    if len(latencies_ns) < 2 * w:
        return False
    logs = [math.log(max(v, 1)) for v in latencies_ns[-2 * w :]]
    earlier, later = sorted(logs[:w]), sorted(logs[w:])
    a, b = _median(earlier), _median(later)
    deviations = sorted([abs(v - a) for v in earlier] + [abs(v - b) for v in later])
    noise = 2 * 1.2533 * 1.4826 * _median(deviations) * math.sqrt(2 / w)
    return abs(b - a) <= max(TOLERANCE, noise)


def _median(ordered: Sequence[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
