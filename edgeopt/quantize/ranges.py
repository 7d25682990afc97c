"""Streaming value statistics of one tensor: exact extremes, a histogram that widens, per-channel means.

The histogram has ``SUB`` bins in every octave [2**e, 2**(e + 1)) of each sign, read from the bits of a
float32, for the ``OCTAVES`` below the largest magnitude seen; smaller magnitudes share one bin a sign.
A larger value moves the window up and its lowest octaves into that bin. So the final histogram is a
function of the multiset of values alone: neither the order of samples nor how they are batched changes
a count, and an outlier does not take the resolution from the rest.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import numpy as np

from edgeopt.quantize.exact import ExactSum, stride_for

SUB_BITS = 8
SUB = 2**SUB_BITS
"""Bins of an octave: a bin is at most 2**-8 of the values in it."""

OCTAVES = 16
"""Octaves below the largest magnitude that have bins; 32 KB for each sign that occurs."""

BINS = OCTAVES * SUB

SAMPLE_VALUES = 65_536
"""Values of one sample that enter the histogram; larger ones are read by a fixed stride, extremes exactly."""

_SHIFT = np.uint32(23 - SUB_BITS)
_MAGNITUDE = np.uint32(0x7FFF_FFFF)


@dataclasses.dataclass(kw_only=True)
class Statistics:
    """Accumulates one tensor. ``channel_axis`` None keeps no means.

    Attributes:
        minimum, maximum: exact extremes over all values seen.
        channel_peak: largest magnitude per channel.
        channel_count: values of each channel.
        strided: whether some values are not in the histogram.
    """

    channel_axis: int | None = None
    minimum: float = math.inf
    maximum: float = -math.inf
    channel_peak: np.ndarray | None = None
    channel_count: int = 0
    strided: bool = False
    _top: int | None = None  # exponent field of the largest magnitude
    _sides: dict[bool, np.ndarray] = dataclasses.field(default_factory=dict)  # by sign: the bin near zero, then BINS
    _sums: ExactSum = dataclasses.field(default_factory=ExactSum)

    def add(self, values: np.ndarray) -> None:
        """Take a batch of samples of a tensor, any shape; axis 0 is the batch.

        Raises:
            FloatingPointError: a value is NaN or infinite.
        """
        if values.size == 0:
            return
        values = values.astype(np.float32, copy=False)
        low, high = float(values.min()) + 0.0, float(values.max()) + 0.0  # a negative zero is a zero
        if not (math.isfinite(low) and math.isfinite(high)):
            raise FloatingPointError("NaN or infinity")
        self.minimum, self.maximum = min(self.minimum, low), max(self.maximum, high)
        self._widen(max(abs(low), abs(high)))
        rows = values.reshape(len(values) if values.ndim else 1, -1)
        stride = stride_for(rows.shape[1], SAMPLE_VALUES, values.shape[1:])
        if stride > 1:
            rows, self.strided = rows[:, ::stride], True
        self._count(rows.reshape(-1), low, high)
        axis = self.channel_axis
        if axis is not None and -values.ndim <= axis < values.ndim:
            self._add_channels(values, axis % values.ndim)

    @property
    def count(self) -> int:
        """Values in the histogram."""
        return sum(int(side.sum()) for side in self._sides.values())

    @property
    def channel_mean(self) -> np.ndarray | None:
        """Mean per channel, float64, or None when not collected."""
        total = self._sums.total()
        return None if total is None else total / self.channel_count

    @property
    def nbytes(self) -> int:
        """Bytes of the histogram."""
        return sum(side.nbytes for side in self._sides.values())

    def histogram(self) -> tuple[np.ndarray, np.ndarray]:
        """Edges [n + 1] and counts [n], ascending; float64 and int64. Edges end at the exact extremes.

        The values of one bin lie within its edges, which are at most 2**-8 of them apart, except for the two bins
        around zero. Empty before the first value.
        """
        if not self._sides:
            return np.zeros(1), np.zeros(0, np.int64)
        if self._top is None:
            return np.zeros(2), self._sides[False][:1].copy()
        first = (self._top - OCTAVES + 1) << SUB_BITS
        marks = np.arange(first, first + BINS, dtype=np.uint32) << _SHIFT
        inner = marks.view(np.float32).astype(np.float64)
        outer = np.concatenate([[0.0], inner, [math.ldexp(1.0, self._top - 126)]])
        empty = np.zeros(BINS + 1, np.int64)
        counts = np.concatenate([self._sides.get(True, empty)[::-1], self._sides.get(False, empty)])
        edges = np.clip(np.concatenate([-outer[::-1], outer[1:]]), self.minimum, self.maximum)
        used = np.flatnonzero(counts)
        return edges[used[0] : used[-1] + 2], counts[used[0] : used[-1] + 1]

    def percentile_range(self, percentile: float) -> tuple[float, float]:
        """The narrowest bins that hold all but ``(100 - percentile) / 2`` % of the values on each side.

        Bounds are bin edges or the exact extremes, so ``percentile=100`` is min-max. A side whose tail holds less than
        one counted value is not cut.
        """
        edges, counts = self.histogram()
        total = int(counts.sum())
        tail = total * (1 - percentile / 100) / 2
        if tail < 1:
            return self.minimum, self.maximum
        cumulated = np.cumsum(counts)
        first = int(np.searchsorted(cumulated, tail, side="right"))
        last = int(np.searchsorted(cumulated, total - tail, side="left"))
        return float(edges[first]), float(edges[last + 1])

    @classmethod
    def merged(cls, parts: Iterable[Statistics]) -> Statistics:
        """The histogram and extremes of all values together; channels are not kept."""
        found = cls()
        for part in parts:
            found.minimum, found.maximum = min(found.minimum, part.minimum), max(found.maximum, part.maximum)
            found.strided |= part.strided
            copied = cls(_top=part._top, _sides={sign: side.copy() for sign, side in part._sides.items()})
            top = max((t for t in (found._top, part._top) if t is not None), default=None)
            for one in (found, copied):
                one._move_to(top)
            for sign, side in copied._sides.items():
                found._sides[sign] = found._sides[sign] + side if sign in found._sides else side
        return found

    def _widen(self, magnitude: float) -> None:
        """Move the window up until ``magnitude`` is in its top octave; only zeros need none."""
        if magnitude > 0:
            # All octaves of the window are normal numbers: what is smaller than that is near zero.
            needed = max(math.frexp(magnitude)[1] + 126, OCTAVES)
            self._move_to(max(needed, self._top or 0))

    def _move_to(self, top: int | None) -> None:
        if top is None or top == self._top:
            return
        if self._top is not None:
            moved = min((top - self._top) * SUB, BINS)
            for sign, side in self._sides.items():
                wide = np.zeros_like(side)
                wide[0] = side[: moved + 1].sum()
                wide[1 : 1 + BINS - moved] = side[1 + moved :]
                self._sides[sign] = wide
        self._top = top

    def _count(self, flat: np.ndarray, low: float, high: float) -> None:
        """Count values in the bins of the window; ``low`` and ``high`` are their extremes."""
        if self._top is None:
            self._side(False)[0] += flat.size
            return
        bits = np.ascontiguousarray(flat).view(np.uint32)
        marks = (bits & _MAGNITUDE) >> _SHIFT
        base = np.uint32(((self._top - OCTAVES + 1) << SUB_BITS) - 1)
        marks = np.maximum(marks, base, out=marks)
        marks -= base
        if low < 0 <= high:
            marks += (bits >> np.uint32(31)) * np.uint32(BINS + 1)
            # A negative zero counts as a zero.
            found = np.bincount(marks, minlength=2 * (BINS + 1))
            zeros = int(np.count_nonzero(bits == np.uint32(0x8000_0000)))
            found[BINS + 1] -= zeros
            found[0] += zeros
            self._side(False)[:] += found[: BINS + 1]
            if found[BINS + 1 :].any():
                self._side(True)[:] += found[BINS + 1 :]
        else:
            self._side(high < 0)[:] += np.bincount(marks, minlength=BINS + 1)

    def _side(self, negative: bool) -> np.ndarray:
        if negative not in self._sides:
            self._sides[negative] = np.zeros(BINS + 1, np.int64)
        return self._sides[negative]

    def _add_channels(self, values: np.ndarray, axis: int) -> None:
        """Sums and peaks per channel; a sum is rounded for each sample alone."""
        channels = values.shape[axis]
        if axis == 0:
            blocks = values.reshape(1, channels, -1)
        else:
            blocks = np.moveaxis(values, axis, 1).reshape(len(values), channels, -1)
        # Sample by sample: how numpy splits a sum must not depend on the batch.
        sums = [sample.sum(axis=1, dtype=np.float64) for sample in blocks] if blocks.shape[2] > 1 else blocks[:, :, 0]
        self._sums.add(np.asarray(sums, np.float64))
        peak = np.maximum(blocks.max(axis=(0, 2)), -blocks.min(axis=(0, 2)))
        self.channel_peak = peak if self.channel_peak is None else np.maximum(self.channel_peak, peak)
        self.channel_count += values.size // channels
