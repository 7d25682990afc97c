"""The end of every description: which samples are used, and what the digest covers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from edgeopt.calibration.types import DataSet
from edgeopt.tomlfile import Table


def select(found: DataSet, table: Table) -> DataSet:
    """Apply ``start``, ``stride``, ``limit`` and ``count``."""
    start, stride = table.integer("start", 0), table.integer("stride", 1, least=1)
    limit, count = table.integer("limit", 0, least=1), table.integer("count", 0, least=1)
    if limit and count:
        table.problem("limit", "cannot stand beside count: one is at most, the other exactly.")
    available = len(range(start, found.total, stride))
    if not table.problems and available < max(count, 1):
        table.problem("count", f"{available} of {found.total} samples are left, {max(count, 1)} wanted.")
    used = count or (min(limit, available) if limit else available)
    if found.carried and stride > 1:
        table.problem("stride", "must be 1 where an input is carried over: every sample follows the one before.")
    return dataclasses.replace(found, start=start, stride=stride, count=used)


def finish(found: DataSet) -> DataSet:
    """Fill in what the digest covers."""
    files = [s.file.path for s in found.sources if s.file is not None]
    settings: dict[str, object] = {name: getattr(found, name) for name in ("kind", "start", "stride", "count")}
    settings["metric"] = None if found.metric is None else found.metric.plain()
    settings["inputs"] = {
        s.name: {**dataclasses.asdict(s.transform), "member": s.file.member if s.file else None} for s in found.sources
    }
    for source in found.sources:
        if source.folder is not None:
            settings[f"folder of {source.name}"] = _without(source.folder, "folder")
            files += [source.folder.folder / name for name in source.folder.files]
    if found.images is not None:
        settings["images"] = _without(found.images, "folder")
        files += [found.images.folder / name for name in found.images.files]
    if found.tokens is not None:
        settings["tokens"] = _without(found.tokens, "file")
        files.append(found.tokens.file)
    if found.audio is not None:
        settings["audio"] = _without(found.audio, "folder")
        files += [found.audio.folder / name for name in found.audio.files]
    for name in ("constants", "carried"):
        if getattr(found, name):
            settings[name] = [dataclasses.asdict(entry) for entry in getattr(found, name)]
    files += _code(found, settings)
    if found.second_class:
        settings["seed"] = found.seed
    if found.labels is not None:
        settings["labels"] = found.labels.key if found.labels.file is None else found.labels.file.member
        files += [] if found.labels.file is None else [found.labels.file.path]
        folder = found.labels.folder
        files += [] if folder is None else [folder / label_name(name) for name in found.stored]
    if found.groups is not None:
        settings["groups"] = _without(found.groups, "file")
    files += [path for path in (found.groups and found.groups.file, found.charset, found.pairs) if path]
    return dataclasses.replace(found, settings=settings, files=tuple(dict.fromkeys(files)))


def label_name(stored: str) -> str:
    """Relative path of the label of a stored file: the same name, as ``.npy``."""
    return Path(stored).with_suffix(".npy").as_posix()


def _without(described: object, name: str) -> dict[str, object]:
    assert dataclasses.is_dataclass(described)
    assert not isinstance(described, type)
    found = dataclasses.asdict(described)
    del found[name]
    return found


def _code(found: DataSet, settings: dict[str, object]) -> list[Path]:
    """Modules that stand beside the description, of the samples' function and of the metric's."""
    named = [] if found.factory is None else [found.factory]
    if found.factory is not None:
        settings["factory"] = found.factory
    if found.metric is not None and ":" in found.metric.name:
        named += [found.metric.name, *([str(score)] if (score := found.metric.params.get("score")) else [])]
    if found.path is None:
        return []
    paths = [module_beside(found.path, name) for name in named]
    return [path for path in paths if path.is_file()]


def module_beside(description: Path, function: str) -> Path:
    """Where the module of ``package.module:function`` would be, beside the description."""
    return description.parent.joinpath(*function.partition(":")[0].split(".")).with_suffix(".py")
