"""The questions that the fusions of chains ask: numbers, polynomials, products, and what may go."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import pytest

from edgeopt.model import Model
from edgeopt.passes._chain import affine_step, finite, fuse, insert, near, number, product, why_not_fuse
from edgeopt.passes._polynomial import is_polynomial, polynomial, sources

from .helpers import inferred, node, ops


def value(model: Model, name: str) -> ir.Value:
    for graph_value in (*model.graph.inputs, *model.graph.initializers.values()):
        if graph_value.name == name:
            return graph_value
    return next(out for n in model.graph for out in n.outputs if out.name == name)


@pytest.mark.parametrize(
    ("array", "found"),
    [
        (np.array(2, np.float32), 2.0),
        (np.full((1,), 2, np.float64), 2.0),
        (np.full((1, 1), 2, np.float16), 2.0),
        (np.full((3, 4), 2, np.int64), 2.0),
        (np.full((1, 4), 2, np.float32), 2.0),
        (np.full((1, 1, 1), 2, np.float32), None),
        (np.full((1, 3), 2, np.float32), None),
        (np.array([1, 2, 2, 2], np.float32), None),
        (np.array([], np.float32), None),
        (np.array([True]), None),
        (np.array(2**60, np.int64), None),
        (np.zeros(1 << 19, np.float32), None),
    ],
)
def test_number(array: np.ndarray, found: float | None) -> None:
    kind = {"float32": "float", "float64": "double", "int64": "int64", "float16": "float16", "bool": "bool"}
    text = f"g ({kind[array.dtype.name]}[3,4] x) => (int64[2] y) {{ y = Shape(x) }}"
    model = inferred(text, k=array)
    assert number(value(model, "k"), value(model, "x")) == found


def test_number_needs_known_dims_and_a_constant() -> None:
    model = inferred("g (float[N,4] x, float k) => (float[N,4] y) { y = Mul(x, k) }", wide=np.ones((2, 1), np.float32))
    assert number(value(model, "wide"), value(model, "x")) is None
    assert number(value(model, "k"), value(model, "x")) is None
    assert number(None, value(model, "x")) is None
    one = np.ones((), np.float32)
    model = inferred("g (float[4] x) => (float[4] y) { y = Mul(x, k) }", k=one)
    assert number(value(model, "k"), None) == 1.0


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("y = Mul(x, k)", (4.0, 0.0)),
        ("y = Mul(k, x)", (4.0, 0.0)),
        ("y = Div(x, k)", (0.25, 0.0)),
        ("y = Add(k, x)", (1.0, 4.0)),
        ("y = Sub(x, k)", (1.0, -4.0)),
        ("y = Sub(k, x)", (-1.0, 4.0)),
        ("y = Neg(x)", (-1.0, 0.0)),
        ("y = Div(k, x)", None),
        ("y = Pow(x, k)", None),
        ("y = Mul(x, x)", None),
        ("y = Div(x, zero)", None),
    ],
)
def test_affine_step(body: str, found: tuple[float, float] | None) -> None:
    text = f"g (float[4] x) => (float[4] y) {{ {body} }}"
    model = inferred(text, k=np.array(4, np.float32), zero=np.array(0, np.float32))
    step = affine_step(next(iter(model.graph)))
    assert (None if step is None else step[1:]) == found


@pytest.mark.parametrize(
    ("body", "degree", "found"),
    [
        ("y = Mul(x, x)", 2, {2: 1.0}),
        ("a = Mul(x, k) b = Add(a, k) y = Mul(a, b)", 2, {2: 16.0, 1: 16.0}),
        ("a = Pow(x, three) b = Div(a, k) y = Sub(b, x)", 3, {3: 0.25, 1: -1.0}),
        ("a = Sub(k, x) b = Neg(a) y = Pow(b, three)", 3, {0: -64.0, 1: 48.0, 2: -12.0, 3: 1.0}),
        ("a = Pow(x, three) y = Mul(a, x)", 3, None),
        ("y = Pow(x, k)", 3, None),
        ("y = Pow(k, x)", 3, None),
        ("y = Div(k, x)", 3, None),
        ("a = Sin(x) y = Add(a, x)", 3, None),
    ],
)
def test_polynomial(body: str, degree: int, found: dict[int, float] | None) -> None:
    text = f"g (float[4] x) => (float[4] y) {{ {body} }}"
    model = inferred(text, k=np.array(4, np.float32), three=np.array(3, np.float32))
    result = polynomial(value(model, "y"), value(model, "x"), degree)
    assert (None if result is None else {n: c for n, c in result[0].items() if c}) == found
    assert result is None or len(result[1]) == len(list(model.graph))


def test_polynomials_are_compared_coefficient_by_coefficient() -> None:
    assert is_polynomial({1: 0.70710678, 0: 0.0}, {1: math.sqrt(0.5)})
    assert not is_polynomial({1: 0.7072}, {1: math.sqrt(0.5)})
    assert not is_polynomial({1: 0.70710678, 0: 1e-9}, {1: math.sqrt(0.5)})
    assert not is_polynomial({}, {1: 1.0})
    assert near(1.41421, math.sqrt(2))
    assert not near(math.nan, 1.0)
    assert not finite(1.0, math.inf)


def test_a_chain_of_squares_stays_cheap() -> None:
    steps = " ".join(f"a{i + 1} = Mul(a{i}, a{i})" for i in range(40))
    model = inferred(f"g (float[4] a0) => (float[4] a40) {{ {steps} }}")
    assert polynomial(value(model, "a40"), value(model, "a0"), 3) is None
    assert len(sources(value(model, "a40"), 5)) == 6


@pytest.mark.parametrize(
    ("body", "scale", "length"),
    [
        ("y = Mul(s, x)", 1.0, 1),
        ("a = Mul(x, k) y = Mul(s, a)", 4.0, 2),
        ("a = Mul(s, k) b = Mul(a, x) y = Div(b, k)", 1.0, 3),
        ("a = Mul(s, x) y = Mul(a, k)", 4.0, 2),
        ("a = Mul(s, x) y = Mul(a, k)", 2.0, None),
        ("a = Mul(s, k) y = Mul(a, k)", 16.0, None),
        ("a = Mul(s, x) y = Mul(a, x)", 4.0, None),
        ("a = Mul(s, x) y = Div(k, a)", 4.0, None),
        ("y = Mul(s, s)", 1.0, None),
    ],
)
def test_product(body: str, scale: float, length: int | None) -> None:
    model = inferred(f"g (float[4] x) => (float[4] y) {{ s = Sin(x) {body} }}", k=np.array(4, np.float32))
    found = product(value(model, "s"), value(model, "x"), scale)
    assert (None if found is None else len(found)) == length


def test_new_nodes_get_free_names_and_a_replacement_keeps_the_key() -> None:
    text = "g (float[4] x) => (float[4] y) { y_neg = Abs(x) y_neg_2 = Relu(y_neg) y = Exp(y_neg_2) }"
    graph = inferred(text).clone().ir
    last = list(graph.graph)[-1]
    made = insert(graph, last, "Neg", [last.inputs[0]], shape=None)
    assert made.name == "y_neg_3"
    assert fuse(graph, [last], "Sinh", [made]) is None
    assert [n.op_type for n in graph.graph] == ["Abs", "Relu", "Neg", "Sinh"]
    assert list(graph.graph)[-1].metadata_props["edgeopt.key"] == "Exp:y"
    assert graph.graph.outputs[0].name == "y"


def test_nodes_of_two_graphs_are_not_fused() -> None:
    text = """g (bool c, float[4] x) => (float[4] y) {
        a = Neg(x)
        y = If(c) <then_branch = t () => (float[4] u) { u = Abs(a) }, else_branch = e () => (float[4] v) { v = Exp(a) }>
    }"""
    model = inferred(text)
    nodes = [node(model, "Neg"), node(model, "Abs")]
    assert why_not_fuse(nodes) == "a part of it is in another graph"
    assert why_not_fuse([node(model, "Abs"), node(model, "Neg")]) == "a part of it is in another graph"
    assert ops(model) == {"Neg": 1, "If": 1, "Abs": 1, "Exp": 1}
