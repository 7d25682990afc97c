"""Files that a command writes with ``-o``: checked before the work, written whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from edgeopt.errors import BenchError

_REMEDY = "Give -o another path."


def check_output(path: Path, family: str) -> None:
    """Refuse what could not be written, or is somebody's file of another kind.

    Args:
        family: the schema that a file there may be replaced for, without its version, such as ``edgeopt.comparison``.

    Raises:
        BenchError: naming the path and why.
    """
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise BenchError(f"{path} cannot be written: it is a folder, or its folder does not exist", remedy=_REMEDY)
    if not os.access(path.absolute().parent, os.W_OK):
        raise BenchError(f"{path} cannot be written: its folder is not writable", remedy=_REMEDY)
    if path.exists() and not _is_ours(path, f'"{family}/'.encode()):
        raise BenchError(f"{path} exists and is something else; it was left alone", remedy=_REMEDY)


def _is_ours(path: Path, mark: bytes) -> bool:
    if not path.is_file():
        return False
    try:
        with path.open("rb") as stream:
            return mark in stream.read(256)
    except OSError as error:
        raise BenchError(f"{path} cannot be read: {error.strerror}", remedy=_REMEDY) from error


def write_whole(path: Path, value: Any) -> None:
    """Write JSON beside its place and move it there.

    Raises:
        BenchError: it cannot be written; what stood there is still there.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(value, allow_nan=False) + "\n", encoding="ascii")
        temporary.replace(path)
    except OSError as error:
        raise BenchError(f"{path} cannot be written: {error.strerror}", remedy=_REMEDY) from error
    finally:
        temporary.unlink(missing_ok=True)
