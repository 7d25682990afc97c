"""Small models as files, and the numeric oracle of the loader tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

SIDE = 64
SHAPE = (SIDE, SIDE)
WEIGHT_BYTES = SIDE * SIDE * 4

Dims = Sequence[int | str | None]


def value(name: str, dims: Dims, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, list(dims))


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: dict[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    ir_version: int = 8,
) -> onnx.ModelProto:
    stored = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), initializer=stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def conv_model() -> onnx.ModelProto:
    """Conv 3 -> 4, kernel 3, on x[1,3,8,8]."""
    weight = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1, 1, 1, 1])
    return model([node], [value("x", [1, 3, 8, 8])], [value("y", [1, 4, 8, 8])], {"w": weight})


def dense_weight() -> np.ndarray:
    return np.random.default_rng(1).normal(size=SHAPE).astype(np.float32)


def external_model(location: str = "w.bin", **entries: object) -> onnx.ModelProto:
    """y = Gemm(x[1,64], w[64,64]) with w at ``location`` by hand-made entries."""
    proto = model([helper.make_node("Gemm", ["x", "w"], ["y"])], [value("x", [1, SIDE])], [value("y", [1, SIDE])])
    proto.graph.initializer.append(external_tensor("w", location, **entries))
    return proto


def external_tensor(name: str, location: str, dims: Sequence[int] = SHAPE, **entries: object) -> onnx.TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, text in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(text))
    return tensor


def write(path: Path, proto: onnx.ModelProto) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(proto.SerializeToString())
    return path


def write_external(folder: Path, location: str = "w.bin", **entries: object) -> Path:
    """``m.onnx`` and its weight file in ``folder``."""
    path = write(folder / "m.onnx", external_model(location, **entries))
    (folder / location).parent.mkdir(parents=True, exist_ok=True)
    (folder / location).write_bytes(dense_weight().tobytes())
    return path


def run(loaded: ir.Model | bytes, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Outputs without any graph optimization, all data inside the model's bytes."""
    data = loaded if isinstance(loaded, bytes) else ir.to_proto(loaded).SerializeToString()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, feeds)
