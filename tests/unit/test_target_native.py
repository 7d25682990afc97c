"""The key ``optimized`` of a profile, and ``extends = "host"``, which can turn it off."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeopt.errors import TargetError
from edgeopt.target import check_target, list_targets, load_target, target_dict

HEAD = 'schema = "edgeopt.target/1"\nname = "mine"\ndescription = "mine"\n'


def profile(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(HEAD + text)
    return path


def test_this_machine_is_native_and_every_named_profile_portable() -> None:
    assert load_target("host").optimized == "native"
    assert target_dict(load_target("host"))["optimized"] == "native"
    assert {load_target(i.name).optimized for i in list_targets() if i.name != "host"} == {"portable"}


def test_a_profile_that_extends_this_machine_can_turn_it_off(tmp_path: Path) -> None:
    here = target_dict(load_target("host"))
    same = target_dict(load_target(str(profile(tmp_path, 'extends = "host"\n'))))
    assert {**same, "name": "host", "description": here["description"]} == here
    off = load_target(str(profile(tmp_path, 'extends = "host"\noptimized = "portable"\nthreads = 1\n')))
    assert (off.name, off.optimized, off.threads, list(off.isa)) == ("mine", "portable", 1, list(here["isa"]))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('extends = "host"\nformat = "ort"\n', 'optimized: "native" needs format = "onnx"'),
        ('extends = "host"\noptimized = "fast"\n', "optimized: "),
        (
            'extends = "jetson"\noptimized = "native"\nbackends = ["tensorrt"]\n',
            'optimized: "native" is a form of onnxruntime\'s files, which backends does not list',
        ),
        ('extends = "hots"\n', 'Did you mean "host"?'),
    ],
)
def test_contradictions_are_named(text: str, problem: str, tmp_path: Path) -> None:
    path = profile(tmp_path, text)
    assert any(problem in found for found in check_target(path)), check_target(path)
    with pytest.raises(TargetError):
        load_target(str(path))
