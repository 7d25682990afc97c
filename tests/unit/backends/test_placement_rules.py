"""Every rule of the placement table against the runtime's own optimized graph, on a network made for it.

x86 with VNNI (unsigned activations), x86 without (7-bit weights), Arm (signed activations, as the runtime optimizes
for it). What the table promises to run in int8 does; what it refuses stays float; what stays float is not quantized.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeopt.backends import onnxruntime as backend
from edgeopt.backends.onnxruntime.readback import _optimized
from edgeopt.interpreter import Interpreter
from edgeopt.model import NODE_KEY, Model, node_key
from edgeopt.passes import apply
from edgeopt.passes.fold_hard_sigmoid import FOLD_HARD_SIGMOID
from edgeopt.quantize import Choice, QuantizedModel, Table, calibrate, quantize
from edgeopt.target import load_target
from tests.unit.quantize import nets

TARGETS = ("x86-avx512-vnni", "x86-avx2", "raspberry-pi-5")
CHANNELS, SIDE = 8, 8
MAP = [1, CHANNELS, SIDE, SIDE]
POOL = {"kernel_shape": [2, 2], "strides": [2, 2]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """One operator between int8 layers: ``inputs`` are ``a`` and ``b`` (results of Conv), constants, or ``cond``."""

    op: str
    inputs: tuple[str, ...] = ("a",)
    arrays: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    attributes: Mapping[str, object] = dataclasses.field(default_factory=dict)
    outputs: int = 1
    matrix: bool = False
    why: str = ""
    opset: int = 20


def number(*shape: int, seed: int = 0, low: float = 0.5) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, 1.5, shape).astype(np.float32)


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


WHERE = ("cond", "a", "b")
PROMISED: Mapping[str, Recipe] = {
    "Conv": Recipe(op="Conv", inputs=("a", "w"), arrays={"w": nets.normal(1, 8, 8, 3, 3)}, attributes={"pads": [1] * 4}
    ),
    "Conv depthwise": Recipe(
        op="Conv",
        inputs=("a", "w", "bias"),
        arrays={"w": nets.normal(1, 8, 1, 3, 3), "bias": number(8)},
        attributes={"group": 8, "pads": [1] * 4},
    ),
    "Gemm": Recipe(op="Gemm", inputs=("a", "w", "bias"), arrays={"w": nets.normal(1, 8, 8, fan=8), "bias": number(8)},
                   matrix=True),
    "Gemm transposed": Recipe(op="Gemm", inputs=("a", "w"), arrays={"w": nets.normal(1, 8, 8)}, matrix=True,
                              attributes={"transB": 1, "alpha": 0.5}),
    "MatMul": Recipe(op="MatMul", inputs=("a", "w"), arrays={"w": nets.normal(1, 8, 8, fan=8)}, matrix=True),
    "Add": Recipe(op="Add", inputs=("a", "b")),
    "Add constant": Recipe(op="Add", inputs=("a", "k"), arrays={"k": number(1, 8, 1, 1)}),
    "Add constant first": Recipe(op="Add", inputs=("k", "a"), arrays={"k": number(8, 8, low=-1.5)}),
    "Mul": Recipe(op="Mul", inputs=("a", "b")),
    "Mul constant": Recipe(op="Mul", inputs=("a", "k"), arrays={"k": np.array(3, np.float32)}),
    "Where": Recipe(op="Where", inputs=WHERE),
    "Where constant": Recipe(op="Where", inputs=("cond", "k", "a"), arrays={"k": np.array(0, np.float32)}),
    "Concat": Recipe(op="Concat", inputs=("a", "b"), attributes={"axis": 1}),
    "GlobalAveragePool": Recipe(op="GlobalAveragePool"),
    "AveragePool": Recipe(op="AveragePool", attributes=POOL),
    "Sigmoid": Recipe(op="Sigmoid"),
    "LeakyRelu": Recipe(op="LeakyRelu", attributes={"alpha": 0.1}),
    "HardSigmoid": Recipe(op="HardSigmoid", attributes={"alpha": 0.3, "beta": 0.45}),
    "HardSwish": Recipe(op="HardSwish"),
    "MaxPool": Recipe(op="MaxPool", attributes=POOL),
    "Reshape": Recipe(op="Reshape", inputs=("a", "k"), arrays={"k": integers(1, 8, 4, 16)}),
    "Flatten": Recipe(op="Flatten", matrix=True),
    "Squeeze": Recipe(op="Squeeze", inputs=("u", "k"), arrays={"k": integers(0)}),
    "Unsqueeze": Recipe(op="Unsqueeze", inputs=("a", "k"), arrays={"k": integers(0)}),
    "Transpose": Recipe(op="Transpose", attributes={"perm": [0, 1, 3, 2]}),
    "DepthToSpace": Recipe(op="DepthToSpace", attributes={"blocksize": 2}),
    "Slice": Recipe(op="Slice", inputs=("a", "from", "to", "axes"),
                    arrays={"from": integers(1), "to": integers(5), "axes": integers(2)}),
    "Gather": Recipe(op="Gather", inputs=("a", "k"), arrays={"k": integers(0, 2, 3)}, attributes={"axis": 2}),
    "GatherElements": Recipe(op="GatherElements", inputs=("a", "k"), arrays={"k": np.zeros((1, 8, 3, 8), np.int64)},
                             attributes={"axis": 2}),
    "Expand": Recipe(op="Expand", inputs=("a", "k"), arrays={"k": integers(2, 8, 8, 8)}),
    "Tile": Recipe(op="Tile", inputs=("a", "k"), arrays={"k": integers(1, 1, 2, 1)}),
    "ReduceMax": Recipe(op="ReduceMax", inputs=("a", "k"), arrays={"k": integers(2, 3)}),
    "ReduceMax attribute": Recipe(op="ReduceMax", attributes={"axes": [3]}, opset=17),
    "ReduceMin": Recipe(op="ReduceMin", inputs=("a", "k"), arrays={"k": integers(2)}),
    "Split": Recipe(op="Split", inputs=("a", "k"), arrays={"k": integers(4, 4)}, attributes={"axis": 1}, outputs=2),
    "Resize": Recipe(op="Resize", inputs=("a", "", "k"), arrays={"k": np.float32([1, 1, 2, 2])},
                     attributes={"mode": "nearest"}),
}  # fmt: skip

REFUSED: Mapping[str, Recipe] = {
    "Mul by uneven numbers": Recipe(
        op="Mul",
        inputs=("a", "k"),
        why="erase",
        arrays={"k": np.float32([1e-2] * 7 + [1]).reshape(1, 8, 1, 1)},
    ),
    "Add of a mask": Recipe(op="Add", inputs=("a", "k"), arrays={"k": np.array(-1e9, np.float32)}, why="a mask"),
    "Where with a mask": Recipe(op="Where", inputs=("cond", "a", "k"), arrays={"k": np.array(-1e9, np.float32)},
                                why="a mask"),
    "AveragePool with dilations": Recipe(op="AveragePool", attributes={"kernel_shape": [2, 2], "dilations": [2, 2]},
                                         why="no dilations"),
    "Resize between values": Recipe(op="Resize", inputs=("a", "", "k"), arrays={"k": np.float32([1, 1, 2, 2])},
                                    attributes={"mode": "linear"}, why="nearest-neighbour"),
    "Split with an unread part": Recipe(op="Split", inputs=("a", "k"), arrays={"k": integers(4, 4)}, why="not read",
                                        attributes={"axis": 1}, outputs=-2),
    "Softmax": Recipe(op="Softmax", attributes={"axis": 1}, why="no integer kernel"),
    "HardSigmoid that falls": Recipe(op="HardSigmoid", attributes={"alpha": -0.3}, why="falls"),
    "SpaceToDepth": Recipe(op="SpaceToDepth", attributes={"blocksize": 2}, why="no integer kernel"),
    "Sub": Recipe(op="Sub", inputs=("a", "b"), why="no integer kernel"),
    "Div": Recipe(op="Div", inputs=("a", "k"), arrays={"k": np.array(2, np.float32)}, why="no integer kernel"),
}  # fmt: skip


def network(recipe: Recipe) -> Model:
    """x -> two Convs a and b -> the operator -> a layer behind it -> y."""
    arrays: dict[str, np.ndarray] = dict(recipe.arrays)
    arrays |= {"wa": nets.normal(11, 8, 8, 1, 1), "wb": nets.normal(12, 8, 8, 1, 1)}
    layer = {"kernel_shape": [1, 1]}
    nodes = [helper.make_node("Conv", ["x", f"w{n}"], [n], name=n, **layer) for n in "ab" if n in (*recipe.inputs, "a")]
    arrays = {n: a for n, a in arrays.items() if n != "wb" or "b" in recipe.inputs}
    sources = list(recipe.inputs)
    if recipe.matrix and recipe.op != "Flatten":
        arrays["rows"] = integers(SIDE * SIDE, CHANNELS)
        nodes.append(helper.make_node("Reshape", ["a", "rows"], ["flat"], name="flat"))
        sources[0] = "flat"
    if "u" in sources:
        arrays["more"] = integers(0)
        nodes.append(helper.make_node("Unsqueeze", ["a", "more"], ["u"], name="u"))
    results = [f"r{i}" for i in range(abs(recipe.outputs))]
    nodes.append(helper.make_node(recipe.op, sources, results, name="tested", **recipe.attributes))
    probe = onnx.shape_inference.infer_shapes(wrap(nodes, results, arrays, recipe.opset), data_prop=True)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in probe.graph.output}
    ends = []
    for index, result in enumerate(results[: 1 if recipe.outputs < 0 else None]):
        shape = shapes[result]
        width = shape[-1]
        if len(shape) == 4:
            arrays[f"e{index}"] = nets.normal(20 + index, 8, shape[1], 1, 1)
            nodes.append(
                helper.make_node("Conv", [result, f"e{index}"], [f"last{index}"], name=f"last{index}", **layer)
            )
        else:
            arrays[f"e{index}"] = nets.normal(20 + index, width, 8, fan=width)
            nodes.append(helper.make_node("MatMul", [result, f"e{index}"], [f"last{index}"], name=f"last{index}"))
        ends.append(f"last{index}")
    nodes += [helper.make_node("Neg", [end], [f"y{i}"], name=f"neg{i}") for i, end in enumerate(ends)]
    return nets.wrap(
        onnx.shape_inference.infer_shapes(
            wrap(nodes, [f"y{i}" for i in range(len(ends))], arrays, recipe.opset), data_prop=True
        )
    )


def followed(model: Model, kind: str) -> Model:
    """The network with an activation between the operator that is tested and what reads it."""
    tested = next(n for n in model.graph if node_key(n) == "tested")
    value = tested.outputs[0]
    readers = list(value.uses())
    bounds = []
    for key, bound in (("low", 0.0), ("high", 0.75)) if kind == "Clip" else ():
        made = ir.Value(
            name=key,
            type=ir.TensorType(ir.DataType.FLOAT),
            shape=ir.Shape(()),
            const_value=ir.tensor(np.float32(bound), name=key),
        )
        model.graph.register_initializer(made)
        bounds.append(made)
    act = ir.node(kind, [value, *bounds], name="act")
    out = act.outputs[0]
    out.name, out.type, out.shape = "act", value.type, value.shape
    act.metadata_props[NODE_KEY] = "act"
    for use in readers:
        use.node.replace_input_with(use.idx, out)
    model.graph.insert_after(tested, act)
    return model


def wrap(
    nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], arrays: Mapping[str, np.ndarray], opset: int
) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, MAP)]
    if any("cond" in node.input for node in nodes):
        inputs.append(helper.make_tensor_value_info("cond", TensorProto.BOOL, MAP))
    outs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    stored = [numpy_helper.from_array(a, n) for n, a in arrays.items()]
    graph = helper.make_graph(list(nodes), "net", inputs, outs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Built:
    quantized: QuantizedModel
    fused: backend.Fused
    optimized: ir.Model
    decibel: float

    @property
    def runs(self) -> str:
        return {n.key: n.runs for n in self.fused.nodes}["tested"]


def build(model: Model, target: str, table: Table = backend.TABLE, exclude: frozenset[str] = frozenset()) -> Built:
    rng = np.random.default_rng(0)
    data: list[dict[str, np.ndarray]] = []
    for _ in range(6):
        feeds: dict[str, np.ndarray] = {"x": rng.standard_normal(MAP).astype(np.float32)}
        if any(spec.name == "cond" for spec in model.inputs):
            feeds["cond"] = rng.integers(0, 2, MAP).astype(bool)
        data.append(feeds)
    profile = load_target(target)
    calibrated = calibrate(model, table, profile.int8, iter(data), exclude=exclude)
    assert calibrated is not None
    quantized = quantize(calibrated, Choice())
    with tempfile.TemporaryDirectory() as folder:
        artifact = backend.lower(quantized.model, profile, Path(folder) / "q.onnx", precision="int8")
        fused = backend.fused(artifact.path, model, profile, quantized)
        optimized = _optimized(artifact.path, profile, ())
        expected, got = Interpreter(model).run(data[0]), Interpreter(artifact.path).run(data[0])
    error = sum(float(((expected[n].astype(np.float64) - got[n]) ** 2).sum()) for n in expected)
    signal = sum(float((expected[n].astype(np.float64) ** 2).sum()) for n in expected)
    return Built(
        quantized=quantized,
        fused=fused,
        optimized=optimized,
        decibel=np.inf if error == 0 else 10 * float(np.log10(signal / error)),
    )


def test_every_rule_has_a_network() -> None:
    promised = {op for op, rule in backend.TABLE.rules.items() if rule.role != "weight"}
    assert {recipe.op for recipe in PROMISED.values()} == promised
    assert {op for op, rule in backend.TABLE.rules.items() if rule.role == "weight"} == {"ConvTranspose"}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PROMISED)
def test_what_the_table_promises_runs_in_int8(name: str, target: str) -> None:
    built = build(network(PROMISED[name]), target)
    assert built.fused.mismatches == ()
    assert "tested" in {node_key(n) for n in built.quantized.placement.int8}
    kinds = [n.op_type for n in built.optimized.graph if not str(n.name).startswith(("neg", "last"))]
    # One quantizer for the input and nothing else: neither conversion nor float operator stands before the last layer.
    assert kinds.count("QuantizeLinear") == 1
    assert built.runs in ("int8", "fused")
    assert "DequantizeLinear" not in kinds
    assert built.decibel > 25


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", REFUSED)
def test_what_it_refuses_stays_float(name: str, target: str) -> None:
    recipe = REFUSED[name]
    built = build(network(recipe), target)
    assert built.fused.mismatches == ()
    assert recipe.why in built.quantized.placement.stays_float["tested"]
    tested = [n for n in built.optimized.graph if str(n.name) == "tested"]
    assert all(n.op_type == recipe.op for n in tested)
    for node in tested:
        sources = [v for v in node.inputs if v is not None and v.producer() is not None]
        assert all(v.producer().op_type != "QuantizeLinear" for v in sources)  # type: ignore[union-attr]
    assert built.runs == "float"
    assert built.decibel > 22


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("follower", ["Relu", "Clip"])
@pytest.mark.parametrize("name", [n for n, r in PROMISED.items() if backend.TABLE.rules[r.op].role != "move"])
def test_an_activation_behind_it_is_folded(name: str, follower: str, target: str) -> None:
    model = followed(network(PROMISED[name]), follower)
    built = build(model, target)
    assert built.fused.mismatches == ()
    assert "tested" in {node_key(n) for n in built.quantized.placement.int8}
    assert follower not in {n.op_type for n in built.optimized.graph}
    assert built.decibel > 20


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("follower", ["", "Relu"])
@pytest.mark.parametrize("name", [n for n, r in PROMISED.items() if r.op in backend.TABLE.shielded])
def test_what_is_excluded_is_shielded(name: str, follower: str, target: str) -> None:
    """The runtime would quantize it on its own between DequantizeLinear and QuantizeLinear, a Reshape in between."""
    recipe = PROMISED[name]
    model = network(recipe) if not follower else followed(network(recipe), follower)
    built = build(model, target, exclude=frozenset({"tested"}))
    assert built.fused.mismatches == ()
    assert built.runs == "float"
    weight = next((n for n in built.optimized.graph if str(n.name) == "tested"), None)
    if weight is not None and recipe.op in ("Conv", "Gemm"):
        stored = weight.inputs[1]
        assert stored is not None
        assert stored.producer() is None  # no DequantizeLinear, that is no integers
        assert stored.dtype in (None, ir.DataType.FLOAT)
    if recipe.op in ("Conv", "Gemm"):
        bare = build(
            model, target, table=dataclasses.replace(backend.TABLE, shielded={}), exclude=frozenset({"tested"})
        )
        stored_as = {v.dtype for v in bare.optimized.graph.initializers.values() if str(v.name).startswith("tested_w")}
        assert ir.DataType.INT8 in stored_as
    elif not follower and ("k" not in recipe.arrays or recipe.op == "Where"):
        bare = build(
            model, target, table=dataclasses.replace(backend.TABLE, shielded={}), exclude=frozenset({"tested"})
        )
        assert bare.runs == "int8"


@pytest.mark.parametrize("target", TARGETS)
def test_a_product_of_two_computed_tensors(target: str) -> None:
    """The table leaves it float. The runtime multiplies the integers that its inputs are: the same numbers."""
    built = build(network(Recipe(op="MatMul", inputs=("a", "b"))), target)
    assert built.fused.mismatches == ()
    assert "tested" in built.quantized.placement.stays_float
    assert built.decibel > 25


@pytest.mark.parametrize("target", TARGETS)
def test_a_mask_of_infinities_sets_no_scale(target: str) -> None:
    """Scores of a Conv, -inf where a key is padding, Softmax: calibration does not meet the infinities."""
    recipe = Recipe(op="Where", inputs=("cond", "a", "k"), arrays={"k": np.array(-np.inf, np.float32)})
    model = network(recipe)
    model = followed(model, "Softmax")
    built = build(model, target)
    assert "infinite" in built.quantized.placement.stays_float["tested"]
    scales = [n.inputs[1].const_value.numpy() for n in built.quantized.model.graph if n.op_type == "QuantizeLinear"]  # type: ignore[union-attr]
    assert np.isfinite(scales).all()
    assert np.max(scales) < 0.1
    assert built.decibel > 25


@pytest.mark.parametrize("target", TARGETS)
def test_a_rule_for_what_has_no_kernel_is_seen(target: str) -> None:
    """The oracle can fail: a table that promises Sub is found out."""
    wrong = dataclasses.replace(backend.TABLE, rules={**backend.TABLE.rules, "Sub": backend.TABLE.rules["Add"]})
    built = build(network(REFUSED["Sub"]), target, table=wrong)
    assert built.fused.mismatches == ("tested (Sub) was meant to run in int8 and runs as Sub",)


def squeeze_and_excite() -> Model:
    """Q11, block A without its outlier: depthwise Conv, HardSwish, the gate of HardSigmoid, and a residual."""
    arrays = {
        "dw": nets.normal(1, 8, 1, 3, 3),
        "s": nets.normal(2, 4, 8, 1, 1),
        "e": nets.normal(3, 8, 4, 1, 1),
        "pw": nets.normal(4, 8, 8, 1, 1),
        "head": nets.normal(5, 10, 8, 1, 1),
    }
    nodes = [
        helper.make_node("Conv", ["x", "dw"], ["c"], name="c", group=8, pads=[1] * 4),
        helper.make_node("HardSwish", ["c"], ["h"], name="h"),
        helper.make_node("GlobalAveragePool", ["h"], ["g"], name="g"),
        helper.make_node("Conv", ["g", "s"], ["q"], name="q"),
        helper.make_node("Relu", ["q"], ["r"], name="r"),
        helper.make_node("Conv", ["r", "e"], ["u"], name="u"),
        helper.make_node("HardSigmoid", ["u"], ["k"], name="k", alpha=1 / 6, beta=0.5),
        helper.make_node("Mul", ["h", "k"], ["m"], name="m"),
        helper.make_node("Conv", ["m", "pw"], ["p"], name="p"),
        helper.make_node("Add", ["c", "p"], ["a"], name="a"),
        helper.make_node("Conv", ["a", "head"], ["z"], name="tested"),
        helper.make_node("Neg", ["z"], ["y"], name="neg"),
    ]
    return nets.wrap(onnx.shape_inference.infer_shapes(wrap(nodes, ["y"], arrays, 20)))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rewritten", [False, True])
def test_q11_a_block_with_squeeze_and_excite_runs_in_int8_from_end_to_end(rewritten: bool, target: str) -> None:
    model = squeeze_and_excite()
    if rewritten:
        model = apply(FOLD_HARD_SIGMOID, model).model
    built = build(model, target)
    assert built.fused.mismatches == ()
    floats = {n.key for n in built.fused.nodes if n.runs == "float"}
    assert floats == {"neg"}
    assert sum(n.op_type == "QuantizeLinear" for n in built.optimized.graph) == 1
    assert built.decibel > 25


@pytest.mark.parametrize("target", TARGETS)
def test_hard_functions_beyond_their_bends(target: str) -> None:
    """Inputs of -12 to 12: flat, sloped and flat again; each is within a step of what it reads and of what it makes."""
    for kind in ("HardSigmoid", "HardSwish"):
        model = network(PROMISED[kind])
        for name in ("wa", "e0"):
            model.graph.initializers[name].const_value = ir.tensor(
                np.eye(8, dtype=np.float32).reshape(8, 8, 1, 1) * (4 if name == "wa" else 1), name=name
            )
        data = [{"x": np.linspace(-3, 3, 512, dtype=np.float32).reshape(MAP)}]
        profile = load_target(target)
        calibrated = calibrate(model, backend.TABLE, profile.int8, lambda data=data: iter(data))
        assert calibrated is not None
        with tempfile.TemporaryDirectory() as folder:
            path = backend.lower(
                quantize(calibrated, Choice()).model, profile, Path(folder) / "q.onnx", precision="int8"
            ).path
            got = Interpreter(path).run(data[0])["y0"]
        expected = Interpreter(model).run(data[0])["y0"]
        step = 24 / 255 + (float(expected.max() - expected.min()) / 255) * 2
        assert np.abs(expected - got).max() <= step * (1.5 if kind == "HardSwish" else 0.5)
