"""Which share of the multiplications runs on integers, as the runtime's own graph shows it."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from _peers import running

FLOAT = (
    *("Conv", "ConvTranspose", "MatMul", "Gemm", "FusedConv", "FusedMatMul", "FusedGemm", "NhwcFusedConv"),
    *("TransposeMatMul", "FusedMatMulActivation"),
)
INTEGER = (
    *("QLinearConv", "QLinearMatMul", "QGemm", "ConvInteger", "MatMulInteger", "MatMulIntegerToFloat"),
    *("DynamicQuantizeMatMul", "QLinearConvTranspose"),
)
WEIGHTS_ONLY = ("MatMulNBits",)
OPENVINO_WORK = ("Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData", "MatMul")
OPENVINO_LAYERS = ("Convolution", "Deconvolution", "FullyConnected", "MatMul")
"""Primitives of the compiled model."""


def shares(entry: Mapping[str, Any], feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Multiplications of one sample: ``{"total", "integer", "float", "other"}``, or ``{"reason"}``."""
    try:
        found = {"onnxruntime": in_onnxruntime, "openvino": in_openvino}[entry["runtime"]](entry, feeds)
    except Exception as error:  # noqa: BLE001 - graphs of many tools; a figure that is missing is said to be missing
        return {"reason": f"{type(error).__name__}: {error}".splitlines()[0]}
    return {"total": sum(found.values()), **found}


def in_onnxruntime(entry: Mapping[str, Any], feeds: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Runs the graph that the runtime makes of the model, with the tensors around every node with work as outputs."""
    import onnx
    import onnxruntime

    with tempfile.TemporaryDirectory() as scratch:
        optimized = Path(scratch) / "optimized.onnx"
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads, settings.log_severity_level = 1, 4
        options = dict(entry["options"])
        if options.pop("optimizer", "on") == "off":
            settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        for key, value in options.items():
            if "." in key:
                settings.add_session_config_entry(key, str(value))
        settings.optimized_model_filepath = str(optimized)
        onnxruntime.InferenceSession(entry["path"], settings, providers=["CPUExecutionProvider"])
        model = onnx.load(optimized)
        work = [node for node in model.graph.node if node.op_type in (*FLOAT, *INTEGER, *WEIGHTS_ONLY)]
        shapes = {one.name: tuple(one.dims) for one in model.graph.initializer}
        wanted = {name for node in work for name in (*node.input, *node.output) if name and name not in shapes}
        given = {value.name for value in model.graph.input}
        present = {value.name for value in model.graph.output}
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(wanted - present - given))
        plain = onnxruntime.SessionOptions()
        plain.intra_op_num_threads, plain.log_severity_level = 1, 4
        plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        exposed = Path(scratch) / "exposed.onnx"
        onnx.save(model, exposed)
        session = onnxruntime.InferenceSession(exposed, plain, providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_outputs()]
        values = session.run(names, {value.name: feeds[value.name] for value in session.get_inputs()})
        shapes |= {name: np.shape(value) for name, value in zip(names, values)}
        shapes |= {name: np.shape(value) for name, value in feeds.items()}
    found = {"integer": 0, "float": 0, "other": 0}
    for node in work:
        kind = "integer" if node.op_type in INTEGER else "other" if node.op_type in WEIGHTS_ONLY else "float"
        found[kind] += multiplications(node, shapes)
    return found


def multiplications(node: Any, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Outputs times the length of their sums."""
    out, quantized = shapes[node.output[0]], node.op_type in ("QLinearConv", "QLinearMatMul", "QGemm")
    first, weight = shapes[node.input[0]], shapes[node.input[3 if quantized else 1]]
    if "ConvTranspose" in node.op_type:
        return math.prod(first) * math.prod(weight[1:])
    if "Conv" in node.op_type:
        return math.prod(out) * math.prod(weight[1:])
    if node.op_type in WEIGHTS_ONLY:
        return math.prod(out) * first[-1]
    transposed = any(a.name == "transA" and a.i for a in node.attribute) and len(first) > 1
    return math.prod(out) * first[-2 if transposed else -1]


def in_openvino(entry: Mapping[str, Any], feeds: Mapping[str, np.ndarray]) -> dict[str, int]:
    """By the precision that the compiled model states for each primitive."""
    import openvino

    core = openvino.Core()
    model = core.read_model(entry["path"])
    shapes = {
        port.get_any_name(): feeds[name].shape for port in model.inputs for name in port.get_names() if name in feeds
    }
    model.reshape({name: list(shape) for name, shape in shapes.items()})
    work = {}
    for op in model.get_ops():
        if op.get_type_name() in OPENVINO_WORK:
            weight, out = tuple(op.input(1).get_shape()), tuple(op.output(0).get_shape())
            grouped = op.get_type_name().startswith("Group")
            if "Backprop" in op.get_type_name():
                work[op.get_friendly_name()] = math.prod(op.input(0).get_shape()) * math.prod(
                    weight[2 if grouped else 1 :]
                )
            elif op.get_type_name() == "MatMul":
                work[op.get_friendly_name()] = math.prod(out) * tuple(op.input(0).get_shape())[-1]
            else:
                work[op.get_friendly_name()] = math.prod(out) * math.prod(weight[2 if grouped else 1 :])
    compiled = core.compile_model(model, "CPU", running.OPENVINO)
    found = {"integer": 0, "float": 0, "other": 0}
    for op in compiled.get_runtime_model().get_ops():
        told = {key: str(value.astype(str)) for key, value in op.get_rt_info().items()}
        if told.get("layerType") not in OPENVINO_LAYERS:
            continue
        kind = "integer" if told.get("runtimePrecision") in ("u8", "i8") else "float"
        for name in told.get("originalLayersNames", "").split(","):
            # A transformation of the runtime may add to a name, after a slash.
            for known in [known for known in work if f"{name}/".startswith(f"{known}/")]:
                found[kind] += work.pop(known)
    found["other"] = sum(work.values())
    return found
