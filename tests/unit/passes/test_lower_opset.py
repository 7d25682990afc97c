"""Every operator that changed between the opsets, taken down and compared."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from edgeopt.passes import NORMALIZE, apply
from edgeopt.passes.lower_opset import _table, lower_opset
from edgeopt.passes.lower_opset._table import RULES

from .helpers import apply_all, assert_equal, build, check, from_proto, ints, node_cases, ops, rand

F = np.float32


def opset(model) -> int:
    return model.ir.opset_imports[""]


CASES: dict[str, tuple[int, int, str, dict[str, np.ndarray]]] = {
    # name: (from, to, graph, constants)
    "gelu erf": (20, 19, "g (float[2,9] x) => (float[2,9] y) { y = Gelu(x) }", {}),
    "gelu tanh": (20, 13, 'g (float[2,9] x) => (float[2,9] y) { y = Gelu<approximate="tanh">(x) }', {}),
    "hard swish": (20, 13, "g (float[2,9] x) => (float[2,9] y) { y = HardSwish(x) }", {}),
    "mish": (20, 17, "g (float[2,9] x) => (float[2,9] y) { y = Mish(x) }", {}),
    "swish": (24, 20, "g (float[2,9] x) => (float[2,9] y) { y = Swish<alpha=1.5>(x) }", {}),
    "layer norm": (
        20,
        16,
        "g (float[2,3,8] x) => (float[2,3,8] y) { y = LayerNormalization<epsilon=0.01>(x, s, b) }",
        {"s": rand(1, 8), "b": rand(2, 8)},
    ),
    "layer norm over two axes, statistics returned": (
        20,
        13,
        """g (float[2,3,8] x) => (float[2,3,8] y, float[2,1,1] m, float[2,1,1] d) {
            y, m, d = LayerNormalization<axis=1>(x, s)
        }""",
        {"s": rand(1, 3, 8)},
    ),
    "rms norm": (
        23,
        17,
        "g (float[2,3,8] x) => (float[2,3,8] y) { y = RMSNormalization<axis=-1, epsilon=0.01>(x, s) }",
        {"s": rand(1, 8)},
    ),
    "group norm, a scale per channel": (
        21,
        20,
        "g (float[2,6,3,5] x) => (float[2,6,3,5] y) { y = GroupNormalization<num_groups=2>(x, s, b) }",
        {"s": rand(1, 6), "b": rand(2, 6)},
    ),
    "reductions": (
        20,
        17,
        """g (float[2,3,4] x) => (float[2,4] a, float[3] b, float c, float[2,3,4] d, float[2,3,1] e) {
            a = ReduceMean<keepdims=0>(x, one) b = ReduceMax<keepdims=0>(x, outer) c = ReduceL2<keepdims=0>(x)
            d = ReduceMin<noop_with_empty_axes=1>(x) e = ReduceLogSumExp(x, last)
        }""",
        {"one": ints(1), "outer": ints(0, -1), "last": ints(-1)},
    ),
    "reductions of truth values": (
        20,
        19,
        "g (bool[2,5] x) => (bool[2,1] a, bool[2,1] b) { a = ReduceMax(x, i) b = ReduceMin(x, i) }",
        {"i": ints(1)},
    ),
    "pad along some axes": (
        20,
        13,
        "g (float[2,3,4] x) => (float[2,A,B] y, float[2,C,4] z) { y = Pad(x, p, v, a) z = Pad(x, q, v, b) }",
        {"p": ints(1, 2, 0, 1), "a": ints(-1, 1), "v": np.array(0.5, F), "q": ints(1, 0), "b": ints(1)},
    ),
    "uneven split": (
        20,
        17,
        """g (float[2,7] x) => (float[2,A] a, float[2,B] b, float[2,C] c) {
            a, b, c = Split<axis=1, num_outputs=3>(x)
        }""",
        {},
    ),
    "part of a shape": (
        20,
        14,
        "g (float[2,N,5] x) => (int64[A] a, int64[B] b) { a = Shape<start=1>(x) b = Shape<start=-2, end=-1>(x) }",
        {},
    ),
    "reshape": (20, 13, "g (float[2,6] x) => (float[3,4] y) { y = Reshape<allowzero=1>(x, s) }", {"s": ints(3, -1)}),
    "resize along two axes by scales": (
        20,
        17,
        'g (float[1,2,4,5] x) => (float[1,2,A,B] y) { y = Resize<axes=[2,3], mode="linear">(x, "", s) }',
        {"s": np.array([2, 1.5], F)},
    ),
    "resize along one axis to a size": (
        20,
        13,
        'g (float[1,2,4,5] x) => (float[1,2,7,5] y) { y = Resize<axes=[2], mode="nearest">(x, "", "", s) }',
        {"s": ints(7)},
    ),
    "triangles": (
        20,
        13,
        "g (float[2,N,5] x) => (float[2,N,5] y, float[2,N,5] z) { y = Trilu(x, k) z = Trilu<upper=0>(x) }",
        {"k": np.array(-1, np.int64)},
    ),
    "average pool": (
        22,
        13,
        """g (float[1,2,7,8] x) => (float[1,2,A,B] y, float[1,2,C,D] z) {
            y = AveragePool<kernel_shape=[3,2], strides=[2,2], ceil_mode=1>(x)
            z = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1], count_include_pad=1>(x)
        }""",
        {},
    ),
    "pools that round up": (
        22,
        13,
        """g (float[1,2,8,8] x) => (float[1,2,A,B] y, float[1,2,C,D] z) {
            y = AveragePool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1>(x)
            z = MaxPool<kernel_shape=[3,3], strides=[2,2], ceil_mode=1>(x)
        }""",
        {},
    ),
    "batch normalization": (
        20,
        13,
        "g (float[1,2,3,3] x) => (float[1,2,3,3] y) { y = BatchNormalization(x, s, b, m, v) }",
        {"s": rand(0, 2), "b": rand(1, 2), "m": rand(2, 2), "v": rand(3, 2, low=0.5)},
    ),
    "sampling a grid": (
        20,
        16,
        'g (float[1,2,4,4] x, float[1,3,3,2] i) => (float[1,2,3,3] y) { y = GridSample<mode="linear">(x, i) }',
        {},
    ),
    "scatter": (
        20,
        13,
        "g (float[4,3] x, float[2,3] u) => (float[4,3] y) { y = ScatterND(x, i, u) }",
        {"i": np.array([[0], [2]], np.int64)},
    ),
    "scatter that adds": (
        20,
        16,
        'g (float[4,3] x, float[2,3] u) => (float[4,3] y) { y = ScatterND<reduction="add">(x, i, u) }',
        {"i": np.array([[0], [2]], np.int64)},
    ),
    "cast like": (
        20,
        14,
        "g (float[4] x, int32[1] l) => (int32[4] y) { y = CastLike(x, l) }",
        {},
    ),
    "casts": (20, 13, "g (float[4] x) => (int64[4] y) { a = Cast<to=7, saturate=1>(x) y = Identity(a) }", {}),
    "quantized, one scale per channel": (
        21,
        13,
        """g (float[1,3,4] x) => (float[1,3,4] y) {
            q = QuantizeLinear<axis=1>(x, s, z) y = DequantizeLinear<axis=1>(q, s, z)
        }""",
        {"s": rand(0, 3, low=0.01, high=0.1), "z": np.array([1, -2, 3], np.int8)},
    ),
    "quantized to int8 without a zero point": (
        21,
        13,
        """g (float[1,3,4] x) => (float[1,3,4] y) {
            q = QuantizeLinear<output_dtype=3>(x, s) y = DequantizeLinear(q, s)
        }""",
        {"s": np.array(0.05, F)},
    ),
    "comparisons and selection": (
        20,
        13,
        """g (float[2,4] x, float[4] t) => (float[2,4] y) {
            a = LessOrEqual(x, t) b = GreaterOrEqual(t, x) c = And(a, b)
            d = Where(c, x, t) e = PRelu(d, t) y = LeakyRelu(e)
        }""",
        {},
    ),
    "attention, rotated": (
        23,
        19,
        """g (float[1,2,4,8] q, float[1,2,4,8] k, float[1,2,4,8] v) => (float[1,2,4,8] y) {
            r = RotaryEmbedding(q, c, s) y = Attention<is_causal=1>(r, k, v)
        }""",
        {"c": rand(0, 1, 4, 4), "s": rand(1, 1, 4, 4)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_changed_operator_keeps_its_values(name: str) -> None:
    source, wanted, text, arrays = CASES[name]
    model = build(text, opset=source, ir_version=10 if source > 20 else 9, **arrays)
    applied = apply(lower_opset(wanted), model)
    assert applied.count, applied.reason
    assert opset(applied.model) == wanted
    assert_equal(model, applied.model, 1e-5, N=4)


@pytest.mark.parametrize("source", [13, 16, 17, 18, 19, 20])
@pytest.mark.parametrize("wanted", [13, 16, 17, 18, 19])
def test_ordinary_networks_go_down_from_anywhere(source: int, wanted: int) -> None:
    text = """g (float[N,3,8,8] x) => (float[N,5] y) {
        c = Conv(x, w) r = Relu(c) m = MaxPool<kernel_shape=[2,2]>(r) p = GlobalAveragePool(m)
        f = Flatten(p) h = Gemm(f, v) s = Softmax(h) y = Add(s, h)
    }"""
    model = build(text, opset=source, ir_version=8, w=rand(0, 4, 3, 3, 3), v=rand(1, 4, 5))
    applied = apply(lower_opset(wanted), model)
    assert opset(applied.model) == min(source, wanted)
    assert_equal(model, applied.model, 1e-6)


def test_attention_goes_all_the_way_down_once_constants_are_folded() -> None:
    source, _, text, arrays = CASES["attention, rotated"]
    model = build(text, opset=source, ir_version=10, **arrays)
    applied = apply(lower_opset(13), apply_all(NORMALIZE, model))
    assert opset(applied.model) == 13, applied.reason
    assert_equal(model, applied.model, 1e-5)


def test_a_model_that_is_low_enough_is_left_alone() -> None:
    model = build("g (float[2] x) => (float[2] y) { y = Relu(x) }", opset=17)
    assert check(lower_opset(19), model, 0).reason == "the model is at opset 17"


def test_a_planted_wrong_rule_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle above must fail for a Gelu that is written out with the wrong constant."""

    def wrong(site) -> None:
        x = site.value(0)
        bent = site.add("Erf", site.add("Div", x, site.constant(math.sqrt(2.01), site.dtype())))
        one, half = (site.constant(v, site.dtype()) for v in (1.0, 0.5))
        site.replace(site.add("Mul", site.add("Mul", x, site.add("Add", bent, one)), half))

    monkeypatch.setattr(_table, "RULES", {**RULES, ("Gelu", 20): wrong})
    monkeypatch.setattr("edgeopt.passes.lower_opset.RULES", _table.RULES)
    model = build("g (float[2,9] x) => (float[2,9] y) { y = Gelu(x) }")
    after = apply(lower_opset(19), model).model
    with pytest.raises(AssertionError):
        assert_equal(model, after, 1e-5)


