"""K01, C02: the same bytes each time, all or nothing at the destination."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

import runtime_bench
from edgeopt import bundle
from edgeopt.bundle import Content, destination
from edgeopt.bundle import write as write_function
from edgeopt.bundle.layout import parse_sums
from edgeopt.errors import BundleError
from tests.conftest import clean_environment
from tests.unit.bundle.content import listing, sample_content

writing = sys.modules[write_function.__module__]


def tree(root: Path) -> dict[str, tuple[int, str]]:
    """Mode and sha256 (empty for folders) of everything below a folder, by relative path."""
    found = {}
    for path in sorted(root.rglob("*")):
        digest = "" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
        found[path.relative_to(root).as_posix()] = (stat.S_IMODE(path.lstat().st_mode), digest)
    return found


def renamed(content: Content, name: str) -> Content:
    return dataclasses.replace(content, manifest={**content.manifest, "name": name})


def test_lists_cover_every_file_and_coreutils_agrees(tmp_path: Path) -> None:
    written = bundle.write(tmp_path / "out", sample_content())
    root = written.root
    device = parse_sums((root / "SHA256SUMS").read_text(), "SHA256SUMS")
    records = parse_sums((root / "RECORDS.sha256").read_text(), "RECORDS.sha256")
    files = {path for path, (_, digest) in tree(root).items() if digest}
    assert files == device.keys() | records.keys() | {"RECORDS.sha256"}
    assert set(sample_content().device_files) == device.keys()
    assert {"manifest.json", "SHA256SUMS", "report.html"} <= records.keys()
    assert list(device) == sorted(device)
    assert {path: entry["sha256"] for path, entry in written.manifest["files"].items()} == device
    assert all((root / path).stat().st_size == entry["bytes"] for path, entry in written.manifest["files"].items())
    for sums in ("SHA256SUMS", "RECORDS.sha256"):
        subprocess.run(["sha256sum", "--check", "--strict", "--quiet", sums], cwd=root, check=True)
    (root / "report.md").write_bytes(b"changed")
    assert subprocess.run(["sha256sum", "--check", "--status", "RECORDS.sha256"], cwd=root, check=False).returncode == 1


def test_manifest_on_disk_is_the_one_returned_and_the_one_announced(tmp_path: Path) -> None:
    written = bundle.write(tmp_path / "out", sample_content())
    assert json.loads((tmp_path / "out/manifest.json").read_bytes()) == written.manifest
    assert bundle.read(tmp_path / "out").manifest == written.manifest
    assert bundle.seal(sample_content()) == written.manifest
    sums = {path: entry["sha256"] for path, entry in written.manifest["files"].items()}
    assert written.manifest["identity"] == runtime_bench.identity(written.manifest, sums)


def test_identity_covers_the_contract_and_nothing_measured() -> None:
    content = sample_content()
    identity = bundle.seal(content)["identity"]
    measured = {**content.manifest, "measured_on": {"is_target": True, "machine": "m", "note": ""}, "edgeopt": "9"}
    reported = {**content.record_files, "report.html": b"other"}
    other = dataclasses.replace(content, manifest=measured, record_files=reported)
    assert bundle.seal(other)["identity"] == identity
    run = {**content.manifest["run"], "threads": 2}
    assert bundle.seal(dataclasses.replace(content, manifest={**content.manifest, "run": run}))["identity"] != identity
    flipped = {**content.device_files, "bench.pyz": b"other"}
    assert bundle.seal(dataclasses.replace(content, device_files=flipped))["identity"] != identity


SCRIPT = """
import os, sys
from pathlib import Path
os.umask(int(sys.argv[2], 8))
os.chdir(sys.argv[3])
from edgeopt import bundle
from tests.unit.bundle.content import sample_content
content = sample_content()
source = Path("source"); source.mkdir()
files = list(content.device_files.items())
for number, (path, data) in enumerate(files if sys.argv[4] == "first" else files[::-1]):
    file = source / str(number)
    file.write_bytes(data)
    os.utime(file, (number, int(sys.argv[5])))
    content.device_files[path] = file
