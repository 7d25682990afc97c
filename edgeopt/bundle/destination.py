"""Where a bundle may be written: a free place, or one that holds nothing but an older bundle of the same model."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from edgeopt.bundle.layout import MANIFEST, RECORDS, SUMS, canonical, load_json, parse_sums, read_text
from edgeopt.bundle.read import read
from edgeopt.errors import BundleError

MARKER = "EDGEOPT-STAGING"
"""File inside a staging folder. The owner holds a lock on it, so a folder whose owner died can be told and removed."""

_SIGNATURE = "edgeopt.staging/1"
_STAGING = re.compile(r"\..+\.edgeopt-[0-9a-z_]{8}")
_ABANDONED_S = 3600.0


def locate(dest: Path) -> Path:
    """The absolute destination with links followed: what a link points to is replaced, the link itself stays."""
    try:
        return Path(os.path.realpath(dest, strict=False))
    except OSError as error:
        raise BundleError(f"{_shown(dest)}: {error.strerror}", remedy="Choose another destination with -o.") from error


def check_destination(dest: Path, name: str) -> None:
    """Refuse a destination that a bundle of the model ``name`` could not or must not take. Changes nothing.

    Allowed are a path that does not exist below a writable folder, an empty folder, and a folder that holds a bundle
    of the same model and no other file.

    Raises:
        BundleError: with what is in the way and what to do.
    """
    place = locate(dest)
    elsewhere = "Choose another destination with -o."
    parent = next((folder for folder in place.parents if os.path.lexists(folder)), place)
    if not parent.is_dir():
        raise BundleError(f"{_shown(parent)} is not a folder, so {_shown(dest)} cannot be made", remedy=elsewhere)
    if not os.access(parent, os.W_OK | os.X_OK):
        raise BundleError(f"no permission to write in {_shown(parent)}", remedy=elsewhere)
    if not os.path.lexists(place):
        return
    if not place.is_dir():
        raise BundleError(f"{_shown(dest)} exists and is not a folder", remedy=elsewhere)
    if place.is_mount() or _holds_current_folder(place):
        what = "the root of a file system" if place.is_mount() else "or holds the current folder"
        raise BundleError(
            f"{_shown(dest)} is {what} and cannot be replaced", remedy="Choose a folder inside it with -o."
        )
    if any(place.iterdir()):
        _check_ours(place, dest, name, elsewhere)


def _holds_current_folder(place: Path) -> bool:
    try:
        here = Path.cwd()
    except FileNotFoundError:
        return False
    return here.is_relative_to(place)


def _check_ours(place: Path, dest: Path, name: str, elsewhere: str) -> None:
    try:
        manifest = read(place).manifest
        known = {MANIFEST, SUMS, RECORDS}
        for sums in (SUMS, RECORDS):
            known.update(parse_sums(read_text(place / sums), sums))
    except BundleError as error:
        why = error.message.removeprefix(f"{place}: ").removeprefix(f"{place} is not a bundle: ")
        raise BundleError(f"{_shown(dest)} is not empty and not an intact bundle: {why}", remedy=elsewhere) from error
    if manifest["name"] != name:
        raise BundleError(f"{_shown(dest)} holds a bundle of {manifest['name']!r}, not of {name!r}", remedy=elsewhere)
    strangers = sorted(path for path in _files(place) if path not in known)
    if strangers:
        more = f" and {len(strangers) - 1} more" if len(strangers) > 1 else ""
        raise BundleError(
            f"{_shown(dest)} holds {strangers[0]!r}{more}, which would be lost: not part of the bundle",
            remedy="Move what is yours out of it, or choose another destination with -o.",
        )


def _files(root: Path) -> Iterator[str]:
    for folder, names, files in os.walk(root):
        links = [name for name in names if Path(folder, name).is_symlink()]
        for file in files + links:
            yield Path(folder, file).relative_to(root).as_posix()


@contextlib.contextmanager
def staging(place: Path) -> Iterator[Path]:
    """Yield a private folder beside ``place``, marked and locked; it is gone afterwards, with all that is in it."""
    folder = Path(tempfile.mkdtemp(prefix=f".{place.name[:32]}.edgeopt-", dir=place.parent))
    lock = -1
    try:
        lock = os.open(folder / MARKER, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(OSError):  # a file system without locks: then nothing here is ever swept
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(lock, canonical({"schema": _SIGNATURE, "destination": os.fsencode(place.name).hex()}))
        yield folder
    finally:
        _clear(folder, place)
        if lock >= 0:
            os.close(lock)


def sweep(parent: Path) -> list[Path]:
    """Remove what killed runs left in ``parent`` and return those folders. Folders of live runs and of others stay.

    A run killed between the two renames of a replacement has its complete new bundle put in place.
    """
    try:
        entries = sorted(os.scandir(parent), key=lambda entry: entry.name)
    except OSError:
        return []
    staged = [Path(e.path) for e in entries if _STAGING.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]
    return [folder for folder in staged if _swept(folder)]


def _swept(folder: Path) -> bool:
    try:
        lock = os.open(folder / MARKER, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return _drop_empty(folder)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        marker = load_json(os.read(lock, 4096).decode(errors="replace"), MARKER)
        if not isinstance(marker, dict) or marker.get("schema") != _SIGNATURE:
            return False
        _clear(folder, folder.parent / os.fsdecode(bytes.fromhex(str(marker.get("destination")))))
    except (OSError, ValueError, BundleError):
        return False
    finally:
        os.close(lock)
    return True


def _drop_empty(folder: Path) -> bool:
    """Remove a folder that has been empty for an hour: its owner died before it could mark it."""
    try:
        if time.time() - folder.stat().st_mtime < _ABANDONED_S:
            return False
        folder.rmdir()
    except OSError:
        return False
    return True


def _clear(folder: Path, place: Path) -> None:
    """Remove a staging folder, again when interrupted. A replacement that was cut in the middle is finished first."""
    try:
        _finish(folder, place)
        _remove(folder)
    except KeyboardInterrupt:
        _finish(folder, place)
        _remove(folder)
        raise


def _finish(folder: Path, place: Path) -> None:
    old, new = folder / "old", folder / "new"
    if place.parent != folder.parent or os.path.lexists(place) or not old.is_dir():
        return
    try:
        new.rename(place)  # "old" exists only after "new" is complete
    except OSError:
        old.rename(place)


def _remove(folder: Path) -> None:
    """Delete the folder. Its marker goes last, so that a removal cut off can be taken up by the next run."""
    if not folder.exists():
        return
    for entry in [entry for entry in os.scandir(folder) if entry.name != MARKER]:
        shutil.rmtree(entry.path)
    (folder / MARKER).unlink(missing_ok=True)
    folder.rmdir()


def put_in_place(folder: Path, place: Path) -> None:
    """Move ``folder/new`` to ``place``; what was there ends up in ``folder``. One step where the system can do it."""
    new = folder / "new"
    if not os.path.lexists(place) or not any(place.iterdir()):
        new.rename(place)  # over an empty folder this is one step too
    elif not _exchange(new, place):
        place.rename(folder / "old")
        new.rename(place)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two paths by ``renameat2``. Returns False where the system or the file system does not have it."""
    import ctypes

    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    at_fdcwd, rename_exchange = -100, 2
    if renameat2(at_fdcwd, os.fsencode(one), at_fdcwd, os.fsencode(other), rename_exchange) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code), str(other))


def _shown(path: Path) -> str:
    return str(path).encode("utf-8", "backslashreplace").decode()
