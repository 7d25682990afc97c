"""Decisions that need results: the quality gate, the timing veto, the budget, and a lock that replays them."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from edgeopt import __version__, bundle, quality
from edgeopt.backends import Artifact, Fused, NodeRun
from edgeopt.bundle import Lock
from edgeopt.errors import BudgetError, QualityError
from edgeopt.findings import subgraphs
from edgeopt.host import probe
from edgeopt.interpreter import Interpreter
from edgeopt.model import Model, node_key
from edgeopt.pipeline.data import Sets
from edgeopt.pipeline.measure import Measured
from edgeopt.pipeline.steps import Outcome
from edgeopt.plan import REDUCED, STATIC, StepResult
from edgeopt.quality import Quality
from edgeopt.target import Budget, Target

VETO_RATIO = 1.05
"""A step is vetoed for speed only when the whole interval of its latency ratio lies above this."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judged:
    """An outcome with its quality and the runtime's read-back.

    Attributes:
        default: precision of the artifact that ships as default.
        quality: by precision; over the evaluation set (``full``), over the probes where there is none.
        fused: read-back by precision.
        refused: why the reduced model does not ship although it was built; None when it does or was not.
    """

    outcome: Outcome
    default: str
    quality: Mapping[str, Quality]
    full: bool
    fused: Mapping[str, Any]
    refused: str | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """One budget line against a measured figure."""

    name: str
    limit: float
    measured: float | None
    ok: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Final:
    """The decided build. ``reason_codes`` holds a fixed word by step that was rolled back here."""

    judged: Judged
    default: str
    results: tuple[StepResult, ...]
    reason_codes: Mapping[str, str]
    checks: tuple[Check, ...]
    warnings: tuple[str, ...]


def load_lock(path: Path | None, model: Model, target: Target) -> Lock | None:
    """Read the lock to replay.

    Raises:
        BundleError: it is damaged, or belongs to another model or target.
    """
    if path is None:
        return None
    return bundle.read_lock(path, source_sha256=model.origin.sha256(), target=target.name)


def judge(
    outcome: Outcome,
    sets: Sets,
    budget: Budget,
    target: Target,
    backend: ModuleType,
    lock: Lock | None,
    asked: str = "auto",
) -> Judged:
    """Compare the reduced artifact with the model as loaded on the evaluation set; fall back to float when it fails.

    Args:
        asked: what a person asked the model to be reduced to; with ``"auto"`` float will do.

    Raises:
        QualityError: a lock keeps it and the gate refuses it here; or it was asked for and misses a stated limit.
    """
    artifacts = outcome.artifacts
    plain, reduced = outcome.plain, outcome.reduced
    sources = {plain: (outcome.float_model, None), reduced: (outcome.rewritten, outcome.quantized)}
    if not sets.probes:
        return _unjudged(outcome, backend)
    libraries = outcome.original.origin.libraries
    fused = {p: backend.fused(a.portable or a.path, sources[p][0], target, sources[p][1]) for p, a in artifacts.items()}
    judging = sets.evaluation
    seen = quality.compare_all(
        Interpreter(outcome.original).run,
        {p: backend.interpreter(a.path, libraries, optimize=a.optimize).run for p, a in artifacts.items()},
        sets.probes if judging is None else sets.evaluation_samples(),
        labels=sets.labels(),
        metric=sets.metric(),
        groups=sets.groups(),
        carry=sets.carry(),
    )
    refused = None
    if reduced is not None and reduced in seen:
        refused = quality.gate(seen[reduced], budget)
        if refused is None and fused[reduced].mismatches:
            refused = f"the runtime did not fuse what was planned: {'; '.join(fused[reduced].mismatches[:3])}"
        if refused is not None and lock is not None:
            raise QualityError(
                f"the locked {reduced} build does not pass here: {refused}",
                remedy="Build again without --locked and read the report.",
            )
        if refused is not None and asked != "auto" and budget.floors:
            raise QualityError(
                f"accuracy target not met: {reduced} was asked for, and {refused}",
                remedy="Give the search more room with --max-float-macs, lower the limit to keep this best effort, or "
                "let --quantize auto ship float.",
            )
    return Judged(
        outcome=outcome,
        default=reduced if reduced is not None and reduced in seen and refused is None else plain,
        quality=seen,
        full=judging is not None,
        fused=fused,
        refused=refused,
    )


