"""The project file: what it says, what wins over it, what it refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from edgeopt import project as module
from edgeopt.errors import TargetError
from edgeopt.project import Settings, budget_of, find_project, read_project
from edgeopt.target import load_target

ROOT = Path(__file__).resolve().parents[2]
HEAD = 'schema = "edgeopt.project/1"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "edgeopt.toml"
    path.write_text(HEAD + text, encoding="utf-8")
    return path


def test_paths_start_from_the_folder_of_the_file(tmp_path: Path) -> None:
    found = read_project(write(tmp_path, 'model = "a/net.onnx"\ncalib = "random"\neval = "e.toml"\n')).settings
    assert found.model == str(tmp_path / "a/net.onnx")
    assert (found.calib, found.evaluate) == ("random", str(tmp_path / "e.toml"))
    assert read_project(write(tmp_path, 'model = "nets.small:make"\n')).settings.model == "nets.small:make"


def test_a_target_says_what_it_wants_instead(tmp_path: Path) -> None:
    text = (
        'max_drop = "1%"\n[budget]\nmemory = "64MB"\np95 = "20ms"\n[shapes]\nx = [1, 3, 8, 8]\n'
        '[targets.rpi5]\nmax_drop = "2%"\nbudget = { p99 = "9ms" }\nshapes = { y = "1x4" }\n'
    )
    found = read_project(write(tmp_path, text))
    ours = found.for_target(load_target("raspberry-pi-5"))
    assert ours.budget == {"memory": "64MB", "p99": "9ms"}
    assert ours.shapes == {"x": "1x3x8x8", "y": "1x4"}
    limits = budget_of(ours)
    assert (limits.peak_bytes, limits.latency_ms, limits.latency_percentile, limits.max_drop) == (64e6, 9, 0.99, 0.02)
    other = found.for_target(load_target("x86-avx2"))
    assert (other.budget, other.max_drop) == ({"memory": "64MB", "p95": "20ms"}, "1%")


def test_flags_win_key_by_key() -> None:
    below = Settings(calib="a", effort="release", budget={"memory": "1MB", "p95": "1ms"}, exclude=("x",))
    found = Settings(calib="b", budget={"p50": "2ms"}).over(below)
    assert (found.calib, found.effort, found.exclude) == ("b", "release", ("x",))
    assert found.budget == {"memory": "1MB", "p50": "2ms"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('modle = "x"', 'modle: unknown key. Did you mean "model"?'),
        ("[targets.raspbery-pi-5]", 'unknown target. Did you mean "raspberry-pi-5"?'),
        ('[targets.rpi5]\nmodle = "x"', "targets.rpi5.modle: unknown key"),
        ('[targets.rpi5]\ntarget = "x"', "targets.rpi5.target: unknown key"),
        ('effort = "long"', 'effort: unknown value "long"'),
        ('[budget]\nmemory = "64"', 'budget memory: "64" has no unit'),
        ('[budget]\nmemry = "64MB"', 'unknown limit "memry". Did you mean "memory"?'),
        ('[budget]\np50 = "1ms"\np95 = "1ms"', "more than one limit for latency"),
        ('max_drop = "two"', "max-drop"),
        ('fold_limit = "big"', "fold_limit: "),
        ('fold_limit = "big"', ': fold_limit: "big" is not'),
        ('name = "../x"', 'name: "../x" cannot name a bundle; write "x"'),
        ('name = "/abs"', "name: "),
        ("seconds = 0.5", "seconds: must be a number, 1 or more"),
        ("[shapes]\nx = [1, 0, -4]", "x"),
        ('[targets.rpi5]\nmax_drop = "two"', "targets.rpi5.max-drop: "),
        ("max_drop = 5", "max_drop: must be a text, got 5."),
        ("threads = 0", "threads: must be 1 or more"),
        ("[shapes]\nx = 3", "shapes.x: must be a text"),
        ("trust_pickle = true", "trust_pickle: unknown key"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(TargetError) as caught:
        read_project(write(tmp_path, text + "\n"))
    assert said in caught.value.message
    assert caught.value.message.startswith(str(tmp_path / "edgeopt.toml"))


def test_a_bad_value_is_one_problem(tmp_path: Path) -> None:
    for text in ("max_drop = 5", '[budget]\nmemory = "64"', "[shapes]\nx = [1, 0]", 'fold_limit = "2"'):
        with pytest.raises(TargetError) as caught:
            read_project(write(tmp_path, text + "\n"))
        assert "problems" not in caught.value.message, text


def test_a_newer_schema_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "edgeopt.toml"
    path.write_text('schema = "edgeopt.project/2"\n')
    with pytest.raises(TargetError, match="of a newer edgeopt"):
        read_project(path)


def test_seconds_may_be_a_fraction(tmp_path: Path) -> None:
    assert read_project(write(tmp_path, "seconds = 2.5\n")).settings.seconds == 2.5


def test_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "edgeopt.toml"
    path.write_text('schema = "edgeopt.target/1"\n')
    with pytest.raises(TargetError, match="schema: unknown value"):
        read_project(path)


def test_it_is_looked_for_in_the_folder_only(tmp_path: Path) -> None:
    assert find_project(tmp_path) is None
    path = write(tmp_path, "")
    (tmp_path / "below").mkdir()
    assert find_project(tmp_path) == path
    assert find_project(tmp_path / "below") is None


def test_the_page_is_true(tmp_path: Path) -> None:
    page = (ROOT / "docs/project-file.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "edgeopt.toml"
    path.write_text(example)
    read_project(path)
    for key in ("schema", "target", "targets", *module._KEYS):
        assert f"`{key}`" in page, key
