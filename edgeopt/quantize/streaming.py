"""Runs of the float model over a set, with as many of its tensors at a time as a budget of memory holds."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from edgeopt.errors import CalibrationError
from edgeopt.interpreter import Interpreter
from edgeopt.model import Model

Feeds = Mapping[str, np.ndarray]
Samples = Iterable[Feeds] | Callable[[], Iterable[Feeds]]
"""A set, or a function that starts it anew: several passes need one or a collection."""


AHEAD_OF = 8
"""A second sample is run ahead where its tensors are at most this part of what is left of the budget."""


class Item(NamedTuple):
    """Something to collect from the tensor ``name``; it holds ``held`` bytes until the end of its pass."""

    name: str
    held: int
    key: object = None


Group = tuple[Item, ...]


class _TooLargeError(Exception):
    """A sample's tensors are larger than was foreseen; the group has to be split."""


def in_passes(
    model: Model,
    items: Sequence[Item],
    samples: Samples,
    budget: int | None,
    consume: Callable[[Group, Iterator[tuple[int, Feeds]]], int],
) -> None:
    """Call ``consume`` for groups of items with a numbered stream of their tensors by name.

    ``consume`` returns the bytes that it keeps for good, which the budget loses. It is called again with smaller
    groups, and must forget the first call, when a sample turns out to be too large. One item alone is never too large.

    Args:
        items: of graph inputs or computed tensors of the main graph.
        budget: bytes that items and one sample's computed tensors may hold; None takes all in one pass.

    Raises:
        CalibrationError: no samples.
        TypeError: a second pass over an iterator.
    """
    inputs = {str(v.name) for v in model.graph.inputs}
    start = _starter(samples)
    sizes = {} if budget is None else _sizes(model, {item.name for item in items} - inputs, samples)
    room = math.inf if budget is None else float(budget)
    waiting = deque(_groups(items, sizes, room))
    while waiting:
        group = waiting.popleft()
        limit = room - sum(item.held for item in group)
        try:
            room -= consume(group, _stream(model, group, inputs, start(), limit, sizes))
        except _TooLargeError:
            waiting.extendleft(reversed(list(_groups(group, sizes, room))))
            continue
        rest = tuple(itertools.chain.from_iterable(waiting))
        waiting = deque(_groups(rest, sizes, room))  # in less room than before


def _stream(
    model: Model, group: Group, inputs: set[str], samples: Iterable[Feeds], limit: float, sizes: dict[str, int]
) -> Iterator[tuple[int, Feeds]]:
    """Tensors of a group, sample by sample; ``sizes`` learns from those over the limit."""
    names = list(dict.fromkeys(item.name for item in group))
    computed = [name for name in names if name not in inputs]
    interpreter = Interpreter(model, tensors=computed) if computed else None
    tensors: dict[str, np.ndarray] = {}
    index = -1
    runs = (
        interpreter.ahead(samples, lambda size: AHEAD_OF * size <= limit)
        if interpreter
        else ((one, {}) for one in samples)
    )
    for index, (feeds, found) in enumerate(runs):
        tensors.update(found)
        found.clear()
        if len(group) > 1 and sum(value.nbytes for value in tensors.values()) > limit:
            sizes.update({name: max(value.nbytes, sizes.get(name, 0)) for name, value in tensors.items()})
            raise _TooLargeError
        tensors.update((name, feeds[name]) for name in names if name in inputs)
        yield index, tensors
        tensors.clear()  # before the next run makes as many again
    if index < 0:
        raise CalibrationError("the calibration set is empty", remedy="Give a set with at least one sample.")


def _groups(items: Sequence[Item], sizes: Mapping[str, int], room: float) -> Iterator[Group]:
    """Runs of items, in their order, that fit the room together."""
    group: list[Item] = []
    names: set[str] = set()
    used = 0
    for item in items:
        cost = item.held + (0 if item.name in names else sizes.get(item.name, 0))
        if group and used + cost > room:
            yield tuple(group)
            group, names, used = [], set(), 0
            cost = item.held + sizes.get(item.name, 0)
        group.append(item)
        names.add(item.name)
        used += cost
    if group:
        yield tuple(group)


def _sizes(model: Model, names: set[str], samples: Samples) -> dict[str, int]:
    """Bytes of computed tensors, symbols as in the first sample; what stays unknown counts as the largest known."""
    bound: dict[str, int] = {}
    feeds = None if isinstance(samples, Iterator) else next(iter(samples() if callable(samples) else samples), None)
    for value in model.graph.inputs if feeds is not None else ():
        given = feeds.get(str(value.name)) if feeds is not None else None
        if given is not None and value.shape is not None and len(value.shape) == given.ndim:
            bound.update((str(d.value), n) for d, n in zip(value.shape, given.shape) if isinstance(d, ir.SymbolicDim))
    found: dict[str, int | None] = {}
    for node in model.graph:
        for value in node.outputs:
            if str(value.name) in names:
                found[str(value.name)] = _bytes(value, bound)
    most = max((size for size in found.values() if size is not None), default=0)
    return {name: most if size is None else size for name, size in found.items()}


def _bytes(value: ir.Value, bound: Mapping[str, int]) -> int | None:
    if value.shape is None:
        return None
    sizes = [d if isinstance(d, int) else bound.get(str(d.value)) for d in value.shape]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return None
    width = 4 if value.dtype is None else value.dtype.itemsize
    return int(math.prod(known) * width)


def _starter(samples: Samples) -> Callable[[], Iterable[Feeds]]:
    if callable(samples):
        return samples
    if not isinstance(samples, Iterator):
        return lambda: samples
    fresh = [samples]

    def once() -> Iterable[Feeds]:
        if not fresh:
            raise TypeError("several passes over the samples need a collection or a function that starts anew")
        return fresh.pop()

    return once
