"""What changed over time: tracks below each other on one time axis."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from markupsafe import Markup

from edgeopt.report.plots.axis import Scale, plain, x_axis
from edgeopt.report.plots.svg import line, n, path, polyline, rect, svg, text, wide

HEIGHT = 84.0
LEAST = 0.05
"""Range of an upright axis at least, relative to its highest value: less is noise."""

Point = tuple[float, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trace:
    """Points (time, value) of one thing. ``shape`` is ``dots``, ``line`` or ``trend``; ``label`` may be empty."""

    css: str
    points: Sequence[Point]
    label: str = ""
    shape: str = "line"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Track:
    """Traces on one upright axis, or the reason why there are none."""

    title: str
    traces: Sequence[Trace] = ()
    missing: str = ""


def course(
    tracks: Sequence[Track], span: Point, width: int, unit: str, shaded: Sequence[tuple[float, float, str]] = ()
) -> Markup:
    """Draw the tracks over ``span`` (in ``unit``); ``shaded`` are stretches (start, end, name) behind all of them."""
    left, right = 46.0, 14.0
    x = Scale(low=span[0], high=span[1] if span[1] > span[0] else span[0] + 1, start=left, end=width - right)
    parts: list[str] = []
    y = 0.0
    for track in tracks:
        parts.append(text(0, y + 12, track.title, "quiet"))
        if track.missing:
            parts += [text(0, y + 12 + 16 * (k + 1), row, "quiet") for k, row in enumerate(_rows(track.missing, width))]
            y += 36 + 16 * len(_rows(track.missing, width))
            continue
        top = y + 22
        names = []
        for start, end, name in shaded:
            a, b = x.clipped(start), x.clipped(end)
            parts.append(rect(a, top, max(b - a, 1), HEIGHT, "far"))
            names += [text((a + b) / 2, top + HEIGHT - 6, name, "mid quiet")] if wide(name) < b - a else []
        parts += _track(track, x, top, width)
        parts += names if track is tracks[0] else []
        y = top + HEIGHT + 12
    parts += x_axis(x, y - 8, unit, width - right + 12)
    return svg(width, y + 18, "; ".join(t.title for t in tracks) + " over time", parts)


def _track(track: Track, x: Scale, top: float, width: int) -> list[str]:
    values = [v for trace in track.traces for _, v in trace.points]
    low, high = min(values), max(values)
    room = max(0.18 * (high - low), (LEAST * abs(high) - (high - low)) / 2) or 1.0
    y = Scale(low=low - room, high=high + room, start=top + HEIGHT, end=top)
    marks = y.marks(26)
    parts = []
    for value in marks:
        parts.append(line(x.start, y(value), x.end, y(value), "grid"))
        parts.append(text(x.start - 6, y(value) + 4, plain(value, marks), "end quiet"))
    labels: list[tuple[float, float, str, str]] = []
    for trace in track.traces:
        parts.append(_trace(trace, x, y))
        if trace.label and trace.points:
            last = max(trace.points)
            labels.append((x.clipped(last[0]), y(last[1]), trace.label, trace.css))
    taken: list[float] = []
    for px, py, label, css in sorted(labels, key=lambda entry: entry[1]):
        at = py - 7 if py - 18 > top else py + 15
        while any(abs(at - other) < 14 for other in taken):
            at += 14
        taken.append(at)
        parts.append(text(min(px, width - 16), at, label, f"end halo ink-{css}"))
    return parts


def _trace(trace: Trace, x: Scale, y: Scale) -> str:
    if trace.shape == "dots":
        spots = dict.fromkeys((n(x.clipped(t)), n(y(v))) for t, v in trace.points)
        return path("".join(f"M{px} {py}h0" for px, py in spots), f"dots {trace.css}")
    thin = _thinned([(x.clipped(t), y(v)) for t, v in trace.points])
    return path(polyline(thin), f"{trace.shape} {trace.css}")


def _thinned(points: Sequence[Point]) -> list[Point]:
    """At most the first, lowest, highest and last point of every px column."""
    columns: dict[int, list[Point]] = {}
    for point in points:
        columns.setdefault(int(point[0]), []).append(point)
    kept = []
    for found in columns.values():
        ends = (found[0], min(found, key=lambda p: p[1]), max(found, key=lambda p: p[1]), found[-1])
        kept += [p for p in found if p in ends]
    return list(dict.fromkeys(kept))


def _rows(sentence: str, width: int) -> list[str]:
    rows = [""]
    for word in sentence.split():
        if rows[-1] and wide(f"{rows[-1]} {word}") > width - 8:
            rows.append("")
        rows[-1] = f"{rows[-1]} {word}".strip()
    return rows
