"""The order with the lowest peak: against all orders of small graphs, and on networks that are really run."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeopt.interpreter import Interpreter
from edgeopt.model import Model, Origin
from edgeopt.passes import _order, apply, reorder
from edgeopt.passes._order import Buffer

Edges = list[tuple[int, int]]


def sketch(rng: random.Random, count: int) -> tuple[Edges, list[Buffer]]:
    """A graph whose nodes read one or two of those before them, with sizes from 0 to 20."""
    edges: set[tuple[int, int]] = set()
    readers: dict[int, set[int]] = {index: set() for index in range(-1, count)}
    for node in range(count):
        for maker in rng.sample(range(-1, node), min(node + 1, rng.randint(1, 2))):
            readers[maker].add(node)
            if maker >= 0:
                edges.add((maker, node))
    buffers = []
    for maker, nodes in readers.items():
        held = maker < 0 or (not nodes and rng.random() < 0.7)
        buffers.append(Buffer(rng.randint(0, 20), maker, tuple(sorted(nodes)), held))
    return sorted(edges), buffers


def orders(count: int, edges: Edges, done: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """All orders, one node after the other."""
    if len(done) == count:
        yield done
    for node in set(range(count)) - set(done):
        if all(before in done for before, after in edges if after == node):
            yield from orders(count, edges, (*done, node))


def live(order: Sequence[int], buffers: Sequence[Buffer], time: int) -> int:
    """Bytes alive while the node at ``time`` runs, from the definition."""
    done, now = set(order[:time]), order[time]
    total = 0
    for buffer in buffers:
        exists = buffer.maker < 0 or buffer.maker in done or buffer.maker == now
        needed = buffer.held or buffer.maker == now or any(r not in done for r in buffer.readers)
        total += buffer.size if exists and needed else 0
    return total


@pytest.mark.parametrize("seed", range(120))
def test_no_order_of_a_small_graph_has_a_lower_peak(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(2, 7)
    edges, buffers = sketch(rng, count)
    peaks = {order: max(live(order, buffers, t) for t in range(count)) for order in orders(count, edges)}
    found = _order.best(count, edges, buffers)
    assert found.exact
    assert found.peak == peaks[found.order] == min(peaks.values())


@pytest.mark.parametrize("seed", range(30))
def test_the_bounded_search_gives_an_order_that_is_never_worse(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_order, "MAX_STATES", 2)
    rng = random.Random(seed)
    edges, buffers = sketch(rng, 30)
    found = _order.best(30, edges, buffers)
    place = {node: index for index, node in enumerate(found.order)}
    assert sorted(found.order) == list(range(30))
    assert all(place[before] < place[after] for before, after in edges)
    assert found.peak == _order.peak(found.order, buffers) <= _order.peak(range(30), buffers)


def test_a_large_graph_is_done_in_bounded_tries() -> None:
    edges, buffers = sketch(random.Random(7), 300)
    problem = _order._Problem(300, edges, buffers)
    with pytest.raises(_order._TooManyError):
        _order._exact(problem, _order.peak(range(300), buffers))
    assert problem.tries <= 1.5 * _order.MAX_TRIES
    begun = problem.tries
    _order._beam(problem, _order.peak(range(300), buffers))
    assert problem.tries - begun <= 2 * _order.MAX_TRIES


def branches(*, body: bool = False, shapes: bool = True) -> onnx.ModelProto:
    """A branch whose result stays and one that is wide inside and small at its end; the file has the former first."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.random((4, 256)).astype(np.float32), "w")]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["kept"]),
        helper.make_node("Exp", ["x"], ["wide"]),
        helper.make_node("MatMul", ["wide", "w"], ["wider"]),
        helper.make_node("Sin", ["wider"], ["widest"]),
        helper.make_node("ReduceMax", ["widest"], ["small"], keepdims=0),
        helper.make_node("Sub", ["kept", "small"], ["y"]),
    ]
    if body:
        then = helper.make_graph([helper.make_node("Neg", ["kept"], ["n"])], "t", [], [value("n", 8, 256)])
        other = helper.make_graph([helper.make_node("Abs", ["kept"], ["a"])], "e", [], [value("a", 8, 256)])
        nodes[-1] = helper.make_node("If", ["small_"], ["y"], then_branch=then, else_branch=other)
        nodes.insert(-1, helper.make_node("Cast", ["small"], ["small_"], to=TensorProto.BOOL))
    rows: int | str = 8 if shapes else "rows"
    graph = helper.make_graph(nodes, "g", [value("x", rows, 4)], [value("y", rows, 256)], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(proto)
    return onnx.shape_inference.infer_shapes(proto)


def value(name: str, *dims: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)


def loaded(proto: onnx.ModelProto) -> Model:
    return Model(ir=ir.from_proto(proto), origin=Origin(path=Path("g.onnx"), format="onnx", files=()))


@pytest.mark.parametrize("body", [False, True])
def test_the_wide_branch_runs_first_and_every_bit_stays(body: bool) -> None:
    model = loaded(branches(body=body))
    applied = apply(reorder.REORDER, model)
    assert applied.count > 0
    names = [node.op_type for node in applied.model.graph]
    assert names.index("ReduceMax") < len(names) - 2
    before, after = reorder.peak_bytes(model.graph), reorder.peak_bytes(applied.model.graph)
    assert before is not None
    assert after is not None
    assert after < before
    feeds = {"x": np.random.default_rng(1).random((8, 4)).astype(np.float32)}
    assert np.array_equal(Interpreter(model).run(feeds)["y"], Interpreter(applied.model).run(feeds)["y"])
    assert apply(reorder.REORDER, applied.model).count == 0


def test_sizes_of_named_dims_are_given_and_an_unknown_one_is_refused() -> None:
    proto = branches(shapes=False)
    assert not isinstance(reorder.reorder(ir.from_proto(proto), {"rows": 8}), str)
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "columns"
    assert "is not known" in apply(reorder.REORDER, loaded(proto)).reason
