"""``edgeopt verify``: whether a bundle is whole and computes here what it should."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from edgeopt.cli._options import PATH, custom_ops_option, emit_json, json_option, quiet_option, steps
from edgeopt.console import result_table


@click.command()
@click.argument("bundle", type=PATH)
@custom_ops_option
@json_option
@quiet_option
def command(bundle: Path, custom_ops: Path | None, as_json: bool, quiet: bool) -> None:
    """Check a bundle: its files, its identity, the runtime, and its answers here.

    Exit 6 when the runtime is missing or too old, 7 when the answers are not within the bundle's tolerance, 9 when
    a file is damaged or foreign. `python3 bench.pyz verify` in the bundle does the same on a device.
    """
    from edgeopt.bundle import VerificationError, verify

    try:
        with steps(quiet)("verify"):
            result = verify(bundle, custom_ops=custom_ops)
    except VerificationError as error:
        _show(error.result, as_json)
        raise
    _show(result, as_json)


def _show(result: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        emit_json(result)
        return
    rows = [(check["name"], "ok" if check["ok"] else "FAILED", check["detail"]) for check in result["checks"]]
    result_table(("check", "", "found"), rows, stream=sys.stdout)
