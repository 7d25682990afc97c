"""Everything a finished build has to say, as the manifest, the records and the reports of a bundle."""

from __future__ import annotations

import dataclasses
import json
import math
import platform
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from edgeopt import __version__, bundle, report
from edgeopt.backends import Artifact
from edgeopt.bundle import Content
from edgeopt.calibration import raw
from edgeopt.findings import custom
from edgeopt.memory import timeline
from edgeopt.model import Model
from edgeopt.pipeline import guard
from edgeopt.pipeline.choose import BackendChoice
from edgeopt.pipeline.data import Sets
from edgeopt.pipeline.decide import Final, toolchain
from edgeopt.pipeline.golden import Golden
from edgeopt.pipeline.measure import Measured
from edgeopt.pipeline.verdict import verdict
from edgeopt.plan import Drift
from edgeopt.quality import Quality
from edgeopt.target import Budget, Target, target_dict

Json = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finished:
    """Everything a decided build knows."""

    name: str
    target: Target
    choice: BackendChoice
    sets: Sets
    budget: Budget
    golden: Golden
    measured: Measured
    final: Final
    frontier: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def shipped(self) -> list[str]:
        """Precisions in the bundle: the default, and float as the way back."""
        return list(dict.fromkeys((self.final.default, self.final.judged.outcome.plain)))


def content(build: Finished) -> Content:
    """Assemble the bundle's files."""
    outcome, name = build.final.judged.outcome, build.name
    guarded = _guarded(build)
    manifest, pictures = _manifest(build, guarded.section), guarded.pictures
    shipped = [outcome.artifacts[p] for p in build.shipped]
    files: dict[str, Path | bytes] = {_path(name, artifact): artifact.path for artifact in shipped}
    files |= {_data_path(name, artifact): a.path for artifact in shipped if (a := artifact.data) is not None}
    kept = {path for sample in manifest["golden"]["samples"] for part in _parts(sample) for path in part}
    files |= {path: source for path, source in build.golden.files.items() if path in kept}
    files["bench.pyz"] = _pyz()
    lock = bundle.Lock(
        source_sha256=manifest["source"]["sha256"],
        target=build.target.name,
        toolchain=toolchain(outcome.artifacts),
        decisions=bundle.decisions(build.final.results, build.final.reason_codes),
        data=build.sets.digests(),
    )
    diary = bundle.diary_lines(build.final.results)
    measurements = {} if build.measured.record is None else {"build": dict(build.measured.record)}
    records: dict[str, Path | bytes] = {
        "diary.jsonl": diary,
        "decisions.lock": bundle.lock_text(lock),
        **_outcomes(build, lock.source_sha256),
        **{f"measurements/{key}.json": _json(value) for key, value in measurements.items()},
        **pictures,
        **report.render(
            manifest, [json.loads(row) for row in diary.splitlines()], measurements, _timelines(build), pictures
        ),
    }
    return Content(manifest=manifest, device_files=files, record_files=records)


def _outcomes(build: Finished, source_sha256: str) -> dict[str, bytes]:
    """Right and wrong by sample of what ships, where an evaluation set judged it."""
    judged, evaluation = build.final.judged, build.sets.evaluation
    seen = {p: found for p in build.shipped if (found := judged.quality[p].outcomes) is not None}
    if evaluation is None or not seen:
        return {}
    name, digest = evaluation.name, evaluation.digest()
    return bundle.outcome_files(
        bundle.JudgedOn(set_name=name, set_sha256=digest, source_sha256=source_sha256, outcomes=seen)
    )


def _timelines(build: Finished) -> dict[str, list[Json]]:
    outcome = build.final.judged.outcome
    models = {outcome.plain: outcome.float_model}
    if outcome.quantized is not None and build.final.default == outcome.quantized.precision:
        models[outcome.quantized.precision] = outcome.quantized.model
    return {
        precision: [{"key": m.key, "op": m.op, "live_bytes": m.live_bytes} for m in timeline(model)]
        for precision, model in models.items()
    }


