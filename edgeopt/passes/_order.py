"""An order of a graph's nodes with the lowest peak of live bytes.

Let D be the set of nodes that have run. What is alive after D depends on D alone: every buffer that a node of D made
and that a node outside D reads, or that is held to the end. So with peak(D) the lowest peak of all orders of D

    peak({})      = bytes held from the start
    peak(D + {v}) = min over v of max(peak(D), live(D) + made(v)),       for v whose producers are all in D

which is dynamic programming over the downsets of the graph (Ahn et al., Ordering Chaos: Memory-Aware Scheduling of
Irregularly Wired Neural Networks for Edge Devices, MLSys 2020). They are visited in the order of their peak, so the
first full set is an optimum; a chain has as many downsets as nodes, w parallel chains of length l have (l + 1)^w.
A node that needs no new peak and leaves no more bytes alive than before runs at once: to move it forward in any order
adds to no later moment, since what it frees is freed, and what it makes nobody reads before.

Where the downsets are too many, a beam of them is kept at every length, those with the lowest peak and live bytes.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

MAX_STATES = 20_000
"""Downsets that the exact search may visit."""

BEAM = 48
"""Downsets of each length that the bounded search keeps."""

MAX_TRIES = 150_000
"""Nodes that each of the two searches may try at all the places they come to; the beam gets narrower with its pace."""


class Buffer(NamedTuple):
    """Bytes that one node makes and others read.

    Attributes:
        maker: index of the node, -1 for what is there from the start.
        readers: indices of nodes, each once.
        held: until the end, because the caller reads it or owns it.
    """

    size: int
    maker: int
    readers: tuple[int, ...]
    held: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """An order with its peak in bytes; ``exact`` where no order has a lower one."""

    order: tuple[int, ...]
    peak: int
    exact: bool


def peak(order: Sequence[int], buffers: Sequence[Buffer]) -> int:
    """Largest sum of live bytes during any node, in that order. A buffer lives from its maker to its last reader."""
    position = {node: index for index, node in enumerate(order)}
    change = [0] * (len(order) + 2)
    for buffer in buffers:
        begin = 0 if buffer.maker < 0 else position[buffer.maker]
        last = max((position[reader] for reader in buffer.readers), default=begin)
        change[begin] += buffer.size
        change[len(order) + 1 if buffer.held else max(begin, last) + 1] -= buffer.size
    return max(itertools.accumulate(change[: max(1, len(order))]))


def best(count: int, edges: Sequence[tuple[int, int]], buffers: Sequence[Buffer]) -> Found:
    """The order of nodes 0 to ``count`` - 1 with the lowest peak found; the given one where none is lower.

    Args:
        edges: (before, after), each index below the one it precedes: 0, 1, 2, .. is an order.
    """
    given = tuple(range(count))
    now = peak(given, buffers)
    problem = _Problem(count, edges, buffers)
    try:
        order, exact = _exact(problem, now), True
    except _TooManyError:
        order, exact = _beam(problem, now), False
    if order is None:
        return Found(order=given, peak=now, exact=exact)
    return Found(order=order, peak=peak(order, buffers), exact=exact)


class _TooManyError(Exception):
    """The exact search takes too long."""


_Path = tuple["_Path | None", int]


class _State(NamedTuple):
    """A downset on its way: bits of ``done``, and of the nodes that are ``free`` to run."""

    peak: int
    live: int
    done: int
    free: int
    path: _Path | None

    def order(self) -> tuple[int, ...]:
        """The nodes that ran, in order."""
        found, path = [], self.path
        while path is not None:
            path, node = path
            found.append(node)
        return tuple(reversed(found))


class _Problem:
    """The graph as bit sets."""

    def __init__(self, count: int, edges: Sequence[tuple[int, int]], buffers: Sequence[Buffer]) -> None:
        self.count, self.full, self.tries = count, (1 << count) - 1, 0
        self._needs = [0] * count
        self._next: list[set[int]] = [set() for _ in range(count)]
        for before, after in edges:
            self._needs[after] |= 1 << before
            self._next[before].add(after)
        self._made = [0] * count
        self._ends: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        self._lost = [0] * count  # made and read by nobody: gone when the node ends
        held = 0
        for buffer in buffers:
            if buffer.maker < 0:
                held += buffer.size
            else:
                self._made[buffer.maker] += buffer.size
            if buffer.held:
                continue
            if not buffer.readers and buffer.maker >= 0:
                self._lost[buffer.maker] += buffer.size
            readers = sum(1 << reader for reader in set(buffer.readers))
            for reader in set(buffer.readers):
                self._ends[reader].append((readers, buffer.size))
        free = sum(1 << node for node in range(count) if not self._needs[node])
        self.first = self.settled(_State(held, held, 0, free, None))

    def ran(self, state: _State, node: int) -> _State:
        """The state after one more node."""
        self.tries += 1
        done = state.done | 1 << node
        during = state.live + self._made[node]
        freed = self._lost[node] + sum(size for readers, size in self._ends[node] if readers & ~done == 0)
        free = state.free & ~(1 << node)
        for after in self._next[node]:
            if self._needs[after] & ~done == 0:
                free |= 1 << after
        return _State(max(state.peak, during), during - freed, done, free, (state.path, node))

    def settled(self, state: _State) -> _State:
        """The state after all nodes that cost nothing."""
        while True:
            for node in _bits(state.free):
                after = self.ran(state, node)
                if after.peak == state.peak and after.live <= state.live:
                    state = after
                    break
            else:
                return state

    def following(self, state: _State) -> Iterator[_State]:
        """States one node further, and what costs nothing after it."""
        for node in _bits(state.free):
            yield self.settled(self.ran(state, node))


def _bits(number: int) -> Iterator[int]:
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low


def _exact(problem: _Problem, below: int) -> tuple[int, ...] | None:
    """An order with the lowest peak of all, None where that is not below ``below``.

    Raises:
        _TooManyError: it takes more than ``MAX_STATES`` downsets or ``MAX_TRIES``.
    """
    seen: set[int] = set()
    number = 0
    waiting = [(problem.first.peak, 0, number, problem.first)]
    while waiting:
        *_, state = heapq.heappop(waiting)
        if state.done in seen:
            continue
        if state.done == problem.full:
            return state.order() if state.peak < below else None
        seen.add(state.done)
        if len(seen) > MAX_STATES or problem.tries > MAX_TRIES:
            raise _TooManyError
        for after in problem.following(state):
            if after.done not in seen and after.peak < below:
                number += 1
                heapq.heappush(waiting, (after.peak, -after.done.bit_count(), number, after))
    return None


def _beam(problem: _Problem, below: int) -> tuple[int, ...] | None:
    """A good order: of the downsets of each length the best go on. None where none stays below ``below``."""
    rows: dict[int, dict[int, _State]] = {problem.first.done.bit_count(): {problem.first.done: problem.first}}
    width, begun = BEAM, problem.tries
    for length in range(problem.count):
        for state in heapq.nsmallest(width, rows.pop(length, {}).values(), key=lambda s: (s.peak, s.live, s.done)):
            for after in problem.following(state):
                row = rows.setdefault(after.done.bit_count(), {})
                known = row.get(after.done)
                if after.peak < below and (known is None or after.peak < known.peak):
                    row[after.done] = after
        pace = (problem.tries - begun) / (length + 1) * problem.count / MAX_TRIES
        width = BEAM if pace <= 1 else max(1, int(width / pace))
    last = rows.get(problem.count, {}).get(problem.full)
    return last.order() if last is not None and last.peak < below else None
