"""States carried from sample to sample: zero at the start of every sequence, else what the network gave; streamed."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from edgeopt.calibration import check, load_set, samples, starts
from edgeopt.calibration.types import Carried
from edgeopt.errors import CalibrationError
from edgeopt.model import TensorSpec
from edgeopt.quality import Carry, compare_all
from tests.unit.test_calibration_wav import pcm

X = TensorSpec(name="x", dtype="float32", shape=("N", 4))
STATE = TensorSpec(name="state", dtype="float32", shape=(2, "N", 3))
RATE = TensorSpec(name="sr", dtype="int64", shape=())
INPUTS = (X, STATE, RATE)

TOML = """
schema = "edgeopt.set/1"
name = "vad"
kind = "wav"
folder = "w"
rate = 8000
[inputs.x]
window = 4
scale = 32768
[inputs.state]
from = "stateN"
[inputs.sr]
value = 16000
"""


def run(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A running sum of what was heard, forgetting half each time."""
    state = feeds["state"] / 2 + feeds["x"].sum()
    return {"y": state[:1, 0, :1], "stateN": state.astype(np.float32)}


def write(folder: Path, text: str = TOML) -> Path:
    (folder / "set.toml").write_text(text)
    return folder / "set.toml"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pcm(tmp_path / "w/a.wav", np.arange(1, 13))
    pcm(tmp_path / "w/b.wav", np.arange(8))
    return tmp_path


def test_states_follow_the_network_and_begin_anew_with_every_file(folder: Path) -> None:
    found = list(samples(load_set(write(folder)), INPUTS, run))
    assert [f["state"].shape for f in found] == [(2, 1, 3)] * 5
    assert [float(f["state"][1, 0, 2]) for f in found] == [0, 10, 31, 0, 6]  # 10/2 + 26 = 31
    assert {int(f["sr"]) for f in found} == {16000}
    assert list(found[0]) == ["x", "state", "sr"]
    assert check(load_set(write(folder)), INPUTS, run=run) == []


def test_the_one_unnamed_axis_of_a_state_is_its_batch(folder: Path) -> None:
    dataset = load_set(write(folder))
    state = TensorSpec(name="state", dtype="float32", shape=(2, "?", 3))
    assert [f["state"].shape for f in samples(dataset, (X, state, RATE), run)] == [(2, 1, 3)] * 5
    with pytest.raises(CalibrationError, match="the model does not say how large it is"):
        list(samples(dataset, (X, TensorSpec(name="state", dtype="float32", shape=(2, "?", "?")), RATE), run))


def test_a_sequence_of_arrays_begins_where_its_group_does(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(12, dtype=np.float32).reshape(3, 4))
    text = 'schema = "edgeopt.set/1"\nname = "a"\nkind = "arrays"\n[inputs.x]\nfile = "x.npy"\n'
    text += '[inputs.state]\nfrom = "stateN"\n[inputs.sr]\nvalue = 1\n'
    one = load_set(write(tmp_path, text))
    assert [float(f["state"][0, 0, 0]) for f in samples(one, INPUTS, run)] == [0, 6, 25]
    (tmp_path / "g.txt").write_text("u\nu\nv\n")
    two = load_set(write(tmp_path, text.replace("[inputs.x]", 'groups = "g.txt"\n[inputs.x]')))
    assert [float(f["state"][0, 0, 0]) for f in samples(two, INPUTS, run)] == [0, 6, 0]
    with pytest.raises(CalibrationError, match="stride: must be 1 where an input is carried over"):
        load_set(write(tmp_path, text.replace("[inputs.x]", "stride = 2\n[inputs.x]")))


WRONG = [
    ('"stateN"', '"stateM"', 'carried over from output "stateM": the model has no such output. Did you mean "stateN"?'),
    ('"stateN"', '"y"', "the output is float32[1, 1], and the input takes float32[2, 1, 3]"),
    ("[inputs.state]", "[inputs.stat]", '"stat" is no input of the model. Did you mean "state"?'),
    ('[inputs.state]\nfrom = "stateN"\n', "", "has no data for input state"),
]


@pytest.mark.parametrize(("old", "new", "words"), WRONG)
def test_Q07_a_state_that_does_not_fit_is_named(old: str, new: str, words: str, folder: Path) -> None:
    with pytest.raises(CalibrationError) as caught:
        check(load_set(write(folder, TOML.replace(old, new))), INPUTS, run=run)
    assert words in str(caught.value)


