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
from edgeopt.pipeline import keys, thumbnail
from edgeopt.pipeline.data import Sets
from edgeopt.pipeline.journal import Journal
from edgeopt.pipeline.limits import Check, broken_by, checked, shortfall
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
        asked: what a person asked the model to be reduced to, one of ``budget.QUANTIZE``.
    """

    outcome: Outcome
    default: str
    quality: Mapping[str, Quality]
    full: bool
    fused: Mapping[str, Any]
    refused: str | None
    asked: str = "auto"


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
    journal: Journal | None = None,
) -> Judged:
    """Compare the reduced artifact with the model as loaded on the evaluation set; fall back to float when it fails.

    Args:
        asked: what a person asked the model to be reduced to; with ``"auto"`` float will do.
        journal: has what an earlier try of the build saw.

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
    seen = (journal or Journal()).remember(
        "judged",
        lambda: keys.of_judgement(outcome.original, artifacts),
        lambda: quality.compare_all(
            Interpreter(outcome.original).run,
            {p: backend.interpreter(a.path, libraries, optimize=a.optimize).run for p, a in artifacts.items()},
            sets.probes if judging is None else sets.evaluation_samples(),
            labels=sets.labels(),
            metric=sets.metric(),
            groups=sets.groups(),
            carry=sets.carry(),
            worst=judging is not None,
            look=thumbnail.look(judging, sets.inputs),
        ),
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
        asked=asked,
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


def choose(
    judged: Judged,
    measured: Measured,
    target: Target,
    budget: Budget,
    lock: Lock | None,
    ships: str | None = None,
) -> Final:
    """Apply the timing veto and the budget; a lock replays the veto it holds and takes no new one.

    What a person asked for by name ships although it is slower, with a warning.

    Args:
        ships: precision that was chosen among all candidates by an objective; nothing vetoes it but the budget.

    Raises:
        BudgetError: nothing built fits; names the smallest footprint reached and the shortfall.
        QualityError: the reduced model would fit and the gate refused it.
    """
    artifacts, plain = judged.outcome.artifacts, judged.outcome.plain
    reduced = next((p for p in artifacts if p != plain), plain)
    default, reason, code = judged.default, judged.refused, "quality" if judged.refused else ""
    warnings = [] if lock is None else [f"replayed with {c}" for c in lock.toolchain_changes(toolchain(artifacts))]
    float_fits = not broken_by(plain, artifacts, measured, budget)
    ratio = None if measured.grade == "invalid" or reduced == plain else measured.ratio(plain, reduced)
    smaller = artifacts[reduced].bytes < artifacts[plain].bytes
    if default == reduced != plain:
        veto = lock is None and ships is None and comparable(target) and float_fits and judged.asked == "auto"
        if ships == plain:
            default, reason, code = plain, "the objective is reached better in float", "objective"
        elif not smaller and float_fits and ships is None:
            default, reason, code = plain, "it is not smaller than the fused float model", "size"
        elif ratio is not None and ratio[1] > VETO_RATIO and veto:
            default, code = plain, "slower"
            reason = f"slower than the fused float model on this kind of processor ({_interval(ratio)})"
        else:
            warnings += _slower(reduced, ratio)
    fused = None if measured.grade == "invalid" else measured.ratio("original", plain)
    if fused is not None and measured.verdict("original", plain) == "slower" and comparable(target):
        warnings.append(
            f"the rewritten float model is slower than the original here ({_interval(fused)}): "
            "please report the network; `edgeopt compare` tells more"
        )
    if default == reduced != plain and float_fits and broken_by(reduced, artifacts, measured, budget):
        default, reason, code = plain, "the budget holds in float only", "budget"
    broken = broken_by(default, artifacts, measured, budget)
    if broken and judged.refused is not None and not broken_by(reduced, artifacts, measured, budget):
        raise QualityError(
            f"the budget needs {reduced}, and {reduced} does not hold the quality: {judged.refused}",
            remedy="Raise the limits on quality or the budget, add calibration data, or keep layers in float with "
            "--exclude.",
        )
    if broken:
        raise BudgetError(shortfall(artifacts, measured, broken), remedy="Raise the budget or take a smaller network.")
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
        checks=checked(default, artifacts, measured, budget),
        warnings=tuple(warnings),
    )


def _interval(ratio: tuple[float, float, float]) -> str:
    return f"{ratio[0]:.2f}x, {ratio[1]:.2f} to {ratio[2]:.2f}"


def _slower(reduced: str, ratio: tuple[float, float, float] | None) -> list[str]:
    """What a person must know about the speed of a reduced model that ships."""
    if ratio is None or ratio[2] < 1:
        return []
    how, then = ("slower", "; measure on the device") if ratio[1] > 1 else ("not clearly faster", "")
    return [
        f"{reduced} is {how} than the fused float model on the build host ({_interval(ratio)}): "
        f"it ships for its size{then}"
    ]


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
