"""Writing a bundle: built beside its destination, complete before it is seen, the same bytes for the same content."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import io
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import runtime_bench
from edgeopt.bundle.destination import check_destination, locate, put_in_place, staging, sweep
from edgeopt.bundle.layout import MANIFEST, RECORDS, SUMS, check_names, sums_text
from edgeopt.bundle.read import Bundle, check_manifest
from edgeopt.errors import BundleError

_BLOCK = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Content:
    """What goes into a bundle.

    Attributes:
        manifest: all keys but ``files`` and ``identity``, which the writer adds.
        device_files: what runs on the device, by path in the bundle: a file to copy, or its bytes.
        record_files: diary, measurements, reports: everything else, in the same form.
    """

    manifest: Mapping[str, Any]
    device_files: Mapping[str, Path | bytes]
    record_files: Mapping[str, Path | bytes]


@dataclasses.dataclass(frozen=True)
class _Entry:
    sha256: str
    bytes: int


def seal(content: Content) -> dict[str, Any]:
    """Return the manifest as ``write`` will write it, with ``files`` and ``identity``, and write nothing.

    A report that shows the identity is made from this, and then added to ``record_files``.

    Raises:
        BundleError: the manifest and the files do not fit together.
    """
    check_names([*content.device_files, *content.record_files, MANIFEST, SUMS, RECORDS])
    return _sealed(content.manifest, {path: _copy(source, None) for path, source in content.device_files.items()})


def write(dest: Path, content: Content) -> Bundle:
    """Write a bundle to ``dest``. Until it is complete, and after any failure, ``dest`` is what it was before.

    Leftovers of killed runs beside ``dest`` are removed first. Files get mode 0644, folders 0755, whatever the umask.

    Raises:
        BundleError: the destination is taken or cannot be written, a name is not allowed, the disk is full, or the
            manifest and the files do not fit together.
    """
    name = content.manifest["name"]
    check_destination(dest, name)
    check_names([*content.device_files, *content.record_files, MANIFEST, SUMS, RECORDS])
    place = locate(dest)
    with _explained(place.parent, content), _parents(place.parent):
        sweep(place.parent)
        _check_space(place.parent, content)
        with staging(place) as folder:
            manifest = _fill(folder / "new", content)
            check_destination(dest, name)
            put_in_place(folder, place)
            _sync(place.parent)
    return Bundle(root=dest, manifest=manifest)


def _fill(root: Path, content: Content) -> dict[str, Any]:
    _make_folder(root)
    device = {path: _put(root, path, content.device_files[path]) for path in sorted(content.device_files)}
    records = {path: _put(root, path, content.record_files[path]) for path in sorted(content.record_files)}
    manifest = _sealed(content.manifest, device)
    text = json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    records[MANIFEST] = _put(root, MANIFEST, text.encode())
    records[SUMS] = _put(root, SUMS, sums_text({path: entry.sha256 for path, entry in device.items()}))
    _put(root, RECORDS, sums_text({path: entry.sha256 for path, entry in records.items()}))
    for folder, _, _ in os.walk(root, topdown=False):
        _sync(Path(folder))
    return dict(json.loads(text))


def _sealed(manifest: Mapping[str, Any], device: Mapping[str, _Entry]) -> dict[str, Any]:
    if {"files", "identity"} & manifest.keys():
        raise ValueError("the writer sets 'files' and 'identity'")
    files = {path: dataclasses.asdict(device[path]) for path in sorted(device)}
    head = {key: manifest[key] for key in ("schema", "edgeopt", "name") if key in manifest}
    sealed = {**head, "identity": "", **manifest, "files": files}
    check_manifest(sealed)
    for artifact in sealed["artifacts"]:
        own = [artifact["path"], *([artifact["data"]["path"]] if "data" in artifact else [])]
        if artifact.get("bytes") != sum(device[path].bytes for path in own):
            what = "file" if len(own) == 1 else "files"
            raise BundleError(f"{MANIFEST}: 'bytes' of {artifact['path']!r} is not the size of the {what}")
    sealed["identity"] = runtime_bench.identity(sealed, {path: entry.sha256 for path, entry in device.items()})
    return sealed


def _put(root: Path, path: str, source: Path | bytes) -> _Entry:
    target = root / path
    for folder in reversed([parent for parent in target.parents if parent != root and parent.is_relative_to(root)]):
        if not folder.is_dir():
            _make_folder(folder)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        entry = _copy(source, out)
        out.flush()
        os.fchmod(descriptor, 0o644)
        os.fsync(descriptor)
    return entry


def _copy(source: Path | bytes, out: BinaryIO | None) -> _Entry:
    """Hash a source and, where ``out`` is given, copy it there on the way."""
    digest, size = hashlib.sha256(), 0
    with io.BytesIO(source) if isinstance(source, bytes) else _open_regular(source) as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
            size += len(block)
            if out is not None:
                out.write(block)
    return _Entry(digest.hexdigest(), size)


def _open_regular(path: Path) -> BinaryIO:
    stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise BundleError(f"{path} is not a regular file")
    return stream


def _make_folder(path: Path) -> None:
    path.mkdir(mode=0o700)
    path.chmod(0o755)


def _sync(folder: Path) -> None:
    """Write a folder's entries to the disk, where the file system can do that for folders."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def _check_space(parent: Path, content: Content) -> None:
    sources = [*content.device_files.values(), *content.record_files.values()]
    needed = sum(len(source) if isinstance(source, bytes) else source.stat().st_size for source in sources)
    free = shutil.disk_usage(next(path for path in (parent, *parent.parents) if path.exists())).free
    if needed > free:
        raise BundleError(
            f"the bundle needs {_megabytes(needed)} MB and {parent} has {_megabytes(free)} MB free: "
            f"{_megabytes(needed - free)} MB short",
            remedy="Free that much, or choose another destination with -o.",
        )


def _megabytes(count: int) -> str:
    return f"{-(-count // 10**5) / 10:.1f}"


@contextlib.contextmanager
def _parents(folder: Path) -> Iterator[None]:
    """Make missing folders above the destination, and take them away again when the write fails."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


@contextlib.contextmanager
def _explained(parent: Path, content: Content) -> Iterator[None]:
    elsewhere = "choose another destination with -o."
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            _check_space(parent, content)  # staging is gone by now: what is free is what a second try would have
            text = f"{parent} is full: {error.strerror} while the bundle was written"
            raise BundleError(text, remedy=f"Free some space, or {elsewhere}") from error
        text = f"cannot write the bundle: {error.filename or parent}: {error.strerror or error}"
        raise BundleError(text, remedy=elsewhere.capitalize()) from error
