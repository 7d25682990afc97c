"""Paths that a description names: where they may lead, and which files a pattern finds."""

from __future__ import annotations

from pathlib import Path

from edgeopt.errors import CalibrationError
from edgeopt.tomlfile import Table


def inside(table: Table, name: str, toml: Path) -> Path:
    """The path in ``name``: absolute as written, relative from the description's folder and never out of it."""
    text = table.text(name)
    path = Path(text)
    if path.is_absolute():
        return path
    base = toml.parent
    if ".." in path.parts or "\0" in text or not _stays(base / path, base):
        table.problem(
            name, f'"{text}" leads out of the description\'s folder; move the data there or write an absolute path.'
        )
    return base / path


def _stays(path: Path, base: Path) -> bool:
    """Whether a path, its links followed, lies in ``base``."""
    try:
        return path.resolve().is_relative_to(base.resolve())
    except (OSError, RuntimeError):  # a loop of links
        return False


def pattern(table: Table, name: str, default: str) -> str:
    """A pattern of files below a folder."""
    text = table.text(name, default)
    if text.startswith("/") or ".." in Path(text).parts:
        table.problem(name, "must stay below folder.")
        return default
    return text


def list_files(folder: Path, glob: str, leave_out: frozenset[Path], what: str) -> tuple[str, ...]:
    """Files below ``folder`` that match ``glob`` and are not hidden, as sorted POSIX paths relative to it.

    Args:
        what: what they hold, for messages.

    Raises:
        CalibrationError: no folder, no file, or a link that leads out of the folder.
    """
    if not folder.is_dir():
        raise CalibrationError(f"{folder}: is not a folder.", remedy=f"folder names the folder that holds the {what}.")
    found = []
    root = folder.resolve()
    for path in folder.glob(glob):
        below = path.relative_to(folder)
        if any(part.startswith(".") for part in below.parts) or not path.is_file() or path in leave_out:
            continue
        if not path.resolve().is_relative_to(root):
            raise CalibrationError(f"{path}: is a link that leads out of {folder}.", remedy="Copy the file into it.")
        found.append(below.as_posix())
    if not found:
        why = "holds no file" if any(folder.iterdir()) else "is empty, so it holds no file"
        raise CalibrationError(
            f"{folder}: {why} that matches {glob}.", remedy=f"Put the {what} there, or correct folder or glob."
        )
    return tuple(sorted(found))
