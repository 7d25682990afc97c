"""Verifies a bundle on the machine where it is to run: its bytes, its runtime, and what it computes."""

from __future__ import annotations

import os
import platform
import re
from typing import Any, Callable, Mapping, Optional

from runtime_bench import manifest, native, process, providers, sums
from runtime_bench.errors import RuntimeMissing, VerifyFailure
from runtime_bench.golden import EXACT_DB
from runtime_bench.machine import environment, isa
from runtime_bench.manifest import Artifact, Contract
from runtime_bench.runners import RUNNERS

SCHEMA = "edgeopt.verification/1"
TIMEOUT_S = 3600.0
PORTABLE = ("onnx", "ort", "openvino-ir")
"""Formats that hold no code for one kind of processor."""


def verify_bundle(
    root: str, progress: Optional[Callable[[str], None]] = None, *, custom_ops: Optional[str] = None
) -> dict[str, Any]:
    """Verify a bundle folder.

    The lists of digests and the identity come first, then the processor, then the runtime's version, and only then is
    an artifact loaded: in a worker process, so that a runtime which crashes is a failed check and not the end of this
    program.

    Returns ``{"schema", "ok", "checks": [{"name", "ok", "detail"}], "identity", "runtime", "artifacts"}``; an entry of
    ``artifacts`` has ``path``, ``precision``, ``tolerance_db``, ``sqnr_db`` (worst output, over all samples; None if
    it did not run), ``outputs`` (each with its own ``tolerance_db``) and ``own``, see ``golden.check``.
    Raises VerifyFailure for a damaged or foreign bundle (code 9) and for a missing or too old runtime (code 6).
    """
    tell = progress or (lambda text: None)
    root = os.path.abspath(root)
    checks: list[dict[str, Any]] = []

    def passed(name: str, detail: str, ok: bool = True) -> None:
        checks.append({"name": name, "ok": ok, "detail": detail})

    raw = manifest.read(root)
    contract = with_library(manifest.parse(raw), custom_ops)
    tell("files")
    device, records, results = sums.check_tree(root)
    manifest.check_files(contract, device)
    more = "; not part of it: " + ", ".join(results) if results else ""
    passed("files", "{} that run and {} records are intact{}".format(len(device), len(records), more))
    identity = manifest.check_identity(raw, device)
    passed("identity", identity)
    if not contract.arch:
        native.require_machine(contract.native)
    else:
        passed("processor", "; ".join(machine_warnings(contract)) or "{}, as the target".format(contract.arch))
    tell("runtime")
    runtime = require_runtime(contract)
    passed("runtime", "{} {}, {}".format(runtime["name"], runtime["version"], contract.provider))
    artifacts = []
    for artifact in contract.artifacts:
        tell(artifact.path)
        entry, check = _run_golden(root, contract, artifact)
        artifacts.append(entry)
        checks.append(check)
    return {
        "schema": SCHEMA,
        "ok": all(check["ok"] for check in checks),
        "checks": checks,
        "identity": identity,
        "runtime": runtime,
        "artifacts": artifacts,
    }


def machine_warnings(contract: Contract, root: str = "/") -> list[str]:
    """What this processor lacks of the target's, as sentences; known before anything is imported.

    Args:
        contract: its ``arch`` and ``isa`` are compared; an empty ``arch`` says nothing about the processor.
        root: of ``/proc`` and ``/sys``.

    Raises VerifyFailure (9) when an artifact holds code, or weights in a layout, for another processor than this one.
    """
    native.require_machine(contract.native, root)
    described = environment.describe(root)
    here = isa.architecture(described["machine"])
    if contract.arch and here != contract.arch:
        bound = [artifact.path for artifact in contract.artifacts if artifact.format not in PORTABLE]
        if bound:
            text = "{} is built for {} and runs nowhere else; this machine is {}"
            raise VerifyFailure(9, text.format(sums.shown(bound[0]), sums.shown(contract.arch), here))
        text = "this machine is {}, the target ({}) is {}: speed and memory here say nothing about it"
        return [text.format(here, sums.shown(contract.target), sums.shown(contract.arch))]
    lost = isa.sentence(isa.missing_features(contract.isa, described["flags"]), described["cpu"])
    return [lost] if lost else []


