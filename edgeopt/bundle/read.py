"""Reading a bundle whose origin is unknown, and having it verified by the program that also runs on the device."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import runtime_bench
from edgeopt.bundle.layout import MANIFEST, SCHEMA, check_names, load_json, read_text
from edgeopt.bundle.records import Lock, read_diary, read_lock
from edgeopt.errors import BundleError, EdgeoptError, QualityError, ToolchainError
from edgeopt.plan import StepResult
from runtime_bench.manifest import check_files, parse
from runtime_bench.sums import DEVICE

_REQUIRED: Mapping[str, type] = {
    "edgeopt": str,
    "name": str,
    "identity": str,
    "source": dict,
    "target": dict,
    "backend": dict,
    "steps": list,
    "measured_on": dict,
    "verdict": dict,
    "files": dict,
}
"""Keys that this program needs besides those of the contract, which ``runtime_bench`` checks."""


MEND = "Copy the whole folder again, or build it again."
"""What to do with a bundle whose files are not the ones that were built."""


class VerificationError(QualityError):
    """A golden output is outside its tolerance. ``result`` is the whole document, as for a bundle that passes."""

    def __init__(self, message: str, result: Mapping[str, Any]) -> None:
        remedy = "Do not ship this bundle on this device; build it again for the device's runtime."
        if "built unverified" in message:
            remedy = "Build it with --custom-ops LIBRARY, so that it has answers to check."
        super().__init__(message, remedy=remedy)
        self.result = result


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bundle:
    """A bundle on disk: its folder and its manifest. The rest is read when it is asked for."""

    root: Path
    manifest: Mapping[str, Any]

    @functools.cached_property
    def diary(self) -> tuple[StepResult, ...]:
        """What every step did, in order. Raises BundleError."""
        return read_diary(self.root / "diary.jsonl")

    @functools.cached_property
    def lock(self) -> Lock:
        """The decisions that a locked build replays. Raises BundleError."""
        return read_lock(self.root)

    @functools.cached_property
    def measurements(self) -> Mapping[str, Any]:
        """Documents of ``measurements/`` by name without ``.json``. Raises BundleError."""
        folder = self.root / "measurements"
        names = sorted(path.name for path in folder.glob("*.json")) if folder.is_dir() else []
        return {
            name.removesuffix(".json"): load_json(read_text(folder / name), f"measurements/{name}") for name in names
        }


def read(path: Path) -> Bundle:
    """Read the manifest of the bundle in the folder ``path``. Hashes are not checked: that is ``verify``.

    Raises:
        BundleError: no bundle, or a manifest that is damaged, hostile, or written by a newer edgeopt.
    """
    name_it = "Name the folder that edgeopt build wrote."
    if not path.is_dir():
        what = "is a file; if it is an archive, unpack it first" if path.exists() else "does not exist"
        raise BundleError(f"{path} {what}", remedy=name_it)
    if not os.path.lexists(path / MANIFEST):
        raise BundleError(f"{path} is not a bundle: it has no {MANIFEST}", remedy=name_it)
    try:
        manifest = load_json(read_text(path / MANIFEST), MANIFEST)
        check_manifest(manifest)
    except BundleError as error:
        raise BundleError(f"{path}: {error.message}", remedy=error.remedy or MEND) from error
    return Bundle(root=path, manifest=manifest)


def check_manifest(manifest: Any) -> None:
    """Check version, the keys that are needed to run and to report, and every path. Unknown keys are let pass.

    Raises:
        BundleError: naming the key.
    """
    _check_schema(manifest)
    for key, kind in _REQUIRED.items():
        if not isinstance(manifest.get(key), kind):
            raise BundleError(f"{MANIFEST}: {key!r} is {'of the wrong type' if key in manifest else 'missing'}")
    try:
        contract = parse(manifest)
        sums = {path: entry["sha256"] for path, entry in manifest["files"].items()}
        check_files(contract, sums)
    except runtime_bench.VerifyFailure as failure:
        raise BundleError(failure.message.replace(DEVICE, "'files'")) from failure
    except (KeyError, TypeError) as error:
        raise BundleError(f"{MANIFEST}: 'files' is not as the schema says") from error
    check_names(sums)


def _check_schema(manifest: Any) -> None:
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if schema == SCHEMA:
        return
    family, _, version = str(schema).partition("/")
    if family == SCHEMA.partition("/")[0] and version.isdecimal():
        text = f"the bundle was written by a newer edgeopt: it has {schema}, this version reads {SCHEMA}"
        raise BundleError(text, remedy="Update edgeopt.")
    raise BundleError(f"{MANIFEST}: schema is {schema!r}, expected {SCHEMA!r}")


def verify(
    bundle: Bundle | Path, progress: Callable[[str], None] | None = None, *, custom_ops: Path | None = None
) -> Mapping[str, Any]:
    """Check hashes, runtime and golden outputs, exactly as ``bench.pyz verify`` does on the device.

    Args:
        custom_ops: shared library with the model's own operators; its code runs.

    Returns:
        The verification document of ``runtime_bench.verify_bundle``, with ``ok`` true.

    Raises:
        BundleError: a file is damaged, missing or foreign.
        ToolchainError: the runtime is missing, too old, or lacks the provider.
        VerificationError: an artifact does not run, or its output is outside the tolerance.
    """
    root = bundle.root if isinstance(bundle, Bundle) else read(bundle).root
    kinds: Mapping[int, type[EdgeoptError]] = {6: ToolchainError, 7: QualityError, 9: BundleError}
    try:
        result: Mapping[str, Any] = runtime_bench.verify_bundle(
            str(root), progress, custom_ops=None if custom_ops is None else str(custom_ops)
        )
    except runtime_bench.VerifyFailure as failure:
        kind = kinds.get(failure.code, BundleError)
        extra = "no list has it" in failure.message
        remedy = "Move it out of the folder." if extra else MEND if kind is BundleError else None
        remedy = failure.remedy or remedy
        raise kind(f"{root}: {failure.message}", remedy=remedy) from failure
    failed = [f"{check['name']}: {check['detail']}" for check in result["checks"] if not check["ok"]]
    if failed:
        raise VerificationError("; ".join(failed), result)
    return result
