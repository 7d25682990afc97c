"""Descriptions: what is refused, transforms in numbers, paths, digests, and the page on sets."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from edgeopt.calibration import check, judging, kinds, load_set, samples
from edgeopt.calibration import load as load_module
from edgeopt.errors import CalibrationError
from edgeopt.metrics import NAMES
from edgeopt.model import TensorSpec
from tests.unit.test_calibration_wav import pcm

ROOT = Path(__file__).resolve().parents[2]
X = TensorSpec(name="x", dtype="float32", shape=("N", 3, 2, 2))

VALID = """
schema = "edgeopt.set/1"
name = "a"
kind = "arrays"
metric = "top1"
labels = "l.npy"
start = 0
[inputs.x]
file = "x.npy"
layout = "NCHW"
color = "rgb"
scale = "1/255"
mean = [0.1, 0.2, 0.3]
std = [0.4, 0.5, 0.6]
"""

IMAGES = """
schema = "edgeopt.set/1"
name = "i"
kind = "images"
folder = "p"
[inputs.x]
layout = "NCHW"
color = "rgb"
scale = 1
size = [2, 2]
"""

PYTHON = """
schema = "edgeopt.set/1"
name = "f"
kind = "python"
factory = "feeds_a:make"
count = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", np.random.default_rng(3).integers(0, 256, (6, 3, 2, 2)).astype(np.uint8))
    np.save(tmp_path / "l.npy", np.arange(6))
    return tmp_path


def write(folder: Path, text: str) -> Path:
    path = folder / "set.toml"
    path.write_text(text, encoding="utf-8")
    return path


