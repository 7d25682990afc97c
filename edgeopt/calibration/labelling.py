"""Labels of a set, one a sample, and the groups that samples belong to."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt

from edgeopt.calibration import arrays, tokens
from edgeopt.calibration.finish import label_name
from edgeopt.calibration.types import ArrayFile, DataSet
from edgeopt.errors import CalibrationError
from edgeopt.metrics import Label

MAX_TEXT_BYTES = 64 << 20
_MAX_LABEL = 1 << 31


def labels(dataset: DataSet) -> npt.NDArray[np.int64] | None:
    """Class labels of the samples in use, in their order; None for a set without them.

    Raises:
        CalibrationError: unreadable, not whole numbers of at least 0, or not one for every stored sample.
    """
    if dataset.labels is None or dataset.metric is None or dataset.metric.labels != "class":
        return None
    file = dataset.labels.file
    if file is None:
        found = [_checked_class(where, value) for where, value in _others(dataset)]
        return np.array(found, np.int64)
    if file.path.suffix in (".csv", ".txt"):
        cells = _cells(file.path, dataset, "label")
        for number, cell in enumerate(cells, start=1):
            if not (cell.isascii() and cell.isdigit() and len(cell) < 12):
                raise CalibrationError(f'{file.path}: label {number} is "{cell[:40]}", not a whole number.')
        values = [int(cell) for cell in _used(cells, dataset)]
        return _checked(str(file.path), values, dataset)
    found_header = arrays.header(file)
    if found_header.dtype.kind not in "iu" or len(found_header.shape) != 1:
        shape = list(found_header.shape)
        raise CalibrationError(f"{file}: labels must be a row of integers, got {found_header.dtype.name}{shape}.")
    return _checked(str(file), [int(row) for row in _rows(file, dataset)], dataset)


def targets(dataset: DataSet) -> Iterator[Label] | None:
    """Labels of the samples in use as the metric takes them, one at a time; None for a set without labels.

    Raises:
        CalibrationError: at the call or on the way: a label that the metric cannot take, or none for a sample.
    """
    if dataset.labels is None or dataset.metric is None:
        return None
    if dataset.metric.labels == "class":
        found = labels(dataset)
        assert found is not None
        return (int(value) for value in found)
    return _other_targets(dataset)


def _other_targets(dataset: DataSet) -> Iterator[Label]:
    assert dataset.metric is not None
    wanted = dataset.metric.labels
    for where, value in _others(dataset):
        if wanted == "number" and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise CalibrationError(f"{where}: is {value!r:.40}, wanted a number.")
        if wanted == "text" and not isinstance(value, str | tuple):
            raise CalibrationError(f"{where}: is {value!r:.40}, wanted a text or a list of whole numbers.")
        if wanted == "map" and not isinstance(value, np.ndarray):
            raise CalibrationError(f"{where}: is {value!r:.40}, wanted a map of classes.")
        number = np.asarray(0 if isinstance(value, str | tuple) else value)
        if number.dtype.kind == "f" and not np.isfinite(number).all():
            raise CalibrationError(f"{where}: holds NaN or infinity.")
        yield value


def _others(dataset: DataSet) -> Iterator[tuple[str, Label]]:
    """Place and label, of whatever type is stored, of every sample in use."""
    found = dataset.labels
    assert found is not None
    if found.key is not None:
        assert dataset.tokens is not None
        for where, line in tokens.objects(dataset.tokens.file, dataset.indices):
            yield f'{where}, label "{found.key}"', _from_json(line, found.key, where)
    elif found.folder is not None:
        yield from _from_folder(found.folder, dataset)
    elif found.file is not None and found.file.path.suffix in (".csv", ".txt"):
        text = dataset.metric is not None and dataset.metric.labels == "text"
        cells = _cells(found.file.path, dataset, "label", lines=text and found.file.path.suffix == ".txt")
        for number, cell in enumerate(_used(cells, dataset)):
            yield f"{found.file.path}: label of sample {number}", cell if text else _number_or_text(cell)
    elif found.file is not None:
        for number, row in enumerate(_rows(found.file, dataset)):
            yield f"{found.file}: label of sample {number}", row.item() if row.ndim == 0 else row


def _from_json(line: dict[str, object], key: str, where: str) -> Label:
    if key not in line:
        raise CalibrationError(f'{where}: has no label "{key}".')
    value = line[key]
    if isinstance(value, list) and all(type(item) is int for item in value):
        return tuple(value)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise CalibrationError(f'{where}: label "{key}" is {value!r:.40}, wanted a number, a text or whole numbers.')
    return value


def _from_folder(folder: Path, dataset: DataSet) -> Iterator[tuple[str, Label]]:
    """One array a stored file; for sound its rows are the windows."""
    root = folder.resolve()
    indices = range(len(dataset.stored)) if dataset.audio is not None else dataset.indices
    for index in indices:
        path = folder / label_name(dataset.stored[index])
        if not path.resolve().is_relative_to(root):
            raise CalibrationError(f"{path}: is a link that leads out of {folder}.", remedy="Copy the file into it.")
        value = arrays.whole(path)
        if dataset.audio is None:
            yield str(path), value.item() if value.ndim == 0 else value
            continue
        if value.ndim == 0 or len(value) != dataset.audio.windows[index]:
            windows = dataset.audio.windows[index]
            raise CalibrationError(f"{path}: has the shape {list(value.shape)}, wanted a label for {windows} windows.")
        for number, row in enumerate(value):
            yield f"{path}: window {number}", row.item() if value.ndim == 1 else row


def _rows(file: ArrayFile, dataset: DataSet) -> Iterator[npt.NDArray[np.generic]]:
    count = arrays.header(file).shape[0]
    _check_count(str(file), count, dataset)
    return arrays.rows(file, dataset.indices)


def _cells(path: Path, dataset: DataSet, word: str, *, lines: bool = False) -> list[str]:
    """One cell for every stored sample, in order.

    Args:
        word: what a cell is; the second word of a header line.
        lines: every line is a cell as it stands, commas included.
    """
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise CalibrationError(f"{path}: larger than {MAX_TEXT_BYTES} bytes, not a list of labels.")
        with path.open(encoding="utf-8-sig", newline="") as stream:
            if lines:
                found = [[line.rstrip("\r\n")] for line in stream if line.strip()]
            else:
                found = [[cell.strip() for cell in row] for row in csv.reader(stream) if any(row)]
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise CalibrationError(f"{path}: cannot be read as {word}s ({problem}).") from problem
    if found and found[0] in (["file", word], [word]):
        del found[0]
    if not found or any(len(line) != len(found[0]) or len(line) > 2 for line in found):
        raise CalibrationError(f"{path}: every line must be a {word}, or every line file,{word}.")
    if len(found[0]) == 2:
        found = _by_name(path, found, dataset, word)
    elif dataset.audio is not None:
        raise CalibrationError(f"{path}: for sound every line must be file,{word}.")
    if dataset.audio is None:
        _check_count(str(path), len(found), dataset)
    return [cell for (cell,) in found]


def _used(cells: list[str], dataset: DataSet) -> Iterator[str]:
    """The cell of every sample in use; that of a recording for each of its windows."""
    if dataset.audio is None:
        return (cells[index] for index in dataset.indices)
    return (cell for cell, windows in zip(cells, dataset.audio.windows, strict=True) for _ in range(windows))


def _by_name(path: Path, lines: list[list[str]], dataset: DataSet, word: str) -> list[list[str]]:
    """Sort ``file,label`` lines into the order of the set's files."""
    if not dataset.stored:
        raise CalibrationError(
            f"{path}: file,{word} lines are for a folder of images or other files; give one {word} a line."
        )
    by_name = {name.replace("\\", "/"): label for name, label in lines}
    if len(by_name) != len(lines):
        raise CalibrationError(f"{path}: names a file twice.")
    missing = [name for name in dataset.stored if name not in by_name]
    if missing:
        what = "images" if dataset.images is not None else "files"
        raise CalibrationError(f"{path}: has no {word} for {missing[0]} ({len(missing)} {what} without {word}).")
    return [[by_name[name]] for name in dataset.stored]


