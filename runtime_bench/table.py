"""Results as text for a terminal: plain ASCII, no colours, lines that fit."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

from runtime_bench.memory import STAGES
from runtime_bench.summary import compare, summarize

PERCENTILES = ("p90", "p95", "p99")


def duration(nanoseconds: Optional[float]) -> str:
    """Three significant digits with a unit."""
    if nanoseconds is None:
        return "n/a"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds >= 0.9995 * size:
            return "{} {}".format(_three(nanoseconds / size), unit)
    return "{:.0f} ns".format(nanoseconds)


def size(count: Optional[int]) -> str:
    """Bytes in units of 10 ** 6 or 10 ** 3."""
    if count is None:
        return "n/a"
    return "{:.1f} MB".format(count / 1e6) if count >= 100000 else "{:.1f} kB".format(count / 1e3)


def align(rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """Columns of equal width: the first flush left, the others flush right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        lines.append(indent + "   ".join(cells).rstrip())
    return lines


def bench_lines(measurement: Mapping[str, Any], title: str) -> list[str]:
    """A measurement: conditions, latencies, ratio, memory, advice."""
    subjects = measurement["subjects"]
    environment = measurement["environment"]
    runtime = subjects[0]["runtime"]
    machine = environment["board"] or environment["cpu"] or environment["machine"]
    cpus = "1 CPU" if environment["cpus"] == 1 else "{} CPUs".format(environment["cpus"])
    threads = "1 thread" if measurement["threads"] == 1 else "{} threads".format(measurement["threads"])
    lines = [
        title,
        "on {}, {}, {}".format(machine, cpus, environment["kernel"]),
        "{} {}, {}, {}, {} effort".format(
            runtime["name"], runtime["version"], runtime["provider"], threads, measurement["effort"]
        ),
        "",
    ]
    header = ["latency", "median", *PERCENTILES, "CV", "MAD", "load", "first", "calls"]
    rows = [header] + [_latency_row(subject) for subject in subjects]
    lines += align(rows)
    if len(subjects) == 2:
        lines += ["", "  " + ratio_line(compare(measurement, subjects[0]["name"], subjects[1]["name"]))]
    lines += ["", *align([["peak memory", *STAGES]] + [_memory_row(subject) for subject in subjects])]
    reasons = {figure["reason"] for s in subjects for figure in s["memory"].values() if figure["bytes"] is None}
    lines += ["  no figure: " + reason for reason in sorted(reasons)]
    if measurement["advice"]:
        lines.append("")
    marks = {"warning": "warning: ", "info": "note: "}
    lines += ["  " + marks[entry["severity"]] + entry["text"] for entry in measurement["advice"]]
    return lines


def ratio_line(result: Mapping[str, Any]) -> str:
    """One comparison in words."""
    if result["ratio"] is None:
        return "{} against {}: n/a, there is no round in which both ran".format(result["b"], result["a"])
    text = "{} takes {:.3f} times as long as {}".format(result["b"], result["ratio"], result["a"])
    if result["low"] is None:
        return text + " (one pair: no interval)"
    interval = " (95 % interval {:.3f} to {:.3f}, {} pairs): {}"
    return text + interval.format(result["low"], result["high"], result["pairs"], result["verdict"])


def verify_lines(result: Mapping[str, Any], title: str) -> list[str]:
    """One line a check, and the verdict."""
    lines = [title]
    for check in result["checks"]:
        lines.append("  {}  {}: {}".format("ok  " if check["ok"] else "FAIL", check["name"], check["detail"]))
    failed = sum(not check["ok"] for check in result["checks"])
    lines.append(
        "verified" if result["ok"] else "NOT verified: {} of {} checks failed".format(failed, len(result["checks"]))
    )
    return lines


def _latency_row(subject: Mapping[str, Any]) -> list[str]:
    summary = summarize(subject)
    cells = [subject["name"], duration(summary["median_ns"])]
    for name in PERCENTILES:
        needs = summary.get(name + "_needs")
        cells.append("n/a (needs {})".format(needs) if needs else duration(summary[name + "_ns"]))
    cells.append("{:.1f} %".format(summary["cv"] * 100))
    cells += [duration(summary[key]) for key in ("mad_ns", "load_median_ns", "first_median_ns")]
    return [*cells, str(summary["n"])]


def _memory_row(subject: Mapping[str, Any]) -> list[str]:
    return [subject["name"]] + [size(subject["memory"][stage]["bytes"]) for stage in STAGES]


def _three(value: float) -> str:
    return (
        "{:.2f}".format(value) if value < 9.995 else "{:.1f}".format(value) if value < 99.95 else "{:.0f}".format(value)
    )
