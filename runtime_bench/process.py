"""Starts worker processes, waits for them and makes sure that none is left."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from typing import Any, Mapping, Optional

from runtime_bench.archive import package_parent, pyz_path
from runtime_bench.errors import RuntimeMissing

PADDING = "RUNTIME_BENCH_PADDING"
MAX_PADDING = 4095


LOOK_S = 1.0
"""How often it is checked whether a worker is gone while something holds its pipes open."""

COLLECT_S = 5.0
"""How long what a killed worker has written is waited for: a child that left its group may hold the pipes open."""


class WorkerError(Exception):
    """A worker was killed, failed or did not answer; the message is one line, ``partial`` what it had told before."""

    def __init__(self, message: str, partial: Optional[Mapping[str, Any]] = None) -> None:
        super().__init__(message)
        self.partial: Mapping[str, Any] = partial or {}


def run(request: Mapping[str, Any], timeout_s: float, rng: Optional[random.Random] = None) -> dict[str, Any]:
    """Do one job in a fresh process and return its answer, the parts of it merged.

    Args:
        request: the job for ``worker``; paths must be absolute.
        timeout_s: the worker is killed after that.
        rng: source of a random length of the environment, which moves the stack (its place alone can change a
            latency by some per cent); None adds nothing.

    Raises WorkerError, and RuntimeMissing where the worker says that its runtime is not there. On any exception,
    KeyboardInterrupt included, the worker and its children are dead before it leaves here.
    """
    archive = pyz_path()
    command = [sys.executable, archive] if archive else [sys.executable, "-m", "runtime_bench"]
    environment = dict(os.environ)
    if not archive:
        paths = [package_parent(), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    if rng is not None:
        environment[PADDING] = "x" * rng.randint(0, MAX_PADDING)
    body = json.dumps({**request, "parent": os.getpid()}).encode("ascii")
    process = None
    try:
        process = subprocess.Popen(
            [*command, "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=package_parent() if not archive else None,  # -m puts the working folder first on the import path
            start_new_session=True,
        )
        answer, log, late = _communicate(process, body, timeout_s)
    finally:
        if process is not None:
            _end(process)
    return merged(answer, log, process.returncode, "no answer after {:.0f} s".format(timeout_s) if late else "")


def _communicate(process: subprocess.Popen[bytes], body: bytes, timeout_s: float) -> tuple[bytes, bytes, bool]:
    """What the worker wrote to stdout and stderr, and whether it was killed for its time."""
    deadline, killed, late = time.monotonic() + timeout_s, False, False
    given: Optional[bytes] = body
    while True:
        try:
            pause = max(min(deadline - time.monotonic(), LOOK_S), 0.0)
            return (*process.communicate(given, timeout=pause), late)
        except subprocess.TimeoutExpired as error:
            given, so_far = None, (error.output or b"", error.stderr or b"")
        over = time.monotonic() >= deadline
        if killed and over:
            return (*so_far, late)
        if not killed and (over or process.poll() is not None):
            late = process.poll() is None
            _kill(process)  # a child that outlives the worker would hold the pipes open
            killed, deadline = True, time.monotonic() + COLLECT_S


def merged(answer: bytes, log: bytes, returncode: int, error: str = "") -> dict[str, Any]:
    """The parts of an answer as one dict.

    Args:
        answer: what the worker wrote to stdout.
        log: what it wrote to stderr.
        returncode: as ``subprocess`` has it: below 0 for a signal.
        error: what went wrong otherwise.

    Raises WorkerError for an error, a death or an answer without its end, RuntimeMissing where the worker says so.
    """
    result: dict[str, Any] = {}
    complete = False
    for line in answer.splitlines(keepends=True):
        if not line.endswith(b"\n"):  # it died while it wrote
            break
        told = json.loads(line)
        if "missing" in told:
            raise RuntimeMissing(told["missing"])
        result.update(told.get("part", {}))
        complete = complete or "complete" in told
    if returncode < 0 and not error:
        error = "killed by {}".format(_signal_name(-returncode))
    if not error and (returncode or not complete):
        lines = [line.strip() for line in log.decode("utf-8", "replace").splitlines() if line.strip()]
        error = lines[-1][:500] if lines else "ended with exit code {} and no message".format(returncode)
    if error:
        raise WorkerError(error, result)
    return result


def _signal_name(number: int) -> str:
    hints = {
        signal.SIGKILL: " (out of memory?)",
        signal.SIGILL: ": the runtime used an instruction that this processor does not have",
    }
    try:
        name = signal.Signals(number)
    except ValueError:
        return "signal {}".format(number)
    return name.name + hints.get(name, "")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the worker's process group: itself, and children that outlived it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave nothing of a worker: no process, no pipe."""
    _kill(process)
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
