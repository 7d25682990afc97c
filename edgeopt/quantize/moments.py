"""Second moments of what each weighted operator multiplies its weights with, for second-order rounding.

    y_o = sum_k w_ok x_k,   E |y(w + d) - y(w)|^2 = d E[x x^T] d^T

so ``E[x x^T]`` over the operator's columns is the Hessian of the output error in the weights of one
output channel (Frantar and Alistarh, "Optimal Brain Compression", NeurIPS 2022).

Sums are exact. The columns of one sample are rounded to integers of ``BITS`` bits on a grid that depends
on that sample alone; products are added in float64 while they stay within 2**53, then in int64. So
neither the order of samples, nor how they are batched, nor the threads of a matrix product change a bit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from edgeopt.errors import CalibrationError
from edgeopt.model import Model, node_key
from edgeopt.quantize.columns import POSITIONS, Columns, columns_of, visited
from edgeopt.quantize.exact import grid_of
from edgeopt.quantize.statistics import not_finite
from edgeopt.quantize.streaming import Feeds, Group, Item, Samples, in_passes

BITS = 20
"""Magnitudes become integers up to 2**20; an activation in 8 bits knows far less."""

EXACT = 8192
"""Positions of one float64 product: 2**(2 * 20) * 2**13 is 2**53."""

MOST = 2**22
"""Positions of one operator: 2**(2 * 20) * 2**22 is 2**62."""

LADDER = 6
"""Grids are a power of 2**6 apart: 14 to 20 bits of a sample's peak are kept."""

SLAB = 1_000_000
"""Bytes of the sums that are converted at a time."""

RUNGS = 2
"""Grids of one operator that are kept, the coarsest. A sample below them adds less than 2**-12 of a peak's square."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Moments:
    """Sums over the visited positions of all samples.

    G is the number of groups (1 for dense, channels for depthwise). K are the weights of one output channel:
    ``weight.reshape(O, -1)`` for Conv, input channels then kernel for ConvTranspose, the rows of B for MatMul and Gemm
    (of its transpose with ``transB``).

    Attributes:
        packed: float32 [G, K (K + 1) / 2], sum of x x^T, the lower triangle row by row.
        first: float64 [G, K], sum of x.
        count: positions.
    """

    packed: np.ndarray
    first: np.ndarray
    count: int

    @classmethod
    def of(cls, second: np.ndarray, first: np.ndarray, count: int) -> Moments:
        """From a whole symmetric ``second`` [G, K, K]."""
        size = second.shape[1]
        return cls(packed=second[:, np.tri(size, dtype=bool)].astype(np.float32), first=first, count=count)

    @property
    def groups(self) -> int:
        """G."""
        return int(self.first.shape[0])

    @property
    def size(self) -> int:
        """K."""
        return int(self.first.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.packed.nbytes + self.first.nbytes

    @property
    def second(self) -> np.ndarray:
        """Sum of x x^T, float64 [G, K, K], made anew at every call."""
        found = np.zeros((self.groups, self.size, self.size))
        found[:, np.tri(self.size, dtype=bool)] = self.packed
        mirrored = found.swapaxes(1, 2).copy()
        found += mirrored
        diagonal = np.arange(self.size)
        found[:, diagonal, diagonal] /= 2
        return found

    @property
    def squares(self) -> np.ndarray:
        """Sum of x^2, the diagonal of ``second``: float64 [G, K]."""
        steps = np.arange(self.size)
        found: np.ndarray = self.packed[:, steps * (steps + 3) // 2].astype(np.float64)
        return found


def collect_moments(
    model: Model,
    nodes: Sequence[ir.Node],
    samples: Samples,
    *,
    budget: int | None = None,
    peaks: Mapping[str, float] = MappingProxyType({}),
) -> Mapping[str, Moments]:
    """Moments by node key. Nodes are taken in as many passes over the samples as the budget asks for.

    Operators that read one tensor alike share one ``Moments``. A node has none when its columns are not known (see
    ``columns_of``), its input is no tensor of the main graph, or its sums alone are over the budget.

    Args:
        nodes: of the model's main graph.
        samples: starts the calibration set anew.
        budget: bytes that sums and one sample's tensors may hold.
        peaks: largest magnitudes by tensor name, where they are known: sums then take half the memory.

    Raises:
        CalibrationError: no samples, more than ``MOST`` positions, or a tensor becomes NaN or infinite.
    """
    readable = {str(v.name) for v in model.graph.inputs} | {str(v.name) for node in model.graph for v in node.outputs}
    wanted = {node_key(n): how for n in nodes if (how := columns_of(n)) is not None and how.name in readable}
    found: dict[Columns, Moments] = {}

    def consume(group: Group, stream: Iterator[tuple[int, Feeds]]) -> int:
        sums = {how: Sums(how, peaks.get(how.name)) for item in group if isinstance(how := item.key, Columns)}
        for index, tensors in stream:
            for how, total in sums.items():
                try:
                    total.add(tensors[how.name])
                except FloatingPointError as error:
                    raise not_finite(index, how.name, error) from error
                except OverflowError as error:
                    raise CalibrationError(
                        f"calibration sample {index}: tensor {how.name} has had {error}",
                        remedy="A few hundred samples are enough: give a limit or a stride.",
                    ) from error
        kept = 0
        for how in list(sums):
            found[how] = sums.pop(how).moments()
            kept += found[how].nbytes
        return kept

    items = [Item(how.name, held(how, how.name in peaks), how) for how in dict.fromkeys(wanted.values())]
    in_passes(model, [i for i in items if budget is None or i.held <= budget], samples, budget, consume)
    return {key: found[how] for key, how in wanted.items() if how in found}


def held(how: Columns, one_grid: bool) -> int:
    """Bytes of an operator's sums and of what waits to be added to them."""
    waiting = 4 * (_enough(how) + POSITIONS[1])
    return (1 if one_grid else RUNGS) * how.groups * how.size * (8 * (how.size + 1) + waiting)


