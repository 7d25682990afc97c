"""Numbers and names as people read them. Bytes use powers of 1000: 1 kB = 1000 B, 1 MB = 1000 kB."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

MISSING = "not measured"


def number(value: float, digits: int = 3) -> str:
    """``value`` with so many significant digits, plain notation, no digits behind integers above that."""
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    rounded = round(value, places)
    places = max(0, digits - 1 - math.floor(math.log10(abs(rounded)))) if rounded else places
    return f"{rounded:.{places}f}"


def size(count: float | None) -> str:
    """Bytes as ``5.07 MB``; three significant digits."""
    if count is None:
        return MISSING
    factor, unit = size_unit(abs(count))
    shown = str(round(abs(count))) if factor == 1 else number(abs(count) / factor)
    return f"{'−' if count < 0 else ''}{shown} {unit}"


def size_unit(count: float) -> tuple[float, str]:
    """The unit for bytes of this magnitude and what to divide by."""
    return _unit(count, ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB")))


def duration(nanoseconds: float | None) -> str:
    """Nanoseconds as ``312 µs``, ``8.04 ms`` or ``1.20 s``; three significant digits."""
    if nanoseconds is None:
        return MISSING
    factor, unit = duration_unit(nanoseconds)
    return f"{number(nanoseconds / factor)} {unit}"


def duration_unit(nanoseconds: float) -> tuple[float, str]:
    """The unit for a duration of this magnitude and what to divide nanoseconds by."""
    return _unit(nanoseconds, ((1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")))


def _unit(value: float, units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """The first unit in which the value has fewer than four digits before the point, else the last."""
    return next((unit for unit in units if value < 999.5 * unit[0]), units[-1])


def between(shown: Callable[[float], str], low: float | None, high: float | None) -> str:
    """An interval as ``17.2 to 17.6 ms``, the unit once where it is the same; empty where there is none.

    Args:
        shown: writes one value as ``number unit``.
        low: None where there is no bound on this side.
        high: likewise.
    """
    if low is None or high is None:
        return f"at least {shown(low)}" if low is not None else f"at most {shown(high)}" if high is not None else ""
    first, last = shown(low), shown(high)
    unit = last.partition(" ")[2]
    return f"{first.removesuffix(f' {unit}') if unit else first} to {last}"


def seconds(value: float | None) -> str:
    """Seconds as ``19.2 s`` or ``0.31 s``."""
    return MISSING if value is None else f"{value:.{1 if value >= 1 else 2}f} s"


def percent(share: float | None, places: int = 1) -> str:
    """A share of 1 as ``97.0 %``."""
    return MISSING if share is None else f"{100 * share:.{places}f} %".replace("-", "−")


def metric(found: Mapping[str, Any], value: float) -> str:
    """A value of a task metric: a share in percent, another number as it is."""
    return percent(value, 2) if is_share(found) else plain(found, value)


def size_against(source: Mapping[str, Any], now: int, name: str) -> str:
    """``3.0x smaller than NAME`` for ``now`` bytes built from ``source`` (``format`` and ``bytes`` of a manifest).

    A function has no size. Its code and the weights given with it have, unless it made the weights itself.
    """
    before = int(source["bytes"])
    if source["format"] == "factory":
        if now > 2 * before:
            return "made by a function, which has no size to compare with"
        name = f"the code and weights of {name}"
    ratio = before / now if now else 1.0
    if ratio >= 1.05:
        return f"{ratio:.1f}x smaller than {name}"
    return f"as large as {name}" if ratio > 0.95 else f"{1 / ratio:.1f}x as large as {name}"


def is_share(found: Mapping[str, Any]) -> bool:
    """Whether a task metric is a share: shown in percent, its changes in points."""
    return bool(found.get("unit", "share") == "share")


def plain(found: Mapping[str, Any], value: float) -> str:
    """A value or a change of a task metric that is no share: four places of an index, four digits of a number."""
    return f"{value:.4f}".replace("-", "−") if found.get("unit") == "index" else real(value)


def signed(share: float | None, places: int = 1) -> str:
    """A change as ``+1.2 %``."""
    if share is None:
        return MISSING
    shown = percent(share, places)
    return shown if share < 0 or float(shown.split()[0]) == 0 else f"+{shown}"


def probability(value: float) -> str:
    """A p-value as ``p = 0.031`` or ``p < 0.001``."""
    return "p < 0.001" if value < 0.001 else f"p = {value:.2g}"


def energy(joules: float) -> str:
    """Joules as ``12.3 mJ``."""
    factor, unit = _unit(abs(joules), ((1e-9, "nJ"), (1e-6, "µJ"), (1e-3, "mJ"), (1.0, "J")))
    return f"{'−' if joules < 0 else ''}{number(abs(joules) / factor)} {unit}"


def count(value: float) -> str:
    """A large count as ``385 M``; exact below ten thousand."""
    if abs(value) < 9999.5:
        return f"{value:.0f}"
    factor, unit = _unit(abs(value), ((1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T")))
    return f"{number(value / factor)} {unit}"


def times(factor: float | None) -> str:
    """A factor as ``3.7x``."""
    return MISSING if factor is None else f"{number(factor, 2 if factor >= 1 else 3)}x"


def ratio(value: Sequence[float] | None) -> str:
    """A ratio with its interval as ``0.47x (0.46 to 0.48)``."""
    if value is None:
        return MISSING
    middle, low, high = value
    return f"{middle:.3f}x ({low:.3f} to {high:.3f})"


def decibels(value: float | str | None) -> str:
    """An SQNR; JSON has None for an output without any error and ``"-inf"`` for one that is nothing but error."""
    if value is None:
        return "identical"
    return "−∞ dB" if isinstance(value, str) else f"{value:.1f} dB".replace("-", "−")


def real(value: float | None) -> str:
    """A plain number with four significant digits, exponents where they are shorter."""
    return MISSING if value is None else f"{value:.4g}".replace("-", "−")


def plural(count: int, noun: str, many: str | None = None) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{count} {noun if count == 1 else many or noun + 's'}"


def shorten(name: str, width: int) -> str:
    """A long name with its middle cut out, so that both ends stay readable."""
    if len(name) <= width:
        return name
    head = (width - 1) // 2
    return f"{name[:head]}…{name[len(name) - (width - 1 - head) :]}"


def escape_markdown(text: object) -> str:
    """Text that Markdown shows as it is: no markup, no HTML, no table cell or line breaks."""
    flat = " ".join(str(text).split())
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{char}" if char in "\\`*_[]|~#!" else char for char in flat)


def code(text: object) -> str:
    """A Markdown code span for a table cell, backticks and pipes included."""
    flat = " ".join(str(text).split()).replace("|", "\\|") or " "
    if "`" not in flat:
        return f"`{flat}`"
    fence = "`" * (flat.count("`") + 1)
    return f"{fence} {flat} {fence}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """A Markdown table. ``align`` has one letter a column, ``l`` or ``r``; cells must be escaped already."""
    marks = {"l": ":---", "r": "---:"}
    lines = [head, [marks[letter] for letter in align.ljust(len(head), "l")], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
