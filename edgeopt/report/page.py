"""report.html: one self-contained page, from a template with autoescape on."""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from markupsafe import Markup

from edgeopt.report import decided, guard, stability, text
from edgeopt.report.contract import contract
from edgeopt.report.curve import curve
from edgeopt.report.frontier import frontier
from edgeopt.report.latency import charts, latency
from edgeopt.report.machine import course, environment
from edgeopt.report.memory import memory
from edgeopt.report.summary import BASELINES, Json, worst_sqnr

_UNIT = re.compile(r"(\d) (?=(?:%|[kMG]?B|[mµn]?s|dB)(?![A-Za-z]))")

Headline = tuple[str, str, list[str]]
"""Label, the figure in words, lines that qualify it."""


def page(
    manifest: Mapping[str, Any],
    diary: Sequence[Json],
    measurements: Mapping[str, Json],
    timelines: Mapping[str, Sequence[Json]],
    found: Json,
    pictures: Mapping[str, bytes],
) -> str:
    """Render the page."""
    budget = (manifest.get("budget") or {}).get("peak_bytes")
    graded = found["latency"]["stability"]
    view = {
        "name": found["name"],
        "version": found["edgeopt"] or "of unknown version",
        "target": found["target"],
        "target_description": manifest["target"].get("description") or "",
        "backend": f"{found['default']['precision']} for {manifest['backend']['name']}",
        "verdict": found["verdict"]["text"],
        "banners": banners(manifest, found),
        "tiles": [
            {"label": label, "big": big, "lines": lines, "missing": big in (text.MISSING, "not verified")}
            for label, big, lines in headline(manifest, found)
        ],
        "budgets": decided.budgets(found["budget"]),
        "badge": stability.badge(graded, found["latency"].get("reason", ""), found["default"]["precision"]),
        "reasons": stability.table(stability.ordered(graded), found["default"]["precision"]),
        "notes": stability.table(stability.notes(graded), found["default"]["precision"]),
        "latency": latency(found["latency"], measurements, manifest["run"]["threads"]),
        "charts": charts(found["latency"], measurements),
        "memory": memory(found["memory"], budget, timelines, graded),
        "steps": decided.steps(diary),
        "curve": curve(diary),
        "placement": decided.placement(manifest.get("placement") or {}),
        "quality": decided.quality(found["quality"]),
        "limits": guard.limits(found["quality"]),
        "worst": guard.worst(
            found["quality"], found["default"]["precision"], pictures, (found["quality"] or {}).get("metric")
        ),
        "refused": guard.refused(found["quality"], pictures),
        "frontier": frontier(found.get("frontier"), budget),
        "environment": environment(found["latency"], measurements, found["measured_on"] or {}),
        "course": course(found["latency"], measurements),
        "contract": contract(manifest),
    }
    folder = importlib.resources.files("edgeopt.report") / "templates"
    engine = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (folder / name).read_text("utf-8")),
        autoescape=True,
        trim_blocks=True,
        undefined=jinja2.ChainableUndefined,
        finalize=keep_units,
    )
    style = Markup((folder / "report.css").read_text("utf-8"))
    return engine.get_template("report.html.j2").render(v=view, css=style)


def keep_units(value: Any) -> Any:
    """Plain text with its numbers and units tied together by no-break spaces; everything else as it is."""
    return _UNIT.sub("\\1\u00a0", value) if type(value) is str else value


def banners(manifest: Mapping[str, Any], found: Json) -> list[tuple[str, str]]:
    """What a reader must know before any figure: title and sentence."""
    where, backend, target = found["measured_on"] or {}, manifest["backend"], found["target"]
    told = []
    if not where.get("is_target") and found["latency"]["measurement"]:
        machine = where.get("machine") or "a machine that is not named"
        sentence = f"Latency and memory are from the build host ({machine}), not from {target}."
        told.append(("Not measured on the target.", f"{sentence} Run python3 bench.pyz there."))
    warnings = found["verdict"].get("warnings", [])
    preferred = backend.get("preferred") or backend["name"]
    if preferred != backend["name"] and not any(preferred in warning for warning in warnings):
        sentence = f"{target} prefers {preferred}; this is {backend['name']}: {backend.get('reason')}."
        told.append(("Second choice of backend.", sentence))
    ratio = found["latency"]["ratio"]
    if ratio and ratio["verdict"] == "slower" and not any("slower" in warning for warning in warnings):
        told.append((f"{ratio['b']} is slower than {ratio['a']} on the measuring machine.", _interval(ratio)))
    over = [
        f"{e['name']} {decided.amount(e['name'], e['measured'])}, limit {decided.amount(e['name'], e['limit'])}"
        for e in found["budget"]
        if e["ok"] is False
    ]
    if over:
        told.append(("Budget not met:", f"{'; '.join(over)}."))
    return told + [("Warning:", warning) for warning in warnings]


