"""Reads a bundle's ``manifest.json``: what runs, how, and what it must give. Nothing in it is trusted."""

from __future__ import annotations

import hashlib
import json
import math
import os
from typing import Any, Iterable, Mapping, NamedTuple, Optional, Sequence

from runtime_bench import native as native_
from runtime_bench.errors import VerifyFailure
from runtime_bench.native import Native
from runtime_bench.sums import safe_path, shown

NAME = "manifest.json"
SCHEMA = "edgeopt.bundle/1"
MAX_BYTES = 64 << 20
OURS = ("provider", "threads", "allow_fallback", "custom_ops")
"""Options of a run that stand elsewhere, or are for whoever runs it to decide: not taken from ``run.options``."""


class Data(NamedTuple):
    """The second file of an artifact, which the runtime finds by its name."""

    path: str
    sha256: str


class Artifact(NamedTuple):
    """A file that the runtime can load, with the ``data`` beside it where there is any."""

    path: str
    role: str
    precision: str
    sha256: str
    format: str
    data: Optional[Data] = None


class Sample(NamedTuple):
    """Golden inputs in the order of the signature, and golden output files by precision."""

    inputs: list[str]
    outputs: Mapping[str, list[str]]


class Contract(NamedTuple):
    """What a manifest promises about running the bundle.

    ``target``, ``arch`` and ``isa`` name the device, its architecture and its instruction-set features as Linux spells
    them; the latter two are empty where the manifest does not tell. ``native`` has artifacts by path that hold the
    runtime's own graph. ``output_tolerances_db`` has, by precision, what each output must reach, in the order of
    ``outputs``; nothing where the worst of them alone is bound.
    """

    backend: str
    provider: str
    threads: int
    options: Mapping[str, str]
    minimum: Mapping[str, Any]
    inputs: list[str]
    outputs: list[str]
    artifacts: list[Artifact]
    samples: list[Sample]
    tolerance_db: Mapping[str, float]
    target: str = ""
    arch: str = ""
    isa: Sequence[str] = ()
    native: Mapping[str, Native] = {}
    output_tolerances_db: Mapping[str, Sequence[float]] = {}

    @property
    def default(self) -> Artifact:
        """The artifact to run unless something speaks against it."""
        return next(a for a in self.artifacts if a.role == "default")

    @property
    def fallback(self) -> Optional[Artifact]:
        """The way back, where the bundle has one."""
        return next((a for a in self.artifacts if a.role == "fallback"), None)

    def options_of(self, artifact: Artifact) -> dict[str, str]:
        """Options of the runner for one artifact: those of the bundle, and its own."""
        own = self.native.get(artifact.path)
        return {**self.options, **(own.options if own is not None else {})}


def read(root: str) -> dict[str, Any]:
    """Parse the manifest and check its schema. Raises VerifyFailure with code 9."""
    path = os.path.join(root, NAME)
    try:
        if os.path.islink(path) or not os.path.isfile(path):
            raise VerifyFailure(9, "no {} in {}: not an edgeopt bundle".format(NAME, shown(root)))
        if os.path.getsize(path) > MAX_BYTES:
            raise VerifyFailure(9, "{} is larger than {} MB".format(NAME, MAX_BYTES >> 20))
        with open(path, encoding="utf-8") as stream:
            raw = json.load(stream, parse_constant=_refuse_constant)
    except (OSError, ValueError, RecursionError) as error:
        raise VerifyFailure(9, "cannot read {}: {}".format(NAME, error)) from error
    if not isinstance(raw, dict):
        raise VerifyFailure(9, "{} is not a JSON object".format(NAME))
    if raw.get("schema") != SCHEMA:
        raise VerifyFailure(
            9, '{} has the schema {!r}, this program reads "{}"'.format(NAME, raw.get("schema"), SCHEMA)
        )
    return raw


