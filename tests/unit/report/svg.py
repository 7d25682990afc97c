"""Reads charts back: every element finite and inside its view box, no label on another."""

from __future__ import annotations

import itertools
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator

CHARACTER, ASCENT, DESCENT = 6.4, 9.0, 2.5
Box = tuple[float, float, float, float]


def charts(page: str) -> list[ET.Element]:
    return [ET.fromstring(found) for found in re.findall(r"<svg.*?</svg>", page, flags=re.S)]


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
