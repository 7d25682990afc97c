"""How sure an SQNR is: its paired 95 % interval over the samples, from running second moments.

With ``s`` the energy of the reference and ``e`` that of the error in one sample, and ``S``, ``E`` their sums over ``n``
samples, SQNR = 10 log10(S / E) is the logarithm of a ratio of two sums over the same samples. Linearized (Cochran,
Sampling Techniques, 3rd ed., section 6.13), the logarithm of the ratio has the variance

    var ln(S / E) = n / (n - 1) * sum (s / S - e / E)^2

and that sum is ``sum s^2 / S^2 - 2 sum s e / (S E) + sum e^2 / E^2``: three running sums, however many samples.
Samples that belong together are one unit: their energies are added before they are squared.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from edgeopt.metrics.interval import Z, mean_half_width

_LN10 = math.log(10)


class Moments:
    """Second moments of signal and error energy, of a whole output or of each channel."""

    def __init__(self) -> None:
        zero: npt.NDArray[np.float64] = np.zeros(())
        self._signal = self._error = zero
        self._ss = self._se = self._ee = zero
        self.units = 0

    def add(self, signal: npt.NDArray[np.float64], error: npt.NDArray[np.float64], new_unit: bool) -> None:
        """Count the energies of one sample; ``new_unit`` is False where it belongs to the unit of the one before."""
        if new_unit or not self.units:
            self._close()
            self._signal, self._error = signal, error
            self.units += 1
        else:
            self._signal, self._error = self._signal + signal, self._error + error

    def _close(self) -> None:
        s, e = self._signal, self._error
        self._ss, self._se, self._ee = self._ss + s * s, self._se + s * e, self._ee + e * e
        self._signal = self._error = np.zeros(())

    def half_width_db(self, signal: float, error: float, index: int | None = None) -> float | None:
        """Half the width of the 95 % interval in dB; None with fewer than two units, and without signal or error.

        Args:
            signal, error: sums over all samples.
            index: of the channel; None for a whole output.
        """
        if self.units < 2 or not (signal > 0 and error > 0):
            return None
        s, e = (np.atleast_1d(v)[index or 0] if np.ndim(v) else v for v in (self._signal, self._error))
        ss, se, ee = (
            float(np.atleast_1d(v)[index or 0] if np.ndim(v) else v) + float(last)
            for v, last in ((self._ss, s * s), (self._se, s * e), (self._ee, e * e))
        )
        apart = ss / signal / signal - 2 * se / signal / error + ee / error / error
        variance = max(apart, 0.0) * self.units / (self.units - 1)
        return Z * 10 / _LN10 * math.sqrt(variance) if math.isfinite(variance) else None


def share_interval(hits: bytearray, groups: npt.NDArray[np.int64] | None = None) -> tuple[float, float] | None:
    """The 95 % interval of a share of samples, one byte of 0 or 1 each; None with groups and fewer than two of them.

    Wilson's score interval (J. Am. Stat. Assoc. 22 (1927) 209), which has a width where all samples are alike. Samples
    that belong together have the standard error over their groups.
    """
    values = np.frombuffer(bytes(hits), np.uint8).astype(np.float64)
    n, share = len(values), float(values.mean())
    if groups is None:
        middle, half = share + Z * Z / (2 * n), Z * math.sqrt((share * (1 - share) + Z * Z / (4 * n)) / n)
        return max((middle - half) / (1 + Z * Z / n), 0.0), min((middle + half) / (1 + Z * Z / n), 1.0)
    ones = np.ones(n)
    width = mean_half_width(np.stack([ones, ones], axis=1), np.stack([values, ones], axis=1), groups)
    return None if width is None else (max(share - width, 0.0), min(share + width, 1.0))


def most_share(units: int) -> float:
    """Of an event that none of ``units`` independent samples showed: the largest share at 95 %, 1 - 0.05^(1/n)."""
    return float(1 - 0.05 ** (1 / units))
