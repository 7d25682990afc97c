"""report.md: the same figures and tables for a pull request or a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgeopt.report import decided, measured, text
from edgeopt.report.contract import contract
from edgeopt.report.grid import Grid, grid
from edgeopt.report.page import banners, headline
from edgeopt.report.summary import Json


def markdown(
    manifest: Mapping[str, Any],
    diary: Sequence[Json],
    measurements: Mapping[str, Json],
    timelines: Mapping[str, Sequence[Json]],
    found: Json,
) -> str:
    """Render the Markdown report; every name is escaped."""
    md = text.escape_markdown
    latency = measured.latency(found["latency"], measurements, manifest["run"]["threads"])
    memory = measured.memory(found["memory"], None, timelines, found["latency"].get("advice", []))
    steps, quality = decided.steps(diary), decided.quality(found["quality"])
    placement = decided.placement(manifest.get("placement") or {})
    environment = measured.environment(found["latency"], measurements, found["measured_on"] or {})
    told = contract(manifest)
    parts = [f"# {md(found['name'])} for {md(found['target'])}", md(found["verdict"]["text"])]
    parts += [f"> **{md(title)}** {md(sentence)}" for title, sentence in banners(manifest, found)]
    parts.append(
        grid(("", "Figure", "Conditions"), [(a, b, "; ".join(c)) for a, b, c in headline(manifest, found)]).markdown()
    )
    parts += _section("Budgets", "", decided.budgets(found["budget"]))
    lead = " ".join(part for part in (latency["lead"], latency.get("disturbed")) if part)
    parts += _section("Latency", lead, latency.get("steady", Grid()), latency.get("start", Grid()))
    lead = " ".join(part for part in (memory["lead"], memory["scattered"]) if part)
    parts += _section("Memory", lead, memory["table"])
    parts += _bullets([line for _, line in memory.get("timeline_legend", [])], "Live activations, ")
    parts += _section("Steps", "", steps["tried"], steps["skipped"])
    parts += _section("What stayed float", placement["lead"], placement["reasons"])
    parts += _section("Quality", quality["lead"], _pairs(quality["facts"]), quality["outputs"])
    parts += _section("Environment", environment["lead"], _pairs(environment.get("facts", [])))
    parts += _bullets([f"{severity}: {advice}" for severity, advice in environment.get("advice", [])])
    stated = [grid((title, "Value"), pairs) for title, pairs in told["preprocessing"]]
    grids = (told["inputs"], *stated, told["outputs"], _pairs(told["run"]), told["files"], _pairs(told["identity"]))
    parts += _section("Contract", "", *grids)
    return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def _section(title: str, lead: str, *grids: Grid) -> list[str]:
    shown = [g.markdown() for g in grids if g.rows]
    return [f"## {title}", text.escape_markdown(lead), *shown] if shown or lead else []


def _bullets(lines: Sequence[str], prefix: str = "") -> list[str]:
    return ["\n".join(f"- {prefix}{text.escape_markdown(line)}" for line in lines)] if lines else []


def _pairs(pairs: Sequence[tuple[str, str]]) -> Grid:
    return grid(("", "Value"), pairs)
