"""Shared by all tests: hypothesis without its clock, and a fresh process of the command line."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
os.environ.pop("COLUMNS", None)  # a width of somebody else's terminal would fold what tests read
# A background job of a shell, and what nohup starts, ignore these, and so would every child that a test interrupts.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)
settings.register_profile("edgeopt", deadline=None, max_examples=50)  # no timing is asserted
settings.load_profile("edgeopt")

ROOT = Path(__file__).resolve().parent.parent

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


def clean_environment(**changes: str) -> dict[str, str]:
    """The environment for a child process, without what would change the command line's output."""
    dropped = (
        "COLUMNS",
        "NO_COLOR",
        "EDGEOPT_DEBUG",
        "LC_ALL",
        "PYTHONIOENCODING",
        "PYTHONUTF8",
        "ORT_DISABLE_TELEMETRY",
    )
    kept = {key: value for key, value in os.environ.items() if key not in dropped}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "LANG": "C.UTF-8", **changes}


def pytest_collection_finish() -> None:
    """What the imports made stays to the end: no collection of garbage need walk through it again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """A failure that shows a name which is not UTF-8 would end the whole run of pytest-xdist."""
    return _utf8((yield))


def _utf8(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_utf8(k): _utf8(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_utf8, value))
    return value


@pytest.fixture
def edgeopt(tmp_path: Path) -> Run:
    """``edgeopt("build", ..., env={...})``: the command line in a fresh process, in ``tmp_path``; output in bytes."""

    def run(*args: str | bytes | Path, env: dict[str, str] | None = None, **options: object) -> object:
        command = [sys.executable, "-m", "edgeopt", *args]
        given = {"capture_output": True, "timeout": 300, "cwd": tmp_path, **options}
        return subprocess.run(command, env=clean_environment(**(env or {})), check=False, **given)  # type: ignore[call-overload]

    return run  # type: ignore[return-value]
