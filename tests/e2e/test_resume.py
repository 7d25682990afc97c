"""SIGKILL at moments that chance picks: a resumed build gives the bundle of an uninterrupted one, and no other file."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgeopt import bundle
from tests.conftest import clean_environment
from tests.short_sets import NET, short_sets


def command(folder: Path, out: Path, *more: str) -> list[str]:
    calib, judge = (str(folder / f"fashion-mnist-{kind}.toml") for kind in ("calib", "eval"))
    options = ["-t", "raspberry-pi-5", "--effort", "none", "--min-sqnr", "43", "--max-float-macs", "50%"]
    given = ["build", str(NET), "--calib", calib, "--eval", judge, *options, "-o", str(out), *more]
    return [sys.executable, "-m", "edgeopt", *given]


def said(out: Path) -> tuple[str, bytes]:
    assert bundle.verify(out)["ok"]
    return bundle.read(out).manifest["identity"], (out / "decisions.lock").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[str, bytes], float]:
    folder = tmp_path_factory.mktemp("whole")
    short_sets(folder / "sets")
    started = time.monotonic()
    subprocess.run(command(folder / "sets", folder / "out"), env=clean_environment(), check=True, capture_output=True)
    return folder / "sets", said(folder / "out"), time.monotonic() - started


@pytest.mark.parametrize("seed", range(2))
def test_a_build_killed_at_any_moment_goes_on(
    seed: int, whole: tuple[Path, tuple[str, bytes], float], tmp_path: Path
) -> None:
    sets, reference, seconds = whole
    chance = random.Random(seed)
    out = tmp_path / "out"
    for attempt in range(2):
        more = ["--resume"] if attempt else []
        process = subprocess.Popen(
            command(sets, out, *more), env=clean_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(chance.uniform(0.3, 1.0) * seconds)
        process.kill()
        process.wait()
        assert not out.exists() or said(out) == reference
    done = subprocess.run(
        command(sets, out, "--resume"), env=clean_environment(), check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "resume (" in done.stderr
    assert said(out) == reference
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
