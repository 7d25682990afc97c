"""What a program on the device may rely on: signature, preprocessing, run options, files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edgeopt.report import text
from edgeopt.report.grid import grid
from edgeopt.report.summary import Json


def contract(manifest: Mapping[str, Any]) -> Json:
    """Tables and lists of the contract section."""
    signature, run = manifest["signature"], manifest["run"]
    return {
        "inputs": grid(
            ("Input", "Type", "Shape", "Layout"),
            [
                (i["name"], i["dtype"], shape(i["shape"]), i.get("layout") or "not an image")
                for i in signature["inputs"]
            ],
        ),
        "preprocessing": [
            (f"Preprocessing of {i['name']}", list(stated(i["preprocessing"])))
            for i in signature["inputs"]
            if i.get("preprocessing")
        ],
        "outputs": grid(
            ("Output", "Type", "Shape"), [(o["name"], o["dtype"], shape(o["shape"])) for o in signature["outputs"]]
        ),
        "run": [
            ("Backend", manifest["backend"]["name"]),
            ("Provider", str(run["provider"])),
            ("Threads", str(run["threads"])),
            *((f"Session option {key}", str(value)) for key, value in sorted(run["options"].items())),
            *((f"Minimum {key.replace('_', ' ')}", str(value)) for key, value in run["minimum"].items()),
            *_native_rows(manifest),
        ],
        "files": grid(
            ("File", "Role", "Precision", ">Bytes", "=sha256"),
            [(a["path"], a["role"], a["precision"], f"{a['bytes']:,}", a["sha256"]) for a in manifest["artifacts"]],
        ),
        "identity": _identity(manifest),
    }


def native_of(manifest: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """How an artifact that holds the runtime's own graph is loaded and what it is bound to; empty for another one."""
    found: Mapping[str, Any] = (manifest["run"].get("native") or {}).get(path, {})
    return found


def bound_words(manifest: Mapping[str, Any], path: str) -> str:
    """What alone may run an artifact: "x86_64 with avx512f (blocks of 16 channels), onnxruntime 1.32.0"; else empty."""
    from runtime_bench.native import parse, words

    found = parse(native_of(manifest, path))
    return "" if found is None else words(found.bound)


def _native_rows(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for artifact in manifest["artifacts"]:
        path = artifact["path"]
        for key, value in sorted(native_of(manifest, path).get("options", {}).items()):
            yield f"Option {key} of {artifact['precision']}", str(value)
        if bound := bound_words(manifest, path):
            yield f"{artifact['precision']} is bound to", bound


def _identity(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    source, golden = manifest["source"], manifest.get("golden") or {}
    found = [("Built from", f"{source['file']} ({source['format']}, {source['bytes']:,} bytes)")]
    found.append(("sha256 of the source", source["sha256"]))
    if manifest.get("identity"):
        found.append(("Identity of the bundle", manifest["identity"]))
    for precision, tolerance in sorted((golden.get("tolerance") or {}).items()):
        limit = text.decibels(tolerance["sqnr_db"])
        found.append((f"verify, {precision}", f"SQNR of at least {limit} against the float model on golden inputs"))
        own = tolerance.get("outputs_db") or ()
        found += [
            (f"verify, {precision}, {entry['name']}", f"at least {text.decibels(least)}")
            for entry, least in zip(manifest["signature"]["outputs"], own)
        ]
    frozen = (manifest.get("quality") or {}).get("golden")
    if frozen:
        places = ", ".join(map(str, frozen["positions"]))
        found.append(("Golden inputs", f"samples {places} of “{frozen['set']}”"))
    return found


def shape(dims: Sequence[int | str]) -> str:
    """``1 x 3 x 224 x 224``."""
    return " x ".join(map(str, dims)) or "scalar"


def stated(steps: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Preprocessing in rows; what the graph does itself has a row for each part of it."""
    for key, value in steps.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}: {part}", told) for part, told in stated(value))
        else:
            yield key, value_of(value)


def value_of(value: Any) -> str:
    """A preprocessing value as people write it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
