"""Runners: one module each, named in one visible table.

A runner module has

- ``import_runtime() -> None``: imports what it needs; raises ``RuntimeMissing`` with the pip line.
- ``load(path, options) -> Loaded``: ``path`` is a file name or the bytes of a model.
- ``audit(path, options, feeds) -> dict``: what really ran where, see ``audit.from_profile``.
- ``BASELINE`` and ``baseline_feeds()``: the smallest model that the runtime runs, for the memory figure.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Callable, Mapping, NamedTuple, Protocol, Sequence, Union, cast

from runtime_bench.errors import RuntimeMissing

RUNNERS = {
    "onnxruntime": ".onnxruntime",
    "openvino": ".openvino",
    "null": ".null",
}


class Loaded(NamedTuple):
    """A model ready to run.

    Attributes:
        bind: arrays by input name -> a call without arguments that runs the model once (what is timed).
        infer: arrays by input name -> arrays by output name.
        runtime: ``{"name", "version", "provider", "asked"}`` as the runtime reports them after loading; ``asked`` is
            the full name of the provider that was asked for. ``spinning``, where the runtime has it: whether its idle
            threads wait busily.
    """

    bind: Callable[[Mapping[str, Any]], Callable[[], Any]]
    infer: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    runtime: Mapping[str, Any]


class Runner(Protocol):
    """The shape of a runner module."""

    BASELINE: Union[str, bytes]

    def import_runtime(self) -> None:
        """Import the runtime."""

    def runtime_info(self) -> Mapping[str, Any]:
        """``{"name", "version", "providers"}`` without loading a model."""

    def load(self, path: Union[str, bytes], options: Mapping[str, Any]) -> Loaded:
        """Load a model."""

    def audit(self, path: Union[str, bytes], options: Mapping[str, Any], feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run once and say which provider each node ran on; ``{"reason"}`` where the runtime does not tell."""

    def baseline_feeds(self) -> Mapping[str, Any]:
        """Inputs of ``BASELINE``."""

    def read_feeds(self, files: Mapping[str, str]) -> Mapping[str, Any]:
        """Arrays by input name from ``.npy`` files by input name."""


def get(name: str) -> Runner:
    """The runner module of that name; it imports no runtime yet."""
    if name not in RUNNERS:
        known: Sequence[str] = sorted(RUNNERS)
        raise RuntimeMissing('no runner "{}" in this program; it has: {}'.format(name, ", ".join(known)))
    return cast(Runner, import_module(RUNNERS[name], __name__))
