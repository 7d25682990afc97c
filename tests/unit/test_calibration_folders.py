"""Folders with one array a file: .npy and bytes alone, several inputs, constants, and everything that can be wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeopt.calibration import check, load_set, samples
from edgeopt.calibration.folders import MAX_SKIP
from edgeopt.errors import CalibrationError
from edgeopt.model import TensorSpec

X = TensorSpec(name="x", dtype="float32", shape=("N", 2, 3))
Y = TensorSpec(name="y", dtype="uint8", shape=("N", 4))
RNG = np.random.default_rng(5)

HEAD = 'schema = "edgeopt.set/1"\nname = "d"\nkind = "folder"\n'
NPY = HEAD + '[inputs.x]\nfolder = "x"\n'
BYTES = HEAD + '[inputs.x]\nfolder = "b"\nglob = "**/*.bin"\ndtype = "int16"\nshape = [2, 3]\nscale = "1/32768"\n'
TWO = NPY + '[inputs.y]\nfolder = "y"\nglob = "*.raw"\ndtype = "uint8"\nshape = [4]\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "set.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("x/deep", "y", "b"):
        (tmp_path / name).mkdir(parents=True)
    for index in range(4):
        value = RNG.standard_normal((2, 3)).astype(np.float32)
        np.save(tmp_path / ("x/deep" if index == 3 else "x") / f"{index}.npy", value)
        (tmp_path / "y" / f"{index}.raw").write_bytes(bytes(range(index, index + 4)))
        (tmp_path / "b" / f"{index}.bin").write_bytes(np.full((2, 3), index * 1000, "<i2").tobytes())
    return tmp_path


def read(path: Path, *inputs: TensorSpec) -> list[dict[str, np.ndarray]]:
    return list(samples(load_set(path), inputs or (X,)))


def refused(path: Path, *inputs: TensorSpec) -> str:
    with pytest.raises(CalibrationError) as caught:
        check(load_set(path), inputs or (X,))
    assert caught.value.exit_code == 4
    return str(caught.value)


def test_arrays_are_read_in_the_order_of_their_names(folder: Path) -> None:
    found = read(write(folder, NPY))
    assert [f["x"].shape for f in found] == [(1, 2, 3)] * 4
    for feed, name in zip(found, ("0", "1", "2", "deep/3"), strict=True):
        assert np.array_equal(feed["x"][0], np.load(folder / "x" / f"{name}.npy"))
    dataset = load_set(write(folder, NPY + "\n"))
    assert dataset.files == tuple(folder / "x" / f"{n}.npy" for n in ("0", "1", "2", "deep/3"))
    assert check(dataset, (X,)) == []


def test_bytes_alone_with_arithmetic_and_byte_order(folder: Path) -> None:
    assert [float(f["x"].max()) for f in read(write(folder, BYTES))] == [i * 1000 / 32768 for i in range(4)]
    swapped = read(write(folder, BYTES + 'byteorder = "big"\n'))
    assert float(swapped[1]["x"].max()) == np.frombuffer(np.int16(1000).tobytes(), ">i2")[0] / 32768


def test_a_header_is_skipped(folder: Path) -> None:
    for path in (folder / "b").iterdir():
        path.write_bytes(b"HEAD" + path.read_bytes())
    assert "has 16 bytes; int16[2, 3] takes 12" in refused(write(folder, BYTES))
    assert float(read(write(folder, BYTES + "skip = 4\n"))[2]["x"][0, 0, 0]) == 2000 / 32768


def test_an_open_axis_takes_its_size_from_the_file(folder: Path) -> None:
    for index in range(4):
        (folder / "b" / f"{index}.bin").write_bytes(np.ones((index + 1, 3), "<i2").tobytes())
    text = BYTES.replace("[2, 3]", "[-1, 3]")
    spec = TensorSpec(name="x", dtype="float32", shape=(1, "T", 3))
    assert [f["x"].shape[1] for f in read(write(folder, text), spec)] == [1, 2, 3, 4]
    (folder / "b" / "3.bin").write_bytes(b"12345")
    assert "takes a multiple of 6" in refused(write(folder, text), spec)


def test_two_inputs_are_paired_by_name(folder: Path) -> None:
    (folder / "x/deep/3.npy").rename(folder / "x/3.npy")
    feeds = read(write(folder, TWO), X, Y)
    assert [int(f["y"][0, 0]) for f in feeds] == [0, 1, 2, 3]


def test_order_follows_the_stem_and_not_the_suffix(folder: Path) -> None:
    for name in ("a", "a.b"):
        np.save(folder / "x" / f"{name}.npy", np.ones((2, 3), np.float32))
        (folder / "y" / f"{name}.aaa").write_bytes(bytes([len(name)] * 4))
    text = TWO.replace('folder = "x"', 'folder = "x"\nglob = "a*"').replace("*.raw", "*.aaa")
    assert [int(f["y"][0, 0]) for f in read(write(folder, text), X, Y)] == [1, 3]


def test_a_constant_beside_files(folder: Path) -> None:
    text = BYTES + "[inputs.rate]\nvalue = 16000\n[inputs.k]\nvalue = [[1, 2]]\n"
    rate = TensorSpec(name="rate", dtype="int64", shape=())
    k = TensorSpec(name="k", dtype="float32", shape=(1, 2))
    found = read(write(folder, text), X, rate, k)
    assert found[0]["rate"].dtype == np.int64
    assert (found[3]["rate"].shape, int(found[3]["rate"])) == ((), 16000)
    assert found[1]["k"].tolist() == [[1, 2]]
    assert check(load_set(write(folder, text)), (X, rate, k)) == []  # constant on purpose: no warning


CONSTANTS = [
    ("16000.5", ("int64", ()), 'constant input "c": holds values that int64 cannot.'),
    ("[1, 2]", ("float32", (1, 3)), 'constant input "c": wrong shape'),
    ("[[1], [2, 3]]", ("float32", (2, 2)), "its lists are of unlike length"),
    ("1", ("float32", (1, "T")), "the model does not say how large it is"),
    ("1", ("float32", ("...",)), "the model does not say how large it is"),
]


@pytest.mark.parametrize(("value", "spec", "words"), CONSTANTS)
def test_a_constant_that_does_not_fit(
    value: str, spec: tuple[str, tuple[int | str, ...]], words: str, folder: Path
) -> None:
    path = write(folder, BYTES + f"[inputs.c]\nvalue = {value}\n")
    assert words in refused(path, X, TensorSpec(name="c", dtype=spec[0], shape=spec[1]))


def test_a_constant_takes_its_open_axes_from_the_other_inputs(folder: Path) -> None:
    wide = TensorSpec(name="x", dtype="float32", shape=("N", 2, "T"))
    types = TensorSpec(name="c", dtype="int64", shape=("N", "T"))
    found = read(write(folder, BYTES + "[inputs.c]\nvalue = 0\n"), wide, types)
    assert found[0]["c"].shape == (1, 3)


def test_a_constant_for_an_input_that_is_none(folder: Path) -> None:
    assert '"rat" is no input of the model. Did you mean "rate"?' in refused(
        write(folder, BYTES + "[inputs.rat]\nvalue = 1\n"), X, TensorSpec(name="rate", dtype="int64", shape=())
    )


DESCRIPTIONS = [
    (NPY, 'folder = "x"', 'folder = ".."', "leads out of the description's folder"),
    (NPY, 'folder = "x"', 'folder = "z"', "z: is not a folder."),
    (NPY, 'folder = "x"', 'folder = "x"\nglob = "*.txt"', "holds no file that matches *.txt"),
    (NPY, 'folder = "x"', 'folder = "y"\nglob = "*"', "is no .npy file, and nothing says what its bytes are"),
    (NPY, 'folder = "x"', 'folder = "x"\nskip = 4', "inputs.x.skip: is for files without a header of their own"),
    (NPY, 'folder = "x"', 'folder = "x"\nglob = "../*"', "inputs.x.glob: must stay below folder."),
    (BYTES, '"int16"', '"int17"', 'inputs.x.dtype: unknown value "int17"'),
    (BYTES, '"int16"', '"object"', 'inputs.x.dtype: unknown value "object"'),
    (BYTES, "[2, 3]", "[-1, -1]", "inputs.x.shape: must be the sizes of a sample's axes"),
    (BYTES, "[2, 3]", "[0, 3]", "inputs.x.shape: must be the sizes"),
    (BYTES, "[2, 3]", "[4611686018427387904, 3]", "inputs.x.shape: must be the sizes"),
    (
        BYTES,
        "shape = [2, 3]",
        "",
        "inputs.x.shape: must be the sizes of a sample's axes, one of them -1 at most, got None",
    ),
    (BYTES, "shape", f"skip = {MAX_SKIP + 1}\nshape", "inputs.x.skip: must be 0 or more"),
    (BYTES, "shape", "shap", 'inputs.x.shap: unknown key. Did you mean "shape"?'),
    (BYTES, "[inputs.x]", "[inputs.x]\nvalue = nan", "inputs.x.value: must be a finite number or nested lists of them"),
    (TWO, "", "", 'has no file for sample "3" of input "x"'),
]


@pytest.mark.parametrize(("text", "old", "new", "words"), DESCRIPTIONS)
def test_a_bad_description_is_refused(text: str, old: str, new: str, words: str, folder: Path) -> None:
    with pytest.raises(CalibrationError) as caught:
        load_set(write(folder, text.replace(old, new, 1)))
    assert words in str(caught.value)
    assert str(folder) in str(caught.value)


FILES: list[tuple[bytes | np.ndarray, str]] = [
    (np.full((2, 3), np.nan, np.float32), '2.npy: sample 2, input "x": holds nan at [0, 0, 0]'),
    (np.ones((2, 3)), 'input "x": wrong type: wanted float32, got float64'),
    (np.ones((3, 2), np.float32), 'input "x": wrong shape'),
    (np.ones((0, 3), np.float32), "2.npy: empty"),
    (np.array([object()]), "2.npy: holds object, not numbers"),
    (np.asfortranarray(np.ones((2, 3), np.float32)), "2.npy: stored in Fortran order"),
    (
        b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (999999999, 999999), }"
        + b" " * 48,
        "",
    ),
    (b"", "2.npy: the file is empty"),
]


@pytest.mark.parametrize(("content", "words"), FILES)
def test_Q07_a_bad_file_is_named(content: bytes | np.ndarray, words: str, folder: Path) -> None:
    path = folder / "x" / "2.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content, allow_pickle=True)
    assert words in refused(write(folder, NPY))
    assert "2.npy" in refused(write(folder, NPY))


def test_a_link_out_of_the_folder_is_refused(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "9.npy"
    np.save(outside, np.ones((2, 3), np.float32))
    (folder / "x/9.npy").symlink_to(outside)
    assert "is a link that leads out of" in refused(write(folder, NPY))


def test_two_files_for_one_sample_are_refused(folder: Path) -> None:
    (folder / "b/1.dat").write_bytes(b"x" * 12)
    assert '"1" is there with two suffixes' in refused(write(folder, BYTES.replace("**/*.bin", "*")))


def test_the_digest_follows_every_file(folder: Path) -> None:
    first = load_set(write(folder, BYTES)).digest()
    assert load_set(write(folder, BYTES + "skip = 0\n")).digest() == first
    (folder / "b/3.bin").write_bytes(b"\1" * 12)
    assert load_set(write(folder, BYTES)).digest() != first
    assert load_set(write(folder, BYTES + "[inputs.c]\nvalue = 1\n")).digest() != first