def parse(raw: Mapping[str, Any]) -> Contract:
    """Check the fields that running needs. Raises VerifyFailure (9) that names the first bad one."""
    run, golden = _field(raw, "run", dict), _field(raw, "golden", dict)
    signature = _field(raw, "signature", dict)
    inputs = _names(signature, "inputs")
    outputs = _names(signature, "outputs")
    artifacts = [_artifact(entry) for entry in _objects(raw, "artifacts")]
    default_path = _field(raw, "default_artifact", str)
    if [a.path for a in artifacts if a.role == "default"] != [default_path]:
        raise VerifyFailure(9, "{}: default_artifact is not the one artifact with the role default".format(NAME))
    target = _field(raw, "target", dict)
    unverified = golden.get("count") == 0 and golden.get("samples") == []
    entries = [] if unverified else _objects(golden, "samples", "golden.")
    samples = [_sample(entry, inputs, outputs) for entry in entries]
    tolerance = _field(golden, "tolerance", dict, "golden.")
    needed = {a.precision for a in artifacts}
    for sample in samples:
        if "float32" not in sample.outputs:
            raise VerifyFailure(9, "{}: a golden sample has no float32 outputs".format(NAME))
    return Contract(
        backend=_field(_field(raw, "backend", dict), "name", str, "backend."),
        provider=_field(run, "provider", str, "run."),
        threads=_field(run, "threads", int, "run."),
        options=_options(_field(run, "options", dict, "run.")),
        minimum=_field(run, "minimum", dict, "run."),
        inputs=inputs,
        outputs=outputs,
        artifacts=artifacts,
        samples=samples,
        tolerance_db={precision: _tolerance(tolerance, precision) for precision in sorted(needed)},
        output_tolerances_db=_by_output(tolerance, needed, len(outputs)),
        target=_field(target, "name", str, "target."),
        arch=_field({"arch": "", **target}, "arch", str, "target."),
        isa=_features(target),
        native=_native(_field({"native": {}, **run}, "native", dict, "run.")),
    )


