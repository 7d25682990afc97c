"""The arena that onnxruntime's CPU provider allocates from, with its default settings.

1. Sizes are rounded up to 256 bytes.
2. The smallest free chunk that is large enough is taken, the one with the lowest address of those. It is split where it
   has twice the bytes that are asked for; else the rest of it lies idle.
3. Where no chunk fits, a region is added: 1 MB at first, and twice the last one each time, or as many times as the
   request needs.
4. Free neighbours within a region are joined. Regions are kept.

A region's pages become resident as tensors are written into it (``edgeopt.memory.heap``).
"""

from __future__ import annotations

import dataclasses

from edgeopt.memory.heap import Block, Heap

FIRST = 1 << 20
LARGEST_IDLE = 128 << 20
"""More than this at the end of a chunk is split off whatever the ratio."""

_UNIT = 256


@dataclasses.dataclass(eq=False)
class Chunk:
    """A piece of a region."""

    region: int
    start: int
    size: int
    free: bool = True


class Arena:
    """Chunks in regions of a heap; with ``grows=False`` each chunk is a block of the heap, as with the arena off."""

    def __init__(self, heap: Heap, *, grows: bool = True) -> None:
        self._heap, self._grows = heap, grows
        self._next = FIRST
        self._regions: list[tuple[Block, list[Chunk]]] = []

    def allocate(self, size: int) -> Chunk | Block:
        """A chunk of ``size`` bytes, all of them written."""
        if not self._grows:
            return self._heap.allocate(size, aligned=True)
        rounded = max(-(-size // _UNIT), 1) * _UNIT
        chunk = self._fitting(rounded) or self._extended(rounded)
        block, chunks = self._regions[chunk.region]
        if chunk.size >= 2 * rounded or chunk.size - rounded >= LARGEST_IDLE:
            rest = Chunk(chunk.region, chunk.start + rounded, chunk.size - rounded)
            chunks.insert(chunks.index(chunk) + 1, rest)
            chunk.size = rounded
        chunk.free = False
        self._heap.touch(block, chunk.start, chunk.start + size)
        return chunk

    def free(self, held: Chunk | Block) -> None:
        """Give a chunk back."""
        if isinstance(held, Block):
            self._heap.free(held)
            return
        chunks = self._regions[held.region][1]
        at = chunks.index(held)
        held.free = True
        if at + 1 < len(chunks) and chunks[at + 1].free:
            held.size += chunks.pop(at + 1).size
        if at and chunks[at - 1].free:
            chunks[at - 1].size += chunks.pop(at).size

    def _fitting(self, rounded: int) -> Chunk | None:
        found = [c for _, chunks in self._regions for c in chunks if c.free and c.size >= rounded]
        return min(found, key=lambda c: (c.size, -c.region, c.start), default=None)

    def _extended(self, rounded: int) -> Chunk:
        grown = False
        while rounded > self._next:
            self._next *= 2
            grown = True
        chunk = Chunk(len(self._regions), 0, self._next)
        self._regions.append((self._heap.allocate(self._next, touch=False, aligned=True), [chunk]))
        if not grown:
            self._next *= 2
        return chunk
