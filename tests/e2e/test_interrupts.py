"""SIGINT and SIGTERM while a build works: the documented exit code, the old bundle as it was, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from edgeopt import bundle
from tests.conftest import clean_environment
from tests.short_sets import NET, short_sets


def start(out: Path, temporary: Path) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "edgeopt",
        "build",
        str(NET),
        "-t",
        "raspberry-pi-5",
        "-o",
        str(out),
        "--effort",
        "release",
    ]
    environment = clean_environment(TMPDIR=str(temporary))
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE)


def wait_for(process: subprocess.Popen[bytes], words: bytes) -> None:
    """Read stderr until a finished stage is named: the next one is then at work."""
    assert process.stderr is not None
    seen = b""
    while words not in seen:
        line = process.stderr.readline()
        assert line, seen
        seen += line


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("stage", [b"load", b"judge quality"])
def test_a_signal_leaves_nothing_behind(number: int, code: int, stage: bytes, tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = start(tmp_path / "out", temporary)
    wait_for(process, stage)
    if stage == b"judge quality":
        time.sleep(1.0)  # the measurement has its worker processes by now
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=10)
    assert process.returncode == code, err
    assert b"Traceback" not in err
    assert b"nothing was written" in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tmp"]
    assert list(temporary.iterdir()) == []
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive


def test_after_a_kill_the_old_bundle_stands_and_the_next_build_cleans_up(tmp_path: Path) -> None:
    from edgeopt.pipeline import Request, build

    calib, evaluate = short_sets(tmp_path / "tmp sets")
    brief = Request(
        model=NET, target="raspberry-pi-5", out=tmp_path / "out", effort="none", calib=calib, evaluate=evaluate
    )
    first = build(brief)
    process = start(tmp_path / "out", Path(tempfile.mkdtemp(dir=tmp_path, prefix="tmp")))
    wait_for(process, b"judge quality")
    process.kill()
    process.communicate(timeout=10)
    assert bundle.verify(tmp_path / "out")["ok"]
    assert bundle.read(tmp_path / "out").manifest["identity"] == first.manifest["identity"]
    build(brief)
    assert [p.name for p in tmp_path.iterdir() if not p.name.startswith("tmp")] == ["out"]
