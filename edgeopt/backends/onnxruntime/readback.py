"""Read back what the runtime's own optimizer made of an artifact."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from edgeopt.backends import Fused, NodeRun
from edgeopt.errors import ModelError
from edgeopt.interpreter import import_onnxruntime, register_library, session_errors
from edgeopt.model import Model, node_key
from edgeopt.quantize.insert import QuantizedModel
from edgeopt.quantize.placement import constant_of
from edgeopt.target import Target

PROVIDER = "CPUExecutionProvider"

_INTEGER_OP = re.compile(r"QLinear|QGemm|MatMulInteger|ConvInteger")
_DYNAMIC = ("DynamicQuantizeMatMul", "MatMulIntegerToFloat", "DynamicQuantizeLSTM")


def fused(artifact: Path, source: Model, target: Target, quantized: QuantizedModel | None) -> Fused:
    """Read back the optimized graph and compare it with what was intended.

    Args:
        source: the float model that the artifact stands for; its nodes are reported.
        quantized: the Q/DQ model, None for a float artifact.
    """
    optimized = _optimized(artifact, target, source.origin.libraries)
    by_name = {str(n.name): n for n in optimized.graph}
    makers = {str(v.name): n for n in optimized.graph for v in n.outputs}
    integers = _integer_tensors(optimized)
    intended = set() if quantized is None else {node_key(n) for n in quantized.placement.int8}
    reasons = {} if quantized is None else quantized.placement.stays_float
    weighted = {node_key(n) for n in source.graph if any(constant_of(n, i) is not None for i in range(len(n.inputs)))}
    nodes, mismatches = [], []
    for node in source.graph:
        key = node_key(node)
        found = by_name.get(key) or (_joined(node, makers) if key in intended else None)
        if found is None:
            nodes.append(NodeRun(key=key, op=node.op_type, runs="fused", why="folded into a neighbour by the runtime"))
            continue
        moves = bool(found.inputs) and found.inputs[0] in integers and not _makes_floats(found)
        is_int8 = bool(_INTEGER_OP.search(found.op_type)) or found.op_type in _DYNAMIC or moves
        if is_int8:
            why = "" if quantized is None or key in intended else "between int8 operators the runtime does not ask"
        else:
            why = reasons.get(key, "the model is float" if quantized is None else "not fused by the runtime")
        nodes.append(NodeRun(key=key, op=node.op_type, runs="int8" if is_int8 else "float", why=why))
        if key in intended and not is_int8:
            mismatches.append(f"{key} ({node.op_type}) was meant to run in int8 and runs as {found.op_type}")
        if key in weighted and key not in intended and _INTEGER_OP.search(found.op_type):
            mismatches.append(f"{key} ({node.op_type}) was to stay float and runs as {found.op_type}")
    if quantized is not None:
        mismatches += _weight_mismatches(by_name, quantized.weight_scale_counts)
    host = "as optimized on the host at the extended level"
    return Fused(nodes=tuple(nodes), mismatches=tuple(mismatches), note=host)


def _joined(node: ir.Node, makers: Mapping[str, ir.Node]) -> ir.Node | None:
    """What the runtime made of a product of activations quantized at run time, and of the bias behind it."""
    results = [node.outputs[0], *(use.node.outputs[0] for use in node.outputs[0].uses() if use.node.op_type == "Add")]
    made = (makers.get(str(value.name)) for value in results)
    return next((n for n in made if n is not None and n.op_type in _DYNAMIC), None)


def _optimized(artifact: Path, target: Target, libraries: tuple[Path, ...]) -> ir.Model:
    """The runtime's graph at the extended level: the level above writes nodes of one processor's layout."""
    ort = import_onnxruntime()
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    settings.intra_op_num_threads = 1
    for library in libraries:
        register_library(settings, library)
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    if target.int8.activation == "int8":
        settings.add_session_config_entry("session.qdqisint8allowed", "1")
    with tempfile.TemporaryDirectory(prefix="edgeopt-") as folder:
        settings.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        try:
            ort.InferenceSession(str(artifact), settings, providers=[PROVIDER])
        except session_errors() as error:
            raise ModelError(
                f"onnxruntime {ort.__version__} does not load {artifact.name} when it optimizes it: "
                f"{str(error).strip().splitlines()[0]}",
                remedy="Shapes may contradict each other in a branch that is never taken: fix fewer with --shape.",
            ) from error
        return ir.from_proto(ir.to_proto(ir.load(settings.optimized_model_filepath)))


def _integer_tensors(model: ir.Model) -> set[ir.Value]:
    """Tensors that hold int8 or uint8 in the optimized graph, following operators that only move values."""
    integers = {v for v in model.graph.inputs if v.dtype in (ir.DataType.INT8, ir.DataType.UINT8)}
    for node in model.graph:
        moves = node.domain in ("", "ai.onnx") and bool(node.inputs) and node.inputs[0] in integers
        floats = (
            node.op_type in ("DequantizeLinear", "MatMulIntegerToFloat")
            or _makes_floats(node)
            or (node.op_type == "QGemm" and (len(node.inputs) < 9 or node.inputs[7] is None))
        )
        if (node.op_type == "QuantizeLinear" or _INTEGER_OP.search(node.op_type) or moves) and not floats:
            integers.update(node.outputs)
    return integers


def _makes_floats(node: ir.Node) -> bool:
    return node.op_type == "Cast" and node.attributes.get_int("to", 0) not in (ir.DataType.INT8, ir.DataType.UINT8)


def _weight_mismatches(by_name: Mapping[str, ir.Node], counts: Mapping[str, int]) -> list[str]:
    """Scale counts of fused weights against the ones written."""
    places = {"QLinearConv": 4, "QGemm": 4, "QLinearMatMul": 4, "MatMulIntegerToFloat": 3}
    wrong = []
    for key, count in counts.items():
        node = by_name.get(key)
        if node is None or node.op_type not in places:
            continue
        scale = node.inputs[places[node.op_type]]
        size = None if scale is None or scale.const_value is None else scale.const_value.size
        if size != count:
            wrong.append(f"{key}: {count} weight scales were written, the runtime uses {size}")
    return wrong
