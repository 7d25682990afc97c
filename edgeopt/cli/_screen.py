"""The screen after a build, in the order in which a person asks: what ships, what it costs, how sure, what next."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeopt.console import bytes_text, fields, result_table
from edgeopt.quality import DIGITS
from edgeopt.report import stability
from edgeopt.report.text import size_against

Json = Mapping[str, Any]
Rows = list[tuple[str, str]]

_PERCENTILES = ("p90", "p95", "p99", "p99.9")


def show(manifest: Json, summary: Json, root: Path) -> None:
    """Print the screen on stderr.

    Args:
        manifest: of the bundle.
        summary: its ``report.json``.
        root: where the bundle is.
    """
    if sys.stderr is None:
        return
    sys.stderr.write("\n")
    fields([*_facts(manifest, summary, root), *_doubts(manifest, summary)])
    sys.stderr.write("\n")
    result_table(*_table(manifest, summary))
    sys.stderr.write("\n")
    fields([*_steps(manifest), *_next(manifest, root)])


def show_diary(rows: Sequence[Json]) -> None:
    """Print on stderr what a build tried that found nothing within the budget."""
    tried = [row for row in rows if row["status"] != "skipped" or row["step"]["kind"] == "candidate"]
    if sys.stderr is None or not tried:
        return
    sys.stderr.write("\n")
    result_table(["tried", "result", "why"], [[row["step"]["name"], row["status"], row["reason"]] for row in tried])
    sys.stderr.write("\n")


def quality_text(quality: Json) -> str:
    """Quality against the float model in one line, with the samples that it rests on."""
    if not quality.get("verified"):
        return "not verified: there was no set of real inputs to judge on"
    parts = [] if not quality.get("metric") else [_metric(quality["metric"])]
    if quality.get("agreement"):
        parts.append(f"{quality['agreement']['top1']:.2%} of the answers as in float")
    found = [drift["sqnr_db"] for drift in quality["outputs"]]
    numbers = [value for value in found if isinstance(value, int | float)]
    if "-inf" in found:
        parts.append("SQNR -inf dB")
    elif numbers:
        parts.append(f"SQNR {min(numbers):.1f} dB")
    else:
        parts.append("outputs identical")
    return f"{'; '.join(parts)} ({quality['samples']} samples of {quality['set']})"


def _metric(metric: Json) -> str:
    half, unit = metric.get("half_width"), metric.get("unit", "share")
    words = ("better", "worse") if metric.get("better") == "lower" else ("gained", "lost")
    factor, digits, points = (100, ".2f", " points") if unit == "share" else (1, DIGITS[unit], "")
    spread = "" if half is None else f" +- {factor * half:{digits}}"
    change = f"{factor * abs(metric['drop']):{digits}}{spread}{points} {words[metric['drop'] >= 0]}"
    shown = DIGITS[unit]
    return f"{metric['name']} {metric['artifact']:{shown}}, float {metric['float']:{shown}} ({change})"


def _facts(manifest: Json, summary: Json, root: Path) -> Rows:
    default = summary["default"]
    rows = [
        ("ships", f"{default['precision']}, {bytes_text(default['bytes'])}: {root / default['path']}"),
        ("size", _size(manifest, default["bytes"])),
        ("latency", _latency(summary["latency"])),
        *_stability(summary),
        ("memory", _memory(summary["memory"], default["precision"])),
        ("quality", quality_text(summary["quality"])),
    ]
    for check in summary["budget"]:
        rows.append(("budget", _budget(check)))
    return rows


def _size(manifest: Json, now: int) -> str:
    source = manifest["source"]
    told = size_against(source, now, source["file"])
    return f"{told} ({bytes_text(source['bytes'])})" if source["file"] in told else told


def _latency(latency: Json) -> str:
    ratio = latency["ratio"]
    if latency["measurement"] is None:
        return "not measured"
    if not ratio or ratio["ratio"] is None:
        return "no baseline was measured beside it"
    words = {"faster": "faster", "slower": "slower", "equivalent": "as fast"}
    text = f"{ratio['ratio']:.2f}x the time of the {ratio['a']}"
    if ratio["low"] is None:
        return f"{text}; one pair of processes, no interval"
    interval = f"95 % interval {ratio['low']:.2f} to {ratio['high']:.2f}"
    return f"{text} ({interval}): {words.get(ratio['verdict'], 'no clear difference')}"


def _stability(summary: Json) -> Rows:
    """The grade with its worst reason and what to do about it."""
    graded = summary["latency"]["stability"]
    return [("stability", stability.line(graded, summary["default"]["precision"]))] if graded else []


def _memory(memory: Mapping[str, Json], precision: str) -> str:
    charged = (memory.get(precision) or {}).get("charged")
    if charged is None:
        return "not measured"
    text = f"{bytes_text(charged)} at the peak, runtime and model"
    before = next(((n, memory[n]["charged"]) for n in ("original", "float32") if n in memory and n != precision), None)
    if before is None or not before[1]:
        return text
    share = charged / before[1] - 1
    if abs(share) < 0.005:
        return f"{text}; as much as the {before[0]}"
    return f"{text}; {abs(share):.0%} {'less' if share < 0 else 'more'} than the {before[0]}"


def _budget(check: Json) -> str:
    def shown(value: float) -> str:
        if check["name"] in ("memory", "size"):
            return bytes_text(value)
        return f"{value:.2%}" if "drop" in check["name"] else f"{value:.3g} ms"

    measured = "not measured" if check["measured"] is None else shown(check["measured"])
    return f"{check['name']}: {measured} of {shown(check['limit'])}{'' if check['ok'] else ', OVER'}"


def _doubts(manifest: Json, summary: Json) -> Rows:
    """What the figures above do not say: where they come from, the build's warnings."""
    where, target = manifest["measured_on"], manifest["target"]["name"]
    rows: Rows = []
    if summary["latency"]["measurement"] is None:
        unrun = any(text.startswith("UNVERIFIED") for text in manifest["verdict"]["warnings"])
        why = "nothing of the network can be run here" if unrun else "--effort none"
        rows.append(("not measured", f"latency and memory, here or on the device ({why})"))
    elif not where["is_target"]:
        rows.append(
            ("not measured", f"on {target}: latency and memory are those of this build host, {where['machine']}")
        )
    else:
        rows.append(("measured", f"on this machine, {where['machine']}"))
    return rows + [("warning", text) for text in manifest["verdict"]["warnings"]]


