"""The grade in words: one line on the screen, a few reasons on the first page, all of them in a table."""

from __future__ import annotations

from typing import Any

import pytest

from edgeopt.report import stability

Json = dict[str, Any]


def reason(code: str, severity: str, subject: str | None, text: str, advice: str = "do something") -> Json:
    told = text if subject is None else f"{subject}: {text}"
    return {
        "code": code,
        "severity": severity,
        "subject": subject,
        "value": 0.12,
        "threshold": 0.1,
        "text": told,
        "advice": advice,
    }


STABLE: Json = {"grade": "stable", "subjects": {"int8": "stable"}, "reasons": [reason("no_p99", "info", "int8", "x")]}
NOISY: Json = {
    "grade": "noisy",
    "subjects": {"float32": "noisy", "int8": "noisy"},
    "reasons": [
        reason("high_cv", "noisy", "float32", "CV 14 % (above 10 %)", "run --effort standard"),
        reason("high_cv", "noisy", "int8", "CV 12 % (above 10 %)", "run --effort standard"),
        reason("leak", "noisy", "int8", "memory grows"),
        reason("governor", "info", None, "governor is ondemand"),
    ],
}


def test_one_line_for_the_screen() -> None:
    assert stability.line(STABLE) == "stable"
    told = stability.line({**NOISY, "reasons": NOISY["reasons"][1:2]})
    assert told == "noisy: int8: CV 12 % (above 10 %): run --effort standard"
    assert stability.line(NOISY, "int8") == (
        "noisy: int8: CV 12 % (above 10 %) (likewise float32): run --effort standard (and 1 more reason in the report)"
    )


def test_reasons_of_one_kind_are_told_once_and_notes_are_none() -> None:
    assert stability.grouped(NOISY, "int8") == [
        ("int8: CV 12 % (above 10 %) (likewise float32)", "run --effort standard"),
        ("int8: memory grows", "do something"),
    ]
    assert [r["code"] for r in stability.notes(NOISY)] == ["governor"]
    rows = stability.table([*stability.ordered(NOISY), *stability.notes(NOISY)]).rows
    assert [row[0].text for row in rows] == ["≈ noisy", "≈ noisy", "– note"]
    assert "int8: CV 12 %" in str(rows[0][1])


def test_the_badge_shows_a_few_and_counts_the_rest() -> None:
    badge = stability.badge(NOISY, most=1)
    assert (badge["word"], badge["sign"], badge["more"], len(badge["reasons"])) == ("noisy", "≈", 1, 1)
    assert stability.badge(None, "nothing was measured")["word"] == "not measured"


def test_the_worst_comes_first() -> None:
    mixed = {**NOISY, "grade": "invalid", "reasons": [*NOISY["reasons"], reason("precision", "invalid", "int8", "no")]}
    assert [r["severity"] for r in stability.ordered(mixed)] == ["invalid", "noisy", "noisy", "noisy"]
    assert stability.line(mixed).startswith("invalid: int8: no")


@pytest.mark.parametrize(
    ("names", "expected"), [(["int8"], "unstable"), (["float32"], "noisy"), (["original"], "stable"), ([], "stable")]
)
def test_the_grade_of_what_is_compared(names: list[str], expected: str) -> None:
    graded = {"grade": "unstable", "subjects": {"float32": "noisy", "int8": "unstable"}, "reasons": []}
    assert stability.of_subject(graded, names) == expected
    common = {**graded, "reasons": [reason("throttled", "unstable", None, "stopped")]}
    assert stability.of_subject(common, names) == "unstable"
