"""What onnxruntime fuses, refuses and does on its own between Q/DQ pairs, graph by graph; read back from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeopt.backends import onnxruntime as backend
from edgeopt.interpreter import Interpreter
from edgeopt.model import Model, node_key
from edgeopt.quantize import Choice, QuantizedModel, calibrate, quantize
from edgeopt.target import load_target

from . import nets

TARGETS = ("raspberry-pi-5", "x86-avx512-vnni", "x86-avx2")
SIDE = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Built:
    """A quantized net, what the runtime made of it, and both outputs for one sample."""

    quantized: QuantizedModel
    fused: backend.Fused
    expected: dict[str, np.ndarray]
    got: dict[str, np.ndarray]

    @property
    def runs(self) -> dict[str, str]:
        return {n.key: n.runs for n in self.fused.nodes}

    def decibel(self, name: str) -> float:
        error = float(((self.expected[name].astype(np.float64) - self.got[name]) ** 2).sum())
        signal = float((self.expected[name].astype(np.float64) ** 2).sum())
        return np.inf if error == 0 else 10 * float(np.log10(signal / error))


def build(model: Model, folder: Path, target: str = "x86-avx512-vnni", exclude: frozenset[str] = frozenset()) -> Built:
    rng = np.random.default_rng(0)
    data = []
    for index in range(8):
        feeds: dict[str, np.ndarray] = {}
        for spec in model.inputs:
            is_flag = spec.dtype == "bool"
            feeds[spec.name] = (
                np.array(index % 2 == 0) if is_flag else rng.standard_normal(spec.shape).astype(np.float32)  # type: ignore[arg-type]
            )
        data.append(feeds)
    profile = load_target(target)
    calibrated = calibrate(model, backend.TABLE, profile.int8, iter(data), exclude=exclude)
    assert calibrated is not None
    quantized = quantize(calibrated, Choice())
    artifact = backend.lower(quantized.model, profile, folder / "q.onnx", precision="int8")
    fused = backend.fused(artifact.path, model, profile, quantized)
    assert [(s.name, s.dtype) for s in quantized.model.inputs] == [(s.name, s.dtype) for s in model.inputs]
    assert [(s.name, s.dtype) for s in quantized.model.outputs] == [(s.name, s.dtype) for s in model.outputs]
    return Built(
        quantized=quantized,
        fused=fused,
        expected=Interpreter(model).run(data[0]),
        got=Interpreter(artifact.path).run(data[0]),
    )


def conv(source: str, weight: str, result: str, kernel: int = 1) -> onnx.NodeProto:
    pads = [kernel // 2] * 4
    return helper.make_node("Conv", [source, weight], [result], name=result, kernel_shape=[kernel] * 2, pads=pads)


def last(source: str, weight: str) -> list[onnx.NodeProto]:
    """A Conv whose result is no graph output, so that a quiet channel of it does not keep it in float."""
    return [conv(source, weight, "last"), op("Neg", ["last"], "y")]


def op(kind: str, sources: Sequence[str], result: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(kind, sources, [result], name=result, **attributes)


def net(nodes: list[onnx.NodeProto], outputs: dict[str, Sequence[int]], **arrays: np.ndarray) -> Model:
    """Input x [1,8,8,8]; weights w0..w3 [8,8,1,1] are there for whoever reads them."""
    read = {name for node in nodes for name in node.input}
    arrays |= {f"w{i}": nets.normal(i, 8, 8, 1, 1) for i in range(4) if f"w{i}" in read}
    return nets.make(nodes, [("x", [1, 8, SIDE, SIDE])], list(outputs.items()), arrays, opset=20)


MAP = (1, 8, SIDE, SIDE)


@pytest.mark.parametrize("target", TARGETS)
def test_a_join_between_quantized_tensors_is_planned_as_the_runtime_runs_it(target: str, tmp_path: Path) -> None:
    """One operand comes from a float operator and is quantized for another Conv all the same."""
    nodes = [
        op("Tanh", ["x"], "t"),
        conv("t", "w0", "a"),
        op("Add", ["t", "a"], "s"),
        op("Relu", ["s"], "r"),
        conv("r", "w1", "y"),
    ]
    built = build(net(nodes, {"y": MAP}), tmp_path, target)
    assert built.fused.mismatches == ()
    assert "s" in {node_key(n) for n in built.quantized.placement.int8}
    assert built.runs["s"] == "int8"
    assert built.decibel("y") > 25


def test_float_results_stay_exact_where_they_are_read_in_float(tmp_path: Path) -> None:
    """Tanh is a graph output, is read by Exp and by an int8 Conv: only the Conv sees rounded values."""
    nodes = [op("Tanh", ["x"], "t"), conv("t", "w0", "y"), op("Exp", ["t"], "e")]
    built = build(net(nodes, {"y": MAP, "t": MAP, "e": MAP}), tmp_path)
    assert built.fused.mismatches == ()
    assert built.runs["y"] == "int8"
    for name in ("t", "e"):
        assert np.abs(built.expected[name] - built.got[name]).max() <= 1e-6


def test_a_graph_input_may_be_a_graph_output(tmp_path: Path) -> None:
    built = build(net([conv("x", "w0", "y")], {"y": MAP, "x": MAP}), tmp_path)
    assert built.runs["y"] == "int8"
    assert np.array_equal(built.expected["x"], built.got["x"])


def test_a_quiet_output_stays_exact_although_an_int8_node_reads_it(tmp_path: Path) -> None:
    weight = nets.normal(0, 8, 8, 1, 1)
    weight[3] *= 1e-3
    nodes = [conv("x", "v", "a"), conv("a", "w1", "y")]
    built = build(net(nodes, {"a": MAP, "y": MAP}, v=weight), tmp_path)
    assert built.runs["a"] == "float"
    assert built.runs["y"] == "int8"
    quiet = built.expected["a"][:, 3], built.got["a"][:, 3]
    assert np.sqrt(((quiet[0] - quiet[1]) ** 2).mean() / (quiet[0] ** 2).mean()) <= 0.02


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("attributes", "runs"),
    [
        ({"kernel_shape": [2, 2], "dilations": [2, 2]}, "float"),
        ({"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}, "int8"),
        ({"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, "int8"),
        (
            {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 0, 1, 1], "ceil_mode": 1, "count_include_pad": 1},
            "float",
        ),
    ],
)
def test_average_pool_runs_in_int8_only_where_the_kernel_is_right(
    attributes: dict[str, object], runs: str, target: str, tmp_path: Path
) -> None:
    """The runtime fuses all four; a dilated one would not even load, the last one would count too much padding."""
    nodes = [conv("x", "w0", "a"), op("AveragePool", ["a"], "p", **attributes), *last("p", "w1")]
    model = net(nodes, {"y": (1, 8, "H", "W")})  # type: ignore[dict-item]
    built = build(model, tmp_path, target)
    assert built.fused.mismatches == ()
    assert built.runs["p"] == runs
    assert built.decibel("y") > 25


@pytest.mark.parametrize("kind", ["Add", "Mul", "Concat", "Sigmoid", "LeakyRelu", "GlobalAveragePool"])
def test_an_excluded_operator_is_not_rounded_twice(kind: str, tmp_path: Path) -> None:
    attributes = {"axis": 1} if kind == "Concat" else {}
    sources = ["a", "b"] if kind in ("Add", "Mul", "Concat") else ["a"]
    nodes = [conv("x", "w0", "a"), conv("x", "w1", "b"), op(kind, sources, "j", **attributes), conv("j", "v", "y")]
    width = 16 if kind == "Concat" else 8
    model = net(nodes, {"y": (1, 8, "H", "W"), "b": MAP}, v=nets.normal(5, 8, width, 1, 1))  # type: ignore[dict-item]
    built = build(model, tmp_path, exclude=frozenset({"j"}))
    assert built.fused.mismatches == ()
    assert built.quantized.placement.stays_float["j"] == "excluded by request"
    assert built.runs["j"] == "float"


@pytest.mark.parametrize("kind", ["Relu", "Clip"])
@pytest.mark.parametrize("layer", ["MatMul", "Gemm"])
@pytest.mark.parametrize("output", [False, True])
def test_a_matrix_product_runs_in_int8_before_an_activation(
    layer: str, kind: str, output: bool, tmp_path: Path
) -> None:
    """The runtime leaves the product float when something reads on behind a Relu that is not quantized."""
    bounds = ["low", "high"] if kind == "Clip" else []
    nodes = [
        op("Flatten", ["x"], "f"),
        op(layer, ["f", "m"], "p"),
        op(kind, ["p", *bounds], "r"),
        op("Exp", ["r"], "e"),
        op("Neg", ["e"], "y"),
    ]
    arrays = {"m": nets.normal(0, 512, 6, fan=512)}
    if bounds:
        arrays |= {"low": np.float32(0.1), "high": np.float32(0.6)}  # type: ignore[dict-item]
    outputs = {"y": (1, 6)} | ({"p": (1, 6)} if output else {})
    built = build(net(nodes, outputs, **arrays), tmp_path)
    assert built.fused.mismatches == ()
    assert built.runs["p"] == "int8"
    assert built.decibel("y") > 30


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("bounds", [(-1.0, 1.0), (-0.5, 0.7), (0.0, 6.0), (0.1, 0.6), (-1.0, -0.1), (None, 0.4)])
def test_clips_of_any_bounds(bounds: tuple[float | None, float], target: str, tmp_path: Path) -> None:
    names = ["" if bounds[0] is None else "low", "high"]
    arrays = {n: np.array(b, np.float32) for n, b in zip(("low", "high"), bounds) if b is not None}
    nodes = [conv("x", "w0", "a"), op("Clip", ["a", *names], "c"), *last("c", "w1")]
    built = build(net(nodes, {"y": MAP}, **arrays), tmp_path, target)
    assert built.fused.mismatches == ()
    assert built.runs["a"] == built.runs["last"] == "int8"
    assert built.decibel("y") > 25


def test_a_relu_keeps_its_own_range_in_a_concat(tmp_path: Path) -> None:
    """With the range of its negative neighbour the runtime could not fold the Relu into the Conv."""
    nodes = [
        conv("x", "w0", "a"),
        op("Relu", ["a"], "r"),
        conv("x", "w1", "b"),
        op("Concat", ["r", "b"], "c", axis=1),
        conv("c", "v", "y"),
    ]
    built = build(net(nodes, {"y": MAP}, v=nets.normal(5, 8, 16, 1, 1)), tmp_path)
    assert built.fused.mismatches == ()
    assert built.runs["c"] == "int8"


def test_a_dead_relu_is_folded_too(tmp_path: Path) -> None:
    nodes = [
        op("Conv", ["x", "w0", "b"], "a", kernel_shape=[1, 1]),
        op("Relu", ["a"], "r"),
        op("Conv", ["r", "w1", "c"], "y", kernel_shape=[1, 1]),
    ]
    bias = {"b": np.full(8, -100, np.float32), "c": np.arange(8, dtype=np.float32)}
    built = build(net(nodes, {"y": MAP}, **bias), tmp_path)
    assert built.fused.mismatches == ()
    assert built.decibel("y") > 30


def test_moves_of_values_stay_in_int8(tmp_path: Path) -> None:
    nodes = [
        conv("x", "w0", "a"),
        op("Slice", ["a", "start", "end", "axis", "step"], "s"),
        helper.make_node("Split", ["s", "sizes"], ["p", "q"], name="split", axis=1),
        op("Concat", ["p", "q"], "c", axis=1),
        op("DepthToSpace", ["c"], "d", blocksize=2),
        *last("d", "v"),
    ]
    indices = {"start": [0], "end": [SIDE], "axis": [2], "step": [2], "sizes": [4, 4]}
    arrays = {name: np.array(values, np.int64) for name, values in indices.items()}
    built = build(net(nodes, {"y": (1, 8, SIDE, 2 * SIDE)}, v=nets.normal(5, 8, 2, 1, 1), **arrays), tmp_path)
    assert built.fused.mismatches == ()
    assert {built.runs[k] for k in ("a", "s", "split", "c", "d", "last")} == {"int8"}
    assert built.decibel("y") > 25


def test_a_weight_of_several_operators_is_stored_once(tmp_path: Path) -> None:
    nodes = [
        conv("x", "shared", "a", 3),
        op("Tanh", ["a"], "t"),
        conv("t", "shared", "b", 3),
        op("Exp", ["b"], "e"),
        conv("e", "shared", "y", 3),
    ]
    shared = nets.normal(9, 8, 8, 3, 3, fan=72)
    many = np.concatenate([shared] * 20)[:, :, :, :]
    model = net([*nodes, op("Conv", ["x", "many"], "z", kernel_shape=[3, 3])], {"y": MAP, "z": (1, 160, 6, 6)},
                shared=shared, many=many)  # fmt: skip
    built = build(model, tmp_path)
    stored = [v for v in built.quantized.model.graph.initializers.values() if v.dtype == ir.DataType.INT8]
    assert sorted(v.shape.numpy() for v in stored if len(v.shape or ()) == 4) == [(8, 8, 3, 3), (160, 8, 3, 3)]  # type: ignore[union-attr]
    twice = nets.make(
        [op("Conv", ["x", "many"], "a", kernel_shape=[3, 3]), op("Neg", ["x"], "n"),
         op("Conv", ["n", "many"], "b", kernel_shape=[3, 3])],
        [("x", MAP)], [("a", [1, 160, 6, 6]), ("b", [1, 160, 6, 6])], {"many": many},
    )  # fmt: skip
    build(twice, tmp_path)
    assert (tmp_path / "q.onnx").stat().st_size < 0.4 * many.nbytes


def test_long_names_are_not_repeated_in_full(tmp_path: Path) -> None:
    long = "model/block/" * 40
    nodes = [conv("x", "w0", long + "a"), conv(long + "a", "w1", long + "b"), conv(long + "b", "w2", "y")]
    built = build(net(nodes, {"y": MAP}), tmp_path)
    assert built.fused.mismatches == ()
    added = {str(v.name) for n in built.quantized.model.graph for v in n.outputs} - {long + "a", long + "b", "y"}
    assert max(map(len, added)) <= 60


def branches(name: str, source: str, inner: str) -> onnx.NodeProto:
    """Two branches that read ``source`` and the outer weight w3; ``inner`` is the name of a constant of theirs."""
    graphs = {}
    for branch, kind in (("then_branch", "Relu"), ("else_branch", "Sigmoid")):
        mark = branch[0]
        nodes = [
            conv(source, "w3", f"{name}_{mark}c"),
            op("Mul", [f"{name}_{mark}c", f"{inner}{mark}"], f"{name}_{mark}m"),
            op(kind, [f"{name}_{mark}m"], f"{name}_{mark}"),
        ]
        graphs[branch] = helper.make_graph(
            nodes,
            branch,
            [],
            [helper.make_tensor_value_info(f"{name}_{mark}", TensorProto.FLOAT, list(MAP))],
            [numpy_helper.from_array(np.array(2, np.float32), f"{inner}{mark}")],
        )
    return helper.make_node("If", ["flag"], [name], name=name, **graphs)


def with_flag(nodes: list[onnx.NodeProto], outputs: dict[str, Sequence[int]]) -> Model:
    arrays = {f"w{i}": nets.normal(i, 8, 8, 1, 1) for i in (0, 1, 3)}
    graph = helper.make_graph(
        nodes,
        "net",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, list(MAP)),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s)) for n, s in outputs.items()],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    return nets.wrap(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9))


def test_subgraphs_read_around_the_quantizers(tmp_path: Path) -> None:
    """onnxruntime 1.32 aborts the process where it can move a DequantizeLinear up to what a subgraph reads."""
    pool = op("MaxPool", ["a"], "p", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    nodes = [conv("x", "w0", "a"), pool, branches("i", "p", "k"), op("Concat", ["p", "p"], "c", axis=1)]
    model = with_flag(nodes, {"i": MAP, "p": MAP, "c": (1, 16, SIDE, SIDE)})
    profile = load_target("x86-avx512-vnni")
    data = [{"x": np.ones(MAP, np.float32), "flag": np.array(True)}]
    calibrated = calibrate(model, backend.TABLE, profile.int8, iter(data))
    assert calibrated is not None
    graph = quantize(calibrated, Choice()).model.graph
    for node in graph.all_nodes():
        for value in node.inputs if node.graph is not graph else ():
            maker = None if value is None else value.producer()
            assert maker is None or maker.graph is not graph or maker.op_type == "Max"
    built = build(model, tmp_path)
    assert built.runs["a"] == "int8"
    assert min(built.decibel(n) for n in ("i", "p", "c")) > 25


def test_new_names_hide_none_of_a_subgraph(tmp_path: Path) -> None:
    nodes = [conv("x", "w0", "a"), conv("a", "w1", "y"), branches("i", "a", "a_scale")]
    nodes[2].attribute[0].g.initializer[0].name = nodes[2].attribute[0].g.node[1].input[1] = "a_scale"
    built = build(with_flag(nodes, {"i": MAP, "y": MAP}), tmp_path)
    assert "a_scale" not in built.quantized.model.graph.initializers
    assert min(built.decibel(n) for n in ("i", "y")) > 25
