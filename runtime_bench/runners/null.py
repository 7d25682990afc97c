"""A runner without a device: tests and dry runs. The path says what a call does.

``spin:200us`` is busy for that long (ns, us, ms), ``kill:9`` sends itself that signal when it is loaded,
``fail:words`` raises when it is loaded, ``hang:`` sleeps for an hour.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any, Mapping, Union

from runtime_bench.runners import Loaded

BASELINE: Union[str, bytes] = "spin:0ns"

_UNITS = {"ns": 1, "us": 1000, "ms": 1000000}


def import_runtime() -> None:
    """Nothing to import."""


def runtime_info() -> Mapping[str, Any]:
    """Name, version and providers of nothing."""
    return {"name": "null", "version": "0", "providers": ["none"]}


def load(path: Union[str, bytes], options: Mapping[str, Any]) -> Loaded:
    """Interpret the path; the inputs are ignored and there is no output."""
    verb, _, rest = os.fsdecode(path).rpartition("/")[2].partition(":")
    if verb == "kill":
        os.kill(os.getpid(), int(rest))
    elif verb == "hang":
        time.sleep(3600)
    elif verb != "spin":
        raise ValueError(rest or "cannot load {!r}".format(path))
    run = partial(_spin, _nanoseconds(rest))
    return Loaded(lambda feeds: run, lambda feeds: {}, {"name": "null", "version": "0", "provider": "none"})


def baseline_feeds() -> Mapping[str, Any]:
    """No inputs."""
    return {}


def read_feeds(files: Mapping[str, str]) -> Mapping[str, Any]:
    """The file names themselves; nothing is read."""
    return dict(files)


def _nanoseconds(text: str) -> int:
    number, unit = text[:-2], text[-2:]
    if unit not in _UNITS or not number.isdigit():
        raise ValueError("a duration looks like 200us, not {!r}".format(text))
    return int(number) * _UNITS[unit]


def _spin(duration_ns: int) -> None:
    clock = time.perf_counter_ns
    end = clock() + duration_ns
    while clock() < end:
        pass
