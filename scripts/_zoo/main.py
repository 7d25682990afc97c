"""The command: which networks, where to, and whether there is anything to do."""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

from _zoo.fashion_mnist import DEPTHWISE, SOURCE
from _zoo.packages import FetchError, UnavailableError

RECIPES = {
    "efficientnet-lite0": "efficientnet:make",
    "squeezenet": "squeezenet:make",
    "fashion-mnist": "fashion_mnist:make",
    "fashion-mnist-depthwise": "fashion_mnist:make_depthwise",
    "centerface": "centerface:make",
    "ppocr-det": "ppocr:make_det",
    "ppocr-rec": "ppocr:make_rec",
    "ppocr-cls": "ppocr:make_cls",
    "silero-vad": "silero:make",
    "silero-vad-16k-op15": "silero:make_op15",
    "silero-vad-16k-sequence": "silero:make_sequence",
    "silero-vad-op18-ifless": "silero:make_ifless",
    "silero-vad-openvino-16k": "silero:make_openvino",
    "silero-vad-torchscript": "silero:make_torchscript",
    "minilm": "minilm:make",
    "minilm-fixed": "minilm:make_fixed",
    "magika": "magika:make",
    "basic-pitch": "basic_pitch:make",
}
"""Module and function by network, imported when needed: torch takes seconds. ``function(folder, cache)`` writes the
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
    cache = default_cache(options.cache)
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
        except UnavailableError as reason:
            print(f"skipped: {name}: {reason}", file=sys.stderr)
        except FetchError as error:
            print(f"error: {name}: {error}", file=sys.stderr)
            return 1
    return 0


def default_cache(given: Path | None) -> Path:
    """The folder that was given, else $EDGEOPT_ZOO, else the user's cache."""
    cache = given or Path(os.environ.get("EDGEOPT_ZOO") or Path.home() / ".cache" / "edgeopt" / "zoo")
    return cache.expanduser().resolve()


def make(name: str, folder: Path, cache: Path, wanted: str) -> str:
    """Build beside the destination and rename: a folder is complete or absent."""
    module, _, function = RECIPES[name].partition(":")
    write = getattr(importlib.import_module(f"_zoo.{module}"), function)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as scratch:
        new = Path(scratch, name)
        new.mkdir()
        figures = f"{folder}: {write(new, cache)}"
        (new / STAMP).write_text(f"{wanted}\n{figures}\n", encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        new.rename(folder)
    return figures


def digest(name: str) -> str:
    """Changes when a recipe does: a hash of its sources, and of what the repository holds of its network."""
    module, _, function = RECIPES[name].partition(":")
    files = sorted({Path(__file__), *sources(module)})
    if name.startswith("fashion-mnist"):
        files += [*sorted(SOURCE.iterdir()), DEPTHWISE]
    total = hashlib.sha256(function.encode())
    for file in files:
        total.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def sources(module: str) -> set[Path]:
    """The file of a module of this package and of all that it imports from it."""
    found: set[Path] = set()
    waiting = [module]
    while waiting:
        file = Path(__file__).with_name(f"{waiting.pop()}.py")
        if file not in found:
            found.add(file)
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module == "_zoo":
                    waiting += [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("_zoo."):
                    waiting.append((node.module or "").partition(".")[2])
    return found
