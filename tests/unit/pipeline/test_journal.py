"""The journal: what is found again, what is not believed, who may use the folder, what is left of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeopt.errors import BundleError
from edgeopt.pipeline import journal
from edgeopt.pipeline.journal import MARKER, Journal, opened, place_of

MISSING = object()


class Killed(BaseException):
    """Stands for a kill: the folder stays as it is."""


def ended_by(failure: type[BaseException], out: Path, act: Callable[[Journal], object], **asked: Any) -> None:
    """A build that does something and fails."""

    def building() -> None:
        with opened(out, **asked) as notes:
            act(notes)
            raise failure("x")

    with pytest.raises(failure):
        building()


def killed(out: Path, monkeypatch: pytest.MonkeyPatch, **entries: object) -> Path:
    """A folder as a build leaves it that was killed after it kept ``entries``."""
    with monkeypatch.context() as patch:
        patch.setattr(journal, "_remove", lambda folder: None)
        patch.setattr(journal, "_untake", lambda made: None)
        ended_by(Killed, out, lambda notes: [notes.keep("k", key, value) for key, value in entries.items()])
    return place_of(out, None)


def test_what_a_killed_build_kept_is_found_by_resume_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    killed(out, monkeypatch, a=np.arange(3), b=None)

    def look(notes: Journal) -> None:
        assert notes.held == 2
        assert notes.recall("k", "a").tolist() == [0, 1, 2]
        assert notes.recall("k", "b", MISSING) is None
        assert notes.recall("k", "c", MISSING) is MISSING
        assert notes.recall("other", "a", MISSING) is MISSING

    ended_by(Killed, out, look, resume=True)  # with resume a failure keeps it
    ended_by(Killed, out, look, resume=True)
    with opened(out) as notes:
        assert notes.held == 0
        assert notes.recall("k", "a", MISSING) is MISSING
    assert list(tmp_path.iterdir()) == []


def test_another_base_finds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed(tmp_path / "out", monkeypatch, a=1)
    with opened(tmp_path / "out", resume=True) as notes:
        notes.base = "another release"
        assert notes.recall("k", "a", MISSING) is MISSING
        assert notes.remember("k", lambda: "a", lambda: 2) == 2
        notes.base = ""
        assert notes.remember("k", lambda: "a", lambda: 3) == 1


@pytest.mark.parametrize("failure", [Killed, BundleError, KeyboardInterrupt])
def test_without_resume_a_failure_leaves_nothing(failure: type[BaseException], tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder" / "out"

    def act(notes: Journal) -> None:
        notes.keep("k", "a", 1)
        assert place_of(out, None).is_dir()

    ended_by(failure, out, act)
    assert list(tmp_path.iterdir()) == []


def test_the_folder_goes_when_a_build_ends_well_and_the_bundle_stays(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    with opened(out, resume=True) as notes:
        notes.keep("k", "a", 1)
        out.mkdir()
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_a_given_folder_holds_it_and_keeps_it_after_a_failure(tmp_path: Path) -> None:
    work, out = tmp_path / "work", tmp_path / "out"
    ended_by(BundleError, out, lambda notes: notes.keep("k", "a", 1), work=work)
    assert [path.parent for path in work.rglob(MARKER)] == [place_of(out, work)]
    with opened(out, work=work, resume=True) as notes:
        assert notes.recall("k", "a") == 1
    assert list(tmp_path.iterdir()) in ([work], [])
    assert not list(work.glob(".*"))


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "misnamed", "link", "folder"])
def test_a_damaged_entry_is_made_again(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    folder = killed(out, monkeypatch, a="right", b="wrong")
    probe = Journal(folder=folder)
    entry, other = (folder / f"{probe.name('k', key)}.entry" for key in "ab")
    data = entry.read_bytes()
    if damage == "cut":
        entry.write_bytes(data[:-1])
    elif damage == "flipped":
        entry.write_bytes(data.replace(b"right", b"wrong"))
    elif damage == "empty":
        entry.write_bytes(b"")
    elif damage == "misnamed":
        other.replace(entry)
    else:
        entry.unlink()
        if damage == "link":
            entry.symlink_to(other)
        else:
            entry.mkdir()
    with opened(out, resume=True) as notes:
        assert notes.remember("k", lambda: "a", lambda: "made again") == "made again"


def test_half_written_files_go_and_strange_ones_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = killed(tmp_path / "out", monkeypatch, a=1)
    (folder / "0123.new").write_bytes(b"half")
    (folder / "notes.txt").write_text("mine")
    with opened(tmp_path / "out", resume=True) as notes:
        assert not (folder / "0123.new").exists()
        assert notes.recall("k", "a") == 1
    assert [path.name for path in folder.iterdir() if path.name != MARKER] == ["notes.txt"]


def test_nothing_is_kept_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "LIMIT", 10_000)
    with opened(tmp_path / "out", resume=True) as notes:
        for number in range(8):
            notes.keep("k", number, np.zeros(300))
        kept = [path.stat().st_size for path in place_of(tmp_path / "out", None).glob("*.entry")]
        assert 0 < sum(kept) <= 10_000
        assert notes.room == 10_000 - sum(kept)
        assert notes.recall("k", 0) is not None
        assert notes.recall("k", 7) is None


def test_a_disk_that_fills_up_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    with opened(tmp_path / "out") as notes:
        monkeypatch.setattr(Path, "replace", full)
        assert notes.remember("k", lambda: "a", lambda: 5) == 5
        assert notes.room == 0
        assert [path.name for path in place_of(tmp_path / "out", None).iterdir()] == [MARKER]


def test_a_folder_that_another_build_uses_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with opened(out) as first:
        first.keep("k", "a", 1)
        with pytest.raises(BundleError, match="another build"), opened(out, resume=True):
            pass
        with opened(out) as second:
            assert second.folder is None
        assert first.recall("k", "a") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("strange", ["file", "link", "theirs"])
def test_a_strange_folder_is_refused_and_stays(strange: str, tmp_path: Path) -> None:
    place = place_of(tmp_path / "out", None)
    if strange == "file":
        place.write_text("x")
    elif strange == "link":
        (tmp_path / "elsewhere").mkdir()
        place.symlink_to(tmp_path / "elsewhere")
    else:
        place.mkdir()
        (place / "thesis.txt").write_text("x")
    with pytest.raises(BundleError), opened(tmp_path / "out", resume=True):
        pass
    with opened(tmp_path / "out") as notes:
        assert notes.folder is None
    assert os.path.lexists(place)
    assert list((tmp_path / "elsewhere").iterdir()) == [] if strange == "link" else True


@pytest.mark.parametrize("inside", [".", "deep/down"])
def test_no_journal_in_the_place_of_the_bundle(inside: str, tmp_path: Path) -> None:
    with (
        pytest.raises(BundleError, match="place of the bundle"),
        opened(tmp_path / "out", work=tmp_path / "out" / inside),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_destinations_have_folders_of_their_own(tmp_path: Path) -> None:
    long = "n" * 200
    names = {place_of(tmp_path / name, None).name for name in (long + "a", long + "b", "a", "b", 80 * "語")}
    assert len(names) == 5
    assert max(len(name.encode()) for name in names) <= 255
    assert place_of(tmp_path / "x" / "a", tmp_path) != place_of(tmp_path / "y" / "a", tmp_path)


def test_what_cannot_be_held_is_made_every_time(tmp_path: Path) -> None:
    with opened(tmp_path / "out") as notes:
        made = [notes.remember("k", lambda: "a", object) for _ in range(2)]
        assert made[0] is not made[1]
    nothing = Journal()
    assert nothing.remember("k", lambda: 1 / 0, lambda: 7) == 7  # without a folder no key is asked for
