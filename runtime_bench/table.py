"""Results as text for a terminal: no colours, lines that fit; block characters only where asked for."""

from __future__ import annotations

import textwrap
from typing import Any, Mapping, Optional, Sequence

from runtime_bench.histogram import draws_blocks as draws_blocks
from runtime_bench.histogram import histogram_lines
from runtime_bench.judge.comparison import compare
from runtime_bench.judge.stability import results
from runtime_bench.memory import STAGES
from runtime_bench.statistics import stats
from runtime_bench.units import count, percent
from runtime_bench.units import duration as duration
from runtime_bench.units import size as size

PERCENTILES = tuple(stats.name_of(q) for q in stats.NEEDS)
WIDTH = 80
SHOWN_REASONS, SHOWN = 3, 4
"""Reasons that force a grade, and all reasons, that the screen shows; the JSON has every one."""

SEEN_ELSEWHERE = ("no_p99", "deadline_missed", "int8_slower")
"""Notes that the screen does not repeat: a figure on it says the same."""

Measurement = Mapping[str, Any]


def align(rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """Columns of equal width: the first flush left, the others flush right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        lines.append(indent + "   ".join(cells).rstrip())
    return lines


def bench_lines(
    measurement: Measurement,
    title: str,
    *,
    width: int = WIDTH,
    unicode: bool = False,
    notes: Sequence[str] = (),
) -> list[str]:
    """A measurement on one screen: conditions, grade with reasons and advice, figures.

    Args:
        measurement: as ``protocol.measure`` returns it.
        title: the first line, to which is added where int8 is slower than float.
        width: of the screen, in characters; lines are wrapped to it from 60 on.
        unicode: draw histograms with block characters instead of ASCII.
        notes: further lines of conditions.
    """
    found = results(measurement)
    summaries, stability = found["summaries"], found["stability"]
    lines = [
        *_wrap(title + _first_of_all(stability), width),
        *condition_lines(measurement, width),
        *(line for note in notes for line in _wrap(note, width)),
        "",
        *grade_lines(stability, width),
        "",
        *latency_lines(measurement, summaries, width),
        *histogram_lines(measurement, width, unicode=unicode),
    ]
    for line in _remarks(measurement, summaries):
        lines += _wrap(line, width, "  ")
    return [*lines, "", *memory_lines(measurement, width)]


def condition_lines(measurement: Measurement, width: int = WIDTH) -> list[str]:
    """Where and how it was measured."""
    environment = measurement["environment"]
    runtime = measurement["subjects"][0]["runtime"] or {"name": "unknown runtime", "version": "?", "provider": "?"}
    machine = environment["board"] or environment["cpu"] or environment["machine"]
    place = [machine, count(environment["cpus"], "CPU"), environment["kernel"]]
    place += ["in " + environment["container"]] if environment.get("container") else []
    threads, pinned = count(measurement["threads"], "thread"), measurement.get("affinity")
    if pinned:
        cpus = ("CPU " if len(pinned) == 1 else "CPUs ") + ", ".join(map(str, pinned))
        threads += " on " + cpus
    if measurement["threads"] > 1 and "spinning" in runtime:
        threads += " (spinning)" if runtime["spinning"] else " (not spinning)"
    how = ["{} {}".format(runtime["name"], runtime["version"]), runtime["provider"], threads]
    load = measurement.get("load") or {}
    how += ["{:g} calls a second".format(load["fps"])] if load.get("kind") == "periodic" else []
    how.append("{} effort".format(measurement["effort"]))
    return [*_wrap("on " + ", ".join(place), width), *_wrap(", ".join(how), width)]


def grade_lines(stability: Mapping[str, Any], width: int = WIDTH) -> list[str]:
    """The grade in one word, the reasons that force it with their advice, and notes."""
    grades = stability["subjects"]
    apart = ", ".join("{} {}".format(name, word) for name, word in grades.items())
    lines = ["grade: {}{}".format(stability["grade"], " ({})".format(apart) if len(set(grades.values())) > 1 else "")]
    heavy = _by_code([r for r in stability["reasons"] if r["severity"] != "info"])
    light = [r for r in stability["reasons"] if r["severity"] == "info" and r["code"] not in SEEN_ELSEWHERE]
    notes = _by_code(light)
    advised = set()
    for text, advice, _ in heavy[:SHOWN_REASONS]:
        lines += _wrap(text, width, "  ! ", "    ")
        if advice not in advised:
            lines += _wrap(advice, width, "    -> ", "       ")
        advised.add(advice)
    room = max(SHOWN - min(len(heavy), SHOWN_REASONS), 0)
    for text, _, _ in notes[:room]:
        lines += _wrap(text, width, "  note: ", "    ")
    rest = [code for _, _, code in heavy[SHOWN_REASONS:] + notes[room:]]
    if rest:
        lines += _wrap("{} more in the JSON: {}".format(len(rest), ", ".join(rest)), width, "  ", "    ")
    return lines


def _first_of_all(stability: Mapping[str, Any]) -> str:
    """What a person must not miss: that int8 is slower here than what it replaces."""
    slower = [reason["text"] for reason in stability["reasons"] if reason["code"] == "int8_slower"]
    return ": " + slower[0].replace(": ", " ", 1) if slower else ""


def _by_code(reasons: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Text, advice and code of the first reason of each code; other subjects with the same code are named."""
    found = []
    for code in dict.fromkeys(reason["code"] for reason in reasons):
        first, *others = [reason for reason in reasons if reason["code"] == code]
        text, name = first["text"], "{}:".format(first["subject"])
        if others and text.startswith(name):
            also = ", ".join(str(reason["subject"]) for reason in others)
            text = "{} ({} too):{}".format(first["subject"], also, text[len(name) :])
        found.append((text, first["advice"], code))
    return found


def latency_lines(
    measurement: Measurement, summaries: Mapping[str, Mapping[str, Any]], width: int = WIDTH
) -> list[str]:
    """One column a subject, as many beside each other as fit: percentiles with their 95 % intervals, spread, start."""
    columns = [_column(subject["name"], summaries[subject["name"]]) for subject in measurement["subjects"]]
    labels = ["latency", "median", *PERCENTILES, "CV", "load", "first call"]
    labels += [label for label in ("after pause", "energy") if any(label in column for column in columns)]
    labels.append("calls")
    lines: list[str] = []
    start = 0
    while start < len(columns):
        end = len(columns)
        while True:
            chosen = columns[start:end]
            block = align([[label, *(column.get(label, "n/a") for column in chosen)] for label in labels])
            if end == start + 1 or max(map(len, block)) <= width:
                break
            end -= 1
        lines += ([""] if start else []) + block
        start = end
    few = any(summary["low_confidence"] for summary in summaries.values())
    return lines + _wrap("in brackets: 95 % interval" + ("; *: from few processes" if few else ""), width, "  ")


def memory_lines(measurement: Measurement, width: int = WIDTH) -> list[str]:
    """Peak memory by stage; the peak of loading and the growth a call where they are known and fit."""
    subjects = measurement["subjects"]
    figures = [subject["memory"][stage] for subject in subjects for stage in STAGES]
    reasons = sorted({figure.get("reason", "no reason given") for figure in figures if figure["bytes"] is None})
    told = [line for reason in reasons for line in _wrap("no figure: " + reason, width, "  ")]
    if all(figure["bytes"] is None for figure in figures):
        return ["  peak memory", *told]
    rows = [["peak memory", *STAGES]] + [_memory_row(subject) for subject in subjects]
    if any("load" in subject["memory"] for subject in subjects):
        wide = [[*row, head] for row, head in zip(rows, ["load alone", *map(_load_peak, subjects)])]
        rows = wide if max(map(len, align(wide))) <= width else rows
    if any("growth" in subject["memory"] for subject in subjects):
        wide = [[*row, head] for row, head in zip(rows, ["growth a call", *map(_growth, subjects)])]
        rows = wide if max(map(len, align(wide))) <= width else rows
    return align(rows) + told


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


def _column(name: str, summary: Mapping[str, Any]) -> dict[str, str]:
    """Label -> cell of one subject."""
    cells = {"latency": name}
    for label in ("median", *PERCENTILES):
        needs = summary.get(label + "_needs")
        bounds = summary[label + "_low_ns"], summary[label + "_high_ns"]
        mark = "*" if label in summary["low_confidence"] else ""
        cells[label] = (
            "n/a (needs {})".format(needs) if needs else _with_interval(summary[label + "_ns"], *bounds) + mark
        )
    cells["CV"] = "{}, robust {}".format(percent(summary["cv"]), percent(summary["robust_cv"]))
    for label, phase in (("load", "load"), ("first call", "first")):
        median, most = duration(summary[phase]["median_ns"]), duration(summary[phase]["max_ns"])
        cells[label] = median if median == most else "{}, max {}".format(median, most)
    if summary["burst"]:
        cells["after pause"] = "{} ({:.1f}x)".format(duration(summary["burst"]["first_ns"]), summary["burst"]["ratio"])
    if summary["energy"].get("joules_per_call") is not None:
        cells["energy"] = "{:.3g} mJ".format(summary["energy"]["joules_per_call"] * 1e3)
    failed = ", {} failed".format(summary["failed"]) if summary["failed"] else ""
    cells["calls"] = "{} in {}{}".format(summary["n"], count(summary["processes"], "process"), failed)
    return cells


def _with_interval(value: Optional[float], low: Optional[float], high: Optional[float]) -> str:
    """``1.23 ms (1.20-1.31)``."""
    text = duration(value)
    if value is None or low is None or high is None:
        return text
    unit = text.rpartition(" ")[2]
    bounds = [duration(bound) for bound in (low, high)]
    if all(bound.endswith(" " + unit) for bound in bounds):
        bounds = [bound[: -len(unit) - 1] for bound in bounds]
    return "{} ({}-{})".format(text, *bounds)


def _remarks(measurement: Measurement, summaries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The comparison of two subjects, and deadlines."""
    names = [subject["name"] for subject in measurement["subjects"]]
    lines = [ratio_line(compare(measurement, names[0], names[1]))] if len(names) == 2 else []
    for name in names:
        found = summaries[name]["deadline"]
        if found and found["calls"]:
            text = "{}: {} of {} calls missed the deadline of {} ({}, interval {} to {}), {} in a row at worst"
            shares = [percent(found[key]) for key in ("rate", "rate_low", "rate_high")]
            period = duration(found["period_ns"])
            lines.append(text.format(name, found["misses"], found["calls"], period, *shares, found["worst_run"]))
    return lines


def _memory_row(subject: Mapping[str, Any]) -> list[str]:
    return [subject["name"]] + [size(subject["memory"][stage]["bytes"]) for stage in STAGES]


def _load_peak(subject: Mapping[str, Any]) -> str:
    return size((subject["memory"].get("load") or {}).get("bytes"))


def _growth(subject: Mapping[str, Any]) -> str:
    found = subject["memory"].get("growth") or {}
    words = {"none": "none", "leak": "{:.0f} bytes", "unknown": "unknown"}
    verdict = words.get(found.get("verdict", ""), "n/a")
    return verdict.format(found.get("bytes_per_call") or 0)


def _wrap(text: str, width: int, first: str = "", rest: Optional[str] = None) -> list[str]:
    indent = first if rest is None else rest
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=indent, break_long_words=False) or [first]
