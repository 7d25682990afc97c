"""WAV files: every encoding in numbers, windows, labels by file and by window, and headers that lie."""

from __future__ import annotations

import struct
import wave
from pathlib import Path

import numpy as np
import pytest

from edgeopt.calibration import check, groups, load_set, samples, starts, targets
from edgeopt.errors import CalibrationError
from edgeopt.model import TensorSpec

X = TensorSpec(name="x", dtype="float32", shape=("N", 4))
HEAD = 'schema = "edgeopt.set/1"\nname = "w"\nkind = "wav"\nfolder = "w"\nrate = 8000\n'
INPUT = "[inputs.x]\nwindow = 4\n"


def pcm(path: Path, values: np.ndarray, *, width: int = 2, rate: int = 8000) -> None:
    """Whole numbers ``[points]`` or ``[points, channels]`` by the standard library."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1 if values.ndim == 1 else values.shape[1])
        out.setsampwidth(width)
        out.setframerate(rate)
        flat = values.reshape(-1)
        if width == 1:
            data = (flat + 128).astype(np.uint8).tobytes()
        else:
            data = b"".join(int(v).to_bytes(width, "little", signed=True) for v in flat)
        out.writeframes(data)


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"".join(name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2) for name, data in chunks)
    return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body


def fmt(tag: int, bits: int, channels: int = 1, rate: int = 8000, align: int | None = None) -> bytes:
    block = channels * bits // 8 if align is None else align
    return struct.pack("<HHIIHH", tag, channels, rate, rate * block, block, bits)


def extensible(tag: int, bits: int, valid: int | None = None) -> bytes:
    guid = struct.pack("<H", tag) + bytes.fromhex("0000000010008000" + "00aa00389b71")
    return fmt(0xFFFE, bits) + struct.pack("<HHI", 22, bits if valid is None else valid, 4) + guid


def write(folder: Path, extra: str = "", inputs: str = INPUT) -> Path:
    (folder / "set.toml").write_text(HEAD + extra + inputs)
    return folder / "set.toml"


def read(path: Path, spec: TensorSpec = X) -> list[np.ndarray]:
    return [feed["x"] for feed in samples(load_set(path), (spec,))]


def refused(path: Path, spec: TensorSpec = X) -> str:
    with pytest.raises(CalibrationError) as caught:
        check(load_set(path), (spec,))
    assert caught.value.exit_code == 4
    return str(caught.value)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_pcm_of_every_width(width: int, tmp_path: Path) -> None:
    top = 2 ** (8 * width - 1)
    pcm(tmp_path / "w/a.wav", np.array([-top, 0, 1, top - 1], object), width=width)
    (found,) = read(write(tmp_path))
    assert found[0].tolist() == pytest.approx([-1, 0, 1 / top, (top - 1) / top], rel=1e-6)


@pytest.mark.parametrize(("bits", "header"), [(32, fmt(3, 32)), (64, fmt(3, 64)), (32, extensible(3, 32))])
def test_floats_are_taken_as_they_are(bits: int, header: bytes, tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    values = np.array([0.5, -2.25, 0, 1], f"<f{bits // 8}")
    data = riff((b"LIST", b"odd"), (b"fmt ", header), (b"fact", b"1234"), (b"data", values.tobytes()))
    (tmp_path / "w/a.wav").write_bytes(data)
    (found,) = read(write(tmp_path))
    assert found.dtype == np.float32
    assert found[0].tolist() == [0.5, -2.25, 0, 1]


def test_extensible_pcm(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    data = np.array([1, 2, 3, -32768], "<i2").tobytes()
    (tmp_path / "w/a.wav").write_bytes(riff((b"fmt ", extensible(1, 16)), (b"data", data)))
    assert read(write(tmp_path))[0][0, 3] == -1


@pytest.mark.parametrize(
    ("extra", "windows"),
    [
        ("", [[1, 2, 3, 4], [5, 6, 7, 8]]),
        ("hop = 2\n", [[1, 2, 3, 4], [3, 4, 5, 6], [5, 6, 7, 8], [7, 8, 9, 10]]),
        ("hop = 3\nbefore = 2\n", [[0, 0, 1, 2], [2, 3, 4, 5], [5, 6, 7, 8]]),
        ('tail = "zero"\n', [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 0, 0]]),
        ('hop = 6\ntail = "zero"\n', [[1, 2, 3, 4], [7, 8, 9, 10]]),
        ("hop = 7\nbefore = 1\n", [[0, 1, 2, 3], [7, 8, 9, 10]]),
    ],
)
def test_windows_by_hand(extra: str, windows: list[list[int]], tmp_path: Path) -> None:
    pcm(tmp_path / "w/a.wav", np.arange(1, 11))
    found = read(write(tmp_path, inputs=INPUT + extra + "scale = 32768\n"))
    assert [w[0].tolist() for w in found] == windows


@pytest.mark.parametrize("seed", range(20))
def test_windows_by_slices(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    points, window, hop, before = (int(rng.integers(*r)) for r in ((1, 60), (1, 12), (1, 15), (0, 9)))
    tail = rng.choice(["drop", "zero"])
    values = rng.integers(-900, 900, points)
    pcm(tmp_path / "w/a.wav", values)
    padded = np.r_[np.zeros(before, int), values]
    wanted = [padded[i : i + window] for i in range(0, len(padded), hop)]
    full = [w for w in wanted if len(w) == window]
    if tail == "zero":
        covered = (len(full) - 1) * hop + window if full else 0
        full += (
            [np.pad(wanted[len(full)], (0, window - len(wanted[len(full)])))]
            if covered < len(padded) and len(wanted) > len(full)
            else []
        )
    text = f'[inputs.x]\nwindow = {window}\nhop = {hop}\nbefore = {before}\ntail = "{tail}"\nscale = 32768\n'
    spec = TensorSpec(name="x", dtype="float32", shape=(1, window))
    path = write(tmp_path, inputs=text)
    if not full:
        assert "fewer than a window" in refused(path, spec)
        return
    assert [w[0].tolist() for w in read(path, spec)] == [w.tolist() for w in full]


@pytest.mark.parametrize(
    ("extra", "axes", "shape", "wanted"),
    [
        ('channels = "mean"\n', "", (1, 2), [[2, 3]]),
        ('channels = "first"\n', "", (1, 2), [[1, 2]]),
        ('channels = "all"\n', "", (1, 2, 2), [[[1, 2], [3, 4]]]),
        ('channels = "all"\n', 'axes = "TC"\n', (1, 2, 2), [[[1, 3], [2, 4]]]),
        ('channels = "first"\n', 'axes = "CT"\n', (1, 1, 2), [[[1, 2]]]),
    ],
)
def test_channels_and_axes(extra: str, axes: str, shape: tuple[int, ...], wanted: object, tmp_path: Path) -> None:
    pcm(tmp_path / "w/a.wav", np.array([[1, 3], [2, 4]]))
    spec = TensorSpec(name="x", dtype="float32", shape=shape)
    text = f"[inputs.x]\nwindow = 2\nscale = 32768\n{axes}"
    assert read(write(tmp_path, extra, text), spec)[0].tolist() == wanted
    assert 'has 2 channels.\nState channels = "mean"' in refused(write(tmp_path, "", text), spec)


def test_whole_files_of_unlike_length_and_integers(tmp_path: Path) -> None:
    pcm(tmp_path / "w/a.wav", np.arange(3))
    pcm(tmp_path / "w/b.wav", np.arange(5))
    spec = TensorSpec(name="x", dtype="int16", shape=(1, "T"))
    found = read(write(tmp_path, inputs="[inputs.x]\ninteger = true\n"), spec)
    assert [w[0].tolist() for w in found] == [[0, 1, 2], [0, 1, 2, 3, 4]]


def speech(folder: Path) -> None:
    for name, points in (("a/1", 8), ("a/2", 12), ("b/1", 8)):
        pcm(folder / f"w/{name}.wav", np.random.default_rng(points).integers(-99, 99, points))


def test_labels_by_file_count_for_every_window_and_files_are_groups(tmp_path: Path) -> None:
    speech(tmp_path)
    (tmp_path / "l.csv").write_text("file,label\nb/1.wav,1\na/1.wav,0\na/2.wav,1\nunused.wav,7\n")
    path = write(tmp_path, 'metric = "auc"\nlabels = "l.csv"\n')
    dataset = load_set(path)
    assert dataset.count == 7
    assert list(targets(dataset) or ()) == [0, 0, 1, 1, 1, 1, 1]
    assert groups(dataset).tolist() == [0, 0, 1, 1, 1, 2, 2]
    assert list(starts(dataset, None)) == [True, False, True, False, False, True, False]
    folder = load_set(write(tmp_path, 'metric = "auc"\nlabels = "l.csv"\ngroups = { by = "folder" }\n'))
    assert groups(folder).tolist() == [0, 0, 0, 0, 0, 1, 1]
    (tmp_path / "l.csv").write_text("1\n0\n1\n")
    assert "for sound every line must be file,label" in refused(path)
    (tmp_path / "l.csv").write_text("a/1.wav,1\n")
    assert "has no label for a/2.wav" in refused(path)


def test_labels_by_window(tmp_path: Path) -> None:
    speech(tmp_path)
    for name, values in (("a/1", [0, 1]), ("a/2", [1, 1, 0]), ("b/1", [0, 0])):
        (tmp_path / "l" / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / f"l/{name}.npy", np.array(values))
    path = write(tmp_path, 'metric = "auc"\nlabels = { folder = "l" }\n')
    assert list(targets(load_set(path)) or ()) == [0, 1, 1, 1, 0, 0, 0]
    np.save(tmp_path / "l/a/2.npy", np.array([1, 1]))
    assert "2.npy: has the shape [2], wanted a label for 3 windows" in refused(path)
    (tmp_path / "l/a/2.npy").unlink()
    assert "2.npy: cannot be read" in refused(path)


def test_parts_are_files_because_windows_overlap(tmp_path: Path) -> None:
    speech(tmp_path)
    odd, even = (load_set(write(tmp_path, f"start = {s}\nstride = 2\n")) for s in (1, 0))
    assert (odd.audio and odd.audio.files, even.audio and even.audio.files) == (("a/2.wav",), ("a/1.wav", "b/1.wav"))
    assert load_set(write(tmp_path, "limit = 1\n")).count == 2
    with pytest.raises(CalibrationError, match="none of 3 files are left"):
        load_set(write(tmp_path, "start = 3\n"))


def test_another_rate_is_refused_and_not_resampled(tmp_path: Path) -> None:
    pcm(tmp_path / "w/a.wav", np.arange(9), rate=16000)
    assert "a.wav: has 16000 Hz, and the set states rate = 8000.\nResample" in refused(write(tmp_path))


GOOD = np.arange(4, dtype="<i2").tobytes()
HOSTILE: list[tuple[bytes, str]] = [
    (b"", "is no WAV file"),
    (b"RIFX" + b"\0" * 40, "is no WAV file"),
    (riff((b"data", GOOD)), "its data come before its format"),
    (riff((b"fmt ", fmt(1, 16))), "holds no data"),
    (riff((b"fmt ", fmt(1, 16)[:12]), (b"data", GOOD)), "its format has 12 bytes"),
    (riff((b"fmt ", fmt(1, 16)), (b"data", GOOD))[:-2], "claims 8 bytes and the file has 6 more"),
    (riff((b"fmt ", fmt(1, 16)))[:-16] + b"\xff" * 16, "is not read"),
    (riff((b"fmt ", fmt(1, 16)), (b"data", b"")), "are not one whole number of points"),
    (riff((b"fmt ", fmt(1, 16)), (b"data", GOOD[:3])), "are no whole number of points"),
    (riff((b"fmt ", fmt(1, 16, align=3)), (b"data", GOOD)), "its format contradicts itself"),
    (riff((b"fmt ", fmt(1, 16, channels=0)), (b"data", GOOD)), "its format contradicts itself"),
    (riff((b"fmt ", fmt(1, 16, channels=60000, align=1)), (b"data", GOOD)), "its format contradicts itself"),
    (riff((b"fmt ", fmt(2, 4)), (b"data", GOOD)), "encoding 2 with 4 bits is not read"),
    (riff((b"fmt ", fmt(6, 8)), (b"data", GOOD)), "encoding 6 with 8 bits is not read"),
    (riff((b"fmt ", extensible(1, 16, valid=12)), (b"data", GOOD)), "12 valid bits in 16"),
    (riff((b"fmt ", fmt(1, 16, rate=0)), (b"data", GOOD)), "its format contradicts itself"),
    (riff((b"fmt ", fmt(3, 32)), (b"data", np.array([0, 1, np.nan, 0], "<f4").tobytes())), "holds nan at [0, 2]"),
    (b"RIFF\xff\xff\xff\xffWAVE" + b"fmt \xff\xff\xff\x7f" + fmt(1, 16), "claims 2147483647 bytes"),
    (b"RIFF\0\0\0\0WAVE" + b"junk\0\0\0\0" * 2000, "holds no data"),
]


@pytest.mark.parametrize(("content", "words"), HOSTILE)
def test_Q07_headers_that_lie(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w/a.wav").write_bytes(content)
    found = refused(write(tmp_path))
    assert words in found
    assert "a.wav" in found


DESCRIPTIONS = [
    ("rate = 8000\n", "", "rate: is missing"),
    ("rate", "rat", 'rat: unknown key for kind = "wav". Did you mean "rate"?'),
    ("window = 4", "hop = 4", "inputs.x.hop: needs window."),
    ("window = 4", "window = 0", "inputs.x.window: must be 1 or more"),
    ("window = 4", f"window = {1 << 40}", "inputs.x.window: must be 1 or more"),
    ("window = 4", 'window = 4\ntail = "reflect"', 'inputs.x.tail: unknown value "reflect"'),
    ("rate", 'channels = "stereo"\nrate', 'channels: unknown value "stereo"'),
    ("[inputs.x]", 'channels = "all"\n[inputs.x]\naxes = "T"', 'inputs.x.axes: must be "CT" or "TC"'),
    ("[inputs.x]", 'channels = "mean"\n[inputs.x]\ninteger = true', "inputs.x.integer: cannot stand beside"),
    ("[inputs.x]", "count = 3\n[inputs.x]", 'count: unknown key for kind = "wav"'),
    ("[inputs.x]", "groups = { every = 2 }\n[inputs.x]", "the windows of one file belong together already"),
    ("[inputs.x]", "[inputs.y]\nwindow = 3\n[inputs.x]", "must hold one table [inputs.NAME] for the sound, got 2"),
]


@pytest.mark.parametrize(("old", "new", "words"), DESCRIPTIONS)
def test_a_bad_description_is_refused(old: str, new: str, words: str, tmp_path: Path) -> None:
    pcm(tmp_path / "w/a.wav", np.arange(9))
    path = write(tmp_path)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(CalibrationError) as caught:
        load_set(path)
    assert words in str(caught.value)