def _table(manifest: Json, summary: Json) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table: one a model; percentiles that no model has enough calls for are left out."""
    from runtime_bench.table import duration

    subjects, memory = summary["latency"]["subjects"], summary["memory"]
    sizes = {"original": manifest["source"]["bytes"]} | {a["precision"]: a["bytes"] for a in manifest["artifacts"]}
    names = list(dict.fromkeys(("original", "float32", *sizes, *subjects)))
    names = [name for name in names if name in sizes or name in subjects]
    known = [p for p in _PERCENTILES if any((s.get(f"{p}_ns") is not None) for s in subjects.values())]
    rows = []
    for name in names:
        row = [name + (" (ships)" if name == summary["default"]["precision"] else ""), bytes_text(sizes.get(name))]
        if subjects:
            seen = subjects.get(name) or {}
            row.append(bytes_text((memory.get(name) or {}).get("charged")))
            row += [
                "-" if seen.get(f"{f}_ns") is None else duration(seen[f"{f}_ns"]) for f in ("median", *known, "mad")
            ]
        rows.append(row)
    return ["model", "size", *(["peak memory", "median", *known, "MAD"] if subjects else [])], rows


def _steps(manifest: Json) -> Rows:
    steps = manifest["steps"]
    kept = [s["name"] for s in steps if s["status"] == "kept"]
    undone = [f"{s['name']} ({s['reason']})" for s in steps if s["status"] == "rolled-back"]
    return [("kept", ", ".join(kept) or "nothing changed"), *(("rolled back", text) for text in undone)]


def _next(manifest: Json, root: Path) -> Rows:
    rows = [("report", str(root / "report.html"))]
    if manifest["target"]["name"] == "host":
        return [*rows, ("next", f"edgeopt verify {shlex.quote(str(root))}")]
    commands = "python3 bench.pyz verify && python3 bench.pyz --json out.json"
    return [*rows, ("next", f"copy {root} to the device and run there: {commands}")]
