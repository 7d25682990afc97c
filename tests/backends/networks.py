"""Small networks for the backends: one with names that need care, and one for every rule of a placement table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx import NodeProto, TensorProto, helper, numpy_helper

from edgeopt.model import Model, Origin, assign_keys

SIDE, CHANNELS = 8, 16
PADS = [1, 1, 1, 1]


def op(kind: str, inputs: list[str], output: str, **attributes: object) -> NodeProto:
    return helper.make_node(kind, inputs, [output], name=output, **attributes)


def conv(source: str, weight: str, output: str, **attributes: object) -> NodeProto:
    return op("Conv", [source, weight], output, **attributes)


def weights(seed: int, *shape: int) -> np.ndarray:
    fan = int(np.prod(shape[1:]))
    return (np.random.default_rng(seed).standard_normal(shape) / np.sqrt(fan)).astype(np.float32)


def wrap(
    nodes: Sequence[NodeProto],
    arrays: Mapping[str, np.ndarray],
    shape: Sequence[int | str] = (1, 4, SIDE, SIDE),
    outputs: Sequence[str] = ("y",),
) -> Model:
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        list(nodes),
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(a, n) for n, a in arrays.items() if n in used],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    assign_keys(model)
    return Model(ir=model, origin=Origin(path=Path("net.onnx"), format="onnx", files=()))


def named() -> Model:
    """Names that a runtime's own could meet: commas, counters like OpenVINO's, and two outputs, the later one first."""
    arrays = {"w": weights(0, 6, 4, 3, 3), "v": weights(1, 5, 6, 1, 1), "k": np.array(0.5, np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="Constant_3", pads=PADS),
        helper.make_node("Relu", ["c"], ["r"], name="Multiply_1,one"),
        helper.make_node("Conv", ["r", "v"], ["late"], name="Convolution_0"),
        helper.make_node("Mul", ["r", "k"], ["early"], name="a & <b>"),
    ]
    return wrap(nodes, arrays, ["n", 4, SIDE, "wide"], ["late", "early"])


ARRAYS = {
    "w0": weights(0, CHANNELS, 4, 1, 1),
    "w1": weights(1, 12, CHANNELS, 1, 1),
    "w2": weights(2, CHANNELS, CHANNELS, 3, 3),
    "w3": weights(3, CHANNELS, 4, 1, 1),
    "wide": weights(10, 12, 2 * CHANNELS, 1, 1),
    "thin": weights(11, 12, CHANNELS // 4, 1, 1),
    "half": weights(12, 12, CHANNELS // 2, 1, 1),
    "wg": weights(4, CHANNELS, 10),
    "bg": weights(5, 1, 10).reshape(-1),
    "b0": weights(9, 1, CHANNELS).reshape(-1),
    "dw": weights(6, CHANNELS, 1, 3, 3),
    "wt": weights(7, CHANNELS, CHANNELS, 2, 2),
    "wm": weights(8, SIDE, 12),
    "flat": np.array([0, CHANNELS], np.int64),
    "axes": np.array([2, 3], np.int64),
    "one": np.array([1], np.int64),
    "two": np.array([2], np.int64),
    "seven": np.array([7], np.int64),
    "halves": np.array([8, 8], np.int64),
    "sizes": np.array([1, 1, 2, 2], np.float32),
}

CASES: Mapping[str, tuple[list[NodeProto], str]] = {
    "Conv": ([conv("a", "w2", "m", pads=PADS)], "w1"),
    "Conv, bias": ([op("Conv", ["a", "w2", "b0"], "m", pads=PADS)], "w1"),
    "Conv, depthwise": ([conv("a", "dw", "m", group=CHANNELS, pads=PADS)], "w1"),
    "Conv, dilated": ([conv("a", "dw", "m", group=CHANNELS, pads=[2] * 4, dilations=[2, 2])], "w1"),
    "ConvTranspose": ([op("ConvTranspose", ["a", "wt"], "m", strides=[2, 2])], "w1"),
    "MatMul": ([op("MatMul", ["a", "wm"], "m")], "w1"),
    "Flatten, Gemm": ([op("GlobalAveragePool", ["a"], "p"), op("Flatten", ["p"], "m")], "wg"),
    "Reshape, Gemm": ([op("GlobalAveragePool", ["a"], "p"), op("Reshape", ["p", "flat"], "m")], "wg"),
    "Squeeze, Gemm": ([op("GlobalAveragePool", ["a"], "p"), op("Squeeze", ["p", "axes"], "m")], "wg"),
    "Add": ([op("Add", ["a", "b"], "m")], "w1"),
    "Mul": ([op("Mul", ["a", "b"], "m")], "w1"),
    "Concat": ([op("Concat", ["a", "b"], "m", axis=1)], "wide"),
    "GlobalAveragePool": ([op("GlobalAveragePool", ["a"], "m")], "w1"),
    "AveragePool": ([op("AveragePool", ["a"], "m", kernel_shape=[2, 2], strides=[2, 2])], "w1"),
    "MaxPool": ([op("MaxPool", ["a"], "m", kernel_shape=[2, 2], strides=[2, 2])], "w1"),
    "Transpose": ([op("Transpose", ["a"], "m", perm=[0, 1, 3, 2])], "w1"),
    "DepthToSpace": ([op("DepthToSpace", ["a"], "m", blocksize=2)], "thin"),
    "Slice": ([op("Slice", ["a", "one", "seven", "two"], "m")], "w1"),
    "Resize": ([op("Resize", ["a", "", "sizes"], "m", mode="nearest")], "w1"),
    "Split": (
        [
            helper.make_node("Split", ["a", "halves"], ["s0", "s1"], name="s0", axis=1),
            op("Add", ["s0", "s1"], "m"),
        ],
        "half",
    ),
}
"""By name: the operators between two convolutions, and the weight of the one (or of the Gemm) that reads them."""


def case(name: str, *, relu: bool) -> Model:
    """x -> Conv (-> Relu) = a -> what the case has = m -> Conv or Gemm -> Neg; with ``b`` from a branch of its own."""
    middle, last = CASES[name]
    nodes = [conv("x", "w0", "c"), op("Relu", ["c"], "a")] if relu else [conv("x", "w0", "a")]
    if any("b" in node.input for node in middle):
        nodes += [conv("x", "w3", "d"), op("Relu", ["d"], "b")]
    nodes += middle
    nodes.append(op("Gemm", ["m", "wg", "bg"], "z") if last == "wg" else conv("m", last, "z"))
    return wrap([*nodes, op("Neg", ["z"], "y")], ARRAYS)


def samples(count: int = 8, shape: Sequence[int] = (1, 4, SIDE, SIDE)) -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(0)
    return [{"x": generator.standard_normal(shape).astype(np.float32)} for _ in range(count)]
