"""``edgeopt targets``: list, show and check device profiles."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgeopt.cli._group import SuggestingGroup
from edgeopt.cli._options import PATH, emit_json, emit_path, emit_text, json_option
from edgeopt.cli._settings import known_targets
from edgeopt.console import fields, result_table

if TYPE_CHECKING:
    from edgeopt.target import Target


@click.group(cls=SuggestingGroup, name="targets")
def command() -> None:
    """List, show and check device profiles.

    A profile is a TOML file; docs/add-a-target.md lists its keys.
    """


@command.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """List the profiles that can be named with --target."""
    from edgeopt.target import list_targets, share_dir

    infos = list_targets()
    own = {i.name: str(i.path) for i in infos if i.path is not None and i.path.parent != share_dir("targets")}
    if as_json:
        known = [{"name": i.name, "aliases": list(i.aliases), "description": i.description} for i in infos]
        emit_json([entry | {"path": own.get(str(entry["name"]))} for entry in known])
        return
    rows = [
        (i.name, ", ".join(i.aliases), i.description + (f" ({own[i.name]})" if i.name in own else "")) for i in infos
    ]
    result_table(("name", "also", "description"), rows, stream=sys.stdout)


@command.command("show")
@click.argument("name", shell_complete=known_targets)
@json_option
def show_command(name: str, as_json: bool) -> None:
    """Show the profile NAME, or that of a .toml file, as it is used."""
    from edgeopt.target import load_target, target_dict, wheel

    target = load_target(name)
    wheels = {backend: found for backend in target.backends if (found := wheel(target, backend)) is not None}
    described = target_dict(target) | {"last_wheels": wheels, "built_here_for": _built_for(target)}
    if as_json:
        emit_json(described)
        return
    fields(list(_flat(described)), stream=sys.stdout)


@command.command("check")
@click.argument("file", type=PATH)
@json_option
def check_command(file: Path, as_json: bool) -> None:
    """Check a profile and name every problem in it; exit 4 when there is one."""
    from edgeopt.errors import TargetError
    from edgeopt.target import check_target

    problems = check_target(file)
    if as_json:
        emit_json({"file": str(file), "ok": not problems, "problems": problems})
    if problems:
        several = f"{len(problems)} problems:\n  " if len(problems) > 1 else ""
        raise TargetError(
            f"{file}: {several}" + "\n  ".join(problems),
            remedy="Correct the profile; docs/add-a-target.md lists every key.",
        )
    if not as_json:
        emit_text(f"{file}: ok")


@command.command("probe")
@click.option("--out", "-o", type=PATH, help="Write the profile there instead of to stdout; no file is overwritten.")
@click.option("--name", help="Name of the profile.  [default: the board's]")
def probe_command(out: Path | None, name: str | None) -> None:
    """Describe this machine as a profile.

    On a device without edgeopt, `python3 bench.pyz probe` of any bundle prints the same.
    """
    from edgeopt.errors import TargetError
    from runtime_bench.profile import profile, slug

    if name is not None and name != slug(name):
        raise click.BadParameter(f'"{name}" cannot name a target; write "{slug(name)}".', param_hint="--name")
    text = profile(name=name)
    if out is None:
        emit_text(text.rstrip("\n"))
        return
    try:
        with out.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise TargetError(
            f"{out} cannot be written: {error.strerror}", remedy="Give a path that does not exist yet."
        ) from error
    emit_path(out)


def _built_for(target: Target) -> str:
    """Which of the target's backends a build here takes, and why not one before it."""
    from edgeopt.errors import ToolchainError
    from edgeopt.pipeline.choose import choose_backend

    try:
        choice = choose_backend(target)
    except ToolchainError as error:
        return f"none: {error.message}"
    return choice.name + (f" ({choice.reason})" if choice.reason else "")


def _flat(described: dict[str, object]) -> Iterator[tuple[str, str]]:
    """The profile as ``key  value`` rows; a fact says where it comes from and whether it was verified."""
    for key, value in described.items():
        if isinstance(value, dict):
            for inner, item in value.items():
                yield f"{key}.{inner}", _text(item)
        elif key == "notes" and isinstance(value, (list, tuple)):
            yield from (("note", str(note)) for note in value)  # sentences, one a line
        else:
            yield key, _text(value)


def _text(value: object) -> str:
    if isinstance(value, dict) and "value" in value:
        return f"{value['value']}  ({'verified' if value.get('verified') else 'not verified'}: {value.get('source')})"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "-"
    return str(value)
