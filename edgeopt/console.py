"""Progress and tables for people. Rich is imported when a terminal is there to animate."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

Note = Callable[[str], None]
"""Sets the remark that stands behind a step's seconds when it ends."""

Step = Callable[[str], AbstractContextManager[Any]]
"""Progress as the pipeline sees it: ``with step("calibrate"): ...``; here the value is a ``Note``."""

_NUMBER = re.compile(r"[-+]?[\d][\d.,]*( ?(%|ns|us|ms|s|x|B|kB|MB|GB|dB|k|M|G))?|n/a( .*)?|-|")
_NARROWEST = 24
"""A column of long texts is not wrapped to fewer cells than this; the rows are then stacked instead."""


@contextlib.contextmanager
def silent(name: str) -> Iterator[Note]:
    """The step that shows nothing: the default wherever progress is taken."""
    yield lambda text: None


def progress(stream: TextIO | None = None) -> Step:
    """Progress on ``stream`` (stderr): a spinner with seconds on a terminal, elsewhere one line a finished step."""
    out = stream if stream is not None else sys.stderr
    if out is None:
        return silent
    animated = out.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
    return _steps(out, _spinner(out) if animated else None)


def _steps(out: TextIO, live: Progress | None) -> Step:
    depth = 0

    def say(text: str) -> None:
        if live is not None:
            live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            out.write(text + "\n")
            out.flush()

    @contextlib.contextmanager
    def step(name: str) -> Iterator[Note]:
        nonlocal depth
        remark = ""

        def note(text: str) -> None:
            nonlocal remark
            remark = text

        title = "  " * depth + printable(name)
        begun = time.monotonic()
        if live is not None and depth == 0:
            live.start()
        task = live.add_task(title.replace("[", r"\[")) if live is not None else None
        depth += 1
        ended = "interrupted"
        try:
            yield note
            ended = ""
        except Exception:
            ended = "failed"
            raise
        finally:
            depth -= 1
            if live is not None and task is not None:
                live.remove_task(task)
            say(f"{title:<30} {time.monotonic() - begun:6.1f} s  {ended or printable(remark)}".rstrip())
            if live is not None and depth == 0:
                live.stop()

    return step


def _spinner(out: TextIO) -> Progress:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    frames = "dots" if (out.encoding or "").lower().startswith("utf") else "line"
    return Progress(
        SpinnerColumn(frames),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=Console(file=out, force_terminal=True),
        transient=True,
        redirect_stdout=False,
        refresh_per_second=4,  # two cores may be measuring meanwhile
    )


