"""Second moments: the columns give the operator's own output, the sums are exact, in any order, batch and pass."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from edgeopt.errors import CalibrationError
from edgeopt.interpreter import Interpreter
from edgeopt.model import Model, Origin, assign_keys
from edgeopt.quantize import columns, moments
from edgeopt.quantize.columns import Columns, columns_of, visited
from edgeopt.quantize.moments import Moments, Sums, collect_moments, held

from . import nets

RNG = np.random.default_rng(0)


def single(op: str, weight: np.ndarray, shape: tuple[int, ...], **attributes: Any) -> Model:
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w"], ["y"], name="n", **attributes)],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    assign_keys(model)
    return Model(ir=model, origin=Origin(path=Path("net.onnx"), format="onnx", files=()))


def rows_of(op: str, weight: np.ndarray, groups: int, turned: bool) -> np.ndarray:
    """[G, O / G, K], as the moments order the weights."""
    if op == "Conv":
        return weight.reshape(groups, len(weight) // groups, -1)
    if op == "ConvTranspose":
        split = weight.reshape(groups, len(weight) // groups, weight.shape[1], -1)
        return split.swapaxes(1, 2).reshape(groups, weight.shape[1], -1)
    return (weight if turned else weight.T)[None]


@pytest.mark.parametrize(
    ("op", "weight", "shape", "attributes"),
    [
        ("Conv", (6, 4, 3, 3), (2, 4, 5, 5), {"pads": [1, 0, 2, 1]}),
        ("Conv", (6, 2, 3, 3), (2, 4, 9, 9), {"pads": [1] * 4, "group": 2, "strides": [2, 2]}),
        ("Conv", (4, 1, 3, 5), (2, 4, 9, 9), {"pads": [1, 2, 1, 2], "group": 4}),
        ("Conv", (6, 4, 3, 2), (2, 4, 9, 9), {"dilations": [2, 3], "auto_pad": "VALID"}),
        ("Conv", (6, 4, 3, 3), (1, 4, 9, 8), {"strides": [2, 3], "auto_pad": "SAME_UPPER"}),
        ("Conv", (6, 4, 3, 4), (1, 4, 9, 8), {"strides": [2, 3], "auto_pad": "SAME_LOWER"}),
        ("Conv", (6, 4, 1, 1), (2, 4, 9, 9), {}),
        ("Conv", (6, 4, 3), (2, 4, 9), {"pads": [1, 2]}),
        ("Conv", (6, 4, 2, 2, 2), (2, 4, 3, 3, 3), {}),
        (
            "ConvTranspose",
            (4, 3, 3, 3),
            (2, 4, 3, 3),
            {"strides": [2, 2], "output_padding": [1, 1], "pads": [1, 1, 0, 2], "group": 2},
        ),
        ("ConvTranspose", (4, 3, 3, 2), (1, 4, 3, 3), {"strides": [2, 3], "dilations": [2, 1], "pads": [3, 0, 1, 1]}),
        ("MatMul", (5, 7), (2, 3, 5), {}),
        ("MatMul", (5, 7), (9, 5), {}),
        ("MatMul", (5, 7), (2, 2, 3, 5), {}),
        ("Gemm", (5, 7), (9, 5), {}),
        ("Gemm", (7, 5), (9, 5), {"transB": 1}),
        ("Gemm", (5, 7), (5, 9), {"transA": 1}),
    ],
)
def test_columns_give_the_output_of_the_runtime(
    op: str, weight: tuple[int, ...], shape: tuple[int, ...], attributes: dict[str, Any], monkeypatch: Any
) -> None:
    monkeypatch.setattr(columns, "POSITIONS", (10**6, 10**6))
    w, x = (RNG.standard_normal(s).astype(np.float32) for s in (weight, shape))
    model = single(op, w, shape, **attributes)
    how = columns_of(next(iter(model.graph)))
    assert how is not None
    rows = rows_of(op, w, how.groups, bool(attributes.get("transB")))
    assert rows.shape[2] == how.size
    found = [np.einsum("gok,gpk->gop", rows, block) for block in visited(how, x)]
    expected = Interpreter(model).run({"x": x})["y"]
    if op in ("Conv", "ConvTranspose"):
        np.testing.assert_allclose(np.stack(found).reshape(expected.shape), expected, atol=2e-5)
    else:
        got = np.concatenate([f[0].T for f in found]).reshape(expected.shape)
        np.testing.assert_allclose(got, expected, atol=2e-5)


def test_what_cannot_be_read_has_no_columns() -> None:
    for op, shape, attributes in (
        ("ConvTranspose", (4, 3, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ("ConvTranspose", (4, 3, 3, 3), {"output_shape": [6, 6], "strides": [2, 2]}),
        ("MatMul", (2, 4, 5), {}),
    ):
        data = (2, 4, 4) if op == "MatMul" else (1, 4, 3, 3)
        node = next(iter(single(op, RNG.standard_normal(shape).astype(np.float32), data, **attributes).graph))
        assert columns_of(node) is None
    relu = nets.make([helper.make_node("Relu", ["x"], ["y"])], [("x", [1, 4])], [("y", [1, 4])], {})
    assert columns_of(next(iter(relu.graph))) is None


@pytest.mark.parametrize("size", [40, 56, 96, 112])
def test_positions_of_a_large_map_are_a_few_in_every_row_and_column(size: int) -> None:
    how = Columns("x", "Conv", 1, 2, (1, 1), (1, 1), (1, 1), (0, 0, 0, 0))
    where = np.stack(np.meshgrid(np.arange(size), np.arange(size), indexing="ij")).astype(np.float32)
    (block,) = visited(how, where[None])
    assert columns.POSITIONS[0] // 2 <= block.shape[1] <= columns.POSITIONS[1]
    for axis in (0, 1):
        assert len(np.unique(block[0, :, axis])) >= 0.7 * block.shape[1] or len(np.unique(block[0, :, axis])) >= 20


HOWS = [
    Columns("x", "MatMul", 1, 6),
    Columns("x", "Gemm transposed", 1, 6),
    Columns("x", "Conv", 1, 18, (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    Columns("x", "Conv", 2, 9, (3, 3), (2, 1), (1, 1), "SAME_UPPER"),
]


def summed(how: Columns, batches: list[np.ndarray], peak: float | None = None) -> Moments:
    sums = Sums(how, peak)
    for batch in batches:
        sums.add(batch.T if how.kind == "Gemm transposed" else batch)
    return sums.moments()


def same(one: Moments, other: Moments) -> None:
    """Bit for bit."""
    np.testing.assert_array_equal(one.packed, other.packed)
    np.testing.assert_array_equal(one.first, other.first)
    assert one.count == other.count


@st.composite
def cases(draw: st.DrawFn) -> tuple[Columns, np.ndarray, list[int], list[int]]:
    how = draw(st.sampled_from(HOWS))
    if how.kind == "Conv":
        shape: tuple[int, ...] = (2, draw(st.sampled_from([4, 7, 40])), 5)
    else:
        shape = (6,) if how.kind == "Gemm transposed" else draw(st.sampled_from([(6,), (4, 6), (3, 70, 6)]))
    count = draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([0, 1, 15]))
    scale = np.float32(10.0) ** rng.integers(-spread, spread + 1, (count, *(1,) * len(shape))).astype(np.float32)
    values = rng.standard_normal((count, *shape)).astype(np.float32) * scale
    cuts = sorted(draw(st.sets(st.integers(1, count), max_size=count)) | {0, count})
    return how, values, list(draw(st.permutations(range(count)))), cuts


@settings(max_examples=80, deadline=None)
@given(cases())
def test_q09_moments_are_bit_equal_in_any_order_and_batch(case: tuple) -> None:
    how, values, order, cuts = case
    one = summed(how, [values[i : i + 1] for i in range(len(values))])
    shuffled = values[order]
    same(one, summed(how, [values]))
    same(one, summed(how, [shuffled[a:b] for a, b in itertools.pairwise(cuts)]))
    peak = float(np.abs(values).max())
    same(summed(how, [values], peak), summed(how, [shuffled[a:b] for a, b in itertools.pairwise(cuts)], peak))


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("known", [True, False])
def test_moments_against_float64(how: Columns, known: bool) -> None:
    shape = (40, 2, 5, 6) if how.kind == "Conv" else (40, 6) if how.kind == "Gemm transposed" else (40, 3, 6)
    values = RNG.standard_normal(shape).astype(np.float32) * RNG.uniform(0.3, 3, (40, *(1,) * (len(shape) - 1)))
    values = values.astype(np.float32)
    found = summed(how, [values], float(np.abs(values).max()) if known else None)
    given_values = values.T if how.kind == "Gemm transposed" else values
    x = np.concatenate(list(visited(how, given_values)), axis=1).astype(np.float64)
    assert found.count == x.shape[1]
    np.testing.assert_allclose(found.first, x.sum(axis=1), atol=1e-4 * np.abs(x).sum(axis=1).max())
    exact = x.swapaxes(1, 2) @ x
    np.testing.assert_allclose(found.second, exact, atol=3e-5 * np.abs(exact).max())
    np.testing.assert_array_equal(found.second, found.second.swapaxes(1, 2))
    np.testing.assert_array_equal(found.squares, np.diagonal(found.second, axis1=1, axis2=2))
    same(Moments.of(found.second, found.first, found.count), found)
    assert (found.groups, found.size) == (how.groups, how.size)


def test_a_planted_error_of_one_integer_is_caught() -> None:
    values = RNG.standard_normal((4, 3, 6)).astype(np.float32)
    sums = Sums(HOWS[0])
    sums.add(values)
    next(iter(sums._rungs.values())).flush()
    next(iter(sums._rungs.values())).second[0, 2, 1] += 2**20
    with pytest.raises(AssertionError):
        same(sums.moments(), summed(HOWS[0], [values]))


def two_paths() -> Model:
    """A shared input, a depthwise Conv, a grouped one, a Gemm."""
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], name="a", kernel_shape=[1, 1]),
        helper.make_node("Conv", ["x", "w1"], ["b"], name="b", kernel_shape=[3, 3], pads=[1] * 4),
        helper.make_node("Conv", ["x", "w2"], ["c"], name="c", kernel_shape=[1, 1]),
        helper.make_node("Relu", ["b"], ["r"], name="relu"),
        helper.make_node("Conv", ["r", "w3"], ["d"], name="d", kernel_shape=[3, 3], pads=[1] * 4, group=8),
        helper.make_node("Add", ["a", "c"], ["e"], name="e"),
        helper.make_node("Add", ["d", "e"], ["f"], name="f"),
        helper.make_node("GlobalAveragePool", ["f"], ["g"], name="g"),
        helper.make_node("Flatten", ["g"], ["h"], name="h"),
        helper.make_node("Gemm", ["h", "w4"], ["y"], name="fc"),
    ]
    arrays = {
        "w0": nets.normal(0, 8, 3, 1, 1),
        "w1": nets.normal(1, 8, 3, 3, 3),
        "w2": nets.normal(2, 8, 3, 1, 1),
        "w3": nets.normal(3, 8, 1, 3, 3),
        "w4": nets.normal(4, 8, 5, fan=8),
    }
    return nets.make(nodes, [("x", ["N", 3, 12, 12])], [("y", ["N", 5])], arrays)


FEEDS = [{"x": RNG.standard_normal((n, 3, 12, 12)).astype(np.float32)} for n in (2, 1, 3, 2)]


def test_moments_of_a_model_in_one_pass_and_in_many() -> None:
    model = two_paths()
    whole = collect_moments(model, list(model.graph), FEEDS)
    assert set(whole) == {"a", "b", "c", "d", "fc"}
    assert whole["a"] is whole["c"]
    assert whole["d"].second.shape == (8, 9, 9)
    x = np.concatenate([f["x"] for f in FEEDS])
    passes = []

    def again() -> list[dict[str, np.ndarray]]:
        passes.append(None)
        return FEEDS

    sizes = {key: held(columns_of(n), False) for n in model.graph if (key := str(n.name)) in whole}  # type: ignore[arg-type]
    split = collect_moments(model, list(model.graph), again, budget=max(sizes.values()) + 60_000)
    assert len(passes) > 2
    assert set(split) == set(whole)
    for key, found in whole.items():
        same(found, split[key])
    assert whole["a"].count == split["a"].count <= len(x) * 144
    small = collect_moments(model, list(model.graph), again, budget=sizes["fc"])
    assert set(small) == {k for k, size in sizes.items() if size <= sizes["fc"]}


def test_what_is_wrong_with_the_samples_is_said() -> None:
    model = two_paths()
    with pytest.raises(CalibrationError, match="empty"):
        collect_moments(model, list(model.graph), [])
    bad = [FEEDS[1], {"x": np.full((1, 3, 12, 12), np.inf, np.float32)}]
    with pytest.raises(CalibrationError, match="sample 1: tensor x"):
        collect_moments(model, list(model.graph), bad)


def test_more_positions_than_add_up_exactly_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "MOST", 100)
    with pytest.raises(CalibrationError, match="tensor x has had more than 100 positions"):
        collect_moments(two_paths(), list(two_paths().graph), FEEDS)
