"""The ``edgeopt`` command. Importing it is cheap: a subcommand's module is imported when it is asked for."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from edgeopt import __version__
from edgeopt.cli._group import LazyGroup
from edgeopt.cli._run import run, stop_signals

EXIT_CODES = """\
\b
Exit codes:
  0  done                          6  a runtime or tool is missing
  1  any other error               7  the quality floor was missed
  2  wrong usage                   8  a measurement failed
  3  the model cannot be used      9  the bundle is damaged or foreign
  4  target or data set is wrong  10  a comparison crossed its gate
  5  the budget cannot be met    130, 143  interrupted, terminated"""

COMMANDS = {
    "build": ("edgeopt.cli.build:command", "Optimize a model for a device and write a verified, measured bundle."),
    "plan": ("edgeopt.cli.plan:command", "Show what a build would try, and why; nothing is run."),
    "init": ("edgeopt.cli.init:command", "Write a commented project file for a model."),
    "verify": ("edgeopt.cli.verify:command", "Check a bundle: its files, its contract and its answers here."),
    "bench": ("edgeopt.cli.bench:command", "Measure a bundle or an ONNX model on this machine."),
    "compare": ("edgeopt.cli.compare:command", "Compare two bundles, models or measurements; gate a release on it."),
    "inspect": ("edgeopt.cli.inspect:command", "Show what a model or a bundle holds and what it costs."),
    "targets": ("edgeopt.cli.targets:command", "List, show and check device profiles."),
    "completion": ("edgeopt.cli.completion:command", "Print the script that completes commands in a shell."),
    "doctor": ("edgeopt.cli.doctor:command", "Say what this machine can build and measure, and what is missing."),
}
"""Every subcommand: where it is, and its line in the help."""


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Results go to stdout, progress to stderr.\n\n" + EXIT_CODES,
)
@click.version_option(__version__, prog_name="edgeopt")
def group() -> None:
    """Take a trained model to a device: optimize, verify, measure, bundle."""


def main() -> NoReturn:
    """Run the command line and exit; the only place that does."""
    stop_signals()
    sys.exit(run(group, sys.argv[1:]))
