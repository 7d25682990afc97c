"""Charts as SVG text: pure, deterministic, styled by the page's CSS classes, no script.

Every function takes the width of its view box in px and returns one ``<svg>`` element. Colours come from the classes
``float``, ``low``, ``other``, ``rest``; each series also carries a direct label, so that colour is never alone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

from edgeopt.report.text import duration, number, shorten

CHARACTER = 6.4
"""Mean width of a character of the 12 px chart font, in px."""

Unit = tuple[float, str]
"""Unit of a time axis: nanoseconds in one, and its name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strip:
    """Samples of one subject: ``rows`` holds (label, values) per process, ``center`` is the line to draw."""

    name: str
    css: str
    rows: Sequence[tuple[str, Sequence[float]]]
    center: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bar:
    """A horizontal bar of stacked (css, value, label) parts. ``end`` is written behind it."""

    label: str
    parts: Sequence[tuple[str, float, str]]
    end: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Steps:
    """A step line over positions 0..n-1; ``peak`` is written at the highest one."""

    css: str
    values: Sequence[float]
    peak: str


def ticks(low: float, high: float, count: int) -> list[float]:
    """About ``count`` round values (1, 2 or 5 times a power of ten apart) within [low, high]."""
    if not high > low:
        return [low]
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def strips(subjects: Sequence[Strip], width: int, unit: Unit) -> Markup:
    """One row of dots a process on one axis from zero; a line at each subject's median.

    Samples far beyond the rest are counted at the right edge with their maximum instead of squeezing all others.
    """
    pitch = 18 if max((len(s.rows) for s in subjects), default=0) <= 12 else 12
    left, right, top = 84, 14, 4
    limit = max((_limit([v for _, row in s.rows for v in row]) for s in subjects), default=1.0)
    scale = (width - left - right) / limit
    parts: list[str] = []
    y = float(top)
    for subject in subjects:
        x = left + subject.center * scale
        parts.append(_text(0, y + 14, subject.name, "name"))
        parts.append(_text(_inside(x, 60, left, width), y + 14, f"median {number(subject.center)} {unit[1]}", "mid"))
        start = y + 20
        y = start
        for index, (label, row) in enumerate(subject.rows):
            middle = y + pitch / 2
            if pitch > 12 or index in (0, len(subject.rows) - 1):
                parts.append(_text(left - 8, middle + 4, label, "end quiet"))
            parts.append(_line(left, middle, width - right, middle, "row"))
            parts.append(_dots(row, left, scale, limit, middle, pitch / 2 - 3, subject.css))
            if max(row, default=0) > limit:
                parts.append(_text(width - 2, middle + 4, "▸", "end quiet"))
            y += pitch
        far = [v for _, row in subject.rows for v in row if v > limit]
        parts.append(_line(x, start - 2, x, y, f"median {subject.css}"))
        if far:
            y += 12
            parts.append(_text(width - 2, y, _beyond(far, unit), "end quiet"))
        y += 12
    parts.extend(_x_axis(0, limit, left, width - right, y - 4, unit[1]))
    return _svg(width, y + 32, "Latency of every inference, one row a process", parts)


def histogram(values: Sequence[float], marks: Sequence[tuple[str, float]], width: int, css: str, unit: Unit) -> Markup:
    """Counts of samples over the range of most of them, with labelled percentile marks above.

    What lies beyond the range, percentiles included, is written below it.
    """
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    bulk = ordered[math.ceil(0.95 * len(ordered)) - 1]
    most = min(high, low + 1.7 * (bulk - low))
    left, right = 34, 14
    named = [(v, f"{name} {number(v)}") for name, v in marks if v <= max(most, bulk)]
    needed = [low + (v - low) * (width - left - right) / (width - left - 6 - len(t) * CHARACTER) for v, t in named]
    high = max([bulk, most, *needed])
    if high - low < 1e-3 * high:
        low, high = low * 0.99, high * 1.01
    count = min(40, max(8, math.ceil(math.sqrt(len(ordered)) * 1.5)))
    bins = [0] * count
    for value in ordered:
        if value <= high:
            bins[min(count - 1, int((value - low) / (high - low) * count))] += 1
    scale = (width - left - right) / (high - low)
    labels = _stairs([(left + (v - low) * scale, label) for v, label in named], left)
    top = 8.0 + 15 * (1 + max((row for _, row, _, _ in labels), default=0))
    base = top + 92
    rise = 92 / max(bins)
    step = (width - left - right) / count
    parts = [_line(left, top, width - right, top, "grid"), _text(left - 6, top + 4, str(max(bins)), "end quiet")]
    parts.append(_text(left - 6, base + 4, "0", "end quiet"))
    for index, amount in enumerate(bins):
        if amount:
            parts.append(_rect(left + index * step + 0.5, base - amount * rise, step - 1, amount * rise, css))
    for x, row, side, label in labels:
        y = 13.0 + 15 * row
        parts.append(_line(x, y - 9, x, base, "mark"))
        parts.append(_text(x + (4 if side == "start" else -4), y, label, f"{side} halo"))
    parts.extend(_x_axis(low, high, left, width - right, base, unit[1]))
    if far := [value for value in ordered if value > high]:
        tail = "".join(f"{name} {duration(v * unit[0])}, " for name, v in marks if v > high)
        parts.append(_text(width - 2, base + 33, tail + _beyond(far, unit), "end quiet"))
    return _svg(width, base + 36, "Histogram of samples", parts)


