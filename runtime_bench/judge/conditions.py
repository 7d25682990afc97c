"""What the machine, its load and the run's own limits give to doubt: reasons that concern every subject."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Optional

from runtime_bench.judge.reasons import PROCESSES, Reason, quieter
from runtime_bench.judge.timeline import steady_window
from runtime_bench.machine.isa import FAST_INT8, missing_features, sentence
from runtime_bench.units import count, duration, percent

STEAL, STEAL_UNSTABLE = 0.01, 0.10
PRESSURE = 0.10
STOPPED = 0.01
"""Share of the timed time from which on stops for a quota are what is measured."""

Found = Iterator[Reason]
Measurement = Mapping[str, Any]


def _say(
    code: str, severity: str, value: Optional[float], threshold: Optional[float], text: str, advice: str
) -> Reason:
    return Reason(code, severity, None, value, threshold, text, advice)


def load(measurement: Measurement) -> Found:
    """Other work before the measurement began."""
    environment = measurement["environment"]
    average, cpus = environment.get("load1"), environment.get("cpus_online") or 1
    if average is not None and average > cpus:
        text = "load average {:.1f} on {}: other work ran meanwhile".format(average, count(cpus, "CPU"))
        yield _say("load_above_cpus", "noisy", average, cpus, text, "stop it, or wait until it is done")


def throttled(measurement: Measurement) -> Found:
    """Stops for the CPU quota of the control group: unstable where the timed calls hold 1 % of them or more."""
    periods = measurement["environment"].get("throttled_periods")
    if not periods:
        return
    good = [p for s in measurement["subjects"] for p in s["processes"] if not p["error"]]
    stopped = sum(v for p in good for _, v in (p.get("events") or {}).get("throttled_ns", []))
    total = sum(sum(process["steady_ns"]) for process in good)
    text = "stopped {} for the CPU quota of the control group".format(count(periods, "time"))
    advice = "raise the quota, or use fewer threads than it pays for"
    if any("throttled_ns" in (p.get("unread") or {}) or "events" not in p for p in good):
        yield _say("throttled", "unstable", periods, 0, text + ": latencies include the stops", advice)
    elif not stopped:
        yield _say("throttled", "info", periods, 0, text + ", never during a timed call", advice)
    else:
        severity = "unstable" if stopped >= STOPPED * total else "noisy"
        text += ": latencies include {} of stops".format(duration(stopped))
        yield _say("throttled", severity, stopped / total, STOPPED, text, advice)


def steal(measurement: Measurement) -> Found:
    """The host took CPU time from this virtual machine."""
    share = measurement["environment"].get("steal_share")
    if share is not None and share >= STEAL:
        text = "the host took {} of this virtual machine's CPU time".format(percent(share))
        severity = "unstable" if share >= STEAL_UNSTABLE else "noisy"
        yield _say("steal", severity, share, STEAL, text, "use a machine with CPUs of its own")


def pressure(measurement: Measurement) -> Found:
    """Tasks of the machine waited for a CPU. The pinned process need not have: its calls tell, so this is a note."""
    waited = measurement["environment"].get("pressure_cpu_some_us")
    ends = [steady_window(p)[1] for s in measurement["subjects"] for p in s["processes"] if p["steady_ns"]]
    length = max(ends, default=0) / 1000
    if waited and length and waited / length >= PRESSURE:
        share = min(waited / length, 1.0)
        text = "tasks of this machine waited for a CPU {} of the time".format(percent(share))
        yield _say("pressure", "info", share, PRESSURE, text, quieter(measurement))


def limits(measurement: Measurement) -> Found:
    """Fewer threads or processes than asked for."""
    threads, asked = measurement["threads"], measurement.get("threads_requested") or measurement["threads"]
    if threads < asked:
        text = "{} instead of {}: affinity and quota allow no more".format(count(threads, "thread"), asked)
        yield _say("threads_limited", "info", threads, asked, text, "ask for what the machine gives, or raise it")
    promised = PROCESSES.get(measurement["effort"], 0)
    ran = min((len(subject["processes"]) for subject in measurement["subjects"]), default=0)
    if "timing" in measurement.get("cut", []) or (measurement.get("seconds") and ran < promised):
        text = "the time limit ended the measurement after {} of {}".format(ran, count(promised, "process"))
        yield _say("out_of_time", "info", ran, promised, text, "raise --seconds")


def clock(measurement: Measurement) -> Found:
    """A governor that changes the frequency, or no sensor that would show it."""
    environment = measurement["environment"]
    governor = environment.get("governor")
    if governor not in (None, "performance"):
        text = "CPU frequency governor is {}, not performance".format(governor)
        advice = "cpupower frequency-set -g performance, unless the device ships with this one"
        yield _say("governor", "info", None, None, text, advice)
    samples = environment.get("samples") or {}
    if not samples.get("frequency_khz") and not samples.get("temperature_mc"):
        text = "no frequency or temperature can be read here: throttling would not be recognized"
        advice = "trust the drift verdict only as far as it says that there is none"
        yield _say("no_sensors", "info", None, None, text, advice)


def instructions(measurement: Measurement) -> Found:
    """This processor lacks what the target has, or an int8 model has no int8 dot product here."""
    environment, subjects = measurement["environment"], measurement["subjects"]
    flags = environment.get("flags")
    missing = missing_features(measurement.get("isa") or (), flags)
    int8 = any(subject.get("precision") == "int8" for subject in subjects)
    advice = "measure on the target: its times will differ"
    if missing:
        text = sentence(missing, environment.get("cpu"))
        yield _say("isa_missing", "info", len(missing), 0, text, advice)
    elif int8 and flags is not None and not set(flags) & set(FAST_INT8):
        text = "this processor has no int8 dot product: int8 may be no faster than float here"
        yield _say("isa_missing", "info", None, None, text, advice)


CHECKS = (load, throttled, steal, pressure, limits, clock, instructions)
