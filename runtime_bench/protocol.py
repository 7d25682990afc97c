"""How subjects are measured: fresh processes in alternation, raw samples kept."""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence

from runtime_bench import audit, rounds, session
from runtime_bench import memory as memory_figures
from runtime_bench.judge.stability import derive
from runtime_bench.machine import affinity, cgroup, environment, sampler

SCHEMA = "edgeopt.measurement/2"
MIN_FPS, MAX_FPS = 0.1, 10000.0
"""A slower load would make the few calls that are always made outlast a worker's time."""

IDLE_FROM_S = 10.0
"""With less time in all, none is spent to learn the idle power."""


class Effort(NamedTuple):
    """How much is measured. A process stops at ``iterations`` timed calls and ``steady_s``, or at ``steady_cap_s``.

    Then it makes ``bursts`` bursts of ``burst_calls`` after ``idle_s`` of rest each. With ``sustained_s`` one more
    process a subject runs for so long after all others.
    """

    processes: int
    iterations: int
    steady_s: float
    warmup_s: float
    warmup_cap_s: float
    steady_cap_s: float
    bursts: int = 0
    burst_calls: int = 5
    idle_s: float = 0.25
    sustained_s: float = 0.0


EFFORTS = {
    "quick": Effort(3, 50, 0.5, 0.5, 3.0, 30.0),
    "standard": Effort(10, 100, 1.5, 0.5, 10.0, 60.0, bursts=1),
    "release": Effort(20, 200, 3.0, 0.5, 10.0, 120.0, bursts=1, sustained_s=60.0),
}


@dataclasses.dataclass(frozen=True)
class Subject:
    """An artifact to measure.

    Attributes:
        name: how the measurement calls it, unique among the subjects; a precision, as a rule.
        path: the file.
        sha256: of the file, copied into the measurement.
        runner: a key of ``runners.RUNNERS``.
        options: for the runner, such as ``provider`` and session config entries.
        file: what the measurement calls the file; its base name if None, so that no folder of the host is told.
        precision: ``int8`` or ``float32`` where it is claimed; the audit is held against it.
        data: the second file, where the model has one; it counts in the bytes.
    """

    name: str
    path: str
    sha256: str
    runner: str = "onnxruntime"
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    file: Optional[str] = None
    precision: Optional[str] = None
    data: Optional[str] = None


def measure(
    subjects: Sequence[Subject],
    samples: Sequence[Mapping[str, str]],
    *,
    effort: str = "quick",
    threads: int = 1,
    seconds: Optional[float] = None,
    memory: bool = True,
    progress: Optional[Callable[[str], None]] = None,
    fps: Optional[float] = None,
    pin: bool = True,
    half_width: Optional[float] = None,
    allow_fallback: bool = False,
    isa: Sequence[str] = (),
) -> dict[str, Any]:
    """Measure subjects side by side and return the measurement (``edgeopt.measurement/2``).

    Args:
        subjects: run in ABBA order: forward in even rounds, backward in odd ones.
        samples: input name -> ``.npy`` file; calls cycle over them.
        effort: a key of ``EFFORTS``.
        threads: wanted; lowered to what affinity and cgroup quota allow.
        seconds: limit of everything: timing, sustained processes, memory. One round of timing and one of memory are
            always made; ``cut`` in the measurement names what it made shorter.
        memory: measure memory as well, in processes of its own after all others.
        progress: is told what is running.
        fps: call that often a second, with latency from the scheduled start; back to back if None.
        pin: keep the workers on as many CPUs as there are threads, the fastest that this process may use.
        half_width: after the effort's rounds go on until the 95 % interval of the last subject over the first is
            narrower than this to both sides, relative to the ratio.
        allow_fallback: measure even where the runtime runs nodes on another provider than asked for.
        isa: instruction-set features of the device that the artifacts are for, recorded beside those of this one.

    Raises BenchFailure when all processes of a subject failed or nodes ran outside the provider that was asked for,
    RuntimeMissing when its runtime is not there, ValueError for bad arguments. A process that fails beside good ones
    is recorded with its error and with what it had measured before.
    """
    _check(subjects, effort, threads, seconds, fps, half_width)
    epoch, plan = time.perf_counter_ns(), EFFORTS[effort]
    limits = session.limit(seconds, sustained=plan.sustained_s > 0, memory=memory)
    tell = progress or (lambda text: None)
    used = environment.usable_threads(threads)
    cpus = affinity.choose(used) if pin else []
    common = {"threads": used, "cpus": cpus, "cpu_stat": cgroup.stat_path(), "epoch_ns": epoch}
    extra = {"allow_fallback": True} if allow_fallback else {}
    requests = {subject.name: {**_request(subject, samples, used, extra), **common} for subject in subjects}
    workers = session.Session(requests, {**plan._asdict(), "fps": fps}, epoch, tell)
    names = list(requests)
    described, before = environment.describe(), environment.begin()
    with sampler.sample(avoid_cpus=cpus, epoch_ns=epoch) as sampled:
        if seconds is None or seconds >= IDLE_FROM_S:
            sampled.measure_idle()
        audits = {subject.name: _audited(workers, subject, allow_fallback) for subject in subjects}
        timing = rounds.run(
            names,
            workers.time_one,
            processes=plan.processes,
            until=limits.timing,
            half_width=half_width,
            tell=tell,
        )
        sustained = _sustained(workers, names, plan, limits.sustained)
    events = sampled.result()
    described = environment.merge(described, events, environment.finish(before, events))
    figures = _memory(workers, names, effort, limits.all) if memory else {}
    if not cpus or workers.not_pinned:
        described["missing"]["affinity"] = workers.not_pinned or "not asked for"
    short = plan.sustained_s > 0 and any(record is None or record["cut_short"] for record in sustained.values())
    late = any(figure.get("reason") == memory_figures.LATE for own in figures.values() for figure in own.values())
    found = {
        name: {
            "runtime": _really(workers.runtimes[name], audits[name]),
            "audit": audits[name],
            "processes": timing.processes[name],
            "sustained": sustained[name],
            "memory": figures.get(name) or memory_figures.nothing("not asked for"),
        }
        for name in names
    }
    measurement = {
        "schema": SCHEMA,
        "effort": effort,
        "threads": used,
        "threads_requested": threads,
        "affinity": None if "affinity" in described["missing"] else cpus,
        "seed": session.SEED,
        "load": {"kind": "periodic", "fps": fps, "period_ns": round(1e9 / fps)} if fps else {"kind": "back_to_back"},
        "isa": list(isa),
        "seconds": seconds,
        "cut": [part for part, cut in (("timing", timing.cut), ("sustained", short), ("memory", late)) if cut],
        "clock": clock_facts(),
        "order": timing.order,
        "subjects": [{**_identity(subject), **found[subject.name]} for subject in subjects],
        "environment": described,
    }
    return {**measurement, "results": derive(measurement)}


