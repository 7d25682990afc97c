"""Operators on integers spelled out as Q/DQ: same numbers, counts, and a refusal for each condition."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeopt.model import Model
from edgeopt.passes import apply
from edgeopt.passes.qoperator_to_qdq import QOPERATOR_TO_QDQ

from .helpers import from_proto, initializer, ops, run

SCALE, ZERO = np.float32(0.05), np.uint8(120)
rng = np.random.default_rng(7)


def model(
    nodes: list[onnx.NodeProto],
    shape: list[int | str],
    arrays: dict[str, np.ndarray],
    *,
    float_output: bool = False,
    result: int = TensorProto.UINT8,
) -> Model:
    """x (float) -> Q -> nodes (xq -> yq) -> DQ -> y; scales ``s``, zero points ``z``."""
    entry = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"], name="enter")
    leave = [] if float_output else [helper.make_node("DequantizeLinear", ["yq", "s", "z"], ["y"], name="leave")]
    constants = {"s": SCALE, "z": ZERO, **arrays}
    graph = helper.make_graph(
        [entry, *nodes, *leave],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return from_proto(helper.make_model(graph, opset_imports=imports, ir_version=9), valid=False)


def ms(op: str, inputs: list[str], output: str = "yq", **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output], name="it", domain="com.microsoft", **attributes)


def weight(*shape: int) -> np.ndarray:
    return rng.integers(-127, 128, shape).astype(np.int8)


def scales(count: int) -> np.ndarray:
    return rng.uniform(0.002, 0.01, count).astype(np.float32)


def conv(scale: np.ndarray, *, bias: bool = True) -> Model:
    arrays = {"w": weight(6, 4, 3, 3), "ws": scale, "wz": np.zeros(scale.shape, np.int8), "ys": np.float32(0.1)}
    arrays["b"] = rng.integers(-500, 500, 6).astype(np.int32)
    names = ["xq", "s", "z", "w", "ws", "wz", "ys", "z", *(["b"] if bias else [])]
    node = helper.make_node("QLinearConv", names, ["cq"], name="it", pads=[1, 1, 1, 1], strides=[2, 2])
    exit_ = helper.make_node("DequantizeLinear", ["cq", "ys", "z"], ["y"], name="leave")
    return model([node, exit_], [2, 4, 7, 7], arrays, float_output=True)


CASES = {
    "conv": lambda: conv(scales(6)),
    "conv per tensor": lambda: conv(np.float32(0.004), bias=False),
    "conv scale of one element": lambda: conv(scales(1)),
    "matmul": lambda: model(
        [helper.make_node("QLinearMatMul", ["xq", "s", "z", "w", "ws", "wz", "s", "z"], ["yq"], name="it")],
        [24, 8],
        {"w": weight(8, 5), "ws": np.float32(0.0097), "wz": np.int8(0)},
    ),
    "matmul per column": lambda: model(
        [helper.make_node("QLinearMatMul", ["xq", "s", "z", "w", "ws", "wz", "s", "z"], ["yq"], name="it")],
        [24, 8],
        {"w": weight(8, 5), "ws": scales(5), "wz": np.zeros(5, np.int8)},
    ),
    "gemm": lambda: model(
        [ms("QGemm", ["xq", "s", "z", "w", "ws", "wz", "b", "s", "z"], transB=1, alpha=0.5)],
        [24, 8],
        {
            "w": weight(5, 8),
            "ws": scales(5),
            "wz": np.zeros(5, np.int8),
            "b": rng.integers(-500, 500, 5).astype(np.int32),
        },
    ),
    "gemm with a float result": lambda: model(
        [ms("QGemm", ["xq", "s", "z", "w", "ws", "wz"], "y")],
        [24, 8],
        {"w": weight(8, 5), "ws": np.float32(0.01), "wz": np.int8(0)},
        float_output=True,
    ),
    "add": lambda: model(
        [ms("QLinearAdd", ["xq", "s", "z", "xq", "s", "z", "t", "z"])], [2, 8], {"t": np.float32(0.1)}
    ),
    "mul": lambda: model([ms("QLinearMul", ["xq", "s", "z", "k", "s", "z", "s", "z"])], [2, 8], {"k": np.uint8(140)}),
    "sigmoid": lambda: model(
        [ms("QLinearSigmoid", ["xq", "s", "z", "t", "n"])], [2, 8], {"t": np.float32(1 / 256), "n": np.uint8(0)}
    ),
    "leaky relu": lambda: model([ms("QLinearLeakyRelu", ["xq", "s", "z", "s", "z"], alpha=0.2)], [2, 8], {}),
    "softmax": lambda: model(
        [ms("QLinearSoftmax", ["xq", "s", "z", "t", "n"], axis=1, opset=13)],
        [2, 8, 3],
        {"t": np.float32(1 / 256), "n": np.uint8(0)},
    ),
    "average pool": lambda: model(
        [ms("QLinearAveragePool", ["xq", "s", "z", "s", "z"], kernel_shape=[3, 3], strides=[2, 1], pads=[2, 0, 2, 0])],
        [1, 3, 5, 6],  # windows of 3 and of 9 elements: a mean of so many integers is never a tie
        {},
    ),
    "average pool with its padding": lambda: model(
        [
            ms(
                "QLinearAveragePool",
                ["xq", "s", "z", "s", "z"],
                kernel_shape=[3, 3],
                pads=[1, 1, 1, 1],
                count_include_pad=1,
            )
        ],
        [1, 3, 6, 6],
        {},
    ),
    "global pool": lambda: model([ms("QLinearGlobalAveragePool", ["xq", "s", "z", "s", "z"])], [1, 3, 6, 6], {}),
    "concat": lambda: model(
        [ms("QLinearConcat", ["s", "z", "xq", "s", "z", "xq", "t", "z"], axis=1)], [2, 8], {"t": np.float32(0.03)}
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_computes_the_same_within_one_step(name: str) -> None:
    before = CASES[name]()
    applied = apply(QOPERATOR_TO_QDQ, before)
    assert applied.count == 1, applied.reason
    after = applied.model
    assert not [n for n in after.nodes() if n.domain or n.op_type.startswith("QLinear")]
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(ir.to_proto(after.ir)), full_check=True)
    assert "it" in [n.metadata_props["edgeopt.key"] for n in after.nodes()]
    for seed in range(2):
        x = np.random.default_rng(seed).normal(size=[2 if isinstance(d, str) else d for d in before.inputs[0].shape])
        feeds = {"x": (x * 2).astype(np.float32)}
        expected, found = run(before, feeds)["y"], run(after, feeds)["y"]
        assert expected.shape == found.shape
        assert len(np.unique(expected)) >= 3
        step = float(initializer(before, "ys" if "ys" in before.graph.initializers else "s"))
        if "float" in name:
            step = 1e-5 * np.abs(expected).max()
        assert np.abs(expected - found).max() <= 1.01 * step
        assert np.mean(np.abs(expected - found) > step / 2) < 0.02  # ties


def test_a_wrong_scale_would_be_caught() -> None:
    before = conv(scales(6))
    after = apply(QOPERATOR_TO_QDQ, before).model
    tensor = after.graph.initializers["ws"].const_value
    assert tensor is not None
    after.graph.initializers["ws"].const_value = ir.tensor(tensor.numpy()[::-1].copy(), name="ws")
    x = {"x": np.random.default_rng(0).normal(size=(2, 4, 7, 7)).astype(np.float32)}
    assert np.abs(run(before, x)["y"] - run(after, x)["y"]).max() > 0.15


@pytest.mark.parametrize(
    ("nodes", "arrays", "why"),
    [
        (
            [ms("QLinearGlobalAveragePool", ["xq", "s", "z", "s", "z"], channels_last=1)],
            {},
            "its channels stand last",
        ),
        (
            [ms("QLinearSoftmax", ["xq", "s", "z", "s", "z"], axis=1, opset=11)],
            {},
            "it flattens its input, as before opset 13",
        ),
        (
            [
                helper.make_node("DynamicQuantizeLinear", ["x"], ["dq", "ds", "dz"], name="dynamic"),
                ms("QLinearSigmoid", ["dq", "ds", "dz", "s", "z"]),
            ],
            {},
            "a scale is not constant",
        ),
        (
            [helper.make_node("QLinearMatMul", ["xq", "v", "vz", "w", "s", "n", "s", "z"], ["yq"], name="it")],
            {"v": scales(3), "vz": np.zeros(3, np.uint8), "w": weight(6, 4), "n": np.int8(0)},
            "an activation has a vector of scales",
        ),
    ],
)
def test_what_has_no_such_form_is_refused(nodes: list[onnx.NodeProto], arrays: dict[str, np.ndarray], why: str) -> None:
    before = model(nodes, [1, 3, 6, 6], arrays)
    applied = apply(QOPERATOR_TO_QDQ, before)
    assert applied.count == 0
    assert applied.model is before
    assert why in applied.reason


def test_other_integer_operators_are_listed() -> None:
    node = helper.make_node("MatMulInteger", ["xq", "w", "z", "n"], ["i"], name="product")
    cast = helper.make_node("Cast", ["i"], ["y"], to=TensorProto.FLOAT)
    before = model([node, cast], [2, 6], {"w": weight(6, 4), "n": np.int8(0)}, float_output=True)
    applied = apply(QOPERATOR_TO_QDQ, before)
    assert applied.reason == "1 candidate refused: MatMulInteger has no Q/DQ form (product)"
    assert ops(applied.model)["MatMulInteger"] == 1
