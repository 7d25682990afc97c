"""Q07: data that cannot be used is named before any work; doubtful data is a warning; labels match their samples."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from edgeopt.calibration import check, labels, load_set, samples
from edgeopt.errors import CalibrationError
from edgeopt.model import TensorSpec

X = TensorSpec(name="x", dtype="float32", shape=("N", 3, 8, 8))
Y = TensorSpec(name="y", dtype="float32", shape=("N", 4))
RNG = np.random.default_rng(7)


def noise(count: int = 10, dtype: str = "float32") -> np.ndarray:
    return RNG.standard_normal((count, 3, 8, 8)).astype(dtype)


def planted(value: float) -> np.ndarray:
    array = noise()
    array[6, 1, 2, 3] = value
    return array


def refused(path: Path, *inputs: TensorSpec) -> str:
    with pytest.raises(CalibrationError) as caught:
        check(load_set(path), inputs or (X,))
    assert caught.value.exit_code == 4
    return str(caught.value)


@pytest.mark.parametrize(
    ("arrays", "inputs", "words"),
    [
        ({"z": noise()}, (X,), 'a.npz: "z" is no input of the model.'),
        ({"X": noise()}, (X,), 'a.npz: "X" is no input of the model.'),
        ({"x": noise()}, (X, Y), "a.npz: has no data for input y."),
        ({"x": noise(dtype="float64")}, (X,), 'sample 0, input "x": wrong type: wanted float32, got float64.'),
        ({"x": noise(dtype="float16")}, (X,), "wrong type: wanted float32, got float16."),
        ({"x": np.zeros((3, 3, 8, 8), np.uint8)}, (X,), "wrong type: wanted float32, got uint8."),
        (
            {"x": noise().transpose(0, 2, 3, 1)},
            (X,),
            "wanted float32[N, 3, 8, 8], its first axis the batch, got float32[8, 8, 3].",
        ),
        ({"x": noise().transpose(0, 2, 3, 1)}, (X,), "transpose = [2, 0, 1]"),
        ({"x": noise()[:, :, :, :7]}, (X,), 'input "x": wrong shape: wanted float32[N, 3, 8, 8]'),
        ({"x": noise()[0]}, (X,), "got float32[8, 8]."),
        ({"x": planted(np.nan)}, (X,), 'a.npz[x]: sample 6, input "x": holds nan at [0, 1, 2, 3].'),
        ({"x": planted(np.inf)}, (X,), 'sample 6, input "x": holds inf at [0, 1, 2, 3].'),
        ({"x": planted(-np.inf)}, (X,), "holds -inf at [0, 1, 2, 3]."),
        ({"x": noise(10), "y": noise(9)[:, 0, 0, :4]}, (X, Y), "inputs hold different numbers of samples"),
        ({"x": noise()[:0]}, (X,), "a.npz[x]: empty: its shape is [0, 3, 8, 8]."),
    ],
)
def test_Q07_unusable_arrays(
    arrays: dict[str, np.ndarray], inputs: tuple[TensorSpec, ...], words: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", **{k: np.ascontiguousarray(v) for k, v in arrays.items()})
    assert words in refused(tmp_path / "a.npz", *inputs)


def test_Q07_a_planted_nan_is_caught_in_any_sample(tmp_path: Path) -> None:
    for index in (0, 4, 9):
        array = noise()
        np.save(tmp_path / "a.npy", array)
        assert check(load_set(tmp_path / "a.npy"), (X,)) == []
        array[index, 2, 7, 7] = np.nan
        np.save(tmp_path / "a.npy", array)
        assert f'a.npy: sample {index}, input "x": holds nan at [0, 2, 7, 7]' in refused(tmp_path / "a.npy")


def folder_of(tmp_path: Path, broken: tuple[int, ...], count: int = 10) -> Path:
    (tmp_path / "x").mkdir()
    for index in range(count):
        np.save(tmp_path / "x" / f"{index}.npy", noise(1)[0])
    for index in broken:
        (tmp_path / "x" / f"{index}.npy").write_bytes(b"\x93NUMPY nonsense")
    description = 'schema = "edgeopt.set/1"\nname = "a"\nkind = "folder"\n[inputs.x]\nfolder = "x"\n'
    (tmp_path / "a.toml").write_text(description)
    return tmp_path / "a.toml"


@pytest.mark.parametrize("broken", [(2, 5, 7), (9,)])
def test_Q07_unreadable_files_are_named_before_any_work(broken: tuple[int, ...], tmp_path: Path) -> None:
    assert f"{broken[0]}.npy" in refused(folder_of(tmp_path, broken))


def test_Q07_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    assert re.search(r"\bx\b.*(no file|holds no|empty|nothing)", refused(folder_of(tmp_path, (), 0)))


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((4, 3, 8, 8)), 'a: input "x" is zero in every sample'),
        (np.full((4, 3, 8, 8), 0.25), 'a: input "x" is 0.25 in every sample'),
        (noise(1), "a: a single sample: ranges will not hold for other inputs"),
        (np.repeat(noise(1), 5, axis=0), "a: all 5 samples are identical"),
        (RNG.integers(0, 256, (4, 3, 8, 8)), 'a: input "x" holds whole numbers up to 255: raw pixels?'),
    ],
)
def test_Q07_doubtful_arrays(array: np.ndarray, words: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", array.astype(np.float32))
    (warning,) = check(load_set(tmp_path / "a.npy"), (X,))
    assert warning.startswith(words)


@pytest.mark.parametrize(
    "array", [noise(), np.abs(noise()), RNG.integers(0, 256, (4, 3, 8, 8)) / 255, RNG.integers(-5, 200, (4, 3, 8, 8))]
)
def test_good_arrays_raise_no_doubt(array: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", array.astype(np.float32))
    assert check(load_set(tmp_path / "a.npy"), (X,)) == []


def test_whole_numbers_for_an_integer_input_raise_no_doubt(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", RNG.integers(0, 256, (4, 3, 8, 8)).astype(np.uint8))
    spec = TensorSpec(name="x", dtype="uint8", shape=(1, 3, 8, 8))
    assert check(load_set(tmp_path / "a.npy"), (spec,)) == []


def test_Q07_two_sets_that_were_not_prepared_alike(tmp_path: Path) -> None:
    np.save(tmp_path / "cal.npy", noise() * 100)
    np.save(tmp_path / "eval.npy", noise())
    cal, evaluation = load_set(tmp_path / "cal.npy"), load_set(tmp_path / "eval.npy")
    (warning,) = check(cal, (X,), against=evaluation)
    assert re.match(r'cal: input "x" lies in -.*, in eval in -.*: the two were not prepared alike', warning)
    np.save(tmp_path / "more.npy", noise())
    assert check(evaluation, (X,), against=load_set(tmp_path / "more.npy")) == []


@pytest.mark.parametrize(
    ("shape", "stored", "ok"),
    [
        (("N", 4), (5, 4), True),
        (("N", 4), (5, 1, 4), True),
        ((1, 4), (5, 4), True),
        ((), (5,), True),
        ((2, "N", 4), (5, 2, 1, 4), True),
        (("N", "h", "h"), (5, 6, 6), True),
        (("N", "h", "h"), (5, 6, 7), False),
        (("N", "?", "?"), (5, 6, 7), True),
        ((10, 4), (5, 4), False),
        ((10, 4), (5, 10, 4), True),
        (("N", 4), (5, 2, 2, 4), False),
    ],
)
def test_the_batch_axis(shape: tuple[int | str, ...], stored: tuple[int, ...], ok: bool, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", RNG.standard_normal(stored).astype(np.float32))
    spec = TensorSpec(name="s", dtype="float32", shape=shape)
    if not ok:
        message = refused(tmp_path / "a.npy", spec)
        assert ("--shape s=1x4" in message) == (shape == (10, 4))
        return
    found = list(samples(load_set(tmp_path / "a.npy"), (spec,)))
    assert len(found) == 5
    for feed in found:
        assert feed["s"].dtype == np.float32
        assert len(feed["s"].shape) == len(shape)


def test_one_symbol_has_one_size_across_inputs(tmp_path: Path) -> None:
    ids = TensorSpec(name="ids", dtype="int64", shape=("N", "S"))
    mask = TensorSpec(name="mask", dtype="int64", shape=("N", "S"))
    np.savez(tmp_path / "a.npz", ids=np.ones((3, 7), np.int64), mask=np.ones((3, 6), np.int64))
    assert 'input "mask": wrong shape' in refused(tmp_path / "a.npz", ids, mask)


def test_two_inputs_stream_in_step(tmp_path: Path) -> None:
    first, second = noise(), noise()[:, 0, 0, :4]
    np.savez_compressed(tmp_path / "a.npz", y=second, x=first)
    for index, feed in enumerate(samples(load_set(tmp_path / "a.npz"), (X, Y))):
        assert list(feed) == ["x", "y"]
        assert np.array_equal(feed["x"], first[index : index + 1])
        assert np.array_equal(feed["y"], second[index : index + 1])


def test_one_array_for_two_inputs_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", noise())
    assert "one array for a model with 2 inputs (x, y)" in refused(tmp_path / "a.npy", X, Y)


def test_names_and_shapes_are_checked_at_the_call(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", z=noise())
    with pytest.raises(CalibrationError, match="no input of the model"):
        samples(load_set(tmp_path / "a.npz"), (X,))


def described(tmp_path: Path, total: int, head: str) -> Path:
    np.save(tmp_path / "x.npy", noise(total))
    text = f'schema = "edgeopt.set/1"\nname = "a"\nkind = "arrays"\n{head}\n[inputs.x]\nfile = "x.npy"\n'
    (tmp_path / "a.toml").write_text(text)
    return tmp_path / "a.toml"


@pytest.mark.parametrize("form", ["npy", "npz", "txt", "csv"])
def test_labels_follow_the_selection(form: str, tmp_path: Path) -> None:
    values = np.arange(10, 20)
    if form == "npy":
        np.save(tmp_path / "l.npy", values.astype(np.uint8))
    elif form == "npz":
        np.savez(tmp_path / "l.npz", labels=values)
    else:
        (tmp_path / f"l.{form}").write_text("label\n" * (form == "csv") + "\n".join(map(str, values)) + "\n")
    path = described(tmp_path, 10, f'metric = "top1"\nlabels = "l.{form}"\nstart = 1\nstride = 4')
    found = labels(load_set(path))
    assert found is not None
    assert found.tolist() == [11, 15, 19]
    assert check(load_set(path), (X,)) == []


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.arange(9), "9 labels for 10 samples."),
        (np.arange(10.0), "labels must be a row of integers, got float64[10]."),
        (np.zeros((10, 1), np.int64), "labels must be a row of integers, got int64[10, 1]."),
        (np.arange(10) - 1, "label of sample 0 is -1; classes are counted from 0."),
        (np.full(10, 2**63, np.uint64), "label of sample 0 is 9223372036854775808;"),
        ("1\n2\n", "2 labels for 10 samples."),
        ("1\n" * 9 + "x\n", 'label 10 is "x", not a whole number.'),
        ("a.png,1\n" * 10, "file,label lines are for a folder of images"),
        ("1\n2,3\n", "every line must be a label, or every line file,label."),
        ("", "every line must be a label"),
    ],
)
def test_bad_labels_are_refused_before_the_samples(values: np.ndarray | str, words: str, tmp_path: Path) -> None:
    name = "l.txt" if isinstance(values, str) else "l.npy"
    if isinstance(values, str):
        (tmp_path / name).write_text(values)
    else:
        np.save(tmp_path / name, values)
    assert words in refused(described(tmp_path, 10, f'metric = "top1"\nlabels = "{name}"'))


def test_a_missing_label_file_is_named(tmp_path: Path) -> None:
    assert "l.npy: cannot be read" in refused(described(tmp_path, 10, 'metric = "top1"\nlabels = "l.npy"'))
    assert "l.txt: cannot be read" in refused(described(tmp_path, 10, 'metric = "top1"\nlabels = "l.txt"'))


def test_a_set_without_labels_has_none(tmp_path: Path) -> None:
    assert labels(load_set(described(tmp_path, 10, ""))) is None


def test_a_set_that_judges_what_it_calibrated_is_told(tmp_path: Path) -> None:
    array = noise(40)
    for name, part in {"all": array, "half": array[20:], "other": noise(40)}.items():
        np.savez(tmp_path / f"{name}.npz", x=part)
    whole, half, other = (load_set(tmp_path / f"{name}.npz") for name in ("all", "half", "other"))
    (same,) = check(whole, (X,), against=load_set(tmp_path / "all.npz"))
    assert same.startswith("all: 32 of the first 32 samples of all are in it too: the quality is judged on what")
    assert "half: 12 of the first 32 samples of all are in it too" in check(half, (X,), against=whole)[0]
    assert check(other, (X,), against=whole) == []
