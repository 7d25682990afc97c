"""Keeps docs/cli.md true: writes the help of every command and the exit codes between its markers.

``scripts/docs.py`` rewrites the page; ``scripts/docs.py --check`` only says whether it is up to date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
_BLOCK = re.compile(r"<!-- (help|codes):([^\n]*?)-->\n.*?<!-- end -->", re.DOTALL)


def commands() -> Iterator[tuple[str, click.Context]]:
    """(name as typed, context) of every command, groups before their members."""
    from edgeopt.cli import group

    yield from _walk(group.make_context("edgeopt", [], resilient_parsing=True))


def _walk(context: click.Context) -> Iterator[tuple[str, click.Context]]:
    context.terminal_width = 80
    yield context.command_path, context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            found = context.command.resolve_command(context, [name])[1]
            assert found is not None
            yield from _walk(click.Context(found, info_name=name, parent=context))


def exit_codes() -> list[tuple[int, str, str]]:
    """(code, name, meaning) of everything that ``edgeopt`` can exit with."""
    from edgeopt import errors

    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.EdgeoptError)]
    own = [(c.exit_code, c.__name__, (c.__doc__ or "").split("\n")[0]) for c in classes]
    return sorted(
        [
            (0, "", "Done. Warnings, if any, are on stderr and in the result."),
            (2, "usage", "An option, argument or command is unknown, missing or malformed."),
            (129, "SIGHUP", "The terminal went away; nothing was written."),
            (130, "SIGINT", "Interrupted with Ctrl-C; nothing was written."),
            (141, "SIGPIPE", "Whoever read the output closed it."),
            (143, "SIGTERM", "Terminated; nothing was written."),
            *own,
        ]
    )


def render(page: str) -> str:
    """The page with every marked block written anew.

    Raises:
        SystemExit: a block names no command, or a command has no block.
    """
    helps = {name: context.get_help() for name, context in commands()}
    seen: set[str] = set()

    def block(match: re.Match[str]) -> str:
        kind, name = match[1], match[2].strip()
        seen.add(name)
        if kind == "codes":
            rows = "\n".join(f"| {code} | {name or '-'} | {text} |" for code, name, text in exit_codes())
            return f"<!-- codes: -->\n| code | name | meaning |\n| ---: | --- | --- |\n{rows}\n<!-- end -->"
        if name not in helps:
            raise SystemExit(f'{PAGE}: there is no command "{name}"')
        return f"<!-- help: {name} -->\n```text\n{helps[name]}\n```\n<!-- end -->"

    rendered = _BLOCK.sub(block, page)
    if missing := [name for name in helps if name not in seen]:
        raise SystemExit(f"{PAGE}: no help block for {', '.join(missing)}")
    return rendered


def main(arguments: list[str]) -> int:
    """Rewrite or check the page; 1 when a check finds it out of date."""
    page = PAGE.read_text(encoding="utf-8")
    rendered = render(page)
    if arguments == ["--check"]:
        if rendered != page:
            print(f"{PAGE} is out of date; run scripts/docs.py")
        return int(rendered != page)
    PAGE.write_text(rendered, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