def target_isa(contract: Contract) -> list[str]:
    """Features of the target that a measurement here is held against; none where the architecture is another one."""
    same = isa.architecture(platform.machine()) == contract.arch
    return list(contract.isa) if same else []


def require_runtime(contract: Contract, allow_fallback: bool = False) -> dict[str, Any]:
    """Ask a worker what is installed, and compare. Raises VerifyFailure (6) with the pip line; loads no model.

    An artifact that is bound to another release than the installed one is foreign here: VerifyFailure (9).
    With ``allow_fallback`` a provider that is not there is no reason to stop where the CPU's is.
    """
    name = contract.backend
    if name not in RUNNERS:
        text = 'the bundle runs on "{}", which this program does not know; it knows: {}'
        raise VerifyFailure(6, text.format(sums.shown(name), ", ".join(sorted(RUNNERS))))
    minimum = str(contract.minimum.get(name, "0"))
    try:
        found = process.run({"job": "probe", "runner": name}, TIMEOUT_S)
    except (RuntimeMissing, process.WorkerError) as error:
        needed = "{} {} or newer".format(name, sums.shown(minimum)) if minimum != "0" else name
        text = "needs {}, found none that works here: {}. Install it: {}"
        raise VerifyFailure(6, text.format(needed, error, _pip_line(contract, minimum))) from error
    native.require_release(contract.native, name, str(found["version"]), version_key)
    if version_key(found["version"]) < version_key(minimum):
        text = "the model needs {} {} or newer{}, found {}. Install it: {}"
        pip = _pip_line(contract, minimum)
        raise VerifyFailure(6, text.format(name, sums.shown(minimum), _numbers(contract), found["version"], pip))
    if name == "onnxruntime":
        try:
            provider = providers.full_name(contract.provider, found["providers"])
        except RuntimeMissing as error:
            raise VerifyFailure(6, str(error)) from error
        if provider not in found["providers"] and not (allow_fallback and providers.CPU in found["providers"]):
            text = "needs {}, this {} has only {}. {}"
            remedy = providers.remedy(provider, _shown_version(minimum))
            raise VerifyFailure(6, text.format(provider, name, ", ".join(found["providers"]), remedy))
    return found


def version_key(version: str) -> tuple[int, int, int]:
    """The first three numbers of a version, missing ones as 0; suffixes such as ``rc1`` do not count."""
    leading = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in leading.group().split(".")[:3]] if leading else []
    numbers += [0] * (3 - len(numbers))
    return numbers[0], numbers[1], numbers[2]


def with_library(contract: Contract, custom_ops: Optional[str]) -> Contract:
    """The contract, run with a library of operators; only whoever runs a bundle may name one, never the bundle."""
    if custom_ops is None:
        return contract
    return contract._replace(options={**contract.options, "custom_ops": os.path.abspath(custom_ops)})


def run_options(contract: Contract, artifact: Artifact, threads: Optional[int] = None) -> dict[str, Any]:
    """Options for the runner: the manifest's, with threads limited to what this machine allows."""
    return {
        **contract.options_of(artifact),
        "provider": contract.provider,
        "threads": environment.usable_threads(threads or contract.threads),
    }


def _numbers(contract: Contract) -> str:
    """What else the manifest says a runtime must read: " (opset 20, ir version 9)"."""
    known = [
        "{} {}".format(sums.shown(str(key)).replace("_", " "), sums.shown(str(value)))
        for key, value in sorted(contract.minimum.items(), reverse=True)
        if key != contract.backend
    ]
    return " ({})".format(", ".join(known)) if known else ""


def _pip_line(contract: Contract, minimum: str) -> str:
    if contract.backend != "onnxruntime":
        known = contract.backend if contract.backend in RUNNERS else "the runtime of the bundle"
        version = _shown_version(minimum)
        return 'python3 -m pip install numpy "{}{}"'.format(known, ">=" + version if version else "")
    provider = providers.SHORT.get(contract.provider.lower(), contract.provider)
    return providers.pip_line(provider, _shown_version(minimum))