content = bundle.Content(
    manifest=content.manifest,
    device_files=dict(content.device_files if sys.argv[4] == "first" else reversed(content.device_files.items())),
    record_files=content.record_files,
)
print(bundle.write(Path(sys.argv[1]), content).manifest["identity"])
"""


def test_two_writes_in_different_surroundings_give_the_same_bytes(tmp_path: Path) -> None:
    seen = []
    for number, (umask, order, zone, seed) in enumerate(
        [("077", "first", "UTC", "1"), ("000", "last", "Asia/Tokyo", "2")]
    ):
        here = tmp_path / f"cwd {number}"
        here.mkdir()
        out = tmp_path / str(number) / "out"
        out.parent.mkdir()
        environment = clean_environment(TZ=zone, PYTHONHASHSEED=seed, SOURCE_DATE_EPOCH=str(number))
        command = [sys.executable, "-c", SCRIPT, str(out), umask, str(here), order, str(10**9 * number)]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        seen.append((done.stdout, tree(out), (out / "SHA256SUMS").read_bytes(), stat.S_IMODE(out.stat().st_mode)))
    assert seen[0] == seen[1]
    assert seen[0][3] == 0o755
    assert {mode for mode, digest in seen[0][1].values() if digest} == {0o644}
    assert {mode for mode, digest in seen[0][1].values() if not digest} == {0o755}


class Interrupter:
    """Stands for a module: calls pass through, and the one with the chosen number raises KeyboardInterrupt, once."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.armed = True

    def wrap(self, function: object, *, after: bool) -> object:
        def call(*args: object, **kwargs: object) -> object:
            self.left -= self.armed
            if self.armed and self.left < 0:
                self.armed = False
                if after:
                    function(*args, **kwargs)  # type: ignore[operator]
                raise KeyboardInterrupt
            return function(*args, **kwargs)  # type: ignore[operator]

        return call


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("after", [True, False])
def test_interrupted_anywhere_leaves_the_old_or_the_new_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool, after: bool
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # hundreds of writes
    old, new = sample_content(), dataclasses.replace(sample_content(), record_files={"README.md": b"new\n"})
    trees = []
    for content in (old, new):
        bundle.write(tmp_path / "reference", content)
        trees.append(tree(tmp_path / "reference"))
        shutil.rmtree(tmp_path / "reference")
    if not exchange:
        monkeypatch.setattr(destination, "_exchange", lambda one, other: False)
    outcomes = []
    for number in range(1000):
        place = tmp_path / str(number) / "out"
        bundle.write(place, old)
        interrupter = Interrupter(number)
        with monkeypatch.context() as patch:
            for name in ("mkdir", "rename", "chmod"):
                patch.setattr(Path, name, interrupter.wrap(getattr(Path, name), after=after))
            for name in ("fsync", "fchmod", "rmdir", "unlink", "scandir"):
                # a call that returns a resource is interrupted before it only: after it there is nobody to free it
                patch.setattr(os, name, interrupter.wrap(getattr(os, name), after=after and name != "scandir"))
            try:
                bundle.write(place, new)
            except KeyboardInterrupt:
                outcomes.append(trees.index(tree(place)))
        assert [path.name for path in place.parent.iterdir()] == ["out"], number
        if interrupter.armed:
            break
    assert tree(place) == trees[1]
    assert outcomes == sorted(outcomes)  # the old one until the swap, the new one from then on
    assert outcomes.count(0) > 20
    assert outcomes.count(1) > 5


def test_first_write_interrupted_leaves_nothing_not_even_new_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupter = Interrupter(7)
    monkeypatch.setattr(os, "fsync", interrupter.wrap(os.fsync, after=False))
    with pytest.raises(KeyboardInterrupt):
        bundle.write(tmp_path / "a/b/out", sample_content())
    assert list(tmp_path.iterdir()) == []


