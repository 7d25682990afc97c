"""Sets that are not files: a user's function, and random values, which are second-class."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from edgeopt.calibration import check, labels, load_set, samples
from edgeopt.errors import CalibrationError
from edgeopt.model import TensorSpec

X = TensorSpec(name="x", dtype="float32", shape=("N", 3, 2, 2))

PYTHON = """
schema = "edgeopt.set/1"
name = "f"
kind = "python"
factory = "feeds_a:make"
count = 3
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "set.toml"
    path.write_text(text, encoding="utf-8")
    return path


def feeds(folder: Path, module: str, body: str) -> Path:
    (folder / f"{module}.py").write_text(f"import numpy as np\n\ndef make():\n{body}\n")
    return write(folder, PYTHON.replace("feeds_a", module))


ONE = "    for i in range({count}): yield {{'x': np.full((1, 3, 2, 2), i, np.float32)}}"


def test_a_function_is_called_anew_for_every_pass(tmp_path: Path) -> None:
    dataset = load_set(feeds(tmp_path, "feeds_again", ONE.format(count=5)))
    before = list(sys.path)
    for _ in range(2):
        assert [float(feed["x"].max()) for feed in samples(dataset, (X,))] == [0, 1, 2]
    assert sys.path == before
    assert dataset.files == (tmp_path / "feeds_again.py",)


def test_no_code_runs_before_the_samples_are_asked_for(tmp_path: Path) -> None:
    path = feeds(tmp_path, "feeds_lazy", "    raise SystemExit('ran')")
    (tmp_path / "feeds_lazy.py").write_text("raise SystemExit('ran')")
    assert load_set(path).digest()
    with pytest.raises(CalibrationError, match="raised SystemExit: ran"):
        next(samples(load_set(path), (X,)))


@pytest.mark.parametrize(
    ("module", "body", "words"),
    [
        ("feeds_few", ONE.format(count=2), "feeds_few:make gave 2 samples and count says 3."),
        ("feeds_name", "    for _ in range(3): yield {'X': np.ones(3)}", 'sample 0: "X" is no input of the model.'),
        ("feeds_none", "    for _ in range(3): yield {}", "sample 0: has no data for input x."),
        ("feeds_list", "    yield [1]", "sample 0: is a list, wanted a dict of input name to array."),
        ("feeds_dtype", "    yield {'x': np.ones((1, 3, 2, 2))}", "wrong type: wanted float32, got float64."),
        ("feeds_shape", "    yield {'x': np.ones((1, 2, 2, 3), np.float32)}", 'sample 0, input "x": wrong shape'),
        ("feeds_nan", "    yield {'x': np.full((1, 3, 2, 2), np.nan, np.float32)}", "holds nan at [0, 0, 0, 0]"),
        ("feeds_object", "    yield {'x': object()}", "not numbers."),
    ],
)
def test_Q07_a_function_with_bad_feeds(module: str, body: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(CalibrationError) as caught:
        check(load_set(feeds(tmp_path, module, body)), (X,))
    assert words in str(caught.value)
    assert module in str(caught.value)


def test_a_function_that_cannot_be_imported(tmp_path: Path) -> None:
    path = write(tmp_path, PYTHON.replace("feeds_a", "feeds_missing"))
    with pytest.raises(CalibrationError, match=r"cannot be imported \(No module named 'feeds_missing'\)"):
        check(load_set(path), (X,))
    path = feeds(tmp_path, "feeds_other", ONE.format(count=3))
    path.write_text(path.read_text().replace(":make", ":mak"))
    with pytest.raises(CalibrationError, match="cannot be imported"):
        check(load_set(path), (X,))


def test_a_module_of_the_same_name_elsewhere_is_not_taken_for_it(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    first = feeds(tmp_path / "one", "feeds_twice", ONE.format(count=3))
    second = feeds(tmp_path / "two", "feeds_twice", ONE.format(count=3))
    check(load_set(first), (X,))
    with pytest.raises(CalibrationError, match='a module called "feeds_twice" is loaded already'):
        check(load_set(second), (X,))


def test_random_is_second_class_and_says_so(tmp_path: Path) -> None:
    text = 'schema = "edgeopt.set/1"\nname = "noise"\nkind = "random"\ncount = 5\nseed = 3\n'
    for dataset in (load_set("random"), load_set(write(tmp_path, text))):
        assert dataset.second_class
        assert dataset.metric is None
        assert labels(dataset) is None
        assert "random values: ranges are guesses and nothing is said about quality" in check(dataset, (X,))[0]
    assert load_set("random").count == 32
    first = [feed["x"] for feed in samples(dataset, (X,))]
    assert len(first) == 5
    assert all(np.array_equal(a, feed["x"]) for a, feed in zip(first, samples(dataset, (X,)), strict=True))
    assert not np.array_equal(first[0], next(samples(load_set("random"), (X,)))["x"])


def test_random_is_never_reached_by_another_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for spec in ("", "Random", "./random", Path("missing/random")):
        with pytest.raises(CalibrationError):
            load_set(spec)
    with pytest.raises(CalibrationError, match="metric: unknown key"):
        load_set(write(tmp_path, 'schema = "edgeopt.set/1"\nname = "n"\nkind = "random"\nmetric = "top1"\n'))


def test_random_integers_and_shapes() -> None:
    ids = TensorSpec(name="ids", dtype="int64", shape=("N", 6))
    flag = TensorSpec(name="flag", dtype="bool", shape=())
    feed = next(samples(load_set("random"), (ids, flag)))
    assert (feed["ids"].shape, feed["ids"].dtype, feed["flag"].dtype) == ((1, 6), np.int64, np.bool_)
    assert set(np.unique(feed["ids"])) <= {0, 1}
    with pytest.raises(CalibrationError, match=r'random: input "x" has no fixed shape') as caught:
        next(samples(load_set("random"), (TensorSpec(name="x", dtype="float32", shape=("N", 3, "H", "W")),)))
    assert "--shape x=" in str(caught.value)
