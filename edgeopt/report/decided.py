"""Sections about what was decided: budgets, steps, placement, quality."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from edgeopt.report import plots, text
from edgeopt.report.grid import Cell, Grid, grid
from edgeopt.report.look import both
from edgeopt.report.summary import Json, worst_sqnr

NAMED = 3
"""Nodes of one reason that are named in its row; all are in the folded list."""

SAME = 5e-4
"""A change of bytes below this share would be written as 0.0 %; it is not written, and no bar is drawn for it."""

STATUS = {"kept": "✓ kept", "rolled-back": "✗ rolled back", "skipped": "– skipped"}


def budgets(checked: Sequence[Mapping[str, Any]]) -> Grid:
    """Every limit with its measured value."""
    rows = []
    for entry in checked:
        failed = "✗ over" if entry["measured"] is not None else "✗ not measured"
        state = Cell(text="✓ within", css="ok") if entry["ok"] else Cell(text=failed, css="over")
        rows.append(
            (entry["name"], amount(entry["name"], entry["limit"]), amount(entry["name"], entry["measured"]), state)
        )
    return grid(("Budget", ">Limit", ">Measured", "Result"), rows)


def amount(name: str, value: float | None) -> str:
    """A budget's limit or measured value in its unit."""
    if value is None:
        return text.MISSING
    if "drop" in name:
        return text.percent(value, 2)
    if name in ("latency", "load") or (name[:1] == "p" and name[1:2].isdigit()):
        return f"{text.number(value)} ms"
    return text.size(value)


def steps(diary: Sequence[Json]) -> Json:
    """The diary: what was tried, kept or rolled back, and what did not apply."""
    tried = [(k, row) for k, row in enumerate(diary, start=1) if row["status"] != "skipped"]
    skipped = [(k, row) for k, row in enumerate(diary, start=1) if row["status"] == "skipped"]
    return {
        "bars": _bars(diary),
        "tried": grid(
            ("!Step", "Result", ">Weights", ">Peak activations", ">Worst SQNR", ">Latency after/before", ">Took"),
            [_row(number, row) for number, row in tried],
            notes=["; ".join(part for part in (row["reason"], row["step"]["why"]) if part) for _, row in tried],
        ),
        "skipped_title": f"{text.plural(len(skipped), 'step')} did not apply",
        "skipped": grid(
            ("Step", "=Reason"), [(f"{number}. {row['step']['name']}", row["reason"]) for number, row in skipped]
        ),
    }


def _row(number: int, row: Json) -> tuple[str | Cell, ...]:
    before, after = row["before"], row["after"]
    return (
        f"{number}. {text.shorten(row['step']['name'], 40)}",
        Cell(text=STATUS[row["status"]], css=f"status {row['status']}"),
        change(before["weight_bytes"], after["weight_bytes"]),
        change(before["peak_activation_bytes"], after["peak_activation_bytes"]),
        sqnr(row["drift"]),
        text.ratio(row["latency_ratio"]) if row["latency_ratio"] else "not timed",
        text.seconds(row["seconds"]),
    )


def change(before: int | None, after: int | None) -> str:
    """Bytes after a step, with the change in percent where there is one."""
    if after is None:
        return "unknown shape"
    if before in (None, 0) or before == after:
        return text.size(after)
    share = after / before - 1
    if abs(share) < SAME:
        return text.size(after)
    return f"{text.size(after)} ({'+' if share > 0 else '−'}{abs(100 * share):.1f} %)"


def sqnr(drift: Sequence[Json]) -> str:
    """The worst SQNR of a step in words; a rewrite has none, its largest change stands in its note."""
    return text.decibels(worst_sqnr(drift)) if drift else "–"


def _bars(diary: Sequence[Json]) -> Any:
    shown = [
        r
        for r in diary
        if abs(r["after"]["weight_bytes"] - r["before"]["weight_bytes"]) > SAME * r["before"]["weight_bytes"]
    ]
    if not shown:
        return None
    first = shown[0]["before"]["weight_bytes"]
    factor, unit = text.size_unit(max([first, *(r["after"]["weight_bytes"] for r in shown)]))
    rows = [plots.Bar(label="as loaded", parts=[("float", first / factor, "")], end=text.size(first))]
    for row in shown:
        count = row["after"]["weight_bytes"]
        css = "low" if row["status"] == "kept" else "undone"
        worst = worst_sqnr(row["drift"])
        end = text.size(count) + (f", {text.decibels(worst)}" if worst is not None else "")
        rows.append(plots.Bar(label=row["step"]["name"], parts=[(css, count / factor, "")], end=end))
    return both(lambda width: plots.bars(rows, width, unit, row=30))


