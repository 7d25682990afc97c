"""The small normalizing passes, one section each."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

from edgeopt.passes import ABSORBED, apply
from edgeopt.passes.drop_initializer_inputs import DROP_INITIALIZER_INPUTS
from edgeopt.passes.infer_shapes import INFER_SHAPES
from edgeopt.passes.inline_functions import INLINE_FUNCTIONS
from edgeopt.passes.lift_constants import LIFT_CONSTANTS
from edgeopt.passes.merge_equal_nodes import MERGE_EQUAL_NODES
from edgeopt.passes.remove_identity import REMOVE_IDENTITY
from edgeopt.passes.remove_unused import REMOVE_UNUSED
from edgeopt.passes.share_initializers import SHARE_INITIALIZERS

from .helpers import build, check, from_proto, initializer, ints, node, ops, rand, run

# --- inline-functions ---


def with_functions(body: str, *functions: str, opset: int = 20):
    head = '<ir_version: 9, opset_import: ["" : 20, "local" : 1]>'
    tail = "".join(f'<domain: "local", opset_import: ["" : {opset}, "local" : 1]> {f}' for f in functions)
    return from_proto(parser.parse_model(f"{head} {body} {tail}"))


def test_nested_functions_are_inlined_with_keys_of_the_call() -> None:
    model = with_functions(
        "g (float[2] x) => (float[2] y) { a = local.twice(x) y = local.twice(a) }",
        "twice (a) => (b) { c = local.f(a) b = local.f(c) }",
        "f (a) => (b) { n = Neg(a) b = Relu(n) }",
    )
    after = check(INLINE_FUNCTIONS, model, 2).model
    assert ops(after) == {"Neg": 4, "Relu": 4}
    assert not after.ir.functions
    keys = [n.metadata_props["edgeopt.key"] for n in after.nodes()]
    assert keys[:4] == ["twice:a/Neg", "twice:a/Relu", "twice:a/Neg#2", "twice:a/Relu#2"]


def test_function_that_returns_its_input_does_not_rename_the_graph_input() -> None:
    model = with_functions(
        "g (float[2] x) => (float[2] y, float[2] z) { y, z = local.f(x) }", "f (a) => (a, b) { b = Neg(a) }"
    )
    after = apply(INLINE_FUNCTIONS, model).model
    assert [s.name for s in after.inputs] == ["x"]
    x = rand(0, 2)  # onnxruntime does not load such a function at all, so there is nothing to compare with
    result = run(after, {"x": x})
    assert np.array_equal(result["y"], x)
    assert np.array_equal(result["z"], -x)


def test_function_of_another_opset_is_refused() -> None:
    model = with_functions("g (float[2] x) => (float[2] y) { y = local.f(x) }", "f (a) => (b) { b = Neg(a) }", opset=17)
    applied = check(INLINE_FUNCTIONS, model, 0)
    assert "functions cannot be inlined: Opset mismatch" in applied.reason


def test_functions_calling_each_other_in_a_circle_are_refused() -> None:
    proto = parser.parse_model("""<ir_version: 9, opset_import: ["" : 20, "local" : 1]>
        g (float[2] x) => (float[2] y) { y = local.f(x) }
        <domain: "local", opset_import: ["" : 20, "local" : 1]> f (a) => (b) { b = local.f(a) }""")
    model = from_proto(proto, valid=False)
    assert "Cyclic" in apply(INLINE_FUNCTIONS, model).reason


# --- drop-initializer-inputs ---


def test_only_inputs_with_an_initializer_go() -> None:
    text = "g (float[1,4] x, float[4,2] w, float[1] unused) => (float[1,2] y) { y = MatMul(x, w) }"
    model = build(text, ir_version=3, opset=9, w=rand(0, 4, 2))
    after = check(DROP_INITIALIZER_INPUTS, model, 1).model
    assert [s.name for s in after.inputs] == ["x", "unused"]
    assert after.ir.ir_version == 4


# --- lift-constants ---


def test_every_form_is_lifted_and_a_graph_output_stays() -> None:
    text = """g (float[2] x) => (float[2] y, int64 k) {
        a = Constant<value = float[2] {1.0, 2.0}>()  b = Constant<value_float = 3.0>()
        c = Constant<value_floats = [1.0, 2.0]>()    k = Constant<value_int = 7>()
        s = Constant<value_ints = [2]>()
        d = Add(x, a) e = Mul(d, b) f = Add(e, c) y = Reshape(f, s)
    }"""
    after = check(LIFT_CONSTANTS, build(text), 4).model
    assert ops(after)["Constant"] == 1
    assert initializer(after, "c").tolist() == [1.0, 2.0]


def test_sparse_constant_is_refused() -> None:
    model = build("g (float[2] x) => (float[2] y) { a = Constant<value = float[2] {1.0, 2.0}>() y = Add(x, a) }")
    constant = node(model, "Constant")
    constant.attributes["sparse_value"] = constant.attributes.pop("value")
    assert apply(LIFT_CONSTANTS, model).reason == "Constant Constant:a is sparse"


# --- infer-shapes ---


def test_shapes_follow_the_inputs_and_contradict_stale_records() -> None:
    text = """g (float[N,3,8,8] x) => (float[N,4,A,B] y) <float[1,4,8,8] c> {
        c = Conv<pads=[1,1,1,1]>(x, w) r = Relu(c) y = Conv<strides=[2,2]>(r, v)
    }"""
    proto = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> {text}')
    proto.graph.initializer.extend(
        [onnx.numpy_helper.from_array(rand(0, 4, 3, 3, 3), "w"), onnx.numpy_helper.from_array(rand(0, 4, 4, 3, 3), "v")]
    )
    after = check(INFER_SHAPES, from_proto(proto), 3).model
    shapes = {out.name: str(out.shape) for n in after.nodes() for out in n.outputs}
    assert shapes == {"c": "[N,4,8,8]", "r": "[N,4,8,8]", "y": "[N,4,3,3]"}
    assert str(after.inputs[0]) == "x: float32[N, 3, 8, 8]"


def test_only_a_custom_operator_keeps_its_recorded_shape() -> None:
    text = """g (float[2] x, float[N] t) => (float[K] y) <float[2,3] c, float[6] d> {
        c = acme.Plugin(x) b = Relu(c) f = Cast<to=7>(t) d = Reshape(b, f) y = Relu(d)
    }"""
    after = apply(INFER_SHAPES, build(text)).model
    shapes = {out.name: out.shape and str(out.shape) for n in after.nodes() for out in n.outputs}
    assert (shapes["c"], shapes["b"]) == ("[2,3]", "[2,3]")
    assert shapes["d"] != "[6]"


def test_symbolic_output_that_the_graph_fixes_becomes_a_number() -> None:
    text = "g (float[N,4] x) => (float[N,K] y, float[M,P] z) { y = Reshape(x, s) z = Relu(x) }"
    after = check(INFER_SHAPES, build(text, s=ints(1, -1)), 2, N=2).model
    assert [str(s) for s in after.outputs] == ["y: float32[1, K]", "z: float32[M, 4]"]


def test_failing_inference_drops_recorded_shapes_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise onnx.shape_inference.InferenceError("no way")

    model = build("g (float[2] x) => (float[2] y) <float[2] a> { a = Relu(x) y = Neg(a) }")
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", fail)
    applied = apply(INFER_SHAPES, model)
    assert applied.reason == "1 candidate refused: shape inference failed: no way (model)"
    assert node(applied.model, "Relu").outputs[0].shape is None


def test_inference_reads_no_large_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("g (float[2,64] x) => (float[2,M] y) { a = MatMul(x, w) y = Relu(a) }", w=rand(0, 64, 64))
    tensor = model.graph.initializers["w"].const_value

    def no(*args: object) -> None:
        raise AssertionError("a weight was read")

    for name in ("numpy", "tobytes", "__array__"):
        monkeypatch.setattr(type(tensor), name, no)
    after = apply(INFER_SHAPES, model).model
    assert str(node(after, "MatMul").outputs[0].shape) == "[2,64]"


# --- remove-identity ---


@pytest.mark.parametrize(
    ("body", "count", "left"),
    [
        ("a = Identity(x) b = Relu(a) c = Identity(b) y = Neg(c)", 2, {"Relu": 1, "Neg": 1}),
        ("a = Relu(x) y = Identity(a)", 1, {"Relu": 1}),
        ("a = Relu(x) b = Neg(a) c = Identity(a) y = Add(b, c)", 1, {"Relu": 1, "Neg": 1, "Add": 1}),
        ("y = Identity(x)", 0, {"Identity": 1}),
        ("y = Identity(w)", 0, {"Identity": 1}),
        ("a, m = Dropout(x, ratio) y = Relu(a)", 1, {"Relu": 1}),
        ("a = Dropout(x, ratio, no) y = Relu(a)", 1, {"Relu": 1}),
        ("a = Dropout(x, ratio, yes) y = Relu(a)", 0, {"Dropout": 1, "Relu": 1}),
        ("a, m = Dropout(x) f = Cast<to=1>(m) y = Add(a, f)", 0, {"Dropout": 1, "Cast": 1, "Add": 1}),
    ],
)
def test_identity_and_dropout(body: str, count: int, left: dict[str, int]) -> None:
    arrays = {"w": rand(0, 2), "ratio": np.float32(0.0), "no": np.array(False), "yes": np.array(True)}
    model = build(
        f"g (float[2] x) => (float[2] y) {{ {body} }}", **{n: np.asarray(a) for n, a in arrays.items() if n in body}
    )
    applied = check(REMOVE_IDENTITY, model, count)
    assert ops(applied.model) == left
    assert (applied.reason == "") == (count > 0)


def test_two_outputs_of_one_value_keep_their_names() -> None:
    text = "g (float[2] x) => (float[2] a, float[2] y, float[2] z) { a = Relu(x) y = Identity(a) z = Identity(a) }"
    applied = check(REMOVE_IDENTITY, build(text), 0)
    assert applied.reason.startswith("2 candidates refused: it makes a second graph output of one value (")


def test_branch_output_that_is_an_outer_value_keeps_its_identity() -> None:
    text = """g (float[2] x, bool c) => (float[2] y) {
        h = Relu(x)
        y = If(c) <then_branch = t () => (float[2] a) { a = Identity(h) },
                   else_branch = e () => (float[2] b) { n = Neg(h) b = Identity(n) }>
    }"""
    assert ops(check(REMOVE_IDENTITY, build(text), 1).model)["Identity"] == 1


# --- share-initializers ---


def test_equal_tensors_are_stored_once() -> None:
    text = """g (float[2] x) => (float[2] y, float[2] d) {
        p = Add(x, a) q = Add(p, b) r = Add(q, c) y = Add(r, d0) d = Identity(e)
    }"""
    same = rand(0, 2)
    model = build(text, a=same, b=same, c=-same, d0=same, e=same)
    after = check(SHARE_INITIALIZERS, model, 3).model
    assert set(after.graph.initializers) == {"a", "c"}


def test_type_shape_and_sign_of_zero_matter() -> None:
    text = "g (float[1,2] x) => (float[1,2] y) { p = Add(x, a) q = Add(p, b) y = Add(q, c) }"
    zero = np.zeros(2, np.float32)
    check(SHARE_INITIALIZERS, build(text, a=zero, b=-zero, c=zero.reshape(1, 2)), 0)


def test_branches_share_with_the_outer_graph() -> None:
    text = """g (float[2] x, bool c) => (float[2] y) {
        h = Add(x, w)
        y = If(c) <then_branch = t () => (float[2] a) <float[2] u = {1.0, 2.0}> { a = Add(h, u) },
                   else_branch = e () => (float[2] b) <float[2] v = {1.0, 2.0}> { b = Mul(h, v) }>
    }"""
    after = check(SHARE_INITIALIZERS, build(text, w=np.array([1, 2], np.float32)), 2).model
    assert [list(g.initializers) for g in after.ir.graphs()] == [["w"], [], []]


# --- merge-equal-nodes ---


def test_equal_nodes_become_one_and_the_key_is_recorded() -> None:
    text = "g (float[1,2,4,4] x) => (float[1,2,4,4] y) { a = Relu(x) b = Relu(x) c = Neg(a) d = Neg(b) y = Add(c, d) }"
    after = check(MERGE_EQUAL_NODES, build(text), 2).model
    assert ops(after) == {"Relu": 1, "Neg": 1, "Add": 1}
    assert node(after, "Relu").metadata_props[ABSORBED] == "Relu:b"


@pytest.mark.parametrize(
    "body",
    [
        "a = LeakyRelu<alpha=0.1>(x) b = LeakyRelu<alpha=0.2>(x) y = Add(a, b) z = Relu(y)",
        "y = Relu(x) z = Relu(x)",
        "a = RandomNormalLike(x) b = RandomNormalLike(x) c = Sub(a, b) d = Mul(c, zero) y = Add(d, x) z = Relu(y)",
    ],
)
def test_what_is_not_equal_stays(body: str) -> None:
    arrays = {"zero": np.zeros(2, np.float32)} if "zero" in body else {}
    check(MERGE_EQUAL_NODES, build(f"g (float[2] x) => (float[2] y, float[2] z) {{ {body} }}", **arrays), 0)


def test_custom_operators_are_never_merged() -> None:
    text = "g (float[2] x) => (float[2] y) { a = acme.Noise(x) b = acme.Noise(x) y = Add(a, b) }"
    assert apply(MERGE_EQUAL_NODES, build(text)).count == 0


# --- remove-unused ---


def test_dead_code_goes_and_the_interface_stays() -> None:
    text = "g (float[2] x, float[1] unused) => (float[2] y) { d = Neg(x) e = Add(d, w) y = Relu(x) }"
    after = check(REMOVE_UNUSED, build(text, w=rand(0, 2), v=rand(1, 2)), 4).model
    assert ops(after) == {"Relu": 1}
    assert not after.graph.initializers
    assert [s.name for s in after.inputs] == ["x", "unused"]


def test_weights_read_only_inside_a_branch_stay() -> None:
    text = """g (float[2,2] x, bool c) => (float[2,2] y) {
        y = If(c) <then_branch = t () => (float[2,2] a) { a = MatMul(x, w) },
                   else_branch = e () => (float[2,2] b) { dead = Neg(x) b = Add(x, w) }>
    }"""
    after = check(REMOVE_UNUSED, build(text, w=rand(0, 2, 2), dead_weight=ints(1)), 2).model
    assert list(after.graph.initializers) == ["w"]
