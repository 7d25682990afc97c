"""The page and the raw data that a comparison leaves behind."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from _page import put, table

from _peers import bars, checks, environments
from _peers.networks import FLOAT, TOOLS

ROOT = Path(__file__).resolve().parents[2]
PAGE, DATA = ROOT / "docs" / "peers.md", ROOT / "docs" / "peers.json"
HEAD = (
    *("network", "model", "runtime", "MB", "build: peak, s", "SQNR dB", "agreement", "metric (float)", "MACs in float"),
    *("p50, p99 ms", "time: edgeopt / this", "memory MB", "memory: edgeopt / this"),
)
VERDICT_HEAD = ("network", "build", "wanted", "found", "")
LICENCES = {"onnxruntime": "MIT", "nncf": "Apache-2.0", "openvino": "Apache-2.0", "onnx": "Apache-2.0"}

MEASURES = {"edgeopt": " (it judges and times all of them too)"}

Json = Mapping[str, Any]


def figures_table(results: Json) -> str:
    """One line for every model in every runtime."""
    rows = [line for network in results["networks"].values() for line in _lines(network)]
    return table(HEAD, rows)


def _lines(network: Json) -> Iterator[tuple[str, ...]]:
    for row in network["rows"]:
        build = row.get("build", {})
        head = (network["title"], _name(row), row["runtime"])
        if "error" in row:
            yield (*head, "-", _build(build), *["-"] * 7, f"**{_cell(row['error'])}**")
            continue
        one, side = _compared(network, row)
        yield (
            *head,
            f"{build['bytes'] / 1e6:.3g}" if "bytes" in build else "-",
            _build(build),
            *_quality(row, network),
            "-" if side is None else _times(side),
            checks.ratio_text(one["latency"]) if one and side is one["side_a"] else "-",
            "-" if side is None or side["memory_bytes"] is None else f"{side['memory_bytes'] / 1e6:.1f}",
            checks.ratio_text(one["memory"]) if one and side is one["side_a"] else "-",
        )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _name(row: Json) -> str:
    precision = row.get("build", {}).get("precision")
    return f"**{row['tool']}** ({precision})" if precision else str(row["tool"])


def _build(build: Json) -> str:
    return f"{build['peak_bytes'] / 1e6:.0f} MB, {build['seconds']:.1f}" if "peak_bytes" in build else "-"


def _quality(row: Json, network: Json) -> tuple[str, str, str, str]:
    if "sets" not in row.get("quality", {}):
        return ("-", "-", "-", "-")
    seen = checks.quality(row)
    sqnr = [value for value in seen["sqnr_db"].values() if value is not None]
    agreement = seen.get("agreement")
    said = "-"
    if agreement:
        low, high = agreement["interval"]
        said = f"{agreement['share']:.1%} ({low:.1%} to {high:.1%})"
    metrics = [_metric(one["metric"]) for one in row["quality"]["sets"].values() if "metric" in one]
    errors = [f"{name} off by {seen['largest_error'][name]:.3f}" for name in network.get("error_of", ())]
    macs = row["quality"].get("macs", {})
    share = f"{checks.float_share(row):.1%}" if macs.get("total") else "-"
    decibels = "exact" if not sqnr else f"{min(sqnr):.1f}"
    return decibels, said, "; ".join((*metrics, *errors)) or "-", share


def _metric(found: Json) -> str:
    if isinstance(found["value"], list):
        rates = (" / ".join(f"{value:.1%}" for value in found[key]) for key in ("value", "float"))
        return "{} ({})".format(*rates)
    if "drop_interval" in found:
        low, high = found["drop_interval"]
        return f"{found['value']:.2%} ({found['float']:.2%}), drop {found['drop']:.2%} ({low:.2%} to {high:.2%})"
    return f"{found['name']} {found['value']:.4f} ({found['float']:.4f})"


def _compared(network: Json, row: Json) -> tuple[Json | None, Json | None]:
    """The comparison that a row's times are from, and its side of it: as A against edgeopt, else as B against float."""
    known = [one for one in network["comparisons"] if one["runtime"] == row["runtime"] and "error" not in one]
    for one in known:
        if one["a"] == row["tool"] and one["b"].startswith("edgeopt") and not row["tool"].startswith("edgeopt"):
            return one, one["side_a"]
    for one in known:
        if one["b"] == row["tool"] and one["a"] == FLOAT:
            return one, one["side_b"]
    return None, None


def _times(side: Json) -> str:
    p99 = side["p99_ns"]
    return f"{side['median_ns'] / 1e6:.3g}, {'-' if p99 is None else f'{p99 / 1e6:.3g}'}"


def verdict_table(verdicts: Sequence[bars.Verdict]) -> str:
    """One line for every check."""
    return table(
        VERDICT_HEAD,
        [(v.network, v.build, v.wanted, _cell(v.found), "reached" if v.good else "**missed**") for v in verdicts],
    )


def conditions(results: Json) -> str:
    """What was measured, where, with which versions."""
    machine = results["machine"]
    half = "the ten held photos" if results["half"] == "final" else "the ten photos for development"
    where = "the machine is not known: nothing was timed"
    if machine:
        where = f"{machine['cpu'] or machine['machine']}, {machine['kernel']}, 1 thread, effort `{results['effort']}`"
    names = {
        "onnxruntime": ("onnxruntime", "onnx"),
        "nncf": ("nncf", "openvino", "onnxruntime"),
        "edgeopt": ("onnxruntime", "openvino"),
    }
    said = []
    for name, packages in names.items():
        pins = environments.versions(name)
        listed = ", ".join(f"{p} {pins[p]} ({LICENCES[p]})" for p in packages)
        said.append(f"`scripts/_peers/{name}.txt`{MEASURES.get(name, '')}: {listed}")
    return f"{where}. EfficientNet-Lite0 and SqueezeNet are judged on {half}. " + "; ".join(said) + "."


def steps_list(results: Json) -> str:
    """What each tool did to each network, as it said itself."""
    lines = []
    for network in results["networks"].values():
        for tool in TOOLS:
            steps = next(
                (r["build"]["steps"] for r in network["rows"] if r["tool"] == tool and "steps" in r.get("build", {})),
                None,
            )
            if steps:
                lines.append(f"- {network['title']}, {tool}: {', then '.join(steps)}")
        seen = set()
        for row in network["rows"]:
            words = row.get("build", {}).get("words")
            if words and (row["tool"], row["runtime"]) not in seen:
                seen.add((row["tool"], row["runtime"]))
                lines.append(f"- {network['title']}, {row['tool']}: `edgeopt build {' '.join(words)}`")
    return "\n".join(lines)


def write(results: Json, verdicts: Sequence[bars.Verdict]) -> None:
    """Put every part between its markers in the page, and the raw data beside it.

    Raises:
        SystemExit: the page lacks a marker.
    """
    parts = {
        "conditions": conditions(results),
        "figures": figures_table(results),
        "verdicts": verdict_table(verdicts),
        "steps": steps_list(results),
    }
    put(PAGE, parts)
    DATA.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
