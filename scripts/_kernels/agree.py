"""The plan's verdicts beside what loading and building say."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto

from _kernels import networks
from _kernels.compared import Compared, compared
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


def main(arguments: Sequence[str], text: str) -> int:
    """Compare and print; 1 where a verdict and the runtime disagree, or nothing was compared."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--operators", action="store_true")
    parser.add_argument("--networks", action="store_true")
    parser.add_argument("--jobs", type=int, choices=range(1, 9), default=1, metavar="N")
    parser.add_argument("--zoo", type=Path, default=Path.home() / ".cache" / "edgeopt" / "zoo" / "models")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "edgeopt" / "kernels")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    both = given.operators == given.networks
    folders = networks.folders(given.zoo, given.names) if both or given.networks else []
    unknown = set(given.names) - {folder.name for folder in folders}
    if unknown:
        parser.error(f"not in {given.zoo}: {', '.join(sorted(unknown))}")
    found: list[Compared] = []
    with ProcessPoolExecutor(given.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        work: list[Future[list[Compared]]] = []
        if both or given.operators:
            work += [pool.submit(on_openvino), pool.submit(on_onnxruntime, given.cache)]
        work += [pool.submit(networks.compare, folder, given.cache) for folder in folders]
        for done in as_completed(work):
            part = done.result()
            found += part
            wrong = [f"  {_line(one)}\n" for one in part if not one.agrees]
            sys.stderr.write(f"{part[0].where if part else 'nothing'}: {len(part)} compared\n{''.join(wrong)}")
            sys.stderr.flush()
    found.sort(key=lambda one: one.where)
    _print(found)
    if given.json is not None:
        given.json.write_text(json.dumps([dataclasses.asdict(one) for one in found], indent=1), encoding="utf-8")
    return 0 if found and all(one.agrees for one in found) else 1


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
    wrong = sum(not one.agrees for one in found)
    refused = sum(one.planned is False for one in found)
    sys.stdout.write(f"{len(found)} compared, {refused} of them refused by the plan; {wrong} disagree\n")


# Operators.


def on_onnxruntime(cache: Path) -> list[Compared]:
    """The test models, loaded by every release of the table."""
    from edgeopt.backends.onnxruntime import kernels
    from edgeopt.backends.onnxruntime.releases import reads

    found = []
    with tempfile.TemporaryDirectory(prefix="edgeopt-") as text:
        models = dict(_typed(Path(text)))
        for release in RELEASES:
            said = answer(release, cache, Path(text))
            for name, (model, opset, _) in models.items():
                refused = said["refused"].get(name, "")
                if opset > reads(release)[0] or any(word in refused for word in _INVALID):
                    continue
                found.append(compared(f"onnxruntime {release}", name, kernels.missing(model, release), refused))
    return found


def on_openvino() -> list[Compared]:
    """The test models, compiled and run once by OpenVINO as it is installed."""
    import openvino

    from edgeopt.backends.openvino import operators

    found = []
    with tempfile.TemporaryDirectory(prefix="edgeopt-") as text:
        core = openvino.Core()
        for name, (model, _, inputs) in _typed(Path(text)):
            if not inputs or name.startswith(_SEQUENCES) or "-bfloat16-" in name or "-object-" in name:
                continue
            refused = why_not(core, onnx.load(Path(text) / f"{name}.onnx"), inputs) or ""
            found.append(compared("openvino", name, operators.missing(model), refused))
    return found


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
