"""One table for an embedding and an output layer: stored once in int8, dequantized row by row, or left as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeopt import quantize
from edgeopt.backends import onnxruntime as backend
from edgeopt.interpreter import Interpreter
from edgeopt.model import Model, Origin, assign_keys
from edgeopt.quantize.tied import untie
from edgeopt.target import Int8Scheme

ROWS, WIDTH = 48, 16
IDS = np.random.default_rng(3).integers(0, ROWS, (8, 1, 5))
rng = np.random.default_rng(5)
TABLE = (rng.normal(size=(ROWS, WIDTH)) * rng.uniform(0.05, 2, (ROWS, 1))).astype(np.float32)
UP = rng.normal(size=(WIDTH, ROWS)).astype(np.float32) / 4


def net(layer: str, *, more: list[onnx.NodeProto] | None = None, outputs: tuple[str, ...] = ("y",)) -> Model:
    """ids -> Gather(table) -> a layer with the same table -> y."""
    node = helper.make_node
    layers = {
        "transposed": [
            node("Transpose", ["table"], ["turned"], name="tie", perm=[1, 0]),
            node("MatMul", ["e", "turned"], ["y"], name="head"),
        ],
        "gemm": [
            node("Reshape", ["e", "flat"], ["f"], name="flatten"),
            node("Gemm", ["f", "table"], ["y"], name="head", transB=1),
        ],
        "columns": [
            node("Reshape", ["e", "flat"], ["f"], name="flatten"),
            node("MatMul", ["f", "up"], ["wide"], name="up"),
            node("Gemm", ["wide", "table"], ["y"], name="head"),
        ],
    }
    nodes = [node("Gather", ["table", "ids"], ["e"], name="embed"), *layers[layer], *(more or [])]
    arrays = {"table": TABLE, "flat": np.array([-1, WIDTH], np.int64), **({"up": UP} if layer == "columns" else {})}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["N", "S"])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9))
    assign_keys(model)
    return Model(ir=model, origin=Origin(path=Path("m.onnx"), format="onnx", files=()))


def quantized(
    model: Model, *, per_channel: bool = True, exclude: frozenset[str] = frozenset()
) -> quantize.QuantizedModel:
    scheme = Int8Scheme(activation="uint8", per_channel=per_channel)
    found = quantize.calibrate(model, backend.TABLE, scheme, ({"ids": i} for i in IDS), exclude=exclude)
    assert found is not None
    return quantize.quantize(found, quantize.Choice())


def tables(model: Model) -> list[tuple[str, tuple[int, ...]]]:
    found = [v.const_value for v in model.graph.initializers.values() if v.const_value is not None]
    return sorted((t.dtype.name, tuple(t.shape.numpy())) for t in found if t.size >= ROWS * WIDTH)


@pytest.mark.parametrize("layer", ["transposed", "gemm", "columns"])
@pytest.mark.parametrize("per_channel", [True, False])
def test_the_table_is_stored_once_in_rows(layer: str, per_channel: bool) -> None:
    model = net(layer)
    made = quantized(model, per_channel=per_channel)
    assert tables(made.model).count(("INT8", (ROWS, WIDTH))) == 1
    assert not [t for t in tables(made.model) if t[0] == "FLOAT" and (layer == "columns") <= (t[1] == (ROWS, WIDTH))]
    assert made.notes["embed"] == "reads the int8 table of the layer that it shares it with"
    assert "embed" in [n.name for n in made.model.graph]
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(ir.to_proto(made.model.ir)))
    for ids in IDS[:2]:
        expected, found = Interpreter(model).run({"ids": ids})["y"], Interpreter(made.model).run({"ids": ids})["y"]
        assert expected.shape == found.shape
        limit = 0.02 if per_channel and layer != "columns" else 0.06
        assert np.sqrt(np.mean((expected - found) ** 2) / np.mean(expected**2)) < limit


def test_a_gathered_row_has_the_error_of_its_own_scale() -> None:
    """Rows differ 40-fold: with one scale for all of them the small ones would be lost."""
    model = net("transposed", outputs=("y", "e"))
    made = quantized(model)
    ids = np.arange(ROWS).reshape(1, ROWS)
    rows = Interpreter(made.model).run({"ids": ids})["e"][0]
    steps = np.abs(TABLE).max(axis=1) / 127
    assert (np.abs(rows - TABLE).max(axis=1) <= 0.51 * steps + 1e-6).all()


def test_negative_ids_count_from_the_end() -> None:
    model = net("transposed", outputs=("y", "e"))
    made = quantized(model)
    last = Interpreter(made.model).run({"ids": np.array([[-1]])})["e"][0, 0]
    np.testing.assert_allclose(last, TABLE[-1], atol=np.abs(TABLE[-1]).max() / 250)


def test_an_excluded_layer_gets_its_transpose_back() -> None:
    other = [
        helper.make_node("MatMul", ["y", "table"], ["back"], name="back"),
    ]
    model = net("transposed", more=other, outputs=("back",))
    made = quantized(model, exclude=frozenset({"head"}))
    ops = [n.op_type for n in made.model.graph]
    assert ops.count("Transpose") == 1
    assert ("FLOAT", (WIDTH, ROWS)) not in tables(made.model)
    assert ("FLOAT", (ROWS, WIDTH)) in tables(made.model)
    assert "embed" not in made.notes, "a table that is there in float anyway is read as it is"
    ids = IDS[0]
    expected, found = Interpreter(model).run({"ids": ids})["back"], Interpreter(made.model).run({"ids": ids})["back"]
    assert np.sqrt(np.mean((expected - found) ** 2) / np.mean(expected**2)) < 0.03


def test_a_table_that_something_else_reads_in_float_stays_as_it_was() -> None:
    other = [helper.make_node("ReduceSum", ["table"], ["total"], name="total", keepdims=0)]
    made = quantized(net("gemm", more=other, outputs=("y", "total")))
    assert ("FLOAT", (ROWS, WIDTH)) in tables(made.model)
    assert "embed" not in made.notes
    (gather,) = [n for n in made.model.graph if n.op_type == "Gather"]
    assert gather.inputs[0] is made.model.graph.initializers["table"]


def test_untie_leaves_other_graphs_alone() -> None:
    model = net("gemm")
    assert untie(model) is model
    turned = net("transposed")
    changed = untie(turned)
    assert "tie" in [n.name for n in turned.graph], "the model passed in was edited"
    assert "tie" not in [n.name for n in changed.graph]


def test_a_wrong_row_would_be_caught() -> None:
    made = quantized(net("transposed", outputs=("y", "e")))
    (name,) = [
        n for n, v in made.model.graph.initializers.items() if v.dtype == ir.DataType.INT8 and v.const_value.size > 64
    ]
    tensor = made.model.graph.initializers[name].const_value
    assert tensor is not None
    made.model.graph.initializers[name].const_value = ir.tensor(np.roll(tensor.numpy(), 1, axis=0), name=name)
    rows = Interpreter(made.model).run({"ids": np.arange(ROWS).reshape(1, ROWS)})["e"][0]
    assert np.abs(rows - TABLE).max() > 0.1
