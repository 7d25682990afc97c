"""``edgeopt build``: a model and a target in, a verified and measured bundle out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeopt.cli import _options as options

if TYPE_CHECKING:
    from edgeopt.target import Budget


@click.command()
@click.argument("model", type=options.PATH)
@click.option("--target", "-t", help="A target's name (see `edgeopt targets list`) or a profile's path.  [required]")
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
    target: str | None,
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
    from edgeopt.cli._screen import show
    from edgeopt.pipeline import Request, build

    if target is None:
        raise click.UsageError(
            "Missing option --target: which device is it for? `edgeopt targets list` shows the profiles."
        )
    try:
        limits = parse_budget(budget, max_drop)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    _check_measurable(limits, effort)
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
    show(bundle.manifest, summary, bundle.root)
    options.emit_path(bundle.root)


def _check_measurable(limits: Budget, effort: str) -> None:
    """Refuse a limit on what the build is told not to measure, before any work."""
    asked = [
        name
        for name, limit in (("memory", limits.peak_bytes), (f"p{limits.latency_percentile * 100:g}", limits.latency_ms))
        if limit is not None
    ]
    if asked and effort == "none":
        raise click.UsageError(f"--budget {asked[0]} needs a measurement, and --effort none makes none")
