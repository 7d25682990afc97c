"""The memory jobs of a worker process: peaks of the phases, and readings over many calls."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from array import array
from functools import partial
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

from runtime_bench import rss
from runtime_bench.runners import Loaded, Runner, get

MAX_POINTS = 200
"""Readings kept. When they are more, every second one is dropped and twice the calls lie between the next ones."""

ENOUGH_POINTS = 20
MAX_GROWN = 128 << 20
"""Growth in bytes that ends the watch after ``ENOUGH_POINTS`` readings: a large leak must not fill a small board."""

POLL_S = 0.001

Request = Mapping[str, Any]
Call = Callable[[], Any]


def job_memory(request: Request) -> dict[str, Any]:
    """Memory of an idle Python (``interpreter``), of the one-node model (``runtime``) or of the artifact (``model``).

    Args:
        request: ``stage``; for the two upper stages ``runner``, ``path``, ``options``, ``samples`` (one per set of
            shapes) and ``calls``, how often each sample is run.

    Returns ``rss.usage()`` after the last call, where ``peak`` is the peak of the whole process, with ``load_peak``
    (from the runtime's import to the loaded model) and ``calls_peak`` (from there to the last call). The peak is reset
    between the phases; ``peak`` is the largest of them. ``load_anonymous`` is the most anonymous memory seen while
    loading, by polling: pages of a mapped weight file are in ``load_peak``, but a system that is short can drop them.
    """
    runner = get(request["runner"])
    if request["stage"] == "interpreter":
        return _told(_idle_interpreter())
    runner.import_runtime()
    imported = _peak_then_reset()
    with _polled(rss.anonymous) as anonymous:
        loaded = _load(runner, request)
    load_peak = _peak_then_reset()
    call: Optional[Call] = None
    for bind in _binds(runner, loaded, request):
        call = None  # one input at a time, as users have it
        call = bind()
        for _ in range(int(request["calls"])):
            call()
    found = rss.usage()
    if "reason" in found or imported is None or load_peak is None:
        return found
    calls_peak = found["peak"]
    found.update(peak=max(imported, load_peak, calls_peak), load_peak=load_peak, calls_peak=calls_peak)
    found["load_anonymous"] = max(anonymous, default=None)
    if not anonymous:
        found["missing"]["load_anonymous"] = "no RssAnon in {}".format(rss.STATUS)
    return _told(found)


def job_growth(request: Request) -> dict[str, Any]:
    """Readings of the process's own memory over many calls of the artifact.

    Args:
        request: as for ``job_memory`` (``calls`` run before the first reading), ``least`` calls, ``seconds`` and
            ``flat`` for ``watch``.

    Returns what ``watch`` does, and ``source``; ``{"reason"}`` where the system does not say.
    """
    runner = get(request["runner"])
    runner.import_runtime()
    if rss.own() is None:
        return {"reason": "neither Private_Dirty in {} nor RssAnon in {}".format(rss.ROLLUP, rss.STATUS)}
    calls = [bind() for bind in _binds(runner, _load(runner, request), request)]
    for _ in range(int(request["calls"])):
        for call in calls:
            call()
    found = watch(calls, lambda: rss.own() or 0, request["least"], request["seconds"], request["flat"])
    return {**found, "source": rss.own_source()}


def watch(
    calls: Sequence[Call],
    read: Callable[[], int],
    least: int,
    seconds: float,
    flat: float,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Run all ``calls`` in turn, again and again, with a reading in bytes between the turns.

    Args:
        calls: one for each set of shapes, so that readings compare like with like.
        read: the memory in use, bytes.
        least: calls wanted before an end for want of growth.
        seconds: the watch ends after that, whatever ``least`` is.
        flat: bytes a call. The watch ends as ``flat`` when the later half of the calls gained no more than that.
        clock: seconds.

    Returns ``{"points": [[calls so far, bytes], ..], "ended": "flat" | "time" | "grown"}``.
    """
    readings = array("q", [0]) * (MAX_POINTS + 1)  # no object a reading: those would show in the readings
    readings[0], count, step = read(), 1, len(calls)
    end = clock() + seconds
    ended = ""
    while not ended:
        for _ in range(step // len(calls)):
            for call in calls:
                call()
        readings[count] = read()
        count += 1
        half = (count - 1) // 2
        gained, over = readings[count - 1] - readings[half], (count - 1 - half) * step
        if (count - 1) * step >= least and gained <= flat * over:
            ended = "flat"
        elif clock() >= end:
            ended = "time"
        elif count >= ENOUGH_POINTS and readings[count - 1] - readings[0] > MAX_GROWN:
            ended = "grown"
        elif count > MAX_POINTS:
            kept = readings[0:count:2]
            count, step = len(kept), 2 * step
            readings[:count] = kept
    return {"points": [[i * step, readings[i]] for i in range(count)], "ended": ended}


def _idle_interpreter() -> dict[str, Any]:
    """``rss.usage()`` of one more process, that runs nothing: this one has modules of its own."""
    import subprocess

    code = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        if child.stdout is not None:
            child.stdout.readline()  # it has started
        folder = "/proc/{}/".format(child.pid)
        found = rss.usage(folder + "status", folder + "smaps_rollup")
    told = {key: value.replace(folder, "/proc/self/") for key, value in found.items() if isinstance(value, str)}
    missing = {key: value.replace(folder, "/proc/self/") for key, value in found.get("missing", {}).items()}
    return {**found, **told, "missing": missing, "method": "fresh process, peak since its start"}


def _peak_then_reset() -> Optional[int]:
    found = rss.peak()
    rss.reset_peak()
    return found


@contextlib.contextmanager
def _polled(read: Callable[[], Optional[int]]) -> Iterator[list[int]]:
    """A list with the largest value that ``read`` gives during the block; empty where it gives none."""
    most: list[int] = []
    stop = threading.Event()

    def poll() -> None:
        while True:
            last = stop.is_set()  # one reading comes after the block's end
            value = read()
            if value is not None:
                most[:] = [max([value, *most])]
            if last:
                return
            stop.wait(POLL_S)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        stop.set()
        thread.join()


def _load(runner: Runner, request: Request) -> Loaded:
    return runner.load(runner.BASELINE if request["stage"] == "runtime" else request["path"], request["options"])


def _binds(runner: Runner, loaded: Loaded, request: Request) -> list[Callable[[], Call]]:
    """For each sample what reads it and gives its call."""
    if request["stage"] == "runtime":
        return [lambda: loaded.bind(runner.baseline_feeds())]
    found: list[Callable[[], Call]] = [partial(_bind, runner, loaded, files) for files in request["samples"]]
    return found or [lambda: loaded.bind({})]


def _bind(runner: Runner, loaded: Loaded, files: Mapping[str, str]) -> Call:
    return loaded.bind(runner.read_feeds(files))


def _told(found: dict[str, Any]) -> dict[str, Any]:
    """Name what steers the allocator: with glibc, fixed thresholds change a peak by a fifth."""
    names = sorted(name for name in os.environ if name.startswith(("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")))
    if names and "method" in found:
        found["method"] += ", with {} set".format(", ".join(names))
    return found
