"""Folders with one array a file: ``.npy``, or bytes alone as cameras and signal processors write them."""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt

from edgeopt.calibration import arrays
from edgeopt.calibration.types import Folder, Source
from edgeopt.errors import CalibrationError

MAX_SKIP = 1 << 20
"""Longest header, in bytes, that may stand before the array."""


def stem(name: str) -> str:
    """Name of a sample: its file's relative path without suffix."""
    return PurePosixPath(name).with_suffix("").as_posix()


def stems(source: Source) -> list[str]:
    """Names of the samples in order."""
    assert source.folder is not None
    return [stem(name) for name in source.folder.files]


def read(folder: Folder, index: int) -> tuple[str, npt.NDArray[np.generic]]:
    """Path and array of one sample.

    Raises:
        CalibrationError: unreadable, or its size is not what its header or the description says.
    """
    path = folder.folder / folder.files[index]
    if folder.dtype is None:
        return str(path), arrays.whole(path)
    return str(path), _plain(path, folder, np.dtype(folder.dtype))


def _plain(path: Path, folder: Folder, dtype: np.dtype[np.generic]) -> npt.NDArray[np.generic]:
    fixed = math.prod(n for n in folder.shape if n != -1) * dtype.itemsize
    try:
        size = path.stat().st_size
        body = size - folder.skip
        fits = body > 0 and (body % fixed == 0 if -1 in folder.shape else body == fixed)
        if not fits:
            shown = f"{dtype.name}{list(folder.shape)}"
            more = f" after {folder.skip} bytes" if folder.skip else ""
            wanted = f"a multiple of {fixed}" if -1 in folder.shape else str(fixed)
            raise CalibrationError(
                f"{path}: has {size} bytes; {shown}{more} takes {wanted}.",
                remedy="Correct dtype, shape or skip, or remove the file.",
            )
        if body > arrays.MAX_SAMPLE_BYTES:
            raise CalibrationError(f"{path}: one sample takes {body} bytes, {arrays.MAX_SAMPLE_BYTES} at most.")
        with path.open("rb") as stream:
            stream.seek(folder.skip)
            data = stream.read(body)
    except OSError as problem:
        raise CalibrationError(f"{path}: cannot be read ({problem.strerror or problem}).") from problem
    if len(data) != body:
        raise CalibrationError(f"{path}: ends early.", remedy="Copy the file again.")
    return np.frombuffer(data, dtype).reshape(folder.shape)
