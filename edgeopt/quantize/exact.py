"""Sums of floats that do not depend on the order of their terms, and strides that visit every phase.

Each block of terms is rounded to a grid that depends on the block alone, one of a few fixed grids. Blocks
on one grid add up exactly, and the grids are added in a fixed order at the end. See Demmel and Nguyen,
"Fast Reproducible Floating-Point Summation", ARITH 2013.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

LADDER = 12
"""Grids are a power of 2**12 apart."""

BITS = 36
"""Bits of a grid's largest block: 24 to 36 of each block are kept, and 2**17 blocks add up within 2**53."""

RUNGS = 3
"""Grids that are kept, the coarsest: what lies below is less than 2**-24 of the largest block."""


@dataclasses.dataclass(eq=False)
class ExactSum:
    """Accumulates vectors [N, K], one block a row. Exact for up to 2**17 blocks."""

    _grids: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)

    def add(self, blocks: np.ndarray) -> None:
        """Take finite float64 blocks [N, K]."""
        grids = grid_of(np.abs(blocks).max(axis=1, initial=0.0), LADDER)
        for grid in np.unique(grids):
            exponent = BITS - LADDER * int(grid)
            rounded = np.rint(np.ldexp(blocks[grids == grid], exponent)).sum(axis=0)
            self._grids[int(grid)] = self._grids.get(int(grid), 0.0) + rounded
        top = max(self._grids, default=0)
        self._grids = {grid: total for grid, total in self._grids.items() if grid > top - RUNGS}

    def total(self) -> np.ndarray | None:
        """Float64 [K], or None before the first block."""
        found = None
        for grid in sorted(self._grids):
            part = np.ldexp(self._grids[grid], LADDER * grid - BITS)
            found = part if found is None else found + part
        return found


def grid_of(peaks: np.ndarray, ladder: int) -> np.ndarray:
    """The smallest g of each peak with ``peak < 2**(ladder * g)``, and at least 2**-126 / 2**ladder for zeros."""
    exponents = np.where(peaks > 0, np.frexp(peaks)[1], -126)
    found: np.ndarray = -(-np.maximum(exponents, -126) // ladder)
    return found


def stride_for(count: int, limit: int, sizes: Sequence[int]) -> int:
    """A stride that visits about ``limit`` of ``count`` positions; 1 when there are no more than that.

    It is odd and has no factor in common with a size, so that every row, column and channel is visited in turn.
    """
    stride = -(-count // limit)
    if stride <= 1:
        return 1
    stride |= 1
    while any(math.gcd(stride, size) > 1 for size in sizes):
        stride += 2
    return stride
