"""Tables as data: the page and the Markdown show the same ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from edgeopt.report import text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Column:
    """A head cell; ``css``: ``"n"`` for numbers (right aligned), ``"whole"`` for prose, ``"term"`` for a short name."""

    title: str
    css: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """Plain text, never markup, with a CSS class. ``small`` qualifies it, below it or in brackets.

    A picture stands for the text: ``picture`` is the file in base64 for a page, ``path`` its place beside it.
    """

    text: str
    css: str = ""
    small: str = ""
    picture: str = ""
    path: str = ""

    def __str__(self) -> str:
        """The cell in one line."""
        return f"{self.text} ({self.small})" if self.small else self.text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid:
    """Columns and rows of equal length; ``notes`` is empty or holds one sentence a row, shown below it."""

    columns: tuple[Column, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """The table as Markdown, every cell escaped."""
        titles = [column.title for column in self.columns] + (["Note"] if self.notes else [])
        notes = [[note] for note in self.notes] or [[] for _ in self.rows]
        rows = [[str(cell) for cell in row] + note for row, note in zip(self.rows, notes, strict=True)]
        align = "".join("r" if column.css == "n" else "l" for column in self.columns)
        escaped = [[text.escape_markdown(value) or " " for value in row] for row in [titles, *rows]]
        for row, line in zip(self.rows, escaped[1:], strict=True):
            line[: len(row)] = [f"![]({cell.path})" if cell.picture else old for cell, old in zip(row, line)]
        return text.table(escaped[0], escaped[1:], align)


def grid(heads: Sequence[str], rows: Iterable[Sequence[str | Cell]], notes: Iterable[str] = ()) -> Grid:
    """Make a grid. A head that starts with ``>`` is a column of numbers, with ``=`` one of prose, ``!`` of names."""
    marks = {">": "n", "=": "whole", "!": "term"}
    columns = tuple(Column(title=h.lstrip(">=!"), css=marks.get(h[:1], "")) for h in heads)
    cells = tuple(tuple(c if isinstance(c, Cell) else Cell(text=c) for c in row) for row in rows)
    if any(len(row) != len(columns) for row in cells):
        raise ValueError("a row has more or fewer cells than there are columns")
    return Grid(columns=columns, rows=cells, notes=tuple(notes))
