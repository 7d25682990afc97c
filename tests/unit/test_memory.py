"""Liveness against a brute-force simulation, and hand-computed weights, views, Q/DQ and multiply-accumulates."""

from __future__ import annotations

import math
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import Phase, given, settings

from edgeopt.memory import liveness as memory
from edgeopt.model import Model, Origin, assign_keys


def model_of(text: str) -> Model:
    return wrap(ir.from_onnx_text('<ir_version: 9, opset_import: ["" : 20]>\n' + text))


def wrap(model: ir.Model) -> Model:
    assign_keys(model)
    return Model(ir=model, origin=Origin(path=Path("m.onnx"), format="onnx", files=()))


def add_weight(model: Model, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    value = ir.Value(name=name, const_value=tensor, shape=tensor.shape, type=ir.TensorType(tensor.dtype))
    model.graph.register_initializer(value)
    return value


# --- random graphs: the interval code against a simulation that frees by reference counts -------------------------


@st.composite
def dags(draw: st.DrawFn) -> Model:
    """Graphs of Concat (any number of inputs) and views, with several inputs and outputs, some values unused."""
    sizes = st.integers(1, 9)
    values = [_value(f"i{k}", draw(sizes)) for k in range(draw(st.integers(1, 3)))]
    inputs = list(values)
    nodes = []
    for k in range(draw(st.integers(0, 10))):
        if draw(st.integers(0, 3)) == 0:
            source = draw(st.sampled_from(values))
            out = _value(f"v{k}", source.shape[0])  # type: ignore[index]
            nodes.append(ir.Node("", "Identity", [source], outputs=[out], name=f"n{k}"))
        else:
            reads = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
            out = _value(f"v{k}", draw(sizes))
            nodes.append(ir.Node("", "Concat", reads, outputs=[out], name=f"n{k}"))
        values.append(out)
    outputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3, unique_by=id))
    graph = ir.Graph(inputs, outputs, nodes=nodes, opset_imports={"": 20}, name="g")
    return wrap(ir.Model(graph, ir_version=9))


def _value(name: str, size: int) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape([size]), type=ir.TensorType(ir.DataType.FLOAT))


def simulated(model: Model) -> list[int]:
    """Live bytes during each node, by running the graph: allocate, use, count down, free."""
    home: dict[str, str] = {}
    readers: dict[str, int] = {}
    size: dict[str, int] = {}
    caller = "the caller"

    def allocate(value: ir.Value) -> None:
        name = value.name or ""
        home[name], readers[name], size[name] = name, 0, 4 * int(math.prod(value.shape or ()))  # type: ignore[arg-type]

    for value in model.graph.inputs:
        allocate(value)
    for node in model.graph:
        out = node.outputs[0]
        if node.op_type == "Identity":
            home[out.name or ""] = home[node.inputs[0].name or ""]  # type: ignore[union-attr]
        else:
            allocate(out)
        for value in node.inputs:
            readers[home[value.name or ""]] += 1  # type: ignore[union-attr]
    kept = {home[v.name or ""] for v in model.graph.outputs} | {v.name for v in model.graph.inputs}
    alive = {v.name or "": caller for v in model.graph.inputs}
    steps = []
    for node in model.graph:
        out = node.outputs[0].name or ""
        if home[out] == out:
            alive[out] = node.name or ""
        steps.append(sum(size[name] for name in alive))
        for value in node.inputs:
            readers[home[value.name or ""]] -= 1  # type: ignore[union-attr]
        for name in [n for n in alive if readers[n] == 0 and n not in kept]:
            del alive[name]
    return steps


def assert_agrees(model: Model) -> None:
    expected = simulated(model)
    held = sum(4 * int(v.shape[0]) for v in model.graph.inputs)  # type: ignore[index,arg-type]
    timeline = [m.live_bytes for m in memory.timeline(model)]
    assert timeline == expected, "the timeline differs from the simulation"
    assert memory.footprint(model).peak_activation_bytes == max([held, *expected]), "the peak differs"


