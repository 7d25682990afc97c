"""What a build found out, kept in a folder while it runs: a build that was killed goes on from there.

An entry is a value under a key; the name of its file is the digest of the key, and the key covers everything that can
change the value: what it was made from, and the code, releases and processor that made it (see ``keys``). So an entry
is never out of date. It is another key's, and is not found. Files are written beside their place and renamed, and end
with a digest of all that is in them: one that is cut off, damaged or misnamed is removed and its value made again.

Values are plain ones, arrays and edgeopt's own dataclasses. Nothing in a file is run as code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

from edgeopt.bundle import canonical
from edgeopt.bundle.destination import locate
from edgeopt.errors import BundleError
from edgeopt.pipeline import values

T = TypeVar("T")

LIMIT = 512_000_000
"""Bytes of all entries, and never more than a tenth of what is free on the disk; what goes beyond is not kept."""

MARKER = "EDGEOPT-JOURNAL"
"""File that makes a folder ours. The build that uses the folder holds a lock on it."""

_SIGNATURE = b"edgeopt.journal/1\n"
_ENTRY, _NEW = ".entry", ".new"
_NOT_FOUND = object()


@dataclasses.dataclass(kw_only=True)
class Journal:
    """Entries in ``folder``; None keeps nothing and finds nothing.

    Attributes:
        base: digest of what every key covers.
        scope: digest of the step that is tried and of all before it, for what follows from them.
        room: bytes that may still be written.
        held: entries that an earlier build left.
        found: entries that were found.
    """

    folder: Path | None = None
    base: str = ""
    scope: str = ""
    room: int = LIMIT
    held: int = 0
    found: int = 0

    def name(self, kind: str, key: object) -> str:
        """The digest that stands for a key of plain JSON values."""
        return hashlib.sha256(canonical([self.base, kind, key])).hexdigest()

    def recall(self, kind: str, key: object, missing: object = None) -> Any:
        """The value of a key, or ``missing``. An entry that is not whole is removed."""
        if self.folder is None:
            return missing
        name = self.name(kind, key)
        path = self.folder / f"{name}{_ENTRY}"
        try:
            value = values.unpack(_read(path), name)
        except FileNotFoundError:
            return missing
        except (OSError, values.UnreadableError):
            with contextlib.suppress(OSError):
                path.unlink()
            return missing
        self.found += 1
        return value

    def keep(self, kind: str, key: object, value: object) -> None:
        """Write an entry, unless it cannot be held or there is no room: what is not kept is made again."""
        if self.folder is None:
            return
        name = self.name(kind, key)
        try:
            parts = values.pack(value, name)
        except values.UnpackableError:
            return
        size = sum(len(part) for part in parts)
        if size > self.room:
            return
        new = self.folder / f"{secrets.token_hex(8)}{_NEW}"
        try:
            with new.open("xb") as stream:
                for part in parts:
                    stream.write(part)
            new.replace(self.folder / f"{name}{_ENTRY}")
        except OSError:  # the disk is full, or the folder is gone: the build goes on without
            with contextlib.suppress(OSError):
                new.unlink()
            self.room = 0
            return
        self.room -= size

    def remember(self, kind: str, key: Callable[[], object], make: Callable[[], T]) -> T:
        """The value of a key; made and kept where it is not there. Without a folder the key is not asked for."""
        if self.folder is None:
            return make()
        stated = key()
        known = self.recall(kind, stated, _NOT_FOUND)
        if known is not _NOT_FOUND:
            return cast(T, known)
        made = make()
        self.keep(kind, stated, made)
        return made


def place_of(out: Path, work: Path | None) -> Path:
    """The folder of the journal of a build to ``out``: hidden, beside it or in ``work``."""
    place = locate(out)
    mark = hashlib.sha256(os.fsencode(place)).hexdigest()[:8]
    parent = place.parent if work is None else locate(work)
    short = os.fsencode(place.name)[:100].decode(errors="ignore")
    return parent / f".{short}.edgeopt-resume-{mark}"


@contextlib.contextmanager
def opened(out: Path, *, work: Path | None = None, resume: bool = False) -> Iterator[Journal]:
    """Keep a journal for a build to ``out`` while the block runs; what an earlier build left is used by ``resume``.

    The folder goes away when the block ends well, and without ``resume`` or ``work`` when it fails too: what is left of
    such a build is left by a kill. A folder that cannot be made keeps nothing, and is an error with ``resume`` or
    ``work``.

    Raises:
        BundleError: the folder is not ours, is in use, or cannot be made, and was asked for; or it would be in the
            place of the bundle.
    """
    asked = resume or work is not None
    folder = place_of(out, work)
    if folder.is_relative_to(locate(out)):
        raise BundleError(
            f"{work} is in the place of the bundle, which holds nothing else",
            remedy="Give another folder with --work.",
        )
    made: list[Path] = []
    lock = None
    try:
        lock = _taken(folder, made)
    except OSError as error:
        _untake([*made, folder])
        if asked:
            raise BundleError(
                f"the journal {folder} cannot be kept: {error.strerror or error}",
                remedy="Give another folder with --work, or build without --resume.",
            ) from error
    except BundleError:
        if asked:
            raise
    if lock is None:
        yield Journal()
        return
    ended = False
    try:
        held, room = _tidy(folder, keep=resume)
        yield Journal(folder=folder, room=room, held=held)
        ended = True
    finally:
        if ended or not asked:
            _remove(folder)
            _untake(made)
        os.close(lock)


def _taken(folder: Path, made: list[Path]) -> int:
    """Make the folder where it is not there, see that it is ours, and lock it; the folders made are in ``made``."""
    missing = [path for path in (folder.parent, *folder.parent.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir()
        made.append(path)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    strange = not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid()
    if not strange:
        strange = not (folder / MARKER).exists() and any(folder.iterdir())
    if strange:
        raise BundleError(
            f"{folder} is not a journal that edgeopt keeps for this user",
            remedy="Move it away, or give another folder with --work.",
        )
    lock = os.open(folder / MARKER, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise BundleError(
            f"another build to the same place is at work and uses {folder}",
            remedy="Wait until it has ended, or choose another destination with -o.",
        ) from error
    except OSError:  # a file system without locks
        pass
    return lock


def _untake(made: list[Path]) -> None:
    """Take away the folders above that were made, as far as nothing else is in them."""
    for path in reversed(made):
        try:
            path.rmdir()
        except OSError:
            return


def _tidy(folder: Path, *, keep: bool) -> tuple[int, int]:
    """Remove what is half-written, and without ``keep`` the entries. Returns how many are left, and bytes of room."""
    used = held = 0
    for path in folder.iterdir():
        if path.suffix == _NEW or (path.suffix == _ENTRY and not keep):
            path.unlink()
        elif path.suffix == _ENTRY:
            used, held = used + path.lstat().st_size, held + 1
    return held, max(0, min(LIMIT, shutil.disk_usage(folder).free // 10) - used)


def _remove(folder: Path) -> None:
    """Remove what is ours in the folder, and the folder when nothing else is in it. The marker goes last."""
    with contextlib.suppress(OSError):
        for path in list(folder.iterdir()):
            if path.suffix in (_ENTRY, _NEW):
                path.unlink()
        if [path.name for path in folder.iterdir()] == [MARKER]:
            (folder / MARKER).unlink()
            folder.rmdir()


def _read(path: Path) -> bytearray:
    """A whole entry, writable; a link, a device or something too large is not one."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > LIMIT:
            raise values.UnreadableError(path.name)
        data = bytearray(status.st_size)
        if stream.readinto(data) != status.st_size:
            raise values.UnreadableError(path.name)
        return data
