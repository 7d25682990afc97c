"""Where profiles lie, how one is found by name, and what one takes from another."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edgeopt import host
from edgeopt.errors import TargetError, did_you_mean
from edgeopt.target.machine import NAME, host_profile, host_target
from edgeopt.target.parse import parse, parts
from edgeopt.target.share import share_dir
from edgeopt.target.types import Target, TargetInfo
from edgeopt.target.wheels import wheel
from edgeopt.tomlfile import Table, read_toml, refuse

VARIABLE = "EDGEOPT_TARGETS"
"""Environment variable: folders with profiles of one's own, joined as in PATH; an earlier one wins."""

DEEPEST = 8
"""Profiles in one chain of ``extends``."""

_MERGED = ("int8", "runtime", "facts")
"""Tables of which a profile may replace single keys; everything else that it states replaces the whole value."""

_OWN = ("schema", "name", "aliases", "description")
"""Keys that a profile never takes from another one."""

_REMEDY = "Correct the profile; docs/add-a-target.md lists every key."


def list_targets() -> tuple[TargetInfo, ...]:
    """Every target that has a name here, and ``host``, sorted by name. One that cannot be used says why.

    Raises:
        TargetError: ``EDGEOPT_TARGETS`` names something that is no folder, or two profiles of one folder share a name.
    """
    machine = TargetInfo(name=NAME, aliases=(), description="this machine, probed when it is named", path=None)
    found = {machine.name: machine}
    for entry in _entries():
        if entry.name in found:
            continue  # an earlier folder has it
        problems = _problems(entry.path)
        unusable = f"cannot be used: {problems[0]}" if problems else ""
        found[entry.name] = dataclasses.replace(entry, description=unusable or entry.description)
    return tuple(sorted(found.values(), key=lambda info: info.name))


def load_target(name_or_path: str) -> Target:
    """The target of a name, an alias, or a path (anything with a slash or ending in ``.toml``).

    Raises:
        TargetError: unknown name, unreadable file, or a profile with problems; all of them are named.
    """
    if _is_path(name_or_path):
        return _load(Path(name_or_path))
    if name_or_path == NAME:
        return host_target(host.probe())
    found = _named(name_or_path)
    if found is not None:
        return _load(found)
    names = sorted({NAME, *(name for entry in _entries() for name in (entry.name, *entry.aliases))})
    raise TargetError(
        f'unknown target "{name_or_path}".{did_you_mean(name_or_path.lower(), names)}',
        remedy="`edgeopt targets list` shows all of them; or give the path of a .toml file.",
    )


def check_target(path: Path) -> list[str]:
    """Every problem of a profile, as sentences that name the key; empty when it can be used.

    Raises:
        TargetError: the file cannot be read or is not TOML.
    """
    return _read(path)[1].problems


def _load(path: Path) -> Target:
    target, table = _read(path)
    refuse(path, table, _REMEDY)
    return target


def _read(path: Path) -> tuple[Target, Table]:
    table = _extended(path, read_toml(path), (path,))
    unresolved = list(table.problems)
    target = parse(table)
    if unresolved:  # what parse misses would have come from the profile that could not be extended
        table.problems[:] = unresolved
    for backend, oldest in target.runtime.items():
        newest = wheel(target, backend)
        if newest is not None and parts(oldest) > parts(newest):
            table.problem(
                f"runtime.{backend}",
                f"{oldest} is newer than the last wheel for Python {target.facts['python'].value}, {newest}.",
            )
    return target, table


