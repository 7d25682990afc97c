"""Figures from the raw samples of a measurement. Everything here can be recomputed from the JSON alone."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

from runtime_bench import stats


def steady_processes(subject: Mapping[str, Any]) -> list[list[int]]:
    """Steady latencies in ns, one list a process in the order of the rounds; empty for a failed process."""
    return [[] if process["error"] else process["steady_ns"] for process in subject["processes"]]


def summarize(subject: Mapping[str, Any]) -> dict[str, Any]:
    """Summarize one subject of a measurement; times in nanoseconds.

    Returns ``n`` (timed calls), ``processes`` and ``failed``, ``median_ns`` with ``median_low_ns`` and
    ``median_high_ns`` (t interval on the logarithms of the per-process medians; None with one process), ``p90_ns``,
    ``p95_ns``, ``p99_ns`` (None with too few calls: then ``p99_needs`` says how many), ``mean_ns``, ``cv``,
    ``mad_ns``, ``min_ns``, ``max_ns``, and the medians over processes ``import_median_ns``, ``load_median_ns``,
    ``first_median_ns``. Latencies are None where every process failed.
    """
    processes = steady_processes(subject)
    good = [values for values in processes if values]
    values = [value for process in good for value in process]
    interval = stats.log_interval([max(stats.percentile(process, 0.5), 1) for process in good])
    result: dict[str, Any] = {
        "n": len(values),
        "processes": len(good),
        "failed": len(processes) - len(good),
        "median_ns": stats.percentile(values, 0.5) if values else None,
        "median_low_ns": None if interval.low is None else round(interval.low),
        "median_high_ns": None if interval.high is None else round(interval.high),
    }
    for q, needs in stats.NEEDS.items():
        name = "p{:.0f}".format(q * 100)
        result[name + "_ns"] = stats.supported_percentile(values, q)
        if len(values) < needs:
            result[name + "_needs"] = needs
    result.update(
        mean_ns=stats.mean(values) if values else None,
        cv=stats.coefficient_of_variation(values) if values else None,
        mad_ns=stats.median_absolute_deviation(values) if values else None,
        min_ns=min(values, default=None),
        max_ns=max(values, default=None),
    )
    for phase in ("import", "load", "first"):
        times = [process["phases_ns"][phase] for process in subject["processes"] if not process["error"]]
        result[phase + "_median_ns"] = stats.percentile(times, 0.5) if times else None
    return result


def charged_bytes(memory: Mapping[str, Any], *, worst: bool = True) -> Optional[int]:
    """What a budget counts of a subject's ``memory``: runtime plus model, the interpreter left out.

    With ``worst`` the largest over the repeats, because a limit holds for every run and not for every second one; else
    the sum of the medians, as tables show it. None where one of the two was not measured.
    """
    parts = [memory[stage] for stage in ("runtime", "model")]
    if any(part["bytes"] is None for part in parts):
        return None
    middle = sum(int(part["bytes"]) for part in parts)
    raw = [part.get("raw_bytes") or [] for part in parts]
    return max([middle] + [int(sum(pair)) for pair in zip(*raw)]) if worst else middle


def compare(measurement: Mapping[str, Any], a: str, b: str) -> dict[str, Any]:
    """Latency of subject ``b`` over subject ``a``, paired by round of the alternation.

    Returns ``{"a", "b", "ratio", "low", "high", "pairs", "verdict"}``: 95 % t interval on the logarithms of the
    ratios of per-process medians. ``low`` and ``high`` are None with fewer than two pairs. Raises KeyError for an
    unknown subject.
    """
    subjects = {subject["name"]: subject for subject in measurement["subjects"]}
    result = stats.ratio(steady_processes(subjects[a]), steady_processes(subjects[b]))
    return {"a": a, "b": b, **result._asdict(), "verdict": stats.verdict(result)}


def advice(
    subjects: Sequence[Mapping[str, Any]], environment: Mapping[str, Any], facts: Mapping[str, Any]
) -> list[dict[str, str]]:
    """What should make a reader careful, as data: ``{"code", "severity": "info" | "warning", "text"}``.

    Args:
        subjects: of the measurement.
        environment: of the measurement.
        facts: ``threads``, ``requested``, ``throttled`` (periods, or None), ``out_of_time`` (bool).
    """
    found = []

    def add(code: str, severity: str, text: str) -> None:
        found.append({"code": code, "severity": severity, "text": text})

    rounds = min(len([p for p in steady_processes(s) if p]) for s in subjects)
    if rounds < 5:
        add(
            "few_processes",
            "info",
            _count(rounds, "process") + " a model: intervals are wide (--effort standard runs 10)",
        )
    for subject in subjects:
        _advise(subject, add)
    load, cpus = environment["load1"], environment["cpus_online"]
    if load is not None and load > cpus:
        add(
            "load_above_cpus",
            "warning",
            "load average {:.1f} on {}: other work ran meanwhile".format(load, _count(cpus, "CPU")),
        )
    if facts["throttled"]:
        text = "stopped {} for the CPU quota of the control group: latencies include the stops"
        add("throttled", "warning", text.format(_count(facts["throttled"], "time")))
    if facts["threads"] < facts["requested"]:
        text = "{} instead of {}: affinity and quota allow no more"
        add("threads_limited", "info", text.format(_count(facts["threads"], "thread"), facts["requested"]))
    if facts["out_of_time"]:
        add("out_of_time", "warning", "the time limit ended the measurement before all processes had run")
    governor = environment["governor"]
    if governor not in (None, "performance"):
        add("governor", "info", "CPU frequency governor is {}, not performance".format(governor))
    return found


def _advise(subject: Mapping[str, Any], add: Any) -> None:
    name, summary = subject["name"], summarize(subject)
    medians = [stats.percentile(values, 0.5) for values in steady_processes(subject) if values]
    good = [process for process in subject["processes"] if not process["error"]]
    errors = [process["error"] for process in subject["processes"] if process["error"]]
    if errors:
        text = "{}: {} of {} failed: {}"
        add(
            "process_failed",
            "warning",
            text.format(name, len(errors), _count(len(subject["processes"]), "process"), errors[0]),
        )
    if summary["cv"] is not None and summary["cv"] > 0.10:
        text = "{}: the CV of the latency is {:.0f} %; the slowest call took {:.1f} times the median"
        slowest = summary["max_ns"] / max(summary["median_ns"], 1)
        add("high_cv", "warning", text.format(name, summary["cv"] * 100, slowest))
    if len(medians) >= 3 and medians[0] > 1.1 * stats.percentile(medians[1:], 0.5):
        share = medians[0] / stats.percentile(medians[1:], 0.5) - 1
        add("slow_first_process", "warning", "{}: the first process was {:.0f} % slower".format(name, share * 100))
    cold = sum(not process["warmup_stable"] for process in good)
    if cold:
        add("not_settled", "warning", "{}: {} had not settled after warm-up".format(name, _count(cold, "process")))
    short = sum(process["cut_short"] for process in good)
    if short:
        add(
            "cut_short",
            "warning",
            "{}: {} made fewer calls than the effort asks for".format(name, _count(short, "process")),
        )
    raw = subject["memory"]["model"].get("raw_bytes") or [0]
    if max(raw) - min(raw) > max(1e6, 0.05 * stats.percentile(raw, 0.5)):
        text = "{}: the model's peak memory was {:.1f} to {:.1f} MB over {} processes"
        add("memory_varies", "warning", text.format(name, min(raw) / 1e6, max(raw) / 1e6, len(raw)))
    if "p99_needs" in summary:
        text = "{}: no p99 from {}, it needs {}"
        add("no_p99", "info", text.format(name, _count(summary["n"], "call"), summary["p99_needs"]))


def _count(number: int, noun: str) -> str:
    """``1 call``, ``2 calls``, ``2 processes``."""
    plural = "es" if noun.endswith("s") else "s"
    return "{} {}{}".format(number, noun, "" if number == 1 else plural)
