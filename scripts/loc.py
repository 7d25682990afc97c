"""Watches the length of source files: more than 300 lines needs a reason, more than 400 fails."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDERS = ("edgeopt", "runtime_bench", "scripts")
WARN, FAIL = 300, 400


def long_files(root: Path) -> list[tuple[int, str]]:
    """(lines, path) of every file over WARN lines, longest first."""
    counted = [
        (len(path.read_text(encoding="utf-8").splitlines()), path.relative_to(root).as_posix())
        for folder in FOLDERS
        for path in (root / folder).rglob("*.py")
    ]
    return sorted((c for c in counted if c[0] > WARN), reverse=True)


def main(root: Path) -> int:
    """Print one line a long file; 1 when one is over FAIL."""
    found = long_files(root)
    for lines, path in found:
        print(f"{path}: {lines} lines, more than {FAIL if lines > FAIL else WARN}")
    return int(any(lines > FAIL for lines, _ in found))


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent.parent))
