"""A runner without a device: tests and dry runs. The path says what a call does, as verbs joined by commas.

In each call, in the order given:

- ``spin:200us`` is busy for that long by the clock (ns, us, ms); ``loop:20000`` does that many rounds of fixed work.
- ``leak:2048`` keeps that many bytes more; ``plateau:2048:300`` does so in the first 300 calls only.
- ``drop:N:1MB`` in each N-th call gives the pages of a buffer of that size (kB, MB) back and touches them again.
- ``rival:N:20ms`` in each N-th call wakes a process on the same CPUs, which is busy for that long.
- ``stop:N:20ms`` in each N-th call has this process stopped (SIGSTOP) from outside, and continued after that time.
- ``killat:N:9`` in the N-th call sends itself that signal.

When it is loaded: ``kill:9`` sends itself that signal, ``fail:words`` raises, ``hang:`` sleeps for an hour.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Callable, Mapping, Union

from runtime_bench.runners import Loaded

BASELINE: Union[str, bytes] = "spin:0ns"

_RUNTIME = {"name": "null", "version": "0", "provider": "none", "asked": "none"}
_NANOSECONDS = {"ns": 1, "us": 1000, "ms": 1000000}
_BYTES = {"kB": 1000, "MB": 1000000}
_PAGE = 4096

Call = Callable[[], Any]


def import_runtime() -> None:
    """Nothing to import."""


def runtime_info() -> Mapping[str, Any]:
    """Name, version and providers of nothing."""
    return {"name": "null", "version": "0", "providers": ["none"]}


def load(path: Union[str, bytes], options: Mapping[str, Any]) -> Loaded:
    """Interpret the path; the inputs are ignored and there is no output."""
    parts = []
    for text in os.fsdecode(path).rpartition("/")[2].split(","):
        verb, _, rest = text.partition(":")
        if verb not in _VERBS:
            raise ValueError("cannot load {!r}".format(text))
        call = _VERBS[verb](rest)
        if call is not None:
            parts.append(call)

    def run() -> None:
        for part in parts:
            part()

    call = parts[0] if len(parts) == 1 else run
    return Loaded(lambda feeds: call, lambda feeds: {}, dict(_RUNTIME))


def baseline_feeds() -> Mapping[str, Any]:
    """No inputs."""
    return {}


def read_feeds(files: Mapping[str, str]) -> Mapping[str, Any]:
    """The file names themselves; nothing is read."""
    return dict(files)


def _scaled(text: str, units: Mapping[str, int]) -> int:
    number, unit = text[:-2], text[-2:]
    if unit not in units or not number.isdigit():
        raise ValueError("{!r} is not a number with one of the units {}".format(text, ", ".join(units)))
    return int(number) * units[unit]


def _spin(rest: str) -> Call:
    clock, duration = time.perf_counter_ns, _scaled(rest, _NANOSECONDS)

    def call() -> None:
        end = clock() + duration
        while clock() < end:
            pass

    return call


def _loop(rest: str) -> Call:
    rounds = range(int(rest))

    def call() -> None:
        for _ in rounds:
            pass

    return call


def _leak(rest: str) -> Call:
    size, kept = int(rest), []
    return lambda: kept.append(bytearray(b"\1") * size)


def _plateau(rest: str) -> Call:
    size, calls = (int(part) for part in rest.split(":"))
    kept: list[bytearray] = []

    def call() -> None:
        if len(kept) < calls:
            kept.append(bytearray(b"\1") * size)

    return call


def _every(rest: str, make: Callable[[str], Call]) -> Call:
    """``N:rest``: the call that ``make(rest)`` gives, in each N-th call."""
    number, _, rest = rest.partition(":")
    every, seen, call = int(number), [0], make(rest)

    def counted() -> None:
        seen[0] += 1
        if seen[0] % every == 0:
            call()

    return counted


def _drop(rest: str) -> Call:
    import mmap

    buffer = mmap.mmap(-1, _scaled(rest, _BYTES), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def touch() -> None:
        for offset in range(0, len(buffer), _PAGE):
            buffer[offset] = 1

    def call() -> None:
        buffer.madvise(mmap.MADV_DONTNEED)
        touch()

    touch()
    return call


def _rival(rest: str) -> Call:
    wake, _ = _helper(_spin(rest))

    def call() -> None:
        wake()
        os.sched_yield()  # or the scheduler may let this call end first

    return call


def _stop(rest: str) -> Call:
    seconds, parent = _scaled(rest, _NANOSECONDS) / 1e9, os.getpid()

    def stop() -> None:
        os.kill(parent, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(parent, signal.SIGCONT)

    wake, wait = _helper(stop, outside=True)

    def call() -> None:
        wake()
        wait()

    return call


def _helper(job: Call, *, outside: bool = False) -> "tuple[Call, Call]":
    """Fork a process that does the job each time it is woken: the call that wakes it, and one that waits for its end.

    It stays on the CPUs of this process, or runs ``outside`` on any; only there its end is told. It dies with this
    process, whose end closes the pipe that it reads from.
    """
    wake_read, wake_write = os.pipe()
    done_read, done_write = os.pipe()
    if os.fork() == 0:
        try:
            os.close(wake_write)
            if outside and hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(0, range(os.cpu_count() or 1))
            while os.read(wake_read, 1):
                job()
                if outside:
                    os.write(done_write, b"x")
        finally:
            os._exit(0)
    os.close(wake_read)
    os.close(done_write)
    return lambda: os.write(wake_write, b"x"), lambda: os.read(done_read, 1)


def _kill_at(rest: str) -> Call:
    return _every(rest, lambda number: lambda: os.kill(os.getpid(), int(number)))


def _kill(rest: str) -> None:
    os.kill(os.getpid(), int(rest))


def _fail(rest: str) -> None:
    raise ValueError(rest)


def _hang(rest: str) -> None:
    time.sleep(3600)


_VERBS: Mapping[str, Callable[[str], Any]] = {
    "spin": _spin,
    "loop": _loop,
    "leak": _leak,
    "plateau": _plateau,
    "drop": lambda rest: _every(rest, _drop),
    "rival": lambda rest: _every(rest, _rival),
    "stop": lambda rest: _every(rest, _stop),
    "killat": _kill_at,
    "kill": _kill,
    "fail": _fail,
    "hang": _hang,
}
