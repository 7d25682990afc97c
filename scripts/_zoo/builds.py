"""Builds all networks for all targets and checks that the float artifacts still compute what the networks did."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from _zoo import sets
from _zoo.main import RECIPES, default_cache

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ("host", "raspberry-pi-5")
HEAD = ("network", "file", "target", "exit", "s", "nodes", "kept", "float error (allowed)", "int8", "SQNR", "metric")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One line of a ``build.txt`` for one target."""

    network: str
    folder: Path
    arguments: tuple[str, ...]
    target: str

    @property
    def source(self) -> str:
        """The model file or factory."""
        return self.arguments[0]


def main(arguments: list[str], usage: str) -> int:
    """Exit code: 1 when a build fails or changes a float output."""
    parser = argparse.ArgumentParser(
        prog="scripts/zoo_builds", description=usage, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RECIPES))
    parser.add_argument(
        "--target", action="append", metavar="NAME", help=f"repeatable; default: {' and '.join(TARGETS)}"
    )
    parser.add_argument("--effort", default="none", help="of the measurement; default: none")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="where scripts/zoo put the networks")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the bundles here")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    options = parser.parse_args(arguments)
    models = default_cache(options.cache) / "models"
    jobs = list(found_jobs(models, options.names or RECIPES, options.target or TARGETS))
    if not jobs:
        parser.error(f"no network in {models}: run scripts/zoo first")
    rows, failed = [], 0
    with tempfile.TemporaryDirectory(prefix="edgeopt-zoo-") as scratch:
        for job in jobs:
            row, good = run(job, options.out or Path(scratch), options.effort)
            failed += not good
            rows.append(row)
            print(" | ".join(row), file=sys.stderr, flush=True)
    print(table(rows, markdown=options.markdown))
    print(f"{len(rows) - failed} of {len(rows)} builds are good")
    return int(failed > 0)


def found_jobs(models: Path, names: Sequence[str] | Mapping[str, str], targets: Sequence[str]) -> Iterator[Job]:
    """Every build of every network that is there."""
    for name in names:
        build = models / name / sets.BUILD
        if not build.is_file():
            print(f"skipped: {name} is not in {models}", file=sys.stderr)
            continue
        for line in build.read_text(encoding="utf-8").splitlines():
            for target in targets:
                arguments = tuple(shlex.split(line)[2:])
                yield Job(network=name, folder=build.parent, arguments=arguments, target=target)


def run(job: Job, out: Path, effort: str) -> tuple[tuple[str, ...], bool]:
    """One build: its row of the table, and whether it is good."""
    bundle = bundle_of(job, out)
    command = [sys.executable, "-m", "edgeopt", "build", *job.arguments, "--target", job.target, "-o", str(bundle)]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    started = time.monotonic()
    done = subprocess.run(
        [*command, "--effort", effort, "--json", "--quiet"],
        check=False,
        capture_output=True,
        text=True,
        cwd=job.folder,
        env={**os.environ, "PYTHONPATH": path},
    )
    head = (job.network, job.source, job.target, str(done.returncode), f"{time.monotonic() - started:.0f}")
    if done.returncode:
        why = (done.stderr.strip() or "no output").splitlines()
        return (*head, "", "", "", next((line for line in why if line.startswith("error")), why[-1]), "", ""), False
    report = json.loads(done.stdout)
    error, allowed = float_error(job, bundle, report)
    good = error <= allowed
    verdict = f"{error:.1e} ({allowed:.1e})" if good else f"**{error:.1e}** ({allowed:.1e})"
    return (*head, nodes(report), kept(report), verdict, int8(report), *quality(report)), good


def bundle_of(job: Job, out: Path) -> Path:
    """Where the bundle of a build goes."""
    return out.resolve() / f"{job.network}-{job.source.replace(':', '-').replace('.', '-')}-{job.target}"


def shapes(job: Job) -> dict[str, tuple[int, ...]]:
    """What ``--shape`` says, as ``loaders.load`` takes it."""
    from edgeopt.cli import _options

    given = [value for flag, value in zip(job.arguments, job.arguments[1:]) if flag == "--shape"]
    return dict(_options.parse_shapes(given))


