"""The command: rows, fit, table."""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from click import ClickException

from _memory import fit, rows
from edgeopt.backends.registry import BACKENDS
from edgeopt.errors import EdgeoptError

ALLOWED = 0.15
"""The share that a prediction may miss on a network that was not fitted on."""

NETWORKS = (
    *("basic-pitch", "centerface", "efficientnet-lite0", "fashion-mnist", "fashion-mnist-depthwise", "magika"),
    *("minilm-fixed", "ppocr-cls", "ppocr-det", "ppocr-rec", "silero-vad-16k-sequence", "squeezenet"),
)
"""One form of each network of the zoo: another form of a network that is fitted on would say little."""


def main(argv: list[str], doc: str) -> int:
    """Print the fitted constants and the table; 1 when a network that was not fitted on is missed by more.

    Also 1 when a network could not be built, or none was left to compare.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--backend", choices=sorted(BACKENDS))
    parser.add_argument("--cache", type=Path, default=Path(os.environ.get("EDGEOPT_ZOO", "~/.cache/edgeopt/zoo")))
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--jobs", type=int, choices=range(1, 9), default=1, metavar="N")
    parser.add_argument("--fit-only", action="store_true")
    args = parser.parse_args(argv)
    if args.fit_only and args.rows is None:
        parser.error("--fit-only needs --rows")
    if args.fit_only:
        found, failed = json.loads(args.rows.read_text()), 0
    else:
        found, failed = _collected(args)
    if args.rows is not None and not args.fit_only:
        args.rows.write_text(json.dumps(found, indent=1))
    backends = [args.backend] if args.backend else sorted({row["backend"] for row in found})
    missed = [report(backend, [row for row in found if row["backend"] == backend]) for backend in backends]
    return int(any(missed) or failed > 0 or not found)


def _collected(args: argparse.Namespace) -> tuple[list[dict[str, Any]], int]:
    """The rows of all networks, and how many networks gave none."""
    models = args.cache.expanduser() / "models"
    wanted = args.names or NETWORKS
    lost = [name for name in wanted if not (models / name / "build.txt").is_file()]
    for name in lost:
        rows.told(f"{name}: not in {models}")
    names = sorted(set(wanted) - set(lost))
    tasks = [(backend, models / name) for backend in ([args.backend] if args.backend else BACKENDS) for name in names]
    with ProcessPoolExecutor(args.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        answers = list(pool.map(_rows, *zip(*tasks, strict=True))) if tasks else []
    return [row for answer in answers for row in answer], len(lost) + sum(not answer for answer in answers)


def _rows(backend: str, folder: Path) -> list[dict[str, Any]]:
    rows.told(f"{backend}: {folder.name}")
    try:
        return rows.collect(folder, BACKENDS[backend], importlib.import_module(f"edgeopt.backends.{backend}.memory"))
    except (EdgeoptError, ClickException) as error:
        rows.told(f"{backend}: {folder.name}: {getattr(error, 'message', error)}")
        return []


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
        bad = abs(error) > ALLOWED * row["measured"]
        kind = "fitted on" if row["network"] in fitted else "MISSED" if bad else ""
        missed += kind == "MISSED"
        size, guess = f"{row['measured'] / 1e6:.2f} MB", f"{total / 1e6:.2f} MB"
        print(f"{row['network']:<26}{row['precision']:<10}{size:>10}{guess:>11}{error / row['measured']:>+9.1%} {kind}")
    for row in found:
        if row["simulated"] is None:
            print(f"{row['network']:<26}{row['precision']:<10} a shape is unknown: not predicted")
    print()
    return missed