def _guarded(build: Finished) -> guard.Account:
    judged = build.final.judged
    reduced, why = judged.outcome.reduced, judged.refused
    refused = {} if reduced is None or why is None else {reduced: why}
    return guard.account(judged.quality, build.final.default, refused, build.sets, build.budget)


def _manifest(build: Finished, guarded: Json) -> Json:
    final, measured, target, choice, sets = build.final, build.measured, build.target, build.choice, build.sets
    judged, model = final.judged, final.judged.outcome.original
    artifacts = []
    for precision in build.shipped:
        artifact = judged.outcome.artifacts[precision]
        artifacts.append(
            {
                "path": _path(build.name, artifact),
                "role": "default" if precision == final.default else "fallback",
                "format": artifact.format,
                "precision": precision,
                "bytes": artifact.bytes,
                "sha256": artifact.sha256,
                "toolchain": dict(artifact.toolchain),
                "built_on_device": artifact.built_on_device,
                **_data(build.name, artifact),
            }
        )
    quality = {**_quality(final, sets), **guarded}
    memory = {s["name"]: s["memory"] for s in (measured.record or {}).get("subjects", []) if s.get("memory")}
    return {
        "schema": bundle.SCHEMA,
        "edgeopt": __version__,
        "name": build.name,
        "source": {
            "file": model.origin.path.name,
            "format": model.origin.format,
            "sha256": model.origin.sha256(),
            "bytes": model.origin.bytes,
        },
        "target": target_dict(target),
        "backend": {"name": choice.name, "preferred": choice.preferred, "reason": choice.reason},
        "signature": _signature(model, judged.outcome.float_model, sets),
        "run": {
            "provider": choice.backend.PROVIDER,
            "threads": target.threads,
            "options": {},
            "minimum": choice.backend.minimum(*(judged.outcome.artifacts[p].path for p in build.shipped)),
            **_native(build.name, [judged.outcome.artifacts[p] for p in build.shipped]),
            **_custom(model),
        },
        "default_artifact": _path(build.name, judged.outcome.artifacts[final.default]),
        "artifacts": artifacts,
        "golden": _golden_section(build.golden, build.shipped),
        "steps": [
            {"kind": r.step.kind, "name": r.step.name, "status": r.status, "reason": r.reason} for r in final.results
        ],
        "quality": quality,
        "placement": _placement(final),
        "memory": memory,
        "budget": _budget(build.budget, final),
        "frontier": dict(build.frontier),
        "measured_on": _measured_on(target, measured),
        "verdict": {
            "text": verdict(final, measured, target),
            "warnings": [*_choice_note(choice), *sets.warnings, *final.warnings],
        },
    }


def _native(name: str, artifacts: Sequence[Artifact]) -> Json:
    """How artifacts that hold the runtime's own graph are loaded, and what they are bound to; by path."""
    found = {
        _path(name, artifact): {"options": dict(artifact.options), "bound": dict(artifact.bound)}
        for artifact in artifacts
        if artifact.portable is not None or artifact.options
    }
    return {"native": found} if found else {}


def _custom(model: Model) -> Json:
    """The operators that the device needs a library for, and the name of the one that the build used."""
    names = custom.operators(model)
    if not names:
        return {}
    return {"custom_operators": {"names": list(names), "libraries": [path.name for path in model.origin.libraries]}}


def _choice_note(choice: BackendChoice) -> list[str]:
    if choice.reason is None:
        return []
    return [f"built for {choice.name}, not for {choice.preferred}: {choice.reason}"]


def _parts(sample: Mapping[str, Any]) -> list[list[str]]:
    return [sample["inputs"], *sample["outputs"].values()]


def _golden_section(golden: Golden, shipped: list[str]) -> Json:
    """Golden samples for the shipped artifacts only; ``float32`` is the model as loaded."""
    samples = [
        {"inputs": s["inputs"], "outputs": {p: v for p, v in s["outputs"].items() if p in (*shipped, "float32")}}
        for s in golden.section["samples"]
    ]
    tolerance = {p: v for p, v in golden.section["tolerance"].items() if p in shipped}
    return {"count": golden.section["count"], "samples": samples, "tolerance": tolerance}


