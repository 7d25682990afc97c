"""``edgeopt compare`` as a release script meets it: exit codes, what is printed before a gate fails, files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeopt.cli import group
from edgeopt.cli._run import run
from tests.unit.comparing import bundles
from tests.unit.comparing.bundles import labelled_set, model, outcomes, scores
from tests.unit.recordings import groups, measurement, memory, recording, subject

Call = Callable[..., tuple[int, str, str]]
EYE = np.eye(8, 5, dtype=np.float32)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """``call(a, b, ...)``: exit code, stdout, stderr."""

    def runs(*args: str | Path) -> tuple[int, str, str]:
        code = run(group, ["compare", *(str(a) for a in args)])
        return code, *capsys.readouterr()

    return runs


@pytest.fixture
def pair(tmp_path: Path) -> Callable[[float], tuple[Path, Path]]:
    """Two recordings, the second so many times as slow."""
    return lambda factor: (recording(tmp_path / "a.json"), recording(tmp_path / "b.json", factor, seed=2))


Pair = Callable[[float], tuple[Path, Path]]


def test_the_verdict_comes_first(call: Call, pair: Pair) -> None:
    code, out, err = call(*pair(1.1), "--quiet")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("slower: B takes 1.")
    (median,) = [line for line in lines if line.startswith("latency, median")]
    assert median.endswith("slower")
    assert any(line.startswith("peak memory, runtime and model") for line in lines)
    for text in ("a.json", "b.json", "recorded apart", "Raspberry Pi 5, 4 CPUs", "standard effort", "stable"):
        assert text in out


@pytest.mark.parametrize(
    ("factor", "code", "words"),
    [
        (1.10, 10, "max-slowdown: median latency +"),
        (1.00, 0, ""),
        (1.05, 0, "undecided"),
        (0.90, 0, ""),
    ],
)
def test_a_gate_sets_the_exit_code(call: Call, pair: Pair, factor: float, code: int, words: str) -> None:
    got, out, err = call(*pair(factor), "--max-slowdown", "5%", "--quiet")
    assert got == code
    assert "B takes" in out  # the result is there whatever the gate says
    assert words in err
    assert err.startswith("error: " if code else "warning: " if words else "")


def test_strict_fails_on_undecided(call: Call, pair: Pair) -> None:
    code, out, err = call(*pair(1.05), "--max-slowdown", "5%", "--strict")
    assert code == 10
    assert "--strict" in err
    assert "undecided" in out


def test_every_broken_gate_is_named_at_once(call: Call, tmp_path: Path) -> None:
    a = recording(tmp_path / "a.json")
    b = recording(tmp_path / "b.json", 1.3, seed=2, model=(9_000_000, 9_010_000, 9_020_000))
    code, _, err = call(a, b, "--max-slowdown", "3%", "--max-growth", "0.05", "--quiet")
    assert code == 10
    assert "max-slowdown" in err
    assert "max-growth" in err
    assert len(err.splitlines()) == 1


def test_a_gate_without_a_figure_is_exit_8(call: Call, tmp_path: Path) -> None:
    a, b = recording(tmp_path / "a.json"), recording(tmp_path / "b.json", seed=2, model=())
    code, out, err = call(a, b, "--max-growth", "5%")
    assert code == 8
    assert "no VmHWM" in err
    assert "B takes" in out
    code, out, err = call(a, b, "--max-drop", "1%")
    assert (code, out) == (8, "")
    assert "--max-drop cannot be judged" in err


@pytest.mark.parametrize("text", ["3", "-3%", "x", "", "200%"])
def test_a_limit_that_is_no_share_is_wrong_usage(call: Call, pair: Pair, text: str) -> None:
    code, out, err = call(*pair(1), f"--max-drop={text}")
    assert (code, out) == (2, "")
    assert "--max-drop" in err


def test_unlike_conditions_are_the_first_lines(call: Call, tmp_path: Path) -> None:
    a, b = recording(tmp_path / "a.json"), recording(tmp_path / "b.json", seed=2, threads=4)
    code, out, err = call(a, b)
    assert (code, out) == (8, "")
    assert "threads: 1 against 4" in err
    code, out, _ = call(a, b, "--allow-unlike")
    assert code == 0
    assert out.splitlines()[0].split() == ["UNLIKE", "threads:", "1", "against", "4"]
    assert call(a, b, "--allow-unlike", "--markdown")[1].startswith("**Unlike conditions: threads: 1 against 4**")


def test_an_unstable_measurement_is_told_on_stderr(call: Call, tmp_path: Path) -> None:
    a = recording(tmp_path / "a.json")
    b = recording(tmp_path / "b.json", seed=2, environment={"steal_share": 0.3})
    code, out, err = call(a, b, "--json", "--quiet")
    assert code == 0
    assert err.startswith("warning: the measurement of B is unstable: ")
    assert json.loads(out)["b"]["grade"] == "unstable"
    assert "unstable" in call(a, b)[1]


def test_json_is_pure_and_holds_the_gates(call: Call, pair: Pair) -> None:
    code, out, _ = call(*pair(1.1), "--json", "--max-slowdown", "5%", "--quiet")
    found = json.loads(out)
    assert code == 10
    assert found["schema"] == "edgeopt.comparison/1"
    assert [gate["state"] for gate in found["gates"]] == ["broken"]
    assert out.isascii()


def test_markdown_is_a_table(call: Call, pair: Pair) -> None:
    code, out, _ = call(*pair(1.1), "--markdown", "--quiet")
    assert code == 0
    assert "| figure | A | B | B / A | 95 % interval | verdict |" in out
    assert call(*pair(1.1), "--markdown", "--json")[0] == 2


def test_the_file_is_written_whole_also_when_a_gate_fails(call: Call, pair: Pair, tmp_path: Path) -> None:
    out_file = tmp_path / "result.json"
    code, out, err = call(*pair(1.1), "-o", out_file, "--max-slowdown", "5%", "--quiet")
    assert code == 10
    assert json.loads(out_file.read_text())["verdict"] == "slower"
    assert "slower" in out
    assert str(out_file) in err
    assert call(*pair(1.0), "-o", out_file, "--quiet")[0] == 0  # its own file may be replaced
    assert json.loads(out_file.read_text())["verdict"] == "equivalent"


def test_a_file_of_somebody_else_is_left_alone(call: Call, pair: Pair, tmp_path: Path) -> None:
    a, b = pair(1.0)
    before = a.read_bytes()
    for path in (a, tmp_path, tmp_path / "no" / "where.json"):
        code, out, _ = call(a, b, "-o", path)
        assert (code, out) == (8, "")
    assert a.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json"]


def test_a_refused_comparison_leaves_no_file(call: Call, tmp_path: Path) -> None:
    a, b = recording(tmp_path / "a.json"), recording(tmp_path / "b.json", seed=2, threads=4)
    assert call(a, b, "-o", tmp_path / "result.json")[0] == 8
    assert not (tmp_path / "result.json").exists()


@pytest.mark.parametrize(
    "option", [("--effort", "quick"), ("--seconds", "5"), ("--threads", "2"), ("--shape", "x=1x8")]
)
def test_options_that_mean_nothing_to_recordings_are_refused(call: Call, pair: Pair, option: tuple[str, str]) -> None:
    code, out, err = call(*pair(1.0), *option)
    assert (code, out) == (2, "")
    assert f"{option[0]} means nothing" in err


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ('{"schema": "edgeopt.measurement/1"}', 8, "measured by an older version"),
        ('{"schema": "edgeopt.measurement/2", "subje', 8, "not valid JSON"),
        ("{}", 8, "no measurement"),
    ],
)
def test_a_bad_file_is_one_line_and_what_to_do(call: Call, tmp_path: Path, text: str, code: int, words: str) -> None:
    a, b = recording(tmp_path / "a.json"), tmp_path / "b.json"
    b.write_text(text)
    got, out, err = call(a, b)
    assert (got, out) == (code, "")
    assert words in err
    assert len(err.strip().splitlines()) <= 3  # a stage that failed, the error, what to do


def test_missing_paths_have_the_codes_of_what_they_would_be(call: Call, tmp_path: Path) -> None:
    there = recording(tmp_path / "there.json")
    assert call(tmp_path / "no.onnx", there)[0] == 3
    assert call(tmp_path / "ther.json", there)[0] == 8
    assert 'Did you mean "there.json"' in call(tmp_path / "ther.json", there)[2]
    (tmp_path / "folder").mkdir()
    assert call(tmp_path / "folder", there)[0] == 9
    assert call(there)[0] == 2


def test_names_in_files_cannot_write_on_the_terminal(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    name = "\x1b[31mred\x1b[0m"
    path.write_text(json.dumps(measurement(subject(name, groups(processes=3, calls=30), memory(5, 6, 7)))))
    code, out, err = call(path, recording(tmp_path / "b.json"), "--quiet")
    assert code == 0
    assert "\x1b" not in out + err


def test_two_bundles_with_a_planted_drop(call: Call, tmp_path: Path) -> None:
    """Recorded outcomes of one evaluation set: 40 of 200 lost is a drop, 1 of 200 is none that could be shown."""
    made = measurement(subject("int8", groups()))
    other = measurement(subject("int8", groups(seed=5)))
    right = [1] * 200
    a = bundles.make(tmp_path / "a", measurement=made, outcomes=outcomes(right))
    good = bundles.make(tmp_path / "good", measurement=other, outcomes=outcomes([0, *right[1:]]))
    bad = bundles.make(tmp_path / "bad", measurement=other, outcomes=outcomes([0] * 40 + right[40:]))
    code, out, err = call(a, good, "--recorded", "--max-drop", "5%", "--quiet")
    assert (code, err) == (0, "")
    assert "drop +0.50 points" in out
    code, _, err = call(a, bad, "--recorded", "--max-drop", "5%", "--quiet")
    assert code == 10
    assert "max-drop: drop in top1 +20.0 points" in err


def test_two_models_are_measured_and_judged_for_real(call: Call, tmp_path: Path) -> None:
    """B gives half of the answers wrong: its gate is broken whatever the times on this machine are."""
    a = model(tmp_path / "a.onnx", scores([3, 0, 0, 0, 0], [0, 3, 0, 0, 0]))
    b = model(tmp_path / "b.onnx", scores([3, 0, 0, 0, 0], [3, 0, 0, 0, 0]))
    data = labelled_set(tmp_path / "set", [0, 1] * 30, [0, 1] * 30)
    result = tmp_path / "result.json"
    options = (
        "--effort",
        "quick",
        "--seconds",
        "4",
        "--threads",
        "1",
        "--data",
        data,
        "--max-drop",
        "10%",
        "-o",
        result,
    )
    code, out, err = call(a, b, *options)
    assert code == 10, err
    assert "max-drop: drop in top1 +50.0 points" in err
    assert "measured now, in alternation" in out
    found = json.loads(result.read_text())
    assert found["quality"]["drop"] == 0.5
    assert found["latency"]["median"]["pairs"] >= 1
    assert found["memory"]["peak"]["a_bytes"] > 1_000_000
    assert found["measurement"]["schema"] == "edgeopt.measurement/2"
    assert [s["name"] for s in found["measurement"]["subjects"]] == ["A", "B"]


def test_measured_bundles_print_their_conditions(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(subjects: Any, samples: Any, **settings: Any) -> Any:
        made = [subject(s.name, groups(seed=i), file=s.file) for i, s in enumerate(subjects)]
        return measurement(*made, threads=settings["threads"])

    monkeypatch.setattr("runtime_bench.measure", fake)
    a, b = bundles.make(tmp_path / "a"), bundles.make(tmp_path / "b", weights=EYE)
    code, out, err = call(a, b, "--max-slowdown", "5%")
    assert code == 0, err
    assert "model/m.int8.onnx" in out
    assert "gate held" in out
    assert "3 golden samples of A" in out
    assert "measure A and B (standard)" in err
