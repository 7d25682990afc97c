"""The metric of a set, ready to judge: its charset and pairs read, its functions imported."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from edgeopt import metrics
from edgeopt.calibration.stream import import_function
from edgeopt.calibration.types import DataSet
from edgeopt.errors import CalibrationError
from edgeopt.metrics import Pair, Scorer

MAX_BYTES = 64 << 20
MAX_CLASSES = 1 << 20


def scorer(dataset: DataSet) -> Scorer | None:
    """The set's metric; None for a set without one. Runs the user's module where the metric is a function of theirs.

    Raises:
        CalibrationError: a file of the metric or its function cannot be used.
    """
    spec = dataset.metric
    if spec is None:
        return None
    own = ":" in spec.name
    return metrics.scorer(
        spec,
        charset=None if dataset.charset is None else read_charset(dataset.charset),
        pairs=None if dataset.pairs is None else read_pairs(dataset.pairs, dataset),
        samples=dataset.count,
        function=import_function(dataset, "metric", spec.name) if own else None,
        score=import_function(dataset, "score", score) if own and (score := spec.params.get("score")) else None,
    )


def read_charset(path: Path) -> list[str]:
    """Text of every class, one a line; a line of spaces is a class too.

    Raises:
        CalibrationError: unreadable, empty, or a class that is there twice or has no text.
    """
    text = _text(path)
    found = (text[:-1] if text.endswith("\n") else text).split("\n")
    found = [line.removesuffix("\r") for line in found]
    if not 1 <= len(found) <= MAX_CLASSES or "" in found:
        number = found.index("") + 1 if "" in found else 0
        what = f"line {number} is empty" if number else f"{len(found)} classes, {MAX_CLASSES} at most"
        raise CalibrationError(f"{path}: {what}.", remedy="One class a line, without the blank.")
    if len(set(found)) != len(found):
        twice = next(a for i, a in enumerate(found) if a in found[:i])
        raise CalibrationError(f'{path}: "{twice}" is there twice.')
    return found


def read_pairs(path: Path, dataset: DataSet) -> list[Pair]:
    """Lines ``i,j,score``: positions among the stored samples, from 0, as positions among those in use.

    Pairs with a sample that is not in use are left out.

    Raises:
        CalibrationError: unreadable, a line that is no pair, or no pair left.
    """
    place = {index: position for position, index in enumerate(dataset.indices)}
    try:
        rows = [row for row in csv.reader(_text(path).splitlines()) if any(row)]
    except csv.Error as problem:
        raise CalibrationError(f"{path}: cannot be read as pairs ({problem}).") from problem
    if rows and [cell.strip() for cell in rows[0]] == ["i", "j", "score"]:
        del rows[0]
    found = []
    for number, row in enumerate(rows, start=1):
        cells = [cell.strip() for cell in row]
        whole = len(cells) == 3 and all(c.isascii() and c.isdigit() and len(c) < 12 for c in cells[:2])
        score = _number(cells[2]) if whole else math.nan
        if not whole or not math.isfinite(score):
            raise CalibrationError(f"{path}: pair {number} is {','.join(cells)[:60]!r}, wanted i,j,score.")
        i, j = int(cells[0]), int(cells[1])
        if max(i, j) >= dataset.total:
            raise CalibrationError(f"{path}: pair {number} names sample {max(i, j)}, and there are {dataset.total}.")
        if i in place and j in place:
            found.append(Pair(place[i], place[j], score))
    if len(found) < 2:
        raise CalibrationError(f"{path}: {len(found)} pairs of samples in use; two or more are needed.")
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CalibrationError(f"{path}: larger than {MAX_BYTES} bytes.")
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        raise CalibrationError(f"{path}: cannot be read ({problem}).") from problem
