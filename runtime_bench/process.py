"""Starts worker processes, waits for them and makes sure that none is left."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from typing import Any, Mapping, Optional

from runtime_bench.archive import package_parent, pyz_path
from runtime_bench.errors import RuntimeMissing

PADDING = "RUNTIME_BENCH_PADDING"
MAX_PADDING = 4095


class WorkerError(Exception):
    """A worker was killed, failed or did not answer; the message is one line."""


def run(request: Mapping[str, Any], timeout_s: float, rng: Optional[random.Random] = None) -> dict[str, Any]:
    """Do one job in a fresh process and return its answer.

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
        answer, log = process.communicate(body, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise WorkerError("no answer after {:.0f} s".format(timeout_s)) from None
    finally:
        if process is not None:
            _end(process)
    return _parse(process.returncode, answer, log)


def _parse(returncode: int, answer: bytes, log: bytes) -> dict[str, Any]:
    if returncode < 0:
        raise WorkerError("killed by {}".format(_signal_name(-returncode)))
    lines = [line.strip() for line in log.decode("utf-8", "replace").splitlines() if line.strip()]
    if returncode or not answer:
        raise WorkerError(lines[-1][:500] if lines else "ended with exit code {} and no message".format(returncode))
    result = json.loads(answer)
    if "missing" in result:
        raise RuntimeMissing(result["missing"])
    return dict(result)


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


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a worker that has not ended, with all it started, and wait for it."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
