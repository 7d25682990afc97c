"""Small networks that store weights in every place and form, and helpers to look into what became of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper, shape_inference

from edgeopt.interpreter import Interpreter
from edgeopt.model import Model, Origin, assign_keys
from tests.unit.quantize.nets import normal

Arrays = Mapping[str, np.ndarray]


def build(nodes: Sequence[NodeProto], inputs: Mapping[str, object], outputs: Sequence[str], arrays: Arrays) -> Model:
    """``inputs``: shape by name; a leading type for what is not float."""
    infos = []
    for name, shape in inputs.items():
        kind, dims = shape if isinstance(shape, tuple) else (TensorProto.FLOAT, shape)
        infos.append(helper.make_tensor_value_info(name, kind, dims))
    graph = helper.make_graph(
        list(nodes),
        "net",
        infos,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    model = ir.from_proto(shape_inference.infer_shapes(proto, strict_mode=True))
    assign_keys(model)
    return Model(ir=model, origin=Origin(path=Path("net.onnx"), format="onnx", files=()))


def branch(name: str, nodes: Sequence[NodeProto], output: str, arrays: Arrays | None = None) -> GraphProto:
    info = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
    return helper.make_graph(
        list(nodes), name, [], info, [numpy_helper.from_array(a, n) for n, a in (arrays or {}).items()]
    )


def branches() -> Model:
    """Two branches and a nested one that multiply by one matrix of the outer graph, and look rows up in it."""
    node = helper.make_node
    then = branch("t", [node("MatMul", ["x", "w"], ["t0"], name="lin"), node("Add", ["t0", "b"], ["t1"])], "t1")
    inner = branch("i", [node("MatMul", ["x", "w"], ["i0"], name="lin"), node("Tanh", ["i0"], ["i1"])], "i1")
    other = branch("j", [node("MatMul", ["x", "w"], ["j0"], name="lin"), node("Sub", ["j0", "b"], ["j1"])], "j1")
    nested = branch("e", [node("If", ["second"], ["e0"], then_branch=inner, else_branch=other)], "e0")
    nodes = [node("If", ["first"], ["y"], name="if", then_branch=then, else_branch=nested)]
    arrays = {"w": normal(81, 32, 32), "b": normal(82, 32, fan=1)}
    flags = {name: (TensorProto.BOOL, []) for name in ("first", "second")}
    return build(nodes, {"x": ["N", 32], **flags}, ["y"], arrays)


def reordered_lstm(*, inside: bool = False, direction: str = "forward") -> Model:
    """An LSTM whose gates are put in order by Slice, Concat and Unsqueeze, perhaps inside both branches of an If."""
    node, hidden, width = helper.make_node, 16, 24
    ways = 2 if direction == "bidirectional" else 1
    shapes = {"w": width, "r": hidden}
    arrays: dict[str, np.ndarray] = {n: normal(i, 4 * hidden, k) for i, (n, k) in enumerate(shapes.items(), 5)}
    cuts = {"c0": 0, "c1": hidden, "c2": 2 * hidden, "c3": 3 * hidden, "c4": 4 * hidden, "zero": 0}
    arrays |= {name: np.array([at], np.int64) for name, at in cuts.items()}
    arrays["bias"] = normal(9, ways, 8 * hidden)
    nodes = []
    for name in shapes:
        parts = []
        for gate in (0, 3, 1, 2):
            parts.append(f"{name}{gate}")
            nodes.append(
                node("Slice", [name, f"c{gate}", f"c{gate + 1}", "zero"], [parts[-1]], name=f"cut_{parts[-1]}")
            )
        nodes.append(node("Concat", parts, [f"{name}_all"], axis=0, name=f"join_{name}"))
        nodes.append(node("Unsqueeze", [f"{name}_all", "zero"], [f"{name}_one"], name=f"one_{name}"))
        if ways == 2:
            nodes.append(node("Concat", [f"{name}_one", f"{name}_one"], [f"{name}_two"], axis=0, name=f"two_{name}"))
    last = "two" if ways == 2 else "one"
    attributes = {"hidden_size": hidden, "direction": direction}
    lstm = node("LSTM", ["x", f"w_{last}", f"r_{last}", "bias"], ["h"], name="lstm", **attributes)
    if not inside:
        return build([*nodes, lstm], {"x": ["S", "N", width]}, ["h"], arrays)
    graphs = []
    for name in ("then", "else"):
        own = [_renamed(n, name, {"x", "bias", *shapes, *cuts}) for n in (*nodes, lstm)]
        graphs.append(
            branch(name, [*own, node("Relu" if name == "then" else "Neg", [f"{name}_h"], [f"{name}_y"])], f"{name}_y")
        )
    top = node("If", ["flag"], ["y"], name="if", then_branch=graphs[0], else_branch=graphs[1])
    return build([top], {"x": ["S", "N", width], "flag": (TensorProto.BOOL, [])}, ["y"], arrays)


def _renamed(proto: NodeProto, prefix: str, outer: set[str]) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(proto)
    copy.name = f"{prefix}_{proto.name}"
    copy.input[:] = [n if n in outer or not n else f"{prefix}_{n}" for n in proto.input]
    copy.output[:] = [f"{prefix}_{n}" for n in proto.output]
    return copy


def stored_bytes(model: Model) -> dict[str, int]:
    """Bytes of the constants of all graphs by element type."""
    found: dict[str, int] = {}
    for graph in model.ir.graphs():
        for value in graph.initializers.values():
            assert value.const_value is not None
            name = value.const_value.dtype.name
            found[name] = found.get(name, 0) + value.const_value.nbytes
    return found


def operators(model: Model) -> list[str]:
    return [node.op_type for node in model.graph.all_nodes()]


def floats_of(model: Model, least: int = 1024) -> list[str]:
    """Names of the float constants of a size that should have been stored in fewer bits."""
    return [
        str(v.name)
        for g in model.ir.graphs()
        for v in g.initializers.values()
        if v.const_value is not None and v.const_value.dtype == ir.DataType.FLOAT and v.const_value.nbytes >= least
    ]


def relative_rms(model: Model, other: Model, feeds: Sequence[Arrays]) -> float:
    """RMS of the difference over RMS of the reference, all outputs of all samples together."""
    reference, test = Interpreter(model), Interpreter(other)
    error = power = 0.0
    for feed in feeds:
        expected, got = reference.run(feed), test.run(feed)
        for name, value in expected.items():
            assert got[name].shape == value.shape
            error += float(np.square(got[name].astype(np.float64) - value).sum())
            power += float(np.square(value.astype(np.float64)).sum())
    return float(np.sqrt(error / power))