def test_a_state_of_nan_is_named(folder: Path) -> None:
    with pytest.raises(CalibrationError, match="the float model gives NaN or infinity"):
        check(
            load_set(write(folder)), INPUTS, run=lambda feeds: {**run(feeds), "stateN": run(feeds)["stateN"] * np.nan}
        )


def test_without_a_model_there_are_no_states(folder: Path) -> None:
    with pytest.raises(CalibrationError, match="carries state over from one sample to the next, and there is no model"):
        samples(load_set(write(folder)), INPUTS)


def test_an_artifact_is_judged_with_its_own_states(folder: Path) -> None:
    """Fed the float model's states, an artifact that forgets everything would look much better than it is."""
    dataset = load_set(write(folder))

    def forgetful(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        found = run(feeds)
        return {"y": found["y"], "stateN": found["stateN"] * 0}

    def judged(carry: Carry | None) -> list[float]:
        seen: list[float] = []

        def test(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            found = forgetful(feeds)
            seen.append(found["y"].item())
            return found

        compare_all(run, {"": test}, samples(dataset, INPUTS, run), carry=carry)
        return seen

    own = judged(Carry(inputs=(Carried(name="state", output="stateN"),), starts=starts(dataset, None)))
    assert own == [10, 26, 42, 6, 22]
    assert judged(None) == [10, 31, 57.5, 6, 25]


def test_the_digest_of_samples_leaves_states_out(folder: Path) -> None:
    dataset = load_set(write(folder))
    carry = {"inputs": (Carried(name="state", output="stateN"),)}

    def other(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: value * np.float32(1.5) for name, value in run(feeds).items()}

    digests = []
    for model in (run, other):
        found = compare_all(
            lambda f, m=model: {"y": np.float32([[0, 1]]), **{k: v for k, v in m(f).items() if k != "y"}},
            {"": lambda f, m=model: {"y": np.float32([[0, 1]]), "stateN": m(f)["stateN"]}},
            samples(dataset, INPUTS, model),
            carry=Carry(**carry, starts=starts(dataset, None)),
        )
        outcomes = found[""].outcomes
        assert outcomes is not None
        digests.append(outcomes.samples_sha256)
    assert digests[0] == digests[1]


def test_memory_does_not_grow_with_the_number_of_windows(tmp_path: Path) -> None:
    wide = TensorSpec(name="x", dtype="float32", shape=("N", 4000))
    peaks = []
    for index, points in enumerate((40_000, 1_200_000)):
        pcm_fast(tmp_path / f"{index}/w/a.wav", points)
        dataset = load_set(write(tmp_path / str(index), TOML.replace("window = 4", "window = 4000")))
        tracemalloc.start()
        check(dataset, (wide, STATE, RATE), run=run)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 100_000  # the second file alone has 2.4 MB


def pcm_fast(path: Path, points: int) -> None:
    import wave

    path.parent.mkdir(parents=True)
    with wave.open(str(path), "wb") as out:
        out.setparams((1, 2, 8000, 0, "NONE", ""))
        out.writeframes(np.random.default_rng(0).integers(-999, 999, points).astype("<i2").tobytes())


def folder_set(folder: Path, count: int) -> Path:
    (folder / "b").mkdir(parents=True)
    for index in range(count):
        (folder / f"b/{index:05d}.bin").write_bytes(np.full(5000, index + 1, "<f4").tobytes())
    text = 'schema = "edgeopt.set/1"\nname = "b"\nkind = "folder"\n[inputs.x]\nfolder = "b"\nglob = "*.bin"\n'
    return write(folder, text + 'dtype = "float32"\nshape = [5000]\n')


def token_set(folder: Path, count: int) -> Path:
    folder.mkdir(parents=True)
    with (folder / "t.jsonl").open("w") as stream:
        for index in range(count):
            stream.write(f'{{"x": [{", ".join([str(index)] * 5000)}]}}\n')
    text = 'schema = "edgeopt.set/1"\nname = "t"\nkind = "tokens"\nfile = "t.jsonl"\n[inputs.x]\n'
    return write(folder, text)


@pytest.mark.parametrize(("make", "dtype"), [(folder_set, "float32"), (token_set, "int64")])
def test_memory_does_not_grow_with_the_number_of_samples(
    make: Callable[[Path, int], Path], dtype: str, tmp_path: Path
) -> None:
    spec = TensorSpec(name="x", dtype=dtype, shape=("N", 5000))
    peaks = []
    for count in (10, 200):
        dataset = load_set(make(tmp_path / str(count), count))
        tracemalloc.start()
        check(dataset, (spec,))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 100_000  # all samples would be 4 MB