def _unjudged(outcome: Outcome, backend: ModuleType) -> Judged:
    """Where nothing can be run there is nothing to compare, and nothing to read back from the runtime."""
    why = "not read back: the network cannot be run here"
    nodes = tuple(NodeRun(key=node_key(n), op=n.op_type, runs="float", why=why) for n in outcome.float_model.graph)
    nothing = Quality(samples=0, outputs=(), slices=(), agreement=None, metric=None, finite=True)
    return Judged(
        outcome=outcome,
        default=outcome.plain,
        quality={outcome.plain: nothing},
        full=False,
        fused={outcome.plain: Fused(nodes=nodes, mismatches=(), note=why)},
        refused=None,
    )


def choose(judged: Judged, measured: Measured, target: Target, budget: Budget, lock: Lock | None) -> Final:
    """Apply the timing veto and the budget; a lock replays the veto it holds and takes no new one.

    Raises:
        BudgetError: nothing built fits; names the smallest footprint reached and the shortfall.
        QualityError: the reduced model would fit and the gate refused it.
    """
    default, reason, code = judged.default, judged.refused, "quality" if judged.refused else ""
    now = toolchain(judged.outcome.artifacts)
    warnings = [] if lock is None else [f"replayed with {c}" for c in lock.toolchain_changes(now)]
    plain = judged.outcome.plain
    reduced = next((p for p in judged.outcome.artifacts if p != plain), plain)
    float_fits = not _violations(plain, judged, measured, budget)
    ratio = None if measured.grade == "invalid" or reduced == plain else measured.ratio(plain, reduced)
    sizes = {precision: artifact.bytes for precision, artifact in judged.outcome.artifacts.items()}
    ships = default == reduced != plain
    if ships and sizes[reduced] >= sizes[plain] and float_fits:
        default, reason, code = plain, "it is not smaller than the fused float model", "size"
    elif ships and ratio is not None:
        figures = f"{ratio[0]:.2f}x, {ratio[1]:.2f} to {ratio[2]:.2f}"
        if ratio[1] > VETO_RATIO and lock is None and comparable(target) and float_fits:
            default, code = plain, "slower"
            reason = f"slower than the fused float model on this kind of processor ({figures})"
        elif ratio[1] > 1:
            warnings.append(
                f"{reduced} is slower than the fused float model on the build host ({figures}): "
                "it ships for its size; measure on the device"
            )
        elif ratio[2] >= 1:
            warnings.append(
                f"{reduced} is not clearly faster than the fused float model on the build host ({figures}): "
                "it ships for its size"
            )
    fused = None if measured.grade == "invalid" else measured.ratio("original", plain)
    if fused is not None and measured.verdict("original", plain) == "slower" and comparable(target):
        warnings.append(
            f"the rewritten float model is slower than the original here ({fused[0]:.2f}x, {fused[1]:.2f} to "
            f"{fused[2]:.2f}): please report the network; `edgeopt compare` tells more"
        )
    if default == reduced != plain and float_fits and _violations(reduced, judged, measured, budget):
        default, reason, code = plain, "the budget holds in float only", "budget"
    broken = _violations(default, judged, measured, budget)
    if broken and judged.refused is not None and not _violations(reduced, judged, measured, budget):
        raise QualityError(
            f"the budget needs {reduced}, and {reduced} does not hold the quality: {judged.refused}",
            remedy="Raise the limits on quality or the budget, add calibration data, or keep layers in float with "
            "--exclude.",
        )
    if broken:
        raise BudgetError(_shortfall(judged, measured, broken), remedy="Raise the budget or take a smaller network.")
    results = tuple(
        dataclasses.replace(r, latency_ratio=ratio) if r.step.name == _maker(judged) else r
        for r in judged.outcome.results
    )
    codes = {}
    if reason is not None:
        warnings.insert(0, f"{reduced} was rolled back: {reason}")
        codes = {r.step.name: code for r in results if r.step.kind == "quantize" and r.status == "kept"}
        results = tuple(
            dataclasses.replace(r, status="rolled-back", reason=reason) if r.step.name in codes else r for r in results
        )
    if default == reduced and judged.outcome.quantized is not None:
        warnings += judged.outcome.quantized.warnings
    tried = any(r.step.name == STATIC for r in results)
    if tried and default in (plain, "int8") and (left := subgraphs.not_quantized(judged.outcome.original)):
        warnings.append(left)
    return Final(
        judged=judged,
        default=default,
        results=results,
        reason_codes=codes,
        checks=tuple(_checks(default, judged, measured, budget)),
        warnings=tuple(warnings),
    )


