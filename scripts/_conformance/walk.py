"""One model through the loader and every pass, compared after each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator

from edgeopt import loaders
from edgeopt.backends import onnxruntime as backend
from edgeopt.errors import EdgeoptError
from edgeopt.model import Model
from edgeopt.passes import FUSIONS, NORMALIZE, Pass, apply
from edgeopt.passes.lower_opset import lower_opset
from edgeopt.target import Target, load_target

RANDOM = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
ROUNDING = 1e-4
"""A rewrite may let the runtime choose another kernel, which rounds differently."""

STANDARD = "equal to the standard"
STANDARD_TOLERANCE = 1e-3
"""That of the standard's own comparison of its cases."""

EPSILON = {"float16": 4e-3, "bfloat16": 3e-2, "complex64": 1e-4}
"""Least tolerance by type of output, where it is more than ``ROUNDING``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a case: its state, why, how many passes changed it, and the outcome of each lowering.

    ``standard`` names passes after which an output equals the standard's and not the original's in the runtime.
    """

    state: str
    why: str = ""
    changes: int = 0
    lowered: Mapping[str, str] = dataclasses.field(default_factory=dict)
    standard: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Reference:
    """Outputs of the model as loaded, what the standard expects, and who computed the first."""

    wanted: Sequence[Any]
    expected: Sequence[Any] | None
    by: str


class UnrunnableError(Exception):
    """Neither the runtime nor the reference runs a model."""


def walk(
    proto: onnx.ModelProto,
    feeds: Mapping[str, Any],
    expected: Sequence[Any] | None,
    folder: Path,
    opsets: Sequence[int],
) -> Verdict:
    """Load, rewrite pass by pass, lower."""
    path = folder / "case.onnx"
    path.write_bytes(proto.SerializeToString())
    try:
        model = loaders.load(path)
    except EdgeoptError as refusal:
        return Verdict(state="refused", why=_reason(refusal.message))
    if any(n.op_type in RANDOM for n in model.nodes()):
        return Verdict(state="random")
    try:
        wanted, by = _outputs(proto, feeds)
    except UnrunnableError as reason:
        if expected is None:
            return Verdict(state="unrunnable", why=str(reason))
        wanted, by = list(expected), "standard"
    target, reference = load_target("host"), _Reference(wanted=wanted, expected=expected, by=by)
    changes, standard = 0, []
    own = tuple(p for p in backend.passes(target) if not p.name.startswith("lower-opset"))
    for pass_ in (*NORMALIZE, *FUSIONS, *own):
        model, changed, fault = _step(pass_, model, target, feeds, reference)
        changes += changed
        if fault == STANDARD:
            standard.append(pass_.name)
            reference = dataclasses.replace(reference, wanted=list(expected or ()))
        elif fault is not None:
            return Verdict(state="different", why=f"{pass_.name}: {fault}", changes=changes)
    lowered: dict[str, str] = {}
    for opset in opsets:
        _, changed, fault = _step(lower_opset(opset), model, target, feeds, reference)
        if fault == STANDARD:
            standard.append(f"lower-opset-{opset}")
        elif fault is not None:
            return Verdict(state="different", why=f"lower-opset-{opset}: {fault}", changes=changes)
        lowered[str(opset)] = "lowered" if changed else _lower_reason(apply(lower_opset(opset), model).reason)
    state = "equal" if by != "standard" else "unrunnable"
    return Verdict(state=state, why=by, changes=changes, lowered=lowered, standard=tuple(standard))


def _lower_reason(reason: str) -> str:
    return "low enough" if reason.startswith("the model is at opset") else reason


def _step(
    pass_: Pass, model: Model, target: Target, feeds: Mapping[str, Any], reference: _Reference
) -> tuple[Model, int, str | None]:
    """Apply one pass and compare; returns the model, whether it changed, and how its outputs differ."""
    applied = apply(pass_, model, target)
    if not applied.count:
        return model, 0, None
    if reference.by == "standard":
        return applied.model, 1, None
    try:
        found, _ = _outputs(ir.to_proto(applied.model.ir), feeds)
    except UnrunnableError as reason:
        return model, 1, f"it does not run any more: {reason}"
    names = [o.name for o in model.outputs]
    fault = _fault(names, reference.wanted, found, pass_.tolerance)
    if fault is None:
        return applied.model, 1, None
    if reference.expected and _fault(names, reference.expected, found, STANDARD_TOLERANCE) is None:
        return applied.model, 1, STANDARD
    return model, 1, fault


def _fault(names: Sequence[str], wanted: Sequence[Any], found: Sequence[Any], tolerance: float) -> str | None:
    for name, a, b in zip(names, wanted, found):
        if (fault := difference(a, b, tolerance)) is not None:
            return f"{name}: {fault}"
    return None


def _outputs(proto: onnx.ModelProto, feeds: Mapping[str, Any]) -> tuple[list[Any], str]:
    """Outputs of a model and who computed them."""
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.intra_op_num_threads = 1
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(proto.SerializeToString(), settings, providers=["CPUExecutionProvider"])
        return session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()}), "onnxruntime"
    except Exception as error:  # noqa: BLE001 - whatever it is, the reference is asked next
        first = error
    try:
        names = {i.name for i in proto.graph.input}
        return ReferenceEvaluator(proto).run(None, {n: v for n, v in feeds.items() if n in names}), "reference"
    except Exception as error:
        raise UnrunnableError(f"{_line(first)} | {_line(error)}") from error


def difference(a: Any, b: Any, tolerance: float) -> str | None:
    """How two outputs differ, None where they are equal within the tolerance."""
    if isinstance(a, list):
        faults = [difference(x, y, tolerance) for x, y in zip(a, b)]
        return next((f for f in faults if f), None) if len(a) == len(b) else "another number of elements"
    if a is None or b is None:
        return None if a is b else "a value is missing"
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"{b.dtype}{list(b.shape)} in place of {a.dtype}{list(a.shape)}"
    allowed = max(tolerance, ROUNDING, EPSILON.get(a.dtype.name, 0))
    if a.dtype.name.startswith("float8"):
        a, b = a.astype(np.float32), b.astype(np.float32)
    if a.dtype.name not in ("float32", "float64", *EPSILON):
        return None if np.array_equal(a, b) else "values differ"
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    a, b = a.astype(wide), b.astype(wide)
    plain = np.isfinite(a)
    if not np.array_equal(plain, np.isfinite(b)) or not np.array_equal(a[~plain], b[~plain], equal_nan=True):
        return "infinities or NaN differ"
    scale = float(np.abs(a[plain]).max(initial=0.0)) or 1.0
    error = float(np.abs(a[plain] - b[plain]).max(initial=0.0)) / scale
    return None if error <= allowed else f"{error:.2g} of the range, {allowed:.0e} allowed"


def _reason(message: str) -> str:
    """The message without names of this case."""
    return message.replace("case.onnx", "").split(": ", 1)[-1].split(" (")[0][:90]


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:120]
