"""The pinned environments: one folder of the cache each, made when its requirements are not there yet."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAMES = ("edgeopt", "onnxruntime", "nncf")


class PinnedError(Exception):
    """pip could not install what is pinned."""


def requirements(name: str) -> Path:
    return HERE / f"{name}.txt"


def digest(name: str) -> str:
    """Changes with the pins and with the Python that makes the environment."""
    text = requirements(name).read_bytes() + sys.version.encode()
    return hashlib.sha256(text).hexdigest()[:12]


def python_of(name: str, cache: Path) -> Path:
    """The interpreter of an environment, made first where it is missing.

    Raises:
        PinnedError: it cannot be made, or what is pinned does not fit together.
    """
    folder = cache / f"env-{name}-{digest(name)}"
    python, whole = folder / "bin" / "python", folder / ".whole"
    if whole.is_file() and python.exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    print(f"[env] {name} ...", file=sys.stderr, flush=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [*install, "--only-binary", ":all:", "-r", str(requirements(name))],
        [str(python), "-m", "pip", "check", "--disable-pip-version-check"],
    ):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
            raise PinnedError(f"the environment {name} cannot be made: {last}")
    whole.touch()
    return python


def versions(name: str) -> dict[str, str]:
    """What is pinned."""
    lines = requirements(name).read_text(encoding="utf-8").splitlines()
    return dict(line.split("==", 1) for line in lines if "==" in line and not line.startswith("#"))
