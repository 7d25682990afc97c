"""``edgeopt build``: a model and a target in, a verified and measured bundle out."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeopt.cli import _options as options
from edgeopt.cli._settings import model_options

if TYPE_CHECKING:
    from edgeopt.pipeline import Request


@click.command()
@model_options
@click.option("--out", "-o", type=options.PATH, help="Folder of the bundle.  [default: MODEL-TARGET]")
@click.option("--locked", type=options.PATH, help="Replay the decisions of a bundle or decisions.lock.")
@click.option("--resume", is_flag=True, help="Go on from what an earlier try of this build found out.")
@click.option("--work", type=options.PATH, help="Folder for what --resume needs.  [default: beside the bundle]")
@options.quiet_option
@options.json_option
def command(
    request: Request,
    out: Path | None,
    locked: Path | None,
    resume: bool,
    work: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Optimize MODEL for a device and write a verified, measured bundle.

    MODEL is an .onnx, .pt2 or TorchScript file, or package.module:function. Without MODEL the project file edgeopt.toml
    of the working folder says what to build; options win over it. The path of the bundle goes to stdout, progress and
    the result table to stderr. Without --calib only steps that need no data are tried.
    """
    from edgeopt.cli._screen import show, show_diary
    from edgeopt.errors import BudgetError
    from edgeopt.pipeline import build

    request = dataclasses.replace(request, out=out or request.out, locked=locked, resume=resume, work=work)
    _check_measurable(request)
    try:
        bundle = build(request, options.steps(quiet))
    except BudgetError as error:
        show_diary(error.diary)
        if as_json:
            options.emit_json({"error": error.message, "remedy": error.remedy, "diary": list(error.diary)})
        raise
    summary = json.loads((bundle.root / "report.json").read_text(encoding="utf-8"))
    if as_json:
        options.emit_json({"bundle": str(bundle.root), "identity": bundle.manifest["identity"], **summary})
        return
    show(bundle.manifest, summary, bundle.root)
    options.emit_path(bundle.root)


def _check_measurable(request: Request) -> None:
    """Refuse a limit on what the build is told not to measure, before any work."""
    asked = [f"--budget {name}" for name in request.budget.measured]
    if request.objective in ("memory", "latency"):
        asked.append(f"--objective {request.objective}")
    if asked and request.effort == "none":
        raise click.UsageError(f"{asked[0]} needs a measurement, and --effort none makes none")
