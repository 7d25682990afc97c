"""What all charts and tables of a report share: widths, colours of subjects, missing values in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from markupsafe import Markup

from edgeopt.report import text
from edgeopt.report.grid import Cell

Json = dict[str, Any]

WIDE, NARROW, HALF = 920, 330, 440
COLORS = {"original": "rest", "float32": "float"}
"""CSS class of a subject; all others are ``low``."""

PERCENTILES = {"p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}


def color(subject: str) -> str:
    """CSS class of a subject or precision."""
    return COLORS.get(subject, "low")


def both(draw: Callable[[int], Markup], wide: int = WIDE) -> tuple[Markup, Markup]:
    """A chart for wide and for narrow screens."""
    return draw(wide), draw(NARROW)


def estimate(found: Mapping[str, Any], name: str) -> Cell:
    """A percentile of a summary with its interval, or how many calls it needs."""
    value = found.get(f"{name}_ns")
    if value is None:
        needs = found.get(f"{name}_needs")
        return Cell(text="n/a", small=f"needs {needs:,} calls" if needs else "")
    cell = with_interval(text.duration, value, found.get(f"{name}_low_ns"), found.get(f"{name}_high_ns"))
    count = text.plural(found["processes"], "process", "processes")
    return cell if cell.small else Cell(text=cell.text, small=f"no interval from {count}")


def with_interval(shown: Callable[[float], str], value: float, low: float | None, high: float | None) -> Cell:
    """A value with its interval below it; ``shown`` writes a number with its unit."""
    return Cell(text=shown(value), small=text.between(shown, low, high))


def sentence(parts: Iterable[str]) -> str:
    """Non-empty parts as sentences behind each other."""
    return " ".join(f"{part.rstrip('.')}." for part in parts if part)
