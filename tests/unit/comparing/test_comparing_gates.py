"""Gates: both sides of every limit, planted regressions, and the result as Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from edgeopt.comparing import Limits, enforce, markdown, parse_share
from edgeopt.comparing.gates import change, judge
from edgeopt.errors import BenchError, RegressionError
from tests.unit.recordings import compared, groups, measurement, memory, recording, subject

Json = dict[str, Any]


@pytest.mark.parametrize(
    ("text", "share"), [("3%", 0.03), ("0.03", 0.03), ("0", 0), ("0%", 0), (" 0.5 % ", 0.005), ("150%", 1.5)]
)
def test_a_share_is_read(text: str, share: float) -> None:
    assert parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "3", "1", "-3%", "3 percent", "nan", "1e-2", "%", "3%%", "inf", "٣%"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"share"):
        parse_share(text)


def ratio(low: float, high: float) -> Json:
    return {"ratio": (low + high) / 2, "low": low, "high": high}


NOTHING: Mapping[str, Any] = {"ratio": None, "low": None, "high": None, "reason": "no VmHWM"}
NO_QUALITY: Mapping[str, Any] = {"compared": False, "reason": "no set"}


@pytest.mark.parametrize(
    ("low", "high", "state"),
    [
        (0.90, 0.95, "held"),
        (1.01, 1.029, "held"),
        (1.01, 1.03, "held"),  # the limit itself is allowed
        (1.01, 1.031, "undecided"),
        (1.03, 1.05, "undecided"),
        (1.031, 1.05, "broken"),
        (1.5, 2.0, "broken"),
    ],
)
def test_a_gate_judges_by_the_near_end(low: float, high: float, state: str) -> None:
    limits = Limits(slowdown=0.03, growth=0.03)
    slow, grown = judge(limits, ratio(low, high), ratio(low, high), NO_QUALITY)
    assert (slow["state"], grown["state"]) == (state, state)
    assert (slow["name"], grown["name"]) == ("max-slowdown", "max-growth")
    for text in (f"interval {change(low - 1)} to {change(high - 1)}", "3 % allowed"):
        assert text in slow["text"]
        assert text in grown["text"]


@pytest.mark.parametrize(
    ("low", "high", "state"),
    [(-0.01, 0.004, "held"), (0.001, 0.006, "undecided"), (0.004, 0.02, "undecided"), (0.006, 0.02, "broken")],
)
def test_the_gate_on_quality_judges_by_the_near_end(low: float, high: float, state: str) -> None:
    quality = {"compared": True, "kind": "top1", "drop": (low + high) / 2, "low": low, "high": high}
    (gate,) = judge(Limits(drop=0.005), NOTHING, NOTHING, quality)
    assert gate["state"] == state
    assert "0.5 points allowed" in gate["text"]


def test_without_limits_there_are_no_gates() -> None:
    assert judge(Limits(), ratio(2, 3), ratio(2, 3), NO_QUALITY) == []
    assert enforce([], strict=True) == []


def test_all_broken_gates_are_in_one_message() -> None:
    gates = judge(Limits(slowdown=0.03, growth=0.05), ratio(1.1, 1.2), ratio(1.3, 1.4), NO_QUALITY)
    with pytest.raises(RegressionError) as caught:
        enforce(gates, strict=False)
    for text in ("max-slowdown: median latency", "+10.0 % to +20.0 %", "max-growth: peak memory", "5 % allowed"):
        assert text in str(caught.value)
    assert caught.value.exit_code == 10


def test_an_undecided_gate_is_a_warning_or_with_strict_broken() -> None:
    gates = judge(Limits(slowdown=0.03, growth=0.05), ratio(1.01, 1.05), ratio(0.9, 1.0), NO_QUALITY)
    (warning,) = enforce(gates, strict=False)
    assert "max-slowdown" in warning
    assert "undecided" in warning
    with pytest.raises(RegressionError, match="max-slowdown.*undecided, --strict"):
        enforce(gates, strict=True)


def test_a_gate_that_cannot_be_judged_never_passes() -> None:
    for missing in (NOTHING, {"ratio": 1.0, "low": None, "high": None, "reason": "only one pair: no interval"}):
        gates = judge(Limits(growth=0.05), ratio(0.9, 1.0), missing, NO_QUALITY)
        with pytest.raises(BenchError, match="max-growth.*not compared: (no VmHWM|only one pair)") as caught:
            enforce(gates, strict=False)
        assert caught.value.exit_code == 8
    both = judge(Limits(slowdown=0.03, growth=0.05), ratio(1.1, 1.2), NOTHING, NO_QUALITY)
    with pytest.raises(RegressionError, match="max-slowdown.*max-growth.*not judged"):
        enforce(both, strict=False)


@pytest.mark.parametrize(("factor", "state"), [(1.10, "broken"), (1.0, "held")])
def test_a_planted_slowdown_breaks_its_gate(tmp_path: Path, factor: float, state: str) -> None:
    a, b = recording(tmp_path / "a.json"), recording(tmp_path / "b.json", factor, seed=2)
    (gate,) = compared(a, b, slowdown=0.05)["gates"]
    assert gate["state"] == state


@pytest.mark.parametrize(("grown", "state"), [(1_500_000, "broken"), (0, "held")])
def test_planted_memory_breaks_its_gate(tmp_path: Path, grown: int, state: str) -> None:
    model = (5_000_000, 5_010_000, 5_020_000)
    a = recording(tmp_path / "a.json", model=model)
    b = recording(tmp_path / "b.json", seed=2, model=[value + grown for value in model])
    (gate,) = compared(a, b, growth=0.05)["gates"]
    assert gate["state"] == state


def test_a_gate_on_memory_that_was_not_read_is_an_error(tmp_path: Path) -> None:
    a, b = recording(tmp_path / "a.json"), recording(tmp_path / "b.json", seed=2, model=())
    with pytest.raises(BenchError, match="B: no VmHWM"):
        enforce(compared(a, b, growth=0.05)["gates"], strict=False)


def test_a_gate_on_quality_without_any_is_an_error_before_the_result(tmp_path: Path) -> None:
    a, b = recording(tmp_path / "a.json"), recording(tmp_path / "b.json", seed=2)
    with pytest.raises(BenchError, match="--max-drop cannot be judged: A is a measurement file") as caught:
        compared(a, b, drop=0.01)
    assert "--data" in str(caught.value)


def test_markdown_holds_verdict_intervals_conditions_and_gates(tmp_path: Path) -> None:
    a, b = recording(tmp_path / "a|b.json"), recording(tmp_path / "b<i>.json", 1.1, seed=2)
    text = markdown(compared(a, b, slowdown=0.03, growth=0.05))
    lines = text.splitlines()
    assert lines[0].startswith("**slower: B takes 1.1")
    assert "95 % interval" in lines[0]
    rows = [line for line in lines if line.startswith("| latency, median")]
    assert len(rows) == 1
    assert rows[0].endswith("slower |")
    assert all(line.count(" | ") == 5 for line in lines if line.startswith(("| latency", "| peak", "| artifact")))
    for words in ("BROKEN", "held", "Raspberry Pi 5, 4 CPUs", "recorded apart", "grade: stable", "not compared"):
        assert words in text
    assert "<i>" not in text
    assert r"a\|b.json" in text


@pytest.mark.parametrize("key", ["stable", "unstable"])
def test_the_grade_is_told(tmp_path: Path, key: str) -> None:
    steal = {"steal_share": 0.3 if key == "unstable" else 0.0}
    a, b = recording(tmp_path / "a.json", environment=steal), recording(tmp_path / "b.json", seed=2, environment=steal)
    assert f"- grade: {key}" in markdown(compared(a, b))


def test_memory_and_latency_of_nothing_print_as_nothing(tmp_path: Path) -> None:
    a = tmp_path / "a.json"
    a.write_text(json.dumps(measurement(subject("model", groups(processes=1, calls=30), memory()))))
    found = compared(a, recording(tmp_path / "b.json"))
    assert found["verdict"] == "inconclusive"
    text = markdown(found)
    assert "| latency, p95 | n/a |" in text
    assert "no VmHWM" in text
    assert text.startswith("**inconclusive")
