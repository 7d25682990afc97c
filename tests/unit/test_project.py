"""The project itself: what the wheel holds, how the scripts make their environment, that files stay short."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def script(name: str) -> ModuleType:
    """Import a Python script of scripts/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names in the wheel, built offline from a copy of the checkout's tracked kinds of files."""
    out = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (built,) = out.glob("*.whl")
    return zipfile.ZipFile(built).namelist()


def test_the_wheel_has_two_top_level_names(wheel: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"edgeopt", "runtime_bench"}
    assert len(tops) == 3


def test_the_wheel_carries_targets_calibration_and_licence(wheel: list[str]) -> None:
    for folder in ("targets", "calibration"):
        data = {f"edgeopt/_share/{folder}/{path.name}" for path in (ROOT / folder).iterdir() if path.is_file()}
        assert data, folder
        assert data <= set(wheel)
    assert "edgeopt/_share/targets/raspberry-pi-5.toml" in wheel
    assert any(name.endswith("licenses/LICENSE") for name in wheel)


def test_the_wheel_carries_every_module_and_no_test(wheel: list[str]) -> None:
    modules = {p.relative_to(ROOT).as_posix() for f in ("edgeopt", "runtime_bench") for p in (ROOT / f).rglob("*.py")}
    assert modules <= set(wheel)
    assert not [name for name in wheel if "__pycache__" in name or name.startswith(("tests", "scripts", "docs"))]


def test_constraints_pin_every_package_once_and_without_local_versions() -> None:
    lines = [x for x in (ROOT / "constraints.txt").read_text().splitlines() if x and not x.startswith("#")]
    assert [x for x in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", x)] == []
    names = [re.sub(r"[-_.]+", "-", x.split("==")[0]).lower() for x in lines]
    assert len(names) == len(set(names))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(r for e in project["optional-dependencies"].values() for r in e)]
    named = {re.sub(r"[-_.]+", "-", re.split(r"[\[<>=!~ ]", r)[0]).lower() for r in wanted} - {"edgeopt"}
    assert named <= set(names)


def test_the_command_line_page_is_up_to_date() -> None:
    docs = script("docs")
    page = docs.PAGE.read_text(encoding="utf-8")
    assert docs.render(page) == page, "run scripts/docs.py"


def test_the_command_line_page_is_compared_for_real() -> None:
    docs = script("docs")
    page = docs.PAGE.read_text(encoding="utf-8")
    changed = page.replace("List, show and check", "List and show", 1)
    assert changed != page
    assert docs.render(changed) != changed


def test_a_file_that_is_too_long_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loc = script("loc")
    (tmp_path / "edgeopt").mkdir()
    (tmp_path / "edgeopt" / "a.py").write_text("x = 1\n" * 301)
    assert loc.main(tmp_path) == 0
    assert "edgeopt/a.py: 301 lines" in capsys.readouterr().out
    (tmp_path / "edgeopt" / "a.py").write_text("x = 1\n" * 401)
    assert loc.main(tmp_path) == 1


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the environment script and a stand-in for Python that only notes what pip is asked for."""
    folder = tmp_path / "a checkout"
    (folder / "scripts").mkdir(parents=True)
    for name in ("scripts/_env.sh", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    stub = tmp_path / "python"
    stub.write_text(
        "#!/bin/sh\n"
        'case "$1 $2" in\n'
        '  "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && echo venv >>"$NOTES" ;;\n'
        '  "-m pip") shift 2; echo "pip $*" >>"$NOTES"; [ -z "$BROKEN" ] || { echo no such package; exit 1; } ;;\n'
        '  --version*) echo "Python 3.11.0" ;;\n'
        "esac\n"
    )
    stub.chmod(0o755)
    return folder


def ready(checkout: Path, level: str, **env: str) -> tuple[int, str, list[str]]:
    """Source the script and ask for an environment: exit code, what was said, what Python was asked to do."""
    notes = checkout.parent / "notes"
    notes.write_text("")
    done = subprocess.run(
        ["bash", "-c", 'set -euo pipefail; . "$1/scripts/_env.sh"; env_ready "$2"', "_", str(checkout), level],
        env={**os.environ, "PYTHON": str(checkout.parent / "python"), "NOTES": str(notes), "BROKEN": "", **env},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr, notes.read_text().splitlines()


def test_an_environment_is_made_once(checkout: Path) -> None:
    code, said, did = ready(checkout, "base")
    assert code == 0
    assert did[0] == "venv"
    assert did[-1].endswith("--no-build-isolation -e .")
    assert "creating .venv with Python 3.11.0" in said
    assert ready(checkout, "base") == (0, "", [])


def test_more_is_added_in_place_and_torch_by_version(checkout: Path) -> None:
    ready(checkout, "base")
    code, _, did = ready(checkout, "dev")
    assert code == 0
    assert "venv" not in did
    assert re.search(r"-c constraints.txt .* torch==[0-9.]+ -e \.\[dev\]$", did[-1])
    assert ready(checkout, "base") == (0, "", [])
    (checkout / "pyproject.toml").write_text("# changed\n")
    _, _, did = ready(checkout, "dev")
    assert did
    assert "venv" not in did


def test_an_environment_is_remade_when_its_pins_changed_or_it_moved(checkout: Path) -> None:
    ready(checkout, "base")
    (checkout / "constraints.txt").write_text("click==8.1.8\n")
    assert "venv" in ready(checkout, "base")[2]
    moved = checkout.with_name("moved")
    checkout.rename(moved)
    assert "venv" in ready(moved, "base")[2]


def test_a_half_made_environment_is_remade(checkout: Path) -> None:
    code, said, _ = ready(checkout, "base", BROKEN="1")
    assert code == 1
    assert "no such package" in said
    assert "install.log" in said
    code, _, did = ready(checkout, "base")
    assert (code, did[0]) == (0, "venv")


def test_an_environment_of_somebody_else_is_left_alone(checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "precious").touch()
    code, said, did = ready(checkout, "base")
    assert (code, did) == (1, [])
    assert "was not made by these scripts" in said
    assert (checkout / ".venv" / "precious").exists()
