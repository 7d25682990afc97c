"""Results on disk, one file each, kept as long as what they were made from is the same."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Json = dict[str, Any]


class Records:
    """A folder of records, made when needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, name: str, key: Mapping[str, Any], make: Callable[[], Json], file_of: str | None = None) -> Json:
        """The record of that name; made, and written, where it is missing or made from something else.

        A record of a failure (``error``) is made again, and so is one whose file, at its entry ``file_of``, is gone.
        """
        file = self.folder / f"{slug(name)}.json"
        wanted = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()
        if file.is_file():
            kept: Json = json.loads(file.read_text(encoding="utf-8"))
            value: Json = kept["value"]
            there = file_of is None or file_of not in value or Path(value[file_of]).exists()
            if kept["key"] == wanted and "error" not in value and there:
                return value
        value = make()
        write(file, {"name": name, "key": wanted, "value": value})
        return value


def write(file: Path, value: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_suffix(".new")
    scratch.write_text(json.dumps(value) + "\n", encoding="utf-8")
    scratch.replace(file)


def slug(name: str) -> str:
    """A file name; slashes stay, dots only between other characters."""
    return re.sub(r"[^a-z0-9./]+|\.{2,}", "-", name.lower()).strip("-")


def sha256(*files: Path) -> str:
    """Of the files' contents, one after the other."""
    total = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                total.update(block)
    return total.hexdigest()


def sources(*folders: Path) -> str:
    """Of all Python, TOML and text files below; what a tool of this repository is."""
    total = hashlib.sha256()
    for folder in folders:
        for file in sorted(f for f in folder.rglob("*") if f.suffix in (".py", ".toml", ".txt") and f.is_file()):
            total.update(str(file.relative_to(folder)).encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()
