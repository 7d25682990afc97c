from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from edgeopt.model import INTERNAL_OPSET
from edgeopt.passes import apply
from edgeopt.passes.convert_opset import CONVERT_OPSET
from edgeopt.passes.infer_shapes import INFER_SHAPES
from edgeopt.passes.inline_functions import INLINE_FUNCTIONS

from .helpers import assert_equal, build, check, feeds, from_proto, initializer, ints, node, ops, rand, run


def keys(model) -> list[str]:
    return [n.metadata_props["edgeopt.key"] for n in model.nodes()]


def test_unchanged_operators_are_stamped() -> None:
    model = build(
        "g (float[1,3,4,4] x) => (float[1,2,4,4] y) { c = Conv(x, w) y = Relu(c) }",
        opset=17,
        ir_version=8,
        w=rand(0, 2, 3, 1, 1),
    )
    after = check(CONVERT_OPSET, model, 1).model
    assert after.ir.opset_imports[""] == INTERNAL_OPSET
    assert after.ir.ir_version == 9
    assert after.graph.initializers["w"].const_value is model.graph.initializers["w"].const_value


def test_model_at_the_internal_opset_is_left_alone() -> None:
    model = build("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    assert check(CONVERT_OPSET, model, 0).reason == f"the model is at opset {INTERNAL_OPSET} already"


def test_conversion_keeps_keys_names_and_large_weights() -> None:
    text = """g (float[1,3,8,8] x, float[1] unused) => (float[1,16,1,1] y, float[1,16,6,6] c) {
        a = Conv(x, w)
        c = Clip(a, "", six)
        r = ReduceMean<axes=[2,3]>(c)
        y = Softmax<axis=1>(r)
    }"""
    model = build(text, opset=13, ir_version=7, w=rand(0, 16, 3, 3, 3), six=np.float32(0.5))
    after = check(CONVERT_OPSET, model, 1).model
    assert set(keys(model)) <= set(keys(after))
    assert [s.name for s in after.inputs] == ["x", "unused"]
    # 1.7 KB: never part of the view that was converted, so it is the very same tensor.
    assert after.graph.initializers["w"].const_value is model.graph.initializers["w"].const_value


def test_old_model() -> None:
    text = """g (float[1,3,4,4] x) => (float[1,4,8,8] y) {
        c = Conv(x, w)
        b = BatchNormalization(c, s, s, s, s)
        u = Upsample<mode="nearest">(b, scales)
        q = Squeeze<axes=[0]>(u)
        p = Unsqueeze<axes=[0]>(q)
        y = Clip<min=0.0, max=0.5>(p)
    }"""
    arrays = {"w": rand(0, 4, 3, 1, 1), "s": rand(1, 4, low=0.5), "scales": np.array([1, 1, 2, 2], np.float32)}
    after = check(CONVERT_OPSET, build(text, opset=9, ir_version=4, **arrays), 6).model
    assert ops(after)["Resize"] == 1
    assert "Constant" not in ops(after)


def test_subgraphs_are_converted_with_their_large_weights() -> None:
    text = """g (float[2,16] x, bool c) => (float[2,1] y) {
        y = If(c) <
            then_branch = t () => (float[2,1] a) <float[16,32] v> { a0 = MatMul(x, v) a = ReduceMax<axes=[1]>(a0) },
            else_branch = e () => (float[2,1] b) { b0 = MatMul(x, w) b = ReduceMax<axes=[1]>(b0) }>
    }"""
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    proto.graph.initializer.append(onnx.numpy_helper.from_array(rand(0, 16, 32), "w"))
    branch = proto.graph.node[0].attribute[0].g
    del branch.value_info[:]
    branch.initializer.append(onnx.numpy_helper.from_array(rand(1, 16, 32), "v"))
    model = from_proto(proto)
    after = check(CONVERT_OPSET, model, 2).model
    then_branch = next(g for g in after.ir.graphs() if g.name == "t")
    assert next(iter(then_branch.initializers)) == "v"
    assert [s.name for s in after.inputs] == ["x", "c"]
    assert np.array_equal(initializer(after, "w"), rand(0, 16, 32))


@pytest.mark.parametrize("opset", [21, 22, 23])
def test_newer_model_is_converted_down(opset: int) -> None:
    text = """g (float[1,3,8,8] x) => (float[1,16] y) {
        c = Conv(x, w) m = GlobalAveragePool(c) f = Flatten(m) y = Reshape(f, shape)
    }"""
    model = build(text, opset=opset, ir_version=10, w=rand(0, 16, 3, 3, 3), shape=ints(1, -1))
    changed = {21: 2, 22: 4, 23: 4}[opset] + 1  # operators with a new definition since 20, and the number
    after = check(CONVERT_OPSET, model, changed).model
    assert after.ir.opset_imports[""] == INTERNAL_OPSET


NEWER = {
    "Swish": ("g (float[2] x) => (float[2] y) { y = Swish(x) }", 24),
    "GroupNormalization": (
        "g (float[2,4,3,3] x) => (float[2,4,3,3] y) { y = GroupNormalization<num_groups=2>(x, s, s) }",
        21,
    ),
}


@pytest.mark.parametrize("op", NEWER)
def test_what_is_newer_is_written_out(op: str) -> None:
    text, opset = NEWER[op]
    arrays = {"s": rand(0, 4)} if "s, s" in text else {}
    model = build(text, opset=opset, ir_version=10, **arrays)
    after = apply(CONVERT_OPSET, model).model
    assert after.ir.opset_imports[""] == INTERNAL_OPSET
    assert op not in ops(after)
    assert_equal(model, after, CONVERT_OPSET.tolerance)


def test_what_has_no_older_spelling_is_left_with_the_reason() -> None:
    text = "g (float[4] x) => (uint16[4] y) { y = QuantizeLinear(x, s, z) }"
    model = build(text, opset=21, ir_version=10, s=np.array(0.1, np.float32), z=np.array(3, np.uint16))
    applied = check(CONVERT_OPSET, model, 0)
    assert f"opset 21 cannot be converted to {INTERNAL_OPSET}" in applied.reason
    assert "takes no tensor(uint16) there (QuantizeLinear:y)" in applied.reason


def test_other_domains_pass_through() -> None:
    text = "g (float[1,4] x) => (float[1,1] y, float[K] z) { y = ReduceMean<axes=[1]>(x) z = acme.Plugin(y) }"
    after = apply(CONVERT_OPSET, build(text, opset=17, ir_version=8)).model
    assert after.ir.opset_imports == {"": INTERNAL_OPSET, "acme": 1}
    assert ops(after)["Plugin"] == 1


def test_local_functions_are_refused_until_inlined() -> None:
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[2,4] x) => (float[2,1] y) { y = local.f(x) }
        <domain: "local", opset_import: ["" : 17]> f (a) => (b) { b = ReduceMean<axes=[1]>(a) }""")
    model = from_proto(proto)
    assert check(CONVERT_OPSET, model, 0).reason == "local functions are left"
    check(CONVERT_OPSET, apply(INLINE_FUNCTIONS, model).model, 1)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(
    ("op", "opset", "scales"),
    [
        ("Upsample", 9, (1, 1, 2, 2)),
        ("Upsample", 9, (1, 1, 1.5, 3)),
        ("Resize", 10, (1, 1, 2, 1.7)),
        ("Resize", 10, (1, 1, 0.5, 0.6)),
    ],
)
def test_old_resizing_samples_where_it_did(op: str, opset: int, scales: tuple[float, ...], mode: str) -> None:
    text = f'g (float[1,3,6,8] x) => (float[1,3,H,W] y) {{ a = Relu(x) u = {op}<mode="{mode}">(a, s) y = Tanh(u) }}'
    model = build(text, opset=opset, ir_version=4, s=np.array(scales, np.float32))
    after = check(CONVERT_OPSET, model, 3).model
    resize = node(after, "Resize")
    assert resize.attributes["coordinate_transformation_mode"].as_string() == "asymmetric"
    assert resize.outputs[0].name == "u"
    assert keys(after) == keys(model)


def test_a_converter_that_forgets_how_to_sample_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted error: without the attributes the oracle of the test above fails."""
    monkeypatch.setattr("edgeopt.passes.convert_opset._carry_over", lambda old, new, attributes: None)
    text = 'g (float[1,3,6,8] x) => (float[1,3,12,16] y) { y = Upsample<mode="linear">(x, s) }'
    model = build(text, opset=9, ir_version=4, s=np.array((1, 1, 2, 2), np.float32))
    after = apply(CONVERT_OPSET, model).model
    with pytest.raises(AssertionError):
        assert_equal(model, after, CONVERT_OPSET.tolerance)


