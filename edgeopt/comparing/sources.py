"""What A and B are: a bundle, an ONNX model, an IR, or a recorded measurement; ``PATH#NAME`` chooses inside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeopt import bundle, loaders
from edgeopt.backends.openvino import runtime
from edgeopt.bundle import MEND, Bundle
from edgeopt.comparing.recording import check_measurement, read_measurement
from edgeopt.errors import BenchError, BundleError, EdgeoptError, ModelError, ToolchainError, did_you_mean
from edgeopt.model import TensorSpec, file_sha256

DEFAULT_RECORD = "build"
"""The measurement that ``edgeopt build`` puts into a bundle."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Artifact:
    """A file to be measured now, with how it is run.

    Attributes:
        given: what the user wrote.
        path: the file.
        file: what a measurement calls it.
        precision: None for a bare model.
        options: for the runner, ``provider`` included; None for a bare model, which has none of its own.
        own: options of this file alone: a bare model on the other side does not get them.
        samples: golden inputs, ``.npy`` file by input name; empty for a bare model.
        root: the bundle's folder; None for a bare model.
        data: the second file, where the artifact has one.
        colors: channel order of raw pixels by input name, where the bundle states one.
    """

    given: str
    path: Path
    file: str
    sha256: str
    bytes: int
    precision: str | None
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    runner: str = "onnxruntime"
    options: Mapping[str, str] | None = None
    own: Mapping[str, str] = dataclasses.field(default_factory=dict)
    threads: int | None = None
    samples: Sequence[Mapping[str, str]] = ()
    root: Path | None = None
    data: Path | None = None
    colors: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def optimize(self) -> bool:
        """Whether the runtime is to optimize the file when it loads it."""
        return self.own.get("optimizer") != "off"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recorded:
    """One subject of a recorded measurement.

    Attributes:
        given: what the user wrote.
        name: of the subject.
        measurement: checked to be of the right shape.
        root: the bundle's folder; None for a measurement file.
    """

    given: str
    name: str
    measurement: Mapping[str, Any]
    root: Path | None = None

    @property
    def subject(self) -> Mapping[str, Any]:
        """The subject's entry."""
        found: Mapping[str, Any] = next(s for s in self.measurement["subjects"] if s["name"] == self.name)
        return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A path as given, split: ``kind`` is ``bundle``, ``model`` or ``measurement``."""

    given: str
    path: Path
    chosen: str | None
    kind: str


def locate(given: Path) -> Source:
    """Split ``PATH#NAME`` and see what stands there. A file whose name holds a ``#`` is found as it is.

    Raises:
        BenchError: a measurement file does not exist.
        ModelError: nothing is there, or it is neither a folder nor a plain file.
    """
    path, chosen = given, None
    if not given.exists() and "#" in str(given):
        head, _, chosen = str(given).rpartition("#")
        path = Path(head)
    if path.is_dir():
        return Source(given=str(given), path=path, chosen=chosen, kind="bundle")
    if not path.exists():
        near = did_you_mean(path.name, [p.name for p in path.parent.glob("*")] if path.parent.is_dir() else [])
        missing = BenchError if path.suffix == ".json" else ModelError
        raise missing(f"{path} does not exist.{near}", remedy="Give a bundle, an .onnx model or a measurement file.")
    if not path.is_file():
        raise ModelError(f"{path} is no plain file", remedy="Give a bundle, an .onnx model or a measurement file.")
    kind = "measurement" if _looks_like_json(path) else "model"
    if kind == "model" and chosen is not None:
        raise ModelError(f"{path} is one model: #{chosen} chooses nothing in it", remedy=f"Give {path} alone.")
    return Source(given=str(given), path=path, chosen=chosen, kind=kind)


def _looks_like_json(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            head = stream.read(256).lstrip()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    return path.suffix == ".json" or head[:1] in (b"{", b"[")


def open_recorded(source: Source) -> Recorded:
    """The recorded measurement of a source.

    Raises:
        BenchError: a model has none, a file is no measurement, or a subject is not in it.
        BundleError: the bundle is damaged.
    """
    if source.kind == "model":
        raise BenchError(
            f"{source.given} is a model: it holds no recorded measurement",
            remedy=f"Measure it first: edgeopt bench {source.given} -o FILE.json",
        )
    if source.kind == "measurement":
        measurement = read_measurement(source.path)
        return _recorded(source, measurement, None, None)
    found = bundle.read(source.path)
    _check_hashes(source.path, "records")
    name = str(source.path)
    if not found.measurements:
        raise BenchError(
            f"{name} holds no measurement: it was built with --effort none", remedy="Leave --recorded out."
        )
    wanted = source.chosen or _artifact_of(found, None)["precision"]
    keys = sorted(found.measurements, key=lambda key: (key != DEFAULT_RECORD, key))
    checked = [check_measurement(found.measurements[key], f"{name}/measurements/{key}.json") for key in keys]
    holding = [m for m in checked if any(s["name"] == wanted for s in m["subjects"])]
    return _recorded(source, (holding or checked)[0], source.path, wanted)


def _recorded(source: Source, measurement: Mapping[str, Any], root: Path | None, default: str | None) -> Recorded:
    names = [subject["name"] for subject in measurement["subjects"]]
    wanted = source.chosen or default or (names[0] if len(names) == 1 else None)
    if wanted is None:
        choices = " or ".join(f"{source.path}#{name}" for name in names)
        raise BenchError(f"{source.path} holds {len(names)} subjects", remedy=f"Choose one: {choices}")
    if wanted not in names:
        text = f'{source.path} holds no subject "{wanted}".{did_you_mean(wanted, names)}'
        raise BenchError(text, remedy=f"It holds: {', '.join(names)}.")
    return Recorded(given=source.given, name=wanted, measurement=measurement, root=root)


def open_artifact(source: Source, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Artifact:
    """The file of a source that can be measured now.

    Args:
        shapes: fixed shapes by input name, for a bare model.

    Raises:
        ModelError: no ONNX model.
        BundleError, ToolchainError: the bundle is damaged, or its runtime is missing.
    """
    return _bundled(source) if source.kind == "bundle" else _bare(source, shapes or {})


def _bare(source: Source, shapes: Mapping[str, tuple[int, ...]]) -> Artifact:
    if source.path.suffix == ".xml":
        return _openvino(source, shapes)
    model = loaders.load(source.path, shapes=shapes)
    if model.origin.format != "onnx":
        text = f"{source.path} is {model.origin.format}: only ONNX models run as they are"
        raise ModelError(text, remedy="Build it first.")
    return Artifact(
        given=source.given,
        path=source.path,
        file=source.path.name,
        sha256=file_sha256(source.path),
        bytes=model.origin.bytes,
        precision=None,
        inputs=model.inputs,
        outputs=model.outputs,
    )


def _openvino(source: Source, shapes: Mapping[str, tuple[int, ...]]) -> Artifact:
    """An IR of OpenVINO, another tool's perhaps, with its weights beside it."""
    if shapes:
        raise ModelError(f"{source.path} has the shapes that it was written with", remedy="Leave --shape out.")
    data = source.path.with_suffix(".bin")
    if not data.is_file():
        raise ModelError(f"{data} is missing: it holds the weights of {source.path.name}", remedy="Put it beside it.")
    inputs, outputs = runtime.signature(source.path)
    return Artifact(
        given=source.given,
        path=source.path,
        file=source.path.name,
        sha256=file_sha256(source.path),
        bytes=source.path.stat().st_size + data.stat().st_size,
        precision=None,
        inputs=inputs,
        outputs=outputs,
        runner="openvino",
        data=data,
    )


