"""Names and text files of a bundle: what a file may be called, how hashes are listed, how JSON is read and written."""

from __future__ import annotations

import json
import os
import re
import stat
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from edgeopt.errors import BundleError

SCHEMA = "edgeopt.bundle/1"
MANIFEST = "manifest.json"
SUMS = "SHA256SUMS"
RECORDS = "RECORDS.sha256"

_MAX_NAME_BYTES = 255
_MAX_PATH_BYTES = 1024
_MAX_TEXT_BYTES = 16 << 20
_SUM_LINE = re.compile(r"(?P<sha256>[0-9a-f]{64}) [ *](?P<path>.+)")
_FORBIDDEN = re.compile(r'[\\:*?"<>|]')
"""Characters that a common file system or the format of ``sha256sum`` treats as special."""


def canonical(value: object) -> bytes:
    """JSON with sorted keys, no spaces, in UTF-8. Raises ValueError for NaN, infinity and text that is not Unicode."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def safe_name(text: str) -> str:
    """Turn any text into a name for a model and its files: letters, digits and ``._+-``, at most 80 bytes."""
    clean = unicodedata.normalize("NFC", text.encode("utf-8", "replace").decode())
    clean = re.sub(r"[^\w.+-]+", "-", clean).encode()[:80].decode("utf-8", "ignore")
    return clean.strip(".-") or "model"


def check_name(name: str) -> None:
    """Refuse a path that is not plain, relative and POSIX, or that some file system cannot hold. Raises BundleError."""
    fault = _fault(name)
    if fault:
        raise BundleError(
            f"the path {name!r} {fault}", remedy="Paths in a bundle are relative and stay inside its folder."
        )


def _fault(name: str) -> str | None:
    if not name or name.startswith("/"):
        return "is not relative"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if size > _MAX_PATH_BYTES:
        return f"is longer than {_MAX_PATH_BYTES} bytes"
    if _FORBIDDEN.search(name) or not name.isprintable():
        return "holds a character that some file system or tool treats as special"
    for part in name.split("/"):
        if part in ("", ".", ".."):
            return "leaves its folder or is not in its shortest form"
        if part != part.strip() or part.endswith("."):
            return "has a part that starts or ends with a space, or ends with a dot"
        if len(part.encode()) > _MAX_NAME_BYTES:
            return f"has a part longer than {_MAX_NAME_BYTES} bytes"
    return None


def check_names(names: Iterable[str]) -> None:
    """Refuse names that cannot all exist together, whether or not the file system folds case. Raises BundleError."""
    spelled: dict[str, str] = {}
    files: set[str] = set()
    folders: set[str] = set()
    for name in names:
        check_name(name)
        parts = name.split("/")
        for depth in range(1, len(parts) + 1):
            prefix = "/".join(parts[:depth])
            folded = unicodedata.normalize("NFC", prefix).casefold()
            if spelled.setdefault(folded, prefix) != prefix or (depth == len(parts) and folded in files):
                raise BundleError(f"the paths {spelled[folded]!r} and {prefix!r} are the same on some file systems")
            (files if depth == len(parts) else folders).add(folded)
    if files & folders:
        raise BundleError(f"{spelled[min(files & folders)]!r} is both a file and a folder")


def sums_text(sums: Mapping[str, str]) -> bytes:
    """Lines for ``sha256sum -c``, sorted by path. ``check_name`` refuses the names that would need an escape."""
    return "".join(f"{sums[path]}  {path}\n" for path in sorted(sums)).encode()


def parse_sums(text: str, source: str) -> dict[str, str]:
    """Read what ``sums_text`` wrote. Raises BundleError naming ``source`` and the line."""
    sums: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _SUM_LINE.fullmatch(line)
        if match is None or match["path"] in sums:
            raise BundleError(f"{source}: line {number} is not 'sha256  path', or names a path again")
        sums[match["path"]] = match["sha256"]
    check_names(sums)
    return sums


def read_text(path: Path) -> str:
    """Read a UTF-8 file of a bundle, at most 16 MiB. Links, devices and pipes are refused. Raises BundleError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise BundleError(f"{path.name} is not a regular file")
            if status.st_size > _MAX_TEXT_BYTES:
                raise BundleError(f"{path.name} is larger than {_MAX_TEXT_BYTES >> 20} MiB")
            return stream.read(_MAX_TEXT_BYTES).decode()
    except FileNotFoundError as error:
        raise BundleError(f"{path.name} is missing") from error
    except OSError as error:
        raise BundleError(f"{path.name} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BundleError(f"{path.name} is not UTF-8") from error


def load_json(text: str, source: str) -> Any:
    """Parse JSON; repeated keys, NaN, infinity and endless nesting are errors. Raises BundleError naming ``source``."""
    try:
        return json.loads(text, object_pairs_hook=_distinct, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise BundleError(f"{source} is not valid JSON: {reason}") from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key is given twice")
    return result


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")
