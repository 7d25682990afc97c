"""Right or wrong, sample by sample: what two artifacts that were judged on the same samples are compared by."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from edgeopt.metrics.scorer import Better, Label, Unit

KINDS = ("top1", "agreement")
"""``top1``: the answer is the label; ``agreement``: it is the float model's. A tie is wrong in both.

Every other kind is the name of a metric that is a mean over samples.
"""

_Z = 1.959964
"""Quantile of the normal distribution for a two-sided 95 % interval."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcomes:
    """How one artifact did on every sample of a set.

    Attributes:
        kind: one of ``KINDS``, or the name of a metric.
        samples_sha256: digest of the samples as they were fed, in order, with their labels where a metric took them.
        count: number of samples.
        right: one bit a sample, the first in the highest bit of the first byte; empty where there are ``values``.
        values, weights: of a weighted mean over the samples, little-endian float32 each.
        groups: little-endian int32, number of the group of each sample; empty where each stands alone.
        better, unit: of the metric, as ``metrics.Scorer`` says.
        judged_by: of an agreement, the metric that judged the build and has no value for a single sample.
    """

    kind: str
    samples_sha256: str
    count: int
    right: bytes
    values: bytes = b""
    weights: bytes = b""
    groups: bytes = b""
    better: Better = "higher"
    unit: Unit = "share"
    judged_by: str | None = None

    def bits(self) -> npt.NDArray[np.bool_]:
        """``bool[count]``, True where the answer was right."""
        packed = np.frombuffer(self.right, np.uint8)
        return np.unpackbits(packed, count=self.count).astype(bool)

    def rows(self) -> npt.NDArray[np.float64]:
        """``float64[count, 2]``: value and weight of every sample."""
        if not self.values:
            return np.stack([self.bits().astype(np.float64), np.ones(self.count)], axis=1)
        return np.stack([np.frombuffer(part, "<f4").astype(np.float64) for part in (self.values, self.weights)], axis=1)

    def units(self) -> npt.NDArray[np.int64] | None:
        """Number of the group of every sample; None where each stands alone."""
        return np.frombuffer(self.groups, "<i4").astype(np.int64) if self.groups else None


def pack(right: bytearray) -> bytes:
    """One byte a sample, 1 or 0, as one bit a sample."""
    return np.packbits(np.frombuffer(bytes(right), np.uint8)).tobytes()


class SampleDigest:
    """A running sha256 over samples: names, types, shapes and values of all inputs, and the label where there is one.

    Unlike the digest of a set's description it covers what a Python factory yields, and a preprocessing library that
    gives other values.
    """

    def __init__(self, leave_out: Iterable[str] = ()) -> None:
        self._found = hashlib.sha256()
        self._leave_out = frozenset(leave_out)

    def add(self, feeds: Mapping[str, np.ndarray], label: Label) -> None:
        """Count one sample. Inputs to leave out are states: a model's own and not part of the sample."""
        for name in sorted(feeds.keys() - self._leave_out):
            value = np.ascontiguousarray(feeds[name])
            self._found.update(f"{name}:{value.dtype.name}:{value.shape}:".encode())
            self._found.update(value.reshape(-1).view(np.uint8).data)
        if isinstance(label, np.ndarray):
            self._found.update(f"label {label.dtype.name}:{label.shape}:".encode() + label.tobytes())
        else:
            self._found.update(f"label {label};".encode())

    def hexdigest(self) -> str:
        """The digest of all samples so far."""
        return self._found.hexdigest()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drop:
    """What ``b`` lost against ``a`` on the same samples, as shares of 1.

    Attributes:
        a, b: shares of right answers.
        drop: ``a - b``; negative where ``b`` is better.
        low, high: its paired 95 % interval.
        lost, gained: samples that only ``a``, only ``b`` answered right.
    """

    samples: int
    a: float
    b: float
    drop: float
    low: float
    high: float
    lost: int
    gained: int


def paired_drop(a: npt.NDArray[np.bool_], b: npt.NDArray[np.bool_]) -> Drop:
    """The drop from ``a`` to ``b`` over samples paired by position, ``bool[n]`` each, n at least 1.

    The interval is the adjusted Wald interval of Bonett and Price, J. Educ. Behav. Stat. 37 (2012) 479: one sample is
    added to the lost and one to the gained. Enumerated exactly over 20 to 400 samples, 0.1 to 30 % lost and 0.05 to
    20 % gained it covers 0.928 to 0.99. The mean of the differences plus or minus 1.96 standard errors covers 0.87 on
    average and 0.14 at worst with 100 samples, and has no width where nothing differs.
    """
    n, lost, gained = len(a), int((a & ~b).sum()), int((b & ~a).sum())
    p, q = (lost + 1) / (n + 2), (gained + 1) / (n + 2)
    half = _Z * math.sqrt((p + q - (p - q) ** 2) / (n + 2))
    return Drop(
        samples=n,
        a=float(a.mean()),
        b=float(b.mean()),
        drop=(lost - gained) / n,
        low=max(p - q - half, -1.0),
        high=min(p - q + half, 1.0),
        lost=lost,
        gained=gained,
    )
