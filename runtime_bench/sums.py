"""Checks the files of a folder against its lists of digests (coreutils format)."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from typing import Any, Iterator

from runtime_bench.errors import VerifyFailure

DEVICE = "SHA256SUMS"
RECORDS = "RECORDS.sha256"
UNLISTED_ALLOWED = (DEVICE, RECORDS, "manifest.json")

MAX_LIST_BYTES = 16 << 20
BLOCK = 1 << 20
LINE = re.compile(r"([0-9a-f]{64}) [ *](.+)")
RESULT = re.compile(rb'\s*{\s*"schema":\s*"edgeopt\.(measurement|verification)/\d+"')


def shown(name: Any) -> str:
    """A foreign name for a message: escaped unless it is plain printable text."""
    return name if isinstance(name, str) and name.isprintable() else ascii(name)


def safe_path(path: Any, where: str) -> str:
    """Return a relative POSIX path that stays in its folder. Raises VerifyFailure (9) for anything else."""
    good = isinstance(path, str) and path.isprintable() and "\\" not in path and ":" not in path.split("/")[0]
    if not good or any(part in ("", ".", "..") for part in path.split("/")):
        raise VerifyFailure(
            9, "{} names a path that leaves the bundle or is no plain path: {}".format(where, shown(path))
        )
    return str(path)


def check_listed(root: str, name: str) -> dict[str, str]:
    """Hash every file of one list. Returns sha256 by path. Raises VerifyFailure (9) that names the first bad file."""
    listed = _read_list(root, name)
    for path, digest in listed.items():
        if _sha256(root, path) != digest:
            raise VerifyFailure(9, "{} is damaged: its sha256 is not the one in {}".format(shown(path), name))
    return listed


def check_tree(root: str) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Check both lists, and that the folder holds nothing else: no unlisted file, no link, no device.

    Returns the two lists and the paths of results that this program wrote into the folder later. Those (JSON files
    at the top whose first key says that they are a measurement or a verification) are not part of the bundle, are
    never read, and do not spoil it.
    """
    present = dict(_walk(root, ""))
    device, records = check_listed(root, DEVICE), check_listed(root, RECORDS)
    both = sorted(set(device) & set(records))
    if both:
        raise VerifyFailure(9, "{} is in {} and in {}".format(shown(both[0]), DEVICE, RECORDS))
    unlisted = sorted(path for path in present if path not in device and path not in records)
    unlisted = [path for path in unlisted if path not in UNLISTED_ALLOWED]
    results = [path for path in unlisted if is_result(root, path)]
    strangers = [path for path in unlisted if path not in results]
    if strangers:
        raise VerifyFailure(9, "{} is not part of the bundle: no list has it".format(shown(strangers[0])))
    return device, records, results


def _read_list(root: str, name: str) -> dict[str, str]:
    path = os.path.join(root, name)
    listed: dict[str, str] = {}
    try:
        if os.path.islink(path) or not os.path.isfile(path):
            raise VerifyFailure(9, "{} is missing".format(name))
        if os.path.getsize(path) > MAX_LIST_BYTES:
            raise VerifyFailure(9, "{} is larger than {} MB".format(name, MAX_LIST_BYTES >> 20))
        with open(path, encoding="utf-8", newline="\n") as stream:
            lines = stream.read().split("\n")
    except (OSError, ValueError) as error:
        raise VerifyFailure(9, "cannot read {}: {}".format(name, error)) from error
    for number, line in enumerate(lines, 1):
        if not line and number == len(lines):
            continue
        match = LINE.fullmatch(line)
        if not match:
            raise VerifyFailure(9, '{}, line {}: not "<sha256>  <path>"'.format(name, number))
        member = safe_path(match.group(2), "{}, line {}".format(name, number))
        if member in listed:
            raise VerifyFailure(9, "{} lists {} twice".format(name, shown(member)))
        listed[member] = match.group(1)
    if not listed:
        raise VerifyFailure(9, "{} lists no file".format(name))
    return listed


def _sha256(root: str, path: str) -> str:
    full = os.path.join(root, *path.split("/"))
    digest = hashlib.sha256()
    try:
        if not _stays_inside(root, full) or not stat.S_ISREG(os.lstat(full).st_mode):
            raise VerifyFailure(9, "{} is a link or no plain file".format(shown(path)))
        with open(full, "rb") as stream:
            for block in iter(lambda: stream.read(BLOCK), b""):
                digest.update(block)
    except FileNotFoundError as error:
        raise VerifyFailure(9, "{} is missing".format(shown(path))) from error
    except OSError as error:
        raise VerifyFailure(9, "cannot read {}: {}".format(shown(path), error.strerror or error)) from error
    return digest.hexdigest()


def _stays_inside(root: str, full: str) -> bool:
    """Whether no part of the path below the root is a link."""
    return os.path.realpath(full) == os.path.join(os.path.realpath(root), os.path.relpath(full, root))


def _walk(root: str, prefix: str) -> Iterator[tuple[str, None]]:
    """Paths of all files below a folder. Raises VerifyFailure (9) for links and for what is not a plain file."""
    try:
        with os.scandir(os.path.join(root, prefix)) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise VerifyFailure(9, "cannot read {}: {}".format(shown(prefix or root), error.strerror or error)) from error
    for entry in found:
        path = prefix + entry.name
        if entry.is_symlink():
            raise VerifyFailure(9, "{} is a link; a bundle holds plain files only".format(shown(path)))
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(root, path + "/")
        elif entry.is_file(follow_symlinks=False):
            yield path, None
        else:
            raise VerifyFailure(9, "{} is not a plain file".format(shown(path)))


def is_result(root: str, path: str) -> bool:
    """Whether a file is one that this program wrote: JSON at the top of the folder, with a schema of ours first."""
    if "/" in path or not path.endswith(".json"):
        return False
    with open(os.path.join(root, path), "rb") as stream:
        return RESULT.match(stream.read(200)) is not None
