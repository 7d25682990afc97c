"""The project file: what ``edgeopt build`` would be told on the command line, written down once for every target."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

from edgeopt.budget import (
    BUILT_FOR,
    OBJECTIVES,
    QUANTIZE,
    Budget,
    parse_budget,
    parse_decibels,
    parse_errors,
    parse_share,
    parse_size,
)
from edgeopt.bundle import safe_name
from edgeopt.errors import did_you_mean
from edgeopt.loaders import parse_shape
from edgeopt.target import Target, list_targets
from edgeopt.tomlfile import Table, read_toml, refuse

FILE = "edgeopt.toml"
"""Looked for in the working folder."""

SCHEMA = "edgeopt.project/1"

EFFORTS = ("none", "quick", "standard", "release")
INPUT_TYPES = ("uint8",)
INPUT_LAYOUTS = ("NHWC", "NCHW")
INPUT_COLORS = ("rgb", "bgr")

FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""``package.module:function``, a model that is made and not read."""

_REMEDY = "Correct the project file; docs/project-file.md lists every key."
_LATENCY = re.compile(r"p\d+(\.\d+)?")
_PATHS = ("model", "weights", "calib", "eval", "custom_ops", "bundles")
_KEYS = (
    *("name", *_PATHS, "budget", "max_drop", "exclude", "shapes", "effort", "seconds", "threads"),
    *("input", "input_layout", "input_color", "fold_limit", "force_eval", "keep_custom_ops"),
    *("backend", "quantize", "calib_memory", "min_sqnr", "max_error", "max_float_macs", "objective"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What a build is told; None is not stated.

    Attributes:
        bundles: folder in which each bundle gets a folder of its own.
        budget: limits by name, as text: ``{"memory": "64MB"}``.
        shapes: by input name, as text: ``{"x": "1x3x224x224"}``.
        max_error: by output name: ``{"heat": 0.05}``.
    """

    model: str | None = None
    weights: str | None = None
    name: str | None = None
    bundles: str | None = None
    calib: str | None = None
    evaluate: str | None = None
    budget: Mapping[str, str] | None = None
    max_drop: str | None = None
    exclude: tuple[str, ...] | None = None
    shapes: Mapping[str, str] | None = None
    effort: str | None = None
    seconds: float | None = None
    threads: int | None = None
    input_type: str | None = None
    input_layout: str | None = None
    input_color: str | None = None
    fold_limit: str | None = None
    force_eval: bool | None = None
    custom_ops: str | None = None
    keep_custom_ops: bool | None = None
    backend: str | None = None
    quantize: str | None = None
    calib_memory: str | None = None
    min_sqnr: str | None = None
    max_error: Mapping[str, float] | None = None
    max_float_macs: str | None = None
    objective: str | None = None

    def over(self, below: Settings) -> Settings:
        """These settings where they are stated, ``below`` elsewhere; budgets and shapes are merged by name.

        A limit on one latency percentile takes the place of a limit on another.
        """
        stated = {key: value for key, value in vars(self).items() if value is not None}
        if self.budget is not None and below.budget is not None:
            timed = any(_LATENCY.fullmatch(key) for key in self.budget)
            kept = {k: v for k, v in below.budget.items() if not (timed and _LATENCY.fullmatch(k))}
            stated["budget"] = {**kept, **self.budget}
        if self.shapes is not None and below.shapes is not None:
            stated["shapes"] = {**below.shapes, **self.shapes}
        if self.max_error is not None and below.max_error is not None:
            stated["max_error"] = {**below.max_error, **self.max_error}
        return dataclasses.replace(below, **stated)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Project:
    """A project file: settings for every target, and what single targets say instead.

    Attributes:
        target: what ``--target`` is when it is not given.
        overrides: settings by the name or alias of a target, as written.
    """

    path: Path
    target: str | None
    settings: Settings
    overrides: Mapping[str, Settings]

    def for_target(self, target: Target) -> Settings:
        """The settings of one target."""
        found = self.settings
        for name, settings in self.overrides.items():
            if name in (target.name, *target.aliases):
                found = settings.over(found)
        return found


def find_project(folder: Path) -> Path | None:
    """The project file of a folder."""
    path = folder / FILE
    return path if path.exists() else None


def read_project(path: Path) -> Project:
    """Read a project file; relative paths in it start from its folder.

    Raises:
        TargetError: it cannot be read, or has problems; all of them are named.
    """
    table = read_toml(path)
    table.only(("schema", "target", "targets", *_KEYS))
    schema = table.data.get("schema")
    if isinstance(schema, str) and schema.startswith("edgeopt.project/") and schema != SCHEMA:
        table.problem("schema", f'"{schema}" is of a newer edgeopt; this one reads "{SCHEMA}".')
    else:
        table.text("schema", choices=(SCHEMA,))
    target = table.text("target") if "target" in table.data else None
    settings = _settings(table, path.parent)
    overrides = {}
    names = [word for info in list_targets() for word in (info.name, *info.aliases)] if "targets" in table.data else []
    for name, entry in table.tables("targets").items():
        if name not in names:
            table.problem(f"targets.{name}", f"unknown target.{did_you_mean(name, sorted(names))}")
        entry.only(_KEYS, " for one target")
        overrides[name] = _settings(entry, path.parent)
    refuse(path, table, _REMEDY)
    return Project(path=path, target=target, settings=settings, overrides=overrides)


def _settings(table: Table, folder: Path) -> Settings:
    def text(key: str, choices: tuple[str, ...] = ()) -> str | None:
        return table.text(key, choices=choices) or None if key in table.data else None

    def placed(key: str) -> str | None:
        value = text(key)
        if (
            not value
            or (key == "model" and FACTORY.fullmatch(value))
            or (key in ("calib", "eval") and value == "random")
        ):
            return value
        return str(folder / value)

    def flag(key: str) -> bool | None:
        return table.flag(key) if key in table.data else None

    budget = _budget(table)
    found = Settings(
        model=placed("model"),
        weights=placed("weights"),
        name=_name(table, text("name")),
        bundles=placed("bundles"),
        calib=placed("calib"),
        evaluate=placed("eval"),
        budget=budget,
        max_drop=text("max_drop"),
        exclude=table.texts("exclude") if "exclude" in table.data else None,
        shapes=_shapes(table),
        effort=text("effort", EFFORTS),
        seconds=_seconds(table),
        threads=table.integer("threads", least=1, most=1024) if "threads" in table.data else None,
        input_type=text("input", INPUT_TYPES),
        input_layout=text("input_layout", INPUT_LAYOUTS),
        input_color=text("input_color", INPUT_COLORS),
        fold_limit=text("fold_limit"),
        force_eval=flag("force_eval"),
        custom_ops=placed("custom_ops"),
        keep_custom_ops=flag("keep_custom_ops"),
        backend=text("backend", BUILT_FOR),
        quantize=text("quantize", QUANTIZE),
        calib_memory=text("calib_memory"),
        min_sqnr=_number_or_text(table, "min_sqnr"),
        max_error=_errors(table),
        max_float_macs=text("max_float_macs"),
        objective=text("objective", OBJECTIVES),
    )
    for check in (
        lambda: budget_of(found),
        lambda: found.calib_memory and parse_size("calib_memory", found.calib_memory),
        lambda: found.max_float_macs and parse_share("max_float_macs", found.max_float_macs),
        lambda: found.fold_limit and parse_size("fold_limit", found.fold_limit),
        lambda: [parse_shape(f"{name}={shape}") for name, shape in (found.shapes or {}).items()],
    ):
        try:
            check()
        except ValueError as error:  # it names the key
            table.problems.append(f"{table.path}.{error}" if table.path else str(error))
    return found


def check_name(name: str) -> str:
    """The name of a bundle, which is a part of the names of its folder and files.

    Raises:
        ValueError: it is no plain name.
    """
    if name != safe_name(name):
        raise ValueError(f'"{name}" cannot name a bundle; write "{safe_name(name)}".')
    return name


def _name(table: Table, name: str | None) -> str | None:
    try:
        return None if name is None else check_name(name)
    except ValueError as error:
        table.problem("name", str(error))
        return None


def _seconds(table: Table) -> float | None:
    found = table.numbers("seconds")
    if found and (len(found) > 1 or found[0] < 1):
        table.problem("seconds", "must be a number, 1 or more.")
        return None
    return found[0] if found else None


def budget_of(settings: Settings) -> Budget:
    """The budget of settings.

    Raises:
        ValueError: a limit is malformed.
    """
    text = ",".join(f"{key}={value}" for key, value in (settings.budget or {}).items())
    return dataclasses.replace(
        parse_budget(text or None, settings.max_drop),
        min_sqnr_db=None if settings.min_sqnr is None else parse_decibels("min_sqnr", settings.min_sqnr),
        max_error=parse_errors(
            "max_error", [f"{name}={value!r}" for name, value in (settings.max_error or {}).items()]
        ),
    )


def _budget(table: Table) -> Mapping[str, str] | None:
    if "budget" not in table.data:
        return None
    limits = table.table("budget")
    return {key: limits.text(key) for key in limits.data}


def _number_or_text(table: Table, key: str) -> str | None:
    """``25`` or ``"25dB"``."""
    value = table.data.get(key)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value}"
    return table.text(key) or None if key in table.data else None


def _errors(table: Table) -> Mapping[str, float] | None:
    """Numbers by name of an output."""
    if "max_error" not in table.data:
        return None
    entries = table.table("max_error")
    found = {}
    for key in entries.data:
        numbers = entries.numbers(key)
        if len(numbers) == 1 and numbers[0] > 0:
            found[key] = numbers[0]
        elif numbers:
            entries.problem(key, "must be one positive number.")
    return found


def _shapes(table: Table) -> Mapping[str, str] | None:
    """Shapes as ``"1x3x224x224"`` or ``[1, 3, 224, 224]``."""
    if "shapes" not in table.data:
        return None
    shapes, found = table.table("shapes"), {}
    for key, value in shapes.data.items():
        if (
            isinstance(value, list)
            and value
            and all(isinstance(d, int | str) and not isinstance(d, bool) for d in value)
        ):
            found[key] = "x".join(map(str, value))
        else:
            found[key] = shapes.text(key)
    return found
