"""Streams ``.npy`` files and ``.npz`` members one sample at a time. Nothing is unpickled.

Rows are read, not memory-mapped: pages of a mapping count as resident memory and would grow with the samples.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from edgeopt.calibration.types import ArrayFile
from edgeopt.errors import CalibrationError, did_you_mean

MAX_SAMPLE_BYTES = 1 << 30
"""A single sample larger than this is refused before it is read."""

_SAVE = "Save it again with numpy.save or numpy.savez, as a plain array of numbers."
_MAX_MEMBERS = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Header:
    """Shape and type of a stored array; the first axis counts samples. ``offset`` is where its data begins."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    offset: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one sample."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize


def members(path: Path) -> tuple[str, ...]:
    """Names of the arrays in a ``.npz`` file.

    Raises:
        CalibrationError: not a readable zip archive, or one without arrays.
    """
    file = ArrayFile(path=path)
    with _named_errors(file):
        if not path.stat().st_size:
            raise _empty(file)
        with zipfile.ZipFile(path) as archive:
            names = [info.filename for info in archive.infolist()[:_MAX_MEMBERS]]
    found = tuple(name.removesuffix(".npy") for name in names if name.endswith(".npy"))
    if not found:
        raise CalibrationError(f"{path}: holds no array.", remedy=_SAVE)
    return found


def _empty(file: ArrayFile) -> CalibrationError:
    return CalibrationError(f"{file}: the file is empty.", remedy=_SAVE)


def header(file: ArrayFile) -> Header:
    """Read and check the header of a stored array.

    Raises:
        CalibrationError: unreadable, not an array of numbers, in Fortran order, or its claims and its size disagree.
    """
    with _named_errors(file), _open(file) as (stream, size):
        return _read_header(file, stream, size)


def rows(file: ArrayFile, indices: range) -> Iterator[npt.NDArray[np.generic]]:
    """Yield the samples at ascending ``indices``, each a read-only array of shape ``header(file).shape[1:]``.

    Raises:
        CalibrationError: as :func:`header`; the data is damaged or ends early.
    """
    with _named_errors(file), _open(file) as (stream, size):
        found = _read_header(file, stream, size)
        for index in indices:
            stream.seek(found.offset + index * found.row_bytes)
            data = stream.read(found.row_bytes)
            if len(data) != found.row_bytes:
                raise CalibrationError(f"{file}: ends within sample {index}.", remedy="Copy or write the file again.")
            yield np.frombuffer(data, dtype=found.dtype).reshape(found.shape[1:])


def whole(path: Path) -> npt.NDArray[np.generic]:
    """The array of a ``.npy`` file that is one sample, read-only.

    Raises:
        CalibrationError: as :func:`header`.
    """
    file = ArrayFile(path=path)
    with _named_errors(file), _open(file) as (stream, size):
        found = _read_header(file, stream, size, sample=True)
        data = stream.read(size - found.offset)
        if len(data) != size - found.offset:
            raise CalibrationError(f"{file}: ends early.", remedy="Copy or write the file again.")
        return np.frombuffer(data, dtype=found.dtype).reshape(found.shape)


@contextlib.contextmanager
def _open(file: ArrayFile) -> Iterator[tuple[IO[bytes], int]]:
    """The stream of a stored array and its size in bytes."""
    if file.member is None:
        with file.path.open("rb") as stream:
            yield stream, file.path.stat().st_size
        return
    with zipfile.ZipFile(file.path) as archive:
        try:
            info = archive.getinfo(f"{file.member}.npy")
        except KeyError:
            names = tuple(name.removesuffix(".npy") for name in archive.namelist()[:_MAX_MEMBERS])
            hint = did_you_mean(file.member, names)
            listed = ", ".join(names[:20])
            raise CalibrationError(
                f'{file.path}: holds no array "{file.member}".{hint}', remedy=f"Its arrays: {listed}."
            ) from None
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
            raise CalibrationError(f"{file}: encrypted or compressed in a way that numpy does not write.", remedy=_SAVE)
        with archive.open(info) as member:
            yield member, info.file_size


def _read_header(file: ArrayFile, stream: IO[bytes], size: int, *, sample: bool = False) -> Header:
    """The header, held against the file's ``size``; of many samples, or of one where ``sample`` is set."""
    if not size:
        raise _empty(file)
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
    else:
        raise CalibrationError(f"{file}: array format {version} is not supported.", remedy=_SAVE)
    if dtype.kind not in "biuf":
        raise CalibrationError(f"{file}: holds {dtype}, not numbers.", remedy=_SAVE)
    if (not shape and not sample) or any(dim < 1 for dim in shape):
        raise CalibrationError(f"{file}: empty: its shape is {list(shape)}.", remedy="The first axis counts samples.")
    if fortran and len(shape) > 1:
        raise CalibrationError(f"{file}: stored in Fortran order.", remedy="Save numpy.ascontiguousarray(array).")
    found = Header(shape=tuple(shape), dtype=dtype, offset=stream.tell())
    claimed = found.offset + math.prod(shape) * dtype.itemsize
    if claimed != size:
        raise CalibrationError(
            f"{file}: its header claims {claimed} bytes and it has {size}.", remedy="Copy or write the file again."
        )
    one = size - found.offset if sample else found.row_bytes
    if one > MAX_SAMPLE_BYTES:
        raise CalibrationError(f"{file}: one sample takes {one} bytes, {MAX_SAMPLE_BYTES} at most.")
    return found


@contextlib.contextmanager
def _named_errors(file: ArrayFile) -> Iterator[None]:
    """Turn what numpy, zipfile and zlib raise for a bad file into one error that names it."""
    try:
        yield
    except OSError as problem:
        raise CalibrationError(f"{file}: cannot be read ({problem.strerror or problem}).") from problem
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as problem:
        text = " ".join(str(problem).split())[:200]
        raise CalibrationError(f"{file}: not a readable array file ({text}).", remedy=_SAVE) from problem
