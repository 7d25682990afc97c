"""What judges, as it is described: metrics with parameters, labels of every kind, pairs, charsets, a user's code."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from edgeopt.calibration import check, load_set, scorer, targets
from edgeopt.errors import CalibrationError
from edgeopt.metrics import MetricSpec
from edgeopt.model import TensorSpec

X = TensorSpec(name="x", dtype="float32", shape=("N", 3))
HEAD = 'schema = "edgeopt.set/1"\nname = "a"\nkind = "arrays"\n'
INPUT = '[inputs.x]\nfile = "x.npy"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delitem(sys.modules, "judge_a", raising=False)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32))
    np.save(tmp_path / "l.npy", np.array([0, 1, 1, 0]))
    np.save(tmp_path / "f.npy", np.array([0.5, 1, 2, 3]))
    np.save(tmp_path / "nan.npy", np.array([0.5, 1, np.nan, 3]))
    np.save(tmp_path / "m.npy", np.zeros((4, 2, 2), np.uint8))
    (tmp_path / "t.txt").write_text("ab, c\nd\n  e\nf\n", encoding="utf-8")
    (tmp_path / "c.txt").write_text("a\nb\n \n", encoding="utf-8")
    (tmp_path / "p.csv").write_text("i,j,score\n0,1,0.5\n2,3,1.5\n")
    (tmp_path / "judge_a.py").write_text(
        "import numpy as np\ndef far(outputs, label): return [outputs['y'].item(), label]\n"
        "def worst(rows): return float(np.max(rows[:, 0] - rows[:, 1]))\n"
        "def size(outputs, label): return float(abs(outputs['y']).sum())\n"
    )
    return tmp_path


def write(folder: Path, text: str) -> Path:
    (folder / "set.toml").write_text(HEAD + text + INPUT, encoding="utf-8")
    return folder / "set.toml"


GOOD = [
    ('metric = "top5"\nlabels = "l.npy"', MetricSpec(name="top5"), [0, 1, 1, 0]),
    ('metric = { name = "top", k = 7 }\nlabels = "l.npy"', MetricSpec(name="top7"), [0, 1, 1, 0]),
    ('metric = { name = "accuracy", threshold = 0.3 }\nlabels = "l.npy"', None, [0, 1, 1, 0]),
    ('metric = { name = "f1", average = "macro" }\nlabels = "l.npy"', None, [0, 1, 1, 0]),
    ('metric = "pearson"\nlabels = "f.npy"', MetricSpec(name="pearson"), [0.5, 1, 2, 3]),
    ('metric = "mae"\nlabels = "f.npy"', MetricSpec(name="mae"), [0.5, 1, 2, 3]),
    ('metric = { name = "cer", charset = "c.txt" }\nlabels = "t.txt"', None, ["ab, c", "d", "  e", "f"]),
    ('metric = { name = "spearman", pairs = "p.csv", pool = "mean", mask = "m" }', None, None),
    ('metric = { name = "miou", ignore = 255, output = "y" }\nlabels = "m.npy"', None, [[[0, 0], [0, 0]]] * 4),
    ('metric = "judge_a:size"\nlabels = "l.npy"', MetricSpec(name="judge_a:size"), [0, 1, 1, 0]),
    ('metric = { function = "judge_a:size", labels = false, better = "lower", unit = "number" }', None, None),
]


@pytest.mark.parametrize(("text", "spec", "labels"), GOOD)
def test_metrics_and_their_labels(
    text: str, spec: MetricSpec | None, labels: list[object] | None, folder: Path
) -> None:
    dataset = load_set(write(folder, text + "\n"))
    assert spec is None or dataset.metric == spec
    assert scorer(dataset) is not None
    found = targets(dataset)
    assert (found is None) == (labels is None)
    assert labels is None or [v.tolist() if isinstance(v, np.ndarray) else v for v in found or ()] == labels
    assert check(dataset, (X,)) == []
    assert dataset.digest() != load_set(write(folder, "")).digest()


def test_a_function_of_the_users_own_judges_and_is_part_of_the_digest(folder: Path) -> None:
    text = 'metric = { function = "judge_a:far", score = "judge_a:worst", better = "lower" }\nlabels = "f.npy"\n'
    dataset = load_set(write(folder, text))
    found = scorer(dataset)
    assert found is not None
    rows = np.array([found.reduce({"y": np.float32(3)}, {}, label) for label in targets(dataset) or ()])
    assert found.prepare(rows)(np.ones(4)) == 2.5
    assert folder / "judge_a.py" in dataset.files


def test_pairs_are_positions_among_the_samples_in_use(folder: Path) -> None:
    (folder / "p.csv").write_text("0,1,0.5\n1,3,1.5\n3,1,2\n1,1,3\n")
    dataset = load_set(write(folder, 'metric = { name = "pearson", pairs = "p.csv" }\nstart = 1\nstride = 2\n'))
    found = scorer(dataset)
    assert found is not None
    assert found.units is not None
    rows = np.float64([[1, 0], [0.6, 0.8]])
    # pairs (0,1) 1.5, (1,0) 2 and (0,0) 3 with the cosines 0.6, 0.6 and 1
    wanted = np.corrcoef([0.6, 0.6, 1], [1.5, 2, 3])[0, 1]
    assert found.prepare(rows)(np.ones(2)) == pytest.approx(wanted)


DESCRIPTIONS = [
    ('metric = "top0"\nlabels = "l.npy"', 'metric: unknown value "top0"'),
    ('metric = "aucc"\nlabels = "l.npy"', 'Did you mean "auc"?'),
    (
        'metric = { name = "auc", treshold = 1 }\nlabels = "l.npy"',
        'metric.treshold: unknown key. Did you mean "threshold"?',
    ),
    ('metric = { name = "auc", blank = 1 }\nlabels = "l.npy"', "metric.blank: unknown key"),
    ('metric = { name = "top", k = 0 }\nlabels = "l.npy"', "metric.k: must be 1 or more"),
    ('metric = { name = "f1", average = "micro" }\nlabels = "l.npy"', 'metric.average: unknown value "micro"'),
    ('metric = { name = "cer", charset = "../c.txt" }\nlabels = "t.txt"', 'metric.charset: "../c.txt" leads out'),
    ('metric = { name = "cer", charset = "c.csv" }\nlabels = "t.txt"', 'metric.charset: "c.csv" is no .txt file'),
    ('metric = { name = "pearson", pool = "mean" }\nlabels = "f.npy"', "metric.pairs: is missing"),
    ('metric = { name = "pearson", pairs = "p.csv" }\nlabels = "f.npy"', "labels: has no use: pearson takes none."),
    ('metric = "auc"', "metric: needs labels."),
    ('labels = "l.npy"', 'metric: is missing beside labels; add metric = "top1".'),
    ('metric = { function = "os.system" }', "unknown value"),
    ('metric = { function = "a:b", score = "c" }\nlabels = "l.npy"', 'metric.score: must be "package.module:function"'),
    ('metric = { function = "a:b", better = "more" }\nlabels = "l.npy"', 'metric.better: unknown value "more"'),
    ('metric = { name = "auc", function = "a:b" }\nlabels = "l.npy"', "metric.function: cannot stand beside name."),
    ('metric = 5\nlabels = "l.npy"', "metric: must be a text, got 5."),
    ('metric = "auc"\nlabels = { file = "l.npy", key = "k" }', "labels.key: cannot stand beside file."),
    ('metric = "auc"\nlabels = { key = "k" }', "labels: a key is for JSON lines."),
]


@pytest.mark.parametrize(("text", "words"), DESCRIPTIONS)
def test_a_bad_description_is_refused(text: str, words: str, folder: Path) -> None:
    with pytest.raises(CalibrationError) as caught:
        load_set(write(folder, text + "\n"))
    assert words in str(caught.value)


FILES = [
    ('metric = "auc"\nlabels = "f.npy"', "labels must be a row of integers, got float64[4]"),
    ('metric = "pearson"\nlabels = "nan.npy"', "nan.npy: label of sample 2: holds NaN or infinity."),
    ('metric = "pearson"\nlabels = "t.txt"', "every line must be a label"),
    ('metric = "miou"\nlabels = "l.npy"', "wanted a map of classes"),
    ('metric = "cer"\nlabels = "l.npy"', "wanted a text or a list of whole numbers"),
    ('metric = "nowhere_b:f"\nlabels = "l.npy"', 'metric = "nowhere_b:f" cannot be imported'),
    ('metric = "judge_a:missing"\nlabels = "l.npy"', 'metric = "judge_a:missing" cannot be imported'),
]


@pytest.mark.parametrize(("text", "words"), FILES)
def test_files_that_cannot_judge_are_named_before_any_work(text: str, words: str, folder: Path) -> None:
    with pytest.raises(CalibrationError) as caught:
        check(load_set(write(folder, text + "\n")), (X,))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("c.txt", b"", "c.txt: line 1 is empty"),
        ("c.txt", b"a\n\nb\n", "c.txt: line 2 is empty"),
        ("c.txt", b"a\nb\na\n", 'c.txt: "a" is there twice'),
        ("c.txt", b"\xff\n", "c.txt: cannot be read"),
        ("p.csv", b"", "0 pairs of samples in use"),
        ("p.csv", b"0,1\n", "pair 1 is '0,1', wanted i,j,score"),
        ("p.csv", b"0,1,x\n", "wanted i,j,score"),
        ("p.csv", b"0,1,nan\n", "wanted i,j,score"),
        ("p.csv", b"0,1,0.5\n0,-1,1\n", "pair 2 is '0,-1,1'"),
        ("p.csv", b"0,1,0.5\n0,4,1\n", "pair 2 names sample 4, and there are 4"),
    ],
)
def test_damaged_charsets_and_pairs(name: str, content: bytes, words: str, folder: Path) -> None:
    (folder / name).write_bytes(content)
    text = 'metric = { name = "cer", charset = "c.txt" }\nlabels = "t.txt"\n'
    if name == "p.csv":
        text = 'metric = { name = "pearson", pairs = "p.csv" }\n'
    with pytest.raises(CalibrationError) as caught:
        check(load_set(write(folder, text)), (X,))
    assert words in str(caught.value)
