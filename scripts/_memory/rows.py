"""Build, simulate and measure: one row for each artifact."""

from __future__ import annotations

import contextlib
import json
import math
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from edgeopt.backends.shapes import shaped
from edgeopt.cli import group
from edgeopt.model import Model
from edgeopt.target import Target, load_target
from runtime_bench import memory, process

PROFILE = """schema = "edgeopt.target/1"
name = "host-memory"
description = "this machine"
extends = "host"
backends = {backends}
optimized = "portable"
"""

SAMPLES = 8
_LEFT_OUT = frozenset({"limit", "count", "metric", "labels"})

Row = dict[str, Any]


def collect(network: Path, backend: ModuleType, model_of: ModuleType) -> list[Row]:
    """The rows of one network: its float artifact, and the int8 one where it has one.

    Args:
        model_of: the backend's memory model.
    """
    with tempfile.TemporaryDirectory(prefix="memory-model-") as folder:
        profile, out = Path(folder) / "host-memory.toml", Path(folder) / "bundle"
        others = [name for name in ("onnxruntime", "openvino") if name != backend.NAME]
        profile.write_text(PROFILE.format(backends=json.dumps([backend.NAME, *others])))
        with recorded(backend) as models, contextlib.redirect_stdout(sys.stderr):
            few = _few(network, Path(folder) / "set")
            group.main(_command(network, few, profile, out, backend.NAME), standalone_mode=False)
        manifest = json.loads((out / "manifest.json").read_text())
        target = load_target(str(profile))
        names = [spec["name"] for spec in manifest["signature"]["inputs"]]
        samples = [dict(zip(names, sample["inputs"])) for sample in manifest["golden"]["samples"]]
        files = [{name: str(out / file) for name, file in sample.items()} for sample in samples]
        return [
            _row(network.name, artifact, models[artifact["precision"]], out, files, model_of, target)
            for artifact in manifest["artifacts"]
            if artifact["precision"] in models
        ]


@contextlib.contextmanager
def recorded(backend: ModuleType) -> Iterator[dict[str, Model]]:
    """The models that a backend was given to lower, by precision."""
    models: dict[str, Model] = {}
    original = backend.lower

    def lower(model: Model, target: Target, out: Path, *, precision: str) -> Any:
        models[precision] = model.clone()
        return original(model, target, out, precision=precision)

    backend.lower = lower  # type: ignore[attr-defined]
    try:
        yield models
    finally:
        backend.lower = original  # type: ignore[attr-defined]


def _few(network: Path, folder: Path) -> Path:
    """A copy of a network's folder without models and eval sets, its calibration sets cut to a few samples.

    Ranges do not change what a model holds, and nobody judges its quality here.
    """
    folder.mkdir()
    for file in network.iterdir():
        if file.is_file() and not file.name.startswith(("eval", "model")) and file.suffix != ".toml":
            shutil.copyfile(file, folder / file.name)
    for file in network.glob("calib*.toml"):
        head, bracket, tables = file.read_text(encoding="utf-8").partition("\n[")
        kept = [line for line in head.splitlines() if line.split("=")[0].strip() not in _LEFT_OUT]
        text = "\n".join([*kept, f"limit = {SAMPLES}"]) + bracket + tables
        (folder / file.name).write_text(text, encoding="utf-8")
    return folder


def _command(network: Path, few: Path, profile: Path, out: Path, backend: str) -> list[str]:
    lines = (network / "build.txt").read_text().splitlines()
    words = shlex.split(next((line for line in lines if "model.onnx" in line), lines[0]))[1:]
    found: list[str] = []
    skip = False
    for word in words:
        if skip or word == "--eval":
            skip = not skip
        else:
            folder = few if (few / word).is_file() else network
            found.append(str(folder / word) if (folder / word).is_file() else word)
    how = ["--quantize", "static", "--effort", "none", "--quiet", "--backend", backend]
    return [*found, *how, "--target", str(profile), "-o", str(out)]


def _row(
    network: str,
    artifact: Mapping[str, Any],
    model: Model,
    out: Path,
    files: list[dict[str, str]],
    model_of: ModuleType,
    target: Target,
) -> Row:
    quantized = artifact["precision"] == "int8"
    shapes: dict[str, tuple[int, ...]] = {}
    for sample in files:
        for name, file in sample.items():
            shape = np.load(file, mmap_mode="r").shape
            if math.prod(shape) >= math.prod(shapes.get(name, (0,))):
                shapes[name] = shape
    options = dict(artifact.get("options", {}))
    given = shaped(model, shapes)
    predicted = model_of.predict(given, target, options, quantized=quantized)
    counts = model_of.features(given, quantized=quantized)
    constants = sum(cost * count for cost, count in zip(model_of.COSTS, counts, strict=True))
    backend = str(model_of.__name__).split(".")[-2]
    figures = _measured(str(out / artifact["path"]), backend, options, files)
    return {
        "network": network,
        "backend": backend,
        "precision": artifact["precision"],
        "measured": figures["model"]["bytes"],
        "file_backed": figures["steady"]["file_bytes"],
        "weights": predicted.weights,
        "simulated": None if predicted.total is None else predicted.total - constants,
        "counts": counts,
        "peak_operators": predicted.peak_operators,
    }


def _measured(path: str, runner: str, options: Mapping[str, str], files: list[dict[str, str]]) -> Mapping[str, Any]:
    def run(job: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"reason": "not asked for"} if job["job"] == "growth" else process.run(job, 300)

    request = {"runner": runner, "path": path, "options": {"threads": 1, **options}, "samples": files}
    return memory.figures(request, 300, run, plan=memory.Plan(3, 0.0))


def told(text: str) -> None:
    """Say how far it is."""
    print(text, file=sys.stderr, flush=True)
