"""``edgeopt inspect``: what a model or a bundle holds, without running it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from edgeopt.cli._options import PATH, emit_json, json_option, parse_shapes, shape_option
from edgeopt.console import bytes_text, fields


@click.command()
@click.argument("model", type=PATH)
@shape_option
@click.option("--trust-pickle", is_flag=True, help="Open pickles inside a .pt2 file. They can run any code.")
@json_option
def command(model: Path, shapes: Sequence[str], trust_pickle: bool, as_json: bool) -> None:
    """Show what a model, or a bundle folder, holds and what it costs.

    Nothing is run. Memory and operation counts are computed from the shapes.
    """
    fixed = parse_shapes(shapes)
    if (model / "manifest.json").is_file():
        described, rows = _bundle(model)
    else:
        described, rows = _model(model, fixed, trust_pickle)
    if as_json:
        emit_json(described)
    else:
        fields(rows, stream=sys.stdout)


def _model(path: Path, shapes: Mapping[str, tuple[int, ...]], trust_pickle: bool) -> tuple[Any, list[tuple[str, str]]]:
    from edgeopt import loaders, memory, passes
    from edgeopt.model import summary
    from edgeopt.passes.infer_shapes import INFER_SHAPES

    model = loaders.load(path, shapes=shapes, trust_pickle=trust_pickle)
    shaped = passes.apply(INFER_SHAPES, model).model
    cost, by_node = memory.footprint(shaped), memory.macs(shaped)
    unknown = [key for key, count in by_node.items() if count is None]
    seen = {
        "kind": "model",
        **summary(model),
        "peak_activation_bytes": cost.peak_activation_bytes,
        "assumed": list(cost.assumed),
        "macs": sum(count or 0 for count in by_node.values()) if not unknown else None,
        "macs_unknown": unknown,
    }
    assumed = f" (with {', '.join(cost.assumed)})" if cost.assumed else ""
    external = "".join(f", {f['file']} {bytes_text(f['bytes'])}" for f in seen["external_files"])
    return seen, [
        ("file", f"{path} ({seen['format']}, {bytes_text(seen['bytes'])}{external})"),
        ("producer", seen["producer"] or "not stated"),
        ("opset", f"{seen['opset']} (IR version {seen['ir_version']})"),
        *[("input", str(spec)) for spec in model.inputs],
        *[("output", str(spec)) for spec in model.outputs],
        ("dynamic dims", ", ".join(seen["dynamic_dims"]) or "none"),
        ("parameters", f"{seen['parameters']:,}"),
        ("weights", bytes_text(seen["weight_bytes"])),
        ("peak activations", _known(cost.peak_activation_bytes, bytes_text, assumed)),
        ("multiply-accumulates", _known(seen["macs"], _count, assumed)),
        ("nodes", f"{seen['nodes']:,}"),
        ("operators", ", ".join(f"{op} {count}" for op, count in seen["ops"].items())),
    ]


def _known(value: int | None, shown: Any, assumed: str) -> str:
    return "unknown: fix the dynamic dims with --shape" if value is None else shown(value) + assumed


def _count(number: int) -> str:
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return str(number)


def _bundle(path: Path) -> tuple[Any, list[tuple[str, str]]]:
    from edgeopt import bundle
    from edgeopt.errors import BundleError

    manifest = bundle.read(path).manifest
    try:
        return {"kind": "bundle", **manifest}, _bundle_rows(manifest)
    except (KeyError, TypeError, AttributeError) as error:
        raise BundleError(f"{path}: manifest.json is not as its schema says ({error!r})") from error


def _bundle_rows(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    backend, run, quality = manifest["backend"], manifest["run"], manifest["quality"]
    instead = f" instead of {backend['preferred']}: {backend['reason']}" if backend.get("reason") else ""
    kept = [step["name"] for step in manifest["steps"] if step["status"] == "kept"]
    judged = f"{quality['samples']} samples of {quality['set']}" if quality["verified"] else "not verified"
    return [
        ("bundle", f"{manifest['name']}, by edgeopt {manifest['edgeopt']}"),
        ("verdict", manifest["verdict"]["text"]),
        *[("warning", text) for text in manifest["verdict"]["warnings"]],
        ("identity", manifest["identity"]),
        ("source", f"{manifest['source']['file']} ({manifest['source']['format']})"),
        ("target", manifest["target"]["name"]),
        ("backend", backend["name"] + instead),
        ("run", f"{run['provider']}, {run['threads']} threads, needs {_pairs(run['minimum'])}"),
        *[("input", _signature(entry)) for entry in manifest["signature"]["inputs"]],
        *[("output", _signature(entry)) for entry in manifest["signature"]["outputs"]],
        *[
            ("artifact", f"{a['path']} ({a['role']}, {a['precision']}, {bytes_text(a['bytes'])})")
            for a in manifest["artifacts"]
        ],
        ("steps kept", ", ".join(kept) or "none"),
        ("quality", judged),
        ("measured on", f"{manifest['measured_on']['machine']} ({manifest['measured_on']['note']})"),
        ("golden samples", str(manifest["golden"]["count"])),
    ]


def _signature(entry: Mapping[str, Any]) -> str:
    layout = f" {entry['layout']}" if entry.get("layout") else ""
    return f"{entry['name']}: {entry['dtype']}[{', '.join(map(str, entry['shape']))}]{layout}"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())