def identity(manifest: Mapping[str, Any], files: Mapping[str, str]) -> str:
    """The identity of a bundle: sha256 over what runs on the device and its contract, and nothing measured.

    Args:
        manifest: as parsed; only the fields of the contract are read.
        files: sha256 by path, of every file in ``SHA256SUMS``.
    """
    keys = ("path", "sha256", "precision", "role")
    contract = {
        "schema": manifest["schema"],
        "signature": manifest["signature"],
        "run": manifest["run"],
        "default_artifact": manifest["default_artifact"],
        "artifacts": [{key: artifact[key] for key in keys} for artifact in manifest["artifacts"]],
        "golden": manifest["golden"],
        "target": {"name": manifest["target"]["name"]},
        "files": dict(files),
    }
    text = json.dumps(contract, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def check_identity(raw: Mapping[str, Any], files: Mapping[str, str]) -> str:
    """Recompute the identity and compare. Raises VerifyFailure (9)."""
    _field(_field(raw, "target", dict), "name", str, "target.")
    claimed = _field(raw, "identity", str)
    found = identity(raw, files)
    if claimed != found:
        text = "the bundle's contents do not match its identity: {} is claimed, {} found"
        raise VerifyFailure(9, text.format(shown(claimed[:64]), found))
    return found


def check_files(contract: Contract, files: Mapping[str, str]) -> None:
    """Every file that running needs must be in ``SHA256SUMS``, artifacts with one and the same digest."""
    used = [path for sample in contract.samples for path in sample.inputs]
    used += [path for sample in contract.samples for paths in sample.outputs.values() for path in paths]
    claimed = [(artifact.path, artifact.sha256) for artifact in contract.artifacts]
    claimed += [artifact.data for artifact in contract.artifacts if artifact.data is not None]
    for path in used + [path for path, _ in claimed]:
        if path not in files:
            raise VerifyFailure(9, "{} names {}, which SHA256SUMS does not list".format(NAME, shown(path)))
    for path, sha256 in claimed:
        if files[path] != sha256:
            raise VerifyFailure(9, "{} has two digests, in {} and in SHA256SUMS".format(shown(path), NAME))


def _refuse_constant(text: str) -> Any:
    raise ValueError("{} is not JSON".format(text))


def _field(mapping: Mapping[str, Any], key: str, kind: type, prefix: str = "") -> Any:
    value = mapping.get(key)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        words = {dict: "an object", list: "a list", str: "a string", int: "a whole number"}
        raise VerifyFailure(9, "{}: {}{} is missing or not {}".format(NAME, prefix, key, words[kind]))
    return value


def _objects(mapping: Mapping[str, Any], key: str, prefix: str = "") -> list[Mapping[str, Any]]:
    values = _field(mapping, key, list, prefix)
    if not values or not all(isinstance(value, dict) for value in values):
        raise VerifyFailure(9, "{}: {}{} is empty or holds something else than objects".format(NAME, prefix, key))
    return list(values)


def _names(signature: Mapping[str, Any], key: str) -> list[str]:
    return [
        _field(entry, "name", str, "signature.{}[].".format(key)) for entry in _objects(signature, key, "signature.")
    ]


def _features(target: Mapping[str, Any]) -> list[str]:
    """``target.isa``, a list of words; empty where it is not there."""
    words = target.get("isa", [])
    if not isinstance(words, list) or not all(isinstance(word, str) and word.isidentifier() for word in words):
        raise VerifyFailure(9, "{}: target.isa is not a list of features".format(NAME))
    return list(words)


def _options(given: Mapping[str, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in given.items() if key not in OURS}


def _native(entries: Mapping[str, Any]) -> dict[str, Native]:
    found = {}
    for path, entry in entries.items():
        one = native_.parse(entry) if isinstance(entry, dict) else None
        if one is None:
            text = "{}: run.native of {} does not say what the artifact is bound to as this program reads it"
            raise VerifyFailure(9, text.format(NAME, shown(path)))
        found[path] = one._replace(options=_options(one.options))
    return found


def _artifact(entry: Mapping[str, Any]) -> Artifact:
    artifact = Artifact(*(_field(entry, key, str, "artifacts[].") for key in Artifact._fields[:5]))
    safe_path(artifact.path, NAME)
    if "data" not in entry:
        return artifact
    return artifact._replace(data=_data(_field(entry, "data", dict, "artifacts[]."), artifact.path))


def _data(entry: Mapping[str, Any], beside: str) -> Data:
    """The second file; it lies beside the first under its name, because that is where a runtime looks for it."""
    data = Data(*(_field(entry, key, str, "artifacts[].data.") for key in Data._fields))
    safe_path(data.path, NAME)
    if os.path.splitext(data.path)[0] != os.path.splitext(beside)[0] or data.path == beside:
        text = "{}: the data of {} is {}, which is not the file of that name beside it"
        raise VerifyFailure(9, text.format(NAME, shown(beside), shown(data.path)))
    return data


def _sample(entry: Mapping[str, Any], inputs: list[str], outputs: list[str]) -> Sample:
    by_precision = _field(entry, "outputs", dict, "golden.samples[].")
    return Sample(
        _paths(_field(entry, "inputs", list, "golden.samples[]."), len(inputs), "inputs"),
        {name: _paths(paths, len(outputs), "outputs." + shown(name)) for name, paths in by_precision.items()},
    )


def _paths(paths: Any, count: int, what: str) -> list[str]:
    if not isinstance(paths, list) or len(paths) != count:
        raise VerifyFailure(9, "{}: golden.samples[].{} must list {} files".format(NAME, what, count))
    for path in paths:
        safe_path(path, NAME)
    return list(paths)


def _tolerance(tolerance: Mapping[str, Any], precision: str) -> float:
    entry = _field(tolerance, precision, dict, "golden.tolerance.")
    value = entry.get("sqnr_db")
    if not _is_number(value):
        raise VerifyFailure(9, "{}: golden.tolerance.{}.sqnr_db is not a number".format(NAME, shown(precision)))
    return float(value)


def _by_output(tolerance: Mapping[str, Any], needed: Iterable[str], count: int) -> dict[str, list[float]]:
    """What each output must reach, by precision; older bundles bind the worst output alone."""
    found = {}
    for precision in sorted(needed):
        values = tolerance[precision].get("outputs_db")
        if values is None:
            continue
        if not isinstance(values, list) or len(values) != count or not all(_is_number(v) for v in values):
            text = "{}: golden.tolerance.{}.outputs_db is not one number for each output"
            raise VerifyFailure(9, text.format(NAME, shown(precision)))
        found[precision] = [float(v) for v in values]
    return found


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value)
