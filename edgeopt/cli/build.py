"""``edgeopt build``: a model and a target in, a verified and measured bundle out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from edgeopt.cli import _options as options


@click.command()
@click.argument("model", type=options.PATH)
@click.option("--target", "-t", required=True, help="A target's name (see `edgeopt targets list`) or a profile's path.")
@click.option("--out", "-o", type=options.PATH, help="Folder of the bundle.  [default: MODEL-TARGET]")
@click.option("--calib", metavar="SET", help="Calibration set: a .toml, .npz, .npy, a folder, or 'random'.")
@click.option("--eval", "evaluate", metavar="SET", help="Evaluation set, best with labels and a metric.")
@click.option("--budget", metavar="TEXT", help="Limits, such as memory=64MB,size=5MB,p95=20ms.")
@click.option(
    "--max-drop", metavar="SHARE", help="Largest drop of the metric, such as 1%.  [default: not clearly above 1%]"
)
@click.option("--exclude", multiple=True, metavar="NODE", help="Keep a node in float, by name or key; repeatable.")
@options.shape_option
@click.option("--name", help="Name of the bundle and its files.  [default: the model file's]")
@click.option(
    "--effort",
    type=click.Choice(["none", "quick", "standard", "release"]),
    default="quick",
    show_default=True,
    help="How long to measure.",
)
@click.option("--seconds", type=click.FloatRange(min=1), help="Upper bound on the measurement's time.")
@options.threads_option
@click.option("--locked", type=options.PATH, help="Replay the decisions of a bundle or decisions.lock.")
@click.option("--trust-pickle", is_flag=True, help="Let the model file run code of its own while it loads.")
@options.quiet_option
@options.json_option
def command(
    model: Path,
    target: str,
    out: Path | None,
    calib: str | None,
    evaluate: str | None,
    budget: str | None,
    max_drop: str | None,
    exclude: tuple[str, ...],
    shapes: tuple[str, ...],
    name: str | None,
    effort: str,
    seconds: float | None,
    threads: int | None,
    locked: Path | None,
    trust_pickle: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Optimize MODEL (.onnx or .pt2) for a device and write a verified, measured bundle.

    The path of the bundle goes to stdout, progress and the result table to stderr. Without --calib only
    steps that need no data are tried.
    """
    from edgeopt.budget import parse_budget
    from edgeopt.pipeline import Request, build

    try:
        limits = parse_budget(budget, max_drop)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    request = Request(
        model=model,
        target=target,
        out=out or Path(f"{name or model.stem}-{Path(target).stem}"),
        name=name,
        calib=calib,
        evaluate=evaluate,
        budget=limits,
        exclude=exclude,
        shapes=options.parse_shapes(shapes),
        effort=effort,
        seconds=seconds,
        threads=threads,
        locked=locked,
        trust_pickle=trust_pickle,
    )
    bundle = build(request, options.steps(quiet))
    summary = json.loads((bundle.root / "report.json").read_text(encoding="utf-8"))
    if as_json:
        options.emit_json({"bundle": str(bundle.root), "identity": bundle.manifest["identity"], **summary})
        return
    _show(bundle.manifest, summary, bundle.root)
    options.emit_path(bundle.root)


def _show(manifest: Mapping[str, Any], summary: Mapping[str, Any], root: Path) -> None:
    """The first screen after a build, on stderr: what ships, against what, and what to read next."""
    from edgeopt.console import bytes_text, fields, result_table

    subjects, memory = summary["latency"]["subjects"], summary["memory"]
    sizes = {"original": manifest["source"]["bytes"]} | {a["precision"]: a["bytes"] for a in manifest["artifacts"]}
    rows = []
    for name in ("original", "float32", "int8"):
        if name not in sizes and name not in subjects:
            continue
        seen = subjects.get(name) or {}
        rows.append(
            [
                name + (" (default)" if name == summary["default"]["precision"] else ""),
                bytes_text(sizes.get(name)),
                bytes_text((memory.get(name) or {}).get("charged")),
                *(_milliseconds(seen, figure) for figure in ("median", "p90", "p95", "p99")),
                f"{seen['cv']:.1%}" if seen.get("cv") is not None else "-",
            ]
        )
    click.echo("", err=True)
    result_table(["model", "size", "peak memory", "median", "p90", "p95", "p99", "CV"], rows)
    click.echo("", err=True)
    steps = manifest["steps"]
    kept = [s["name"] for s in steps if s["status"] == "kept"]
    undone = [f"{s['name']} ({s['reason']})" for s in steps if s["status"] == "rolled-back"]
    lines = [("verdict", manifest["verdict"]["text"]), ("kept", ", ".join(kept) or "nothing changed")]
    lines += [("rolled back", text) for text in undone]
    lines += [("measured", f"{manifest['measured_on']['note']} ({manifest['measured_on']['machine']})")]
    lines += [("warning", text) for text in manifest["verdict"]["warnings"]]
    lines += [("report", str(root / "report.html"))]
    fields(lines)


def _milliseconds(summary: Mapping[str, Any], figure: str) -> str:
    value = summary.get(f"{figure}_ns")
    if value is not None:
        return f"{value / 1e6:.3g} ms" if value >= 1e5 else f"{value / 1e3:.3g} us"
    needs = summary.get(f"{figure}_needs")
    return f"n/a (needs {needs})" if needs else "-"