def _shown_version(minimum: str) -> str:
    return minimum if re.fullmatch(r"[\w.]+", minimum) and minimum != "0" else ""


def _run_golden(root: str, contract: Contract, artifact: Artifact) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run one artifact on the golden inputs; its entry and its check."""
    tolerance = contract.tolerance_db[artifact.precision]
    entry: dict[str, Any] = {
        "path": artifact.path,
        "precision": artifact.precision,
        "tolerance_db": tolerance,
        "sqnr_db": None,
        "outputs": [],
        "own": None,
    }
    request = {
        "job": "golden",
        "runner": contract.backend,
        "path": _full(root, artifact.path),
        "options": run_options(contract, artifact),
        "outputs": contract.outputs,
        "samples": [_golden_sample(root, contract, artifact, i) for i in range(len(contract.samples))],
    }
    name = "golden {}".format(artifact.path)
    if not contract.samples:
        return entry, {"name": name, "ok": False, "detail": "built unverified: there are no golden samples to run"}
    try:
        answer = process.run(request, TIMEOUT_S)
    except RuntimeMissing as error:
        raise VerifyFailure(6, str(error)) from error
    except process.WorkerError as error:
        return entry, {"name": name, "ok": False, "detail": "it does not run: {}".format(error)}
    entry["outputs"], entry["own"] = answer["outputs"], answer["own"]
    entry["sqnr_db"] = min(output["sqnr_db"] for output in answer["outputs"])
    own = contract.output_tolerances_db.get(artifact.precision, [tolerance] * len(entry["outputs"]))
    for output, limit in zip(entry["outputs"], own):
        output["tolerance_db"] = limit
    return entry, {"name": name, **_judge(entry, len(contract.samples))}


def _golden_sample(root: str, contract: Contract, artifact: Artifact, index: int) -> dict[str, Any]:
    sample = contract.samples[index]
    own = sample.outputs.get(artifact.precision) if artifact.precision != "float32" else None
    return {
        "inputs": {name: _full(root, path) for name, path in zip(contract.inputs, sample.inputs)},
        "float": [_full(root, path) for path in sample.outputs["float32"]],
        "own": None if own is None else [_full(root, path) for path in own],
    }


def _judge(entry: Mapping[str, Any], samples: int) -> dict[str, Any]:
    faults = ["{}: {}".format(o["name"], o["fault"]) for o in entry["outputs"] if o["fault"]]
    if faults:
        return {"ok": False, "detail": faults[0]}
    exact = entry["sqnr_db"] >= EXACT_DB
    detail = "exact" if exact else "SQNR {:.1f} dB".format(entry["sqnr_db"])
    detail += " against float on {} samples (at least {:.1f} dB)".format(samples, entry["tolerance_db"])
    shares = [o["agreement"] for o in entry["outputs"] if o["agreement"] is not None]
    if shares:
        detail += ", arg-max agreement {:.1f} %".format(min(shares) * 100)
    if entry["own"] is not None:
        detail += ", " + _own_words(entry["own"])
    under = [o for o in entry["outputs"] if o["sqnr_db"] < o["tolerance_db"]]
    if under and entry["sqnr_db"] >= entry["tolerance_db"]:
        worst = max(under, key=lambda o: float(o["tolerance_db"] - o["sqnr_db"]))
        text = "{}: SQNR {:.1f} dB against float, at least {:.1f} dB; {}"
        detail = text.format(worst["name"], worst["sqnr_db"], worst["tolerance_db"], detail)
    return {"ok": not under and entry["sqnr_db"] >= entry["tolerance_db"], "detail": detail}


def _own_words(own: Mapping[str, Any]) -> str:
    if own["identical"]:
        return "identical to the build host's"
    if own["max_abs"] is None:
        return "of another shape or type than the build host's"
    return "within {:.3g} of the build host's".format(own["max_abs"])


def _full(root: str, path: str) -> str:
    return os.path.join(root, *path.split("/"))
