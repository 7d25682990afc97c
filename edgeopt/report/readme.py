"""README.md of a bundle: for the person with the device in hand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from edgeopt.report import stability, text
from edgeopt.report.contract import bound_words, native_of, stated
from edgeopt.report.page import headline
from edgeopt.report.snippet import golden_snippet, image_snippet
from edgeopt.report.summary import Json


def readme(manifest: Mapping[str, Any], found: Json) -> str:
    """How to check, verify, measure and run the bundle on the device."""
    md, run = text.escape_markdown, manifest["run"]
    fallback = next((a for a in manifest["artifacts"] if a["role"] == "fallback"), None)
    parts = [
        f"# {md(manifest['name'])} for {md(found['target'])}\n",
        md(found["verdict"]["text"]) + "\n",
        f"The model is {text.code(found['default']['path'])} ({text.size(found['default']['bytes'])}, "
        f"{md(found['default']['precision'])}).",
    ]
    if fallback:
        kind = f"{md(fallback['precision'])}, {text.size(fallback['bytes'])}"
        parts.append(f"The way back is {text.code(fallback['path'])} ({kind}).")
    parts.append("Open `report.html` for what was done, measured and decided.\n")
    parts.append("## On the device\n")
    parts.append(
        "Run these in this folder. `bench.pyz` needs Python 3.8 or later, numpy and the runtime, nothing else.\n"
    )
    parts.append(
        _block(
            "sh",
            "# where pip says externally-managed-environment: python3 -m venv ~/bench && . ~/bench/bin/activate\n"
            f"python3 -m pip install {_requirement(manifest)} numpy\n"
            "sha256sum -c SHA256SUMS             # are the files whole?\n"
            "python3 bench.pyz verify            # does this device compute what the build host computed?\n"
            "python3 bench.pyz --json out.json   # latency and memory here\n",
        )
    )
    minimum = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in run["minimum"].items())
    parts.append(f"Needs at least: {md(minimum)}. A runtime that is older refuses the model.\n")
    for artifact in manifest["artifacts"]:
        if bound := bound_words(manifest, artifact["path"]):
            parts.append(
                f"{text.code(artifact['path'])} holds the runtime's own graph and runs on {md(bound)}, and nowhere "
                "else: another kind of processor would compute wrong numbers, another release does not know the "
                "operators. `bench.pyz` refuses it there. For another machine build again, there or for a named "
                "profile.\n"
            )
    parts.append("## Run the model\n")
    parts.append(_block("python", golden_snippet(manifest)))
    picture = image_snippet(manifest)
    if picture:
        parts.append("From a picture, prepared as in calibration (needs Pillow):\n")
        parts.append(_block("python", picture))
    parts += _preprocessing(manifest)
    parts.append("## What was measured\n")
    parts += [f"- {md(line)}" for line in measured_lines(manifest, found)]
    return "\n".join(parts) + "\n"


def measured_lines(manifest: Mapping[str, Any], found: Json) -> list[str]:
    """One sentence for each thing that was, or was not, measured on the target."""
    where: Json = manifest.get("measured_on") or {}
    machine = str(where.get("machine") or "an unknown machine")
    place = f"on {machine}" if where.get("is_target") else f"on {machine}, not on the target {found['target']}"
    lines = []
    for label, big, details in headline(manifest, found):
        if label in ("Latency", "Memory"):
            known = found["latency"]["measurement"] if label == "Latency" else _any_memory(found)
            lines.append(
                f"{label}: {big} ({'; '.join(details)}), {place}." if known else f"{label}: {big}: {details[0]}."
            )
        elif label == "Quality":
            lines.append(f"{label}: {big} ({'; '.join(details)}), computed on the build host.")
    if found["latency"]["stability"]:
        lines.append(f"Stability: {stability.line(found['latency']['stability'], found['default']['precision'])}.")
    if not where.get("is_target"):
        lines.append("Nothing was measured on the target: run the two bench.pyz commands above there.")
    return lines


def _any_memory(found: Json) -> bool:
    return any(figures["charged"] is not None for figures in found["memory"].values())


def _requirement(manifest: Mapping[str, Any]) -> str:
    """``"onnxruntime>=1.17.0"``, ``==`` where an artifact is bound to the release; quoted for the shell.

    Only characters of names and versions survive.
    """
    name = manifest["backend"]["name"]
    version = manifest["run"]["minimum"].get(name)
    clean = [re.sub(r"[^A-Za-z0-9._-]", "", str(part)) for part in (name, version) if part]
    bound = any(name in native_of(manifest, a["path"]).get("bound", {}) for a in manifest["artifacts"])
    return f'"{("==" if bound else ">=").join(clean)}"'


def _preprocessing(manifest: Mapping[str, Any]) -> list[str]:
    lines = []
    for entry in manifest["signature"]["inputs"]:
        steps = entry.get("preprocessing")
        if steps:
            told = ", ".join(f"{key} {value}" for key, value in stated(steps))
            lines.append(f"Input {text.code(entry['name'])}: {text.escape_markdown(told)}.\n")
        else:
            lines.append(f"Input {text.code(entry['name'])}: the build was not told how raw data becomes this input.\n")
    return lines


def _block(language: str, body: str) -> str:
    """A fenced block; the fence is longer than any run of backticks inside."""
    longest = max((len(run) for run in re.findall("`+", body)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{body}{fence}\n"
