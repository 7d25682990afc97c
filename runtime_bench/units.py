"""Times, sizes and counts in words that a person reads."""

from __future__ import annotations

from typing import Optional


def duration(nanoseconds: Optional[float]) -> str:
    """Three significant digits with a unit."""
    if nanoseconds is None:
        return "n/a"
    for unit, size_ns in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds >= 0.9995 * size_ns:
            return "{} {}".format(_three(nanoseconds / size_ns), unit)
    return "{:.0f} ns".format(nanoseconds)


def span(low: Optional[float], high: Optional[float]) -> str:
    """``1.20 to 1.31 ms``: two durations, the unit once where they share it."""
    first, second = duration(low).rsplit(" ", 1), duration(high).rsplit(" ", 1)
    if len(first) == len(second) == 2 and first[1] == second[1]:
        return "{} to {} {}".format(first[0], second[0], second[1])
    return "{} to {}".format(duration(low), duration(high))


def size(count: Optional[int]) -> str:
    """Bytes in units of 10 ** 6 or 10 ** 3."""
    if count is None:
        return "n/a"
    return "{:.1f} MB".format(count / 1e6) if count >= 100000 else "{:.1f} kB".format(count / 1e3)


def percent(share: Optional[float]) -> str:
    """A share of 1 as per cent: two digits below 10 %, whole numbers above."""
    if share is None:
        return "n/a"
    value = abs(share) * 100
    digits = 0 if value >= 9.95 else 1 if value >= 0.095 or value == 0 else 2
    return "{:.{}f} %".format(share * 100, digits)


def count(number: int, noun: str) -> str:
    """``1 call``, ``2 calls``, ``2 processes``, ``2 switches``."""
    plural = "es" if noun.endswith(("s", "ch")) else "s"
    return "{} {}{}".format(number, noun, "" if number == 1 else plural)


def _three(value: float) -> str:
    return (
        "{:.2f}".format(value) if value < 9.995 else "{:.1f}".format(value) if value < 99.95 else "{:.0f}".format(value)
    )
