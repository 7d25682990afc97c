"""The command line of scripts/kernel_tables."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

BACKENDS = Path(__file__).resolve().parents[2] / "edgeopt" / "backends"


def main(arguments: Sequence[str], text: str) -> int:
    """Write the tables, or compare them with those in the repository."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 when a table differs")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "edgeopt" / "kernels")
    parser.add_argument("--only", choices=("onnxruntime", "openvino"))
    given = parser.parse_args(arguments)
    differing = 0
    for name, path, make in _tables(given.cache):
        if given.only not in (None, name):
            continue
        written = spelled(make())
        if given.check:
            same = path.is_file() and path.read_text(encoding="ascii") == written
            sys.stdout.write(f"{path}: {'as the runtime says' if same else 'differs'}\n")
            differing += not same
        else:
            path.write_text(written, encoding="ascii")
            sys.stdout.write(f"{path}: {len(written):,} bytes\n")
    return 1 if differing else 0


def _tables(cache: Path) -> list[tuple[str, Path, Callable[[], dict[str, Any]]]]:
    from _kernels import of_onnxruntime, of_openvino

    return [
        ("onnxruntime", BACKENDS / "onnxruntime" / "kernels.json", lambda: of_onnxruntime.table(cache)),
        ("openvino", BACKENDS / "openvino" / "operators.json", of_openvino.table),
    ]


def spelled(table: dict[str, Any]) -> str:
    """JSON with one operator a line, so that a change of one shows as one."""
    lines = []
    for key, value in table.items():
        if isinstance(value, dict):
            inner = ",\n".join(f"  {json.dumps(name)}: {_tight(entry)}" for name, entry in value.items())
            lines.append(f"{json.dumps(key)}: {{\n{inner}\n}}")
        else:
            lines.append(f"{json.dumps(key)}: {_tight(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _tight(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
