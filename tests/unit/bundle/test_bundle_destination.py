"""C03: where a bundle may go. Nothing that is not ours is ever replaced, and this is said before any work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgeopt import bundle
from edgeopt.errors import BundleError
from tests.conftest import clean_environment
from tests.unit.bundle.content import listing, sample_content


def check(place: Path, name: str = "gesture-net") -> None:
    bundle.check_destination(place, name)


def refused(place: Path, words: str) -> BundleError:
    before = sorted(str(path) for path in place.parent.rglob("*")) if place.parent.is_dir() else []
    with pytest.raises(BundleError, match=words) as caught:
        check(place)
    assert caught.value.exit_code == 9
    assert caught.value.remedy
    after = sorted(str(path) for path in place.parent.rglob("*")) if place.parent.is_dir() else []
    assert before == after
    return caught.value


def test_free_places(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for place in ("absent", "empty", "not/yet/there", "spaces and ü"):
        check(tmp_path / place)
    assert listing(tmp_path) == ["empty"]


def test_bundle_of_the_same_model(tmp_path: Path) -> None:
    bundle.write(tmp_path / "out", sample_content())
    check(tmp_path / "out")
    (tmp_path / "out" / "diary.jsonl").unlink()  # less than a bundle is still ours
    check(tmp_path / "out")


def test_bundle_of_another_model(tmp_path: Path) -> None:
    bundle.write(tmp_path / "out", sample_content())
    with pytest.raises(BundleError, match="holds a bundle of 'gesture-net', not of 'other'"):
        check(tmp_path / "out", "other")


@pytest.mark.parametrize("stranger", ["notes.txt", "model/mine.onnx", "bench-on-the-board.json"])
def test_files_of_the_user_inside_a_bundle_are_not_lost(tmp_path: Path, stranger: str) -> None:
    bundle.write(tmp_path / "out", sample_content())
    (tmp_path / "out" / stranger).write_text("mine")
    error = refused(tmp_path / "out", f"holds '{stranger}', which would be lost")
    assert "Move what is yours" in str(error.remedy)
    (tmp_path / "out/z").symlink_to("/etc")
    refused(tmp_path / "out", "and 1 more")


def test_folders_and_files_that_are_not_ours(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cat.jpg").write_bytes(b"cat")
    refused(tmp_path / "photos", "not empty and not an intact bundle.*no manifest.json")
    (tmp_path / "file").write_bytes(b"")
    refused(tmp_path / "file", "exists and is not a folder")
    refused(tmp_path / "file" / "out", "is not a folder, so")
    (tmp_path / "other").mkdir()
    for text in ('{"schema": "npm"}', "{", "[]", '{"schema": "edgeopt.bundle/2"}', '{"schema": "edgeopt.bundle/1"}'):
        (tmp_path / "other/manifest.json").write_text(text)
        refused(tmp_path / "other", "not an intact bundle")


def test_damaged_lists_make_a_bundle_foreign(tmp_path: Path) -> None:
    bundle.write(tmp_path / "out", sample_content())
    sums = tmp_path / "out/SHA256SUMS"
    sums.write_text(sums.read_text() + "nonsense\n")
    refused(tmp_path / "out", "SHA256SUMS: line 7 is not")
    sums.unlink()
    refused(tmp_path / "out", "SHA256SUMS is missing")


def test_manifest_that_is_a_link_does_not_make_a_folder_ours(tmp_path: Path) -> None:
    bundle.write(tmp_path / "out", sample_content())
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap/manifest.json").symlink_to(tmp_path / "out/manifest.json")
    refused(tmp_path / "trap", r"manifest\.json cannot be read")


def test_current_folder_and_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a/b")
    for place in (Path(), tmp_path / "a", Path("..")):
        refused(place, "current folder and cannot be replaced")
    with pytest.raises(BundleError, match="root of a file system"):
        check(Path("/proc"))
    with pytest.raises(BundleError, match="root of a file system"):
        check(Path("/"))


def test_read_only_parent(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    if os.geteuid() != 0:
        refused(tmp_path / "locked/deep/out", "no permission to write")
        return
    script = "import os, sys\nfrom pathlib import Path\nfrom edgeopt import bundle, errors\n"
    script += "os.setgid(65534); os.setuid(65534)\n"
    script += (
        "try:\n    bundle.check_destination(Path(sys.argv[1]), 'n')\nexcept errors.BundleError as e:\n    print(e)"
    )
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(0o755)
    command = [sys.executable, "-c", script, str(tmp_path / "locked/deep/out")]
    done = subprocess.run(command, env=clean_environment(), check=False, capture_output=True, text=True)
    assert "no permission to write in" in done.stdout, done.stderr
    assert "Choose another destination with -o." in done.stdout


def test_foreign_name_in_the_message_is_printable(tmp_path: Path) -> None:
    place = tmp_path / os.fsdecode(b"bad\xff")
    place.write_bytes(b"")
    with pytest.raises(BundleError) as caught:
        check(place)
    assert str(caught.value).encode().decode().count("\\udcff") == 1


def test_replacing_an_older_version_of_the_manifest_needs_no_keys_beyond_the_contract(tmp_path: Path) -> None:
    bundle.write(tmp_path / "out", sample_content())
    path = tmp_path / "out/manifest.json"
    manifest = json.loads(path.read_bytes())
    del manifest["placement"], manifest["memory"]
    path.write_text(json.dumps(manifest))
    check(tmp_path / "out")


@pytest.mark.parametrize("name", ["mödel dir/模型 v1 (final)", "-dash", "a" * 200, "back\udcffslash", "new\nline"])
def test_awkward_destinations_work(tmp_path: Path, name: str) -> None:
    place = tmp_path / os.fsdecode(name.encode("utf-8", "surrogateescape"))
    bundle.write(place, sample_content())
    assert bundle.read(place).manifest["name"] == "gesture-net"
    bundle.write(place, sample_content())
    assert [path.name for path in place.parent.iterdir()] == [place.name]


def test_relative_destination_with_dots_and_a_slash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    bundle.write(Path("../there/../out/"), sample_content())
    assert sorted(listing(tmp_path)) == ["here", "out"]


def test_destination_that_is_a_link_is_filled_where_it_points(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk/out")
    for _ in range(2):
        bundle.write(tmp_path / "out", sample_content())
        assert (tmp_path / "out").is_symlink()
        assert listing(tmp_path / "disk") == ["out"]
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(BundleError):
        bundle.check_destination(tmp_path / "loop", "gesture-net")
