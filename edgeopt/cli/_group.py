"""Click groups that suggest the command that was meant and import a subcommand only when it runs."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from edgeopt.errors import did_you_mean

DEBUG = "edgeopt.debug"
"""Key in ``Context.meta``, which a context shares with its parents: ``--debug`` was given."""


def _remember(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[DEBUG] = True


def _debug_option() -> click.Option:
    return click.Option(
        ["--debug"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_remember,
        help="Show the traceback of an error (also: EDGEOPT_DEBUG=1).",
    )


class SuggestingGroup(click.Group):
    """A group whose unknown commands are answered with the nearest known one; takes ``--debug`` anywhere."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(_debug_option())

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand; a usage error names the nearest one."""
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-"):
            hint = did_you_mean(args[0], known) or f" Commands: {', '.join(known)}."
            raise click.UsageError(f'No such command "{args[0]}".{hint}', ctx)
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not any(p.name == "debug" for p in command.params):
            command.params.append(_debug_option())
        return name, command, rest


class LazyGroup(SuggestingGroup):
    """A group whose subcommands stand in a table: name -> ("module:attribute", line in the help)."""

    def __init__(self, *args: Any, table: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import the module of one subcommand."""
        if name not in self.table:
            return None
        module, _, attribute = self.table[name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the subcommands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self.table.items()])