def clock_facts(pairs: int = 1001) -> dict[str, int]:
    """``overhead_ns``: median distance of two readings of the clock one after the other; ``resolution_ns``: its step.

    Latencies hold the overhead once: it is told, not subtracted.
    """
    clock = time.perf_counter_ns
    distances = sorted(-clock() + clock() for _ in range(pairs))
    resolution = time.get_clock_info("perf_counter").resolution
    return {"overhead_ns": distances[pairs // 2], "resolution_ns": max(round(resolution * 1e9), 1)}


def _check(
    subjects: Sequence[Subject],
    effort: str,
    threads: int,
    seconds: Optional[float],
    fps: Optional[float],
    half_width: Optional[float],
) -> None:
    if effort not in EFFORTS:
        raise ValueError('no effort "{}"; there are: {}'.format(effort, ", ".join(EFFORTS)))
    if not subjects or len({subject.name for subject in subjects}) != len(subjects):
        raise ValueError("subjects must be there and have names of their own")
    if threads < 1 or (seconds is not None and not seconds > 0):
        raise ValueError("threads and seconds must be above 0")
    if fps is not None and not MIN_FPS <= fps <= MAX_FPS:
        raise ValueError("fps must be from {:g} to {:.0f}".format(MIN_FPS, MAX_FPS))
    if half_width is not None and (not half_width > 0 or len(subjects) < 2):
        raise ValueError("half_width must be above 0 and needs two subjects")


def _identity(subject: Subject) -> dict[str, Any]:
    return {
        "name": subject.name,
        "file": subject.file or os.path.basename(subject.path),
        "sha256": subject.sha256,
        "bytes": _bytes(subject),
        "precision": subject.precision,
    }


def _bytes(subject: Subject) -> Optional[int]:
    """Size of a subject's files; None where one is no file."""
    files = [subject.path] + ([subject.data] if subject.data else [])
    return sum(map(os.path.getsize, files)) if all(map(os.path.isfile, files)) else None


def _request(
    subject: Subject, samples: Sequence[Mapping[str, str]], threads: int, extra: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "runner": subject.runner,
        "path": subject.path if subject.runner == "null" else os.path.abspath(subject.path),
        "options": {**subject.options, "threads": threads, **extra},
        "samples": [{name: os.path.abspath(path) for name, path in files.items()} for files in samples],
    }


def _audited(workers: session.Session, subject: Subject, allow_fallback: bool) -> dict[str, Any]:
    """The audit of a subject. Raises BenchFailure where it ran elsewhere than asked and that is not allowed."""
    found = workers.audit(subject.name)
    audit.check(subject.name, str(found.get("asked") or subject.options.get("provider", "")), found, allow_fallback)
    return found


def _really(runtime: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """What the runtime says of itself, corrected by where the nodes ran: a session names what it was asked for."""
    provider = audit.main_provider(found) or runtime["provider"]
    return {**runtime, "provider": provider, "asked": found.get("asked", runtime["asked"])}


def _sustained(
    workers: session.Session, names: Sequence[str], plan: Effort, until: Optional[float]
) -> dict[str, Optional[dict[str, Any]]]:
    found: dict[str, Optional[dict[str, Any]]] = dict.fromkeys(names)
    for i, name in enumerate(names if plan.sustained_s else []):
        now = time.monotonic()
        found[name] = workers.sustained(name, None if until is None else now + max(until - now, 0) / (len(names) - i))
    return found


def _memory(workers: session.Session, names: Sequence[str], effort: str, until: Optional[float]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    shared: dict[str, Any] = {}
    for i, name in enumerate(names):
        now = time.monotonic()
        deadline = None if until is None else now + max(until - now, 0) / (len(names) - i)
        found[name] = workers.memory(name, effort, deadline, shared)
    return found