def headline(manifest: Mapping[str, Any], found: Json) -> list[Headline]:
    """The four figures of the first screen."""
    return [_size(found), _memory(found), _quality(found["quality"]), _latency(manifest, found)]


def _size(found: Json) -> Headline:
    size = found["size"]
    factor = size["factor"] or 1.0
    if factor >= 1.005:
        big = f"{text.times(factor)} smaller"
    else:
        big = "same size" if factor > 0.995 else f"{text.times(1 / factor)} larger"
    lines = [f"{text.size(size['baseline'])} → {text.size(size['default'])}", f"against the {size['baseline_is']}"]
    return "Size", big, lines


def _memory(found: Json) -> Headline:
    figures = found["memory"].get(found["default"]["precision"])
    if figures is None or figures["charged"] is None:
        known = [f for f in (figures or {}).values() if isinstance(f, dict) and "bytes" in f]
        reasons = [f.get("reason", "no reason given") for f in known if f["bytes"] is None]
        return "Memory", text.MISSING, reasons[:1] or ["memory was not asked for"]
    lines = [f"model {text.size(figures['model']['bytes'])} + runtime {text.size(figures['runtime']['bytes'])}, peak"]
    baseline = next((b for b in BASELINES if b in found["memory"] and b != found["default"]["precision"]), None)
    before = found["memory"][baseline]["charged"] if baseline else None
    if before:
        share = figures["charged"] / before - 1
        word = "less" if share < 0 else "more"
        lines.append(f"{100 * abs(share):.0f} % {word} than {baseline} ({text.size(before)})")
    return "Memory", text.size(figures["charged"]), lines


def _quality(quality: Mapping[str, Any] | None) -> Headline:
    if not quality or not quality.get("outputs"):
        return "Quality", "not verified", [decided.unverified(quality)]
    worst = worst_sqnr(quality["outputs"])
    sqnr = f"worst SQNR {text.decibels(worst)}" if worst is not None else "outputs identical"
    lines = []
    if metric := quality.get("metric"):
        before, after = text.metric(metric, metric["float"]), text.metric(metric, metric["artifact"])
        lines.append(f"{metric['name']} {before} → {after}, {decided.drop(metric)}")
    big = text.decibels(worst)
    if agreement := quality.get("agreement"):
        big = f"{text.percent(agreement['top1'])} agree"
        of = agreement.get("of", "top-1")
        ties = f", ties {text.percent(agreement['ties'])}" if of == "top-1" else ""
        lines.append(f"{of} as float{ties}; {sqnr}")
    else:
        lines.append(sqnr)
    lines.append(decided.compared_on(quality))
    if not quality.get("verified"):
        return "Quality", "not verified", [decided.unverified(quality), *lines]
    return "Quality", big, lines


def _latency(manifest: Mapping[str, Any], found: Json) -> Headline:
    latency, precision = found["latency"], found["default"]["precision"]
    own = latency["subjects"].get(precision)
    if own is None or own["median_ns"] is None:
        return "Latency", text.MISSING, [latency.get("reason") or "every process failed"]
    trust = stability.of_subject(latency["stability"], [precision, *(b for b in BASELINES if b in latency["subjects"])])
    where = "" if (manifest.get("measured_on") or {}).get("is_target") else " on the build host"
    median = text.duration(own["median_ns"])
    ratio = latency["ratio"]
    doubt = [] if trust == "stable" else [f"{stability.SIGNS[trust]} graded {trust}"]
    if not ratio or ratio["ratio"] is None:
        return "Latency", median, [f"median{where}", "no baseline beside it", *doubt]
    before = text.duration(latency["subjects"][ratio["a"]]["median_ns"])
    factor = ratio["ratio"]
    big = {
        "faster": f"{text.times(1 / factor)} faster",
        "slower": f"{text.times(factor)} slower",
        "equivalent": "same speed",
    }.get(ratio["verdict"], "no clear difference")
    if trust == "invalid":
        big = "not valid"
    return "Latency", big, [f"{before} → {median}, median{where}", _interval(ratio), *doubt]


def _interval(ratio: Json) -> str:
    if ratio["low"] is None:
        return f"{ratio['ratio']:.3f}x the time of {ratio['a']}; no interval from {text.plural(ratio['pairs'], 'pair')}"
    return (
        f"{ratio['ratio']:.3f}x the time of {ratio['a']}, 95 % interval {ratio['low']:.3f} to {ratio['high']:.3f}, "
        f"{text.plural(ratio['pairs'], 'pair')} of processes"
    )