def _bundled(source: Source) -> Artifact:
    from runtime_bench import manifest

    root = source.path
    found = bundle.read(root)
    contract = manifest.parse(found.manifest)
    _check_hashes(root, "device", contract)
    entry = _artifact_of(found, source.chosen)
    return Artifact(
        given=source.given,
        path=root / entry["path"],
        file=entry["path"],
        sha256=entry["sha256"],
        bytes=entry["bytes"],
        data=None if "data" not in entry else root / entry["data"]["path"],
        precision=entry["precision"],
        inputs=_specs(found.manifest["signature"]["inputs"]),
        outputs=_specs(found.manifest["signature"]["outputs"]),
        runner=contract.backend,
        options={**contract.options, "provider": contract.provider},
        own=contract.native[entry["path"]].options if entry["path"] in contract.native else {},
        threads=contract.threads,
        samples=[
            {name: str(root / path) for name, path in zip(contract.inputs, sample.inputs, strict=True)}
            for sample in contract.samples
        ],
        root=root,
        colors={
            entry["name"]: color
            for entry in found.manifest["signature"]["inputs"]
            if "in the graph" in (stated := entry.get("preprocessing") or {})
            and isinstance(color := stated.get("color"), str)
        },
    )


def _check_hashes(root: Path, which: str, contract: Any = None) -> None:
    """Check the files of one list of a bundle and, where it will run, that its runtime is here."""
    from runtime_bench import VerifyFailure, manifest, native, sums, verify

    kinds: Mapping[int, type[EdgeoptError]] = {6: ToolchainError, 9: BundleError}
    try:
        listed = sums.check_listed(str(root), sums.DEVICE if which == "device" else sums.RECORDS)
        if contract is not None:
            manifest.check_files(contract, listed)
            native.require_machine(contract.native)
            verify.require_runtime(contract)
    except VerifyFailure as failure:
        kind = kinds.get(failure.code, BundleError)
        remedy = failure.remedy or (None if kind is ToolchainError else MEND)
        raise kind(f"{root}: {failure.message}", remedy=remedy) from failure


def _artifact_of(found: Bundle, precision: str | None) -> Mapping[str, Any]:
    """The entry of the default artifact, or of a precision."""
    artifacts: Sequence[Mapping[str, Any]] = found.manifest["artifacts"]
    if precision is None:
        return next(a for a in artifacts if a["path"] == found.manifest["default_artifact"])
    for artifact in sorted(artifacts, key=lambda a: a["role"] != "default"):
        if artifact["precision"] == precision:
            return artifact
    known = [str(a["precision"]) for a in artifacts]
    raise BundleError(
        f'{found.root} has no artifact "{precision}".{did_you_mean(precision, known)}',
        remedy=f"It has: {', '.join(known)}.",
    )


def _specs(rows: Sequence[Mapping[str, Any]]) -> tuple[TensorSpec, ...]:
    try:
        return tuple(TensorSpec(name=r["name"], dtype=str(r["dtype"]), shape=tuple(r["shape"])) for r in rows)
    except (KeyError, TypeError) as error:
        raise BundleError("manifest.json: a signature has no dtype or no shape", remedy=MEND) from error
