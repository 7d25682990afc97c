"""Descriptions of sets that are folders of arrays, JSON lines of tokens, or WAV files."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from edgeopt.calibration import fields, paths
from edgeopt.calibration import tokens as token_lines
from edgeopt.calibration import wav as wav_files
from edgeopt.calibration.folders import MAX_SKIP, stem, stems
from edgeopt.calibration.types import Audio, DataSet, Folder, Source, TokenInput, Tokens
from edgeopt.errors import CalibrationError
from edgeopt.tomlfile import Table, refuse

REMEDY = "Correct the description; docs/add-a-calibration-set.md lists every key."
DTYPES = tuple(
    f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64) if kind + str(bits) != "float8"
)
_FOLDER_INPUT = ("scale", "mean", "std", "layout", "color", "transpose", "cast", "folder", "glob", "dtype", "shape")
_BYTES_ONLY = ("shape", "skip", "byteorder")


def described(base: DataSet, path: Path) -> frozenset[Path]:
    """Files that may lie among the samples and are none."""
    labels = base.labels.file.path if base.labels is not None and base.labels.file is not None else None
    groups = base.groups.file if base.groups is not None else None
    return frozenset(p for p in (path, labels, groups, base.charset, base.pairs) if p is not None)


def folder(base: DataSet, path: Path, table: Table, own: Mapping[str, Table]) -> DataSet:
    """One file a sample, a folder or a pattern for every input; the same names in all of them."""
    if not own:
        table.problem("inputs", "is missing; add a table [inputs.NAME] for every input of the model.")
    listed = []
    for key, entry in own.items():
        entry.only((*_FOLDER_INPUT, "skip", "byteorder"))
        where = paths.inside(entry, "folder", path)
        pattern = paths.pattern(entry, "glob", "**/*.npy")
        listed.append((key, where, pattern, _plain(entry), fields.stored_transform(entry)))
    refuse(path, table, REMEDY, CalibrationError)
    sources = []
    for key, where, pattern, plain, transform in listed:
        files = sorted(paths.list_files(where, pattern, described(base, path), "arrays"), key=stem)
        for name in files:
            if plain.dtype is None and not name.endswith(".npy"):
                raise CalibrationError(
                    f"{where / name}: is no .npy file, and nothing says what its bytes are.",
                    remedy=f'State dtype and shape of input "{key}", or narrow the set with glob.',
                )
        sources.append(
            Source(
                name=key,
                file=None,
                transform=transform,
                folder=dataclasses.replace(plain, folder=where, files=tuple(files)),
            )
        )
    _same_stems(sources)
    total = len(stems(sources[0]))
    return dataclasses.replace(base, total=total, count=total, sources=tuple(sources))


def _plain(entry: Table) -> Folder:
    """How files that are bytes alone are to be read."""
    if "dtype" not in entry.data:
        for key in _BYTES_ONLY:
            if key in entry.data:
                entry.problem(key, "is for files without a header of their own; state dtype too.")
        return Folder(folder=Path(), files=())
    dtype = np.dtype(entry.text("dtype", choices=DTYPES))
    order = entry.text("byteorder", "little", choices=("little", "big"))
    shape = entry.data.get("shape")
    good = isinstance(shape, list) and all(type(n) is int and (n == -1 or 0 < n < 1 << 31) for n in shape)
    if not good or not isinstance(shape, list) or shape.count(-1) > 1 or math.prod(map(abs, shape)) > 1 << 40:
        entry.problem("shape", f"must be the sizes of a sample's axes, one of them -1 at most, got {shape!r:.60}.")
        shape = []
    return Folder(
        folder=Path(),
        files=(),
        dtype=dtype.newbyteorder("<" if order == "little" else ">").str,
        shape=tuple(shape),
        skip=entry.integer("skip", 0, most=MAX_SKIP),
    )


def _same_stems(sources: list[Source]) -> None:
    """Every input has a file for every sample."""
    first = stems(sources[0])
    for source in sources:
        names = stems(source)
        assert source.folder is not None
        if len(set(names)) != len(names):
            twice = next(a for a, b in itertools.pairwise(sorted(names)) if a == b)
            raise CalibrationError(
                f'{source.folder.folder}: "{twice}" is there with two suffixes; narrow it with glob.'
            )
        missing = sorted(set(first) ^ set(names))
        if missing:
            lacking = source if missing[0] in first else sources[0]
            assert lacking.folder is not None
            raise CalibrationError(
                f'{lacking.folder.folder}: has no file for sample "{missing[0]}" of input "{lacking.name}" '
                f"({len(missing)} samples are not in both {sources[0].folder and sources[0].folder.folder} "
                f"and {source.folder.folder}).",
                remedy="Every input needs a file of the same name.",
            )


def tokens(base: DataSet, path: Path, table: Table, own: Mapping[str, Table]) -> DataSet:
    """A file of JSON lines, each with lists of whole numbers."""
    inputs = []
    for name, entry in own.items():
        entry.only(("key", "pad", "mask"))
        mask = entry.flag("mask", False)
        if mask and ("key" in entry.data or "pad" in entry.data):
            entry.problem("mask", "cannot stand beside key or pad: 1 for every number, 0 for padding.")
        inputs.append(
            TokenInput(
                name=name,
                key="" if mask else entry.text("key", name),
                pad=entry.integer("pad", 0, least=-(1 << 31), most=1 << 31),
                mask=mask,
            )
        )
    if not any(not entry.mask for entry in inputs):
        table.problem("inputs", "is missing; add a table [inputs.NAME] for every input of the model.")
    file = paths.inside(table, "file", path)
    length = table.integer("length", 0, least=1, most=token_lines.MAX_TOKENS)
    multiple = table.integer("multiple", 0, least=1, most=token_lines.MAX_TOKENS)
    if length and multiple:
        table.problem("multiple", "cannot stand beside length: one pads to a size, the other to the next multiple.")
    truncate = table.flag("truncate", False)
    if file.suffix not in (".jsonl", ".json", ".ndjson"):
        table.problem("file", f'"{file.name}" is none of .jsonl, .ndjson, .json.')
    refuse(path, table, REMEDY, CalibrationError)
    found = Tokens(file=file, inputs=tuple(inputs), length=length, multiple=multiple, truncate=truncate)
    total = token_lines.count(file)
    sources = tuple(Source(name=e.name, file=None, transform=token_lines.AS_STORED) for e in inputs)
    return dataclasses.replace(base, total=total, count=total, sources=sources, tokens=found)


def wav(base: DataSet, path: Path, table: Table, own: Mapping[str, Table]) -> DataSet:
    """Recordings cut into windows. ``start``, ``stride`` and ``limit`` choose files: windows of one file overlap."""
    if len(own) != 1:
        table.problem("inputs", f"must hold one table [inputs.NAME] for the sound, got {len(own)}.")
        own = {"": Table(data={}, path="inputs", problems=[])}
    name, entry = next(iter(own.items()))
    entry.only(("window", "hop", "before", "tail", "axes", "integer", "scale", "mean", "std"))
    window = entry.integer("window", 0, least=1, most=wav_files.MAX_POINTS)
    hop = entry.integer("hop", window, least=1, most=wav_files.MAX_POINTS)
    before = entry.integer("before", 0, most=wav_files.MAX_POINTS)
    for key in ("hop", "tail"):
        if key in entry.data and not window:
            entry.problem(key, "needs window.")
    tail = entry.text("tail", "drop", choices=("drop", "zero"))
    channels = table.text("channels", "mono", choices=("mono", "mean", "first", "all"))
    axes = entry.text("axes", "CT" if channels == "all" else "T", choices=("T", "CT", "TC"))
    if channels == "all" and axes == "T":
        entry.problem("axes", 'must be "CT" or "TC" for all channels.')
    integer = entry.flag("integer", False)
    if integer and channels == "mean":
        entry.problem("integer", 'cannot stand beside channels = "mean".')
    transform = dataclasses.replace(fields.transform(entry), cast=not integer)
    rate = table.integer("rate", least=1, most=10_000_000)
    where = paths.inside(table, "folder", path)
    pattern = paths.pattern(table, "glob", "**/*.wav")
    start, stride = table.integer("start", 0), table.integer("stride", 1, least=1)
    limit = table.integer("limit", 0, least=1)
    refuse(path, table, REMEDY, CalibrationError)
    listed = paths.list_files(where, pattern, described(base, path), "WAV files")
    files = listed[start::stride][: limit or None]
    if not files:
        raise CalibrationError(f"{path}: start: none of {len(listed)} files are left.")
    audio = Audio(
        folder=where,
        files=files,
        windows=(),
        rate=rate,
        channels=channels,
        window=window,
        hop=hop,
        before=before,
        tail=tail,
        axes=axes,
        integer=integer,
    )
    windows = tuple(wav_files.windows_of(audio, file) for file in files)
    total = sum(windows)
    audio = dataclasses.replace(audio, windows=windows)
    source = Source(name=name, file=None, transform=transform)
    return dataclasses.replace(base, total=total, count=total, sources=(source,), audio=audio)
