"""``edgeopt completion``: the script that lets a shell complete commands, options and targets."""

from __future__ import annotations

import click

from edgeopt.cli._options import emit_text

SHELLS = {
    "bash": 'eval "$(edgeopt completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(edgeopt completion zsh)" in ~/.zshrc',
    "fish": "edgeopt completion fish > ~/.config/fish/completions/edgeopt.fish",
}


@click.command(epilog="\b\nTo keep it:\n" + "\n".join(f"  {line}" for line in SHELLS.values()))
@click.argument("shell", type=click.Choice(list(SHELLS)))
def command(shell: str) -> None:
    """Print the script that completes commands, options and targets in SHELL."""
    from click.shell_completion import get_completion_class

    from edgeopt.cli import group

    found = get_completion_class(shell)
    assert found is not None
    emit_text(found(group, {}, "edgeopt", "_EDGEOPT_COMPLETE").source().rstrip("\n"))
