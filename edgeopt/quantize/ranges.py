"""Streaming value statistics of one tensor: exact extremes, a histogram that widens, per-channel means.

Bins are ``[k w, (k + 1) w)`` with ``w`` a power of two and anchored at zero. Widening doubles ``w`` and
adds neighbouring bins, so the final histogram is a function of the multiset of values alone: neither
the order of samples nor how they are batched changes a count.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

BINS = 2048
"""Bins on each side of zero: the widest histogram is 32 KB a tensor."""

SAMPLE_VALUES = 65_536
"""Values of one sample that enter the histogram; larger tensors are read by a fixed stride, extremes exactly."""

MIN_EXPONENT = -900
"""Magnitudes below 2**-900 share the first bin: the scaling factor has to stay finite."""


@dataclasses.dataclass(kw_only=True)
class Statistics:
    """Accumulates one tensor. ``channel_axis`` None keeps no means.

    Attributes:
        minimum, maximum: exact extremes over all values seen.
        channel_sum: float64 sums per channel, ``channel_count`` values each.
        channel_peak: largest magnitude per channel.
    """

    channel_axis: int | None = None
    minimum: float = math.inf
    maximum: float = -math.inf
    log2_width: int | None = None
    counts: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(2 * BINS, np.int64))
    channel_sum: np.ndarray | None = None
    channel_peak: np.ndarray | None = None
    channel_count: int = 0
    strided: bool = False

    def add(self, values: np.ndarray) -> None:
        """Take one sample of a tensor, any shape.

        Raises:
            FloatingPointError: a value is NaN or infinite.
        """
        if values.size == 0:
            return
        low, high = float(values.min()), float(values.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            raise FloatingPointError("NaN or infinity")
        self.minimum, self.maximum = min(self.minimum, low), max(self.maximum, high)
        self._widen(max(abs(low), abs(high)))
        flat = values.reshape(-1)
        stride = -(-flat.size // SAMPLE_VALUES)
        if stride > 1:
            # An odd stride visits every row and column phase of the power-of-two sizes that networks like.
            flat, self.strided = flat[:: stride | 1], True
        if self.log2_width is None:
            self.counts[BINS] += flat.size
        else:
            bins = np.floor(flat * np.float64(2.0**-self.log2_width)).astype(np.int64) + BINS
            self.counts += np.bincount(bins, minlength=2 * BINS)
        if self.channel_axis is not None and values.ndim > self.channel_axis:
            axes = tuple(a for a in range(values.ndim) if a != self.channel_axis)
            # Rounded to float32, so that their float64 sum is exact and the order of samples cannot matter.
            sums = values.sum(axis=axes, dtype=np.float64).astype(np.float32).astype(np.float64)
            self.channel_sum = sums if self.channel_sum is None else self.channel_sum + sums
            peak = np.maximum(values.max(axis=axes), -values.min(axis=axes))
            self.channel_peak = peak if self.channel_peak is None else np.maximum(self.channel_peak, peak)
            self.channel_count += values.size // values.shape[self.channel_axis]

    @property
    def channel_mean(self) -> np.ndarray | None:
        """Mean per channel, float64, or None when not collected."""
        return None if self.channel_sum is None else self.channel_sum / self.channel_count

    def percentile_range(self, percentile: float) -> tuple[float, float]:
        """The narrowest bins that hold all but ``(100 - percentile) / 2`` % of the values on each side.

        Bounds are bin edges clipped to the exact extremes, so ``percentile=100`` is min-max. A side
        whose tail holds less than one counted value is not cut.
        """
        total = int(self.counts.sum())
        if self.log2_width is None:
            return self.minimum, self.maximum
        tail = total * (1 - percentile / 100) / 2
        if total == 0 or tail < 1:
            return self.minimum, self.maximum
        cumulated = np.cumsum(self.counts)
        width = 2.0**self.log2_width
        first = int(np.searchsorted(cumulated, tail, side="right"))
        last = int(np.searchsorted(cumulated, total - tail, side="left"))
        low, high = (first - BINS) * width, (last + 1 - BINS) * width
        return max(low, self.minimum), min(high, self.maximum)

    def _widen(self, magnitude: float) -> None:
        """Double the bin width until ``magnitude`` lies inside the last bin; only zeros need no width."""
        if magnitude == 0:
            return
        needed = max(math.frexp(magnitude)[1], MIN_EXPONENT) - int(math.log2(BINS))
        if self.log2_width is None:
            self.log2_width = needed  # zeros counted so far are in bin 0 of any width
        while self.log2_width < needed:
            pairs = self.counts.reshape(-1, 2).sum(axis=1)  # bin k goes to floor(k / 2)
            self.counts = np.zeros_like(self.counts)
            self.counts[BINS // 2 : BINS // 2 + BINS] = pairs
            self.log2_width += 1
