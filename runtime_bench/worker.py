"""One job in one fresh process: a JSON request on stdin, the answer as JSON lines on stdout.

An answer may come in parts, one line each, so that the death of the process loses only what is not done yet; the last
line says that it is complete. What a runtime prints to stdout goes to stderr, so the answer stays clean. An exception
ends the process with its traceback on stderr; the parent keeps the last line of it.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import Any, Iterator, Mapping

from runtime_bench.errors import BenchFailure, RuntimeMissing
from runtime_bench.runners import get

Request = Mapping[str, Any]

JOBS = {
    "time": "timing_job:job_time",
    "memory": "memory_job:job_memory",
    "growth": "memory_job:job_growth",
    "probe": "worker:job_probe",
    "golden": "worker:job_golden",
    "audit": "worker:job_audit",
}
"""Job -> module and function. Only the module of the job is imported: what it needs counts as memory in use.

The function takes the request and returns the answer, or yields it in parts.
"""


def main() -> int:
    """Read the request, do the job, write the answer."""
    answer = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    request = json.loads(sys.stdin.buffer.read())
    _die_with(request["parent"])
    try:
        for part in _parts(request):
            answer.write(json.dumps({"part": part}) + "\n")
            answer.flush()
    except RuntimeMissing as error:
        answer.write(json.dumps({"missing": str(error)}) + "\n")
    except BenchFailure as error:  # a sentence, without the name of its class
        sys.stderr.write("{}\n".format(error))
        sys.stderr.flush()
        os._exit(1)
    answer.write('{"complete": true}\n')
    answer.flush()
    sys.stderr.flush()
    os._exit(0)  # the answer is complete: a runtime that hangs or crashes while it unloads cannot spoil it


def _parts(request: Request) -> Iterator[dict[str, Any]]:
    module, _, name = JOBS[request["job"]].partition(":")
    answer = getattr(import_module("runtime_bench." + module), name)(request)
    if isinstance(answer, dict):
        yield answer
    else:
        yield from answer


def job_probe(request: Request) -> dict[str, Any]:
    """What runtime is installed."""
    runner = get(request["runner"])
    runner.import_runtime()
    return dict(runner.runtime_info())


def job_golden(request: Request) -> dict[str, Any]:
    """Run the golden inputs and compare; see ``golden.check``."""
    from runtime_bench import golden

    runner = get(request["runner"])
    runner.import_runtime()
    loaded = runner.load(request["path"], request["options"])
    return golden.check(loaded, runner.read_feeds, request["outputs"], request["samples"])


def job_audit(request: Request) -> dict[str, Any]:
    """What the runtime really ran, as ``audit`` has it; a reason where the runner cannot tell."""
    runner = get(request["runner"])
    runner.import_runtime()
    audit = getattr(runner, "audit", None)
    if audit is None:
        return {"reason": "the runner {} cannot tell what it ran".format(request["runner"])}
    if request.get("scratch"):
        import tempfile

        tempfile.tempdir = request["scratch"]  # the parent removes it, even where this process is killed
    feeds = runner.read_feeds(request["samples"][0]) if request["samples"] else {}
    return dict(audit(request["path"], request["options"], feeds))


def _die_with(parent: int) -> None:
    """Ask Linux to kill this process when its parent is gone, whatever happened to the parent."""
    if not sys.platform.startswith("linux"):
        return
    try:
        import ctypes

        ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL
    except (ImportError, OSError, AttributeError):
        return
    if os.getppid() != parent:  # it was gone before we asked
        os._exit(1)
