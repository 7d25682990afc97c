"""Writes this package as one runnable file, with the same bytes everywhere."""

from __future__ import annotations

import io
import os
import stat
import zipfile
from typing import IO, Optional, Union

SHEBANG = b"#!/usr/bin/env python3\n"
PACKAGE = "runtime_bench"

# Old enough syntax for Python 2.7 and 3.6, which boards still have: they get a sentence instead of a SyntaxError.
ENTRY = """\
import sys

if sys.version_info < (3, 8):
    sys.exit("this program needs Python 3.8 or newer; this is Python %d.%d" % sys.version_info[:2])

from runtime_bench.__main__ import main

sys.exit(main())
"""


def pyz_path() -> Optional[str]:
    """The archive that this package was imported from; None where it lies in a folder."""
    archive = getattr(getattr(__spec__, "loader", None), "archive", None)
    return os.path.abspath(archive) if archive else None


def package_parent() -> str:
    """The folder, or archive, in which the package lies."""
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def write_pyz(target: Union[str, os.PathLike[str], IO[bytes]]) -> None:
    """Write the package as a zip that ``python3`` runs, to a path or to a binary stream.

    The bytes depend on the sources alone: sorted names, fixed dates and modes, and stored, because compressors differ
    between builds of Python. A path is written beside its place and renamed.
    """
    data = _pyz_bytes()
    if not isinstance(target, (str, os.PathLike)):
        target.write(data)
        return
    path = os.fspath(target)
    temporary = path + ".tmp"
    try:
        with open(temporary, "wb") as stream:
            stream.write(data)
        os.chmod(temporary, 0o755)
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def _pyz_bytes() -> bytes:
    members = {"{}/{}".format(PACKAGE, name): data for name, data in _sources().items()}
    members["__main__.py"] = ENTRY.encode("ascii")
    buffer = io.BytesIO()
    buffer.write(SHEBANG)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_STORED) as archive:
        for name in sorted(members):
            info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            info.create_system = 3  # Unix, wherever this runs
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(info, members[name])
    return buffer.getvalue()


def _sources() -> dict[str, bytes]:
    """Contents of the package's ``.py`` files by name relative to the package, ``/`` between parts."""
    archive = pyz_path()
    if archive:
        prefix = PACKAGE + "/"
        with zipfile.ZipFile(archive) as source:
            names = [n for n in source.namelist() if n.startswith(prefix) and n.endswith(".py")]
            return {name[len(prefix) :]: source.read(name) for name in names}
    found = {}
    root = os.path.dirname(os.path.abspath(__file__))
    for folder, _, files in os.walk(root):
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                with open(path, "rb") as stream:
                    found[os.path.relpath(path, root).replace(os.sep, "/")] = stream.read()
    return found
