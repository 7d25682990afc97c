"""A comparison in words and as Markdown for a pull request. Nothing is printed here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgeopt.comparing.result import HOW
from edgeopt.quality import DIGITS
from edgeopt.report import text

Json = Mapping[str, Any]

ROWS = (
    ("latency, median", "latency", "median"),
    ("latency, p95", "latency", "p95"),
    ("peak memory, runtime and model", "memory", "peak"),
    ("peak memory while loading", "memory", "load"),
)
STATES = {"held": "held", "broken": "BROKEN", "undecided": "undecided", "not judged": "not judged"}
_TOLD = 3
_SMALLER = {"faster": "smaller", "slower": "larger"}


def headline(result: Json) -> str:
    """The verdict in one sentence."""
    found = result["latency"]["median"]
    if found["ratio"] is None:
        return f"inconclusive: the latencies do not compare, {found['reason']}"
    told = f"B takes {found['ratio']:.3f} times as long as A"
    if found["low"] is None:
        return f"inconclusive: {told}; {found['reason']}"
    base = f"{found['pairs']} pairs"
    if result["how"] == "apart":
        base = f"{result['a']['processes']} and {result['b']['processes']} processes"
    return f"{found['verdict']}: {told} (95 % interval {interval(found)}, {base})"


def interval(found: Json) -> str:
    """``1.041 to 1.063``, or the reason why there is none."""
    return f"{found['low']:.3f} to {found['high']:.3f}" if found["low"] is not None else "none"


def table_rows(result: Json) -> list[list[str]]:
    """Cells of one row a figure: name, A, B, B / A, 95 % interval, verdict."""
    rows = []
    for title, group, key in ROWS:
        found = result[group][key]
        unit = text.duration if group == "latency" else text.size
        values = [found[f"{side}_{'ns' if group == 'latency' else 'bytes'}"] for side in "ab"]
        cells = [title, *("n/a" if value is None else unit(value) for value in values)]
        cells += ["n/a" if found["ratio"] is None else f"{found['ratio']:.3f}"]
        told = found["verdict"] if group == "latency" else _SMALLER.get(found["verdict"], found["verdict"])
        rows.append([*cells, interval(found) if found["low"] is not None else found["reason"], told])
    sizes = result["artifact"]
    shown = ["n/a" if sizes[key] is None else text.size(sizes[key]) for key in ("a_bytes", "b_bytes")]
    if sizes["ratio"] is not None:
        rows.append(["artifact", *shown, f"{sizes['ratio']:.3f}", "exact", _exact(sizes["ratio"])])
    return rows


def _exact(ratio: float) -> str:
    return "as large" if ratio == 1 else "smaller" if ratio < 1 else "larger"


def quality_words(quality: Json) -> str:
    """The drop with its interval and what it rests on, or why there is none."""
    if not quality["compared"]:
        return f"not compared: {quality['reason']}"
    kind = quality.get("unit", "share")
    factor, digits, unit, points = (100, ".2f", " %", " points") if kind == "share" else (1, DIGITS[kind], "", "")
    a, b, drop = (factor * quality[key] for key in ("a", "b", "drop"))
    shares = f"A {a:{digits}}{unit}, B {b:{digits}}{unit}"
    bounds = "no interval: too few groups of samples"
    if quality["low"] is not None:
        bounds = f"95 % interval {factor * quality['low']:+{digits}} to {factor * quality['high']:+{digits}}"
    base = f"{quality['samples']} samples of {quality['set']}"
    if quality["lost"] is not None:
        base += f", {quality['lost']} lost, {quality['gained']} gained"
    word = "worse by" if quality.get("better") == "lower" else "drop"
    return f"{quality['kind']}: {shares}; {word} {drop:+{digits}}{points}, {bounds} ({base}; {quality['how']})"


def side_words(side: Json) -> str:
    """What a side is."""
    named = [side["file"] or "", side["precision"] or ""]
    inside = ", ".join(part for part in named if part)
    return f"{side['given']} ({inside})" if inside else str(side["given"])


def condition_words(side: Json) -> str:
    """Machine, runtime, threads and load of a side."""
    machine, runtime = side["machine"], side["runtime"]
    where = machine["board"] or machine["cpu"] or machine["machine"]
    load = side["load"]
    pace = f", every {1000 / load['fps']:.3g} ms" if load.get("fps") else ""
    return (
        f"{where}, {text.plural(machine['cpus'], 'CPU')}; {runtime['name']} {runtime['version']}, "
        f"{runtime['provider']}, {text.plural(side['threads'], 'thread')}, {side['effort']} effort{pace}"
    )


def grade_words(side: Json) -> str:
    """The grade with the first reasons that forced it; all are in the JSON."""
    forced = [r["text"] for r in side["reasons"] if r["severity"] == side["grade"]]
    forced = forced[:_TOLD] + ([f"{len(forced) - _TOLD} more"] if len(forced) > _TOLD else [])
    return f"{side['grade']}: {'; '.join(forced)}" if forced else str(side["grade"])


def conditions(result: Json) -> list[tuple[str, str]]:
    """Name and value of everything that a figure rests on."""
    a, b = result["a"], result["b"]
    rows = [("A", side_words(a)), ("B", side_words(b)), ("how", HOW[result["how"]])]
    one, two = condition_words(a), condition_words(b)
    rows += [("on", one)] if one == two else [("A on", one), ("B on", two)]
    grades = [grade_words(a), grade_words(b)]
    rows += [("grade", grades[0])] if grades[0] == grades[1] else [("grade of A", grades[0]), ("grade of B", grades[1])]
    return rows + [("note", note) for note in result["notes"]]


def markdown(result: Json) -> str:
    """The whole result for a pull request."""
    md = text.escape_markdown
    parts = [f"**{md('Unlike conditions: ' + '; '.join(result['unlike']))}**\n"] if result["unlike"] else []
    parts.append(f"**{md(headline(result))}**\n")
    head = ("figure", "A", "B", "B / A", "95 % interval", "verdict")
    parts.append(text.table(head, [_escaped(row) for row in table_rows(result)], "lrrrll"))
    parts.append(f"Quality: {md(quality_words(result['quality']))}\n")
    if result["gates"]:
        rows = [[md(gate["text"]), f"**{STATES[gate['state']]}**"] for gate in result["gates"]]
        parts.append(text.table(("gate", "result"), rows, "ll"))
    parts.append("\n".join(f"- {md(name)}: {md(value)}" for name, value in conditions(result)) + "\n")
    return "\n".join(parts)


def _escaped(row: Sequence[str]) -> list[str]:
    return [text.escape_markdown(cell) for cell in row]
