"""The memory figures of a subject, each the difference of two fresh processes.

``interpreter`` is Python that runs nothing; ``runtime`` is a worker with the runtime and a one-node model, minus the
interpreter; ``model`` is the artifact, loaded and called, minus the runtime with the one-node model. All three are
peaks: what loading needs is in them. ``load`` and ``calls`` are the model's peaks of one phase alone, ``steady`` is
what stays resident after the last call, ``growth`` is what each further call adds. What the worker itself needs is
part of ``runtime``: 3 MB, of which numpy would import two.

Peaks may differ between processes. glibc raises its threshold for memory of its own mapping when a large block is
freed; later blocks share one heap, whose holes depend on the order of allocations, and so on addresses, which the
kernel draws anew for each process. Fixed addresses would give one draw of many; fixed thresholds give a lower figure,
that users do not get. So the scatter is measured: where it is large, more processes are asked and the figures are
means. A few sizes that each occur often make the median of one measurement one of them, of the next another.
"""

from __future__ import annotations

import re
import time
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Sequence

from runtime_bench import growth, process
from runtime_bench.statistics import stats


class Plan(NamedTuple):
    """How much is measured: processes of each stage, and seconds that the growth process may call."""

    repeats: int
    growth_s: float


PLANS: Mapping[str, Plan] = {"quick": Plan(3, 2.0), "standard": Plan(5, 10.0), "release": Plan(5, 10.0)}
"""By effort."""

CALLS = 3
"""Calls of each sample before memory is read: the second may allocate again, by the plan that the runtime made in the
first."""

SCATTER = 0.05
SMALL = 1 << 20
SCATTERED_REPEATS = 11
"""Where runtime + model differ between repeats by more than the share ``SCATTER`` and by more than ``SMALL`` bytes, so
many repeats are made. For three sizes 7 % apart, two means of 11 then differ by less than 5 % in 19 of 20 cases; two
medians, whatever their number, in about every second where two of the sizes are equally common."""

MAX_SHAPES = 16
STAGES = ("interpreter", "runtime", "model")
FIGURES = (*STAGES, "load", "calls", "steady", "growth")
RESIDENT_PARTS = {part + "_bytes": part for part in ("anonymous", "file", "pss", "uss")}
PARTS: Mapping[str, Mapping[str, str]] = {"load_peak": {"anonymous_bytes": "load_anonymous"}, "calls_peak": {}}
"""Parts of a figure -> what they are called in a worker's answer."""

LATE = "no time was left"

Run = Callable[[Mapping[str, Any]], Mapping[str, Any]]
Round = Dict[str, Mapping[str, Any]]  # what the stages of one repeat answered


def figures(
    request: Mapping[str, Any],
    timeout_s: float,
    run: Run,
    *,
    plan: Plan = PLANS["quick"],
    deadline: Optional[float] = None,
) -> dict[str, Any]:
    """Measure the memory of one subject.

    Args:
        request: ``runner``, ``path``, ``options`` and ``samples`` as for a timing job. One sample of each distinct
            set of shapes is called, in turn.
        timeout_s: of each process, beside the seconds that growth may call.
        run: does one job, ``{"job": "memory" | "growth", "stage", "repeat", ..}``, in a fresh process. It may give the
            answers of the stages ``interpreter`` and ``runtime`` again for another subject with the same runner and
            options; those of the stage ``model`` are the artifact's own.
        plan: a value of ``PLANS``.
        deadline: time.monotonic() after which no further process is started. One repeat is always made.

    Returns, by the names in ``FIGURES``, ``{"bytes", "raw_bytes", "source", "method"}`` or ``{"bytes": None,
    "reason"}``. ``raw_bytes`` has one difference a repeat; ``bytes`` is their median, or their mean where the
    repeats scatter, not below 0. The figures of ``STAGES`` and ``steady`` also have ``anonymous_bytes``,
    ``file_bytes``, ``pss_bytes`` and ``uss_bytes``, differences of what is resident after the last call, and
    ``missing`` with the reason where one of them is None. ``growth`` is as ``growth.figure`` gives it.
    """
    job = {**request, "samples": distinct_shapes(request["samples"]), "calls": CALLS}
    rounds: list[Round] = []
    broken: dict[str, str] = {}
    grown: dict[str, Any] = {}
    cost = 0.0
    while len(rounds) < plan.repeats or (_scatter(rounds) and len(rounds) < SCATTERED_REPEATS):
        began = time.monotonic()
        if rounds and deadline is not None and began + cost > deadline:
            break
        rounds.append(_round({**job, "job": "memory", "repeat": len(rounds), "timeout_s": timeout_s}, run, broken))
        cost = time.monotonic() - began
        if not grown:  # early, so that an early deadline leaves one of each figure
            grown = _growth(job, timeout_s, run, plan, deadline, broken)
    result = {
        name: _figure(rounds, stage, below, key, broken)
        for name, stage, below, key in (
            ("interpreter", "interpreter", None, "peak"),
            ("runtime", "runtime", "interpreter", "peak"),
            ("model", "model", "runtime", "peak"),
            ("load", "model", "runtime", "load_peak"),
            ("calls", "model", "runtime", "calls_peak"),
            ("steady", "model", "runtime", "resident"),
        )
    }
    result["growth"] = grown
    return result


