"""What one subject's latencies give to doubt: one function a verdict, each yields its reasons with advice."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, NamedTuple, Optional

from runtime_bench.judge.causes import FAR
from runtime_bench.judge.summary import STEADY, more_than_chance
from runtime_bench.statistics import stats
from runtime_bench.units import count, duration, percent

PROCESSES = {"quick": 3, "standard": 10, "release": 20}
"""Processes that an effort promises."""

STRONGER = {"quick": "standard", "standard": "release"}

CV = 0.10
DISTURBED = 0.05
"""Share of far calls from which on a high CV is no matter of a few: the p95 is not the model's."""

ROBUST_CV = 0.05
RARE = 0.001
"""Far calls without a cause that are rarer than this would not show in a p99.9: told, and not held against anyone."""

AUTOCORRELATED = 0.3
FEW_PROCESSES = 5
FIRST_SLOWER = 0.10
UNSETTLED = 0.2
UNSTABLE_DRIFT = 0.05

REMEDIES = {
    "preempted": "stop what else runs on that CPU, or reserve the CPU (cpuset, isolcpus)",
    "throttled": "raise the CPU quota of the control group, or use fewer threads than it pays for",
    "page_fault": "find out what maps and unmaps memory during calls: the runtime's arena, or a lack of memory",
    "migrated": "pin it to a core: leave out --no-pin",
    "frequency": "fix the clock (governor performance, boost off), or let the machine cool down",
}
"""Cause of slow calls -> what to do about it."""


class Reason(NamedTuple):
    """A finding. ``severity`` is the grade that it forces; ``info`` forces none. ``subject`` None means all."""

    code: str
    severity: str
    subject: Optional[str]
    value: Optional[float]
    threshold: Optional[float]
    text: str
    advice: str


class Case(NamedTuple):
    """A subject as the checks see it."""

    subject: Mapping[str, Any]
    summary: Mapping[str, Any]
    measurement: Mapping[str, Any]

    def say(
        self,
        code: str,
        severity: str,
        value: Optional[float],
        threshold: Optional[float],
        text: str,
        advice: str,
    ) -> Reason:
        """A reason of this subject; its name goes in front of the text."""
        name = self.subject["name"]
        return Reason(code, severity, name, value, threshold, "{}: {}".format(name, text), advice)


Found = Iterator[Reason]


def quieter(measurement: Mapping[str, Any]) -> str:
    """How to get less noise, by what has not been done."""
    environment = measurement["environment"]
    if measurement.get("affinity") is None:
        refused = (environment.get("missing") or {}).get("affinity", "not asked for")
        if refused == "not asked for":
            return "pin it to a core: leave out --no-pin"
        return "pin it to a core from outside, as it cannot do so itself ({})".format(refused)
    if environment.get("container"):
        return "run it outside the container, or on a machine where nothing else runs"
    return "repeat it on a machine where nothing else runs"


def calmer(case: Case) -> str:
    """How to get less noise, by what most of the far calls suffered from."""
    return REMEDIES.get(_main_cause(case)[0], quieter(case.measurement))


def _main_cause(case: Case) -> tuple[str, int, int]:
    """The known cause of at least half of the far calls, how many had it, and how many far calls there are."""
    far = case.summary["outliers"]["far"]
    cause = max(far["causes"], key=far["causes"].__getitem__, default="unknown")
    most = far["causes"].get(cause, 0)
    return (cause if 2 * most >= far["calls"] else "unknown"), most, far["calls"]


def more(case: Case) -> str:
    """How to narrow the intervals: more processes or longer ones, by where the variance lies."""
    effort = STRONGER.get(case.measurement["effort"])
    limited = case.summary["variance"]["limited_by"]
    if effort is None:
        return "the effort is the highest; find out what differs between processes, or " + quieter(case.measurement)
    if limited == "iterations":
        return "calls vary more than processes: --effort {} lets each process run longer".format(effort)
    return "processes vary more than calls: --effort {} runs {} of them".format(effort, PROCESSES[effort])


