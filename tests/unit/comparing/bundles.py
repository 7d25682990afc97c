"""Complete bundles to compare, around one small network, with what a build records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgeopt.bundle import JudgedOn, outcome_files
from edgeopt.outcomes import Outcomes, pack
from tests.unit.runtime_bench.conftest import Bundle, dense_model, sha256, write_bundle

Json = dict[str, Any]

REST: Mapping[str, Any] = {
    "edgeopt": "0.1.0",
    "source": {"file": "m.onnx", "format": "onnx", "sha256": "0" * 64, "bytes": 1},
    "backend": {"name": "onnxruntime", "preferred": "onnxruntime", "reason": None},
    "steps": [],
    "quality": {"verified": False},
    "measured_on": {"is_target": False, "machine": "a desk", "note": ""},
    "verdict": {"text": "", "warnings": []},
}


def make(
    root: Path,
    *,
    measurement: Json | None = None,
    outcomes: Mapping[str, bytes] | None = None,
    weights: np.ndarray | None = None,
    run: Mapping[str, Any] | None = None,
    signature: Json | None = None,
) -> Path:
    """Write a bundle with the artifacts int8 (default) and float32."""
    bundle = write_bundle(root)
    if weights is not None:
        (root / "model/m.int8.onnx").write_bytes(dense_model(weights))
    bundle.manifest |= {**REST, "run": {**bundle.manifest["run"], **(run or {})}}
    bundle.manifest["signature"] = signature or bundle.manifest["signature"]
    for artifact in bundle.manifest["artifacts"]:
        artifact["bytes"] = (root / artifact["path"]).stat().st_size
    bundle.manifest["files"] = {
        name: {"sha256": sha256(root / name), "bytes": (root / name).stat().st_size} for name in bundle.device_files()
    }
    bundle.seal()
    records: dict[str, bytes] = dict(outcomes or {})
    if measurement is not None:
        records["measurements/build.json"] = json.dumps(measurement).encode()
    for name, data in records.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(data)
    listed = ["README.md", "manifest.json", *records]
    bundle.write_list("RECORDS.sha256", {name: sha256(root / name) for name in listed})
    return root


def outcomes(
    right: Sequence[int],
    *,
    kind: str = "top1",
    samples: str = "5" * 64,
    source: str = "4" * 64,
    precision: str = "int8",
) -> dict[str, bytes]:
    """The record file for one artifact; one digit a sample."""
    packed = pack(bytearray(right))
    seen = {precision: Outcomes(kind=kind, samples_sha256=samples, count=len(right), right=packed)}
    return outcome_files(JudgedOn(set_name="photos", set_sha256="3" * 64, source_sha256=source, outcomes=seen))


def scores(*rows: Sequence[float]) -> np.ndarray:
    """Weights of 8 x 5 whose first rows are given: input k = 1 alone gives row k as the scores."""
    weights = np.zeros((8, 5), np.float32)
    weights[: len(rows)] = rows
    return weights


def model(path: Path, weights: np.ndarray, **settings: Any) -> Path:
    """A bare model with these weights."""
    path.write_bytes(dense_model(weights, **settings))
    return path


def labelled_set(folder: Path, inputs: Sequence[int], labels: Sequence[int] | None) -> Path:
    """A set of unit vectors, ``inputs`` their places, with labels where given."""
    folder.mkdir(exist_ok=True)
    np.save(folder / "x.npy", np.eye(8, dtype=np.float32)[list(inputs)])
    head = 'schema = "edgeopt.set/1"\nname = "units"\nkind = "arrays"\n'
    if labels is not None:
        np.save(folder / "l.npy", np.array(labels))
        head += 'metric = "top1"\nlabels = "l.npy"\n'
    (folder / "set.toml").write_text(head + '[inputs.x]\nfile = "x.npy"\n')
    return folder / "set.toml"


__all__ = ["Bundle", "labelled_set", "make", "model", "outcomes", "scores"]
