"""How subjects are measured: fresh processes in alternation, raw samples kept."""

from __future__ import annotations

import dataclasses
import os
import random
import time
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence

from runtime_bench import cgroup, environment, memory, process, summary
from runtime_bench.errors import BenchFailure

SCHEMA = "edgeopt.measurement/1"
SEED = 7
NO_RECORD: Mapping[str, Any] = {
    "phases_ns": {},
    "warmup_ns": [],
    "warmup_calls": 0,
    "warmup_stable": False,
    "steady_ns": [],
    "every": 1,
    "cut_short": True,
}
"""What the record of a failed process holds beside its error."""

STARTUP_S = 300.0
"""Time that a worker may take beyond its calls: start, imports, load."""


class Effort(NamedTuple):
    """How much is measured. A process stops at ``iterations`` timed calls and ``steady_s``, or at ``steady_cap_s``."""

    processes: int
    iterations: int
    steady_s: float
    warmup_s: float
    warmup_cap_s: float
    steady_cap_s: float


EFFORTS = {
    "quick": Effort(3, 50, 0.5, 0.5, 3.0, 30.0),
    "standard": Effort(10, 100, 1.5, 0.5, 10.0, 60.0),
    "release": Effort(20, 150, 3.0, 0.5, 10.0, 120.0),
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
    """

    name: str
    path: str
    sha256: str
    runner: str = "onnxruntime"
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    file: Optional[str] = None


def measure(
    subjects: Sequence[Subject],
    samples: Sequence[Mapping[str, str]],
    *,
    effort: str = "quick",
    threads: int = 1,
    seconds: Optional[float] = None,
    memory: bool = True,
    progress: Optional[Callable[[str], None]] = None,
) -> dict[str, Any]:
    """Measure subjects side by side and return the measurement (``edgeopt.measurement/1``).

    Args:
        subjects: run in ABBA order: forward in even rounds, backward in odd ones.
        samples: input name -> ``.npy`` file; calls cycle over them.
        effort: a key of ``EFFORTS``.
        threads: wanted; lowered to what affinity and cgroup quota allow.
        seconds: limit of the timing pass. Processes get equal shares, at least one round is always made.
        memory: measure memory as well, in processes of its own after the timing pass.
        progress: is told what is running.

    Raises BenchFailure when all processes of a subject failed, RuntimeMissing when its runtime is not there,
    ValueError for bad arguments. A process that fails beside good ones is recorded with its error.
    """
    if effort not in EFFORTS:
        raise ValueError('no effort "{}"; there are: {}'.format(effort, ", ".join(EFFORTS)))
    if not subjects or len({subject.name for subject in subjects}) != len(subjects):
        raise ValueError("subjects must be there and have names of their own")
    if threads < 1 or (seconds is not None and seconds <= 0):
        raise ValueError("threads and seconds must be above 0")
    tell = progress or (lambda text: None)
    described = environment.describe()
    throttled = cgroup.throttled_periods()
    used = environment.usable_threads(threads)
    requests = {subject.name: _request(subject, samples, used) for subject in subjects}
    timing = _timing_pass(subjects, requests, EFFORTS[effort], seconds, tell)
    stops = cgroup.throttled_periods()
    figures = _memory_pass(subjects, requests, tell) if memory else {}
    entries = [
        {
            "name": subject.name,
            "file": subject.file or os.path.basename(subject.path),
            "sha256": subject.sha256,
            "runtime": timing.runtimes[subject.name],
            "processes": timing.processes[subject.name],
            "memory": figures.get(subject.name) or _not_measured(),
        }
        for subject in subjects
    ]
    described["throttled_periods"] = None if stops is None or throttled is None else stops - throttled
    if described["throttled_periods"] is None:
        described["missing"]["throttled_periods"] = "no nr_throttled in the control group's cpu.stat"
    facts = {
        "threads": used,
        "requested": threads,
        "throttled": described["throttled_periods"],
        "out_of_time": timing.out_of_time,
    }
    return {
        "schema": SCHEMA,
        "effort": effort,
        "threads": used,
        "threads_requested": threads,
        "seed": SEED,
        "order": timing.order,
        "subjects": entries,
        "environment": described,
        "advice": summary.advice(entries, described, facts),
    }


class _Timing(NamedTuple):
    order: list[str]
    processes: dict[str, list[dict[str, Any]]]
    runtimes: dict[str, Any]
    out_of_time: bool


def _request(subject: Subject, samples: Sequence[Mapping[str, str]], threads: int) -> dict[str, Any]:
    return {
        "runner": subject.runner,
        "path": subject.path if subject.runner == "null" else os.path.abspath(subject.path),
        "options": {**subject.options, "threads": threads},
        "samples": [{name: os.path.abspath(path) for name, path in files.items()} for files in samples],
    }


def _timing_pass(
    subjects: Sequence[Subject],
    requests: Mapping[str, Mapping[str, Any]],
    effort: Effort,
    seconds: Optional[float],
    tell: Callable[[str], None],
) -> _Timing:
    result = _Timing([], {s.name: [] for s in subjects}, {}, False)
    rng = random.Random(SEED)
    start = time.monotonic()
    for round_ in range(effort.processes):
        if seconds is not None and round_ and time.monotonic() - start >= seconds:
            result = result._replace(out_of_time=True)
            break
        for position, subject in enumerate(subjects if round_ % 2 == 0 else list(reversed(subjects))):
            tell("{}: process {} of {}".format(subject.name, round_ + 1, effort.processes))
            left = (effort.processes - round_) * len(subjects) - position
            now = time.monotonic()
            until = None if seconds is None else now + max(start + seconds - now, 0) / left
            record = _time_one(requests[subject.name], effort, until, rng)
            runtime = record.pop("runtime", None)
            if runtime is not None:
                result.runtimes.setdefault(subject.name, runtime)
            result.order.append(subject.name)
            result.processes[subject.name].append(record)
        for subject in subjects:
            _give_up(subject, result.processes[subject.name], last=round_ + 1 == effort.processes)
    for subject in subjects:
        _give_up(subject, result.processes[subject.name], last=True)
    return result


def _time_one(request: Mapping[str, Any], effort: Effort, until: Optional[float], rng: random.Random) -> dict[str, Any]:
    plan = {**effort._asdict(), "until": until}
    timeout = STARTUP_S + 2 * (effort.warmup_cap_s + effort.steady_cap_s)
    try:
        answer = process.run({**request, "job": "time", "plan": plan}, timeout, rng)
    except process.WorkerError as error:
        return {**NO_RECORD, "error": str(error)}
    return {**answer, "cut_short": len(answer["steady_ns"]) < effort.iterations, "error": None}


def _give_up(subject: Subject, records: Sequence[Mapping[str, Any]], *, last: bool) -> None:
    """Raise when nothing of a subject works: at the end, or after three failures and no success."""
    errors = [record["error"] for record in records if record["error"]]
    if len(errors) == len(records) and (last or len(errors) >= 3):
        raise BenchFailure("{}: no process could measure it: {}".format(subject.name, errors[-1]))


def _memory_pass(
    subjects: Sequence[Subject], requests: Mapping[str, Mapping[str, Any]], tell: Callable[[str], None]
) -> dict[str, Any]:
    shared: dict[str, Any] = {}

    def run(job: Mapping[str, Any]) -> Mapping[str, Any]:
        """Subjects with one runner and one set of options share the two lower stages."""
        options = sorted(job["options"].items()) if job["stage"] == "runtime" else ""
        key = "{} {} {} {}".format(job["stage"], job["runner"], options, job["repeat"])
        if job["stage"] == "model":
            return process.run(job, job["timeout_s"])
        if key not in shared:
            shared[key] = process.run(job, job["timeout_s"])
        return dict(shared[key])

    figures = {}
    for subject in subjects:
        tell("{}: memory".format(subject.name))
        figures[subject.name] = memory.figures(requests[subject.name], STARTUP_S, run)
    return figures


def _not_measured() -> dict[str, Any]:
    return {stage: {"bytes": None, "reason": "not asked for"} for stage in memory.STAGES}
