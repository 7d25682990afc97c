from __future__ import annotations

import tracemalloc

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from edgeopt.passes import FUSIONS, NORMALIZE, apply
from edgeopt.passes.fold_constants import FOLD_CONSTANTS, LIMIT, NODE_BYTES, fold_constants

from .helpers import apply_all, assert_equal, build, check, initializer, ints, node, ops, rand


@pytest.mark.parametrize(
    ("body", "arrays"),
    [
        ("a = Transpose<perm=[1,0]>(w) y = MatMul(x, a)", {"w": rand(0, 32, 40)}),
        ("a = Reshape(w, s) y = MatMul(x, a)", {"w": rand(0, 1280), "s": ints(40, -1)}),
        ("a = Cast<to=1>(w) y = MatMul(x, a)", {"w": rand(0, 40, 32, dtype="float16")}),
        ("a = Cast<to=1>(w) b = Transpose(a) y = MatMul(x, b)", {"w": rand(0, 32, 40, dtype="float16")}),
        ("a = Squeeze(w, s) y = MatMul(x, a)", {"w": rand(0, 1, 40, 32), "s": ints(0)}),
        ("a = Mul(w, k) y = MatMul(x, a)", {"w": rand(0, 40, 32), "k": rand(1, 32)}),
    ],
)
def test_weights_behind_layout_nodes(body: str, arrays: dict[str, np.ndarray]) -> None:
    model = build(f"g (float[2,40] x) => (float[2,32] y) {{ {body} }}", **arrays)
    after = check(FOLD_CONSTANTS, model, body.count("=") - body.count("<") - 1).model
    assert ops(after) == {"MatMul": 1}
    assert next(iter(after.graph.initializers)) in ("a", "b")


def test_bfloat16_weights() -> None:
    model = build(
        "g (float[2,40] x) => (float[2,32] y) { a = Cast<to=1>(w) y = MatMul(x, a) }",
        w=rand(0, 40, 32, dtype="float16"),
    )
    half = rand(0, 40, 32).astype(ml_dtypes.bfloat16)
    value = model.graph.initializers["w"]
    value.const_value, value.type = ir.Tensor(half, name="w"), ir.TensorType(ir.DataType.BFLOAT16)
    applied = apply(FOLD_CONSTANTS, model)
    assert applied.count == 1
    assert np.array_equal(initializer(applied.model, "a"), half.astype(np.float32))


GROWING = {
    "Expand": ("a = Expand(one, s) y = Add(x, a)", {"one": np.ones((1, 1), np.float32), "s": ints(2, 4096)}),
    "Tile": ("a = Tile(w, s) y = Add(x, a)", {"w": rand(0, 1, 64), "s": ints(1, 64)}),
    "ConstantOfShape": ("a = ConstantOfShape(s) y = Add(x, a)", {"s": ints(2, 4096)}),
    "Cast": ("a = Cast<to=1>(w) y = Add(x, a)", {"w": rand(0, 2, 4096, dtype="float16")}),
    "Range": (
        "a = Range(z, n, o) b = Cast<to=1>(a) y = Add(x, b)",
        {"z": np.int64(0), "n": np.int64(4096), "o": np.int64(1)},
    ),
}


@pytest.mark.parametrize("op", GROWING)
def test_f04_what_would_grow_stays(op: str) -> None:
    body, arrays = GROWING[op]
    model = build(
        f"g (float[2,4096] x) => (float[2,4096] y) {{ {body} }}", **{n: np.asarray(a) for n, a in arrays.items()}
    )
    applied = check(FOLD_CONSTANTS, model, 0)
    assert applied.reason.startswith("1 candidate refused: the file would grow by ")


def test_f04_refusing_allocates_nothing() -> None:
    """A shape of a million times a million is refused from its numbers."""
    model = build("g (float[1] x) => (float[A,B] y) { a = ConstantOfShape(s) y = Add(x, a) }", s=ints(10**6, 10**6))
    apply(FOLD_CONSTANTS, model)
    tracemalloc.start()
    assert "the file would grow by" in apply(FOLD_CONSTANTS, model).reason
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e6


def test_f04_small_results_fold() -> None:
    text = "g (float[3] x) => (float[3] y) { a = Range(z, n, o) b = Cast<to=1>(a) y = Add(x, b) }"
    model = build(text, z=np.asarray(np.int64(0)), n=np.asarray(np.int64(3)), o=np.asarray(np.int64(1)))
    assert initializer(check(FOLD_CONSTANTS, model, 2).model, "b").tolist() == [0, 1, 2]