def test_subgraphs_are_converted() -> None:
    text = """g (float[2,4] x, bool c) => (float[2,4] y) {
        y = If(c) <
            then_branch = t () => (float[2,4] a) { a = Gelu(x) },
            else_branch = e () => (float[2,4] b) { b0 = Mish(x) b = LayerNormalization(b0, s) }>
    }"""
    model = build(text, s=rand(0, 4))
    after = check(lower_opset(16), model, 5).model  # If, Gelu, Mish, LayerNormalization, and the number
    assert not {"Gelu", "Mish", "LayerNormalization"} & set(ops(after))


def test_functions_are_converted() -> None:
    proto = parser.parse_model("""<ir_version: 9, opset_import: ["" : 20, "local" : 1]>
        g (float[2,4] x) => (float[2,4] y) { y = local.f(x) }
        <domain: "local", opset_import: ["" : 20]> f (a) => (b) { b = HardSwish(a) }""")
    model = from_proto(proto)
    after = apply(lower_opset(13), model).model
    [function] = after.ir.functions.values()
    assert [n.op_type for n in function] == ["HardSigmoid", "Mul"]
    assert function.opset_imports[""] == 13
    assert_equal(model, after, 1e-6)


def test_keys_stay_and_new_nodes_are_named_after_the_old_one() -> None:
    model = build("g (float[2,9] x) => (float[2,9] y) { y = Gelu(x) }")
    after = apply(lower_opset(19), model).model
    keys = [n.metadata_props["edgeopt.key"] for n in after.nodes()]
    assert keys[-1] == "Gelu:y"
    assert keys[0] == "Gelu:y/Div"


