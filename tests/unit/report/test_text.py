from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeopt.report import decided, text


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (5_071_904, "5.07 MB"),
        (18_634_112, "18.6 MB"),
        (12_000_000_000, "12.0 GB"),
        (-4500, "−4.50 kB"),
        (None, "not measured"),
    ],
)
def test_size_uses_powers_of_1000(count: int | None, expected: str) -> None:
    assert text.size(count) == expected


@pytest.mark.parametrize(
    ("nanoseconds", "expected"),
    [
        (5, "5.00 ns"),
        (999_600, "1.00 ms"),
        (312_000, "312 µs"),
        (8_040_000, "8.04 ms"),
        (1_200_000_000, "1.20 s"),
        (None, "not measured"),
    ],
)
def test_duration(nanoseconds: int | None, expected: str) -> None:
    assert text.duration(nanoseconds) == expected


def test_an_interval_has_its_unit_once_where_it_is_the_same() -> None:
    assert text.between(text.duration, 17_100_000, 17_200_000) == "17.1 to 17.2 ms"
    assert text.between(text.duration, 900_000, 1_200_000) == "900 µs to 1.20 ms"
    assert text.between(text.duration, 900_000, None) == "at least 900 µs"
    assert text.between(text.duration, None, 900_000) == "at most 900 µs"
    assert text.between(text.duration, None, None) == ""
    assert text.between(str, 3, 4) == "3 to 4"
    assert text.between(text.signed, -0.01, 0.02) == "−1.0 to +2.0 %"


def test_small_numbers_in_words() -> None:
    assert text.energy(0.0123) == "12.3 mJ"
    assert text.energy(-2.5e-6) == "−2.50 µJ"
    assert text.count(385_000_000) == "385 M"
    assert text.count(9999) == "9999"
    assert text.probability(0.0312) == "p = 0.031"
    assert text.probability(1e-9) == "p < 0.001"
    assert text.signed(0.0) == "0.0 %"
    assert text.signed(0.012) == "+1.2 %"


@given(st.floats(1e-9, 1e15))
def test_three_digits_are_within_half_a_percent(value: float) -> None:
    assert float(text.number(value)) == pytest.approx(value, rel=0.00501)
    assert len(text.number(value).replace(".", "").lstrip("0")) <= 3 or value >= 999.5


def test_factors_shares_and_decibels() -> None:
    assert text.times(3.674) == "3.7x"
    assert text.times(0.4712) == "0.471x"
    assert text.percent(0.9701) == "97.0 %"
    assert text.decibels(23.94) == "23.9 dB"
    assert text.decibels(None) == "identical"
    assert text.decibels("-inf") == "−∞ dB"
    assert text.ratio((0.47, 0.46, 0.48)) == "0.470x (0.460 to 0.480)"


def test_shorten_keeps_both_ends() -> None:
    assert text.shorten("abcdefghij", 10) == "abcdefghij"
    assert text.shorten("abcdefghijk", 7) == "abc…ijk"


@given(st.text(max_size=60))
def test_markdown_cells_hold_any_text(name: str) -> None:
    cell = text.escape_markdown(name)
    assert "\n" not in cell
    assert "<" not in cell
    assert "|" not in cell.replace("\\|", "")
    row = text.table(["a", "b"], [[cell or " ", text.code(name)]]).splitlines()[2]
    assert row.replace("\\\\", "").replace("\\|", "").count("|") == 3


def test_code_spans_hold_backticks() -> None:
    assert text.code("a") == "`a`"
    assert text.code("a`b") == "`` a`b ``"
    assert text.code("a|b") == "`a\\|b`"


@pytest.mark.parametrize(
    ("unit", "shown", "changed"),
    [
        ({"unit": "share"}, "65.38 %", "drop 0.62 ± 0.12 points"),
        ({}, "65.38 %", "drop 0.62 ± 0.12 points"),
        ({"unit": "index"}, "0.6538", "drop 0.0062 ± 0.0012"),
        ({"unit": "number"}, "0.6538", "drop 0.0062 ± 0.0012"),
    ],
)
def test_a_metric_is_written_as_what_it_is(unit: dict[str, str], shown: str, changed: str) -> None:
    """A correlation is no percentage."""
    metric = {"name": "m", "float": 0.66, "artifact": 0.65378, "drop": 0.0062, "half_width": 0.0012, **unit}
    assert text.metric(metric, 0.65378) == shown
    assert decided.metric_line(metric).endswith(f"{shown} artifact ({changed}, paired 95 % interval)")
    assert text.metric({"unit": "index"}, -0.5) == "−0.5000"


def test_a_function_has_no_size() -> None:
    made = {"format": "factory", "bytes": 2_000}
    assert text.size_against(made, 90_000_000, "bert:make") == "made by a function, which has no size to compare with"
    given = {"format": "factory", "bytes": 90_002_000}
    assert text.size_against(given, 90_000_000, "bert:make") == "as large as the code and weights of bert:make"
    file = {"format": "onnx", "bytes": 120}
    assert [text.size_against(file, n, "m.onnx") for n in (40, 120, 240)] == [
        "3.0x smaller than m.onnx",
        "as large as m.onnx",
        "2.0x as large as m.onnx",
    ]