def _maker(judged: Judged) -> str | None:
    """The step that made the reduced model, whose row has its latency: the last of those that start anew."""
    kept = [r.step.name for r in judged.outcome.results if r.step.kind == "quantize" and r.status == "kept"]
    return next((name for name in reversed(kept) if name == STATIC or name in REDUCED), None)


def toolchain(artifacts: Mapping[str, Artifact] | None = None) -> dict[str, str]:
    """Versions of everything that has an influence on the bytes of artifacts; onnxruntime computes the statistics."""
    names = ("numpy", "onnx", "onnx-ir", "onnxruntime")
    found = {name: importlib.metadata.version(name) for name in names} | {"edgeopt": __version__}
    return found | {name: version for a in (artifacts or {}).values() for name, version in a.toolchain.items()}


def comparable(target: Target) -> bool:
    """Whether a timing on this machine says something about the target: same architecture and instruction set."""
    host = probe()
    return host.arch == target.arch and set(target.isa) <= set(host.isa)


def _checks(precision: str, judged: Judged, measured: Measured, budget: Budget) -> list[Check]:
    """The budget's lines against measured figures. A line that could not be measured is not ok."""
    checks = []

    def add(name: str, limit: float | None, figure: float | None) -> None:
        if limit is not None:
            checks.append(Check(name=name, limit=limit, measured=figure, ok=figure is not None and figure <= limit))

    add("memory", budget.peak_bytes, measured.peak_bytes(precision))
    add("size", budget.artifact_bytes, judged.outcome.artifacts[precision].bytes)
    percentile = budget.latency_percentile
    add(f"p{percentile * 100:g}", budget.latency_ms, measured.latency_ms(precision, percentile))
    return checks


def _violations(precision: str, judged: Judged, measured: Measured, budget: Budget) -> list[Check]:
    if precision not in judged.outcome.artifacts:
        return [Check(name="artifact", limit=0, measured=None, ok=False)]
    return [c for c in _checks(precision, judged, measured, budget) if not c.ok]


def _shortfall(judged: Judged, measured: Measured, broken: list[Check]) -> str:
    units = {"memory": "bytes of peak memory", "size": "bytes of artifact"}
    parts = []
    for check in broken:
        figures = {
            p: next((c.measured for c in _checks(p, judged, measured, _only(check)) if c.measured is not None), None)
            for p in judged.outcome.artifacts
        }
        known = {p: f for p, f in figures.items() if f is not None}
        unit = units.get(check.name, "ms")
        if not known:
            why = "nothing was measured" if measured.record is None else "this machine does not tell"
            if unit == "ms":
                why = measured.missing(float(check.name[1:]) / 100)
            parts.append(
                f"{check.name} could not be measured ({why}), so the budget of {check.limit:,.6g} {unit} is not held"
            )
            continue
        best = min(known, key=lambda p: known[p])
        parts.append(
            f"the smallest {check.name} reached is {_figure(known[best], unit)} {unit} ({best}); "
            f"the budget is {_figure(check.limit, unit)}: {_figure(known[best] - check.limit, unit)} too many"
        )
    return "over budget: " + "; ".join(parts)


def _figure(value: float, unit: str) -> str:
    return f"{value:.4g}" if unit == "ms" else f"{value:,.0f}"


def _only(check: Check) -> Budget:
    if check.name == "memory":
        return Budget(peak_bytes=int(check.limit))
    if check.name == "size":
        return Budget(artifact_bytes=int(check.limit))
    return Budget(latency_ms=check.limit, latency_percentile=float(check.name[1:]) / 100)