def test_custom_operators_stay() -> None:
    model = build("g (float[1,4] x) => (float[K] z) { y = HardSwish(x) z = acme.Plugin<k=3>(y) }")
    after = apply(lower_opset(13), model).model
    assert after.ir.opset_imports == {"": 13, "acme": 1}
    assert ops(after) == {"HardSigmoid": 1, "Mul": 1, "Plugin": 1}


def test_shared_input_and_output_survive() -> None:
    """The written-out value is a graph output and has another reader."""
    model = build("g (float[2,9] x) => (float[2,9] y, float[2,9] z) { y = HardSwish(x) z = Mul(y, x) }")
    assert_equal(model, apply(lower_opset(13), model).model, 1e-5)


@pytest.mark.parametrize(("approximate", "fused"), [("none", "Gelu"), ("tanh", "FastGelu")])
def test_the_runtime_joins_a_gelu_again(approximate: str, fused: str, tmp_path) -> None:
    text = f'g (float[2,9] x) => (float[2,9] y) {{ r = Relu(x) g = Gelu<approximate="{approximate}">(r) y = Neg(g) }}'
    after = apply(lower_opset(17), build(text)).model
    settings = ort.SessionOptions()
    settings.optimized_model_filepath = str(tmp_path / "o.onnx")
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    ort.InferenceSession(ir.to_proto(after.ir).SerializeToString(), settings, providers=["CPUExecutionProvider"])
    assert fused in {n.op_type for n in onnx.load(tmp_path / "o.onnx").graph.node}


