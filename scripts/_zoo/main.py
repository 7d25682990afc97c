"""The command: which networks, where to, and whether there is anything to do."""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

from _zoo.fashion_mnist import SOURCE
from _zoo.packages import FetchError

RECIPES = {"efficientnet-lite0": "efficientnet", "squeezenet": "squeezenet", "fashion-mnist": "fashion_mnist"}
"""Modules by network, imported when needed: torch takes seconds. Each has ``make(folder, cache)``, which writes the
network into a new folder with packages from the cache and returns one line of figures."""

STAMP = ".complete"


def main(arguments: list[str], usage: str) -> int:
    """Exit code: 0, or 1 with a sentence on stderr."""
    parser = argparse.ArgumentParser(
        prog="scripts/zoo", description=usage, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RECIPES))
    parser.add_argument("--cache", type=Path, metavar="DIR", help="where packages and networks go")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in RECIPES]
    if unknown:
        parser.error(f'unknown network "{unknown[0]}"; there are {", ".join(RECIPES)}')
    cache = options.cache or Path(os.environ.get("EDGEOPT_ZOO") or Path.home() / ".cache" / "edgeopt" / "zoo")
    cache = cache.expanduser().resolve()
    models = cache / "models"
    models.mkdir(parents=True, exist_ok=True)
    for name in options.names or RECIPES:
        folder = models / name
        wanted = digest(name)
        stamp = folder / STAMP
        if stamp.is_file() and stamp.read_text(encoding="utf-8").startswith(wanted):
            print(stamp.read_text(encoding="utf-8").partition("\n")[2].strip())
            continue
        missing = [m for m in ("torch", "onnxscript", "onnxruntime", "PIL") if importlib.util.find_spec(m) is None]
        if missing:
            print(
                f"error: {name} needs {', '.join(missing)}; run ./scripts/test once, or pip install -e '.[torch]'",
                file=sys.stderr,
            )
            return 1
        print(f"[zoo] {name} ...", file=sys.stderr)
        try:
            print(make(name, folder, cache, wanted))
        except FetchError as error:
            print(f"error: {name}: {error}", file=sys.stderr)
            return 1
    return 0


def make(name: str, folder: Path, cache: Path, wanted: str) -> str:
    """Build beside the destination and rename: a folder is complete or absent."""
    recipe = importlib.import_module(f"_zoo.{RECIPES[name]}")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as scratch:
        new = Path(scratch, name)
        new.mkdir()
        figures = f"{folder}: {recipe.make(new, cache)}"
        (new / STAMP).write_text(f"{wanted}\n{figures}\n", encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        new.rename(folder)
    return figures


def digest(name: str) -> str:
    """Changes when a recipe does: a hash of these sources, and of the embedded files for the embedded network."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    if name == "fashion-mnist":
        files += sorted(SOURCE.iterdir())
    total = hashlib.sha256()
    for file in files:
        total.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()