def processes(case: Case) -> Found:
    """More processes are needed than were run (pyperf's rule), or the first one was slow.

    The scatter of fewer than five processes is itself uncertain: there only a need of more than twenty counts.
    """
    variance = case.summary["variance"]
    required, run = variance["required_processes"], variance["processes"]
    if required is not None and required > run:
        text = "{} would narrow the median to 2 %, {} ran".format(count(required, "process"), run)
        severity = "noisy" if run >= FEW_PROCESSES or required > PROCESSES["release"] else "info"
        yield case.say("too_few_processes", severity, required, run, text, more(case))
    medians = [stats.percentile(p["steady_ns"], 0.5) for p in case.subject["processes"] if not p["error"]]
    if len(medians) >= 3:
        share = medians[0] / max(stats.percentile(medians[1:], 0.5), 1) - 1
        if share > FIRST_SLOWER and medians[0] > max(medians[1:]):
            text = "the first process was {} slower than the others".format(percent(share))
            advice = "measure twice and keep the second: something was cold, or busy, at the start"
            yield case.say("slow_first_process", "noisy", share, FIRST_SLOWER, text, advice)


def spread(case: Case) -> Found:
    """CV, robust CV and single calls far off the median."""
    summary = case.summary
    if not summary["n"]:
        return
    if summary["cv"] >= CV:
        slowest = summary["max_ns"] / max(summary["median_ns"], 1)
        cause, having, calls = _main_cause(case)
        why = "" if cause == "unknown" else " ({} of {} far calls: {})".format(having, calls, cause.replace("_", " "))
        text = "the CV of the latency is {}{}; the slowest call took {:.1f} times the median"
        text = text.format(percent(summary["cv"]), why, slowest)
        severity = "unstable" if calls >= DISTURBED * summary["n"] else "noisy"
        yield case.say("high_cv", severity, summary["cv"], CV, text, calmer(case))
    independent = max(min(summary["n"], summary["autocorrelation"]["effective_n"]), 1)
    surely = summary["robust_cv"] * (1 - 3 / independent**0.5)  # 1.17 / sqrt(n) is its standard error; 2.6 of them
    if surely >= ROBUST_CV:
        text = "the robust CV is {}: calls vary throughout, not by outliers alone".format(percent(summary["robust_cv"]))
        yield case.say("high_robust_cv", "noisy", summary["robust_cv"], ROBUST_CV, text, calmer(case))
    yield from _range(case)


def _range(case: Case) -> Found:
    """The mean would be a poor centre here: it moves with the calls that are looked for."""
    summary = case.summary
    median = max(summary["median_ns"], 1)
    over, under = summary["max_ns"] / median - 1, 1 - summary["min_ns"] / median
    off = max(over, under)
    if off < FAR:
        return
    far = summary["outliers"]["far"]
    told = ["{} {}".format(n, cause.replace("_", " ")) for cause, n in far["causes"].items() if cause != "unknown"]
    unknown = far["causes"].get("unknown", 0)
    told += ["{} of unknown cause".format(unknown)] if unknown else []
    worst = summary["max_ns" if over >= under else "min_ns"]
    verb = "lies" if far["calls"] == 1 else "lie"
    text = "{} {} 50 % or more off the median: {}; the farthest took {}"
    text = text.format(count(far["calls"], "call"), verb, ", ".join(told), duration(worst))
    severity = "info" if unknown <= RARE * summary["n"] else "noisy"
    yield case.say("range", severity, off, FAR, text, calmer(case))


def drift(case: Case) -> Found:
    """Slower or faster over the measurement, with or without evidence of throttling."""
    found = case.summary["drift"]
    if found["verdict"] not in ("thermal", "unexplained"):
        return
    change = found["change"]
    direction = "slower" if change > 0 else "faster"
    where = "in the sustained phase" if found["over"] == "sustained" else "from the first process to the last"
    text = "it got {} {} {}".format(percent(abs(change)), direction, where)
    severity = "unstable" if abs(change) >= UNSTABLE_DRIFT else "noisy"
    if found["verdict"] == "thermal":
        advice = "cool the machine or lower its clock, and let it rest before; or take the late figures for the truth"
        if all("control group" in evidence for evidence in found["evidence"]):
            advice = REMEDIES["throttled"]
        text += ": " + "; ".join(found["evidence"])
    elif _can_see_heat(case.measurement):
        text += ", and no sensor says why"
        advice = "look for other work that began or ended meanwhile, then measure again"
    else:
        text += ", and no sensor can be read that would say why"
        advice = "look for heat and for other work, then measure again"
    code = "thermal" if found["verdict"] == "thermal" else "drift"
    yield case.say(code, severity, change, 0.02, text, advice)


