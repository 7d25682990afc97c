"""The steps of a comparison, each a child process: calibration samples, models, judging, timing."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _peers import environments, watched
from _peers.networks import OPENVINO, ORT
from _peers.records import Json, Records, slug, sources

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
TARGETS = {ORT: ("--target", "host"), OPENVINO: ("--target", "scripts/_peers/host-openvino.toml")}
"""A file is beside ``ROOT``: results tell of no folder of the host."""

LIMIT_SECONDS = 1800.0
MEMORY_SHARE = 0.6
"""Of the machine's memory: a child that holds more is killed before the machine is out of it."""

OURS, STAMP = "edgeopt", ".complete"
RAISED = re.compile(r"[\w.]+(Error|Exception|Failure|Fail|InvalidArgument|NotImplemented|RuntimeException)\b.*:")
"""The last line of a traceback, as it begins."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where things are: the zoo's networks, the cache of the peers, the records."""

    models: Path
    cache: Path
    records: Records

    def work(self, network: str) -> Path:
        return self.cache / "work" / network

    def stamp(self, network: str) -> str:
        """Changes when scripts/zoo makes the network and its data anew."""
        file = self.models / network / STAMP
        return file.read_text(encoding="utf-8") if file.is_file() else ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Made:
    """A model in the form that a runtime takes.

    Attributes:
        source: what ``edgeopt compare`` takes.
        options: of the runtime, as a bundle states them.
        bytes: of the file, or of both files of OpenVINO's form.
    """

    path: Path
    source: str
    bytes: int
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def files(self) -> tuple[Path, ...]:
        return (self.path, self.path.with_suffix(".bin")) if self.path.suffix == ".xml" else (self.path,)


def environment(*paths: Path) -> dict[str, str]:
    """Of a child: threads as its tools take them, nothing of the user's own settings.

    OpenVINO's packages report their use to their maker, but not from machines that say that they are such a one.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OMP_", "OPENBLAS_"))}
    return {**kept, "PYTHONPATH": os.pathsep.join(map(str, paths)), "ORT_DISABLE_TELEMETRY": "1", "CI": "true"}


def child(command: Sequence[Any], folder: Path, *paths: Path, cwd: Path | None = None) -> watched.Watched:
    """Run, with its output kept in ``folder``; one that takes too much time or memory fails."""
    words = [str(word) for word in command]
    limit = int(MEMORY_SHARE * watched.machine_bytes())
    kept = environment(*paths)
    return watched.run(words, folder=folder, cwd=cwd, environment=kept, timeout=LIMIT_SECONDS, limit_bytes=limit)


def why(done: watched.Watched) -> str:
    """The line that says what went wrong: edgeopt's own, else that of the exception, else the last; no folders of the
    host."""
    lines = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.code}").splitlines()
    said = [line for line in lines if line.startswith("error")]
    raised = [line for line in lines if RAISED.match(line)]
    line = (said or raised[-1:] or lines[-1:])[0].strip()
    return line.replace(f"{ROOT}/", "").replace(str(Path.home()), "~")[:300]


def last_json(done: watched.Watched) -> Json:
    found: Json = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def ask_judge(place: Place, network: str, what: str, job: Mapping[str, Any]) -> Json:
    """Run the judge; ``{"error"}`` where it fails."""
    folder = place.work(network) / slug(what)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    python = environments.python_of("edgeopt", place.cache)
    done = child([python, "-m", "_peers.judge", folder / "job.json"], folder, ROOT, HERE.parent)
    return {"error": why(done)} if done.code else last_json(done)


def shape(name: str, dims: Sequence[int]) -> str:
    """As ``--shape`` takes it; a scalar that is one number is a value."""
    return f"{name}={'x'.join(map(str, dims))}"


@functools.cache
def source_digest() -> str:
    """Of the code that builds."""
    return sources(ROOT / "edgeopt", ROOT / "runtime_bench", ROOT / "targets")


@functools.cache
def with_torch() -> Path | None:
    """A Python that has torch: this one, else that of the repository."""
    if importlib.util.find_spec("torch") is not None:
        return Path(sys.executable)
    own = ROOT / ".venv" / "bin" / "python"
    if own.exists():
        done = subprocess.run([own, "-c", "import torch"], check=False, capture_output=True)
        return own if done.returncode == 0 else None
    return None


def size(path: Path) -> int:
    """Of the files that are deployed."""
    return path.stat().st_size + (path.with_suffix(".bin").stat().st_size if path.suffix == ".xml" else 0)
