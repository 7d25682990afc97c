"""Options that several commands share, and how a result reaches stdout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from edgeopt.console import Step, printable, progress, silent
from edgeopt.errors import EdgeoptError

PATH = click.Path(path_type=Path, readable=False)
"""A path that the command itself looks at: a model that is missing or not readable is exit 3, not a usage error."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="No progress on stderr; errors and warnings stay.")
effort_option = click.option(
    "--effort",
    type=click.Choice(["quick", "standard", "release"]),
    default="quick",
    show_default=True,
    help="How long to measure.",
)
threads_option = click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    help="Threads of the runtime.  [default: the target's; of a bare model: all]",
)
shape_option = click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME=1x3x224x224",
    help="Fix the shape of an input, or open it: NAME=Nx3x224x224; a type may follow, :int64. Repeatable.",
)


custom_ops_option = click.option(
    "--custom-ops",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="LIBRARY",
    help="Shared library with the model's own operators, for this machine; its code runs.",
)


def steps(quiet: bool) -> Step:
    """Progress on stderr, or none."""
    return silent if quiet else progress()


def parse_shapes(texts: Sequence[str], option: str = "--shape") -> dict[str, tuple[int, ...]]:
    """Read ``name=1x3x224x224`` values.

    Raises:
        click.BadParameter: a value is not of that form, or a name comes twice.
    """
    from edgeopt.loaders import parse_shape

    shapes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        try:
            name, shape = parse_shape(text)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint=option) from error
        if name in shapes:
            raise click.BadParameter(f'more than one shape for "{name}"', param_hint=option)
        shapes[name] = shape
    return shapes


def emit_json(value: Any) -> None:
    """Print ``value`` on stdout as JSON that any locale can carry; nan and infinity are refused."""
    _echo(json.dumps(value, indent=2, ensure_ascii=True, allow_nan=False))


def emit_path(path: Path) -> None:
    """Print a path on stdout, byte for byte."""
    _echo(str(path))


def emit_text(text: str) -> None:
    """Print text for people on stdout, whatever characters names in files hold."""
    _echo("\n".join(printable(line) for line in text.split("\n")))


def _echo(text: str) -> None:
    """Print on stdout; a full disk behind it is named as what it is."""
    try:
        click.echo(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise EdgeoptError(
            f"the result could not be written to standard output: {error.strerror}",
            remedy="Send it elsewhere, or free some space.",
        ) from error


def warn(text: str) -> None:
    """Print a warning on stderr."""
    click.echo(f"warning: {printable(text)}", err=True)