def bars(
    rows: Sequence[Bar], width: int, unit: str, *, limit: tuple[float, str] | None = None, row: int = 38
) -> Markup:
    """Stacked horizontal bars from zero. ``limit`` draws a dashed line with its label, ``row`` is the pitch in px.

    No axis is drawn where ``unit`` is empty and the labels carry the numbers.
    """
    left = _gutter((bar.label for bar in rows), 14, 0.36 * width)
    right = _gutter((bar.end for bar in rows), 12, 0.42 * width)
    top = 26.0 if limit else 4.0
    totals = [sum(value for _, value, _ in bar.parts) for bar in rows]
    high = max([*totals, limit[0] if limit else 0]) or 1.0
    scale = (width - left - right) / high
    thick = row - 12
    parts: list[str] = []
    texts: list[str] = []
    y = top
    for bar in rows:
        middle = y + thick / 2 + 4
        texts.append(_text(left - 8, middle, shorten(bar.label, int((left - 12) / CHARACTER)), "end"))
        x = left
        for css, value, label in bar.parts:
            wide = value * scale
            parts.append(_rect(x, y, max(wide - 1, 0.5), thick, css))
            if label and len(label) * CHARACTER + 8 < wide:
                texts.append(_text(x + wide / 2, middle, label, f"mid on-{css}"))
            x += wide
        line = left + limit[0] * scale if limit else 0.0
        beside = x - 4 < line < x + 12 + len(bar.end) * CHARACTER
        texts.append(_text((line if beside else x) + 6, middle, bar.end, ""))
        y += row
    if limit:
        x = left + limit[0] * scale
        parts.append(_line(x, top - 8, x, y - 8, "limit"))
        parts.append(_text(_inside(x, len(limit[1]) * CHARACTER / 2, left, width), top - 13, limit[1], "mid"))
    if unit:
        parts.extend(_x_axis(0, high, left, width - right, y - 6, unit))
    return _svg(width, y + (18 if unit else -6), "Bars", parts + texts)


def _gutter(labels: Iterable[str], pad: float, most: float) -> float:
    return min(max((len(label) for label in labels), default=0) * CHARACTER + pad, most)


def timeline(series: Sequence[Steps], width: int, unit: str, x_label: str) -> Markup:
    """Step areas from zero over the positions of a graph, each with its peak marked and named."""
    left, right, top, height = 44, 12, 30.0, 190.0
    base = top + height
    high = max((max(s.values, default=0) for s in series), default=0) or 1
    rise = height / (high * 1.04)
    parts: list[str] = [_text(0, 12, unit, "quiet")]
    for value in ticks(0, high * 1.04, 4):
        y = base - value * rise
        parts.append(_line(left, y, width - right, y, "grid"))
        parts.append(_text(left - 6, y + 4, _plain(value), "end quiet"))
    labels: list[str] = []
    taken: list[float] = []
    for entry in series:
        step = (width - left - right) / max(len(entry.values), 1)
        path = f"M{_n(left)} {_n(base)}"
        for index, value in enumerate(entry.values):
            path += f"V{_n(base - value * rise)}H{_n(left + (index + 1) * step)}"
        parts.append(f'<path class="area {entry.css}" d="{path}V{_n(base)}Z"/>')
        at = max(range(len(entry.values)), key=lambda k, v=entry.values: v[k], default=0)  # type: ignore[misc]
        x, y = left + (at + 0.5) * step, base - entry.values[at] * rise
        labels.append(f'<circle class="peak {entry.css}" cx="{_n(x)}" cy="{_n(y)}" r="4"/>')
        row = y - 10
        while any(abs(row - other) < 16 for other in taken):
            row += 16
        taken.append(row)
        room = (width - right - x if x < (left + width) / 2 else x - left) - 12
        label = shorten(entry.peak, max(12, int(room / CHARACTER)))
        side, shift = ("start", 8) if x < (left + width) / 2 else ("end", -8)
        labels.append(_text(x + shift, max(row, 12), label, f"{side} halo"))
    parts.extend(labels)
    parts.append(_line(left, base, width - right, base, "axis"))
    parts.append(_text((left + width - right) / 2, base + 20, x_label, "mid quiet"))
    return _svg(width, base + 28, "Live activation bytes over the graph", parts)


