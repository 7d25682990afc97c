"""Reads from a description what judges: the metric and its parameters, the labels, the groups of samples."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgeopt.calibration.paths import inside
from edgeopt.calibration.types import ArrayFile, DataSet, Groups, Labels
from edgeopt.errors import did_you_mean
from edgeopt.metrics import NAMES, MetricSpec, named
from edgeopt.tomlfile import Table

TEXT_SUFFIXES = (".csv", ".txt")
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_KEYS: Mapping[str, tuple[str, ...]] = {
    "top": ("k",),
    "accuracy": ("threshold",),
    "f1": ("average", "threshold", "positive"),
    "auc": ("positive", "threshold"),
    "cer": ("blank", "charset", "axes"),
    "pearson": ("pairs", "pool", "mask"),
    "spearman": ("pairs", "pool", "mask"),
    "miou": ("layout", "threshold", "ignore"),
}
_OWN = ("better", "unit", "score", "labels")


def is_function(text: str) -> bool:
    """Whether a text is ``package.module:function``."""
    return _FUNCTION.fullmatch(text) is not None


def judging(table: Table, toml: Path) -> dict[str, Any]:
    """The fields of a DataSet about metric, labels and groups; problems go into the table."""
    found: dict[str, Any] = {"metric": None, "labels": None, "groups": _groups(table, toml)}
    if "metric" in table.data:
        found["metric"] = _metric(table, toml, found)
    spec = found["metric"]
    if "labels" in table.data:
        found["labels"] = _labels(table, toml)
        if spec is None and "metric" not in table.data:
            table.problem("metric", 'is missing beside labels; add metric = "top1".')
        elif spec is not None and spec.labels == "none":
            table.problem("labels", f"has no use: {spec.name} takes none.")
    elif spec is not None and spec.labels != "none":
        table.problem("metric", "needs labels.")
    return found


def _metric(table: Table, toml: Path, found: dict[str, Any]) -> MetricSpec | None:
    if isinstance(table.data["metric"], dict):
        entry = table.table("metric")
        name = entry.text("name", "") or entry.text("function")
        if "name" in entry.data and "function" in entry.data:
            entry.problem("function", "cannot stand beside name.")
    else:
        entry, name = Table(data={}, path="metric", problems=table.problems), table.text("metric")
    if not name:
        return None
    if is_function(name):
        entry.only(("name", "function", *_OWN))
        return MetricSpec(name=name, params=_own(entry))
    try:
        spec = named(f"top{entry.integer('k', 5, least=1, most=9999)}" if name == "top" else name)
    except ValueError:
        known = ", ".join(NAMES)
        table.problem("metric", f'unknown value "{name}"; known: {known}, package.module:function.{_near(name)}')
        return None
    entry.only(("name", "output", *_KEYS.get("top" if name == "top" else spec.name, ())))
    params = _params(entry, spec.name)
    for key, suffix in (("charset", ".txt"), ("pairs", ".csv")):
        if key in params:
            found[key] = inside(entry, key, toml)
            params[key] = True
            if found[key].suffix != suffix:
                entry.problem(key, f'"{found[key].name}" is no {suffix} file.')
    if spec.name in ("pearson", "spearman") and "pairs" not in params and {"pool", "mask"} & params.keys():
        entry.problem("pairs", "is missing; pool and mask are for pairs of samples.")
    return MetricSpec(name=spec.name, params=params)


def _near(name: str) -> str:
    return did_you_mean(name, NAMES)


def _params(entry: Table, name: str) -> dict[str, Any]:
    """Parameters that are given, checked; defaults are left to the metric."""
    found: dict[str, Any] = {}
    for key in entry.data:
        match key:
            case "threshold":
                numbers = entry.numbers(key)
                found[key] = numbers[0] if numbers else 0.5
            case "positive" | "blank":
                found[key] = entry.integer(key, 0, most=1 << 20)
            case "ignore":
                found[key] = entry.integer(key, 255, least=-(1 << 31), most=1 << 31)
            case "average":
                found[key] = entry.text(key, choices=("binary", "macro"))
            case "axes":
                found[key] = entry.text(key, choices=("BTC", "TBC"))
            case "pool":
                found[key] = entry.text(key, choices=("none", "mean", "first"))
            case "layout":
                found[key] = entry.text(key, choices=("NCHW", "NHWC"))
            case "output" | "mask" | "charset" | "pairs":
                found[key] = entry.text(key)
    return found


def _own(entry: Table) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "better" in entry.data:
        found["better"] = entry.text("better", choices=("higher", "lower"))
    if "unit" in entry.data:
        found["unit"] = entry.text("unit", choices=("share", "index", "number"))
    if "labels" in entry.data:
        found["labels"] = entry.flag("labels")
    if "score" in entry.data:
        found["score"] = entry.text("score")
        if not is_function(found["score"]):
            entry.problem("score", f'must be "package.module:function", got "{found["score"]}".')
    return found


def _labels(table: Table, toml: Path) -> Labels | None:
    """Labels as ``"file.npy"``, ``"file.csv"``, ``{ file, member }``, ``{ key }`` or ``{ folder }``."""
    if isinstance(table.data["labels"], str):
        path = inside(table, "labels", toml)
        return Labels(file=_label_file(table, "labels", path, "labels"))
    entry = table.table("labels")
    entry.only(("file", "member", "key", "folder"))
    ways = [key for key in ("file", "key", "folder") if key in entry.data]
    if len(ways) > 1:
        entry.problem(ways[1], f"cannot stand beside {ways[0]}.")
        return None
    if ways == ["key"]:
        return Labels(key=entry.text("key"))
    if ways == ["folder"]:
        return Labels(folder=inside(entry, "folder", toml))
    path = inside(entry, "file", toml)
    return Labels(file=_label_file(entry, "file", path, entry.text("member", "labels")))


def _label_file(table: Table, key: str, path: Path, member: str) -> ArrayFile:
    if path.suffix == ".npz":
        return ArrayFile(path=path, member=member)
    if path.suffix not in (".npy", *TEXT_SUFFIXES):
        where = "labels" if key == "file" and not table.path.endswith("labels") else key
        table.problem(where, f'"{path.name}" is none of .npy, .npz, .csv, .txt.')
    return ArrayFile(path=path)


def _groups(table: Table, toml: Path) -> Groups | None:
    """``{ every = 20 }``, ``{ by = "folder" }``, or a text file with a name for every sample."""
    if "groups" not in table.data:
        return None
    if isinstance(table.data["groups"], str):
        path = inside(table, "groups", toml)
        if path.suffix not in TEXT_SUFFIXES:
            table.problem("groups", f'"{path.name}" is none of .csv, .txt.')
        return Groups(file=path)
    entry = table.table("groups")
    entry.only(("every", "by"))
    if ("every" in entry.data) == ("by" in entry.data):
        entry.problem("every", 'give either every = 20 or by = "folder".')
    if "by" in entry.data:
        return Groups(folder=entry.text("by", choices=("folder",)) == "folder")
    return Groups(every=entry.integer("every", 1, least=1))


def misfits(table: Table, found: DataSet) -> None:
    """Record what of labels and groups the kind of the set does not allow."""
    labels, groups = found.labels, found.groups
    if labels is not None and labels.key is not None and found.tokens is None:
        table.problem("labels", "a key is for JSON lines.")
    if labels is not None and labels.folder is not None and not found.stored:
        table.problem("labels", "a folder of labels is for samples that are files.")
    if groups is not None and groups.folder and not found.stored:
        table.problem("groups", 'by = "folder" is for samples that are files.')
    if groups is not None and found.audio is not None and not groups.folder:
        table.problem("groups", 'the windows of one file belong together already; by = "folder" joins files.')
