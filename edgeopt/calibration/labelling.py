"""Class labels of a set: integer arrays, or text with one label a line."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgeopt.calibration import arrays
from edgeopt.calibration.types import DataSet
from edgeopt.errors import CalibrationError

MAX_TEXT_BYTES = 64 << 20
_MAX_LABEL = 1 << 31


def labels(dataset: DataSet) -> npt.NDArray[np.int64] | None:
    """Labels of the samples in use, in their order; None for a set without labels.

    Raises:
        CalibrationError: unreadable, not whole numbers of at least 0, or not one for every stored sample.
    """
    file = dataset.labels
    if file is None:
        return None
    if file.path.suffix in (".csv", ".txt"):
        return _from_text(file.path, dataset)
    found = arrays.header(file)
    if found.dtype.kind not in "iu" or len(found.shape) != 1:
        shape = list(found.shape)
        raise CalibrationError(f"{file}: labels must be a row of integers, got {found.dtype.name}{shape}.")
    _check_count(str(file), found.shape[0], dataset)
    values = np.array([int(row) for row in arrays.rows(file, dataset.indices)], dtype=object)
    return _checked(str(file), values, dataset)


def _from_text(path: Path, dataset: DataSet) -> npt.NDArray[np.int64]:
    """One label a line in the order of the samples, or ``file,label`` lines for a folder of images."""
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise CalibrationError(f"{path}: larger than {MAX_TEXT_BYTES} bytes, not a list of labels.")
        with path.open(encoding="utf-8-sig", newline="") as stream:
            lines = [[cell.strip() for cell in row] for row in csv.reader(stream) if any(row)]
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise CalibrationError(f"{path}: cannot be read as labels ({problem}).") from problem
    if lines and lines[0] in (["file", "label"], ["label"]):
        del lines[0]
    if not lines or any(len(line) != len(lines[0]) or len(line) > 2 for line in lines):
        raise CalibrationError(f"{path}: every line must be a label, or every line file,label.")
    if len(lines[0]) == 2:
        lines = _by_name(path, lines, dataset)
    _check_count(str(path), len(lines), dataset)
    for number, (cell,) in enumerate(lines, start=1):
        if not (cell.isascii() and cell.isdigit() and len(cell) < 12):
            raise CalibrationError(f'{path}: label {number} is "{cell[:40]}", not a whole number.')
    return _checked(str(path), np.array([int(lines[i][0]) for i in dataset.indices], dtype=object), dataset)


def _by_name(path: Path, lines: list[list[str]], dataset: DataSet) -> list[list[str]]:
    """Sort ``file,label`` lines into the order of the set's images."""
    if dataset.images is None:
        raise CalibrationError(f"{path}: file,label lines are for a folder of images; give one label a line.")
    by_name = {name.replace("\\", "/"): label for name, label in lines}
    if len(by_name) != len(lines):
        raise CalibrationError(f"{path}: names a file twice.")
    missing = [name for name in dataset.images.files if name not in by_name]
    if missing:
        raise CalibrationError(f"{path}: has no label for {missing[0]} ({len(missing)} images without label).")
    return [[by_name[name]] for name in dataset.images.files]


def _check_count(where: str, count: int, dataset: DataSet) -> None:
    enough = count == dataset.total or (dataset.kind == "python" and count >= dataset.total)
    if not enough:
        raise CalibrationError(f"{where}: {count} labels for {dataset.total} samples.")


def _checked(where: str, values: npt.NDArray[np.object_], dataset: DataSet) -> npt.NDArray[np.int64]:
    for index, value in zip(dataset.indices, values, strict=True):
        if not 0 <= value < _MAX_LABEL:
            raise CalibrationError(f"{where}: label of sample {index} is {value}; classes are counted from 0.")
    return values.astype(np.int64)
