"""Options that make onnxruntime take less memory: each does what it says, and none changes a bit of the result."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeopt.backends import Artifact, RunOption
from edgeopt.backends.onnxruntime import node_order, run_options
from edgeopt.model import file_sha256
from edgeopt.passes import reorder
from edgeopt.target import load_target
from runtime_bench import memory, process
from runtime_bench.runners import get

SIDE, KEPT, WIDE = 160, 128, 64
FEEDS = {"x": np.random.default_rng(1).random((1, 4, SIDE, SIDE)).astype(np.float32)}
TIGHT = {"optimizer": "off", "heap": "small", "arena": "off", "memory_pattern": "off"}
"""Options with which a tensor takes memory while it is alive, and at no other time."""


def two_branches() -> onnx.ModelProto:
    """A branch whose wide result stays, and one that is as wide inside and ends in 128 numbers.

    Left to itself the runtime runs the former first: it reads the list from the end.
    """
    rng = np.random.default_rng(0)
    shapes = {"wa": (KEPT, 4, 1, 1), "wb": (WIDE, 4, 1, 1), "wc": (WIDE, WIDE, 1, 1), "wd": (KEPT, WIDE, 1, 1)}
    weights = [numpy_helper.from_array(rng.normal(size=s).astype(np.float32), n) for n, s in shapes.items()]
    weights += [
        numpy_helper.from_array(np.array([1, KEPT, -1], np.int64), "sa"),
        numpy_helper.from_array(np.array([1, 1, KEPT], np.int64), "sb"),
    ]
    nodes = [
        helper.make_node("Conv", ["x", "wb"], ["b"]),
        helper.make_node("Conv", ["b", "wc"], ["c"]),
        helper.make_node("GlobalAveragePool", ["c"], ["g"]),
        helper.make_node("Conv", ["g", "wd"], ["d"]),
        helper.make_node("Reshape", ["d", "sb"], ["row"]),
        helper.make_node("Conv", ["x", "wa"], ["a"]),
        helper.make_node("Reshape", ["a", "sa"], ["plane"]),
        helper.make_node("MatMul", ["row", "plane"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, SIDE, SIDE])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, SIDE * SIDE])
    graph = helper.make_graph(nodes, "two_branches", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    path = tmp_path / "net.float32.onnx"
    onnx.save(two_branches(), path)
    return Artifact(
        path=path,
        format="onnx",
        precision="float32",
        bytes=path.stat().st_size,
        sha256=file_sha256(path),
        toolchain={},
        options=TIGHT,
    )


def option(name: str) -> RunOption:
    return next(o for o in run_options(load_target("x86-avx512-vnni")) if o.name == name)


def made(name: str, artifact: Artifact, folder: Path) -> Artifact:
    folder.mkdir()
    found = option(name).make(artifact, FEEDS, folder / artifact.path.name)
    assert isinstance(found, Artifact), found
    assert found.sha256 == file_sha256(found.path)
    return found


def outputs(artifact: Artifact) -> np.ndarray:
    values = get("onnxruntime").load(str(artifact.path), artifact.options).infer(FEEDS)
    return np.asarray(values["y"])


def model_bytes(artifact: Artifact, folder: Path) -> int:
    """Peak of the model alone, each figure from a fresh process."""
    folder.mkdir()
    np.save(folder / "x.npy", FEEDS["x"])
    request = {
        "runner": "onnxruntime",
        "path": str(artifact.path),
        "options": {**artifact.options, "threads": 1},
        "samples": [{"x": str(folder / "x.npy")}],
    }
    plan = memory.Plan(2, 0.0)
    return int(memory.figures(request, 60, lambda job: process.run(job, 60), plan=plan)["model"]["bytes"])


def test_the_peak_of_two_wide_branches_falls_by_a_third_in_the_runtime(artifact: Artifact, tmp_path: Path) -> None:
    """The wide branch first: 4 * 160 * 160 * (128 + 64 + 64) bytes at the peak become half of that."""
    ordered = made("node-order", artifact, tmp_path / "ordered")
    assert ordered.options == {**TIGHT, "order": "file"}
    before, after = model_bytes(artifact, tmp_path / "before"), model_bytes(ordered, tmp_path / "after")
    assert after < before * 2 / 3
    assert before - after > 0.9 * 4 * SIDE * SIDE * 2 * WIDE
    assert np.array_equal(outputs(artifact), outputs(ordered))


def test_the_order_alone_does_nothing_without_the_option(artifact: Artifact, tmp_path: Path) -> None:
    """The planted error: a runtime that walks as it likes shows the peak of before, and is told apart."""
    ordered = made("node-order", artifact, tmp_path / "ordered")
    ran = {}
    for follow in (False, True):
        model = ir.load(ordered.path)
        ran[follow] = node_order._ran(model, FEEDS, tmp_path, optimize=False, follow=follow)[1]
    assert ran[True] < 0.6 * ran[False]


def test_the_runtime_follows_any_order_of_the_file(artifact: Artifact, tmp_path: Path) -> None:
    for order in ([5, 6, 0, 1, 2, 3, 4, 7], [0, 5, 1, 6, 2, 3, 4, 7], [0, 1, 2, 3, 4, 5, 6, 7]):
        model = node_order._in_order(artifact.path, order)
        names = [node.outputs[0].name for node in model.graph]
        ran, _ = node_order._ran(model, FEEDS, tmp_path, optimize=False, follow=True)
        assert [node.outputs[0].name for node in ran.graph] == names
        assert all(value.shape is not None for node in ran.graph for value in node.outputs)
        assert reorder.peak_bytes(ran.graph) is not None
    assert list(tmp_path.iterdir()) == [artifact.path]


def test_the_same_order_gives_the_same_bytes(artifact: Artifact, tmp_path: Path) -> None:
    first, second = (made("node-order", artifact, tmp_path / name) for name in "ab")
    assert first.sha256 == second.sha256


def test_an_order_that_is_best_already_stays(artifact: Artifact, tmp_path: Path) -> None:
    chain = two_branches()
    del chain.graph.node[5:]
    chain.graph.output[0].CopyFrom(helper.make_tensor_value_info("row", TensorProto.FLOAT, [1, 1, KEPT]))
    onnx.save(chain, artifact.path)
    said = option("node-order").make(artifact, FEEDS, tmp_path / "out.onnx")
    assert isinstance(said, str)
    assert "lower peak" in said


def test_mapped_weights_lie_beside_the_model_and_compute_the_same(artifact: Artifact, tmp_path: Path) -> None:
    mapped = made("mapped-weights", artifact, tmp_path / "mapped")
    assert mapped.data is not None
    assert mapped.data.path == mapped.path.with_suffix(".data")
    assert mapped.bytes == mapped.path.stat().st_size + mapped.data.path.stat().st_size
    assert mapped.data.sha256 == file_sha256(mapped.data.path)
    assert np.array_equal(outputs(artifact), outputs(mapped))
    assert mapped.data.sha256 == made("mapped-weights", artifact, tmp_path / "again").data.sha256  # type: ignore[union-attr]
    assert option("mapped-weights").make(mapped, FEEDS, tmp_path / "x.onnx") == (
        "its weights lie in a file of their own already"
    )
    both = made("node-order", mapped, tmp_path / "both")
    assert both.data is not None
    assert np.array_equal(outputs(artifact), outputs(both))


@pytest.mark.parametrize("name", ["small-heap", "no-memory-pattern", "no-arena", "no-prepacking"])
def test_a_switch_adds_its_option_and_is_not_set_twice(name: str, artifact: Artifact, tmp_path: Path) -> None:
    plain = dataclasses.replace(artifact, options={})
    switched = option(name).make(plain, FEEDS, tmp_path / "x.onnx")
    assert isinstance(switched, Artifact)
    assert switched.options == option(name).options
    assert np.array_equal(outputs(plain), outputs(switched))
    assert isinstance(option(name).make(switched, FEEDS, tmp_path / "x.onnx"), str)


def test_an_ort_file_is_left_as_it_is(artifact: Artifact, tmp_path: Path) -> None:
    ort = dataclasses.replace(artifact, path=artifact.path.with_suffix(".ort"))
    for name in ("node-order", "mapped-weights"):
        assert ".ort file" in str(option(name).make(ort, FEEDS, tmp_path / "x.ort"))
