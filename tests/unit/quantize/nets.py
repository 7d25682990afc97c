"""Small networks with a known trap each, and a float reference."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from edgeopt.model import Model, Origin, assign_keys


def wrap(proto: onnx.ModelProto) -> Model:
    onnx.checker.check_model(proto, full_check=True)
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    assign_keys(model)
    return Model(ir=model, origin=Origin(path=Path("net.onnx"), format="onnx", files=()))


def make(nodes, inputs, outputs, arrays, opset: int = 17) -> Model:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    return wrap(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8))


def normal(seed: int, *shape: int, fan: int | None = None) -> np.ndarray:
    fan = fan or int(np.prod(shape[1:])) or 1
    return (np.random.default_rng(seed).standard_normal(shape) / np.sqrt(fan)).astype(np.float32)


def tiny_weights() -> Model:
    """Q02: a bias far larger than input scale times weight scale times 2**31; zero and denormal channels."""
    weights = np.random.default_rng(11).uniform(-1, 1, (4, 3, 3, 3)).astype(np.float32)
    weights[0] *= np.float32(1.5e-9)
    weights[2] = 0
    weights[3] *= np.float32(1e-39)
    bias = np.float32([6.25, 0.125, -3.0, 0.5])
    conv = helper.make_node("Conv", ["x", "w", "b"], ["y"], name="conv", kernel_shape=[3, 3], pads=[1] * 4)
    return make([conv], [("x", ["N", 3, 8, 8])], [("y", ["N", 4, 8, 8])], {"w": weights, "b": bias})


def head() -> Model:
    """Q05: boxes of 0..640 and class scores of 0..1 in one Concat."""
    rng = np.random.default_rng(31)
    arrays = {
        "wf": (rng.normal(size=(8, 3, 3, 3)) * 0.3).astype(np.float32),
        "wb": rng.uniform(0.1, 0.6, (4, 8, 1, 1)).astype(np.float32),
        "wc": (rng.normal(size=(3, 8, 1, 1)) * 1.5).astype(np.float32),
        "size": np.array(640, np.float32),
        "shape": np.array([0, 7, 100], np.int64),
    }
    nodes = [
        helper.make_node("Conv", ["images", "wf"], ["f"], name="stem", kernel_shape=[3, 3], pads=[1] * 4),
        helper.make_node("Relu", ["f"], ["fr"], name="act"),
        helper.make_node("Conv", ["fr", "wb"], ["b0"], name="box", kernel_shape=[1, 1]),
        helper.make_node("Sigmoid", ["b0"], ["b1"], name="box_sigmoid"),
        helper.make_node("Mul", ["b1", "size"], ["b2"], name="box_scale"),
        helper.make_node("Conv", ["fr", "wc"], ["c0"], name="class", kernel_shape=[1, 1]),
        helper.make_node("Sigmoid", ["c0"], ["c1"], name="class_sigmoid"),
        helper.make_node("Concat", ["b2", "c1"], ["head"], name="concat", axis=1),
        helper.make_node("Reshape", ["head", "shape"], ["output0"], name="flat"),
    ]
    return make(nodes, [("images", ["N", 3, 10, 10])], [("output0", ["N", 7, 100])], arrays)


def outputs_in_the_middle() -> Model:
    """DY03: a Conv output that feeds only a Relu and is a graph output; a BatchNorm used twice; a Pad read twice."""
    rng = np.random.default_rng(131)
    arrays = {
        "wa": normal(1, 4, 3, 5, 5),
        "wb": normal(2, 4, 3, 3, 3),
        "wc": normal(3, 4, 4, 3, 3),
        "gamma": rng.uniform(0.5, 2, 4).astype(np.float32),
        "beta": rng.normal(size=4).astype(np.float32),
        "mean": (rng.normal(size=4) * 2).astype(np.float32),
        "var": rng.uniform(0.1, 2, 4).astype(np.float32),
        "p0": np.array([0, 0, 2, 2, 0, 0, 2, 2], np.int64),
    }
    nodes = [
        helper.make_node("Pad", ["x", "p0"], ["xp"], name="pad0"),
        helper.make_node("Conv", ["xp", "wa"], ["conv_a"], name="conv5", kernel_shape=[5, 5]),
        helper.make_node("Conv", ["xp", "wb"], ["conv_b"], name="conv3", kernel_shape=[3, 3]),
        helper.make_node("Relu", ["conv_b"], ["conv_b_relu"], name="relu_b"),
        helper.make_node("BatchNormalization", ["conv_a", "gamma", "beta", "mean", "var"], ["bn"], name="bn"),
        helper.make_node("Relu", ["bn"], ["r"], name="relu"),
        helper.make_node("Add", ["r", "bn"], ["twice"], name="add"),
        helper.make_node("Conv", ["twice", "wc"], ["y"], name="last", kernel_shape=[3, 3]),
    ]
    outs = [
        ("conv_a", [1, 4, 10, 10]),
        ("conv_b", [1, 4, 12, 12]),
        ("conv_b_relu", [1, 4, 12, 12]),
        ("twice", [1, 4, 10, 10]),
        ("y", [1, 4, 8, 8]),
    ]
    return make(nodes, [("x", [1, 3, 10, 10])], outs, arrays)


def transposed(groups: int) -> Model:
    """Q01: ConvTranspose with channel gains 0.1..2.0, stride 2 and output padding."""
    weights = normal(7, 4, 6 // groups, 3, 3, fan=18)
    weights *= np.linspace(0.1, 2.0, 6 // groups, dtype=np.float32).reshape(1, -1, 1, 1)
    node = helper.make_node(
        "ConvTranspose",
        ["x", "w", "b"],
        ["y"],
        name="up",
        kernel_shape=[3, 3],
        strides=[2, 2],
        output_padding=[1, 1],
        group=groups,
    )
    arrays = {"w": weights, "b": normal(8, 6)}
    return make([node], [("x", ["N", 4, 6, 6])], [("y", ["N", 6, "H", "W"])], arrays)


def named_badly() -> Model:
    """IN03: unnamed nodes, two of one name, tensors that look generated, a name with odd characters."""
    names = ["", "", "conv", "conv", "post_quant_conv", "a/b: c"]
    chain = ["x", "x_scale", "x_zero_point", "x_quantized", "x_DequantizeLinear_Output", "x_dequantized", "y"]
    arrays = {f"w{i}": normal(20 + i, 8, 8, 1, 1) for i in range(6)}
    nodes = [
        helper.make_node("Conv", [a, f"w{i}"], [b], name=names[i], kernel_shape=[1, 1])
        for i, (a, b) in enumerate(itertools.pairwise(chain))
    ]
    return make(nodes, [("x", [1, 8, 6, 6])], [("y", [1, 8, 6, 6])], arrays)


def gemm(trans_b: int, alpha: float, beta: float, bias: tuple[int, ...] | None) -> Model:
    """Q12: Gemm with factors, a transposed weight and every form of bias."""
    arrays = {"w": normal(5, 24, 10, fan=24) if not trans_b else normal(5, 10, 24)}
    inputs = ["x", "w"]
    if bias is not None:
        arrays["b"] = np.random.default_rng(6).standard_normal(bias).astype(np.float32)
        inputs.append("b")
    node = helper.make_node("Gemm", inputs, ["y"], name="fc", transB=trans_b, alpha=alpha, beta=beta)
    return make([node], [("x", ["N", 24])], [("y", ["N", 10])], arrays)
