"""onnxruntime on CPU: an ``.onnx`` file, with int8 as Q/DQ pairs that its optimizer fuses into integer kernels."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from edgeopt.backends import Artifact
from edgeopt.errors import ToolchainError
from edgeopt.interpreter import import_onnxruntime
from edgeopt.model import Model, file_sha256, node_key, save
from edgeopt.quantize.insert import QuantizedModel
from edgeopt.quantize.placement import Rule, Table, constant_of
from edgeopt.target import Target

NAME = "onnxruntime"

PROVIDER = "CPUExecutionProvider"

MIN_WEIGHT_BYTES = 256
"""A smaller float weight is not worth a DequantizeLinear at every inference."""


def probe() -> str | None:
    """Why this backend cannot build here, or None."""
    try:
        import_onnxruntime()
    except ToolchainError as error:
        return error.message
    return None


def _conv_axis(node: ir.Node) -> int:
    return 0


def _gemm_axis(node: ir.Node) -> int:
    return 0 if node.attributes.get_int("transB", 0) else 1


def _matmul_axis(node: ir.Node) -> int:
    return 1


def _conv_transpose_axis(node: ir.Node) -> int:
    """Weights are [C_in, C_out / group, ...]: output channels of one group along axis 1; depthwise has them along 0."""
    weight = node.inputs[1]
    return 0 if weight is not None and weight.shape is not None and weight.shape[1] == 1 else 1


def _refuse_small(node: ir.Node) -> str | None:
    weight = node.inputs[1]
    if weight is None or weight.const_value is None or weight.const_value.nbytes < MIN_WEIGHT_BYTES:
        return "no integer kernel, and its weight is small"
    return None


def _refuse_matmul(node: ir.Node) -> str | None:
    weight = node.inputs[1]
    if weight is None or weight.shape is None or len(weight.shape) != 2:
        return "its weight is not a matrix"
    return None


def _refuse_mul(node: ir.Node) -> str | None:
    for value in node.inputs:
        if value is None or value.const_value is not None:
            return "one operand is a constant"
    return None


def _refuse_pool(node: ir.Node) -> str | None:
    if any(d != 1 for d in node.attributes.get_ints("dilations", [])):
        return "the integer kernel has no dilations"
    if node.attributes.get_int("ceil_mode", 0) and node.attributes.get_int("count_include_pad", 0):
        return "the integer kernel counts padding that ceil_mode adds"
    return None


def _refuse_maxpool(node: ir.Node) -> str | None:
    if len(node.outputs) > 1 and node.outputs[1].uses():
        return "its indices are read"
    return None


def _refuse_resize(node: ir.Node) -> str | None:
    if node.attributes.get_string("mode", "nearest") != "nearest":
        return "only nearest-neighbour resizing keeps values"
    return None


def _refuse_split(node: ir.Node) -> str | None:
    if any(not (out.uses() or out.is_graph_output()) for out in node.outputs):
        return "one of its outputs is not read"
    return None


_MOVE = Rule(role="move")

TABLE = Table(
    rules={
        "Conv": Rule(role="compute", weight=1, bias=2, channel_axis=_conv_axis),
        "Gemm": Rule(role="compute", weight=1, bias=2, channel_axis=_gemm_axis, float_output=True),
        "MatMul": Rule(role="compute", weight=1, channel_axis=_matmul_axis, float_output=True, refuses=_refuse_matmul),
        "ConvTranspose": Rule(
            role="weight", weight=1, bias=2, channel_axis=_conv_transpose_axis, refuses=_refuse_small
        ),
        "Add": Rule(role="join", activations=None, refuses=_refuse_mul),
        "Mul": Rule(role="join", activations=None, refuses=_refuse_mul),
        "Concat": Rule(role="join", activations=None),
        "GlobalAveragePool": Rule(role="join"),
        "AveragePool": Rule(role="join", refuses=_refuse_pool),
        "Sigmoid": Rule(role="join"),
        "LeakyRelu": Rule(role="join"),
        "MaxPool": dataclasses.replace(_MOVE, refuses=_refuse_maxpool),
        "Reshape": _MOVE,
        "Flatten": _MOVE,
        "Squeeze": _MOVE,
        "Unsqueeze": _MOVE,
        "Transpose": _MOVE,
        "DepthToSpace": _MOVE,
        "Slice": _MOVE,
        "Split": dataclasses.replace(_MOVE, refuses=_refuse_split),
        "Resize": dataclasses.replace(_MOVE, refuses=_refuse_resize),
    },
    folded=frozenset({"Relu", "Clip"}),
    # WeightBiasQuantization gives the first three weights per tensor, in silence, when they stand between DQ and Q.
    # The others get an integer kernel, excluded or not, even one that cannot do what they ask (a dilated AveragePool).
    shielded={
        **dict.fromkeys(("Conv", "ConvTranspose", "Gemm"), (0,)),
        **dict.fromkeys(("MatMul", "Add", "Mul", "Concat", "Softmax"), None),
        **dict.fromkeys(("AveragePool", "GlobalAveragePool", "Sigmoid", "LeakyRelu"), None),
    },
)
"""Integer kernels of the CPU provider, reached through its Q/DQ selectors."""

_READS = (("1.15.0", 19, 9), ("1.17.0", 20, 9), ("1.18.0", 21, 10), ("1.20.0", 22, 10), ("1.23.0", 23, 11))
"""Release of onnxruntime, with the newest opset and IR version it reads; oldest first."""

_INTEGER_OP = re.compile(r"QLinear|QGemm|MatMulInteger|ConvInteger")


def minimum(artifact: Path) -> dict[str, object]:
    """The oldest runtime that reads an artifact, with the numbers that say so."""
    model = ir.load(artifact)
    opset, ir_version = model.opset_imports.get("", 1), model.ir_version
    version = next((v for v, top, top_ir in _READS if opset <= top and ir_version <= top_ir), "unknown")
    return {"onnxruntime": version, "opset": opset, "ir_version": ir_version}


def lower(model: Model, target: Target, out: Path, *, precision: str) -> Artifact:
    """Write the graph as ``.onnx``: deterministic bytes, IR version within the target's.

    Raises:
        ToolchainError: the graph needs a newer IR or opset than the target's runtime reads.
    """
    prepared = _stripped(model)
    prepared.ir.ir_version = min(prepared.ir.ir_version, target.ir_version_max)
    prepared.ir.producer_name, prepared.ir.producer_version = "edgeopt", ""
    opset = prepared.ir.opset_imports.get("", 0)
    if opset > target.opset_max:
        raise ToolchainError(
            f"the model needs opset {opset}; {target.name} reads up to {target.opset_max}",
            remedy="Export the model with an older opset, or update the runtime on the device.",
        )
    save(prepared, out)
    return Artifact(
        path=out,
        format="onnx",
        precision=precision,
        bytes=out.stat().st_size,
        sha256=file_sha256(out),
        toolchain={"onnxruntime": import_onnxruntime().__version__},
    )


def _stripped(model: Model) -> Model:
    """A copy without what a runtime does not read: notes of the rewrites, texts, shapes inside the graph."""
    bare = model.clone()
    bare.ir.metadata_props.clear()
    bare.ir.doc_string = bare.graph.doc_string = None
    bare.graph.metadata_props.clear()
    for node in bare.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
            if not value.is_graph_output():
                value.type = value.shape = None
    return bare


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeRun:
    """How the runtime runs one node of the float model: ``"int8"``, ``"float"`` or ``"fused"``, and why."""

    key: str
    op: str
    runs: str
    why: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fused:
    """What the runtime's own optimizer made of an artifact.

    ``mismatches`` lists nodes that were meant to run in int8 and do not, nodes whose float weight the runtime
    quantized on its own, and weights whose number of scales is not what was written. An operator without weights that
    was left in float between int8 ones, and which the runtime runs in int8, is reported and no mismatch: its inputs
    and its result are rounded as before.
    """

    nodes: tuple[NodeRun, ...]
    mismatches: tuple[str, ...]
    note: str


def fused(artifact: Path, source: Model, target: Target, quantized: QuantizedModel | None) -> Fused:
    """Read back the optimized graph and compare it with what was intended.

    Args:
        source: the float model that the artifact stands for; its nodes are reported.
        quantized: the Q/DQ model, None for a float artifact.
    """
    optimized = _optimized(artifact, target)
    by_name = {str(n.name): n for n in optimized.graph}
    integers = _integer_tensors(optimized)
    intended = set() if quantized is None else {node_key(n) for n in quantized.placement.int8}
    reasons = {} if quantized is None else quantized.placement.stays_float
    weighted = {node_key(n) for n in source.graph if any(constant_of(n, i) is not None for i in range(len(n.inputs)))}
    nodes, mismatches = [], []
    for node in source.graph:
        key = node_key(node)
        found = by_name.get(key)
        if found is None:
            nodes.append(NodeRun(key=key, op=node.op_type, runs="fused", why="folded into a neighbour by the runtime"))
            continue
        is_int8 = bool(_INTEGER_OP.search(found.op_type)) or (bool(found.inputs) and found.inputs[0] in integers)
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


def _optimized(artifact: Path, target: Target) -> ir.Model:
    """The runtime's graph at the extended level: the level above writes nodes of one processor's layout."""
    ort = import_onnxruntime()
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    settings.intra_op_num_threads = 1
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    if target.int8.activation == "int8":
        settings.add_session_config_entry("session.qdqisint8allowed", "1")
    with tempfile.TemporaryDirectory(prefix="edgeopt-") as folder:
        settings.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        ort.InferenceSession(str(artifact), settings, providers=[PROVIDER])
        return ir.from_proto(ir.to_proto(ir.load(settings.optimized_model_filepath)))


def _integer_tensors(model: ir.Model) -> set[ir.Value]:
    """Tensors that hold int8 or uint8 in the optimized graph, following operators that only move values."""
    integers: set[ir.Value] = set()
    for node in model.graph:
        moves = node.domain in ("", "ai.onnx") and bool(node.inputs) and node.inputs[0] in integers
        floats = node.op_type in ("DequantizeLinear", "MatMulIntegerToFloat") or (
            node.op_type == "QGemm" and (len(node.inputs) < 9 or node.inputs[7] is None)
        )
        if (node.op_type == "QuantizeLinear" or _INTEGER_OP.search(node.op_type) or moves) and not floats:
            integers.update(node.outputs)
    return integers


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