SAMPLE = (
    *("Gelu", "HardSwish", "LayerNormalization", "GroupNormalization", "Mish", "ReduceMax", "Split", "Pad", "Resize"),
    *("ReduceSumSquare", "Cast", "AveragePool", "IsInf", "CenterCropPad", "Where", "PRelu", "DFT", "RNN"),
    *("Swish", "RMSNormalization", "RotaryEmbedding", "Shape", "Trilu", "HannWindow", "QuantizeLinear"),
)


def baked(case: Any, inputs: Sequence[np.ndarray]) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A case with its integer inputs, from the second on, as constants: axes and pads are seldom computed."""
    proto = onnx.ModelProto()
    proto.CopyFrom(case.model)
    feeds = dict(zip((i.name for i in proto.graph.input), inputs))
    for index, value in reversed(list(enumerate(proto.graph.input))):
        if index and feeds[value.name].dtype == np.int64:
            proto.graph.initializer.append(numpy_helper.from_array(np.asarray(feeds.pop(value.name)), value.name))
            del proto.graph.input[index]
    return proto, feeds


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("op", SAMPLE)
def test_node_cases_of_the_standard(op: str) -> None:
    """The expected outputs come from the standard, not from a runtime; scripts/conformance runs all cases."""
    compared = 0
    cases = [c for c in node_cases().values() if any(n.op_type == op for n in c.model.graph.node)]
    cases.sort(key=lambda c: (len(c.model.graph.node), sum(np.size(v) for v in c.data_sets[0][0])))
    largest = max(cases, key=lambda c: len(c.model.graph.node))
    for case in [*cases[:12], largest]:  # those about the operator itself, and a whole graph that uses it
        inputs, expected = case.data_sets[0]
        if any(not isinstance(v, np.ndarray | np.generic) or v.dtype.kind not in "fiub" for v in (*inputs, *expected)):
            continue
        proto, feeds = baked(case, inputs)
        for wanted in (20, 17, 13):
            applied = apply(lower_opset(wanted), from_proto(proto, valid=False))
            if not applied.count:
                assert applied.reason
                continue
            results = ReferenceEvaluator(ir.to_proto(applied.model.ir)).run(None, feeds)
            for got, want in zip(results, expected):
                np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5, err_msg=f"{case.name} at {wanted}")
                compared += 1
    assert compared


def test_external_and_large_weights_are_not_copied() -> None:
    model = build("g (float[1,64] x) => (float[1,64] y) { h = MatMul(x, w) y = HardSwish(h) }", w=rand(0, 64, 64))
    after = apply(lower_opset(13), model).model
    assert after.graph.initializers["w"].const_value is model.graph.initializers["w"].const_value


def test_types_decide_in_bfloat16() -> None:
    """bfloat16 in Where is new in 16."""
    x = helper.make_tensor_value_info("x", TensorProto.BFLOAT16, [4])
    c = helper.make_tensor_value_info("c", TensorProto.BOOL, [4])
    y = helper.make_tensor_value_info("y", TensorProto.BFLOAT16, [4])
    graph = helper.make_graph([helper.make_node("Where", ["c", "x", "x"], ["y"])], "g", [c, x], [y])
    model = from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9))
    assert apply(lower_opset(16), model).count
    assert "takes no tensor(bfloat16)" in apply(lower_opset(13), model).reason


def test_a_model_without_default_domain_is_refused() -> None:
    model = build("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    imports = model.ir.graph.opset_imports
    imports.pop("")
    assert apply(lower_opset(13), dataclasses.replace(model)).reason == "the model imports no default-domain opset"


def test_constants_keep_their_type() -> None:
    model = build("g (float16[2,9] x) => (float16[2,9] y) { y = Gelu(x) }")
    after = apply(lower_opset(19), model).model
    assert {v.dtype for v in after.graph.initializers.values()} == {ir.DataType.FLOAT16}
