"""WAV files: a small reader that checks every size, and windows over time.

Read are PCM of 8 (unsigned), 16, 24 and 32 bits, and floats of 32 and 64 bits, plain or as WAVE_FORMAT_EXTENSIBLE
(Microsoft, Multiple Channel Audio Data and WAVE Files). PCM becomes ``value / 2**(bits - 1)``: from -1 up to, and
without, 1.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from edgeopt.calibration.types import Audio
from edgeopt.errors import CalibrationError

MAX_POINTS = 1 << 26
"""Longest window, or file taken as one sample, in points of time."""

MAX_CHANNELS = 64
_MAX_CHUNKS = 1000
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_GUID_TAIL = bytes.fromhex("0000000010008000 00aa00389b71".replace(" ", ""))
_REPAIR = "Write it again as plain PCM or 32-bit float WAV."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """What the header of a file says; ``points`` of time from byte ``offset`` on, ``floats`` or PCM of ``bits``."""

    rate: int
    channels: int
    bits: int
    floats: bool
    offset: int
    points: int

    @property
    def frame_bytes(self) -> int:
        """Bytes of one point of time, all channels."""
        return self.channels * self.bits // 8


def windows_of(audio: Audio, name: str) -> int:
    """How many samples a file gives.

    Raises:
        CalibrationError: unreadable, another rate, more than one channel where one is wanted, or too short.
    """
    path = audio.folder / name
    with _opened(path) as stream:
        found = _header(path, stream)
    if found.rate != audio.rate:
        raise CalibrationError(
            f"{path}: has {found.rate} Hz, and the set states rate = {audio.rate}.",
            remedy="Resample the files beforehand; edgeopt does not.",
        )
    if audio.channels == "mono" and found.channels != 1:
        raise CalibrationError(
            f"{path}: has {found.channels} channels.", remedy='State channels = "mean", "first" or "all".'
        )
    if audio.integer and found.floats:
        raise CalibrationError(f"{path}: holds floats, and the set states integer = true.")
    points = found.points + audio.before
    if not audio.window:
        if points > MAX_POINTS:
            raise CalibrationError(f"{path}: has {points} points, {MAX_POINTS} at most in one sample; state a window.")
        return 1
    full = (points - audio.window) // audio.hop + 1 if points >= audio.window else 0
    covered = (full - 1) * audio.hop + audio.window if full else 0
    if audio.tail == "zero" and max(covered, full * audio.hop) < points:
        full += 1
    if not full:
        raise CalibrationError(
            f"{path}: has {points} points, fewer than a window of {audio.window}.",
            remedy='Remove it, or state tail = "zero".',
        )
    return full


def frames(audio: Audio) -> Iterator[tuple[str, int, npt.NDArray[np.generic]]]:
    """Place, position within its file and values of every window: axes as ``audio.axes`` says.

    float64, or as stored where ``audio.integer``. One window is in memory at a time.

    Raises:
        CalibrationError: a file is damaged or holds NaN.
    """
    for name, count in zip(audio.files, audio.windows, strict=True):
        path = audio.folder / name
        with _opened(path) as stream:
            found = _header(path, stream)
            if windows_of(audio, name) != count:
                raise CalibrationError(f"{path}: was changed while it was read.")
            for index in range(count):
                first = index * audio.hop - audio.before
                size = audio.window or found.points + audio.before
                values = _between(path, stream, found, first, first + size)
                yield f"{path}: window {index}", index, _shaped(values, audio, found)


def _between(path: Path, stream: IO[bytes], found: Format, first: int, last: int) -> npt.NDArray[np.generic]:
    """Stored values of the points from ``first`` to ``last``, ``[points, channels]``; zero outside the file."""
    begin = min(max(first, 0), found.points)
    end = min(max(last, begin), found.points)
    stream.seek(found.offset + begin * found.frame_bytes)
    wanted = (end - begin) * found.frame_bytes
    data = stream.read(wanted)
    if len(data) != wanted:
        raise CalibrationError(f"{path}: ends early.", remedy="Copy the file again.")
    values = _decoded(data, found).reshape(-1, found.channels)
    before = min(begin - first, last - first) if first < 0 else 0
    after = last - first - before - len(values)
    return np.pad(values, ((before, after), (0, 0))) if before or after else values


def _decoded(data: bytes, found: Format) -> npt.NDArray[np.generic]:
    """Signed whole numbers, or floats."""
    if found.floats:
        return np.frombuffer(data, f"<f{found.bits // 8}")
    if found.bits == 8:
        return (np.frombuffer(data, np.uint8).astype(np.int16) - 128).astype(np.int8)
    if found.bits == 24:
        parts = np.frombuffer(data, np.uint8).reshape(-1, 3)
        wide = np.zeros((len(parts), 4), np.uint8)
        wide[:, 1:] = parts
        return np.asarray(wide.reshape(-1).view("<i4") >> 8)
    return np.frombuffer(data, f"<i{found.bits // 8}")


def _shaped(values: npt.NDArray[np.generic], audio: Audio, found: Format) -> npt.NDArray[np.generic]:
    if not audio.integer:
        values = values.astype(np.float64) / (1 if found.floats else 2 ** (found.bits - 1))
    if audio.channels == "mean":
        values = values.mean(axis=1, keepdims=True)
    elif audio.channels == "first":
        values = values[:, :1]
    if audio.axes == "T":
        return values[:, 0]
    return values.T if audio.axes == "CT" else values


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as problem:
        raise CalibrationError(f"{path}: cannot be read ({problem.strerror or problem}).") from problem


def _header(path: Path, stream: IO[bytes]) -> Format:
    """Walk the chunks up to the data; every size is held against the file's.

    Raises:
        CalibrationError: not a WAV file, another encoding, or a size that the file does not have.
    """
    size = path.stat().st_size
    head = stream.read(12)
    if len(head) < 12 or head[:4] != b"RIFF" or head[8:] != b"WAVE":
        raise CalibrationError(f"{path}: is no WAV file.", remedy=_REPAIR)
    layout: tuple[int, int, int, bool] | None = None
    place = 12
    for _ in range(_MAX_CHUNKS):
        stream.seek(place)
        start = stream.read(8)
        if len(start) < 8:
            break
        name, length = start[:4], struct.unpack("<I", start[4:])[0]
        if place + 8 + length > size:
            raise CalibrationError(
                f"{path}: its chunk {name!r} claims {length} bytes and the file has {size - place - 8} more.",
                remedy="Copy or write the file again.",
            )
        if name == b"fmt ":
            layout = _layout(path, stream.read(min(length, 40)))
        elif name == b"data":
            if layout is None:
                raise CalibrationError(f"{path}: its data come before its format.", remedy=_REPAIR)
            return _checked(path, layout, place + 8, length)
        place += 8 + length + length % 2
    raise CalibrationError(f"{path}: holds no data.", remedy=_REPAIR)


def _layout(path: Path, data: bytes) -> tuple[int, int, int, bool]:
    """Rate, channels, bits and whether they are floats."""
    if len(data) < 16:
        raise CalibrationError(f"{path}: its format has {len(data)} bytes, 16 are needed.", remedy=_REPAIR)
    tag, channels, rate, _, align, bits = struct.unpack("<HHIIHH", data[:16])
    if tag == _EXTENSIBLE and len(data) >= 40 and data[26:40] == _GUID_TAIL:
        valid, tag = struct.unpack("<H", data[18:20])[0], struct.unpack("<H", data[24:26])[0]
        if valid not in (0, bits):
            raise CalibrationError(f"{path}: {valid} valid bits in {bits}.", remedy=_REPAIR)
    good = (tag == _PCM and bits in (8, 16, 24, 32)) or (tag == _FLOAT and bits in (32, 64))
    if not good:
        raise CalibrationError(f"{path}: encoding {tag} with {bits} bits is not read.", remedy=_REPAIR)
    if not 1 <= channels <= MAX_CHANNELS or align != channels * bits // 8 or not rate:
        got = f"{channels} channels of {bits} bits in blocks of {align} bytes at {rate} Hz"
        raise CalibrationError(f"{path}: its format contradicts itself: {got}.", remedy=_REPAIR)
    return rate, channels, bits, tag == _FLOAT


def _checked(path: Path, layout: tuple[int, int, int, bool], offset: int, length: int) -> Format:
    rate, channels, bits, floats = layout
    points, rest = divmod(length, channels * bits // 8)
    if rest or not points:
        raise CalibrationError(
            f"{path}: {length} bytes of data are {'no' if rest else 'not one'} whole number of points.",
            remedy="Copy or write the file again.",
        )
    return Format(rate=rate, channels=channels, bits=bits, floats=floats, offset=offset, points=points)
