"""Backends: one module each, same small protocol, listed in one visible table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataFile:
    """The file of constants beside an artifact's first file, under the name that the runtime looks for."""

    path: Path
    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Artifact:
    """A file a runtime can load. ``path`` is absolute here and relative in a manifest.

    Attributes:
        bytes: of all its files.
        sha256: of ``path``.
        options: of the runner, for this artifact alone.
        bound: the kind of machine and the release that alone may run it, as ``runtime_bench.native`` reads them.
        portable: where ``path`` holds the runtime's own graph, the file that it was made from; read back from that.
        data: the second file, where the format has one.
        runner: the one of ``runtime_bench`` that runs it.
    """

    path: Path
    format: str
    precision: str
    bytes: int
    sha256: str
    toolchain: Mapping[str, str]
    built_on_device: bool = False
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    bound: Mapping[str, str | int] = dataclasses.field(default_factory=dict)
    portable: Path | None = None
    data: DataFile | None = None
    runner: str = "onnxruntime"

    @property
    def optimize(self) -> bool:
        """Whether the runtime is to optimize the file when it loads it."""
        return self.options.get("optimizer") != "off"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOption:
    """Another way to run an artifact, that takes less memory.

    Attributes:
        name: kebab-case, of its step.
        options: of the runner, that it adds.
        make: (artifact, one sample: array by input name, the file to write) -> the changed artifact, or why it is not
            for this one. Files are new ones beside the path given.
    """

    name: str
    why: str
    options: Mapping[str, str]
    make: Callable[[Artifact, Mapping[str, Any], Path], Artifact | str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeRun:
    """How the runtime runs one node of the float model: ``"int8"``, ``"float"`` or ``"fused"``, and why."""

    key: str
    op: str
    runs: str
    why: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fused:
    """What the runtime's own optimizer made of an artifact.

    ``mismatches`` lists nodes that were meant to run in int8 and do not, nodes whose float weight the runtime
    quantized on its own, and weights whose number of scales is not what was written. An operator without weights that
    was left in float between int8 ones, and which the runtime runs in int8, is reported and no mismatch: its inputs
    and its result are rounded as before.
    """

    nodes: tuple[NodeRun, ...]
    mismatches: tuple[str, ...]
    note: str