def nothing(reason: str) -> dict[str, Any]:
    """The memory of a subject that was not measured."""
    figure = {"bytes": None, "reason": reason}
    return {**{name: dict(figure) for name in FIGURES[:-1]}, "growth": {"bytes_per_call": None, "reason": reason}}


def distinct_shapes(samples: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """The first sample of each set of input shapes, in order; the ``MAX_SHAPES`` largest where there are more.

    Args:
        samples: input name -> ``.npy`` file. Only the headers are read; other files count as of one shape.
    """
    found: dict[Any, Mapping[str, str]] = {}
    for sample in samples:
        found.setdefault(tuple(sorted((name, _shape(path)) for name, path in sample.items())), sample)
    largest = sorted(found, key=lambda shapes: -sum(_elements(shape) for _, shape in shapes))[:MAX_SHAPES]
    return [sample for shapes, sample in found.items() if shapes in largest]


def _shape(path: str) -> tuple[int, ...]:
    try:
        with open(path, "rb") as stream:
            head = stream.read(1024)
    except OSError:
        return ()
    match = re.search(rb"'shape': *\(([0-9, ]*)\)", head) if head.startswith(b"\x93NUMPY") else None
    return tuple(int(word) for word in match.group(1).split(b",") if word.strip()) if match else ()


def _elements(shape: Sequence[int]) -> int:
    total = 1
    for length in shape:
        total *= length
    return total


def _round(job: Mapping[str, Any], run: Run, broken: dict[str, str]) -> Round:
    """All stages, one after the other. A stage that fails is noted in ``broken`` and not tried again."""
    found: Round = {}
    for stage in STAGES:
        if stage in broken:
            break
        try:
            usage = run({**job, "stage": stage})
        except process.WorkerError as error:
            broken[stage] = str(error)
            break
        if "reason" in usage:
            broken[stage] = str(usage["reason"])
            break
        found[stage] = usage
    return found


def _growth(
    job: Mapping[str, Any],
    timeout_s: float,
    run: Run,
    plan: Plan,
    deadline: Optional[float],
    broken: Mapping[str, str],
) -> dict[str, Any]:
    seconds = plan.growth_s if deadline is None else min(plan.growth_s, (deadline - time.monotonic()) / 2)
    if seconds <= 0 or broken:
        return {"bytes_per_call": None, "reason": LATE if seconds <= 0 else next(iter(broken.values()))}
    limits = {"least": growth.LEAST_CALLS, "flat": growth.FLAT, "seconds": seconds}
    request = {**job, **limits, "job": "growth", "stage": "model", "repeat": 0, "timeout_s": timeout_s + seconds}
    try:
        return growth.figure(run(request))
    except process.WorkerError as error:
        return {"bytes_per_call": None, "reason": str(error)}


def _scatter(rounds: Sequence[Round]) -> bool:
    charged = [found["model"]["peak"] - found["interpreter"]["peak"] for found in rounds if "model" in found]
    return bool(charged) and max(charged) - min(charged) > max(SCATTER * stats.mean(charged), SMALL)


def _figure(
    rounds: Sequence[Round], stage: str, below: Optional[str], key: str, broken: Mapping[str, str]
) -> dict[str, Any]:
    """What ``key`` and the parts are in ``stage`` beyond the stage ``below``."""
    good = [found for found in rounds if stage in found]
    if not good:
        return {"bytes": None, "reason": next(broken[name] for name in STAGES if name in broken)}
    scatter = _scatter(rounds)

    def differences(part: str) -> list[int]:
        pairs = [(found[stage][part], found[below][part] if below else 0) for found in good]
        return [] if any(None in pair for pair in pairs) else [upper - lower for upper, lower in pairs]

    def middle(part: str) -> Optional[int]:
        values = differences(part)
        if not values:
            return None
        return max(round(stats.mean(values)) if scatter else stats.percentile(values, 0.5), 0)

    usage = good[0][stage]
    if middle(key) is None:
        return {"bytes": None, "reason": usage["missing"].get(key, "not in {}".format(usage["source"]))}
    figure: dict[str, Any] = {"bytes": middle(key)}
    missing = {}
    for name, part in PARTS.get(key, RESIDENT_PARTS).items():
        figure[name] = middle(part)
        if figure[name] is None:
            missing[name] = usage["missing"].get(part, "not in {}".format(usage["source"]))
    if missing:
        figure["missing"] = missing
    what = {
        "peak": "peak",
        "load_peak": "peak while loading, reset before; its anonymous part polled",
        "calls_peak": "peak of {} calls of each set of shapes, reset after loading".format(CALLS),
        "resident": "resident after the last call, no peak",
    }[key]
    minus = ", minus the {} stage".format(below) if below else ""
    kind = "mean of {} repeat{}, which scatter" if scatter else "median of {} repeat{}"
    method = "{}; {}{}; {}".format(usage["method"], what, minus, kind.format(len(good), "s" * (len(good) != 1)))
    if stage in broken:
        method += "; one more failed: {}".format(broken[stage])
    return {**figure, "raw_bytes": differences(key), "source": usage["source"], "method": method}
