"""Precision as a search: limits that int8 does not hold, the curve, its replay, and limits that nothing holds."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeopt.budget import Budget
from edgeopt.bundle import Bundle, read_diary
from edgeopt.errors import BundleError, CalibrationError, ModelError, QualityError
from edgeopt.pipeline import Request, build
from edgeopt.plan import StepResult
from tests.short_sets import NET
from tests.unit.pipeline.builds import artifact, floored, rand, warnings


def step(found: Bundle, name: str = "mixed-precision") -> StepResult:
    return next(r for r in read_diary(found.root) if r.step.name == name)


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Request, Bundle]:
    request = floored(tmp_path_factory.mktemp("searched"))
    return request, build(request)


def test_a_limit_that_int8_misses_is_held_by_what_stays_in_float(searched: tuple[Request, Bundle]) -> None:
    _, found = searched
    result = step(found)
    assert result.status == "kept"
    assert found.manifest["quality"]["outputs"][0]["sqnr_db"] >= 43.0
    assert found.manifest["artifacts"][0]["precision"] == "int8"
    assert "most sensitive: " in result.reason
    chosen = [p for p in result.points if p.chosen]
    assert len(chosen) == 1
    assert sorted(chosen[0].kept) == result.found["float_nodes"]
    assert chosen[0].float_macs <= 0.5
    assert chosen[0].holds
    assert not result.points[0].holds
    assert result.points[0].label == "all int8"
    assert result.points[0].bytes < chosen[0].bytes < result.points[-1].bytes
    kept = {n["key"]: n["runs"] for n in found.manifest["placement"]["nodes"]}
    assert all(kept[key] != "int8" for key in chosen[0].kept)


def test_the_report_has_the_curve(searched: tuple[Request, Bundle]) -> None:
    _, found = searched
    text = (found.root / "report.md").read_text()
    assert "## Precision" in text
    assert "a hint, no measurement" in text
    assert 'id="precision"' in (found.root / "report.html").read_text()
    steps = json.loads((found.root / "report.json").read_text())["steps"]
    assert next(s for s in steps if s["name"] == "mixed-precision")["points"][0]["label"] == "all int8"


def test_a_replay_keeps_the_same_operators_and_gives_the_same_bytes(
    searched: tuple[Request, Bundle], tmp_path: Path
) -> None:
    request, found = searched
    again = build(dataclasses.replace(request, out=tmp_path / "again", locked=found.root))
    assert artifact(again).read_bytes() == artifact(found).read_bytes()
    assert step(again).found == step(found).found
    assert "as locked" in step(again).reason
    lock = json.loads((found.root / "decisions.lock").read_text())
    decision = next(d for d in lock["decisions"] if d["name"] == "mixed-precision")
    decision["found"]["float_nodes"] = ["no such operator"]
    (tmp_path / "other.lock").write_text(json.dumps(lock))
    with pytest.raises(BundleError, match="no such operator in float, which cannot be replayed"):
        build(dataclasses.replace(request, out=tmp_path / "other", locked=tmp_path / "other.lock"))
    with pytest.raises(BundleError, match="other parameters of mixed-precision"):
        build(dataclasses.replace(request, out=tmp_path / "o", locked=found.root, max_float_macs=0.1))


def test_what_nothing_holds_ships_float_or_is_refused(searched: tuple[Request, Bundle], tmp_path: Path) -> None:
    request, _ = searched
    asked = dataclasses.replace(request, out=tmp_path / "a", budget=Budget(min_sqnr_db=90.0), max_float_macs=0.1)
    found = build(asked)
    assert found.manifest["artifacts"][0]["precision"] == "float32"
    assert "is below the 90 dB asked for" in warnings(found)
    result = step(found)
    assert result.status == "rolled-back"
    chosen = next(p for p in result.points if p.chosen)
    assert not chosen.holds  # the nearest went on, and the evaluation set refused it
    assert chosen.sqnr_db > result.points[0].sqnr_db
    with pytest.raises(QualityError, match="accuracy target not met: int8 was asked for"):
        build(dataclasses.replace(asked, out=tmp_path / "b", quantize="static"))
    assert not (tmp_path / "b").exists()


def test_no_search_where_every_limit_holds(searched: tuple[Request, Bundle], tmp_path: Path) -> None:
    request, _ = searched
    found = build(dataclasses.replace(request, out=tmp_path / "out", budget=Budget(min_sqnr_db=15.0)))
    assert (step(found).status, step(found).points) == ("skipped", ())


def test_a_limit_on_an_output_that_is_not_there(searched: tuple[Request, Bundle], tmp_path: Path) -> None:
    request, _ = searched
    with pytest.raises(ModelError, match='names the output "heat", which the model does not have'):
        build(dataclasses.replace(request, out=tmp_path / "out", budget=Budget(max_error={"heat": 0.1})))


@pytest.mark.parametrize("kind", ["static", "dynamic"])
def test_int8_activations_without_data_are_refused_before_any_work(tmp_path: Path, kind: str) -> None:
    proto = onnx.load(NET)
    proto.doc_string = "another network, which has no sets of its own"
    onnx.save(proto, tmp_path / "net.onnx")
    request = Request(
        model=tmp_path / "net.onnx", target="raspberry-pi-5", out=tmp_path / "out", effort="none", quantize=kind
    )
    with pytest.raises(CalibrationError, match=f"--quantize {kind} rounds activations"):
        build(request)
    found = build(dataclasses.replace(request, quantize="weights-int8"))
    assert found.manifest["artifacts"][0]["precision"] == "int8-weights"
    assert not found.manifest["quality"]["verified"]


def write(folder: Path, nodes: list[Any], constants: dict[str, np.ndarray], shape: list[int], out: list[int]) -> Path:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.checker.check_model(proto, full_check=True)
    onnx.save(proto, folder / "net.onnx")
    return folder / "net.onnx"


def boxes_and_scores(folder: Path, rows: bool) -> Path:
    """Four pixel coordinates beside three probabilities in one output, [1, 7, 100] or [1, 100, 7]."""
    rng = np.random.default_rng(31)
    constants = {
        "wf": (rng.normal(size=(64, 3, 3, 3)) * 0.3).astype(np.float32),
        "wb": rng.uniform(0.01, 0.08, (4, 64, 1, 1)).astype(np.float32),
        "wc": (rng.normal(size=(3, 64, 1, 1)) * 0.5).astype(np.float32),
        "size": np.array(640, np.float32),
        "shape": np.array([0, 7, 100], np.int64),
    }
    nodes = [
        helper.make_node("Conv", ["x", "wf"], ["f"], name="stem", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["f"], ["fr"], name="act"),
        helper.make_node("Conv", ["fr", "wb"], ["b0"], name="box"),
        helper.make_node("Sigmoid", ["b0"], ["b1"], name="box_sig"),
        helper.make_node("Mul", ["b1", "size"], ["b2"], name="box_scale"),
        helper.make_node("Conv", ["fr", "wc"], ["c0"], name="cls"),
        helper.make_node("Sigmoid", ["c0"], ["c1"], name="cls_sig"),
        helper.make_node("Concat", ["b2", "c1"], ["head"], name="head_concat", axis=1),
        helper.make_node("Reshape", ["head", "shape"], ["t" if rows else "y"], name="flat"),
    ]
    if rows:
        nodes.append(helper.make_node("Transpose", ["t"], ["y"], name="turn", perm=[0, 2, 1]))
    return write(folder, nodes, constants, [1, 3, 10, 10], [1, 100, 7] if rows else [1, 7, 100])


@pytest.mark.parametrize("rows", [False, True])
def test_q05_scores_beside_boxes_keep_their_values(tmp_path: Path, rows: bool) -> None:
    rng = np.random.default_rng(32)
    np.save(tmp_path / "calib.npy", rng.uniform(0, 1, (24, 3, 10, 10)).astype(np.float32))
    found = build(
        Request(
            model=boxes_and_scores(tmp_path, rows),
            target="raspberry-pi-5",
            out=tmp_path / "out",
            calib=str(tmp_path / "calib.npy"),
            effort="none",
        )
    )
    from edgeopt.interpreter import Interpreter

    reference, test = Interpreter(tmp_path / "net.onnx"), Interpreter(artifact(found))
    assert found.manifest["artifacts"][0]["precision"] == "int8"
    for k in range(4):
        feeds = {"x": np.random.default_rng(100 + k).uniform(0, 1, (1, 3, 10, 10)).astype(np.float32)}
        a, b = (m.run(feeds)["y"].reshape(-1, 7) if rows else m.run(feeds)["y"][0].T for m in (reference, test))
        assert np.abs(a[:, 4:] - b[:, 4:]).max() <= 0.05
        assert np.sqrt(((a[:, :4] - b[:, :4]) ** 2).sum() / (a[:, :4] ** 2).sum()) <= 0.02
    runs = {n["key"]: n["runs"] for n in found.manifest["placement"]["nodes"]}
    assert runs["head_concat"] == "float"
    assert "head_concat" in (found.root / "report.html").read_text()


def attention_free_block(folder: Path) -> Path:
    """LayerNorm, MatMul, Gelu, MatMul and a residual Add in which two of 64 channels are 100 times the others."""
    loud = np.ones(64, np.float32)
    loud[[7, 40]] = 100
    constants = {
        "embed": rand(1, 64, 64) / 8 * loud,
        "gain": np.ones(64, np.float32),
        "shift": np.zeros(64, np.float32),
        "w1": rand(2, 64, 128) / 8,
        "b1": rand(3, 128) / 4,
        "w2": rand(4, 128, 64) / 11,
        "head": rand(5, 64, 10) / 8 / loud[:, None],
    }
    nodes = [
        helper.make_node("MatMul", ["x", "embed"], ["e"], name="embed_in"),
        helper.make_node("LayerNormalization", ["e", "gain", "shift"], ["n"], name="norm"),
        helper.make_node("MatMul", ["n", "w1"], ["h"], name="up"),
        helper.make_node("Add", ["h", "b1"], ["hb"], name="up_bias"),
        helper.make_node("Gelu", ["hb"], ["g"], name="gelu"),
        helper.make_node("MatMul", ["g", "w2"], ["d"], name="down"),
        helper.make_node("Add", ["e", "d"], ["r"], name="residual"),
        helper.make_node("MatMul", ["r", "head"], ["t"], name="classes"),
        helper.make_node("ReduceMean", ["t", "axis"], ["y"], name="pool", keepdims=0),
    ]
    return write(folder, nodes, {**constants, "axis": np.array([1], np.int64)}, [1, 8, 64], [1, 10])


def squeeze_block(folder: Path) -> Path:
    """A depthwise Conv with one channel 200 times the others, HardSwish, squeeze and excite, a residual Add."""
    depthwise = rand(1, 32, 1, 3, 3) / 3
    depthwise[5] *= 200
    constants = {
        "wd": depthwise,
        "w1": rand(2, 8, 32, 1, 1) / 6,
        "b1": rand(3, 8),
        "w2": rand(4, 32, 8, 1, 1) / 3,
        "b2": rand(5, 32),
        "wp": rand(6, 32, 32, 1, 1) * np.where(np.arange(32) == 5, 1 / 200, 1).astype(np.float32)[None, :, None, None],
        "body": rand(8, 32, 32, 3, 3) / 12,
        "fc": rand(7, 10, 32) / 5,
        "zero": np.zeros(10, np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "wd"], ["d"], name="depthwise", group=32, pads=[1, 1, 1, 1]),
        helper.make_node("HardSwish", ["d"], ["s"], name="swish"),
        helper.make_node("GlobalAveragePool", ["s"], ["p"], name="squeeze"),
        helper.make_node("Conv", ["p", "w1", "b1"], ["q"], name="reduce"),
        helper.make_node("Relu", ["q"], ["qr"], name="reduce_relu"),
        helper.make_node("Conv", ["qr", "w2", "b2"], ["u"], name="expand"),
        helper.make_node("HardSigmoid", ["u"], ["g"], name="gate", alpha=1 / 6),
        helper.make_node("Mul", ["s", "g"], ["m"], name="excite"),
        helper.make_node("Conv", ["m", "wp"], ["o"], name="project"),
        helper.make_node("Add", ["o", "x"], ["a"], name="residual"),
        helper.make_node("Conv", ["a", "body"], ["c"], name="body", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["cr"], name="body_relu"),
        helper.make_node("GlobalAveragePool", ["cr"], ["v"], name="pool"),
        helper.make_node("Flatten", ["v"], ["flat"], name="flat_node"),
        helper.make_node("Gemm", ["flat", "fc", "zero"], ["y"], name="classes", transB=1),
    ]
    return write(folder, nodes, constants, [1, 32, 8, 8], [1, 10])


@pytest.mark.parametrize(("block", "shape"), [(squeeze_block, (32, 8, 8)), (attention_free_block, (8, 64))])
def test_q11_blocks_that_collapse_are_mended_within_bounds(tmp_path: Path, block: Any, shape: tuple[int, ...]) -> None:
    from edgeopt.interpreter import Interpreter

    model = block(tmp_path)
    rng = np.random.default_rng(9)
    for name, count in (("calib", 64), ("judge", 200)):
        values = rng.normal(size=(count, *shape)).astype(np.float32)
        run = Interpreter(model).run
        np.savez(tmp_path / f"{name}.npz", x=values, labels=[int(run({"x": v[None]})["y"].argmax()) for v in values])
        (tmp_path / f"{name}.toml").write_text(
            f'schema = "edgeopt.set/1"\nname = "{name}"\nkind = "arrays"\nmetric = "top1"\n'
            f'labels = {{ file = "{name}.npz", member = "labels" }}\n[inputs.x]\nfile = "{name}.npz"\nmember = "x"\n'
        )
    request = Request(
        model=model,
        target="raspberry-pi-5",
        out=tmp_path / "out",
        calib=str(tmp_path / "calib.toml"),
        evaluate=str(tmp_path / "judge.toml"),
        effort="none",
        budget=Budget(min_sqnr_db=20.0, max_drop=0.02),
        quantize="static",
    )
    found = build(request)
    quality = found.manifest["quality"]
    assert quality["outputs"][0]["sqnr_db"] >= 20
    assert quality["agreement"]["top1"] >= 0.98
    assert step(found, "quantize-int8").drift[0].sqnr_db < 20  # all in int8 as it comes collapses
    result = step(found)
    assert result.status == "kept"
    assert result.step.params["max_float_macs"] == 0.2
    assert next(p for p in result.points if p.chosen).float_macs <= 0.2
    assert "most sensitive: " in result.reason