@pytest.mark.parametrize(
    ("op", "opset", "text", "why"),
    [
        ("Resize", 10, 'g (float[1,1,6,8] x) => (float[1,1,H,W] y) { y = Resize<mode="nearest">(x, s) }', "reduces"),
        ("Hardmax", 11, "g (float[2,3,4] x) => (float[2,3,4] y) { y = Hardmax(x) }", "several axes"),
    ],
)
def test_what_cannot_be_said_at_the_internal_opset_keeps_its_own(op: str, opset: int, text: str, why: str) -> None:
    arrays = {"s": np.array((1, 1, 2, 0.5), np.float32)} if op == "Resize" else {}
    applied = check(CONVERT_OPSET, build(text, opset=opset, ir_version=5, **arrays), 0)
    assert f"opset {opset} is kept: " in applied.reason
    assert why in applied.reason


def test_scan_with_a_batch_axis_keeps_its_opset() -> None:
    text = """g (float[1,2] initial, float[1,3,2] x) => (float[1,2] y, float[1,3,2] z) {
        y, z = Scan <num_scan_inputs=1, body=b (float[2] before, float[2] next) => (float[2] after, float[2] kept) {
            after = Add(before, next) kept = Identity(after)
        }> ("", initial, x)
    }"""
    assert "batch axis" in apply(CONVERT_OPSET, build(text, opset=8, ir_version=3)).reason


def test_hardmax_of_the_last_axis_keeps_its_meaning() -> None:
    text = """g (float[2,5] x, float[1,3,4] u) => (float[2,5] y, float[2,3,4] z) {
        y = Hardmax(x) v = Expand(u, s) z = Hardmax<axis=2>(v)
    }"""
    model = build(text, opset=12, ir_version=6, s=ints(2, 3, 4))
    check(CONVERT_OPSET, apply(INFER_SHAPES, model).model, 2)


def test_outputs_without_a_shape_and_a_pad_that_carries_a_value() -> None:
    text = """g (float[1,1,3,4] x) => (float[1,1,5,6] p, float[1,1,M,4] y) {
        p = Pad<mode="reflect", pads=[0,0,1,1,0,0,1,1], value=0.5>(x)
        y = Compress<axis=2>(x, c)
    }"""
    proto = ir.to_proto(build(text, opset=10, ir_version=5, c=np.array([True, False, True])).ir)
    proto.graph.output[1].type.tensor_type.ClearField("shape")
    model = from_proto(proto, valid=False)
    after = apply(CONVERT_OPSET, model).model
    assert after.ir.opset_imports[""] == INTERNAL_OPSET
    inputs = feeds(model, 0)
    for name, expected in run(model, inputs).items():
        assert np.array_equal(run(after, inputs)[name], expected)
