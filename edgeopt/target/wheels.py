"""The last wheel of a runtime for a processor architecture and a version of Python."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from edgeopt.target.share import share_dir
from edgeopt.target.types import Target
from edgeopt.tomlfile import read_toml, refuse

FILE = "_wheels.toml"
"""Its underscore keeps it out of the list of profiles."""

SCHEMA = "edgeopt.wheels/1"

_VERSION = re.compile(r"\d{1,5}(\.\d{1,5}){0,3}")


def wheel(target: Target, backend: str) -> str | None:
    """The newest wheel for the Python of the target's system image; None when the profile states no Python."""
    python = target.facts.get("python")
    return None if python is None else last_wheel(backend, target.arch, str(python.value))


def last_wheel(backend: str, arch: str, python: str) -> str | None:
    """Version of the newest wheel, None when there is none or nobody looked (``python`` such as ``"3.10"``)."""
    return _table().get((backend, arch), {}).get(python)


@functools.cache
def _table() -> Mapping[tuple[str, str], Mapping[str, str]]:
    path = share_dir("targets") / FILE
    table = read_toml(path)
    table.only(("schema", "looked_up", "wheels"))
    table.text("schema", choices=(SCHEMA,))
    table.text("looked_up")
    found: dict[tuple[str, str], Mapping[str, str]] = {}
    for backend, arches in table.tables("wheels").items():
        for arch in arches.data:
            versions = arches.table(arch)
            found[backend, arch] = {python: versions.text(python) for python in versions.data}
            for python, version in found[backend, arch].items():
                if not _VERSION.fullmatch(version):
                    versions.problem(python, f'"{version}" is not a version like "1.17.0".')
    refuse(path, table, "Correct the file.")
    return found
