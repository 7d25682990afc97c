"""One small build for each kind of set and its metric: judged, written down, and compared."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeopt.bundle import Bundle
from edgeopt.cli._screen import quality_text
from edgeopt.errors import CalibrationError
from edgeopt.pipeline import Request, build

HEAD = 'schema = "edgeopt.set/1"\nname = "{name}"\nkind = "{kind}"\n'
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
RNG = np.random.default_rng(11)


def save(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], **constants: np.ndarray) -> Path:
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    found = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(found, full_check=True)
    onnx.save(found, str(path))
    return path


def value(name: str, shape: list[Any], kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def describe(folder: Path, name: str, text: str) -> str:
    path = folder / f"{name}.toml"
    path.write_text(text)
    return str(path)


def built(tmp_path: Path, model: Path, calib: str, evaluate: str | None = None) -> Bundle:
    return build(
        Request(model=model, target="host", out=tmp_path / "out", calib=calib, evaluate=evaluate, effort="none")
    )


def said(bundle: Bundle) -> tuple[dict[str, Any], str]:
    """The manifest's quality, and what every reader is told about it."""
    quality = bundle.manifest["quality"]
    told = quality_text(quality) + (bundle.root / "report.md").read_text() + bundle.manifest["verdict"]["text"]
    return quality, told


def recurrent(path: Path) -> Path:
    """A probability of speech from the loudness now and before: y = sigmoid(W tanh(x A + s B) - 2)."""
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["xa"]),
        helper.make_node("MatMul", ["s", "b"], ["sb"]),
        helper.make_node("Add", ["xa", "sb"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["sN"]),
        helper.make_node("MatMul", ["sN", "w"], ["z"]),
        helper.make_node("Cast", ["sr"], ["rate"], to=FLOAT),
        helper.make_node("Div", ["z", "rate"], ["zr"]),
        helper.make_node("Sigmoid", ["zr"], ["y"]),
    ]
    return save(
        path,
        nodes,
        [value("x", ["N", 32]), value("s", ["N", 8]), value("sr", [], INT64)],
        [value("y", ["N", 1]), value("sN", ["N", 8])],
        a=RNG.standard_normal((32, 8)).astype(np.float32),
        b=(RNG.standard_normal((8, 8)) * 0.3).astype(np.float32),
        w=(RNG.standard_normal((8, 1)) * 8000).astype(np.float32),
    )


def sounds(folder: Path, first: int, count: int) -> None:
    for index in range(first, first + count):
        (folder / "w").mkdir(exist_ok=True)
        loud = index % 2
        with wave.open(str(folder / f"w/{index:02d}.wav"), "wb") as out:
            out.setparams((1, 2, 8000, 0, "NONE", ""))
            out.writeframes((RNG.standard_normal(32 * 12) * (9000 if loud else 2500)).astype("<i2").tobytes())


VAD = (
    HEAD.format(name="vad", kind="wav")
    + 'folder = "w"\nrate = 8000\nmetric = "auc"\nlabels = "l.csv"\n[inputs.x]\nwindow = 32\nhop = 16\n'
    + '[inputs.s]\nfrom = "sN"\n[inputs.sr]\nvalue = 8000\n'
)


def test_sound_with_a_state_an_auc_and_a_constant(tmp_path: Path) -> None:
    model = recurrent(tmp_path / "vad.onnx")
    sounds(tmp_path, 0, 12)
    (tmp_path / "l.csv").write_text("".join(f"{i:02d}.wav,{i % 2}\n" for i in range(12)))
    calib = describe(tmp_path, "calib", VAD.replace("[inputs.x]", "start = 0\nstride = 2\n[inputs.x]"))
    evaluate = describe(tmp_path, "eval", VAD.replace("[inputs.x]", "start = 1\nstride = 2\n[inputs.x]"))
    with pytest.raises(CalibrationError, match="metric auc is not defined: every label is 1"):
        built(tmp_path, model, calib, evaluate)  # every file of the evaluation set is loud
    calib = describe(tmp_path, "calib", VAD.replace("[inputs.x]", "limit = 6\n[inputs.x]"))
    evaluate = describe(tmp_path, "eval", VAD.replace("[inputs.x]", "start = 6\n[inputs.x]"))
    bundle = built(tmp_path, model, calib, evaluate)
    quality, told = said(bundle)
    assert quality["samples"] == 6 * 23
    assert quality["metric"]["name"] == "AUC"
    assert abs(quality["metric"]["drop"]) < 0.05
    assert quality["metric"]["half_width"] is not None
    assert quality["agreement"]["of"] == "decision at 0.5"
    assert "AUC" in told
    assert "top-1" not in told
    outcomes = json.loads((bundle.root / "outcomes.json").read_text())
    assert (outcomes["schema"], outcomes["kind"]) == ("edgeopt.outcomes/2", "agreement")
    assert outcomes["metric"]["judged_by"] == "AUC"


def test_without_an_evaluation_set_whole_files_are_held_out(tmp_path: Path) -> None:
    model = recurrent(tmp_path / "vad.onnx")
    sounds(tmp_path, 0, 10)
    (tmp_path / "l.csv").write_text("".join(f"{i:02d}.wav,{int(i > 4)}\n" for i in range(10)))
    bundle = built(tmp_path, model, describe(tmp_path, "calib", VAD))
    assert bundle.manifest["quality"]["samples"] == 2 * 23
    assert any("every 4th group of calibration samples" in w for w in bundle.manifest["verdict"]["warnings"])


