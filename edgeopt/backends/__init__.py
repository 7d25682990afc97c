"""Backends: one module each, same small protocol, listed in one visible table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class Artifact:
    """A file a runtime can load. ``path`` is absolute here and relative in a manifest."""

    path: Path
    format: str
    precision: str
    bytes: int
    sha256: str
    toolchain: Mapping[str, str]
    built_on_device: bool = False
