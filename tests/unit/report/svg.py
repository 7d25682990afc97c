"""Reads charts back: every element finite and inside its view box, no label on another."""

from __future__ import annotations

import itertools
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator

CHARACTER, ASCENT, DESCENT = 6.4, 9.0, 2.5
Box = tuple[float, float, float, float]


def charts(page: str) -> list[ET.Element]:
    return [ET.fromstring(found) for found in re.findall(r"<svg.*?</svg>", page, flags=re.S)]


def texts(chart: ET.Element, css: str) -> list[ET.Element]:
    """Labels of exactly this class."""
    return [text for text in chart.iter("text") if text.get("class") == css]


def lines(chart: ET.Element, css: str) -> list[Box]:
    """Ends of the lines that have this class among theirs: x1, y1, x2, y2."""
    found = [line for line in chart.iter("line") if css in (line.get("class") or "").split()]
    return [tuple(float(line.get(k) or 0) for k in ("x1", "y1", "x2", "y2")) for line in found]  # type: ignore[misc]


def points(path: ET.Element) -> list[tuple[float, float]]:
    """Points of a path of straight lines."""
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", path.get("d") or "")]


def axis(chart: ET.Element) -> Callable[[float], float]:
    """px to values, read from the marks of a linear x axis."""
    marks = [(float(mark.get("x1") or 0), mark) for mark in chart.iter("line") if _is_mark(mark)]
    labels = sorted(texts(chart, "mid quiet"), key=lambda t: float(t.get("x") or 0))
    named = [t for t in labels if re.fullmatch(r"-?[\d.]+( \S+)?", t.text or "")]
    places = sorted(x for x, _ in marks)
    values = [float((t.text or "").split()[0]) for t in named]
    (x1, x2), (v1, v2) = (places[0], places[-1]), (values[0], values[-1])
    return lambda x: v1 + (x - x1) * (v2 - v1) / (x2 - x1)


def _is_mark(line: ET.Element) -> bool:
    upright = line.get("x1") == line.get("x2")
    return line.get("class") == "axis" and upright


def faults(chart: ET.Element) -> Iterator[str]:
    """What is wrong with a chart, in words."""
    _, _, width, height = (float(v) for v in (chart.get("viewBox") or "").split())
    for element in chart.iter():
        for name, value in element.attrib.items():
            if name in ("class", "role", "aria-label", "viewBox"):
                continue
            for number in re.findall(r"-?(?:nan|inf|[\d.]+)", value, flags=re.I):
                if not math.isfinite(float(number)) or len(number.partition(".")[2]) > 1:
                    yield f"{element.tag} {name}={value[:40]}"
        if element.tag == "rect":
            x, y, w, h = (float(element.get(k) or 0) for k in ("x", "y", "width", "height"))
            if w < 0 or h < 0 or x < 0 or y < -0.1 or x + w > width + 0.1 or y + h > height + 0.1:
                yield f"rect outside: {element.attrib}"
    boxes = [(text.text or "", box_of(text)) for text in chart.iter("text")]
    for label, (left, top, right, bottom) in boxes:
        if left < -1 or right > width + 1 or top < -1 or bottom > height + 1:
            yield f"label cut off: {label!r} at {left:.0f}, {top:.0f} to {right:.0f}, {bottom:.0f}"
    for (a, box_a), (b, box_b) in itertools.combinations(boxes, 2):
        if overlap(box_a, box_b):
            yield f"labels overlap: {a!r} and {b!r}"


def box_of(text: ET.Element) -> Box:
    x, y = float(text.get("x") or 0), float(text.get("y") or 0)
    wide = len(text.text or "") * CHARACTER
    css = (text.get("class") or "").split()
    left = x - wide / 2 if "mid" in css else x - wide if "end" in css else x
    return left, y - ASCENT, left + wide, y + DESCENT


def overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