def placement(found: Mapping[str, Any]) -> Json:
    """Where each node runs, and the reasons of those that stayed in float, most frequent first."""
    counts: dict[str, int] = {key: found[key] for key in ("int8", "fused", "float") if found.get(key) is not None}
    if len(counts) < 3:
        return {
            "lead": "Not known: the runtime's optimized graph was not read back.",
            "reasons": Grid(),
            "nodes": Grid(),
        }
    total = sum(counts.values())
    floats = sorted((n for n in found.get("nodes", []) if n["runs"] == "float"), key=lambda n: (n["why"], n["key"]))
    groups = [(why, list(nodes)) for why, nodes in itertools.groupby(floats, key=lambda n: n["why"])]
    groups.sort(key=lambda group: (-len(group[1]), group[0]))
    note = f", {found['note']}" if found.get("note") else ""
    css = {"int8": "low", "fused": "runtime", "float": "float"}
    bar = plots.Bar(
        label="nodes", parts=[(css[k], v, f"{v} {k}") for k, v in counts.items() if v], end=f"{total} in all"
    )
    return {
        "lead": f"Read back from the runtime's own optimized graph{note}: {counts['int8']} nodes run in int8, "
        f"{counts['fused']} {'was' if counts['fused'] == 1 else 'were'} fused into another node, "
        f"{counts['float']} stayed in float.",
        "bars": both(lambda width: plots.bars([bar], width, "")) if total else None,
        "reasons": grid(
            ("Reason", ">Nodes", "Operators", "=Names"),
            [
                (why or "no reason given", str(len(nodes)), ", ".join(sorted({n["op"] for n in nodes})), _names(nodes))
                for why, nodes in groups
            ],
        ),
        "nodes_title": f"All {len(floats)} float nodes by name",
        "nodes": grid(
            ("Node", "Operator", "=Reason"),
            [(n["key"], n["op"], n["why"]) for n in floats] if any(len(n) > NAMED for _, n in groups) else [],
        ),
    }


def _names(nodes: Sequence[Json]) -> str:
    more = len(nodes) - NAMED
    return ", ".join(n["key"] for n in nodes[:NAMED]) + (f" and {more} more" if more > 0 else "")


def quality(found: Mapping[str, Any] | None) -> Json:
    """Drift, agreement and metric on the evaluation set."""
    if not found or not found.get("outputs"):
        return {
            "lead": f"Not measured: {unverified(found)}. Nothing is claimed about quality.",
            "outputs": Grid(),
            "facts": [],
        }
    lead = f"{compared_on(found)}, float model against the default artifact."
    if not found.get("verified"):
        lead += f" Not verified: {unverified(found)}. Nothing is claimed about quality."
    facts = []
    if agreement := found.get("agreement"):
        of = agreement.get("of", "top-1")
        tie = "; a tie counts as wrong" if of == "top-1" else ""
        facts.append((f"{of[0].upper()}{of[1:]} agreement", f"{text.percent(agreement['top1'], 2)}{tie}"))
        facts += [("Ties", text.percent(agreement["ties"], 2))] if tie else []
    if metric := found.get("metric"):
        facts.append((metric["name"], metric_line(metric)))
    return {
        "lead": lead,
        "facts": facts,
        "outputs": grid(
            ("Output or slice", ">SQNR", ">Cosine", ">Largest error"),
            [
                (d["output"], text.decibels(d["sqnr_db"]), f"{d['cosine']:.5f}", text.real(d["max_abs"]))
                for d in [*found["outputs"], *(found.get("slices") or [])]
            ],
        ),
    }


def compared_on(found: Mapping[str, Any]) -> str:
    """How many samples of which set."""
    count = text.plural(found["samples"], "sample")
    return f"{count} of “{found['set']}”" if found.get("set") else f"{count} that are no evaluation set"


def unverified(found: Mapping[str, Any] | None) -> str:
    """Why nothing is claimed about quality."""
    found = found or {}
    fallback = "the set cannot carry a claim about quality" if found.get("set") else "no evaluation set was given"
    return str(found.get("reason") or fallback)


def metric_line(metric: Mapping[str, Any]) -> str:
    """The task metric of both models and the drop."""
    figures = f"{text.metric(metric, metric['float'])} float, {text.metric(metric, metric['artifact'])} artifact"
    figures += "; lower is better" if metric.get("better") == "lower" else ""
    known = ", paired 95 % interval" if metric.get("half_width") is not None else ""
    return f"{figures} ({drop(metric)}{known})"


def drop(metric: Mapping[str, Any]) -> str:
    """What was lost or gained with half the width of its interval, where that is known.

    In percentage points, or as the metric itself is given. A higher error rate is no drop: it is worse.
    """
    half, lost = metric.get("half_width"), metric["drop"]
    words = ("better by", "worse by") if metric.get("better") == "lower" else ("gain", "drop")
    if not text.is_share(metric):
        spread = "" if half is None else f" ± {text.plain(metric, half)}"
        return f"{words[lost >= 0]} {text.plain(metric, abs(lost))}{spread}"
    spread = "" if half is None else f" ± {100 * half:.2f}"
    return f"{words[lost >= 0]} {100 * abs(lost):.2f}{spread} points"