def test_failing_swap_brings_the_old_bundle_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "out"
    bundle.write(place, sample_content())
    before = tree(place)
    monkeypatch.setattr(destination, "_exchange", lambda one, other: False)
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), str(target))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(BundleError, match="Operation not permitted"):
        bundle.write(place, sample_content())
    assert tree(place) == before
    assert listing(tmp_path) == ["out"]


KILLED = """
import os, signal, sys
from pathlib import Path
from edgeopt import bundle
from edgeopt.bundle import destination
from tests.unit.bundle.content import sample_content
if sys.argv[2] == "between renames":
    destination._exchange = lambda one, other: False
    rename = Path.rename
    def die(self, target):
        if self.name == "new":
            os.kill(os.getpid(), signal.SIGKILL)
        return rename(self, target)
    Path.rename = die
else:
    count = iter(range(9))
    fsync = os.fsync
    os.fsync = lambda fd: fsync(fd) if next(count, None) is not None else os.kill(os.getpid(), signal.SIGKILL)
bundle.write(Path(sys.argv[1]), sample_content())
"""


@pytest.mark.parametrize("moment", ["while writing", "between renames"])
def test_leftovers_of_a_killed_run_are_swept_by_the_next(tmp_path: Path, moment: str) -> None:
    place = tmp_path / "out"
    if moment == "between renames":
        bundle.write(place, sample_content())
    command = [sys.executable, "-c", KILLED, str(place), moment]
    done = subprocess.run(command, env=clean_environment(), check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (leftover,) = tmp_path.glob(".*")
    assert leftover.name.startswith(".out.edgeopt-")
    assert not place.exists()
    assert bundle.sweep(tmp_path) == [leftover]
    assert not leftover.exists()
    if moment == "between renames":  # the new one was complete, so it is the one that stands
        subprocess.run(["sha256sum", "--check", "--quiet", "RECORDS.sha256"], cwd=place, check=True)
    bundle.write(place, sample_content())
    assert listing(tmp_path) == ["out"]


def test_sweep_leaves_live_runs_and_what_is_not_ours(tmp_path: Path) -> None:
    look_alikes = {
        ".out.edgeopt-abcd1234": None,  # empty and fresh: its owner may be about to mark it
        ".out.edgeopt-full0000": b"",
        ".out.edgeopt-other000": b'{"schema":"something else"}',
        ".out.edgeopt-broken00": b'{"schema":"edgeopt.staging/1","destination":"zz"}',
        "plain": b'{"schema":"edgeopt.staging/1","destination":"6f7574"}',
    }
    for name, marker in look_alikes.items():
        (tmp_path / name).mkdir()
        if marker is not None:
            (tmp_path / name / destination.MARKER).write_bytes(marker)
            (tmp_path / name / "data").write_bytes(b"mine")
    (tmp_path / ".out.edgeopt-link0000").symlink_to(tmp_path / "plain")
    with destination.staging(tmp_path / "out") as folder:
        assert bundle.sweep(tmp_path) == []
        assert folder.is_dir()
    os.utime(tmp_path / ".out.edgeopt-abcd1234", (0, 0))
    assert bundle.sweep(tmp_path) == [tmp_path / ".out.edgeopt-abcd1234"]
    assert bundle.sweep(tmp_path / "absent") == []
    assert len(listing(tmp_path)) == len(look_alikes)


def test_two_builds_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    with destination.staging(tmp_path / "out") as folder:
        bundle.write(tmp_path / "out", sample_content())
        assert folder.is_dir()
    assert listing(tmp_path) == ["out"]


def test_full_disk_is_said_with_the_shortfall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing.shutil, "disk_usage", lambda path: SimpleNamespace(free=100_000))
    with pytest.raises(BundleError, match=r"needs 0\.3 MB and .* has 0\.1 MB free: 0\.2 MB short") as caught:
        bundle.write(tmp_path / "out", sample_content())
    assert caught.value.exit_code == 9
    assert listing(tmp_path) == []