def test_the_limit_is_where_it_says() -> None:
    text = "g (float[1,{n}] x) => (float[2,{n}] y) {{ a = Expand(w, s) y = Add(x, a) }}"
    gone = 4 + 16  # w and s
    for limit in (0, 200, LIMIT):
        largest = (max(limit, NODE_BYTES) + gone) // 8
        for n, count in ((largest, 1), (largest + 1, 0)):
            applied = check(fold_constants(limit), build(text.format(n=n), w=rand(0, 1, 1), s=ints(2, n)), count)
            assert count or f"over the limit of {limit} for one constant" in applied.reason


def test_many_small_constants_do_not_add_up() -> None:
    body = " ".join(f"e{i} = Expand(w{i}, s) x{i + 1} = Add(x{i}, e{i})" for i in range(8))
    text = f"g (float[2,100] x0) => (float[2,100] x8) {{ {body} }}"
    weights = {f"w{i}": rand(i, 1, 1) for i in range(8)}
    applied = check(FOLD_CONSTANTS, build(text, s=ints(2, 100), **weights), 1)
    assert "folded constants have used up their share of the file" in applied.reason
    check(fold_constants(1 << 20), build(text, s=ints(2, 100), **weights), 8)


def test_f04_a_size_that_is_out_of_reach_is_never_computed() -> None:
    """2^40 elements: told from the inputs, in no time and no memory."""
    huge = ints(1 << 20, 1 << 20)
    text = """g (float[1,1] x) => (float[M,N] a, float[M,N] b, float[M,N] c) {
        e = Expand(w, s) a = MatMul(e, e) t = Tile(w, s) b = MatMul(t, t) k = ConstantOfShape(s) c = MatMul(k, k)
    }"""
    model = build(text, w=rand(0, 1, 1), s=huge)
    tracemalloc.start()
    after = apply_all(NORMALIZE, model)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert {"Expand", "Tile", "ConstantOfShape"} <= set(ops(after))
    assert peak < 8 << 20


def test_f04_memory_while_folding_is_bounded_by_the_largest_constant() -> None:
    """Sixteen weights of 1 MiB, each transposed: one result at a time is held beside what it replaces."""
    body = " ".join(f"t{i} = Transpose<perm=[1,0]>(w{i}) x{i + 1} = MatMul(x{i}, t{i})" for i in range(16))
    text = f"g (float[1,512] x0) => (float[1,512] x16) {{ {body} }}"
    model = build(text, **{f"w{i}": rand(i, 512, 512) for i in range(16)})
    tracemalloc.start()
    applied = apply(FOLD_CONSTANTS, model)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert applied.count == 16
    assert peak - held < 4 << 20


@pytest.mark.parametrize("n", [8, 64])
def test_in12_weight_used_in_both_forms_is_not_transposed(n: int) -> None:
    text = f"g (int64[2] i) => (float[2,{n}] y) {{ e = Gather(w, i) t = Transpose<perm=[1,0]>(w) y = MatMul(e, t) }}"
    applied = check(FOLD_CONSTANTS, build(text, w=rand(0, n, n)), 0)
    assert "the weight has another reader" in applied.reason


def test_shared_half_precision_weight_is_not_doubled() -> None:
    text = "g (int64[2] i) => (float[2,64] y) { h = Gather(w, i) e = Cast<to=1>(h) t = Cast<to=1>(w) y = MatMul(e, t) }"
    assert "the file would grow" in check(FOLD_CONSTANTS, build(text, w=rand(0, 64, 64, dtype="float16")), 0).reason


def test_result_that_is_a_graph_output_stays() -> None:
    text = "g (float[2] x) => (float[2] y, float[2] k) { k = Neg(w) y = Add(x, k) }"
    assert "its result is a graph output" in check(FOLD_CONSTANTS, build(text, w=rand(0, 2)), 0).reason


def test_overridable_initializer_is_no_constant() -> None:
    text = "g (float[2] x, float[2] w) => (float[2] y) { k = Neg(w) y = Add(x, k) }"
    assert check(FOLD_CONSTANTS, build(text, w=rand(0, 2)), 0).reason == "nothing to rewrite"


def test_strings_and_random_are_not_folded() -> None:
    text = "g (float[2] x) => (float[2] y) { r = RandomNormal<shape=[2]>() z = Mul(r, w) y = Add(x, z) }"
    check(FOLD_CONSTANTS, build(text, w=np.zeros(2, np.float32)), 0)


def test_shape_of_known_dims() -> None:
    text = """g (float[2,3,4,5] x) => (float[A,B] y) {
        s = Shape(x) b = Gather(s, zero) u = Unsqueeze(b, zero0) t = Concat<axis=0>(u, minus) y = Reshape(x, t)
    }"""
    model = build(text, zero=np.asarray(np.int64(0)), zero0=ints(0), minus=ints(-1))
    after = check(FOLD_CONSTANTS, model, 4).model
    assert ops(after) == {"Reshape": 1}
    assert initializer(after, "t").tolist() == [2, -1]


