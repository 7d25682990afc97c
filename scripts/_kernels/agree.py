"""The plan's verdicts beside what loading and building say."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto

from _kernels.models import at, cases
from _kernels.of_onnxruntime import RELEASES, answer
from _kernels.of_openvino import why_not

_KINDS = {
    "float": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "double": TensorProto.DOUBLE,
}
_INVALID = ("INVALID_GRAPH", "ShapeInferenceError", "Load model", "Failed to construct locale")
"""What onnxruntime says about models that break the rules of onnx, or need something of the machine."""

_SEQUENCES = ("SplitToSequence", "Sequence", "ConcatFromSequence", "Optional")
"""Operators that OpenVINO's importer takes with their neighbours or not at all."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compared:
    """One verdict: ``planned`` and ``happened`` are True for runs; None where the plan leaves it open."""

    where: str
    what: str
    planned: bool | None
    happened: bool
    plan: str
    said: str

    @property
    def agrees(self) -> bool:
        """Whether the two say the same; an open verdict contradicts nothing."""
        return self.planned is None or self.planned == self.happened


def main(arguments: Sequence[str], text: str) -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--operators", action="store_true")
    parser.add_argument("--networks", action="store_true")
    parser.add_argument("--every", action="store_true", help="all targets, not one of those judged alike")
    parser.add_argument("--zoo", type=Path, default=Path.home() / ".cache" / "edgeopt" / "zoo" / "models")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "edgeopt" / "kernels")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    both = given.operators == given.networks
    found: list[Compared] = []
    if both or given.operators:
        found += _operators(given.cache)
    if both or given.networks:
        for compared in _networks(given.zoo, given.names, every=given.every):
            sys.stdout.write(f"{_line(compared)}\n")
            sys.stdout.flush()
            found.append(compared)
    _print(found)
    if given.json is not None:
        given.json.write_text(json.dumps([dataclasses.asdict(one) for one in found], indent=1), encoding="utf-8")
    return 0 if all(one.agrees for one in found) else 1


def _line(one: Compared) -> str:
    word = {True: "runs", False: "refused", None: "open"}[one.planned]
    mark = "agrees" if one.agrees else "DIFFERS"
    return f"{mark:8} {one.where:28} {one.what:44} plan: {word} {one.plan} | {one.said}"


def _print(found: Sequence[Compared]) -> None:
    for where in dict.fromkeys(one.where for one in found):
        of = [one for one in found if one.where == where]
        counts = collections.Counter((one.planned, one.happened) for one in of)
        open_ = counts[None, True] + counts[None, False]
        sys.stdout.write(
            f"{where:28} {len(of):5} compared: {counts[True, True]} run, {counts[False, False]} refused, {open_} open; "
            f"{counts[True, False]} said to run and do not, {counts[False, True]} said not to and do\n"
        )
        for one in of:
            if not one.agrees:
                sys.stdout.write(f"  {_line(one)}\n")


# Operators.


def _operators(cache: Path) -> list[Compared]:
    from edgeopt.backends.onnxruntime import kernels
    from edgeopt.backends.onnxruntime.releases import reads
    from edgeopt.backends.openvino import operators

    found = []
    with tempfile.TemporaryDirectory(prefix="edgeopt-") as text:
        folder = Path(text)
        models = dict(_typed(folder))
        for release in RELEASES:
            said = answer(release, cache, folder)
            for name, (model, opset, _) in models.items():
                refused = said["refused"].get(name, "")
                if opset > reads(release)[0] or any(word in refused for word in _INVALID):
                    continue
                missing = kernels.missing(model, release)
                found.append(_compared(f"onnxruntime {release}", name, missing, refused))
        import openvino

        core = openvino.Core()
        for name, (model, inputs) in {n: (m, i) for n, (m, _, i) in models.items() if i}.items():
            refused = why_not(core, onnx.load(folder / f"{name}.onnx"), inputs) or ""
            if not name.startswith(_SEQUENCES) and "-bfloat16-" not in name and "-object-" not in name:
                found.append(_compared("openvino", name, operators.missing(model), refused))
    return found


