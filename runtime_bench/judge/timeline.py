"""When each call ran, and how fast the processor was then."""

from __future__ import annotations

import bisect
from itertools import accumulate
from typing import Any, Mapping, Optional, Sequence, Tuple

Window = Tuple[int, int]
"""From and to, in ns since the measurement began."""

LEAST_SAMPLES = 3


def call_ends(process: Mapping[str, Any], period_ns: Optional[int] = None) -> list[int]:
    """End of each timed call of a process, in ns since the measurement began.

    Starts are not recorded: they would double the raw data. Under a periodic load call i was due
    ``(i + 1) * period_ns`` after the steady phase began; back to back, the latencies are laid end to end and stretched
    to the phase's length, which also holds where only every k-th call was timed. The error is a few calls' worth.

    Args:
        process: a record with ``steady_ns``, ``steady_begin_ns`` and ``steady_span_ns``; a sustained one serves too.
        period_ns: of a periodic load.
    """
    values, begin = process["steady_ns"], process.get("steady_begin_ns") or 0
    if period_ns is not None:
        return [begin + (i + 1) * period_ns + value for i, value in enumerate(values)]
    total = sum(values)
    stretch = (process.get("steady_span_ns") or total) / total if total else 1.0
    return [begin + round(so_far * stretch) for so_far in accumulate(values)]


def steady_window(process: Mapping[str, Any]) -> Window:
    """The time in which the calls of a process were timed."""
    begin = process.get("steady_begin_ns") or 0
    return begin, begin + (process.get("steady_span_ns") or sum(process["steady_ns"]))


class Frequency:
    """CPU frequency over the measurement, from the samples of the environment.

    Args:
        environment: of a measurement; one without frequency samples gives an object that knows nothing.
        affinity: the CPUs that ran the calls; None = any, and the fastest CPU of each moment counts.
    """

    def __init__(self, environment: Optional[Mapping[str, Any]], affinity: Optional[Sequence[int]] = None) -> None:
        samples = (environment or {}).get("samples") or {}
        table: Mapping[str, Sequence[Optional[float]]] = samples.get("frequency_khz") or {}
        wanted = ["cpu{}".format(cpu) for cpu in affinity] if affinity else list(table)
        rows = [table[name] for name in wanted if table.get(name)]
        self.times: list[int] = []
        self.khz: list[float] = []
        for i, moment in enumerate(samples.get("t_ns") or []):
            known = [khz for khz in (row[i] if i < len(row) else None for row in rows) if khz]
            if known:
                self.times.append(moment)
                self.khz.append(sum(known) / len(known) if affinity else max(known))

    def median(self, windows: Sequence[Window]) -> Optional[float]:
        """Median in kHz over some stretches of time; None with fewer than three samples in them."""
        found = [khz for low, high in windows for khz in self.khz[self._index(low) : self._index(high)]]
        return sorted(found)[len(found) // 2] if len(found) >= LEAST_SAMPLES else None

    def at(self, moment: int, within_ns: int) -> Optional[float]:
        """The sample nearest to a moment in kHz, or None where there is none within ``within_ns``."""
        after = self._index(moment)
        near = [i for i in (after - 1, after) if 0 <= i < len(self.times)]
        best = min(near, key=lambda i: abs(self.times[i] - moment), default=None)
        return None if best is None or abs(self.times[best] - moment) > within_ns else self.khz[best]

    def _index(self, moment: int) -> int:
        return bisect.bisect_left(self.times, moment)