@settings(max_examples=200, deadline=None)
@given(dags())
def test_liveness_equals_the_simulation(model: Model) -> None:
    assert_agrees(model)


@pytest.mark.parametrize("fault", ["forgets-views", "drops-last-reader", "frees-outputs"])
def test_the_oracle_catches_a_planted_error(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "forgets-views":
        monkeypatch.setattr(memory.Buffers, "owner", lambda self, value: value)
    elif fault == "drops-last-reader":
        original = memory._reads
        monkeypatch.setattr(memory, "_reads", lambda node: list(original(node))[:-1])
    else:
        original_made = memory.Buffers.made_by
        monkeypatch.setattr(
            memory.Buffers,
            "made_by",
            lambda self, node: (v for v in original_made(self, node) if not v.is_graph_output()),
        )
    quick = settings(max_examples=300, derandomize=True, deadline=None, phases=(Phase.generate,))
    with pytest.raises(AssertionError, match="differs"):
        quick(given(dags())(assert_agrees))()


# --- hand-computed cases -------------------------------------------------------------------------------------------


def test_chain_by_hand() -> None:
    model = model_of("""
        g (float[4] x) => (float[2] y) <float[8] a, float[6] b>
        { a = Concat<axis=0>(x, x)  b = Slice(a, a, a)  y = Slice(b, b, b) }
    """)
    shaped(model, a=8, b=6)
    moments = memory.timeline(model)
    assert [m.live_bytes for m in moments] == [(4 + 8) * 4, (4 + 8 + 6) * 4, (4 + 6 + 2) * 4]
    assert [m.output_bytes for m in moments] == [32, 24, 8]
    assert [m.op for m in moments] == ["Concat", "Slice", "Slice"]
    assert memory.footprint(model).peak_activation_bytes == 72


def shaped(model: Model, **sizes: int | None) -> None:
    for node in model.graph:
        for out in node.outputs:
            if out.name in sizes:
                size = sizes[out.name]
                out.shape = None if size is None else ir.Shape([size])
                out.type = out.type or ir.TensorType(ir.DataType.FLOAT)


def test_relu_is_in_place_only_where_nothing_else_reads_its_input() -> None:
    alone = model_of("g (float[4] x) => (float[4] y) { a = Neg(x)  y = Relu(a) }")
    shaped(alone, a=4)
    assert memory.footprint(alone).peak_activation_bytes == 2 * 16
    shared = model_of("g (float[4] x) => (float[4] y) { a = Neg(x)  b = Relu(a)  y = Add(a, b) }")
    shaped(shared, a=4, b=4)
    assert memory.footprint(shared).peak_activation_bytes == 4 * 16
    of_input = model_of("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    assert memory.footprint(of_input).peak_activation_bytes == 2 * 16


def test_a_model_without_nodes_holds_its_inputs() -> None:
    model = model_of("g (float[4] x) => (float[4] x) {}")
    assert memory.timeline(model) == ()
    assert memory.footprint(model) == memory.Footprint(weight_bytes=0, peak_activation_bytes=16, nodes=0)


def test_shared_and_packed_weights_count_once() -> None:
    model = model_of("g (float[4] x) => (float[4] y) { c = Constant<value = float[3] {1, 2, 3}>()  y = Identity(x) }")
    big = ir.tensor([1.0] * 10, dtype=ir.DataType.FLOAT)
    add_weight(model, "w1", big)
    add_weight(model, "w2", big)
    add_weight(model, "w3", ir.tensor([1] * 5, dtype=ir.DataType.INT8))
    packed = ir.PackedTensor(np.zeros(4, np.uint8), ir.DataType.INT4, shape=ir.Shape([7]))
    add_weight(model, "w4", packed)
    assert memory.footprint(model).weight_bytes == 40 + 5 + 4 + 12


def test_symbolic_batch_counts_as_one_and_is_reported() -> None:
    model = model_of("g (float[N, 4] x) => (float[N, 4] y) { y = Neg(x) }")
    assert memory.footprint(model) == memory.Footprint(
        weight_bytes=0, peak_activation_bytes=32, nodes=1, assumed=("N=1",)
    )


def test_batch_symbol_counts_as_one_on_any_axis() -> None:
    model = model_of("g (float[N, 4] x) => (float[4, N] y) { y = Transpose(x) }")
    assert memory.footprint(model).peak_activation_bytes == 32


@pytest.mark.parametrize("shape", ["float[1, T]", "string[4]"])
def test_unknown_sizes_are_unknown(shape: str) -> None:
    model = model_of(f"g ({shape} x) => ({shape} y) {{ y = Identity(x) }}")
    assert memory.footprint(model).peak_activation_bytes is None
    assert memory.timeline(model)[0].live_bytes is None


def test_unknown_only_while_the_unknown_value_lives() -> None:
    model = model_of("g (float[4] x) => (float[2] y) { a = Neg(x)  b = Shape(a)  y = Slice(b, b, b) }")
    shaped(model, a=None, b=1)
    assert [m.live_bytes for m in memory.timeline(model)] == [None, None, 16 + 4 + 8]
    assert memory.footprint(model).peak_activation_bytes is None


def test_subgraphs_count_on_top_of_their_node() -> None:
    model = model_of("""
        g (bool c, float[4] x) => (float[4] y)
        { a = Neg(x)
          y = If (c) <then_branch = t () => (float[4] u) { p = Neg(a)  u = Neg(p) },
                      else_branch = e () => (float[4] w) { w = Neg(a) }> }
    """)
    for node in model.graph.all_nodes():
        for out in node.outputs:
            out.shape, out.type = ir.Shape([4]), ir.TensorType(ir.DataType.FLOAT)
    for value in model.graph.inputs[:1]:
        value.shape = ir.Shape([])
    neg, branch = memory.timeline(model)
    assert neg.live_bytes == 1 + 16 + 16
    assert branch.live_bytes == 1 + 16 + 16 + 16 + (16 + 16)
    assert memory.footprint(model).nodes == 5


QDQ = """
    g (float[1, 8, 4, 4] x) => (float[1, 8, 4, 4] y)
    <float s = {0.1}, int8 z = {0}>
    {
      xq = QuantizeLinear(x, s, z)   xd = DequantizeLinear(xq, s, z)   wd = DequantizeLinear(wq, s, z)
      c = Conv(xd, wd)   r = Relu(c)   rq = QuantizeLinear(r, s, z)   rd = DequantizeLinear(rq, s, z)
      m = MaxPool<kernel_shape=[1, 1]>(rd)   mq = QuantizeLinear(m, s, z)   y = DequantizeLinear(mq, s, z)
    }
"""


def qdq_model() -> Model:
    model = model_of(QDQ)
    for node in model.graph:
        out = node.outputs[0]
        out.shape = ir.Shape([8, 8, 1, 1] if out.name == "wd" else [1, 8, 4, 4])
        out.type = ir.TensorType(ir.DataType.INT8 if node.op_type == "QuantizeLinear" else ir.DataType.FLOAT)
    weight = add_weight(model, "wq", ir.tensor([[[[1]] * 8]] * 8, dtype=ir.DataType.INT8))
    weight.shape = ir.Shape([8, 8, 1, 1])
    for node in model.graph:
        for index, value in enumerate(node.inputs):
            if value is not None and value.name == "wq":
                node.replace_input_with(index, weight)
    return model


def test_integer_operators_hold_int8_tensors() -> None:
    """n elements: x is 4n and held; the Conv reads n and writes n; y is 4n at the end."""
    n = 8 * 4 * 4
    moments = {m.key.split(":")[-1]: m for m in memory.timeline(qdq_model())}
    by_output = {key: m.live_bytes for key, m in moments.items()}
    assert by_output["xq"] == 4 * n + n
    assert by_output["xd"] == 4 * n + n
    assert by_output["c"] == 4 * n + n + n
    assert by_output["r"] == by_output["rq"] == 4 * n + n
    assert by_output["m"] == 4 * n + n + n
    assert by_output["y"] == 4 * n + n + 4 * n
    assert moments["c"].output_bytes == n
    assert moments["wd"].output_bytes == 0


def test_a_float_consumer_makes_the_dequantized_value_real() -> None:
    model = qdq_model()
    rd = next(v for node in model.graph for v in node.outputs if v.name == "rd")
    extra = ir.Node("", "Neg", [rd], outputs=[ir.Value(name="neg", shape=rd.shape, type=rd.type)], name="neg")
    model.graph.insert_before(list(model.graph)[-1], extra)
    model.graph.outputs.append(extra.outputs[0])
    moment = next(m for m in memory.timeline(model) if m.key.endswith("rd"))
    assert moment.output_bytes == 4 * 8 * 4 * 4


@pytest.mark.parametrize(
    ("node", "out", "expected"),
    [
        ("Conv<group=2>(x, w)", "1, 6, 5, 7", 6 * 5 * 7 * (2 * 3 * 3)),
        ("ConvTranspose<group=2>(x, w)", "1, 8, 9, 9", 4 * 7 * 9 * (2 * 3 * 3)),
    ],
)
def test_macs_of_convolutions(node: str, out: str, expected: int) -> None:
    shape = "6, 2, 3, 3" if node.startswith("Conv<") else "4, 2, 3, 3"
    model = model_of(f"g (float[1, 4, 7, 9] x, float[{shape}] w) => (float[{out}] y) {{ y = {node} }}")
    (count,) = memory.macs(model).values()
    assert count == expected


@pytest.mark.parametrize(
    ("node", "a", "b", "out", "expected"),
    [
        ("Gemm(a, b)", "3, 5", "5, 7", "3, 7", 3 * 5 * 7),
        ("Gemm<transA=1, transB=1>(a, b)", "5, 3", "7, 5", "3, 7", 3 * 5 * 7),
        ("MatMul(a, b)", "2, 3, 5", "2, 5, 7", "2, 3, 7", 2 * 3 * 5 * 7),
        ("MatMul(a, b)", "5", "5", "", 5),
        ("MatMul(a, b)", "N, 5", "5, 7", "N, 7", 5 * 7),
        ("MatMul(a, b)", "1, T", "1, T, 7", "1, 1, 7", None),
    ],
)
def test_macs_of_products(node: str, a: str, b: str, out: str, expected: int | None) -> None:
    model = model_of(f"g (float[{a}] a, float[{b}] b) => (float{f'[{out}]' if out else ''} y) {{ y = {node} }}")
    model.graph.outputs[0].shape = ir.Shape([int(d) if d.isdigit() else d for d in out.split(", ") if d])
    (count,) = memory.macs(model).values()
    assert count == expected


def test_an_integer_gemm_with_float_output_never_dequantizes_its_weights() -> None:
    model = model_of(
        """
        g (float[1,64] x) => (float[1,10] y)
        <float s = {0.1}, int8 z = {0}, int8[1,64] q, float[1,64] a, float[64,10] b> {
            q = QuantizeLinear(x, s, z)
            a = DequantizeLinear(q, s, z)
            b = DequantizeLinear(w, s, z)
            y = Gemm(a, b)
        }"""
    )
    weight = add_weight(model, "w", ir.tensor(np.zeros((64, 10), np.int8), name="w"))
    node = next(n for n in model.graph if n.outputs[0].name == "b")
    node.replace_input_with(0, weight)
    # x stays with its caller, q is 64 bytes, y is 40: no 2,560 bytes of float weights anywhere.
    assert max(m.live_bytes or 0 for m in memory.timeline(model)) == 256 + 64 + 40