def _problems(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        return check_target(path)
    except TargetError as error:
        return [error.message]


def _is_path(text: str) -> bool:
    return "/" in text or "\\" in text or text.endswith(".toml")


def _folders() -> list[Path]:
    """Folders of one's own first, then the shipped one."""
    found = []
    for text in os.environ.get(VARIABLE, "").split(os.pathsep):
        if not text:
            continue
        folder = Path(text)
        if not folder.is_dir():
            raise TargetError(f"{VARIABLE}: {folder} is no folder", remedy="Name a folder of .toml files, or unset it.")
        found.append(folder)
    return [*found, share_dir("targets")]


def _entries() -> Iterator[TargetInfo]:
    """Name, aliases and description of every profile, in the order in which folders are searched, unchecked."""
    for folder in _folders():
        taken: dict[str, Path] = {}
        for path in sorted(folder.glob("*.toml")):
            if path.name.startswith("_"):
                continue
            try:
                data = read_toml(path).data
            except TargetError:
                data = {}
            aliases = data.get("aliases")
            words = [data.get("name"), *(aliases if isinstance(aliases, list) else ())]
            name, *others = [word for word in words if isinstance(word, str) and word] or [path.stem]
            for word in (name, *others):
                if word in taken:
                    raise TargetError(
                        f'two profiles are called "{word}": {taken[word]} and {path}', remedy="Rename one of them."
                    )
                taken[word] = path
            description = data.get("description")
            yield TargetInfo(
                name=name,
                aliases=tuple(others),
                description=description if isinstance(description, str) else "",
                path=path,
            )


def _named(word: str) -> Path | None:
    """The profile of a name, or else of an alias; a folder of one's own before the shipped one."""
    entries = list(_entries())
    called = [entry.path for entry in entries if word == entry.name]
    return next(iter([*called, *(entry.path for entry in entries if word in entry.aliases)]), None)


def _extended(path: Path, table: Table, chain: tuple[Path, ...]) -> Table:
    """``table`` over the profile that it extends; problems of finding that one are the table's."""
    if "extends" not in table.data:
        return table
    text = table.text("extends")
    stated = {key: value for key, value in table.data.items() if key != "extends"}
    if text == NAME:
        return Table(data=_over(host_profile(host.probe()), stated), problems=table.problems)
    base = _base(path, text, table, chain) if text else None
    table = dataclasses.replace(table, data=stated)
    if base is None:
        return table
    if any(_same(base, other) for other in chain):
        table.problem("extends", f'"{text}" leads back to {path.name}.')
        return table
    if len(chain) >= DEEPEST:
        table.problem("extends", f"more than {DEEPEST} profiles extend one another.")
        return table
    below = _extended(base, read_toml(base), (*chain, base))
    table.problems.extend(f"extends {text}: {problem}" for problem in below.problems)
    inherited = {key: value for key, value in below.data.items() if key not in (*_OWN, "extends")}
    return Table(data=_over(inherited, stated), problems=table.problems)


def _over(inherited: Mapping[str, Any], stated: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**inherited, **stated}
    for key in _MERGED:
        under, over = inherited.get(key), stated.get(key)
        if isinstance(under, dict) and isinstance(over, dict):
            merged[key] = {**under, **over}
    return merged


def _base(path: Path, text: str, table: Table, chain: tuple[Path, ...]) -> Path | None:
    """The file that ``extends`` means: a name that is known here, or a path inside the profile's own folder.

    A profile that hides another one of its name extends that one by the name.
    """
    if not _is_path(text):
        found = [entry.path for entry in _entries() if entry.path and text in (entry.name, *entry.aliases)]
        fresh = next((other for other in found if not any(_same(other, seen) for seen in chain)), None)
        if fresh is None and found:
            table.problem("extends", f'"{text}" leads back to {path.name}.')
        elif fresh is None:
            names = sorted({NAME, *(name for entry in _entries() for name in (entry.name, *entry.aliases))})
            table.problem("extends", f'unknown target "{text}".{did_you_mean(text.lower(), names)}')
        return fresh
    relative = Path(text)
    if relative.is_absolute() or ".." in relative.parts:
        table.problem("extends", f'"{text}" leads out of the profile\'s folder; put both into one, or extend a name.')
        return None
    return path.parent / relative


def _same(a: Path, b: Path) -> bool:
    try:
        return a.samefile(b)
    except OSError:
        return False