def printable(text: str) -> str:
    """``text`` with control characters, escapes and lone surrogates spelled out; names in files are hostile."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def bytes_text(count: float | None) -> str:
    """A byte count in decimal units: 999 B, 1.5 kB, 18.6 MB; ``-`` for None."""
    if count is None:
        return "-"
    if abs(count) < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB"):
        count /= 1000
        if abs(count) < 999.95:
            return f"{count:.1f} {unit}"
    return f"{count / 1000:.1f} GB"


def result_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, stream: TextIO | None = None) -> None:
    """Write a table to ``stream`` (stderr), laid out for its width; see ``render_table``."""
    out = stream if stream is not None else sys.stderr
    if out is not None:
        out.write(render_table(headers, rows, width=_width(out), bold=_colours(out)) + "\n")


def fields(rows: Sequence[tuple[str, str]], *, stream: TextIO | None = None) -> None:
    """Write ``name  value`` lines to ``stream`` (stderr), values wrapped under themselves."""
    out = stream if stream is not None else sys.stderr
    if out is not None:
        out.write(render_fields(rows, width=_width(out)) + "\n")


def render_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None, bold: bool = False
) -> str:
    """A table of text cells as lines no wider than ``width`` terminal cells (None: as wide as it takes).

    Columns of numbers stand right. Where it is too wide, the widest columns wrap at spaces, never inside a number with
    its unit; where that does not do, every row becomes a block of ``header  value`` lines.
    """
    cells = [[printable(c) for c in row] for row in rows]
    columns = list(zip(headers, *cells, strict=True))
    right = [all(_NUMBER.fullmatch(cell) for cell in column[1:]) for column in columns]
    widths = _fitted([max(map(_cells, column)) for column in columns], [_least(c) for c in columns], width)
    if widths is None:
        named = ([pair for pair in zip(headers, row, strict=True) if pair[1]] for row in cells)
        blocks = (render_fields(pairs, width=width) for pairs in named)
        return "\n\n".join(blocks)
    wrapped = [[_wrap(cell, width) for cell, width in zip(row, widths, strict=True)] for row in (headers, *cells)]
    widths = [max(_cells(line) for texts in column for line in texts) for column in zip(*wrapped, strict=True)]
    head, *lines = (_row(row, widths, right) for row in wrapped)
    return "\n".join([f"\x1b[1m{head}\x1b[0m" if bold else head, *lines])


def _least(column: Sequence[str]) -> int:
    """Cells that a column needs at least, for its longest number with unit and its longest word, or for a long text."""
    needs = [_NARROWEST if max(map(_cells, column)) > 2 * _NARROWEST else 1]
    for cell in column:
        if _NUMBER.fullmatch(cell) and not cell.startswith("n/a"):
            needs.append(_cells(cell))
        else:
            needs += [min(_cells(word), _NARROWEST) for word in cell.split()]  # a longer word is broken
    return max(needs)


def _fitted(widths: list[int], least: Sequence[int], width: int | None) -> list[int] | None:
    """Take from the widest columns until the row fits; None when it cannot."""
    gaps = 2 * (len(widths) - 1)
    if width is None:
        return widths
    if sum(least) + gaps > width:
        return None
    while sum(widths) + gaps > width:
        slack = [i for i in range(len(widths)) if widths[i] > least[i]]
        widths[max(slack, key=lambda i: widths[i])] -= 1
    return widths


def _row(wrapped: Sequence[Sequence[str]], widths: Sequence[int], right: Sequence[bool]) -> str:
    lines = []
    for i in range(max(map(len, wrapped))):
        parts = [texts[i] if i < len(texts) else "" for texts in wrapped]
        line = "  ".join(_pad(t, w, r) for t, w, r in zip(parts, widths, right, strict=True))
        lines.append(line.rstrip())
    return "\n".join(lines)


def render_fields(rows: Sequence[tuple[str, str]], *, width: int | None) -> str:
    """``name  value`` lines no wider than ``width`` cells; a value that does not fit wraps under itself."""
    names = [printable(name) for name, _ in rows]
    column = max((_cells(n) for n in names), default=0)
    if width is not None:
        column = min(column, max(8, width // 2))
    room = None if width is None else max(8, width - column - 2)
    lines: list[str] = []
    for name, (_, value) in zip(names, rows, strict=True):
        heads = _wrap(name, column)
        tails = _wrap(printable(value), room)
        for i in range(max(len(heads), len(tails))):
            head = heads[i] if i < len(heads) else ""
            tail = tails[i] if i < len(tails) else ""
            lines.append(f"{_pad(head, column, False)}  {tail}".rstrip())
    return "\n".join(lines)


def _wrap(text: str, width: int | None) -> list[str]:
    if width is None or _cells(text) <= width:
        return [text]
    if _cells(text) == len(text):
        return textwrap.wrap(text, width, break_on_hyphens=False) or [""]  # names and paths stay whole
    lines = [""]
    for char in text:  # wide characters: textwrap counts characters, a terminal counts cells
        if _cells(lines[-1] + char) > width:
            lines.append("")
        lines[-1] += char
    return lines


def _pad(text: str, width: int, right: bool) -> str:
    space = " " * (width - _cells(text))
    return space + text if right else text + space


def _cells(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _width(out: TextIO) -> int | None:
    """Width of the terminal behind ``out``; COLUMNS wins; None where there is none."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    try:
        return (os.get_terminal_size(out.fileno()).columns or 80) if out.isatty() else None
    except (OSError, ValueError):
        return None


def _colours(out: TextIO) -> bool:
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") not in ("", "dumb")
