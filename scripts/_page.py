"""Pages of docs/ with parts that a script writes, each between ``<!-- name -->`` and ``<!-- /name -->``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def put(page: Path, parts: Mapping[str, str]) -> None:
    """Put every part between its markers; the page is written whole or not at all.

    Raises:
        SystemExit: the page lacks a marker.
    """
    text = page.read_text(encoding="utf-8")
    for name, part in parts.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, found, rest = text.partition(start)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise SystemExit(f"{page} has no {start} ... {end}")
        text = f"{before}{start}\n\n{part}\n\n{end}{after}"
    page.write_text(text, encoding="utf-8")