def _check_count(where: str, count: int, dataset: DataSet) -> None:
    enough = count == dataset.total or (dataset.kind == "python" and count >= dataset.total)
    if not enough:
        raise CalibrationError(f"{where}: {count} labels for {dataset.total} samples.")


def _checked(where: str, values: list[int], dataset: DataSet) -> npt.NDArray[np.int64]:
    for index, value in zip(dataset.indices, values, strict=True):
        if not 0 <= value < _MAX_LABEL:
            raise CalibrationError(f"{where}: label of sample {index} is {value}; classes are counted from 0.")
    return np.array(values, np.int64)


def _checked_class(where: str, value: Label) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MAX_LABEL:
        raise CalibrationError(f"{where}: is {value!r:.40}, wanted a class, counted from 0.")
    return value


def _number_or_text(cell: str) -> Label:
    try:
        found = float(cell)
    except ValueError:
        return cell
    return int(found) if math.isfinite(found) and found.is_integer() and abs(found) < 1 << 53 else found


def groups(dataset: DataSet) -> npt.NDArray[np.int64] | None:
    """Number of the group of every sample in use; None where each stands alone.

    Raises:
        CalibrationError: the file of groups is unreadable or does not name one for every stored sample.
    """
    wanted = dataset.groups
    if dataset.audio is not None:
        names = [PurePosixPath(name).parent.as_posix() if wanted else name for name in dataset.audio.files]
        return _numbered([name for name, n in zip(names, dataset.audio.windows, strict=True) for _ in range(n)])
    if wanted is None:
        return None
    if wanted.every:
        return np.array([index // wanted.every for index in dataset.indices], np.int64)
    if wanted.folder:
        return _numbered([PurePosixPath(dataset.stored[i]).parent.as_posix() for i in dataset.indices])
    assert wanted.file is not None
    return _numbered(list(_used(_cells(wanted.file, dataset, "group"), dataset)))


def _numbered(names: list[str]) -> npt.NDArray[np.int64]:
    known: dict[str, int] = {}
    return np.array([known.setdefault(name, len(known)) for name in names], np.int64)