REFUSED = [
    (VALID, 'kind = "arrays"', 'kind = "array"', 'kind: unknown value "array"; known: arrays, folder, images, '),
    (VALID, 'kind = "arrays"', "", "kind: is missing; it must be a text."),
    (VALID, "edgeopt.set/1", "edgeopt.set/9", 'schema: unknown value "edgeopt.set/9"'),
    (VALID, 'name = "a"', "name = 3", "name: must be a text, got 3."),
    (VALID, "start = 0", "strat = 0", 'strat: unknown key for kind = "arrays". Did you mean "start"?'),
    (VALID, "start = 0", "start = -1", "start: must be 0 or more, got -1."),
    (VALID, "start = 0", "stride = 0", "stride: must be 1 or more, got 0."),
    (VALID, "start = 0", "limit = 0", "limit: must be 1 or more, got 0."),
    (VALID, "start = 0", "start = 6", "count: 0 of 6 samples are left, 1 wanted."),
    (VALID, "top1", "top-1", 'metric: unknown value "top-1"; known: top1, top5, top, '),
    (VALID, 'metric = "top1"', "", "metric: is missing beside labels"),
    (VALID, 'labels = "l.npy"', "", "metric: needs labels."),
    (VALID, '"l.npy"', '"l.json"', 'labels: "l.json" is none of .npy, .npz, .csv, .txt.'),
    (VALID, '"l.npy"', '{ fil = "l.npy" }', 'labels.fil: unknown key. Did you mean "file"?'),
    (VALID, '"x.npy"', '"../x.npy"', "leads out of the description's folder"),
    (VALID, '"x.npy"', '"link/x.npy"', "leads out of the description's folder"),
    (VALID, '"l.npy"', '"a/../../l.npy"', "leads out of the description's folder"),
    (VALID, '"x.npy"', '"x.bin"', 'inputs.x.file: "x.bin" is neither .npz nor .npy.'),
    (VALID, '"x.npy"', '"y.npy"', "y.npy: cannot be read (No such file or directory)."),
    (VALID, "[inputs.x]", "[inputs.x]\nmember = 'm'", "inputs.x.member: only a .npz file has members."),
    (VALID, "mean =", "maen =", 'inputs.x.maen: unknown key. Did you mean "mean"?'),
    (VALID, '"1/255"', '"1/0"', "inputs.x.scale: must be a number but zero"),
    (VALID, '"1/255"', '"1e999999999"', "inputs.x.scale: must be a number but zero"),
    (VALID, '"1/255"', "inf", "inputs.x.scale: must be a number but zero"),
    (VALID, "[0.1, 0.2, 0.3]", "[0.1, 0.2]", "inputs.x.mean: has 2 values for 3 channels (rgb)."),
    (VALID, "[0.1, 0.2, 0.3]", "[]", "inputs.x.mean: must be a finite number or a list of them"),
    (VALID, "[0.1, 0.2, 0.3]", "[nan]", "inputs.x.mean: must be a finite number or a list of them"),
    (VALID, "[0.4, 0.5, 0.6]", "[0.4, 0, 0.6]", "inputs.x.std: must be greater than zero."),
    (VALID, 'layout = "NCHW"', "", "inputs.x.mean: has one value a channel, so layout must be given."),
    (VALID, '"NCHW"', '"CHW"', 'inputs.x.layout: unknown value "CHW"; known: NCHW, NHWC.'),
    (VALID, '"rgb"', '"RGB"', 'inputs.x.color: unknown value "RGB"; known: rgb, bgr, gray.'),
    (VALID, "[inputs.x]", "[inputs.x]\ntranspose = [0, 2]", "inputs.x.transpose: must be an order"),
    (VALID, "[inputs.x]", "[inputs.x]\ncast = 1", "inputs.x.cast: must be true or false, got 1."),
    (VALID, "[inputs.x]", "[input.x]", 'input: unknown key for kind = "arrays". Did you mean "inputs"?'),
    (IMAGES, "scale = 1", "", "inputs.x.scale: is missing; nothing is assumed about how pixels become numbers."),
    (IMAGES, 'color = "rgb"', "", "inputs.x.color: is missing"),
    (IMAGES, 'layout = "NCHW"', "", "inputs.x.layout: is missing"),
    (IMAGES, "size = [2, 2]", "size = [2]", "inputs.x.size: must be [height, width] in pixels, got [2]."),
    (IMAGES, "size = [2, 2]", "crop = [2, 99999]", "inputs.x.crop: must be [height, width] in pixels"),
    (IMAGES, "size = [2, 2]", "size = [2, 2]\nresize = 4", "inputs.x.size: cannot stand beside resize."),
    (IMAGES, "size = [2, 2]", "size = [2, 2]\n[inputs.y]", "inputs: must hold one table [inputs.NAME], got 2."),
    (IMAGES, 'folder = "p"', 'folder = ".."', 'folder: ".." leads out of the description\'s folder'),
    (IMAGES, 'folder = "p"', 'folder = "p"\nglob = "../*"', "glob: must stay below folder."),
    (IMAGES, 'folder = "p"', 'folder = "q"', "q: is not a folder."),
    (IMAGES, 'folder = "p"', 'folder = "."\nglob = "*.jpg"', "holds no file that matches *.jpg."),
    (PYTHON, "feeds_a:make", "feeds_a", 'factory: must be "package.module:function", got "feeds_a".'),
    (PYTHON, "feeds_a:make", "os.system('x'):y", 'factory: must be "package.module:function"'),
    (PYTHON, "count = 3", "", "count: is missing; it must be an integer."),
    (PYTHON, "count = 3", "count = 3\nlimit = 3", "limit: cannot be used here"),
]


@pytest.mark.parametrize(("text", "old", "new", "words"), REFUSED)
def test_a_bad_description_is_refused_with_file_and_key(
    text: str, old: str, new: str, words: str, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (folder / "link").symlink_to(tmp_path_factory.mktemp("outside"))
    assert old in text
    path = write(folder, text.replace(old, new))
    with pytest.raises(CalibrationError) as caught:
        load_set(path)
    assert caught.value.exit_code == 4
    assert words in str(caught.value)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("set.json", "not a data set."),
        ("y.npy", 'no such file. Did you mean "x.npy"?'),
        ("missing.toml", "cannot be read (No such file or directory)."),
        ("nothing", "not a data set."),
    ],
)
def test_a_spec_that_names_no_set_is_refused(name: str, words: str, folder: Path) -> None:
    with pytest.raises(CalibrationError) as caught:
        load_set(folder / name)
    assert words in str(caught.value)
    assert str(folder / name) in str(caught.value)


