"""scripts/compare_peers: figures against oracles, memory of a process tree, records that are taken up again."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

SCRIPTS = str(Path(__file__).resolve().parents[3] / "scripts")


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)


def test_sqnr_is_pooled_over_samples_and_a_tie_is_no_agreement() -> None:
    from _peers import figures

    rng = np.random.default_rng(0)
    wanted = [rng.normal(size=(1, 5)).astype(np.float32) for _ in range(6)]
    got = [value + rng.normal(0, 0.1, value.shape).astype(np.float32) for value in wanted]
    got[0][:] = 0.0
    one = figures.Compared(None)
    for a, b in zip(wanted, got):
        one.add_pair({"y": a}, {"y": b}, {}, None)
    told = one.result(figures.Rows(None), {})
    a, b = np.concatenate(wanted).astype(np.float64), np.concatenate(got).astype(np.float64)
    assert told["sqnr_db"]["y"] == pytest.approx(10 * np.log10((a**2).sum() / ((a - b) ** 2).sum()))
    assert told["largest_error"]["y"] == pytest.approx(np.abs(a - b).max())
    agreed = sum(x.argmax() == y.argmax() for x, y in zip(a[1:], b[1:]))
    assert (told["samples"], told["agreement"]["ties"]) == (6, 1)
    assert told["agreement"]["share"] == pytest.approx(agreed / 6)
    with pytest.raises(ValueError, match=r"y is \[1, 4\], the float model gives \[1, 5\]"):
        one.add_pair({"y": wanted[0]}, {"y": np.zeros((1, 4))}, {}, None)


def test_no_error_at_all_has_no_decibels() -> None:
    from _peers import figures

    assert figures.decibel(1.0, 0.0) is None
    assert figures.decibel(float("nan"), 1.0) is None
    assert figures.decibel(100.0, 1.0) == pytest.approx(20.0)


def test_an_interval_over_photos_is_wider_than_one_over_crops_that_repeat_them() -> None:
    from _peers import figures

    photos = np.array([0, 1, 1, 1, 0, 1, 1, 1, 1, 1], float)
    crops = np.tile(photos, 20)  # sample i is of photo i modulo 10, all crops of a photo alike
    low, high = figures.mean_interval(crops, 10)
    narrow = figures.mean_interval(crops, None)
    assert low < narrow[0] < 0.8 < narrow[1] < high
    exact = np.random.default_rng(1).binomial(10, 0.8, 200_000) / 10
    assert [low, high] == pytest.approx(np.percentile(exact, [2.5, 97.5]), abs=1e-9)
    assert figures.mean_interval(crops, 10) == [low, high]


def test_the_interval_of_a_drop_is_paired() -> None:
    from _peers import figures

    rng = np.random.default_rng(2)
    before = rng.integers(0, 2, 4000)
    after = before.copy()
    after[:20] = 0
    told = figures.drop_interval(before, after, None)
    lost = before - after
    half = 1.96 * lost.std(ddof=1) / np.sqrt(4000)
    assert told["drop"] == pytest.approx(lost.mean())
    assert told["drop_interval"] == pytest.approx([lost.mean() - half, lost.mean() + half], abs=1e-6)
    unpaired = 1.96 * np.sqrt(2 * before.std() ** 2 / 4000)
    assert half < unpaired / 5


def test_the_area_counts_every_pair() -> None:
    from _peers import answers

    rng = np.random.default_rng(3)
    scores, truth = rng.integers(0, 8, 60) / 8, rng.integers(0, 2, 60) > 0
    pairs = [(p > n) + 0.5 * (p == n) for p in scores[truth] for n in scores[~truth]]
    assert answers.area(scores, truth) == pytest.approx(np.mean(pairs))


def test_correlations_of_pairs_of_texts(tmp_path: Path) -> None:
    from _peers import answers

    (tmp_path / "pairs.csv").write_text("0,1,3\n0,2,1\n1,2,2\n")
    entry = {"metric": "pairs", "pairs": "pairs.csv", "correlation": "spearman", "mask": "mask"}
    scorer = answers.scorer(tmp_path, entry)
    rows = []
    for angle in (0.0, 0.1, 0.5):
        hidden = np.array([[[np.cos(angle), np.sin(angle)], [9.0, -9.0]]], np.float32)
        rows.append(scorer.row({"y": hidden}, {"mask": np.array([[1, 0]])}, None))
    # cosines: 0-1 the largest, 1-2, then 0-2: the order that people gave
    assert scorer.score(rows, rows[::-1], None)["float"] == pytest.approx(1.0)
    assert scorer.score(rows, rows[::-1], None)["value"] < 1


def test_error_rates_are_those_of_each_part(tmp_path: Path) -> None:
    from _peers import answers

    (tmp_path / "c.txt").write_text("a\nb\n \n")
    scorer = answers.scorer(tmp_path, {"metric": "cer", "charset": "c.txt", "parts": 2})
    steps = np.eye(4)[[0, 1, 1, 0, 2]][None]  # blank a a blank b
    assert scorer.row({"y": steps}, {}, "ab") == ("ab", "ab")
    told = scorer.score([("ab", "ab"), ("ab", "ab")], [("ab", "ab"), ("a", "ab")], None)
    assert (told["float"], told["value"], told["drop"]) == ([0.0, 0.0], [0.0, 0.5], 0.5)


def test_labels_are_those_of_the_samples_in_use(tmp_path: Path) -> None:
    from _peers import answers

    np.save(tmp_path / "l.npy", np.arange(10))
    entry = {"labels": "l.npy", "start": 1, "stride": 2}
    found = answers.labels(tmp_path, entry)
    assert found is not None
    assert list(found) == [1, 3, 5, 7, 9]
    assert answers.labels(tmp_path, {}) is None


CHILD = "import time\nheld = bytearray(b'x') * 150_000_000\ntime.sleep(0.6)\n"
PARENT = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {CHILD!r}])\nprint('done')\n"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_that_of_the_whole_tree(tmp_path: Path) -> None:
    from _peers import watched

    one = watched.run([sys.executable, "-c", "print('done')"], folder=tmp_path / "a")
    two = watched.run([sys.executable, "-c", PARENT], folder=tmp_path / "b")
    assert (one.code, one.stdout, two.stdout) == (0, "done\n", "done\n")
    assert one.peak_bytes < 60_000_000
    assert 150_000_000 < two.peak_bytes < 250_000_000
    assert two.seconds > 0.6
    failed = watched.run([sys.executable, "-c", "import sys; sys.exit('no')"], folder=tmp_path / "c")
    assert (failed.code, failed.stderr) == (1, "no\n")
    late = watched.run([sys.executable, "-c", PARENT.replace("0.6", "60")], folder=tmp_path / "d", timeout=0.4)
    assert (late.code, late.stderr.splitlines()[-1]) == (-9, "error: killed after 0.4 s")
    assert late.seconds < 30
    large = watched.run([sys.executable, "-c", PARENT], folder=tmp_path / "e", limit_bytes=100_000_000)
    assert large.code == -9
    assert large.stderr.splitlines()[-1].startswith("error: killed when it held 0.1")


def test_an_interrupt_ends_the_child_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from _peers import watched

    seen: list[int] = []

    def interrupted(root: int) -> int:
        seen.append(root)
        raise KeyboardInterrupt

    monkeypatch.setattr(watched, "tree_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        watched.run(["sleep", "60"], folder=tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(seen[0], 0)


def test_records_are_taken_up_again_until_what_they_are_made_from_changes(tmp_path: Path) -> None:
    from _peers.records import Records

    made: list[str] = []

    def make(value: dict[str, Any]) -> Any:
        return lambda: made.append("x") or value

    records = Records(tmp_path)
    assert records.get("net/Tool A/build", {"model": 1}, make({"v": 1})) == {"v": 1}
    assert records.get("net/Tool A/build", {"model": 1}, make({"v": 2})) == {"v": 1}
    assert records.get("net/Tool A/build", {"model": 2}, make({"v": 3})) == {"v": 3}
    assert (tmp_path / "net" / "tool-a" / "build.json").is_file()
    assert records.get("net/b", {}, make({"error": "down"})) == {"error": "down"}
    assert records.get("net/b", {}, make({"v": 5})) == {"v": 5}
    file = tmp_path / "model"
    assert records.get("net/c", {}, make({"path": str(file)}), "path") == {"path": str(file)}
    assert records.get("net/c", {}, make({"path": str(file), "v": 6}), "path")["v"] == 6
    file.touch()
    assert records.get("net/c", {}, make({}), "path")["v"] == 6
    assert len(made) == 6


def test_a_name_cannot_leave_the_folder_of_records() -> None:
    from _peers.records import slug

    assert slug("NNCF on OpenVINO, mixed/../build") == "nncf-on-openvino-mixed/-/build"


def tiny(folder: Path) -> Path:
    """y = Gemm(Flatten(Relu(Conv(x)))), opset 11, a batch that is frozen."""
    rng = np.random.default_rng(0)
    value = helper.make_tensor_value_info
    weights = {
        "w": rng.normal(size=(4, 3, 3, 3)).astype(np.float32),
        "b": np.zeros(4, np.float32),
        "v": rng.normal(size=(4 * 64, 10)).astype(np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("Flatten", ["r"], ["f"]),
            helper.make_node("MatMul", ["f", "v"], ["y"]),
        ],
        "g",
        [value("x", TensorProto.FLOAT, [10, 3, 8, 8])],
        [value("y", TensorProto.FLOAT, [10, 10])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    file = folder / "model.onnx"
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 11)]), file)
    return file


def test_peers_get_fixed_shapes_and_the_opset_that_they_need(tmp_path: Path) -> None:
    from _peers import with_onnxruntime

    model = onnx.load(tiny(tmp_path))
    found, steps = with_onnxruntime.converted(model, {"x": [1, 3, 8, 8]}, 13)
    assert steps == ["input shapes fixed", "onnx.version_converter from opset 11 to 13"]
    assert found.opset_import[0].version == 13
    assert [d.dim_value for d in found.graph.input[0].type.tensor_type.shape.dim] == [1, 3, 8, 8]
    same, none = with_onnxruntime.converted(found, {}, 13)
    assert same is found
    assert none == []


@pytest.mark.parametrize("method", ["min-max", "percentile", "dynamic", "dynamic per channel"])
def test_onnxruntimes_tools_write_a_model_that_runs_on_integers(tmp_path: Path, method: str) -> None:
    pytest.importorskip("sympy")
    from _peers import macs, running, with_onnxruntime

    rng = np.random.default_rng(1)
    samples = tmp_path / "samples"
    samples.mkdir()
    for index in range(8):
        np.savez(samples / f"{index}.npz", x=rng.normal(size=(1, 3, 8, 8)).astype(np.float32))
    job = {
        "model": str(tiny(tmp_path)),
        "out": str(tmp_path / "out.onnx"),
        "samples": str(samples),
        "method": method,
        "shapes": {"x": [1, 3, 8, 8]},
        "opset": 13,
    }
    steps = with_onnxruntime.main(job)["steps"]
    assert len(steps) == 4
    entry = {"runtime": "onnxruntime", "path": job["out"], "options": {}}
    feeds = next(with_onnxruntime.samples(samples))
    assert running.load(entry)(feeds)["y"].shape == (1, 10)
    found = macs.shares(entry, feeds)
    conv, dense = 64 * 4 * 27, 256 * 10
    assert found["total"] == conv + dense
    assert found["integer"] == conv + dense
    plain = macs.shares(
        {"runtime": "onnxruntime", "path": job["model"], "options": {}}, {"x": np.zeros((10, 3, 8, 8), np.float32)}
    )
    assert plain["integer"] == 0
    assert plain["float"] >= 10 * (conv + dense)


def test_what_cannot_be_counted_says_so(tmp_path: Path) -> None:
    from _peers import macs

    found = macs.shares({"runtime": "onnxruntime", "path": str(tmp_path / "none.onnx"), "options": {}}, {})
    assert set(found) == {"reason"}


def test_environments_pin_every_package_and_hold_no_torch() -> None:
    from _peers import environments

    for name in environments.NAMES:
        lines = [line for line in environments.requirements(name).read_text().splitlines() if line[:1] not in ("#", "")]
        assert all(line.count("==") == 1 for line in lines)
        assert environments.versions(name).keys() >= {"numpy", "onnx"}
        assert not {"torch", "tensorflow"} & environments.versions(name).keys()


def test_an_environment_is_made_anew_when_its_pins_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from _peers import environments

    monkeypatch.setattr(environments, "HERE", tmp_path)
    (tmp_path / "nncf.txt").write_text("nncf==1\n")
    first = environments.digest("nncf")
    (tmp_path / "nncf.txt").write_text("nncf==2\n")
    assert environments.digest("nncf") != first