def _can_see_heat(measurement: Mapping[str, Any]) -> bool:
    environment = measurement["environment"]
    samples = environment.get("samples") or {}
    return bool(samples.get("frequency_khz")) or environment.get("thermal_throttles") is not None


def modality(case: Case) -> Found:
    """More than one mode."""
    found = case.summary["modality"]["modes"]
    if len(found) < 2:
        return
    listed = ["{} ({})".format(duration(mode["ns"]), percent(mode["share"])) for mode in found[:3]]
    text = "the latency has {} modes: {}".format(len(found), " and ".join(listed))
    if (case.summary["variance"]["icc"] or 0) > 0.5:
        advice = "processes differ, not calls (memory layout, kind of core): " + more(case)
    else:
        advice = "look for two states inside a process: boost, kinds of cores, inputs of two sizes"
        if case.measurement.get("affinity") is None or _main_cause(case)[0] != "unknown":
            advice = calmer(case)
    yield case.say("bimodal", "noisy", len(found), 1, text, advice)


def autocorrelation(case: Case) -> Found:
    """Neighbouring calls are alike: intervals that take them for independent are too narrow."""
    rho, effective = case.summary["autocorrelation"]["rho1"], case.summary["autocorrelation"]["effective_n"]
    if rho is not None and rho > AUTOCORRELATED:
        text = "neighbouring calls are alike (rho1 {:.2f}): {} count as {:.0f}"
        text = text.format(rho, count(case.summary["n"], "call"), effective)
        advice = "count processes, not calls: only more of them narrow the intervals"
        if case.summary["processes"] < FEW_PROCESSES:
            advice = "take the intervals of the tail for too narrow: with so few processes they count calls"
        yield case.say("autocorrelated", "info", rho, AUTOCORRELATED, text, advice)


def warmup(case: Case) -> Found:
    """Processes that were not warm, or that have no steady state."""
    classes = case.summary["warmup"]["classes"]
    unsteady = [name for name in classes if name not in STEADY]
    kinds = ", ".join(sorted({name.replace("_", " ") for name in unsteady}))
    if more_than_chance(len(unsteady), len(classes)):
        text = "{} of {} reached no steady state ({})".format(len(unsteady), count(len(classes), "process"), kinds)
        same = case.summary["warmup"]["consistent"]
        code, severity = ("no_steady_state", "unstable") if same else ("inconsistent_warmup", "noisy")
        effort = STRONGER.get(case.measurement["effort"])
        advice = "look at the series of the calls: the figure depends on when one looks"
        if _main_cause(case)[0] != "unknown":
            advice = calmer(case)
        elif effort:
            advice = "--effort {} lets each process run longer".format(effort)
        yield case.say(code, severity, len(unsteady) / len(classes), 0.05, text, advice)
    good = [process for process in case.subject["processes"] if not process["error"]]
    cold = sum(not process.get("warmup_stable", True) for process in good)
    if cold:
        severity = "noisy" if cold > UNSETTLED * len(good) else "info"
        text = "{} of {} had not settled after warm-up".format(cold, count(len(good), "process"))
        yield case.say("not_settled", severity, cold / len(good), UNSETTLED, text, "give it more time: raise --seconds")


def deadline(case: Case) -> Found:
    """Missed deadlines under a periodic load, and one that no call can keep up with."""
    found = case.summary["deadline"]
    if found and found["misses"]:
        text = "{} of {} calls missed the deadline of {}, {} in a row at worst".format(
            found["misses"], found["calls"], duration(found["period_ns"]), found["worst_run"]
        )
        yield case.say("deadline_missed", "info", found["rate"], 0, text, "lower --fps, or take a faster model")
    good = [process for process in case.subject["processes"] if not process["error"]]
    services = [stats.percentile(p["service_ns"], 0.5) for p in good if p.get("service_ns")]
    if found and services and stats.percentile(services, 0.5) >= found["period_ns"]:
        service = stats.percentile(services, 0.5)
        text = "a call takes {} and one is due every {}: they queue up, and the latency grows as long as it runs"
        text = text.format(duration(service), duration(found["period_ns"]))
        yield case.say("overloaded", "unstable", service, found["period_ns"], text, "lower --fps by as much")
