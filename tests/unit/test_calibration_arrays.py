"""Streamed arrays equal numpy's, hostile files are refused before anything is allocated, memory stays flat."""

from __future__ import annotations

import io
import json
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgeopt.calibration import DataSet, load_set, samples
from edgeopt.calibration.arrays import header, members, rows
from edgeopt.calibration.types import ArrayFile
from edgeopt.errors import CalibrationError
from edgeopt.model import TensorSpec

ROOT = Path(__file__).resolve().parents[2]
DTYPES = st.sampled_from(["u1", "i2", "<i8", ">i4", "f2", "<f4", ">f4", "f8", "?"])
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, max_side=5)


def npy_bytes(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@given(hnp.arrays(DTYPES, SHAPES), st.sampled_from(["npy", "npz", "compressed"]), st.integers(1, 3))
def test_streaming_equals_numpy_load(
    tmp_path_factory: pytest.TempPathFactory, array: np.ndarray, form: str, step: int
) -> None:
    path = tmp_path_factory.mktemp("a") / ("a.npy" if form == "npy" else "a.npz")
    if form == "npy":
        np.save(path, array)
        file, wanted = ArrayFile(path=path), np.load(path)
    else:
        (np.savez if form == "npz" else np.savez_compressed)(path, one=array, two=array[::-1])
        file, wanted = ArrayFile(path=path, member="one"), np.load(path)["one"]
        assert members(path) == ("one", "two")
    assert (header(file).shape, header(file).dtype) == (wanted.shape, wanted.dtype)
    indices = range(0, len(wanted), step)
    found = list(rows(file, indices))
    assert [row.tobytes() for row in found] == [wanted[index : index + 1].tobytes() for index in indices]
    assert all(row.shape == wanted.shape[1:] and row.dtype == wanted.dtype for row in found)


def test_a_planted_difference_is_seen(tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.savez_compressed(tmp_path / "a.npz", one=array)
    array[2, 3] = 99
    found = np.stack(list(rows(ArrayFile(path=tmp_path / "a.npz", member="one"), range(3))))
    assert not np.array_equal(found, array)
    assert np.array_equal(found[:2], array[:2])


def claim(shape: tuple[int, ...], descr: str = "<f4", fortran: bool = False, data: bytes = b"") -> bytes:
    text = repr({"descr": descr, "fortran_order": fortran, "shape": shape}).encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


HOSTILE = [
    (b"", "the file is empty"),
    (b"hello world, this is no array", "not a readable array file"),
    (npy_bytes(np.ones((4, 3), np.float32))[:-1], "its header claims"),
    (npy_bytes(np.ones((4, 3), np.float32)) * 2, "its header claims"),
    (claim((10**9, 10**9), data=b"abcd"), "its header claims 4000000000000000128 bytes and it has 132."),
    (claim((2**62, 2**62, 2**62), data=b"abcd"), "its header claims"),
    (claim((0, 3)), "empty: its shape is [0, 3]."),
    (claim((3, 0)), "empty: its shape is [3, 0]."),
    (claim((-1, 4), data=b"abcd"), "empty"),
    (npy_bytes(np.array(1.0)), "empty: its shape is []."),
    (claim((2,), "|O", data=pickle.dumps(print)), "holds object, not numbers."),
    (npy_bytes(np.array(["a", "b"])), "not numbers."),
    (npy_bytes(np.ones(3, np.complex64)), "holds complex64, not numbers."),
    (npy_bytes(np.asfortranarray(np.ones((3, 4)))), "stored in Fortran order."),
    (b"\x93NUMPY\x09\x00" + b"\0" * 200, "array format (9, 0) is not supported."),
    (b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535, "not a readable array file"),
    (claim((1,), "|V10"), "not numbers."),
]


@pytest.mark.parametrize("form", ["npy", "npz", "deflated"])
@pytest.mark.parametrize(("content", "words"), HOSTILE)
def test_a_hostile_file_is_refused_by_name(content: bytes, words: str, form: str, tmp_path: Path) -> None:
    path = tmp_path / ("a.npy" if form == "npy" else "a.npz")
    if form == "npy":
        path.write_bytes(content)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", content, zipfile.ZIP_DEFLATED if form == "deflated" else zipfile.ZIP_STORED)
    with pytest.raises(CalibrationError) as caught:
        load_set(path)
    assert caught.value.exit_code == 4
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def test_an_archive_without_a_byte_is_said_to_be_empty(tmp_path: Path) -> None:
    (tmp_path / "a.npz").touch()
    with pytest.raises(CalibrationError, match=r"a\.npz: the file is empty\."):
        load_set(tmp_path / "a.npz")


def test_one_sample_may_not_be_huge(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    head = claim((1, 2**29))
    with path.open("wb") as stream:
        stream.write(head)
        stream.truncate(len(head) + 2**31)  # sparse
    with pytest.raises(CalibrationError, match="one sample takes 2147483648 bytes"):
        load_set(path)


@pytest.mark.parametrize("content", [b"PK", b"not a zip" * 10, b"PK\x05\x06" + b"\0" * 18])
def test_a_bad_archive_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(CalibrationError, match=r"not a readable array file|holds no array"):
        load_set(path)


@pytest.mark.parametrize("damage", [0, 4])
def test_damaged_data_is_refused_while_it_streams(damage: int, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    noise = np.random.default_rng(0).standard_normal((50, 100)).astype(np.float32)
    np.savez_compressed(path, x=noise)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 40] = bytes([damage]) * 40
    path.write_bytes(data)
    with pytest.raises(CalibrationError, match=r"a\.npz\[x\]: not a readable array file"):
        list(samples(load_set(path), (TensorSpec(name="x", dtype="float32", shape=(1, 100)),)))


def test_an_unknown_member_is_answered_with_the_nearest(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.ones(3), labels=np.ones(3))
    with pytest.raises(CalibrationError, match='holds no array "image"') as caught:
        header(ArrayFile(path=tmp_path / "a.npz", member="image"))
    assert 'Did you mean "images"?' in str(caught.value)
    assert "Its arrays: images, labels." in str(caught.value)


def test_an_unusual_compression_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", npy_bytes(np.ones(3)), zipfile.ZIP_LZMA)
    with pytest.raises(CalibrationError, match="encrypted or compressed in a way"):
        load_set(tmp_path / "a.npz")


MEASURE = """
import json, sys
import numpy as np
from edgeopt.calibration import check, load_set
from edgeopt.model import TensorSpec

def peak():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1])

spec = (TensorSpec(name="x", dtype="float32", shape=(1, 3, 224, 224)),)
check(load_set(sys.argv[1]), spec)
found = {}
for path in sys.argv[1:]:
    open("/proc/self/clear_refs", "w").write("5")
    before = peak()
    check(load_set(path), spec)
    found[path] = peak() - before
open("/proc/self/clear_refs", "w").write("5")
before = peak()
whole = np.load(sys.argv[2])["x"]
found["whole"] = peak() - before
print(json.dumps(found))
"""


def write_big(path: Path, count: int, stored: bool) -> Path:
    """``count`` samples of 602,112 bytes, written without ever holding them all."""
    one = np.random.default_rng(0).standard_normal((3, 224, 224)).astype(np.float32)
    one[one < 0.5] = 0
    head = claim((count, 3, 224, 224))
    if path.suffix == ".npy":
        with path.open("wb") as plain:
            plain.write(head)
            for _ in range(count):
                plain.write(one.tobytes())
        return path
    method = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(path, "w", method, compresslevel=1) as archive, archive.open("x.npy", "w") as stream:
        stream.write(head)
        for _ in range(count):
            stream.write(one.tobytes())
    return path


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_memory_does_not_grow_with_the_samples(tmp_path: Path) -> None:
    few = write_big(tmp_path / "few.npz", 4, stored=False)
    many = [
        write_big(tmp_path / "deflated.npz", 100, stored=False),
        write_big(tmp_path / "stored.npz", 160, stored=True),
        write_big(tmp_path / "plain.npy", 160, stored=True),
    ]
    command = [sys.executable, "-c", MEASURE, str(few), *map(str, many)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT)})
    grown = json.loads(done.stdout)
    sample_kb = 588
    assert grown["whole"] > 90 * sample_kb  # what loading all 100 samples costs: the oracle can fail
    for path in many:
        assert grown[str(path)] < grown[str(few)] + 4 * sample_kb, grown


def describe(tmp_path: Path, total: int, **selection: int) -> DataSet:
    np.save(tmp_path / "a.npy", np.arange(total, dtype=np.float32))
    lines = [f"{key} = {value}" for key, value in selection.items()]
    text = f'schema = "edgeopt.set/1"\nname = "a"\nkind = "arrays"\n{chr(10).join(lines)}\n[inputs.x]\nfile = "a.npy"\n'
    (tmp_path / "a.toml").write_text(text)
    return load_set(tmp_path / "a.toml")


def taken(dataset: DataSet) -> list[float]:
    spec = (TensorSpec(name="x", dtype="float32", shape=()),)
    return [float(feed["x"]) for feed in samples(dataset, spec)]


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 10), st.integers(1, 50))
def test_selection_is_a_slice(
    tmp_path_factory: pytest.TempPathFactory, total: int, stride: int, start: int, limit: int
) -> None:
    wanted: list[Any] = list(range(total))[start::stride][:limit]
    folder = tmp_path_factory.mktemp("s")
    if not wanted:
        with pytest.raises(CalibrationError, match=r"0 of .* samples are left"):
            describe(folder, total, start=start, stride=stride, limit=limit)
        return
    dataset = describe(folder, total, start=start, stride=stride, limit=limit)
    assert dataset.count == len(wanted)
    assert taken(dataset) == wanted


def test_interleaved_parts_are_disjoint_and_complete(tmp_path: Path) -> None:
    parts = [taken(describe(tmp_path, 11, start=start, stride=3)) for start in range(3)]
    assert sorted(value for part in parts for value in part) == list(range(11))


def test_count_is_exact(tmp_path: Path) -> None:
    assert describe(tmp_path, 10, count=4).count == 4
    with pytest.raises(CalibrationError, match="count: 10 of 10 samples are left, 11 wanted"):
        describe(tmp_path, 10, count=11)
    with pytest.raises(CalibrationError, match="limit: cannot stand beside count"):
        describe(tmp_path, 10, count=3, limit=4)
