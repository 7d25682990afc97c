"""The table of onnxruntime's CPU provider: kernels by operator, version, release and types of the places they take."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto

from _kernels.models import at, cases

RELEASES = ("1.17.0", "1.18.0", "1.19.2", "1.20.1", "1.23.2", "1.32.0")
"""Those that a profile names, the last wheels of the older Pythons, and the one that edgeopt is built with."""

_FLOATS = {
    "float": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "double": TensorProto.DOUBLE,
}

OLDEST = 13
"""Opset that a test model is at least at."""

_ASK = Path(__file__).with_name("ask_onnxruntime.py")


def table(cache: Path) -> dict[str, Any]:
    """Install, ask, and join the answers of all releases."""
    with tempfile.TemporaryDirectory(prefix="edgeopt-") as folder:
        _write_functions(Path(folder))
        answers = [answer(release, cache, Path(folder)) for release in RELEASES]
    for release, said in zip(RELEASES, answers, strict=True):
        if said["release"] != release:
            raise SystemExit(f"asked onnxruntime {release}, and {said['release']} answered")
    return {
        "schema": "edgeopt.kernels/1",
        "runtime": "onnxruntime",
        "provider": "CPUExecutionProvider",
        "releases": list(RELEASES),
        **_joined(answers),
    }


def answer(release: str, cache: Path, models: Path) -> dict[str, Any]:
    """What one release says; it is installed into a folder of its own where it is not yet."""
    environment = dict(os.environ, ORT_DISABLE_TELEMETRY="1")
    folder = cache / f"onnxruntime-{release}"
    if not (folder / "onnxruntime").is_dir():
        old = release.split(".")[:2] < ["1", "19"]
        wanted = [f"onnxruntime=={release}", "numpy<2" if old else "numpy", "packaging", "flatbuffers", "protobuf"]
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps", "--target", str(folder)]
        subprocess.run([*pip, *wanted], check=True, stdout=sys.stderr)
    environment["PYTHONPATH"] = str(folder)
    asked = subprocess.run(
        [sys.executable, str(_ASK), str(models)], check=True, stdout=subprocess.PIPE, env=environment, text=True
    )
    found: dict[str, Any] = json.loads(asked.stdout)
    return found


def _write_functions(folder: Path) -> None:
    """Models for each operator that onnx spells out by smaller ones, by version and type of the first input."""
    schemas = [s for s in onnx.defs.get_all_schemas_with_history() if s.domain == ""]
    spelled = [s for s in schemas if s.has_function or s.has_context_dependent_function]
    for number, case in enumerate(cases()):
        for schema in spelled:
            if schema.name != case.op or case.domain != "" or not case.model.graph.input:
                continue
            held = case.model.graph.input[0].type.tensor_type.elem_type
            own = TensorProto.DataType.Name(held).lower()
            for kind, element in _FLOATS.items() if held == TensorProto.FLOAT else [(own, held)]:
                name = f"{case.op}-{schema.since_version}-{kind}-{number}"
                onnx.save(at(case.model, max(schema.since_version, OLDEST), element), folder / f"{name}.onnx")


def _joined(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    seen: dict[str, dict[str, list[int]]] = {}
    types: list[list[str]] = []
    for place, answer in enumerate(answers):
        signatures = _by_operator(answer["signatures"])
        for domain, op, first, last, constraints in answer["kernels"]:
            if domain == "com.microsoft.nchwc":
                continue
            spelled = {}
            for constraint, kinds in constraints.items():
                bare = sorted(_bare(kind) for kind in kinds)
                if bare not in types:
                    types.append(bare)
                places = _places(constraint, first, signatures.get((domain, op), {}))
                if places:
                    spelled[places] = types.index(bare)
            key = json.dumps([first, last, spelled], sort_keys=True)
            seen.setdefault(_name(domain, op), {}).setdefault(key, []).append(place)
    operators = {
        op: [[*json.loads(key)[:2], sorted(set(places)), json.loads(key)[2]] for key, places in sorted(kernels.items())]
        for op, kernels in sorted(seen.items())
    }
    return {"types": types, "operators": operators, "functions": _functions(answers)}


def _functions(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """{operator: {since: {type: [releases that load all of its models, those that load some]}}}"""
    found: dict[str, dict[str, dict[str, list[list[int]]]]] = {}
    for place, answer in enumerate(answers):
        loaded = collections.Counter(name.rsplit("-", 1)[0] for name in answer["loads"])
        asked = loaded + collections.Counter(name.rsplit("-", 1)[0] for name in answer["refused"])
        for name, number in sorted(loaded.items()):
            op, since, kind = name.split("-")
            entry = found.setdefault(op, {}).setdefault(since, {}).setdefault(kind, [[], []])
            entry[0 if number == asked[name] else 1].append(place)
    return {op: dict(sorted(found[op].items(), key=lambda item: int(item[0]))) for op in sorted(found)}


def _by_operator(signatures: Iterable[Sequence[Any]]) -> dict[tuple[str, str], dict[int, tuple[Any, Any]]]:
    found: dict[tuple[str, str], dict[int, tuple[Any, Any]]] = {}
    for domain, op, since, inputs, outputs in signatures:
        found.setdefault((domain, op), {})[since] = (inputs, outputs)
    return found


def _places(constraint: str, first: int, versions: Mapping[int, tuple[Any, Any]]) -> str:
    """Where a constraint holds: ``"0 1 2* >0"`` for inputs, inputs from one on, and outputs."""
    since = max((version for version in versions if version <= first), default=min(versions, default=0))
    found = []
    for mark, side in zip(("", ">"), versions.get(since, ((), ())), strict=True):
        for index, (name, kind, variadic) in enumerate(side):
            if constraint in (name, kind):
                found.append(f"{mark}{index}{'*' if variadic else ''}")
    return " ".join(found)


def _bare(kind: str) -> str:
    return kind.removeprefix("tensor(").removesuffix(")") if kind.startswith("tensor(") else kind


def _name(domain: str, op: str) -> str:
    return op if domain == "" else f"{domain}:{op}"