def _compared(where: str, what: str, missing: Sequence[Any], refused: str) -> Compared:
    certain = any(one.certain for one in missing)
    planned = False if certain else None if missing else True
    plan = "; ".join(one.why for one in missing)
    return Compared(where=where, what=what, planned=planned, happened=not refused, plan=plan, said=refused[:160])


def _typed(folder: Path) -> Iterator[tuple[str, tuple[Any, int, tuple[np.ndarray, ...]]]]:
    """Each valid test model at the oldest opset that has its version of the operator, written and as a Model."""
    from edgeopt.model import Model, Origin

    for number, case in enumerate(cases()):
        opset = max(case.since, 7) if case.domain == "" else 13
        held = case.inputs[0].dtype.name if case.inputs else ""
        for kind, element in _KINDS.items() if held == "float32" else [(held or "none", TensorProto.FLOAT)]:
            made = at(case.model, opset, element)
            try:
                onnx.checker.check_model(onnx.shape_inference.infer_shapes(made, strict_mode=True))
            except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, ValueError):
                continue
            name = f"{case.op}-{case.since}-{kind}-{number}"
            onnx.save(made, folder / f"{name}.onnx")
            origin = Origin(path=folder, format="onnx", files=())
            dtype = onnx.helper.tensor_dtype_to_np_dtype(element)
            inputs = tuple(v.astype(dtype) if v.dtype == np.float32 else v for v in case.inputs)
            yield name, (Model(ir=ir.serde.deserialize_model(made), origin=origin), opset, inputs)


# Networks.


def _fixed(inputs: Sequence[str]) -> bool:
    """Whether every dimension of every input but its first is a number."""
    shapes = [text.rpartition("[")[2].rstrip("]").split(", ")[1:] for text in inputs]
    return all(dim.isdigit() for shape in shapes for dim in shape)


def _networks(zoo: Path, names: Sequence[str], *, every: bool) -> Iterator[Compared]:
    from edgeopt.errors import EdgeoptError
    from edgeopt.pipeline import Request, build
    from edgeopt.pipeline.choose import BACKENDS
    from edgeopt.pipeline.survey import survey
    from edgeopt.target import load_target

    folders = [folder for folder in sorted(zoo.iterdir()) if (folder / "model.onnx").is_file()]
    for folder in folders:
        if names and folder.name not in names:
            continue
        model, seen = folder / "model.onnx", set()
        calib = folder / "calib.toml"  # its samples give open dimensions their sizes
        judged = survey(Request(model=model, target="all", out=Path("unused")))
        for verdict in judged.verdicts:
            module = BACKENDS.get(verdict.backend)
            if module is None or module.probe() is not None:
                continue
            target = load_target(verdict.target)
            key = (verdict.backend, target.arch, target.opset_max, target.format, target.optimized, verdict.release)
            if key in seen and not every:
                continue
            seen.add(key)
            with tempfile.TemporaryDirectory(prefix="edgeopt-") as out:
                request = Request(
                    model=model,
                    target=verdict.target,
                    out=Path(out) / "bundle",
                    backend=verdict.backend,
                    effort="none",
                    quantize="none",
                    calib=str(calib) if calib.is_file() and not _fixed(judged.inputs) else None,
                )
                try:
                    build(request)
                    said = ""
                except EdgeoptError as error:
                    said = f"{type(error).__name__}: {error.message}"
            plan = "; ".join(f"{one.operator} {one.why}" for one in verdict.missing)
            yield Compared(
                where=folder.name,
                what=f"{verdict.target} {verdict.backend} {verdict.release}",
                planned=verdict.runs,
                happened=not said,
                plan=plan,
                said=said,
            )
