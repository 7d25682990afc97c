"""Child process: ``python _child.py KIND MODEL.onnx OPTIONS.json``. torch's memory goes away with it.

Runs ``main(exported, **options)`` of ``edgeopt.loaders._export_KIND`` and writes the facts that it returns beside the
model, to ``MODEL.told``. A refusal is told on the last line of stderr and
by the exit code; any other failure is an ordinary Python error.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path

TOLD = ".told"
"""Suffix of the file with the facts."""

REFUSED = 65
"""Exit code: the last line of stderr is a message with its remedy, as JSON."""


def _edgeopt() -> None:
    """Import the edgeopt that this file belongs to, wherever it lies, without touching ``sys.path``."""
    folder = Path(__file__).resolve().parents[1]
    spec = importlib.util.spec_from_file_location(
        "edgeopt", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        sys.exit(f"{folder} holds no package")
    module = importlib.util.module_from_spec(spec)
    sys.modules["edgeopt"] = module
    spec.loader.exec_module(module)


def main(kind: str, exported: str, options: str) -> None:
    """Export, and tell a refusal in a form that the parent can read."""
    _edgeopt()
    from edgeopt.errors import EdgeoptError

    exporter = importlib.import_module(f"edgeopt.loaders._export_{kind}")
    try:
        facts = exporter.main(exported, **json.loads(Path(options).read_text(encoding="utf-8")))
    except EdgeoptError as error:
        told = json.dumps({"message": error.message, "remedy": error.remedy})
        sys.stderr.write(f"\n{told}\n")
        sys.exit(REFUSED)
    Path(exported).with_suffix(TOLD).write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
