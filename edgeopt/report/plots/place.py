"""Where a label can stand: the nearest place to its point that touches nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

Box = tuple[float, float, float, float]
"""Left, top, right, bottom in px."""

ASCENT, DESCENT = 10.0, 3.0
"""How far a line of the chart font reaches above and below its baseline, in px."""

_GAP = 8.0
_STEP = 6.0


def touch(a: Box, b: Box, gap: float = 2.0) -> bool:
    """Whether two boxes overlap or are closer than ``gap``."""
    return a[0] < b[2] + gap and b[0] < a[2] + gap and a[1] < b[3] + gap and b[1] < a[3] + gap


def place(
    x: float,
    y: float,
    wide: float,
    *,
    bounds: Box,
    taken: Sequence[Box],
    blocked: Callable[[Box], bool] = lambda box: False,
) -> Box | None:
    """The box of a label of ``wide`` px beside the point (x, y), the nearest one that is free; None for none.

    Args:
        bounds: where it must lie.
        taken: other labels and marks.
        blocked: whether a box lies on something else, such as a curve.
    """
    for left, base in sorted(_spots(x, y, wide, bounds), key=lambda spot: _far(spot, x, y, wide)):
        box = (left, base - ASCENT, left + wide, base + DESCENT)
        inside = box[0] >= bounds[0] and box[1] >= bounds[1] and box[2] <= bounds[2] and box[3] <= bounds[3]
        if inside and not any(touch(box, other) for other in taken) and not blocked(box):
            return box
    return None


def _spots(x: float, y: float, wide: float, bounds: Box) -> Iterator[tuple[float, float]]:
    rows = int((bounds[3] - bounds[1]) / _STEP) + 1
    for row in range(-rows, rows + 1):
        base = y + 4 + row * _STEP
        for away in range(20):
            yield x + _GAP + away * _STEP, base
            yield x - _GAP - wide - away * _STEP, base
        yield x - wide / 2, base


def _far(spot: tuple[float, float], x: float, y: float, wide: float) -> float:
    """Distance of the point to the label's box, upright ones a little dearer; the right side wins a tie."""
    left, base = spot
    across = max(left - x, x - left - wide, 0.0)
    up = abs(base - 4 - y)
    return across + 1.2 * up + (0.1 if left < x else 0.0)


def leader(x: float, y: float, box: Box) -> tuple[float, float, float, float] | None:
    """A line from the point to the nearest edge of its label, where that is not beside it: x1, y1, x2, y2."""
    to_x, to_y = min(max(x, box[0]), box[2]), min(max(y, box[1]), box[3])
    across, up = to_x - x, to_y - y
    length = (across * across + up * up) ** 0.5
    if length < 1.6 * _GAP:
        return None
    cut = 5 / length
    return x + across * cut, y + up * cut, to_x - across * 2 / length, to_y - up * 2 / length
