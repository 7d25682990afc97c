"""Shape arithmetic of dynamic exports, and the terms that stand for dims."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from edgeopt.model import Model
from edgeopt.passes import apply
from edgeopt.passes._symbols import Symbols, Term, product, quotient
from edgeopt.passes.infer_shapes import INFER_SHAPES
from edgeopt.passes.resolve_shapes import RESOLVE_SHAPES

from .helpers import assert_equal, build, check, initializer, ints, node, ops, rand

NUMBERS = {
    "i0": np.array(0, np.int64),
    "i1": np.array(1, np.int64),
    "v0": ints(0),
    "v1": ints(1),
    "v2": ints(2),
    "v4": ints(4),
    "v8": ints(8),
    "minus": ints(-1),
    "far": ints(2**63 - 1),
    "four": np.array(4, np.int64),
    "ones": ints(1, 1),
    "negative": ints(-1, -1),
}


def shaped(text: str, **arrays: np.ndarray) -> Model:
    words = set(text.replace("(", " ").replace(")", " ").replace(",", " ").split())
    used = {n: a for n, a in NUMBERS.items() if n in words}
    return apply(INFER_SHAPES, build(text, **used, **arrays)).model


def test_terms() -> None:
    b, s = Term(1, ("b",)), Term(1, ("s",))
    assert product(b, 4, s, 3) == Term(12, ("b", "s"))
    assert product(2, 3) == 6
    assert product(b, 0) == 0
    assert quotient(product(b, 12), product(b, 4)) == 3
    assert quotient(product(b, s), s) == b
    assert quotient(product(b, 3), 2) is None
    assert quotient(b, s) is None
    assert quotient(5, 0) is None


@pytest.mark.parametrize(
    ("target", "constant"),
    [
        ("h = Shape(x) b = Gather(h, v0) t = Concat<axis=0>(b, v4, minus)", [0, 4, -1]),
        ("h = Shape(x) b = Gather(h, i0) u = Unsqueeze(b, v0) t = Concat<axis=0>(u, minus, v2)", [0, -1, 2]),
        ("b = Shape<start=0,end=1>(x) s = Shape<start=1,end=2>(x) t = Concat<axis=0>(b, s, v2, v4)", [0, 0, 2, 4]),
        ("h = Shape(x) b = Slice(h, v0, v1) s = Gather(h, v1) n = Mul(b, s) t = Concat<axis=0>(n, v8)", [-1, 8]),
        ("h = Shape(x) c = Cast<to=6>(h) d = Cast<to=7>(c) s = Slice(d, v0, v2) t = Concat<axis=0>(s, v8)", [0, 0, 8]),
        ("h = Shape(x) r = ReduceProd<keepdims=1>(h) t = Concat<axis=0>(r, v1)", [-1, 1]),
    ],
)
def test_targets(target: str, constant: list[int]) -> None:
    rank = ",".join("PQRT"[: len(constant)])
    model = shaped(f"g (float[B,S,8] x) => (float[{rank}] y) {{ {target} y = Reshape(x, t) }}")
    after = check(RESOLVE_SHAPES, model, 1, B=3, S=5).model
    assert ops(after) == {"Reshape": 1}
    assert initializer(after, next(iter(after.graph.initializers))).tolist() == constant


def test_a_target_that_cannot_be_written() -> None:
    text = """g (float[B,S,8] x) => (float[P,Q,R] y) {
        b = Shape<start=0,end=1>(x) s = Shape<start=1,end=2>(x) t = Concat<axis=0>(s, b, v8) y = Reshape(x, t) }"""
    applied = check(RESOLVE_SHAPES, shaped(text), 0)
    assert "do not follow from the input" in applied.reason


def test_a_name_that_one_input_has_twice_says_nothing() -> None:
    """H and W are both called n: the copy of one is not the other."""
    text = """g (float[n,n,2] x, float[n,7] z) => (float[P,Q,R] y) {
        w = Shape<start=0,end=1>(z) t = Concat<axis=0>(w, minus, v2) y = Reshape(x, t) }"""
    after = check(RESOLVE_SHAPES, shaped(text), 0)
    assert after.count == 0


def test_a_shared_name_is_one_dim() -> None:
    text = """g (float[batch,6] x, float[batch,S] z) => (float[P,Q,R] y) {
        b = Shape<start=0,end=1>(z) t = Concat<axis=0>(b, v2, minus) y = Reshape(x, t) }"""
    after = check(RESOLVE_SHAPES, shaped(text), 1, batch=3).model
    assert initializer(after, "y.shape").tolist() == [0, 2, 3]


@pytest.mark.parametrize("repeat", ["e = Expand(k, t)", "e = Tile(k, t)", "e = ConstantOfShape(t)"])
def test_repeating_before_an_elementwise_operator(repeat: str) -> None:
    text = f"g (float[B,6] x) => (float[B,6] y) {{ t = Shape(x) {repeat} y = Add(x, e) }}"
    weights = {} if "Constant" in repeat else {"k": rand(0, 1, 1)}
    assert ops(check(RESOLVE_SHAPES, shaped(text, **weights), 1, B=3).model) == {"Add": 1}


def test_repeating_that_is_needed_stays() -> None:
    text = "g (float[B,6] x, float[1,6] z) => (float[B,6] y) { t = Shape(x) e = Expand(k, t) y = Add(z, e) }"
    assert ops(check(RESOLVE_SHAPES, shaped(text, k=rand(0, 1, 1)), 0, B=3).model)["Expand"] == 1


def test_an_expand_to_its_own_shape() -> None:
    text = """g (float[B,6] x) => (float[B,6] y) {
        h = Shape(x) q = Equal(h, negative) t = Where(q, ones, h) r = Relu(x) e = Expand(r, t) y = Neg(e) }"""
    assert ops(check(RESOLVE_SHAPES, shaped(text), 1, B=3).model) == {"Relu": 1, "Neg": 1}


def test_a_slice_up_to_its_own_end() -> None:
    text = "g (float[B,S] x) => (float[B,S] y) { n = Shape<start=1,end=2>(x) a = Slice(x, v0, n, v1) y = Neg(a) }"
    assert ops(check(RESOLVE_SHAPES, shaped(text), 1, B=3, S=5).model) == {"Neg": 1}
    shorter = text.replace("end=2>(x)", "end=2>(z)").replace("x)", "x, float[B,T] z)", 1)
    check(RESOLVE_SHAPES, shaped(shorter.replace("=> (float[B,S]", "=> (float[B,U]")), 0, B=3, S=5, T=4)


def test_numbers_become_constants() -> None:
    text = """g (float[B,S,8] x) => (float[B,S,8] y) {
        h = Shape(x) n = Gather(h, v2) f = Cast<to=1>(n) r = Sqrt(f) y = Div(x, r) }"""
    after = check(RESOLVE_SHAPES, shaped(text), 1, B=3, S=5).model
    assert ops(after) == {"Cast": 1, "Sqrt": 1, "Div": 1}
    assert initializer(after, "n").tolist() == [8]


def test_graph_outputs_and_second_readers_survive() -> None:
    text = """g (float[B,S,8] x) => (float[P,Q,R] y, int64[3] t) {
        b = Shape<start=0,end=1>(x) t = Concat<axis=0>(b, v4, minus) y = Reshape(x, t) }"""
    after = check(RESOLVE_SHAPES, shaped(text), 1, B=3, S=5).model
    assert ops(after) == {"Shape": 1, "Concat": 1, "Reshape": 1}


def test_dims_inside_a_loop_do_not_leak() -> None:
    text = """g (float[B,4] x) => (float[B,4] y) {
        h = Shape(x) y = Identity(x) }"""
    model = shaped(text)
    known = Symbols(model.ir)
    assert known.dims(model.graph.inputs[0]) == (Term(1, ("input B",)), 4)
    assert known.numbers(node(model, "Shape").outputs[0]) == ((Term(1, ("input B",)), 4), False)


def test_the_first_rows_of_a_table() -> None:
    text = """g (float[B,S] x, float[B,T] z) => (float[C,U] y) {{
        n = Shape<start=1,end=2>({of}) a = Slice(table, v0, n, v1) b = Slice(table, {start}, n, v1)
        y = Add({plus}, a) }}"""
    plain = {"of": "x", "plus": "x", "start": "v0"}
    seen = {}
    for case in ({}, {"of": "z"}, {"plus": "b"}, {"plus": "z"}, {"start": "v1", "plus": "b"}):
        model = shaped(text.format(**{**plain, **case}), table=rand(0, 1, 9))
        known = Symbols(model.ir)
        values = (*model.graph.inputs, *(n.outputs[0] for n in model.graph))
        seen[str(case)] = {v.name: known.dims(v) for v in values}
    width = {case: [dims[name][-1] for name in ("x", "a", "y")] for case, dims in seen.items()}
    for case, (whole, rows, result) in width.items():
        assert rows != whole, case
        assert (result == whole) == (case == "{}"), case
    assert width["{'plus': 'b'}"][1] == width["{'plus': 'b'}"][2]
    assert width["{'start': 'v1', 'plus': 'b'}"][1] != width["{'start': 'v1', 'plus': 'b'}"][2]


def test_a_planted_error_is_caught() -> None:
    model = shaped(
        """g (float[B,6] x) => (float[P,Q,R] y) {
            b = Shape<start=0,end=1>(x) t = Concat<axis=0>(b, v2, minus) y = Reshape(x, t) }"""
    )
    after = apply(RESOLVE_SHAPES, model).model
    target = node(after, "Reshape").inputs[1]
    assert target is not None
    target.const_value = ir.tensor(ints(-1, 3, 2))
    with pytest.raises((AssertionError, onnx.shape_inference.InferenceError)):
        assert_equal(model, after, 1e-6, B=4)


def test_a_comparison_with_infinity_is_no_shape_arithmetic() -> None:
    """Attention masks are spelled so; infinity has no integer."""
    text = "g (float[2,3] x) => (float[2,3] y) { hidden = Equal(x, low) y = Where(hidden, zero, x) }"
    low, zero = np.array([-np.inf], np.float32), np.zeros(1, np.float32)
    check(RESOLVE_SHAPES, shaped(text, low=low, zero=zero), 0)
