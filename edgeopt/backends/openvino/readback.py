"""Read back what the compiled model runs: which operators became one, and in which type.

The plugin names each layer after the operators that it joined, and gives some of them names of its own on the way. What
a layer with weights computes is told best by the name of its weights, which nothing changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import onnx_ir as ir

from edgeopt.backends import Fused, NodeRun
from edgeopt.backends.openvino.conversion import WEIGHTS
from edgeopt.backends.openvino.ir_file import friendly
from edgeopt.backends.openvino.runtime import compile_model
from edgeopt.model import Model, node_key
from edgeopt.quantize.insert import QuantizedModel
from edgeopt.quantize.placement import constant_of
from edgeopt.target import Target

INTEGER = ("i8", "u8")

COMPUTE = frozenset({"Convolution", "Deconvolution", "FullyConnected", "MatMul"})
"""Layers with weights, as the plugin calls them."""

WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})

_ADDED = re.compile(r"(/WithoutBiases|/Dequantization(Multiply|Subtract|Convert)|_original|/fq_output_\d+)$")
"""What the importer and the plugin put behind a name."""


class Layer(NamedTuple):
    """One layer of the compiled model.

    Attributes:
        kind: as the plugin calls it.
        precision: the type that it computes in.
        primitive: the kernel.
        operators: names of what was joined into it, the first one first.
        weights: name of the constant that it multiplies by; empty where there is none.
    """

    kind: str
    precision: str
    primitive: str
    operators: tuple[str, ...]
    weights: str


def layers(compiled: Any) -> Iterator[Layer]:
    """The layers in the order in which they run, constants left out."""
    for op in compiled.get_runtime_model().get_ordered_ops():
        kind = _told(op, "layerType")
        if kind != "Const":
            weights = _constant_name(op.input_value(1).get_node()) if kind in COMPUTE else ""
            yield Layer(kind, _told(op, "runtimePrecision"), _told(op, "primitiveType"), _operators(op), weights)


def _told(op: Any, name: str) -> str:
    info = op.get_rt_info()
    value = info[name] if name in info else ""  # noqa: SIM401 - no mapping
    return str(value if isinstance(value, str) else value.astype(str))


def _operators(op: Any) -> tuple[str, ...]:
    return tuple(name for name in _told(op, "originalLayersNames").split(",") if name)


def _constant_name(op: Any) -> str:
    """The constant behind what only turns it over or lays it out."""
    while _told(op, "layerType") != "Const":
        if len(op.inputs()) == 0 or _told(op, "layerType") not in ("Transpose", "Reorder", "Reshape", "Convert"):
            return ""
        op = op.input_value(0).get_node()
    return next(iter(_operators(op)), "")


def fused(artifact: Path, source: Model, target: Target, quantized: QuantizedModel | None) -> Fused:
    """Read back the compiled graph and compare it with what was intended.

    Args:
        source: the float model that the artifact stands for; its nodes are reported.
        quantized: the Q/DQ model, None for a float artifact.
    """
    keys = {friendly(node_key(node)): node for node in source.graph}
    own: dict[ir.Node, Layer] = {}
    unknown = []
    for layer in layers(compile_model(artifact)):
        node = _node_of(layer, keys)
        if node is not None:
            own.setdefault(node, layer)
        elif layer.kind in COMPUTE and layer.precision not in INTEGER:
            unknown.append(layer)
    static = quantized is not None and quantized.precision == "int8"
    intended = {node_key(n) for n in quantized.placement.int8} if quantized is not None and static else set()
    reasons = {} if quantized is None else quantized.placement.stays_float
    nodes, mismatches = [], []
    for node in source.graph:
        key, found = node_key(node), own.get(node)
        if found is None:
            nodes.append(NodeRun(key=key, op=node.op_type, runs="fused", why="part of a neighbour in the runtime"))
            if unknown and key in intended and node.op_type in WEIGHTED:
                mismatches.append(f"{key} ({node.op_type}) may run in float: a {unknown.pop().kind} of no name does")
            continue
        runs_int8 = found.precision in INTEGER
        why = "" if runs_int8 else reasons.get(key, "the model is float" if quantized is None else "run in float")
        nodes.append(NodeRun(key=key, op=node.op_type, runs="int8" if runs_int8 else "float", why=why))
        how = f"runs as {found.kind} in {found.precision}"
        if key in intended and not runs_int8:
            mismatches.append(f"{key} ({node.op_type}) was meant to run in int8 and {how}")
        weighted = any(constant_of(node, i) is not None for i in range(len(node.inputs)))
        if static and weighted and key not in intended and runs_int8 and found.kind in COMPUTE:
            mismatches.append(f"{key} ({node.op_type}) was to stay float and {how}")
    return Fused(nodes=tuple(nodes), mismatches=tuple(mismatches), note="as compiled on the host")


def _node_of(layer: Layer, keys: Mapping[str, ir.Node]) -> ir.Node | None:
    """The node whose layer it is: with weights, the weighted one in it; else the one that it begins with."""
    if layer.weights.endswith(WEIGHTS):
        return keys.get(layer.weights.removesuffix(WEIGHTS))
    found = [node for name in layer.operators if (node := keys.get(_plain(name, keys))) is not None]
    if layer.kind in COMPUTE:
        return next((node for node in found if node.op_type in WEIGHTED), None)
    return found[0] if found and keys.get(_plain(layer.operators[0], keys)) is found[0] else None


def _plain(name: str, keys: Mapping[str, ir.Node]) -> str:
    """A name without what was put behind it."""
    while name not in keys and (shorter := _ADDED.sub("", name)) != name:
        name = shorter
    return name