def test_open_batch_stays_open() -> None:
    text = """g (float[N,3,4] x) => (float[N,M] y) {
        s = Shape(x) n = Gather(s, zero) c = Gather(s, one) w = Gather(s, two) p = Mul(c, w)
        n1 = Unsqueeze(n, axis) p1 = Unsqueeze(p, axis) t = Concat<axis=0>(n1, p1) y = Reshape(x, t)
    }"""
    scalars = {n: np.asarray(np.int64(i)) for i, n in enumerate(("zero", "one", "two"))}
    after = check(FOLD_CONSTANTS, build(text, axis=ints(0), **scalars), 4, N=5).model
    assert ops(after) == {"Shape": 1, "Gather": 1, "Unsqueeze": 1, "Concat": 1, "Reshape": 1}
    assert initializer(after, "p1").tolist() == [12]


@pytest.mark.parametrize(
    ("attributes", "count"), [("<start=1>", 1), ("<start=1, end=2>", 1), ("<start=-1>", 1), ("<end=1>", 0)]
)
def test_part_of_a_shape(attributes: str, count: int) -> None:
    text = f"g (float[N,3,4] x) => (int64[A] y) {{ s = Shape{attributes}(x) y = Add(s, zero) }}"
    check(FOLD_CONSTANTS, build(text, zero=ints(0)), count)


def test_size_of_known_dims() -> None:
    check(FOLD_CONSTANTS, build("g (float[2,3] x) => (int64 y) { s = Size(x) y = Abs(s) }"), 1)


def test_shapes_found_by_folding_feed_the_next_round() -> None:
    """The second Shape is known only once the target of the Reshape is."""
    text = """g (float[4,6] x) => (int64[A] y) {
        s = Shape(x) h = Sub(s, less) i = Abs(h) j = Neg(i) k = Abs(j)
        r = Reshape(x, k) q = Shape(r) y = Add(q, zero)
    }"""
    after = check(FOLD_CONSTANTS, build(text, less=ints(2, -6), zero=ints(0)), 6).model
    assert initializer(after, "q").tolist() == [2, 12]


def test_folding_inside_branches() -> None:
    text = """g (float[2] x, bool c) => (float[2] y) {
        y = If(c) <then_branch = t () => (float[2] a) { k = Neg(w) a = Add(x, k) },
                   else_branch = e () => (float[2] b) { b = Mul(x, w) }>
    }"""
    after = check(FOLD_CONSTANTS, build(text, w=rand(0, 2)), 1).model
    assert ops(after) == {"If": 1, "Add": 1, "Mul": 1}


CHAIN = """g (float[1,3,8,8] x) => (float[1,4,A,B] y) {
    n = Constant<value_ints = [4]>()
    zeros = ConstantOfShape<value = int64[1] {0}>(n)
    some = Constant<value_ints = [0, 1, 0, 1]>()
    all = Concat<axis=0>(some, zeros)
    two = Constant<value_ints = [-1, 2]>()
    pairs = Reshape(all, two)
    a = Constant<value_ints = [0]>()
    m = Constant<value_ints = [-1]>()
    last = Constant<value_ints = [-9223372036854775807]>()
    back = Slice(pairs, m, last, a, m)
    turned = Transpose<perm=[1,0]>(back)
    flat = Reshape(turned, m)
    pads = Cast<to=7>(flat)
    fill = Constant<value_float = 0.0>()
    p = Pad<mode="constant">(x, pads, fill)
    y = Conv<strides=[2,2]>(p, w)
}"""


def test_dynamic_pad_chain_becomes_conv_pads() -> None:
    """The chain that TorchScript exporters write for F.pad."""
    model = build(CHAIN, opset=17, ir_version=8, w=rand(0, 4, 3, 3, 3))
    after = apply_all(NORMALIZE + FUSIONS, model)
    assert_equal(model, after, 1e-5)
    assert ops(after) == {"Conv": 1}
    assert list(node(after, "Conv").attributes["pads"].as_ints()) == [0, 0, 1, 1]
    assert set(after.graph.initializers) == {"w"}


def test_dynamic_pad_chain_with_a_shape_in_it() -> None:
    text = CHAIN.replace("n = Constant<value_ints = [4]>()", "r = Shape(x) r2 = Shape(r) n = Mul(r2, one)")
    model = build(text, opset=17, ir_version=8, w=rand(0, 4, 3, 3, 3), one=ints(1))
    after = apply_all(NORMALIZE + FUSIONS, model)
    assert_equal(model, after, 1e-5)
    assert ops(after) == {"Conv": 1}


def test_the_growth_is_told_in_whole_bytes() -> None:
    model = build("g (float[1] x) => (float[16,64] y) { e = Expand(c, s) y = Add(e, x) }", c=rand(0, 1), s=ints(16, 64))
    assert "the file would grow by 4076 bytes" in check(FOLD_CONSTANTS, model, 0).reason