def test_a_folder_without_a_description_gets_a_template_that_is_valid(folder: Path) -> None:
    (folder / "p").mkdir()
    (folder / "p/0.jpg").touch()
    with pytest.raises(CalibrationError, match="says nothing about colour order and scale") as caught:
        load_set(folder / "p")
    text = "\n".join(line.strip() for line in str(caught.value.remedy).splitlines()[1:])
    (folder / "p/set.toml").write_text(text)
    assert load_set(folder / "p").count == 1
    (folder / "p/0.jpg").unlink()
    with pytest.raises(CalibrationError, match="holds no file that matches"):  # all that is missing now
        load_set(folder / "p")


def test_a_folder_without_samples_is_said_to_be_without_them(folder: Path) -> None:
    (folder / "p").mkdir()
    with pytest.raises(CalibrationError, match=r"p: the folder is empty\.") as caught:
        load_set(folder / "p")
    assert str(caught.value.remedy).startswith("Give another path, or put the samples there. Put this set.toml into it")
    (folder / "p/notes.txt").touch()
    (folder / "p/below").mkdir()
    with pytest.raises(CalibrationError, match=r"holds no image, no \.npy.* file, and no set\.toml\."):
        load_set(folder / "p")
    (folder / "p/below/0.JPG").touch()
    with pytest.raises(CalibrationError, match="says nothing about colour order and scale"):
        load_set(folder / "p")


def test_a_description_that_names_an_empty_folder_says_so(folder: Path) -> None:
    (folder / "void").mkdir()
    with pytest.raises(CalibrationError, match=r"void: is empty, so it holds no file that matches \*\*/\*\."):
        load_set(write(folder, IMAGES.replace('folder = "p"', 'folder = "void"')))


def test_a_folder_with_a_description_is_a_set(folder: Path) -> None:
    write(folder, VALID)
    assert load_set(folder).name == "a"


def test_spaces_and_other_alphabets_in_paths(tmp_path: Path) -> None:
    inside = tmp_path / "mödel dir" / "模型 v1 (final)"
    inside.mkdir(parents=True)
    np.savez(inside / "dätä 1.npz", images=np.ones((2, 3, 2, 2), np.float32))
    text = VALID.replace('"x.npy"', '"dätä 1.npz"\nmember = "images"').replace('metric = "top1"\nlabels = "l.npy"', "")
    write(inside, text)
    assert len(list(samples(load_set(inside), (X,)))) == 2


