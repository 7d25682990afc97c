"""Tables fit their terminal, progress is silent, plain or animated."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from edgeopt.console import bytes_text, fields, printable, progress, render_fields, render_table, result_table, silent

HEADERS = ("model", "bytes", "p50", "p99", "what stayed float and why")
ROWS = (
    ("float32", "18.6 MB", "12.3 ms", "n/a (needs 368)", "everything"),
    ("int8", "4.9 MB", "4.1 ms", "5.0 ms", "the last Gemm, because its output is a graph output that is never clipped"),
)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_table_fits_and_loses_nothing(width: int) -> None:
    shown = render_table(HEADERS, ROWS, width=width)
    assert max(map(cell_len, shown.splitlines())) <= width
    for cell in (cell for row in ROWS for cell in row):
        assert all(word in shown for word in cell.split())


def test_columns_line_up_at_80() -> None:
    assert render_table(HEADERS, ROWS, width=80).splitlines() == [
        "model      bytes      p50              p99  what stayed float and why",
        "float32  18.6 MB  12.3 ms  n/a (needs 368)  everything",
        "int8      4.9 MB   4.1 ms           5.0 ms  the last Gemm, because its output is",
        "                                            a graph output that is never clipped",
    ]


def test_a_number_stays_with_its_unit_when_columns_wrap() -> None:
    headers = ("model", "size", "peak memory", "median", "p90", "p95", "p99", "CV")
    row = ("float32 (default)", "16.2 MB", "44.1 MB", "12.3 ms", "12.9 ms", "13.5 ms", "n/a (needs 368)", "3.1%")
    assert render_table(headers, [row], width=76).splitlines() == [
        "model         size     peak   median      p90      p95         p99    CV",
        "                     memory",
        "float32    16.2 MB  44.1 MB  12.3 ms  12.9 ms  13.5 ms  n/a (needs  3.1%",
        "(default)                                                     368)",
    ]


def test_a_long_word_is_broken_rather_than_the_table() -> None:
    lines = render_table(("check", "found"), [("identity", "89abcdef01" * 6)], width=50).splitlines()
    assert lines == ["check     found", "identity  " + "89abcdef01" * 4, "          " + "89abcdef01" * 2]


def test_rows_become_blocks_at_40() -> None:
    lines = render_table(HEADERS, ROWS, width=40).splitlines()
    assert lines[:5] == [
        "model                 float32",
        "bytes                 18.6 MB",
        "p50                   12.3 ms",
        "p99                   n/a (needs 368)",
        "what stayed float     everything",
    ]
    assert "" in lines  # one block a row


def test_wide_characters_count_as_two_cells() -> None:
    lines = render_table(("name", "n"), [("模型", "1"), ("ab", "22")], width=80).splitlines()
    assert lines == ["name   n", "模型   1", "ab    22"]


def test_escapes_in_cells_are_spelled_out() -> None:
    assert "\x1b" not in render_table(("a",), [("\x1b[31mred\n",)], width=80)
    assert printable("a\tb\x1b\udce9é模") == "a\\tb\\x1b\\udce9é模"


@given(
    st.lists(st.lists(st.text(max_size=60), min_size=3, max_size=3), max_size=4),
    st.integers(min_value=20, max_value=120),
)
def test_no_table_is_wider_than_its_terminal(rows: list[list[str]], width: int) -> None:
    shown = render_table(("one", "two", "three"), rows, width=width)
    assert all(cell_len(line) <= width for line in shown.splitlines())


@given(st.text(max_size=80), st.text(max_size=80), st.integers(min_value=20, max_value=120))
def test_no_field_is_wider_than_its_terminal(name: str, value: str, width: int) -> None:
    shown = render_fields([(name, value)], width=width)
    assert all(cell_len(line) <= width for line in shown.splitlines())


def test_without_a_terminal_a_table_is_as_wide_as_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    out = io.StringIO()
    result_table(HEADERS, ROWS, stream=out)
    assert out.getvalue().count("\n") == 3
    assert "\x1b" not in out.getvalue()
    out = io.StringIO()
    fields([("name", "x" * 500)], stream=out)
    assert out.getvalue() == "name  " + "x" * 500 + "\n"


def test_columns_sets_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = io.StringIO()
    result_table(HEADERS, ROWS, stream=out)
    assert max(map(len, out.getvalue().splitlines())) <= 40


def test_colour_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    for no_color, coloured in (("", True), ("1", False)):
        monkeypatch.setenv("NO_COLOR", no_color)
        out = Terminal()
        result_table(HEADERS, ROWS, stream=out)
        assert ("\x1b[1m" in out.getvalue()) is coloured


def test_silent_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with silent("work") as note:
        note("120 samples")
    assert capsys.readouterr() == ("", "")


def test_plain_progress_is_one_line_a_step() -> None:
    out = io.StringIO()
    step = progress(out)
    with step("build") as note:
        with step("calibrate") as inner:
            inner("120 samples")
        note("done")
    with pytest.raises(ValueError), step("verify"):
        raise ValueError
    with pytest.raises(KeyboardInterrupt), step("bench"):
        raise KeyboardInterrupt
    lines = out.getvalue().splitlines()
    assert [re.sub(r" +\d+\.\d s ", " _ s ", line) for line in lines] == [
        "  calibrate _ s  120 samples",
        "build _ s  done",
        "verify _ s  failed",
        "bench _ s  interrupted",
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_animated_progress_leaves_the_same_lines(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    out = Terminal()
    monkeypatch.setattr(Terminal, "encoding", encoding)
    step = progress(out)
    with step("calibrate [x]") as note, step("inner"):
        note("120 [bold]samples")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert re.search(r"calibrate \[x\] +\d+\.\d s  120 \[bold\]samples", shown)
    assert "inner" in shown
    if encoding == "ascii":
        assert shown.isascii()


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    with progress(out)("work"):
        pass
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (18_600_000, "18.6 MB"),
        (2.3e9, "2.3 GB"),
    ],
)
def test_bytes(count: float | None, text: str) -> None:
    assert bytes_text(count) == text


def test_progress_without_stderr_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    with progress()("work") as note:
        note("x")


def test_a_name_is_not_broken_at_its_hyphens() -> None:
    text = render_fields([("kept", "infer-shapes, bias-correction, percentile-ranges")], width=30)
    assert [line.split()[-1] for line in text.splitlines()] == [
        "infer-shapes,",
        "bias-correction,",
        "percentile-ranges",
    ]