def float_error(job: Job, bundle: Path, report: Mapping[str, Any]) -> tuple[float, float]:
    """Largest error of the float artifact, relative to the range of its output, and what the kept passes may add up to.

    The reference is the golden output of the network as loaded; where the source is a plain .onnx file that takes the
    golden inputs as it is, also what onnxruntime makes of that.
    """
    from edgeopt import quality

    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    artifact = next(a for a in manifest["artifacts"] if a["precision"] == "float32")
    fused = sets.session(bundle / artifact["path"])
    source = job.folder / job.source
    plain = sets.session(source) if source.suffix == ".onnx" and "--shape" not in job.arguments else None
    inputs = [one["name"] for one in manifest["signature"]["inputs"]]
    outputs = [one["name"] for one in manifest["signature"]["outputs"]]
    worst = 0.0
    for sample in manifest["golden"]["samples"]:
        feeds = {name: np.load(bundle / file) for name, file in zip(inputs, sample["inputs"], strict=True)}
        given = dict(zip(outputs, fused.run(outputs, feeds)))
        golden = [np.load(bundle / file) for file in sample["outputs"]["float32"]]
        worst = max(worst, quality.relative_error(dict(zip(outputs, golden, strict=True)), given))
        if plain is not None:
            worst = max(worst, quality.relative_error(dict(zip(outputs, plain.run(outputs, feeds))), given))
    return worst, allowance(job.target, report)


def allowance(target: str, report: Mapping[str, Any]) -> float:
    """The sum of what every kept rewrite may change, as the build allows it."""
    from edgeopt import passes
    from edgeopt.pipeline.checks import KERNEL_ROUNDING
    from edgeopt.pipeline.choose import choose_backend
    from edgeopt.target import load_target

    profile = load_target(target)
    known = (*passes.NORMALIZE, *passes.FUSIONS, *choose_backend(profile).backend.passes(profile))
    tolerances = {one.name: one.tolerance for one in known}
    names = [step["name"] for step in report["steps"] if step["status"] == "kept" and step["name"] in tolerances]
    return sum(max(tolerances[name], KERNEL_ROUNDING) for name in names) or KERNEL_ROUNDING


def nodes(report: Mapping[str, Any]) -> str:
    """Nodes before the first and after the last rewrite of the float network."""
    rewrites = [step for step in report["steps"] if step["kind"] in ("pass", "finish")]
    after = [step["after"]["nodes"] for step in rewrites if step["status"] == "kept"]
    before = rewrites[0]["before"]["nodes"]
    return f"{before} -> {after[-1] if after else before}"


def kept(report: Mapping[str, Any]) -> str:
    """Rewrites that were kept, and those that were rolled back."""
    by_status = {
        status: [s["name"] for s in report["steps"] if s["status"] == status and s["kind"] in ("pass", "finish")]
        for status in ("kept", "rolled-back")
    }
    rolled = f", not {' '.join(by_status['rolled-back'])}" if by_status["rolled-back"] else ""
    return f"{len(by_status['kept'])}: {' '.join(by_status['kept'])}{rolled}"


def int8(report: Mapping[str, Any]) -> str:
    """``kept``, or why not."""
    steps = [step for step in report["steps"] if step["name"] == "quantize-int8"]
    if not steps:
        return "not tried"
    return "kept" if steps[0]["status"] == "kept" else f"{steps[0]['status']}: {steps[0]['reason']}"


def quality(report: Mapping[str, Any]) -> tuple[str, str]:
    """SQNR of the worst output of what ships, single channels aside, and the metric of float and of what ships."""
    found = report["quality"]
    whole = [one["sqnr_db"] for one in found["outputs"] if "[axis" not in one["output"]]
    ratios = [ratio for ratio in whole if ratio is not None]
    metric = found.get("metric")
    told = "" if metric is None else f"{metric['name']} {metric['float']:.4g} -> {metric['artifact']:.4g}"
    return f"{min(ratios):.1f} dB" if ratios else "exact", told


def table(rows: Sequence[Sequence[str]], *, markdown: bool) -> str:
    """Markdown, or columns as wide as they need to be, the long ones cut."""
    if markdown:
        lines = ["| " + " | ".join(row) + " |" for row in (HEAD, ["---"] * len(HEAD), *rows)]
        return "\n".join(lines)
    cut = [[cell if len(cell) <= 60 else f"{cell[:59]}…" for cell in row] for row in (HEAD, *rows)]
    widths = [max(len(row[column]) for row in cut) for column in range(len(HEAD))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cut)
