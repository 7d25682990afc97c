"""Dims as numbers or terms (a number times symbols), and the arithmetic that shapes need."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import onnx_ir as ir


class Term(NamedTuple):
    """``factor`` times the product of ``symbols`` (sorted, at least one)."""

    factor: int
    symbols: tuple[str, ...]


Dim = int | Term
Dims = tuple[Dim, ...]


class Numbers(NamedTuple):
    """The elements of an integer tensor of rank 0 or 1."""

    items: Dims
    scalar: bool


def product(*factors: Dim) -> Dim:
    """The product of numbers and terms."""
    number = math.prod(f if isinstance(f, int) else f.factor for f in factors)
    symbols = tuple(sorted(s for f in factors if isinstance(f, Term) for s in f.symbols))
    return Term(number, symbols) if symbols and number else number


def quotient(left: Dim, right: Dim) -> Dim | None:
    """``left / right`` when it is known to leave no remainder, else None."""
    top, bottom = ((d, ()) if isinstance(d, int) else d for d in (left, right))
    rest = list(top[1])
    for symbol in bottom[1]:
        if symbol not in rest:
            return None
        rest.remove(symbol)
    if bottom[0] == 0 or top[0] % bottom[0]:
        return None
    return product(top[0] // bottom[0], *(Term(1, (s,)) for s in rest))


class Known(Protocol):
    """What the rules ask about values."""

    def dims(self, value: ir.Value | None) -> Dims | None:
        """The shape, None when the rank is unknown."""

    def numbers(self, value: ir.Value | None) -> Numbers | None:
        """The elements of an integer tensor, None when they are not followed."""

    def new(self) -> Term:
        """A symbol that is like no other."""

    def clipped(self, length: Dim, size: Dim) -> Dim:
        """``min(length, size)``."""

    def whole(self, dim: Dim) -> Dim | None:
        """``length`` where ``dim`` is ``min(length, size)`` for a number ``size`` > 0, else None."""


def broadcast(known: Known, *shapes: Dims) -> Dims:
    """The shape that all of ``shapes`` broadcast to; a new symbol where two unknown dims meet.

    Only min(n, m) beside n, for a number m > 0, is n: they are equal, or min(n, m) is 1, or it is an error.
    """
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    result: list[Dim] = []
    for column in zip(*padded, strict=True):
        wide = [d for d in dict.fromkeys(column) if d != 1]
        wide = [d for d in wide if (n := known.whole(d)) is None or n not in wide]
        numbers = [d for d in wide if isinstance(d, int)]
        if numbers:
            result.append(numbers[0])
        else:
            result.append(1 if not wide else wide[0] if len(wide) == 1 else known.new())
    return tuple(result)


INTEGERS = (ir.DataType.INT64, ir.DataType.INT32)
"""Types of shape arithmetic."""
