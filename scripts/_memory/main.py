"""The command: rows, fit, table."""

from __future__ import annotations

import argparse
import importlib
import json
import os
from pathlib import Path
from typing import Any

from _memory import fit, rows
from edgeopt.backends.registry import BACKENDS
from edgeopt.errors import EdgeoptError

ALLOWED, FLOOR = 0.15, 600_000
"""What a prediction may miss: a share, or so many bytes where that is more (models of less than 4 MB): pages of the
runtime's own code that a network reads first are a matter of chance, and half of what the smallest ones need."""


def main(argv: list[str], doc: str) -> int:
    """Print the fitted constants and the table; 1 when a network that was not fitted on is missed by more."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--backend", choices=sorted(BACKENDS))
    parser.add_argument("--cache", type=Path, default=Path(os.environ.get("EDGEOPT_ZOO", "~/.cache/edgeopt/zoo")))
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--fit-only", action="store_true")
    args = parser.parse_args(argv)
    if args.fit_only and args.rows is None:
        parser.error("--fit-only needs --rows")
    found = json.loads(args.rows.read_text()) if args.fit_only else _collected(args)
    if args.rows is not None and not args.fit_only:
        args.rows.write_text(json.dumps(found, indent=1))
    backends = [args.backend] if args.backend else sorted({row["backend"] for row in found})
    missed = [report(backend, [row for row in found if row["backend"] == backend]) for backend in backends]
    return int(any(missed))


def _collected(args: argparse.Namespace) -> list[dict[str, Any]]:
    models = args.cache.expanduser() / "models"
    folders = sorted(folder for folder in models.iterdir() if (folder / "build.txt").is_file())
    folders = [folder for folder in folders if not args.names or folder.name in args.names]
    found: list[dict[str, Any]] = []
    for name in [args.backend] if args.backend else BACKENDS:
        for folder in folders:
            rows.told(f"{name}: {folder.name}")
            try:
                model_of = importlib.import_module(f"edgeopt.backends.{name}.memory")
                found += rows.collect(folder, BACKENDS[name], model_of)
            except EdgeoptError as error:
                rows.told(f"  {error.message}")
    return found


def report(backend: str, found: list[dict[str, Any]]) -> int:
    """Print one backend's constants and table; how many predictions on networks not fitted on miss by too much."""
    known = [row for row in found if row["simulated"] is not None]
    names = sorted({row["network"] for row in known})
    fitted = set(names[::2])
    if not known:
        print(f"{backend}: nothing to fit on")
        return 0
    values = fit.constants([row for row in known if row["network"] in fitted], backend)
    print(f"{backend}: {', '.join(f'{value:,.0f}' for value in values)}\n")
    print(f"{'network':<26}{'precision':<10}{'measured':>10}{'predicted':>11}{'error':>9}")
    missed = 0
    for row in sorted(known, key=lambda row: (row["network"] in fitted, row["network"], row["precision"])):
        total = row["simulated"] + sum(value * count for value, count in zip(values, row["counts"], strict=True))
        error = total - row["measured"]
        bad = abs(error) > max(ALLOWED * row["measured"], FLOOR)
        kind = "fitted on" if row["network"] in fitted else "MISSED" if bad else ""
        missed += kind == "MISSED"
        size, guess = f"{row['measured'] / 1e6:.2f} MB", f"{total / 1e6:.2f} MB"
        print(f"{row['network']:<26}{row['precision']:<10}{size:>10}{guess:>11}{error / row['measured']:>+9.1%} {kind}")
    for row in found:
        if row["simulated"] is None:
            print(f"{row['network']:<26}{row['precision']:<10} a shape is unknown: not predicted")
    print()
    return missed
