"""Whether a subject's figures are what they claim to be, and whether there are enough of them."""

from __future__ import annotations

from runtime_bench import audit
from runtime_bench.judge.reasons import FEW_PROCESSES, STRONGER, Case, Found
from runtime_bench.statistics import stats
from runtime_bench.units import count, percent

FEW_CALLS = 30
MEMORY_VARIES, MEMORY_VARIES_BYTES = 0.05, 1e6


def no_sample(case: Case) -> Found:
    """No process gave a figure."""
    if case.summary["n"]:
        return
    errors = [process["error"] for process in case.subject["processes"] if process["error"]]
    text = "there is no timed call" + (", every process failed: {}".format(errors[0]) if errors else "")
    yield case.say("no_sample", "invalid", 0, 1, text, "mend what the message says, then measure again")


def provider(case: Case) -> Found:
    """It ran elsewhere than asked: all of it (invalid) or some nodes."""
    runtime, seen = case.subject.get("runtime") or {}, case.subject.get("audit") or {}
    asked, used = runtime.get("asked"), runtime.get("provider")
    if "providers" in seen and seen["nodes"]:
        asked, used = seen.get("asked", asked), audit.main_provider(seen)
    if asked and used and asked != used:
        text = "ran on {}, asked for {}".format(used, asked)
        yield case.say("provider_wrong", "invalid", None, None, text, "install a runtime that has {}".format(asked))
    elif seen.get("outside"):
        nodes, macs = audit.outside_share(seen)
        away = sum(entry["count"] for entry in seen["outside"])
        text = "{} of {} nodes did not run on {}".format(away, seen["nodes"], asked)
        text += "" if macs is None else " ({} of the MACs)".format(percent(macs))
        ops = ", ".join(entry["op"] for entry in seen["outside"][:3])
        advice = "replace what the provider lacks ({}), or compare with the CPU alone".format(ops)
        yield case.say("provider_partial", "info", nodes if macs is None else macs, 0, text, advice)


def precision(case: Case) -> Found:
    """Int8 is claimed, and no integer kernel ran, or it is not known whether one did."""
    seen = case.subject.get("audit") or {}
    if case.subject.get("precision") == "int8" and seen.get("reason"):
        text = "it is not known whether integer kernels ran: {}".format(seen["reason"])
        yield case.say("not_audited", "info", None, None, text, "believe the int8 only as far as its speed shows it")
    error = audit.precision_error(case.subject.get("precision"), seen)
    if error:
        advice = "quantize it in a form that this runtime has kernels for, or measure it as float32"
        yield case.say("precision", "invalid", seen["integer_nodes"], 1, error, advice)


def failures(case: Case) -> Found:
    """Some processes died."""
    records = case.subject["processes"]
    errors = [process["error"] for process in records if process["error"]]
    if errors and case.summary["n"]:
        text = "{} of {} failed: {}".format(len(errors), count(len(records), "process"), errors[0])
        severity = "unstable" if 2 * len(errors) > len(records) else "noisy"
        advice = "find out why before shipping: a device would fail as often"
        yield case.say("process_failed", severity, len(errors), 1, text, advice)


def amount(case: Case) -> Found:
    """Few processes, few calls, phases cut by the time limit."""
    summary, effort = case.summary, case.measurement["effort"]
    if not summary["n"]:
        return
    if summary["processes"] < FEW_PROCESSES:
        text = "{}: intervals are wide".format(count(summary["processes"], "process"))
        advice = "--effort standard runs 10" if effort == "quick" else "give it more time: raise --seconds"
        yield case.say("few_processes", "info", summary["processes"], FEW_PROCESSES, text, advice)
    if summary["n"] < FEW_CALLS:
        text = "{} in all".format(count(summary["n"], "timed call"))
        yield case.say("few_calls", "noisy", summary["n"], FEW_CALLS, text, "raise --seconds or the effort")
    elif "p99_needs" in summary:
        text = "no p99 from {}, it needs {}".format(count(summary["n"], "call"), summary["p99_needs"])
        advice = "--effort {} makes more calls".format(STRONGER.get(effort, "release"))
        yield case.say("no_p99", "info", summary["n"], summary["p99_needs"], text, advice)
    short = sum(bool(p.get("cut_short")) for p in case.subject["processes"] if not p["error"])
    if short:
        text = "{} made fewer calls than the effort asks for".format(count(short, "process"))
        yield case.say("cut_short", "info", short, 1, text, "raise --seconds, or leave it out")


def memory(case: Case) -> Found:
    """The peak differs between processes, or memory grows with every call."""
    figures = case.subject.get("memory") or {}
    raw = (figures.get("model") or {}).get("raw_bytes") or [0]
    limit = max(MEMORY_VARIES_BYTES, MEMORY_VARIES * stats.percentile(raw, 0.5))
    if max(raw) - min(raw) > limit:
        text = "the model's peak memory was {:.1f} to {:.1f} MB over {}"
        text = text.format(min(raw) / 1e6, max(raw) / 1e6, count(len(raw), "process"))
        advice = "hold the budget against the largest; the allocator's choices differ between processes"
        yield case.say("memory_varies", "noisy", max(raw) - min(raw), limit, text, advice)
    growth = figures.get("growth") or {}
    if growth.get("verdict") == "leak":
        text = "memory grows by {:.0f} bytes a call (95 % interval {:.0f} to {:.0f})"
        text = text.format(growth["bytes_per_call"], growth["low"], growth["high"])
        advice = "do not run it for long: report it to the runtime, or restart it in time"
        yield case.say("leak", "noisy", growth["bytes_per_call"], 1024, text, advice)
