"""scripts/_zoo: what the recipes share, on small data; nothing is fetched."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SCRIPTS = str(Path(__file__).resolve().parents[3] / "scripts")


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)


def test_a_description_is_read_back_as_it_was_meant(tmp_path: Path) -> None:
    from _zoo import sets

    from edgeopt import calibration
    from edgeopt.model import TensorSpec

    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.save(tmp_path / "rows.npy", rows)
    np.save(tmp_path / "labels.npy", np.array([0, 1, 1]))
    sets.describe(
        tmp_path / "eval.toml",
        name="tiny",
        description='with "quotes" and \\',
        inputs={"a:0": {"file": "rows.npy", "scale": "1/2"}, "rate": {"value": 16000}},
        settings={"metric": {"name": "top", "k": 2}, "labels": "labels.npy", "limit": 2},
    )
    found = calibration.load_set(tmp_path / "eval.toml")
    assert (found.name, found.count, found.metric.name if found.metric else None) == ("tiny", 2, "top2")
    inputs = (TensorSpec(name="a:0", dtype="float32", shape=(1, 4)), TensorSpec(name="rate", dtype="int64", shape=()))
    feeds = list(calibration.samples(found, inputs))
    np.testing.assert_array_equal(feeds[1]["a:0"], rows[1:2] / 2)
    assert int(feeds[0]["rate"]) == 16000


def test_the_area_under_the_curve_counts_ties_half() -> None:
    from _zoo import sets

    scores, positive = np.array([0.1, 0.4, 0.4, 0.9]), np.array([False, True, False, True])
    assert sets.auc(scores, positive) == pytest.approx(3.5 / 4)
    assert sets.auc(-scores, positive) == pytest.approx(0.5 / 4)


def test_a_figure_that_is_not_the_known_one_is_an_error() -> None:
    from _zoo import sets
    from _zoo.packages import FetchError

    assert sets.expect("it", 0.654, 0.655, 0.005) == 0.654
    for found in (0.64, float("nan")):
        with pytest.raises(FetchError, match=r"it is (0\.6400|nan), 0\.6550 was measured before"):
            sets.expect("it", found, 0.655, 0.005)


KNOWN = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "to", "##ken", "##ize", "cafe", "!", "中", "b", "##s", "'")


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Tokenize!!", ["to", "##ken", "##ize", "!", "!"]),
        ("  CAFÉ\tcafe\u0301 ", ["cafe", "cafe"]),
        ("to中to", ["to", "中", "to"]),
        ("b's tokens", ["b", "'", "[UNK]", "to", "##ken", "##s"]),
        ("to\u200bken\0", ["to", "##ken"]),
        ("b" * 101, ["[UNK]"]),
        ("", []),
    ],
)
def test_words_are_cut_into_the_longest_known_pieces(text: str, pieces: list[str]) -> None:
    from _zoo import wordpiece

    known = wordpiece.vocabulary("\n".join(KNOWN))
    wanted = [known[piece] for piece in ["[CLS]", *pieces, "[SEP]"]]
    assert wordpiece.encode(text, known, 128) == wanted
    assert wordpiece.encode("to " * 300, known, 8) == [2, *[4] * 6, 3]


def test_edits_and_best_path() -> None:
    from _zoo import text_lines

    assert [text_lines.edits(a, b) for a, b in (("", "abc"), ("kitten", "sitting"), ("abc", "abc"))] == [3, 3, 0]
    assert text_lines.error_rate(["ab", "x"], ["abc", "y"]) == pytest.approx(2 / 4)
    path = [0, 1, 1, 0, 1, 2, 2, 0]
    assert text_lines.decoded(np.eye(3)[path], ["a", "b"]) == "aab"
    assert text_lines.decoded(np.eye(3)[[1, 1, 0]], ["a", "b"]) == "a"


def test_lines_are_drawn_alike_every_time() -> None:
    from _zoo import text_lines

    first, again = (
        [np.asarray(image) for _, image in text_lines.degraded_lines(["a line", "of text"], 26, 7)] for _ in range(2)
    )
    assert len(first) == 2 * len(text_lines.DEGRADATIONS)
    for one, other in zip(first, again):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(first[0], first[2])
    wide = text_lines.padded(Image.new("RGB", (500, 48), (1, 2, 3)), 320)
    assert wide.shape == (3, 48, 320)
    assert wide[:, 0, 0].tolist() == [3, 2, 1]
    assert text_lines.padded(Image.new("RGB", (10, 48), (1, 2, 3)), 320)[0, 0, 10] == 128


def test_frames_overlap_and_are_labelled_by_the_speech_alone() -> None:
    from _zoo import speech

    spoken = np.concatenate((np.zeros(speech.FRAME), 0.1 * np.ones(speech.FRAME)))
    music = np.tile([0.01, -0.01], speech.FRAME)
    found = speech.mixed(spoken, music)
    assert found.speech.tolist() == [False, True]
    np.testing.assert_allclose(found.frames[0, : speech.CONTEXT], 0)
    np.testing.assert_array_equal(found.frames[1, : speech.CONTEXT], found.frames[0, -speech.CONTEXT :])
    np.testing.assert_allclose(np.abs(found.frames[0, speech.CONTEXT :]), 0.1, rtol=1e-6)


def test_bytes_of_a_file_start_and_end_without_blanks() -> None:
    from _zoo import magika

    row = magika.features(b"  \n" + b"a" * 70 + b"b \n")
    assert row is not None
    assert row.shape == (2048,)
    assert bytes(row[:73].astype(np.uint8)) == b"a" * 70 + b"b \n"
    assert row[73] == magika.PADDING
    assert bytes(row[-72:].astype(np.uint8)) == b"\n" + b"a" * 70 + b"b"
    assert row[1024] == magika.PADDING
    assert magika.features(b" " * 500) is None


def test_a_recipe_depends_on_the_files_that_it_imports() -> None:
    from _zoo import main

    names = {file.name for file in main.sources("ppocr")}
    assert {"ppocr.py", "text_lines.py", "sets.py", "packages.py"} <= names
    assert "silero.py" not in names
    assert "photos.py" not in names
    assert main.digest("ppocr-rec") != main.digest("ppocr-det")


def test_without_apt_a_network_is_skipped_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from _zoo import main, packages

    monkeypatch.setattr(packages.shutil, "which", lambda name: None)
    with pytest.raises(packages.UnavailableError, match="asterisk-core-sounds-en-wav needs apt-get"):
        packages.fetch_debian(packages.SPEECH, tmp_path)

    def unavailable(*arguments: object) -> str:
        raise packages.UnavailableError("no apt here")

    monkeypatch.setattr(main, "make", unavailable)
    monkeypatch.setattr(main.importlib.util, "find_spec", lambda name: object())
    assert main.main(["silero-vad", "--cache", str(tmp_path)], "usage") == 0
    assert "skipped: silero-vad: no apt here" in capsys.readouterr().err


def test_a_debian_package_with_another_hash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from _zoo import packages

    def download(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        (tmp_path / "packages" / packages.SPEECH.file).write_bytes(b"something else")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(packages.shutil, "which", lambda name: name)
    monkeypatch.setattr(packages.subprocess, "run", download)
    with pytest.raises(packages.FetchError, match="has the sha256"):
        packages.fetch_debian(packages.SPEECH, tmp_path)


def test_the_files_of_fashion_mnist_are_read_as_they_state_themselves() -> None:
    import gzip

    from _zoo.fashion_mnist import idx
    from _zoo.packages import FetchError

    pixels = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    stored = b"\0\0\x08\x03" + np.array(pixels.shape, ">i4").tobytes() + pixels.tobytes()
    np.testing.assert_array_equal(idx(gzip.compress(stored)), pixels)
    with pytest.raises(FetchError, match="no unsigned bytes"):
        idx(gzip.compress(b"\0\0\x0d\x03" + stored[4:]))


def test_the_depthwise_network_of_the_repository_is_the_one_that_the_recipe_means() -> None:
    from _zoo.fashion_mnist import DEPTHWISE, DEPTHWISE_SHA256
    from _zoo.packages import check

    assert check(DEPTHWISE.read_bytes(), DEPTHWISE_SHA256, DEPTHWISE.name)