def _signature(model: Model, analysed: Model, sets: Sets) -> Json:
    """Inputs as loaded; outputs with what shape inference found out about them."""
    source = sets.evaluation or sets.calibration
    contract = {} if source is None else raw.contract(source)
    only = contract.get("") if len(model.inputs) == 1 else None
    inputs = []
    for spec in model.inputs:
        stated = contract.get(spec.name, only)
        layout = None if stated is None else stated.get("layout")
        rest = None if stated is None else {k: v for k, v in stated.items() if k != "layout"}
        inputs.append(
            {
                "name": spec.name,
                "dtype": spec.dtype,
                "shape": list(spec.shape),
                "layout": layout,
                "preprocessing": rest or None,
            }
        )
    outputs = [{"name": s.name, "dtype": s.dtype, "shape": list(s.shape)} for s in analysed.outputs]
    return {"inputs": inputs, "outputs": outputs}


def _quality(final: Final, sets: Sets) -> Json:
    quality: Quality = final.judged.quality[final.default]
    verified = final.judged.full
    return {
        "verified": verified,
        "set": sets.evaluation.name if sets.evaluation is not None else None,
        "samples": quality.samples,
        "outputs": [_drift(d) for d in (*quality.outputs, *quality.slices)],
        "agreement": None if quality.agreement is None else dataclasses.asdict(quality.agreement),
        "metric": None
        if quality.metric is None
        else {
            "name": quality.metric.name,
            "float": quality.metric.reference,
            "artifact": quality.metric.artifact,
            "drop": quality.metric.drop,
            "half_width": quality.metric.half_width,
            "better": quality.metric.better,
            "unit": quality.metric.unit,
        },
    }


def _placement(final: Final) -> Json:
    fused = final.judged.fused[final.default]
    counts = {kind: sum(n.runs == kind for n in fused.nodes) for kind in ("int8", "fused", "float")}
    return {**counts, "nodes": [dataclasses.asdict(n) for n in fused.nodes], "note": fused.note}


def _budget(budget: Budget, final: Final) -> Json:
    return {**dataclasses.asdict(budget), "checked": [dataclasses.asdict(c) for c in final.checks]}


def _measured_on(target: Target, measured: Measured) -> Json:
    import os

    machine = f"{platform.machine()}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}"
    if measured.record is not None:
        machine = f"{measured.record['environment'].get('cpu') or platform.processor()}, {machine}"
    is_target = target.name == "host"
    note = (
        "measured on this machine, which is the target"
        if is_target
        else "measured on the build host, not on the target"
    )
    if measured.record is None:
        note = "latency and memory were not measured"
    return {"is_target": is_target and measured.record is not None, "machine": machine, "note": note}


def _drift(drift: Drift) -> Json:
    """Infinity has no place in JSON: an output without error has SQNR null, one without signal ``"-inf"``."""
    worst = None if drift.sqnr_db > 0 else "-inf"
    return dataclasses.asdict(drift) | {"sqnr_db": drift.sqnr_db if math.isfinite(drift.sqnr_db) else worst}


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _path(name: str, artifact: Artifact) -> str:
    return f"model/{name}.{artifact.precision}{artifact.path.suffix}"


def _data(name: str, artifact: Artifact) -> Json:
    """The second file of an artifact that has one; it lies beside the first, under its name."""
    if artifact.data is None:
        return {}
    data = artifact.data
    return {"data": {"path": _data_path(name, artifact), "bytes": data.bytes, "sha256": data.sha256}}


def _data_path(name: str, artifact: Artifact) -> str:
    assert artifact.data is not None
    return str(PurePosixPath(_path(name, artifact)).with_suffix(artifact.data.path.suffix))


def _pyz() -> bytes:
    from runtime_bench import write_pyz

    with tempfile.TemporaryDirectory(prefix="edgeopt-") as folder:
        path = Path(folder) / "bench.pyz"
        write_pyz(str(path))
        return path.read_bytes()
