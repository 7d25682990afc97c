"""Resident pages of a C heap, from the sequence of its large blocks.

A static model of glibc's malloc, which runtimes leave all of their memory to:

1. A block smaller than the threshold lies in the heap: in the smallest hole that takes it, else at the top.
2. A larger one gets a mapping of its own. When that is freed its pages are gone at once, and the threshold rises to its
   size, up to ``MOST``: later blocks of that size share the heap.
3. Free neighbours in the heap are one hole. At the top they are given back when they are twice the threshold; holes
   below a block that is held stay resident.
4. A block at a multiple of 64 bytes does not fit into the hole that one of its size left.
5. A page is resident from its first write on.

So memory that was freed while loading is still resident, and is what the first calls are served from.
"""

from __future__ import annotations

import dataclasses

PAGE = 4096
MOST = 32 << 20
"""Where the threshold ends, on 64-bit machines."""

_HEADER = 16
_SPARE = 96
"""What is asked for on top of a block at a multiple of 64 bytes."""


@dataclasses.dataclass(eq=False)
class Block:
    """One allocation: where it begins in its segment, its bytes, and the segment's pages."""

    start: int
    size: int
    pages: bytearray
    mapped: bool = False


class Heap:
    """A heap that counts resident pages.

    Args:
        threshold: bytes from which on a block has a mapping of its own.
        fixed: the threshold does not rise.

    Attributes:
        peak: the most bytes that were resident so far.
        resident: bytes that are resident now.
    """

    def __init__(self, threshold: int, *, fixed: bool = False) -> None:
        self._fixed = fixed
        self.peak = 0
        self.resident = 0
        self._threshold = threshold
        self._pages = bytearray()
        self._holes: dict[int, int] = {}  # start -> size
        self._ends: dict[int, int] = {}  # end of a hole -> its start
        self._top = 0

    def allocate(self, size: int, *, touch: bool = True, aligned: bool = False) -> Block:
        """A block of ``size`` bytes; ``touch`` writes all of it. An ``aligned`` one needs a hole with room to spare."""
        if size >= self._threshold:
            block = Block(0, size, bytearray(-(-size // PAGE)), mapped=True)
        else:
            block = Block(self._place(_taken(size), _SPARE if aligned else 0), size, self._pages)
        if touch:
            self.touch(block, 0, size)
        return block

    def touch(self, block: Block, start: int, stop: int) -> None:
        """Write the bytes from ``start`` to ``stop`` of a block."""
        if stop <= start:
            return
        first, last = (block.start + start) // PAGE, (block.start + stop - 1) // PAGE + 1
        if len(block.pages) < last:
            block.pages.extend(bytes(last - len(block.pages)))
        new = block.pages.count(0, first, last)
        block.pages[first:last] = b"\1" * (last - first)
        self.resident += new * PAGE
        self.peak = max(self.peak, self.resident)

    def free(self, block: Block) -> None:
        """Give a block back."""
        if block.mapped:
            self.resident -= block.pages.count(1) * PAGE
            if block.size <= MOST and not self._fixed:
                self._threshold = max(self._threshold, block.size)
            return
        start, size = block.start, _taken(block.size)
        after = start + size
        if after in self._holes:
            size += self._holes[after]
            self._remove(after)
        if start in self._ends:
            before = self._ends[start]
            size += start - before
            self._remove(before)
            start = before
        if start + size == self._top:
            self._top = start
            self._trim()
        else:
            self._add(start, size)

    def trim(self) -> None:
        """Give the whole pages of all holes back, as ``malloc_trim`` does."""
        for start, size in [*self._holes.items(), (self._top, len(self._pages) * PAGE - self._top)]:
            first, last = -(-start // PAGE), (start + size) // PAGE
            if last > first:
                self.resident -= self._pages.count(1, first, last) * PAGE
                self._pages[first:last] = bytes(last - first)

    def _trim(self) -> None:
        kept = -(-self._top // PAGE)
        if (len(self._pages) - kept) * PAGE > 2 * self._threshold:
            self.resident -= self._pages.count(1, kept) * PAGE
            del self._pages[kept:]

    def _place(self, size: int, spare: int) -> int:
        fitting = [(held, start) for start, held in self._holes.items() if held >= size + spare]
        if not fitting:
            start, self._top = self._top, self._top + size
            return start
        held, start = min(fitting)
        self._remove(start)
        if held > size:
            self._add(start + size, held - size)
        return start

    def _add(self, start: int, size: int) -> None:
        self._holes[start] = size
        self._ends[start + size] = start

    def _remove(self, start: int) -> None:
        del self._ends[start + self._holes.pop(start)]


def _taken(size: int) -> int:
    return -(-(size + _HEADER) // 16) * 16