def test_an_absolute_path_is_taken_as_written(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    text = VALID.replace('"x.npy"', f'"{folder}/x.npy"').replace('"l.npy"', f'"{folder}/l.npy"')
    assert load_set(write(elsewhere, text)).count == 6


def test_the_transform_in_numbers(folder: Path) -> None:
    raw = np.load(folder / "x.npy").astype(np.float64)
    shape = (1, 3, 1, 1)
    wanted = (raw / 255 - np.reshape([0.1, 0.2, 0.3], shape)) / np.reshape([0.4, 0.5, 0.6], shape)
    found = np.concatenate([feed["x"] for feed in samples(load_set(write(folder, VALID)), (X,))])
    assert found.dtype == np.float32
    assert np.abs(found - wanted).max() < 3e-7
    assert np.abs(found - (raw / 255 - 0.1) / 0.4).max() > 0.1  # one mean for all channels would be seen


def test_the_contract_says_what_was_done(folder: Path) -> None:
    contract = load_set(write(folder, VALID)).preprocessing
    assert contract == {
        "x": {
            "formula": "(raw * scale - mean) / std",
            "scale": 1 / 255,
            "mean": [0.1, 0.2, 0.3],
            "std": [0.4, 0.5, 0.6],
            "layout": "NCHW",
            "color": "rgb",
        }
    }
    np.save(folder / "y.npy", np.ones((2, 3, 2, 2), np.float32))
    assert load_set(folder / "y.npy").preprocessing == {}


def test_transpose_and_channels_last(folder: Path) -> None:
    raw = np.load(folder / "x.npy")
    np.save(folder / "h.npy", np.ascontiguousarray(raw.transpose(0, 2, 3, 1)))
    first = VALID.replace('"x.npy"', '"h.npy"\ntranspose = [2, 0, 1]')
    last = VALID.replace('"x.npy"', '"h.npy"').replace("NCHW", "NHWC")
    wanted = [feed["x"] for feed in samples(load_set(write(folder, VALID)), (X,))]
    moved = [feed["x"] for feed in samples(load_set(write(folder, first)), (X,))]
    spec = TensorSpec(name="x", dtype="float32", shape=("N", 2, 2, 3))
    kept = [feed["x"] for feed in samples(load_set(write(folder, last)), (spec,))]
    for a, b, c in zip(wanted, moved, kept, strict=True):
        assert np.array_equal(a, b)
        assert np.array_equal(a, c.transpose(0, 3, 1, 2))


PLAIN = 'schema = "edgeopt.set/1"\nname = "a"\nkind = "arrays"\n[inputs.x]\nfile = "v.npy"\n'


@pytest.mark.parametrize(
    ("values", "dtype", "extra", "words"),
    [
        (np.array([0.1, 2.5]), "float32", "cast = true", None),
        (np.array([1, 2], np.int64), "float32", "cast = true", None),
        (np.array([1.0, 2.0]), "int32", "cast = true", None),
        (np.array([1, 2], ">i4"), "int32", "", None),
        (np.array([1.0, 2.0], np.float32), "bfloat16", "cast = true", None),
        (np.array([1, 0], np.int64), "bool", "cast = true", None),
        (np.array([10, 20], np.uint8), "int8", "scale = 0.5", None),
        (np.array([1.5, 2.0]), "int32", "cast = true", "holds values that int32 cannot"),
        (np.array([1, 300], np.int64), "uint8", "cast = true", "holds values that uint8 cannot"),
        (np.array([1e300, 1.0]), "float32", "cast = true", "holds inf at []"),
        (np.array([1e5, 1.0], np.float32), "float16", "cast = true", "holds inf at []"),
        (np.array([1.0, 2.0]), "string", "cast = true", "has type string, which no set can feed"),
        (np.array([1.0, 2.0]), "str", "cast = true", "has type str, which no set can feed"),
    ],
)
def test_conversion_is_exact_or_refused(
    values: np.ndarray, dtype: str, extra: str, words: str | None, tmp_path: Path
) -> None:
    np.save(tmp_path / "v.npy", values)
    dataset, spec = load_set(write(tmp_path, PLAIN + extra)), TensorSpec(name="x", dtype=dtype, shape=())
    if words is not None:
        with pytest.raises(CalibrationError, match=re.escape(words)):
            check(dataset, (spec,))
        return
    found = [feed["x"] for feed in samples(dataset, (spec,))]
    factor = 0.5 if "scale" in extra else 1
    assert all(value.dtype == np.dtype(dtype) for value in found)
    assert [float(value) for value in found] == pytest.approx([float(v) * factor for v in values], rel=1e-7)


def test_the_digest_follows_data_and_settings(folder: Path) -> None:
    def digest(text: str) -> str:
        return load_set(write(folder, text)).digest()

    first = digest(VALID)
    assert first == digest("# a comment\n" + VALID.replace('name = "a"', 'name = "b"'))
    assert len({first, digest(VALID.replace("0.1", "0.11")), digest(VALID.replace("start = 0", "start = 1"))}) == 3
    changed = np.load(folder / "x.npy")
    changed[0, 0, 0, 0] ^= 1
    np.save(folder / "x.npy", changed)
    assert digest(VALID) != first


def test_the_page_on_sets_is_true(tmp_path: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    page = (ROOT / "docs/add-a-calibration-set.md").read_text(encoding="utf-8")
    examples = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (code,) = re.findall(r"```python\n# feeds.py.*?\n(.*?)```", page, re.DOTALL)
    (tmp_path / "feeds.py").write_text(code)
    np.savez(tmp_path / "gestures.npz", images=rng.integers(0, 256, (9, 8, 8, 3)).astype(np.uint8), labels=np.arange(9))
    np.save(tmp_path / "gain.npy", np.ones((9, 1)))
    (tmp_path / "photos").mkdir()
    for index in range(2):
        picture = rng.integers(0, 256, (300, 400, 3)).astype(np.uint8)
        Image.fromarray(picture).save(tmp_path / f"photos/{index}.jpg")
    (tmp_path / "labels.csv").write_text("file,label\n0.jpg,3\n1.jpg,1\n")
    for name in ("frames", "masks", "gains", "calls"):
        (tmp_path / name).mkdir()
    (tmp_path / "frames/1.raw").write_bytes(bytes(16) + rng.integers(0, 9999, (64, 64)).astype(">i2").tobytes())
    np.save(tmp_path / "masks/1.npy", np.zeros((64, 64), np.uint8))
    np.save(tmp_path / "gains/1.npy", np.ones(1, np.float32))
    (tmp_path / "sentences.jsonl").write_text('{"input_ids": [1, 2]}\n{"input_ids": [1, 3]}\n{"input_ids": [4]}\n')
    (tmp_path / "pairs.csv").write_text("i,j,score\n0,1,0.5\n1,2,0.1\n")
    pcm(tmp_path / "calls/a.wav", rng.integers(-99, 99, 3000), rate=16000)
    pcm(tmp_path / "calls/b.wav", rng.integers(-99, 99, 2000), rate=16000)
    (tmp_path / "speech.csv").write_text("file,label\na.wav,0\nb.wav,1\n")
    image = TensorSpec(name="image", dtype="float32", shape=("N", 3, 8, 8))
    frame = TensorSpec(name="image", dtype="float32", shape=("N", 1, 64, 64))
    tokens = [
        TensorSpec(name=n, dtype="int64", shape=("N", "S")) for n in ("input_ids", "attention_mask", "token_type_ids")
    ]
    state = TensorSpec(name="state", dtype="float32", shape=(2, "N", 128))
    sound = TensorSpec(name="input", dtype="float32", shape=("N", 576))
    gain = TensorSpec(name="gain", dtype="float32", shape=("N", 1))
    inputs = {
        "arrays": (image, gain),
        "folder": (frame, gain),
        "tokens": tuple(tokens),
        "wav": (sound, state, TensorSpec(name="sr", dtype="int64", shape=())),
        "images": (TensorSpec(name="input", dtype="float32", shape=("N", 3, 224, 224)),),
        "python": (TensorSpec(name="input", dtype="float32", shape=(1, 3, 8, 8)),),
        "random": (image,),
    }
    seen = []
    for example in examples:
        dataset = load_set(write(tmp_path, example))
        check(dataset, inputs[dataset.kind], run=lambda feeds: {"stateN": feeds["state"] + np.float32(1)})
        seen.append(dataset.kind)
    assert tuple(seen) == load_module.KINDS
    known = {key for keys in load_module._KEYS.values() for key in keys}
    parameters = [key for keys in judging._KEYS.values() for key in keys]
    more = (
        *kinds._FOLDER_INPUT,
        *kinds._BYTES_ONLY,
        *judging._OWN,
        *parameters,
        *NAMES,
        "window",
        "hop",
        "before",
        "tail",
    )
    for key in (
        *known,
        *load_module._ARRAY_INPUT,
        *load_module._IMAGE_INPUT,
        *more,
        "axes",
        "integer",
        "value",
        "from",
    ):
        assert re.search(rf"\b{key}\b", page), key
