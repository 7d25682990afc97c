"""What can change a result of a build, as digests: the keys of a journal are made of them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import edgeopt
import runtime_bench
from edgeopt import host, model
from edgeopt.backends import Artifact
from edgeopt.bundle import canonical
from edgeopt.metrics import Label
from edgeopt.model import Model, file_sha256
from edgeopt.outcomes import SampleDigest
from edgeopt.pipeline.data import Feeds, Sets
from edgeopt.pipeline.journal import Journal, opened
from edgeopt.pipeline.request import Request

RELEASES = ("numpy", "onnx", "onnx-ir", "ml_dtypes", "protobuf", "onnxruntime", "openvino", "pillow")
"""Distributions whose code has a part in a result."""


def digest(facts: object) -> str:
    """sha256 of plain JSON values."""
    return hashlib.sha256(canonical(facts)).hexdigest()


@contextlib.contextmanager
def journal_of(
    request: Request, loaded: Model, sets: Sets, stage: Callable[[str], AbstractContextManager[object]]
) -> Iterator[Journal]:
    """The journal of a build while the block runs, see ``journal.opened``.

    Samples that Python code makes are part of every key, and reading all of them once more takes time: then a journal
    is kept only where it is asked for.
    """
    if _coded(sets) and not request.resume and request.work is None:
        yield Journal()
        return
    with opened(request.out, work=request.work, resume=request.resume) as notes:
        shown = stage(f"resume ({notes.held} results kept)") if request.resume else contextlib.nullcontext()
        with shown:
            notes.base = "" if notes.folder is None else base(loaded, sets)
        yield notes


def base(loaded: Model, sets: Sets) -> str:
    """What every key of a build covers.

    That is the code of edgeopt, the releases it calls, this kind of processor, the model as loaded with the libraries
    that run it, and the data: the files of the sets, what they make of a few samples, and every sample of a set whose
    samples are made by code.
    """
    machine = host.probe()
    return digest(
        {
            "code": _code(),
            "releases": _releases(),
            "python": platform.python_version(),
            "processor": [machine.arch, machine.cpu, *machine.isa],
            "model": model.digest(loaded),
            "libraries": [file_sha256(path) for path in loaded.origin.libraries],
            "data": _data(sets),
        }
    )


def of_artifacts(artifacts: Mapping[str, Artifact]) -> object:
    """Files, and how they are run, by precision."""
    return {
        precision: [
            artifact.sha256,
            None if artifact.data is None else artifact.data.sha256,
            artifact.runner,
            dict(artifact.options),
            artifact.optimize,
        ]
        for precision, artifact in artifacts.items()
    }


def of_judgement(original: Model, artifacts: Mapping[str, Artifact]) -> object:
    """What a comparison with the original over the evaluation set follows from."""
    return [model.digest(original), of_artifacts(artifacts)]


def of_measurement(
    artifacts: Mapping[str, Artifact], fed: Iterable[Mapping[str, str]], how: Mapping[str, object]
) -> object:
    """What a measurement follows from; another run of this machine measures anew.

    Args:
        artifacts: with the baseline.
        fed: files of the inputs of each sample, by input name.
        how: effort, threads and the like.
    """
    inputs = [file_sha256(Path(path)) for sample in fed for path in sample.values()]
    return [of_artifacts(artifacts), inputs, dict(how), boot()]


def boot() -> str:
    """This run of this machine: timings of another are not one's own. Empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


@functools.cache
def _code() -> str:
    """Digest of every file of edgeopt and of what measures for it."""
    found = hashlib.sha256()
    for package in (edgeopt, runtime_bench):
        root = Path(str(package.__file__)).parent
        for path in sorted(path for path in root.rglob("*") if "__pycache__" not in path.parts and path.is_file()):
            found.update(f"{package.__name__}/{path.relative_to(root).as_posix()} {file_sha256(path)}\n".encode())
    return found.hexdigest()


def _releases() -> dict[str, str]:
    found = {}
    for name in RELEASES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _data(sets: Sets) -> object:
    made = _coded(sets)
    return {
        "sets": sets.digests(),
        "held_out": sets.held_out,
        "units": None if sets.units is None else hashlib.sha256(sets.units.tobytes()).hexdigest(),
        "inputs": [str(spec) for spec in sets.inputs],
        "probes": _fed(sets.probes, None),
        "calibration": _fed(sets.calibration_samples(), sets.choice_labels()) if "calibration" in made else None,
        "evaluation": _fed(sets.evaluation_samples(), sets.labels()) if "evaluation" in made else None,
    }


def _coded(sets: Sets) -> set[str]:
    """Roles of the sets whose samples Python code makes."""
    given = {"calibration": sets.calibration, "evaluation": sets.evaluation}
    return {role for role, found in given.items() if found is not None and found.kind == "python"}


def _fed(samples: Iterable[Feeds], labels: Iterator[Label] | None) -> str:
    """Digest of samples as they are fed, and of labels."""
    found = SampleDigest()
    for feeds in samples:
        found.add(feeds, None)
    for label in labels or ():
        found.add({}, label)
    return found.hexdigest()
