"""JSON lines of token numbers: ``{"input_ids": [101, 2023, 102]}`` a line. There is no tokenizer here.

Lines are hostile: bounded in bytes before they are parsed, and in numbers after.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeopt.calibration.types import Tokens, Transform
from edgeopt.errors import CalibrationError
from edgeopt.model import TensorSpec

MAX_LINE_BYTES = 4 << 20
MAX_TOKENS = 1 << 17
AS_STORED = Transform(cast=True)
"""Whole numbers become the model's type; one that does not hold them is refused."""


def count(path: Path) -> int:
    """How many lines hold something.

    Raises:
        CalibrationError: unreadable, empty, or a line that is too long.
    """
    found = sum(1 for _ in _lines(path))
    if not found:
        raise CalibrationError(f"{path}: is empty.", remedy="One JSON object a line.")
    return found


def objects(path: Path, indices: range) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place and object of the lines at ascending ``indices``; empty lines count as none.

    Raises:
        CalibrationError: a line is no JSON object.
    """
    wanted = iter(indices)
    following = next(wanted, None)
    for index, (number, line) in enumerate(_lines(path)):
        if following is None:
            return
        if index != following:
            continue
        following = next(wanted, None)
        where = f"{path}: line {number}"
        try:
            found = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except (UnicodeDecodeError, ValueError, RecursionError) as problem:
            text = " ".join(str(problem).split())[:100]
            raise CalibrationError(f"{where}: is no JSON ({text}).", remedy="One JSON object a line.") from problem
        if not isinstance(found, dict):
            raise CalibrationError(f"{where}: is a {type(found).__name__}, wanted an object.")
        yield where, found
    if following is not None:
        raise CalibrationError(f"{path}: ends before sample {following}; it was changed while it was read.")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number, from 1, and bytes of every line that is not blank; one at a time."""
    number = 0
    try:
        with path.open("rb") as stream:
            while line := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise CalibrationError(f"{path}: line {number} has more than {MAX_LINE_BYTES} bytes.")
                if line.strip():
                    yield number, line
    except OSError as problem:
        raise CalibrationError(f"{path}: cannot be read ({problem.strerror or problem}).") from problem


def rows(
    tokens: Tokens, inputs: tuple[TensorSpec, ...], indices: range
) -> Iterator[tuple[str, dict[str, npt.NDArray[np.generic]]]]:
    """Place, and the padded numbers of every input by name, ``int64[1, length]``.

    Raises:
        CalibrationError: not lists of whole numbers, lists of unlike length, or longer than they may be.
    """
    size = tokens.length or _fixed_length(tokens, inputs)
    for where, found in objects(tokens.file, indices):
        lists = {entry.key: _numbers(found, entry.key, where) for entry in tokens.inputs if not entry.mask}
        lengths = {key: len(values) for key, values in lists.items()}
        if len(set(lengths.values())) != 1:
            told = ", ".join(f"{key}: {n}" for key, n in lengths.items())
            raise CalibrationError(f"{where}: lists of unlike length ({told}).")
        used = next(iter(lengths.values()))
        if size and used > size:
            if not tokens.truncate:
                raise CalibrationError(
                    f"{where}: has {used} numbers, {size} at most.",
                    remedy="State truncate = true to cut lines, or raise length where the model allows it.",
                )
            used = size
        padded = size or (-(-used // tokens.multiple) * tokens.multiple if tokens.multiple else used)
        feed: dict[str, npt.NDArray[np.generic]] = {}
        for entry in tokens.inputs:
            value = np.full((1, padded), 0 if entry.mask else entry.pad, np.int64)
            value[0, :used] = 1 if entry.mask else lists[entry.key][:used]
            feed[entry.name] = value
        yield where, feed


def _fixed_length(tokens: Tokens, inputs: tuple[TensorSpec, ...]) -> int:
    """The length that the model takes, where that is one number; else 0."""
    names = {entry.name for entry in tokens.inputs}
    fixed = {spec.shape[-1] for spec in inputs if spec.name in names and len(spec.shape) == 2}
    found = next(iter(fixed)) if len(fixed) == 1 else 0
    return found if isinstance(found, int) else 0


def _numbers(line: dict[str, Any], key: str, where: str) -> list[int]:
    if key not in line:
        known = ", ".join(list(line)[:10])
        raise CalibrationError(f'{where}: has no "{key}" (it has {known[:200] or "nothing"}).')
    values = line[key]
    if not isinstance(values, list) or not values or len(values) > MAX_TOKENS:
        got = f"{len(values)} values" if isinstance(values, list) else type(values).__name__
        raise CalibrationError(f'{where}: "{key}" is {got}, wanted a list of 1 to {MAX_TOKENS} whole numbers.')
    for place, value in enumerate(values):
        if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
            raise CalibrationError(f'{where}: "{key}" holds {value!r:.40} at {place}, wanted a whole number.')
    return values
