"""Small networks that are something besides float operators in a row, as files or as models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgeopt import loaders
from edgeopt.model import Model

Arrays = dict[str, np.ndarray]
node = helper.make_node


def value(name: str, shape: Sequence[int | str] | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def proto(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    arrays: Arrays | None = None,
    *,
    opset: int = 17,
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in (arrays or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def write(path: Path, model: onnx.ModelProto) -> Path:
    onnx.save(model, path)
    return path


def load(folder: Path, model: onnx.ModelProto) -> Model:
    return loaders.load(write(folder / "model.onnx", model))


def subgraph(name: str, nodes: list[onnx.NodeProto], output: onnx.ValueInfoProto) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [output])


def plugin(where: str) -> onnx.ModelProto:
    """IN10: Conv + BatchNormalization -> MyPlugin(k=3) -> Conv; the plugin of domain acme, of none, or in a branch."""
    rng = np.random.default_rng(101)
    arrays: Arrays = {n: rng.normal(size=(4, 4, 3, 3)).astype(np.float32) for n in ("w1", "w2")}
    arrays |= {n: rng.uniform(0.5, 1.5, 4).astype(np.float32) for n in ("gamma", "beta", "mean", "var")}
    custom = node("MyPlugin", ["n"], ["p"], name="plug", domain=None if where == "default" else "acme", k=3)
    inputs = [value("x", [1, 4, 8, 8])]
    if where == "branch":
        custom.output[0] = "q"
        inputs.append(value("flag", [], TensorProto.BOOL))
        then = subgraph("then", [custom], value("q", None))
        other = subgraph("else", [node("Relu", ["n"], ["r"], name="relu")], value("r", None))
        custom = node("If", ["flag"], ["p"], name="choose", then_branch=then, else_branch=other)
    nodes = [
        node("Conv", ["x", "w1"], ["c"], name="first", pads=[1] * 4),
        node("BatchNormalization", ["c", "gamma", "beta", "mean", "var"], ["n"], name="norm"),
        custom,
        node("Conv", ["p", "w2"], ["y"], name="second", pads=[1] * 4),
    ]
    domains = () if where == "default" else ("acme",)
    return proto(nodes, inputs, [value("y", [1, 4, 8, 8])], arrays, domains=domains)


def training(*, dropout: bool = True, norm: bool = True, use: str = "", opset: int = 17) -> onnx.ModelProto:
    """IN11: MatMul -> Dropout(0.5, training) -> BatchNormalization(training) -> y; ``use`` is one more output."""
    rng = np.random.default_rng(111)
    arrays: Arrays = {"w": rng.normal(size=(8, 8)).astype(np.float32), "ratio": np.float32(0.5), "mode": np.bool_(True)}
    arrays |= {n: rng.uniform(0.5, 1.5, 8).astype(np.float32) for n in ("gamma", "beta", "mean", "var")}
    nodes = [node("MatMul", ["x", "w"], ["a"], name="fc")]
    last = "a"
    if dropout:
        nodes.append(node("Dropout", [last, "ratio", "mode"], ["d", "mask"], name="drop"))
        last = "d"
    if norm:
        outputs = ["n", "running_mean", "running_var"]
        batch = node("BatchNormalization", [last, "gamma", "beta", "mean", "var"], outputs, name="norm")
        if opset < 14:  # then one or five outputs, and five say it is training
            batch.output.extend(["saved_mean", "saved_var"])
        else:
            batch.attribute.append(helper.make_attribute("training_mode", 1))
        nodes.append(batch)
        last = "n"
    nodes.append(node("Relu", [last], ["y"], name="relu"))
    extra = {"mask": value("mask", ["N", 8], TensorProto.BOOL), "running_mean": value("running_mean", [8])}
    outs = [value("y", ["N", 8]), *([extra[use]] if use else [])]
    return proto(nodes, [value("x", ["N", 8])], outs, arrays, opset=opset)


def fixed_batch(target: list[int], *, size: int = 6) -> onnx.ModelProto:
    """DY01: Conv -> Relu -> Reshape to ``target`` -> mean over axis 1; ``[0, 4, 36]`` is really dynamic."""
    weights = np.random.default_rng(121).normal(size=(4, 3, 3, 3)).astype(np.float32)
    nodes = [
        node("Conv", ["x", "w"], ["h"], name="conv", pads=[1] * 4),
        node("Relu", ["h"], ["r"], name="relu"),
        node("Reshape", ["r", "shape"], ["t"], name="tokens"),
        node("ReduceMean", ["t"], ["y"], name="pool", axes=[1], keepdims=0),
    ]
    arrays: Arrays = {"w": weights, "shape": np.array(target, np.int64)}
    return proto(nodes, [value("x", ["N", 3, size, size])], [value("y", ["N", size * size])], arrays)


def recurrent() -> onnx.ModelProto:
    """A streaming network: the state has its batch on axis 1, and a scalar says the rate."""
    rng = np.random.default_rng(131)
    arrays: Arrays = {
        "w0": (rng.normal(size=(32, 16)) / 6).astype(np.float32),
        "w": (rng.normal(size=(1, 64, 16)) / 4).astype(np.float32),
        "r": (rng.normal(size=(1, 64, 16)) / 4).astype(np.float32),
        "head": rng.normal(size=(16, 4)).astype(np.float32),
        "zero": np.array([0], np.int64),
        "halves": np.array([1, 1], np.int64),
        "rate": np.array(16000, np.int64),
    }
    nodes = [
        node("MatMul", ["input", "w0"], ["f"], name="encoder"),
        node("Unsqueeze", ["f", "zero"], ["s"], name="step"),
        node("Split", ["state", "halves"], ["h", "c"], name="parts", axis=0),
        node("LSTM", ["s", "w", "r", "", "", "h", "c"], ["", "hn", "cn"], name="lstm", hidden_size=16),
        node("Concat", ["hn", "cn"], ["stateN"], name="join", axis=0),
        node("Squeeze", ["hn", "zero"], ["top"], name="drop_step"),
        node("MatMul", ["top", "head"], ["logits"], name="head"),
        node("Equal", ["sr", "rate"], ["known"], name="same_rate"),
        node("Cast", ["known"], ["gain"], name="as_float", to=TensorProto.FLOAT),
        node("Mul", ["logits", "gain"], ["output"], name="scale"),
    ]
    inputs = [value("input", ["N", 32]), value("state", [2, "N", 16]), value("sr", [], TensorProto.INT64)]
    return proto(nodes, inputs, [value("output", ["N", 4]), value("stateN", [2, "N", 16])], arrays, opset=16)


def shared_branches() -> onnx.ModelProto:
    """IN04: an If with a nested If; three MatMuls of one name read w1, two read b1, the main graph reads neither."""
    rng = np.random.default_rng(81)
    size = 32
    arrays: Arrays = {
        "w1": (rng.normal(size=(size, size)) / np.sqrt(size)).astype(np.float32),
        "b1": rng.normal(size=size).astype(np.float32),
    }

    def out(name: str) -> onnx.ValueInfoProto:
        return value(name, ["N", size])

    then = subgraph(
        "then_g",
        [node("MatMul", ["x", "w1"], ["t0"], name="lin"), node("Add", ["t0", "b1"], ["t1"], name="bias")],
        out("t1"),
    )
    inner_then = subgraph(
        "inner_then",
        [node("MatMul", ["x", "w1"], ["i0"], name="lin"), node("Tanh", ["i0"], ["i1"], name="act")],
        out("i1"),
    )
    inner_else = subgraph(
        "inner_else",
        [node("MatMul", ["x", "w1"], ["j0"], name="lin"), node("Sub", ["j0", "b1"], ["j1"], name="bias")],
        out("j1"),
    )
    inner = node("If", ["flag_b"], ["e0"], name="inner_if", then_branch=inner_then, else_branch=inner_else)
    outer = node(
        "If", ["flag_a"], ["y"], name="outer_if", then_branch=then, else_branch=subgraph("e", [inner], out("e0"))
    )
    flags = [value(name, [], TensorProto.BOOL) for name in ("flag_a", "flag_b")]
    return proto([outer], [value("x", ["N", size]), *flags], [out("y")], arrays)


def quantized(kind: str = "qdq") -> onnx.ModelProto:
    """IN06 on [1, 4, 8, 8]: ``qdq``, ``uint8`` (zero point 128), ``qoperator``, ``half`` (a float Conv behind),
    ``residual`` (an Add with Q/DQ on one branch only).
    """
    rng = np.random.default_rng(61)
    unsigned = kind == "uint8"
    zero = np.uint8(128) if unsigned else np.int8(0)
    arrays: Arrays = {
        "sx": np.float32(0.03),
        "zx": zero,
        "w": rng.integers(-127, 128, (4, 4, 3, 3)).astype(np.int8),
        "sw": rng.uniform(0.002, 0.006, 4).astype(np.float32),
        "zw": np.zeros(4, np.int8),
        "sy": np.float32(0.05),
        "zy": np.uint8(0) if unsigned else np.int8(-128) if kind == "qoperator" else np.int8(0),
        "w2": (rng.normal(size=(4, 4, 3, 3)) / 6).astype(np.float32),
    }
    enter = node("QuantizeLinear", ["x", "sx", "zx"], ["xq"], name="q_in")
    if kind == "qoperator":
        nodes = [
            enter,
            node("QLinearConv", ["xq", "sx", "zx", "w", "sw", "zw", "sy", "zy"], ["c"], name="conv", pads=[1] * 4),
            node(
                "QLinearAdd",
                ["c", "sy", "zy", "xq", "sx", "zx", "sy", "zy"],
                ["a"],
                name="add",
                domain="com.microsoft",
            ),
            node("DequantizeLinear", ["a", "sy", "zy"], ["y"], name="dq_out"),
        ]
        return proto(nodes, [value("x", [1, 4, 8, 8])], [value("y", [1, 4, 8, 8])], arrays, domains=["com.microsoft"])
    nodes = [
        enter,
        node("DequantizeLinear", ["xq", "sx", "zx"], ["xd"], name="dq_in"),
        node("DequantizeLinear", ["w", "sw", "zw"], ["wd"], name="dq_w", axis=0),
        node("Conv", ["xd", "wd"], ["c"], name="conv", pads=[1] * 4),
        node("Relu", ["c"], ["r"], name="relu"),
        node("QuantizeLinear", ["r", "sy", "zy"], ["rq"], name="q_out"),
        node("DequantizeLinear", ["rq", "sy", "zy"], ["rd"], name="dq_out"),
    ]
    if kind == "half":
        nodes.append(node("Conv", ["rd", "w2"], ["y"], name="float_conv", pads=[1] * 4))
    elif kind == "residual":
        nodes.append(node("Add", ["rd", "x"], ["y"], name="residual"))
    else:
        nodes[-1].output[0] = "y"
    return proto(nodes, [value("x", [1, 4, 8, 8])], [value("y", [1, 4, 8, 8])], arrays)


def calibration(path: Path, **arrays: np.ndarray) -> str:
    np.savez(path, **arrays)
    return str(path)


def two_rates() -> onnx.ModelProto:
    """A branch for 16 kHz that wants 6 values and one for 8 kHz that wants 3; only the flag says which is taken.

    The other branch first looks whether there are 3, as exporters write a Squeeze: what fits 6 breaks its MatMul.
    """
    rng = np.random.default_rng(141)
    arrays: Arrays = {
        "w6": rng.normal(size=(6, 4)).astype(np.float32),
        "w3": rng.normal(size=(3, 4)).astype(np.float32),
        "three": np.array([3], np.int64),
        "rate": np.array(16000, np.int64),
        "last": np.array([2], np.int64),
    }
    fits = subgraph("fits", [node("Identity", ["x"], ["i"], name="same")], value("i", None))
    other = subgraph("other", [node("Unsqueeze", ["x", "last"], ["u"], name="wider")], value("u", None))
    slow = [
        node("Shape", ["x"], ["size"], start=1, end=2),
        node("Equal", ["size", "three"], ["is3"]),
        node("If", ["is3"], ["v"], name="squeeze", then_branch=fits, else_branch=other),
        node("MatMul", ["v", "w3"], ["b"], name="slow_dense"),
    ]
    fast = subgraph("fast", [node("MatMul", ["x", "w6"], ["a"], name="fast_dense")], value("a", [1, 4]))
    nodes = [
        node("Equal", ["sr", "rate"], ["is16"]),
        node("If", ["is16"], ["y"], name="rates", then_branch=fast, else_branch=subgraph("s", slow, value("b", None))),
    ]
    inputs = [value("x", [1, "L"]), value("sr", [], TensorProto.INT64)]
    return proto(nodes, inputs, [value("y", [1, 4])], arrays, opset=17)
