"""``edgeopt inspect``: what a model or a bundle holds, without running it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeopt.cli._options import PATH, emit_json, json_option, parse_shapes, shape_option, warn
from edgeopt.cli._screen import quality_text
from edgeopt.console import bytes_text, fields, result_table
from edgeopt.errors import BundleError

if TYPE_CHECKING:
    from edgeopt.model import Model, TensorSpec


@click.command()
@click.argument("model", type=PATH)
@shape_option
@click.option("--nodes", is_flag=True, help="List the nodes with their keys, which --exclude takes.")
@click.option("--run", is_flag=True, help="Run the model on noise: which dims are really open, which could be opened.")
@click.option("--weights", type=PATH, help="Weights for a factory: .safetensors or .pth.")
@click.option("--force-eval", is_flag=True, help="Take a network captured in training mode as if in eval mode.")
@click.option("--trust-pickle", is_flag=True, help="Open pickles inside a torch file. They can run any code.")
@json_option
def command(model: Path, shapes: Sequence[str], nodes: bool, run: bool, as_json: bool, **how: Any) -> None:
    """Show what a model, or a bundle folder, holds and what it costs.

    Nothing is run without --run. Memory and operation counts are computed from the shapes, after the rewrites that
    bring every model into one form; nodes and parameters are those of the file.
    """
    fixed = parse_shapes(shapes)
    if model.is_dir():
        described, rows = _bundle(model)
        listed = [{key: node[key] for key in ("key", "op", "runs", "why")} for node in _placed(described, nodes)]
        heads = ("key", "operator", "runs", "why")
    else:
        described, rows, listed = _model(model, fixed, how, nodes, run)
        heads = ("key", "operator", "output", "MACs")
    if as_json:
        emit_json({**described, "node_list": listed} if nodes else described)
    elif nodes:
        result_table(heads, [_cells(node) for node in listed], stream=sys.stdout)
    else:
        fields(rows, stream=sys.stdout)


def _cells(node: Mapping[str, Any]) -> list[str]:
    macs = {"macs": "-" if node["macs"] is None else _count(node["macs"])} if "macs" in node else {}
    return [", ".join(v) if isinstance(v, list) else str(v) for v in {**node, **macs}.values()]


def _model(
    path: Path, shapes: Mapping[str, tuple[int, ...]], how: Mapping[str, Any], nodes: bool, run: bool
) -> tuple[Any, list[tuple[str, str]], list[dict[str, Any]]]:
    from edgeopt import findings, loaders, memory, passes
    from edgeopt.model import summary

    model = shaped = loaders.load(path, shapes=shapes, **how)
    found = [*findings.look(model), *(findings.try_dimensions(model) if run else ())]
    for rewrite in passes.NORMALIZE:  # shapes behind constant chains are known only once these are folded
        shaped = passes.apply(rewrite, shaped).model
    cost, by_node = memory.footprint(shaped), memory.macs(shaped)
    unknown = [key for key, count in by_node.items() if count is None]
    outputs = _outputs(model, shaped)
    seen = {
        "kind": "model",
        **summary(model),
        "peak_activation_bytes": cost.peak_activation_bytes,
        "dynamic_dims": list(dict.fromkeys(d for spec in (*model.inputs, *outputs) for d in _open(spec))),
        "assumed": list(cost.assumed),
        "macs": sum(count or 0 for count in by_node.values()) if not unknown else None,
        "macs_unknown": unknown,
        "findings": [dataclasses.asdict(finding) for finding in found],
    }
    assumed = f" (with {', '.join(cost.assumed)})" if cost.assumed else ""
    external = "".join(f", {f['file']} {bytes_text(f['bytes'])}" for f in seen["external_files"])
    rows = [
        ("file", f"{path} ({seen['format']}, {bytes_text(seen['bytes'])}{external})"),
        ("producer", seen["producer"] or "not stated"),
        ("opset", f"{seen['opset']} (IR version {seen['ir_version']})"),
        *[("note", note) for note in model.origin.notes],
        *[("input", str(spec)) for spec in model.inputs],
        *[("output", str(spec)) for spec in outputs],
        ("dynamic dims", ", ".join(seen["dynamic_dims"]) or "none"),
        ("parameters", f"{seen['parameters']:,}"),
        ("weights", bytes_text(seen["weight_bytes"])),
        ("peak activations", _known(cost.peak_activation_bytes, bytes_text, assumed)),
        ("multiply-accumulates", _known(seen["macs"], _count, assumed)),
        ("nodes", f"{seen['nodes']:,}"),
        ("operators", ", ".join(f"{op} {count}" for op, count in seen["ops"].items())),
        *[("refusal" if finding.level == "refusal" else "finding", finding.text) for finding in found],
    ]
    return seen, rows, _nodes(model, shaped, by_node) if nodes else []


def _outputs(model: Model, shaped: Model) -> list[TensorSpec]:
    """The outputs, with the sizes that the file leaves open and its own nodes fix."""
    known = {spec.name: spec for spec in shaped.outputs}
    return [known.get(spec.name, spec) for spec in model.outputs]


def _open(spec: TensorSpec) -> list[str]:
    return [str(dim) for dim in spec.shape if not isinstance(dim, int)]


def _nodes(model: Model, shaped: Model, macs: Mapping[str, int | None]) -> list[dict[str, Any]]:
    """The nodes of the file in their order, without its Constant nodes, which no step works on."""
    from edgeopt.model import node_key, spec_of

    sizes = {out.name: str(spec_of(out)) for node in shaped.nodes() for out in node.outputs}
    return [
        {
            "key": node_key(node),
            "op": node.op_type,
            "outputs": [sizes.get(out.name, str(out.name)) for out in node.outputs if out.name],
            "macs": macs.get(node_key(node)),
        }
        for node in model.nodes()
        if node.op_type != "Constant"
    ]


def _placed(manifest: Mapping[str, Any], wanted: bool) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = (manifest.get("placement") or {}).get("nodes", []) if wanted else []
    return found


def _known(value: int | None, shown: Any, assumed: str) -> str:
    return "unknown: fix the dynamic dims with --shape" if value is None else shown(value) + assumed


def _count(number: int) -> str:
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return str(number)


def _bundle(path: Path) -> tuple[Any, list[tuple[str, str]]]:
    from edgeopt import bundle
    from runtime_bench import VerifyFailure
    from runtime_bench.sums import check_tree

    if not (path / bundle.MANIFEST).is_file():
        raise BundleError(
            f"{path} is a folder without {bundle.MANIFEST}: no bundle", remedy="Name a bundle, or a model file in it."
        )
    manifest = bundle.read(path).manifest
    try:
        rows = _bundle_rows(manifest)
    except (KeyError, TypeError, AttributeError) as error:
        raise BundleError(f"{path}: manifest.json is not as its schema says ({error!r})") from error
    try:
        check_tree(str(path.absolute()))
    except VerifyFailure as failure:
        warn(f"{failure.message}: what follows is what the manifest says; `edgeopt verify` refuses this bundle")
    return {"kind": "bundle", **manifest}, rows


def _bundle_rows(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    from edgeopt.report.contract import bound_words

    backend, run, quality = manifest["backend"], manifest["run"], manifest["quality"]
    instead = f" instead of {backend['preferred']}: {backend['reason']}" if backend.get("reason") else ""
    kept = [step["name"] for step in manifest["steps"] if step["status"] == "kept"]
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
        *[
            ("bound", f"{a['path']} to {bound}")
            for a in manifest["artifacts"]
            if (bound := bound_words(manifest, a["path"]))
        ],
        ("steps kept", ", ".join(kept) or "none"),
        ("quality", quality_text(quality)),
        ("measured on", f"{manifest['measured_on']['machine']} ({manifest['measured_on']['note']})"),
        ("golden samples", str(manifest["golden"]["count"])),
    ]


def _signature(entry: Mapping[str, Any]) -> str:
    layout = f" {entry['layout']}" if entry.get("layout") else ""
    return f"{entry['name']}: {entry['dtype']}[{', '.join(map(str, entry['shape']))}]{layout}"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in values.items())
