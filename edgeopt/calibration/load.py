"""Description -> DataSet: TOML files, and data files given instead of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from edgeopt.calibration import arrays, fields, images
from edgeopt.calibration.types import ONLY_INPUT, ArrayFile, DataSet, Images, Source, Transform
from edgeopt.errors import CalibrationError, did_you_mean
from edgeopt.tomlfile import Table, read_toml, refuse

SCHEMA = "edgeopt.set/1"
KINDS = ("arrays", "images", "python", "random")
FOLDER_FILE = "set.toml"
"""The description that a folder given as a set must hold."""

_COMMON = ("schema", "name", "description", "kind", "metric", "labels", "start", "stride", "limit", "count")
_KEYS: Mapping[str, tuple[str, ...]] = {
    "arrays": (*_COMMON, "inputs"),
    "images": (*_COMMON, "inputs", "folder", "glob"),
    "python": (*_COMMON, "factory"),
    "random": ("schema", "name", "description", "kind", "count", "seed"),
}
_TRANSFORM = ("scale", "mean", "std", "layout", "color")
_ARRAY_INPUT = (*_TRANSFORM, "file", "member", "transpose", "cast")
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
            raise CalibrationError(f"{path}: a folder says nothing about colour order and scale.", remedy=_TEMPLATE)
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
    return _finish(DataSet(name=path.stem, kind="arrays", path=path, total=total, count=total, sources=sources))


def _from_toml(path: Path) -> DataSet:
    table = read_toml(path, CalibrationError)
    kind = table.text("kind", choices=KINDS)
    refuse(path, table, _REMEDY, CalibrationError)
    table.only(_KEYS[kind], f' for kind = "{kind}"')
    table.text("schema", choices=(SCHEMA,))
    table.text("description", "")
    name = table.text("name")
    refuse(path, table, _REMEDY, CalibrationError)
    match kind:
        case "arrays":
            found = _arrays(name, path, table)
        case "images":
            found = _images(name, path, table)
        case "python":
            found = _python(name, path, table)
        case _:
            found = _random(name, path, table.integer("count", _RANDOM_COUNT, least=1), table.integer("seed", 0))
    refuse(path, table, _REMEDY, CalibrationError)
    return found


def _arrays(name: str, path: Path, table: Table) -> DataSet:
    inputs = table.tables("inputs")
    if not inputs:
        table.problem("inputs", "is missing; add a table [inputs.NAME] for every input of the model.")
    sources = []
    for key, entry in inputs.items():
        entry.only(_ARRAY_INPUT)
        file = fields.array_file(entry, path, key)
        transpose = entry.data.get("transpose", [])
        if not isinstance(transpose, list) or sorted(map(str, transpose)) != [str(i) for i in range(len(transpose))]:
            entry.problem(
                "transpose", f"must be an order of the stored sample's axes, like [2, 0, 1], got {transpose}."
            )
            transpose = []
        transform = dataclasses.replace(
            fields.transform(entry), transpose=tuple(transpose), cast=entry.flag("cast", False)
        )
        sources.append(Source(name=key, file=file, transform=transform))
    labels = fields.labels(table, path)
    refuse(path, table, _REMEDY, CalibrationError)
    total = _same_length(tuple(sources))
    base = DataSet(name=name, kind="arrays", path=path, total=total, count=total, sources=tuple(sources), labels=labels)
    return _finish(_select(base, table))


def _images(name: str, path: Path, table: Table) -> DataSet:
    inputs = table.tables("inputs")
    if len(inputs) != 1:
        table.problem("inputs", f"must hold one table [inputs.NAME], got {len(inputs)}.")
        inputs = {"": Table(data={}, path="inputs", problems=[])}
    key, entry = next(iter(inputs.items()))
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
    folder = fields.inside(table, "folder", path)
    pattern = table.text("glob", "**/*")
    if pattern.startswith("/") or ".." in Path(pattern).parts:
        table.problem("glob", "must stay below folder.")
    labels = fields.labels(table, path)
    refuse(path, table, _REMEDY, CalibrationError)
    leave_out = frozenset({path, labels.path} if labels else {path})
    files = images.list_images(folder, pattern, leave_out)
    base = DataSet(
        name=name,
        kind="images",
        path=path,
        total=len(files),
        count=len(files),
        sources=(Source(name=key, file=None, transform=transform),),
        images=Images(folder=folder, files=files, resize=resize, size=size, crop=crop, interpolation=interpolation),
        labels=labels,
    )
    return _finish(_select(base, table))


def _python(name: str, path: Path, table: Table) -> DataSet:
    factory = table.text("factory")
    module, _, function = factory.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), function)):
        table.problem("factory", f'must be "package.module:function", got "{factory}".')
    count, start = table.integer("count", least=1), table.integer("start", 0)
    stride = table.integer("stride", 1, least=1)
    if "limit" in table.data:
        table.problem("limit", "cannot be used here; count says how many samples to take.")
    labels = fields.labels(table, path)
    refuse(path, table, _REMEDY, CalibrationError)
    total = start + stride * (count - 1) + 1
    found = DataSet(name=name, kind="python", path=path, total=total, count=count, start=start, stride=stride)
    return _finish(dataclasses.replace(found, factory=factory, labels=labels, metric=fields.metric(table)))


def _random(name: str, path: Path | None, count: int, seed: int) -> DataSet:
    return _finish(DataSet(name=name, kind="random", path=path, total=count, count=count, seed=seed, second_class=True))


def _same_length(sources: tuple[Source, ...]) -> int:
    counts = {str(s.file): arrays.header(s.file).shape[0] for s in sources if s.file is not None}
    if len(set(counts.values())) != 1:
        listed = ", ".join(f"{file}: {count}" for file, count in counts.items())
        raise CalibrationError(
            f"inputs hold different numbers of samples ({listed}).", remedy="Every input needs one value per sample."
        )
    return next(iter(counts.values()))


def _select(found: DataSet, table: Table) -> DataSet:
    start, stride = table.integer("start", 0), table.integer("stride", 1, least=1)
    limit, count = table.integer("limit", 0, least=1), table.integer("count", 0, least=1)
    if limit and count:
        table.problem("limit", "cannot stand beside count: one is at most, the other exactly.")
    available = len(range(start, found.total, stride))
    if not table.problems and available < max(count, 1):
        table.problem("count", f"{available} of {found.total} samples are left, {max(count, 1)} wanted.")
    used = count or (min(limit, available) if limit else available)
    return dataclasses.replace(found, start=start, stride=stride, count=used, metric=fields.metric(table))


def _finish(found: DataSet) -> DataSet:
    """Fill in what the digest covers."""
    files = [s.file.path for s in found.sources if s.file is not None]
    settings: dict[str, object] = {
        name: getattr(found, name) for name in ("kind", "start", "stride", "count", "metric")
    }
    settings["inputs"] = {
        s.name: {**dataclasses.asdict(s.transform), "member": s.file.member if s.file else None} for s in found.sources
    }
    if found.images is not None:
        geometry = dataclasses.asdict(found.images)
        del geometry["folder"]
        settings["images"] = geometry
        files += [found.images.folder / name for name in found.images.files]
    if found.factory is not None and found.path is not None:
        settings["factory"] = found.factory
        beside = found.path.parent.joinpath(*found.factory.partition(":")[0].split(".")).with_suffix(".py")
        files += [beside] if beside.is_file() else []
    if found.second_class:
        settings["seed"] = found.seed
    if found.labels is not None:
        settings["labels"] = found.labels.member
        files.append(found.labels.path)
    return dataclasses.replace(found, settings=settings, files=tuple(dict.fromkeys(files)))


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