class Sums:
    """Accumulates the moments of one kind of columns.

    Args:
        peak: the largest magnitude, where it is known: all samples then share its grid.
    """

    def __init__(self, how: Columns, peak: float | None = None) -> None:
        self._how = how
        self._least = int(grid_of(np.array([peak or 0.0]), LADDER)[0])
        self._rungs: dict[int, _Rung] = {}
        self._count = 0

    def add(self, values: np.ndarray) -> None:
        """Take the operator's input for a batch of samples.

        Raises:
            FloatingPointError: a value is NaN or infinite.
            OverflowError: too many positions.
        """
        for block in visited(self._how, values):
            self._count += block.shape[1]
            if self._count > MOST:
                raise OverflowError(f"more than {MOST} positions")
            if self._how.kind in ("MatMul", "Gemm transposed") and values.ndim < 3:  # every position is a sample
                grids = self._grid(np.abs(block[0]).max(axis=1))
                for grid in np.unique(grids):
                    self._take(int(grid), block[:, grids == grid])
            elif block.size:
                self._take(int(self._grid(np.abs(block).max())), block)

    def _grid(self, peaks: np.ndarray) -> np.ndarray:
        if not np.isfinite(peaks).all():
            raise FloatingPointError("NaN or infinity")
        found: np.ndarray = np.maximum(grid_of(peaks, LADDER), self._least)
        return found

    def _take(self, grid: int, block: np.ndarray) -> None:
        top = max(self._rungs, default=grid)
        if grid <= top - RUNGS:
            return
        if grid not in self._rungs:
            self._rungs[grid] = _Rung(self._how)
        exponent = BITS - grid * LADDER
        small = exponent < 127  # else the factor is no float32
        scaled = block * np.float32(2.0**exponent) if small else np.ldexp(block, exponent)
        self._rungs[grid].add(np.rint(scaled, out=scaled))
        for low in [g for g in self._rungs if g <= grid - RUNGS]:
            del self._rungs[low]

    def moments(self) -> Moments:
        """What was added so far."""
        how = self._how
        second, first = np.zeros((how.groups, how.size, how.size)), np.zeros((how.groups, how.size))
        for grid in sorted(self._rungs):
            rung, exponent = self._rungs[grid], grid * LADDER - BITS
            rung.flush()
            for slab in _slabs(how):
                second[:, slab] += np.ldexp(rung.second[:, slab].astype(np.float64), 2 * exponent)
            first += np.ldexp(rung.first.astype(np.float64), exponent)
        return Moments.of(second, first, self._count)


def _enough(how: Columns) -> int:
    """Positions that are worth a product: as many bytes as the sums, and a little more where those are few."""
    return 2 * how.size if how.groups > 1 else max(how.size, 256)


def _slabs(how: Columns) -> Iterator[slice]:
    """Rows of the sums, so many at a time that what is made on the way to them stays small."""
    step = max(1, SLAB // (8 * how.groups * how.size))
    return (slice(start, start + step) for start in range(0, how.size, step))


class _Rung:
    """Exact sums of the samples on one grid, and the integers that wait for a product worth its overhead."""

    def __init__(self, how: Columns) -> None:
        self.second = np.zeros((how.groups, how.size, how.size), np.int64)
        self.first = np.zeros((how.groups, how.size), np.int64)
        self._waiting: list[np.ndarray] = []
        self._positions = 0
        self._enough = _enough(how)
        self._how = how

    def add(self, integers: np.ndarray) -> None:
        for start in range(0, integers.shape[1], EXACT):
            part = integers[:, start : start + EXACT]
            if self._positions + part.shape[1] > EXACT:
                self.flush()
            self._waiting.append(part)
            self._positions += part.shape[1]
            if self._positions >= self._enough:
                self.flush()

    def flush(self) -> None:
        if not self._waiting:
            return
        x = np.concatenate(self._waiting, axis=1, dtype=np.float64)
        self._waiting, self._positions = [], 0
        self.first += x.sum(axis=1).astype(np.int64)
        product = (x[0].T @ x[0])[None] if len(x) == 1 else x.swapaxes(1, 2) @ x
        for slab in _slabs(self._how):
            self.second[:, slab] += product[:, slab].astype(np.int64)
