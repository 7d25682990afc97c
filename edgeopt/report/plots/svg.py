"""Elements of a chart as SVG text. Coordinates have one decimal at most, so that equal charts are equal bytes."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup, escape

CHARACTER = 6.4
"""Mean width of a character of the 12 px chart font, in px."""


def n(value: float) -> str:
    """A coordinate with one decimal at most."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def wide(label: str) -> float:
    """Estimated width of a label in px."""
    return len(label) * CHARACTER


def inside(x: float, half: float, left: float, right: float) -> float:
    """``x`` moved so that ``half`` px on both sides of it stay within [left, right]."""
    return min(max(x, left + half), right - half)


def text(x: float, y: float, content: str, css: str) -> str:
    """A label; ``css`` holds ``mid`` or ``end`` for its anchor."""
    return f'<text class="{css}" x="{n(x)}" y="{n(y)}">{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    """A straight line."""
    return f'<line class="{css}" x1="{n(x1)}" y1="{n(y1)}" x2="{n(x2)}" y2="{n(y2)}"/>'


def rect(x: float, y: float, width: float, height: float, css: str) -> str:
    """A rectangle."""
    return f'<rect class="{css}" x="{n(x)}" y="{n(y)}" width="{n(width)}" height="{n(height)}"/>'


def path(d: str, css: str) -> str:
    """A path; empty where there is nothing to draw."""
    return f'<path class="{css}" d="{d}"/>' if d else ""


def polyline(points: Iterable[tuple[float, float]]) -> str:
    """Path data of straight lines through the points."""
    return "L".join(f"{n(x)} {n(y)}" for x, y in points).join(("M", "")) if points else ""


def svg(width: float, height: float, label: str, parts: Iterable[str], css: str = "chart") -> Markup:
    """One ``<svg>`` element that says what it shows to those who cannot see it."""
    head = f'<svg class="{css}" viewBox="0 0 {n(width)} {n(height)}" role="img" aria-label="{escape(label)}">'
    return Markup(head + "".join(parts) + "</svg>")
