"""report.md: the same figures and tables for a pull request or a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgeopt.report import decided, guard, stability, text
from edgeopt.report.contract import contract
from edgeopt.report.curve import curve
from edgeopt.report.frontier import frontier
from edgeopt.report.grid import Grid, grid
from edgeopt.report.latency import latency
from edgeopt.report.machine import environment
from edgeopt.report.memory import memory
from edgeopt.report.page import banners, headline
from edgeopt.report.summary import Json

TABLES = {
    "Steady state": "steady",
    "Start": "start",
    "Periodic load": "deadlines",
    "After a pause": "bursts",
    "Outliers": "outliers",
    "Drift, modes and warm-up": "behaviour",
    "Energy": "energy",
}


def markdown(
    manifest: Mapping[str, Any],
    diary: Sequence[Json],
    measurements: Mapping[str, Json],
    timelines: Mapping[str, Sequence[Json]],
    found: Json,
    pictures: Mapping[str, bytes],
) -> str:
    """Render the Markdown report; every name is escaped."""
    md = text.escape_markdown
    graded = found["latency"]["stability"]
    timed = latency(found["latency"], measurements, manifest["run"]["threads"])
    held = memory(found["memory"], None, timelines, graded)
    steps, quality = decided.steps(diary), decided.quality(found["quality"])
    searched = curve(diary)
    tried = frontier(found.get("frontier"))
    placement = decided.placement(manifest.get("placement") or {})
    machine = environment(found["latency"], measurements, found["measured_on"] or {})
    promised = contract(manifest)
    parts = [f"# {md(found['name'])} for {md(found['target'])}", md(found["verdict"]["text"])]
    badge = stability.badge(graded, found["latency"].get("reason", ""), found["default"]["precision"])
    parts.append(f"**{badge['sign']} {badge['word']}**: {md(badge['meaning'])}.")
    parts += _bullets([f"{told}: {advice}" if advice else told for told, advice in badge["reasons"]])
    parts += [f"> **{md(title)}** {md(sentence)}" for title, sentence in banners(manifest, found)]
    parts.append(
        grid(("", "Figure", "Conditions"), [(a, b, "; ".join(c)) for a, b, c in headline(manifest, found)]).markdown()
    )
    parts += _section("Budgets", "", decided.budgets(found["budget"]))
    parts += _section("Stability", "", stability.table([*stability.ordered(graded), *stability.notes(graded)]))
    parts += _section("Latency", timed["lead"])
    for title, key in TABLES.items():
        parts += [f"### {title}", timed[key].markdown()] if key in timed and timed[key].rows else []
    for title, table in timed.get("details", []):
        parts += [f"### {title}", table.markdown()] if table.rows else []
    parts += _bullets([*timed.get("failures", []), *filter(None, [timed.get("no_energy")])])
    parts += _section("Memory", f"{held['lead']} {held['scattered']}".strip(), held["table"], held["phases"])
    parts += _bullets([line for _, line in held.get("timeline_legend", [])], "Live activations, ")
    parts += _section("Steps", "", steps["tried"], steps["skipped"])
    parts += _section("Precision", searched["lead"], searched["table"])
    parts += _section("Candidates", tried["lead"], tried["table"])
    parts += _section("What stayed float", placement["lead"], placement["reasons"])
    parts += _section("Quality", quality["lead"], _pairs(quality["facts"]), quality["outputs"])
    parts += _guard(found["quality"], found["default"]["precision"], pictures)
    parts += _section("Environment", machine["lead"], machine["ran"], _pairs(machine.get("facts", [])))
    parts += _bullets([f"not known, {key}: {reason}" for key, reason in machine.get("unknown", [])])
    stated = [grid((title, "Value"), pairs) for title, pairs in promised["preprocessing"]]
    grids = (
        *(promised["inputs"], *stated, promised["outputs"]),
        *(_pairs(promised["run"]), promised["files"], _pairs(promised["identity"])),
    )
    parts += _section("Contract", "", *grids)
    return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def _guard(quality: Mapping[str, Any] | None, precision: str, pictures: Mapping[str, bytes]) -> list[str]:
    """Limits and worst samples, of what ships and of what was refused."""
    parts, worst = [], guard.worst(quality, precision, pictures, (quality or {}).get("metric"))
    if (limits := guard.limits(quality)).rows:
        parts += ["### Limits", limits.markdown()]
    if worst["lead"]:
        parts += ["### Worst samples", text.escape_markdown(worst["lead"])]
        parts += [worst["table"].markdown()] if worst["table"].rows else []
    for entry in guard.refused(quality, pictures):
        parts += [f"### {text.escape_markdown(entry['title'])}", text.escape_markdown(entry["reason"])]
        parts += [table.markdown() for table in (entry["limits"], entry["worst"]["table"]) if table.rows]
    return parts


def _section(title: str, lead: str, *grids: Grid) -> list[str]:
    shown = [g.markdown() for g in grids if g.rows]
    return [f"## {title}", text.escape_markdown(lead), *shown] if shown or lead else []


def _bullets(lines: Sequence[str], prefix: str = "") -> list[str]:
    return ["\n".join(f"- {prefix}{text.escape_markdown(line)}" for line in lines)] if lines else []


def _pairs(pairs: Sequence[tuple[str, str]]) -> Grid:
    return grid(("", "Value"), pairs)