def embedder(path: Path) -> Path:
    """Token numbers to one vector a step: a table, a layer, and a mask that the graph ignores but for its type."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"]),
        helper.make_node("MatMul", ["e", "w"], ["h"]),
        helper.make_node("Cast", ["mask"], ["m"], to=FLOAT),
        helper.make_node("Unsqueeze", ["m", "last"], ["m3"]),
        helper.make_node("Mul", ["h", "m3"], ["y"]),
    ]
    return save(
        path,
        nodes,
        [value("ids", ["N", "S"], INT64), value("mask", ["N", "S"], INT64)],
        [value("y", ["N", "S", 16])],
        table=RNG.standard_normal((50, 12)).astype(np.float32),
        w=RNG.standard_normal((12, 16)).astype(np.float32),
        last=np.array([2], np.int64),
    )


def test_tokens_of_unlike_length_and_a_correlation_of_pairs(tmp_path: Path) -> None:
    model = embedder(tmp_path / "text.onnx")
    lines = [RNG.integers(1, 50, RNG.integers(2, 9)).tolist() for _ in range(40)]
    lines[1::2] = [[*line[:-1], 7] for line in lines[::2]]  # neighbours share all words but one
    for name, part in (("calib", lines[:20]), ("eval", lines[20:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"ids": line}) + "\n" for line in part))
    scores = [(i, j, float(abs(i - j) == 1)) for i in range(0, 20, 2) for j in (i + 1, (i + 7) % 20)]
    (tmp_path / "p.csv").write_text("i,j,score\n" + "".join(f"{i},{j},{s}\n" for i, j, s in scores))
    inputs = "multiple = 4\n[inputs.ids]\n[inputs.mask]\nmask = true\n"
    metric = 'metric = { name = "spearman", pairs = "p.csv", pool = "mean", mask = "mask" }\n'
    head = HEAD.format(name="t", kind="tokens")
    calib = describe(tmp_path, "calib", f'{head}file = "calib.jsonl"\n{inputs}')
    bundle = built(tmp_path, model, calib, describe(tmp_path, "eval", f'{head}file = "eval.jsonl"\n{metric}{inputs}'))
    quality, told = said(bundle)
    assert quality["metric"]["name"] == "Spearman"
    assert quality["metric"]["float"] > 0.3
    assert quality["agreement"] is None
    assert quality["samples"] == 20
    assert "Spearman" in told


def regression(path: Path) -> Path:
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("Gemm", ["f", "w", "b"], ["y"]),
    ]
    w = RNG.standard_normal((16, 1)).astype(np.float32)
    return save(path, nodes, [value("x", [1, 1, 4, 4])], [value("y", [1, 1])], w=w, b=np.float32([0.3]))


def raw_files(folder: Path, model: Path, count: int) -> None:
    """Dumps of a camera, 16 bits in big-endian order behind 8 bytes, and what the network should say about each."""
    weights = {t.name: numpy_helper.to_array(t) for t in onnx.load(str(model)).graph.initializer}
    (folder / "raw").mkdir()
    truth = []
    for index in range(count):
        frame = RNG.integers(-30000, 30000, (4, 4))
        (folder / f"raw/{index:03d}.bin").write_bytes(b"HEADER00" + frame.astype(">i2").tobytes())
        truth.append(float((frame.reshape(-1) / 32768) @ weights["w"][:, 0] + 0.3))
    np.save(folder / "truth.npy", np.array(truth) + 0.05)


RAW = (
    HEAD.format(name="frames", kind="folder")
    + 'metric = "mae"\nlabels = "truth.npy"\n[inputs.x]\nfolder = "raw"\nglob = "*.bin"\ndtype = "int16"\n'
    + 'shape = [1, 4, 4]\nskip = 8\nbyteorder = "big"\nscale = "1/32768"\n'
)


def test_raw_frames_and_an_error_that_is_better_lower(tmp_path: Path) -> None:
    model = regression(tmp_path / "net.onnx")
    raw_files(tmp_path, model, 60)
    calib = describe(tmp_path, "calib", RAW.replace("[inputs", "stride = 2\n[inputs", 1))
    evaluate = describe(tmp_path, "eval", RAW.replace("[inputs", "start = 1\nstride = 2\n[inputs", 1))
    bundle = built(tmp_path, model, calib, evaluate)
    quality, told = said(bundle)
    metric = quality["metric"]
    assert (metric["name"], metric["better"], metric["unit"]) == ("MAE", "lower", "number")
    assert metric["float"] == pytest.approx(0.05, abs=1e-5)
    assert metric["drop"] == pytest.approx(metric["artifact"] - metric["float"], abs=1e-9)
    assert "lower is better" in told
    assert "%" not in told[told.index("MAE") : told.index("MAE") + 40]


def test_a_set_that_feeds_other_bytes_is_seen_in_the_metric(tmp_path: Path) -> None:
    """The planted error: read in the wrong byte order the float model itself is far from the truth."""
    model = regression(tmp_path / "net.onnx")
    raw_files(tmp_path, model, 24)
    wrong = describe(tmp_path, "calib", RAW.replace('"big"', '"little"'))
    bundle = built(tmp_path, model, wrong)
    assert bundle.manifest["quality"]["metric"]["float"] > 0.5


def test_a_metric_that_does_not_fit_stops_the_build_before_any_work(tmp_path: Path) -> None:
    model = regression(tmp_path / "net.onnx")
    raw_files(tmp_path, model, 24)
    np.save(tmp_path / "truth.npy", np.zeros(24, np.int64))
    path = describe(tmp_path, "calib", RAW.replace('"mae"', '"top1"'))
    with pytest.raises(CalibrationError, match="metric top1: wants one row of scores, and output y is"):
        built(tmp_path, model, path)
    assert not (tmp_path / "out").exists()