def _beyond(far: Sequence[float], unit: Unit) -> str:
    return f"{len(far)} beyond, max {duration(max(far) * unit[0])} ▸"


def _limit(values: Sequence[float]) -> float:
    """Right end of an axis: just above the maximum, or well above the 90th of 100 samples where a few lie far out."""
    ordered = sorted(values) or [1.0]
    most = ordered[math.ceil(0.9 * len(ordered)) - 1] * 1.35
    return min(ordered[-1] * 1.02, most) or 1.0


def _stairs(marks: Iterable[tuple[float, str]], left: float) -> list[tuple[float, int, str, str]]:
    """Rows for labels of vertical lines, so that no line crosses a label: (x, row, side of the line, text).

    The first label stands left of its line where it has room; each further one right of its line and a row lower,
    and its line ends there.
    """
    ordered = sorted(marks)
    before = bool(ordered) and ordered[0][0] - len(ordered[0][1]) * CHARACTER - 4 >= left
    return [
        (x, max(0, k - 1) if before else k, "end" if before and k == 0 else "start", label)
        for k, (x, label) in enumerate(ordered)
    ]


def _dots(row: Sequence[float], left: float, scale: float, limit: float, middle: float, spread: float, css: str) -> str:
    """Dots with a fixed vertical scatter; dots that fall on one spot are drawn once."""
    spots = dict.fromkeys(
        (_n(left + value * scale), _n(middle + spread * ((index * 7 % 11) / 5 - 1)))
        for index, value in enumerate(row)
        if value <= limit
    )
    return f'<path class="dots {css}" d="{"".join(f"M{x} {y}h0" for x, y in spots)}"/>'


def _x_axis(low: float, high: float, left: float, right: float, y: float, unit: str, *, grid: bool = True) -> list[str]:
    scale = (right - left) / (high - low)
    parts = [_line(left, y, right, y, "axis")]
    most = max(2, int((right - left) / 90))  # then more, where round values give fewer than three marks
    values = next(v for n in (*range(most, 10), 10) if len(v := ticks(low, high, n)) > 2 or n == 10)
    for value in values:
        x = left + (value - low) * scale
        parts.append(_line(x, y, x, y + 4, "axis"))
        label = _plain(value, values) + (f" {unit}" if value == values[-1] else "")
        parts.append(_text(_inside(x, len(label) * CHARACTER / 2, 0, right + 12), y + 17, label, "mid quiet"))
    return parts


def _plain(value: float, among: Sequence[float] = ()) -> str:
    """A tick label; neighbours share their number of decimals."""
    gap = among[1] - among[0] if len(among) > 1 else abs(value) or 1
    places = max(0, -math.floor(math.log10(gap) + 1e-9))
    return f"{value:.{min(places, 6)}f}"


def _inside(x: float, half: float, left: float, right: float) -> float:
    return min(max(x, left + half), right - half)


def _n(value: float) -> str:
    """A coordinate with one decimal at most."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def _text(x: float, y: float, content: str, css: str) -> str:
    return f'<text class="{css}" x="{_n(x)}" y="{_n(y)}">{escape(content)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return f'<line class="{css}" x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}"/>'


def _rect(x: float, y: float, width: float, height: float, css: str) -> str:
    return f'<rect class="{css}" x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"/>'


def _svg(width: float, height: float, label: str, parts: Iterable[str]) -> Markup:
    head = f'<svg class="chart" viewBox="0 0 {_n(width)} {_n(height)}" role="img" aria-label="{escape(label)}">'
    return Markup(head + "".join(parts) + "</svg>")