def test_disk_that_fills_up_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle.write(tmp_path / "out", sample_content())
    before = tree(tmp_path / "out")
    calls = iter(range(5))

    def full(descriptor: int) -> None:
        if next(calls, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BundleError, match="is full: No space left on device while the bundle was written") as caught:
        bundle.write(tmp_path / "out", sample_content())
    assert "Free some space" in str(caught.value.remedy)
    assert tree(tmp_path / "out") == before
    assert listing(tmp_path) == ["out"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_really_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    script = textwrap.dedent("""
        mount -t tmpfs -o size=128k tmpfs "$1" || exit 77
        exec "$2" -c 'import sys, os
        from pathlib import Path
        from edgeopt import bundle, errors
        from edgeopt.bundle import write
        from tests.unit.bundle.content import sample_content
        sys.modules[write.__module__]._check_space = lambda *_: None
        try:
            bundle.write(Path(sys.argv[1]) / "out", sample_content())
        except errors.BundleError as error:
            print(error.message, os.listdir(sys.argv[1]))' "$1"
    """)
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(disk), sys.executable]
    done = subprocess.run(command, env=clean_environment(), check=False, capture_output=True, text=True)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("no private mounts here")
    assert "is full: No space left on device" in done.stdout, done.stderr
    assert done.stdout.endswith(" []\n")


def test_sources_must_be_regular_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    content = sample_content()
    for source, words in ((tmp_path / "pipe", "is not a regular file"), (tmp_path / "absent", "No such file")):
        broken = dataclasses.replace(content, record_files={"report.md": source})
        with pytest.raises(BundleError, match=words):
            bundle.write(tmp_path / "out", broken)
    assert listing(tmp_path) == ["pipe"]


def test_manifest_and_files_must_fit(tmp_path: Path) -> None:
    content = sample_content()
    without = {path: data for path, data in content.device_files.items() if path != "golden/000.int8.0.npy"}
    with pytest.raises(BundleError, match=r"golden/000\.int8\.0\.npy, which 'files' does not list"):
        bundle.seal(dataclasses.replace(content, device_files=without))
    other = {**content.device_files, "model/gesture-net.int8.onnx": b"another model"}
    with pytest.raises(BundleError, match="has two digests"):
        bundle.write(tmp_path / "out", dataclasses.replace(content, device_files=other))
    entry = {**content.manifest["artifacts"][0], "bytes": 1}
    artifacts = [entry, content.manifest["artifacts"][1]]
    with pytest.raises(BundleError, match="is not the size of the file"):
        bundle.seal(dataclasses.replace(content, manifest={**content.manifest, "artifacts": artifacts}))
    with pytest.raises(ValueError, match="the writer sets"):
        bundle.seal(dataclasses.replace(content, manifest={**content.manifest, "files": {}}))
    assert listing(tmp_path) == []


@pytest.mark.parametrize("name", ["manifest.json", "SHA256SUMS", "Report.html", "report.html/x", "../evil"])
def test_file_that_collides_or_leaves_is_refused(tmp_path: Path, name: str) -> None:
    content = sample_content()
    with pytest.raises(BundleError):
        bundle.write(tmp_path / "out", dataclasses.replace(content, record_files={**content.record_files, name: b""}))
    assert listing(tmp_path) == []


def test_bundle_of_another_model_is_not_replaced(tmp_path: Path) -> None:
    bundle.write(tmp_path / "out", sample_content())
    before = tree(tmp_path / "out")
    with pytest.raises(BundleError, match="holds a bundle of 'gesture-net', not of 'other'"):
        bundle.write(tmp_path / "out", renamed(sample_content(), "other"))
    assert tree(tmp_path / "out") == before
