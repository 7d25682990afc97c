"""Description -> DataSet: TOML files, and data files given instead of one."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Mapping
from pathlib import Path

from edgeopt.calibration import arrays, fields, images, judging, kinds, paths
from edgeopt.calibration.finish import finish, select
from edgeopt.calibration.types import ONLY_INPUT, ArrayFile, DataSet, Images, Source, Transform
from edgeopt.errors import CalibrationError, did_you_mean
from edgeopt.tomlfile import Table, read_toml, refuse

SCHEMA = "edgeopt.set/1"
KINDS = ("arrays", "folder", "images", "tokens", "wav", "python", "random")
FOLDER_FILE = "set.toml"
"""The description that a folder given as a set must hold."""

_HEAD = ("schema", "name", "description", "kind", "inputs")
_COMMON = (*_HEAD, "metric", "labels", "groups", "start", "stride", "limit", "count")
_KEYS: Mapping[str, tuple[str, ...]] = {
    "arrays": _COMMON,
    "folder": _COMMON,
    "images": (*_COMMON, "folder", "glob"),
    "tokens": (*_COMMON, "file", "length", "multiple", "truncate"),
    "wav": (*(key for key in _COMMON if key != "count"), "folder", "glob", "rate", "channels"),
    "python": (*_COMMON, "factory"),
    "random": (*_HEAD, "count", "seed"),
}
_TRANSFORM = ("scale", "mean", "std", "layout", "color")
_ARRAY_INPUT = (*_TRANSFORM, "file", "member", "transpose", "cast")
_SAMPLES = frozenset({*images.SUFFIXES, ".npy", ".npz", ".wav", ".jsonl", ".ndjson"})
_MOST_LISTED = 10_000
_IMAGE_INPUT = (*_TRANSFORM, "resize", "size", "crop", "interpolation")
_RANDOM_COUNT = 32
_REMEDY = "Correct the description; docs/add-a-calibration-set.md lists every key."


def load_set(spec: str | Path) -> DataSet:
    """Describe the set that ``spec`` names; no sample is read.

    Args:
        spec: a ``.toml`` description; a ``.npz`` file whose arrays are named like the inputs; a ``.npy`` file for a
            model with one input; a folder that holds ``set.toml``; or the word ``random``.

    Raises:
        CalibrationError: missing, not a set, or a description with problems; all of them are named.
    """
    if spec == "random":
        return _random("random", None, _RANDOM_COUNT, 0)
    path = Path(spec)
    if path.is_dir():
        if not (path / FOLDER_FILE).is_file():
            raise _undescribed(path)
        return _from_toml(path / FOLDER_FILE)
    if path.suffix == ".toml":
        return _from_toml(path)
    if path.suffix not in (".npz", ".npy"):
        raise CalibrationError(
            f"{path}: not a data set.", remedy="Give a .toml description, a .npz or .npy file, or a folder."
        )
    if not path.is_file():
        near = did_you_mean(path.name, tuple(p.name for p in path.parent.glob("*.np[yz]")))
        raise CalibrationError(f"{path}: no such file.{near}", remedy="Check the path.")
    names = arrays.members(path) if path.suffix == ".npz" else (None,)
    sources = tuple(
        Source(name=name or ONLY_INPUT, file=ArrayFile(path=path, member=name), transform=Transform()) for name in names
    )
    total = _same_length(sources)
    return finish(DataSet(name=path.stem, kind="arrays", path=path, total=total, count=total, sources=sources))


def _undescribed(folder: Path) -> CalibrationError:
    """Why a folder without a description is no set: nothing in it is a sample, or nothing says what a sample means."""
    try:
        empty = next(os.scandir(folder), None) is None
    except OSError as problem:
        return CalibrationError(f"{folder}: cannot be read ({problem.strerror or problem}).")
    below = list(itertools.islice(folder.rglob("*"), _MOST_LISTED))
    if empty:
        text = "the folder is empty"
    elif len(below) < _MOST_LISTED and not any(path.suffix.lower() in _SAMPLES for path in below):
        text = f"the folder holds no image, no .npy, .npz, .wav or .jsonl file, and no {FOLDER_FILE}"
    else:
        return CalibrationError(f"{folder}: a folder says nothing about colour order and scale.", remedy=_TEMPLATE)
    return CalibrationError(f"{folder}: {text}.", remedy=f"Give another path, or put the samples there. {_TEMPLATE}")


def _from_toml(path: Path) -> DataSet:
    table = read_toml(path, CalibrationError)
    kind = table.text("kind", choices=KINDS)
    refuse(path, table, _REMEDY, CalibrationError)
    table.only(_KEYS[kind], f' for kind = "{kind}"')
    table.text("schema", choices=(SCHEMA,))
    table.text("description", "")
    name = table.text("name")
    refuse(path, table, _REMEDY, CalibrationError)
    own, constants, carried = fields.given(table)
    base = DataSet(name=name, kind=kind, path=path, total=0, count=0, constants=constants, carried=carried)
    if kind == "random":
        count, seed = table.integer("count", _RANDOM_COUNT, least=1), table.integer("seed", 0)
        refuse(path, table, _REMEDY, CalibrationError)
        return finish(dataclasses.replace(base, total=count, count=count, seed=seed, second_class=True))
    base = dataclasses.replace(base, **judging.judging(table, path))
    match kind:
        case "arrays":
            found = _arrays(base, path, table, own)
        case "folder":
            found = kinds.folder(base, path, table, own)
        case "images":
            found = _images(base, path, table, own)
        case "tokens":
            found = kinds.tokens(base, path, table, own)
        case "wav":
            found = kinds.wav(base, path, table, own)
        case _:
            found = _python(base, path, table, own)
    judging.misfits(table, found)
    if kind not in ("python", "wav"):
        found = select(found, table)
    refuse(path, table, _REMEDY, CalibrationError)
    return finish(found)


def _arrays(base: DataSet, path: Path, table: Table, own: Mapping[str, Table]) -> DataSet:
    if not own:
        table.problem("inputs", "is missing; add a table [inputs.NAME] for every input of the model.")
    sources = []
    for key, entry in own.items():
        entry.only(_ARRAY_INPUT)
        file = fields.array_file(entry, path, key)
        sources.append(Source(name=key, file=file, transform=fields.stored_transform(entry)))
    refuse(path, table, _REMEDY, CalibrationError)
    total = _same_length(tuple(sources))
    return dataclasses.replace(base, total=total, count=total, sources=tuple(sources))


def _images(base: DataSet, path: Path, table: Table, own: Mapping[str, Table]) -> DataSet:
    if len(own) != 1:
        table.problem("inputs", f"must hold one table [inputs.NAME], got {len(own)}.")
        own = {"": Table(data={}, path="inputs", problems=[])}
    key, entry = next(iter(own.items()))
    entry.only(_IMAGE_INPUT)
    for needed in ("scale", "layout", "color"):
        if needed not in entry.data:
            entry.problem(needed, "is missing; nothing is assumed about how pixels become numbers.")
    size, crop = fields.pair(entry, "size"), fields.pair(entry, "crop")
    resize = entry.integer("resize", 0, least=1) or None
    if size and resize:
        entry.problem("size", "cannot stand beside resize.")
    transform = fields.transform(entry)
    interpolation = entry.text("interpolation", "bilinear", choices=images.INTERPOLATIONS)
    folder = paths.inside(table, "folder", path)
    pattern = paths.pattern(table, "glob", "**/*")
    refuse(path, table, _REMEDY, CalibrationError)
    files = paths.list_files(folder, pattern, kinds.described(base, path), "images")
    return dataclasses.replace(
        base,
        total=len(files),
        count=len(files),
        sources=(Source(name=key, file=None, transform=transform),),
        images=Images(folder=folder, files=files, resize=resize, size=size, crop=crop, interpolation=interpolation),
    )


def _python(base: DataSet, path: Path, table: Table, own: Mapping[str, Table]) -> DataSet:
    factory = table.text("factory")
    if not judging.is_function(factory):
        table.problem("factory", f'must be "package.module:function", got "{factory}".')
    for entry in own.values():
        entry.problem("", "the function gives every input but those with value or from.")
    count, start = table.integer("count", least=1), table.integer("start", 0)
    stride = table.integer("stride", 1, least=1)
    if "limit" in table.data:
        table.problem("limit", "cannot be used here; count says how many samples to take.")
    if base.carried and stride > 1:
        table.problem("stride", "must be 1 where an input is carried over: every sample follows the one before.")
    total = start + stride * (count - 1) + 1
    return dataclasses.replace(base, total=total, count=count, start=start, stride=stride, factory=factory)


def _random(name: str, path: Path | None, count: int, seed: int) -> DataSet:
    return finish(DataSet(name=name, kind="random", path=path, total=count, count=count, seed=seed, second_class=True))


def _same_length(sources: tuple[Source, ...]) -> int:
    counts = {str(s.file): arrays.header(s.file).shape[0] for s in sources if s.file is not None}
    if len(set(counts.values())) != 1:
        listed = ", ".join(f"{file}: {count}" for file, count in counts.items())
        raise CalibrationError(
            f"inputs hold different numbers of samples ({listed}).", remedy="Every input needs one value per sample."
        )
    return next(iter(counts.values()))


_TEMPLATE = f"""Put this {FOLDER_FILE} into it and make it say what your training did:
  schema = "{SCHEMA}"
  name = "photos"
  kind = "images"
  folder = "."
  [inputs.INPUT]
  resize = 256
  crop = [224, 224]
  color = "rgb"
  layout = "NCHW"
  scale = "1/255"
  mean = [0.485, 0.456, 0.406]
  std = [0.229, 0.224, 0.225]"""
