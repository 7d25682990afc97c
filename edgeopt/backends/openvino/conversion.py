"""From a graph with Q/DQ pairs to OpenVINO's model, with the quantization in the form that its plugin was made for.

    DequantizeLinear(QuantizeLinear(x, s, z), s, z)    ->  FakeQuantize(x, s (q_min - z), s (q_max - z), 256 levels)
    QuantizeLinear(Clip(x, a, b), s, z)                ->  QuantizeLinear(x, s, z)    where its ends lie in [a, b]
    DequantizeLinear(W_q, s_w, z)                      ->  Multiply(Subtract(Convert(W_q), Convert(z)), s_w)
    MatMul(x, W)                                       ->  MatMul(x, W^T, transpose_b)  for stored weights

FakeQuantize rounds ``(x - low) / (high - low) * 255`` to a whole number and clips it: the same grid, and the same
values but for a rounding of the scale. A Clip or Relu before it, if its ends are beyond those of the grid or less than
half a step within, does what saturation does; the plugin would run both ends as operators of their own. The Subtract
goes where z is 0. Everything else that is constant is folded; left alone, the importer's shape arithmetic would be done
at every load, and is most of the text. The plugin multiplies by rows, and turns over stored weights that lie in columns
when it has loaded them.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeopt.backends.openvino.runtime import import_openvino, refuse_libraries, version
from edgeopt.errors import ModelError
from edgeopt.model import Model, save
from edgeopt.quantize.placement import limits
from runtime_bench.runners.openvino import sentence

MARK = re.compile(r"^@(\d+)@")
"""How the operators that come from one node are named until the file is written: ``@<number of the node>@<rest>``."""

WEIGHTS = "/weights"
"""What the stored weights of a node are called, behind its mark."""

_LIMITS = {ir.DataType.UINT8: (0, 255), ir.DataType.INT8: (-128, 127)}
_STORED = frozenset({ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT4, ir.DataType.UINT4})
_BODIES = frozenset({"If", "Loop", "TensorIterator"})


def convert(model: Model) -> Any:
    """OpenVINO's model of a graph; its operators are named ``@<i>@...`` after node ``i`` of ``model.nodes()``.

    Raises:
        ModelError: OpenVINO has no operator for one of the nodes, or does not take what it is given.
        ToolchainError: the model brings operators for onnxruntime, or openvino is missing.
    """
    refuse_libraries(model.origin.libraries)
    ov = import_openvino()
    marked = model.clone()
    nodes = list(marked.nodes())
    for number, node in enumerate(nodes):
        node.name = f"@{number}@"
    for node in nodes:
        _saturate(node)
    with tempfile.TemporaryDirectory(prefix="edgeopt-") as folder:
        path = Path(folder) / "model.onnx"
        save(marked, path, external_data=True)
        try:
            converted = ov.Core().read_model(path)
        except RuntimeError as error:
            raise ModelError(
                f"OpenVINO {version()} cannot take the model: {_without_marks(sentence(str(error)), model)}",
                remedy="Build for onnxruntime (--backend onnxruntime), or export the model without that operator.",
            ) from error
        made = {op.get_friendly_name(): op for op in converted.get_ordered_ops() if MARK.match(op.get_friendly_name())}
        weights = _rebuild_weights(ov, nodes, made)
        _join_pairs(ov, nodes, made)
        if not any(op.get_type_name() in _BODIES for op in converted.get_ops()):
            _fold(ov, converted, weights)
    return converted


def _saturate(node: ir.Node) -> None:
    """Let QuantizeLinear read what a Clip or Relu reads, where that changes no integer."""
    value = node.inputs[0] if node.op_type == "QuantizeLinear" else None
    clip = None if value is None else value.producer()
    if value is None or clip is None or clip.op_type not in ("Relu", "Clip") or clip.domain or clip.graph is None:
        return
    bounds, scale, zero = limits(clip), _constant(node, 1), _constant(node, 2)
    type = node.outputs[0].dtype
    if bounds is None or scale is None or scale.size != 1 or zero is None or type not in _LIMITS:
        return
    if value.is_graph_output() or len(value.uses()) != 1 or clip.graph is not node.graph:
        return
    step, (least, most) = float(scale.reshape(())), (q - int(zero.reshape(())) for q in _LIMITS[type])
    if bounds[0] < step * (least + 0.5) and bounds[1] > step * (most - 0.5):
        node.replace_input_with(0, clip.inputs[0])
        clip.graph.remove(clip, safe=True)


def _without_marks(text: str, model: Model) -> str:
    """A message with the names of the nodes that it means."""
    names = [str(node.name) for node in model.nodes()]
    return re.sub(r"@(\d+)@", lambda found: names[int(found.group(1))], text)


def _constant(node: ir.Node, index: int) -> np.ndarray | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return value.const_value.numpy()


def _rebuild_weights(ov: Any, nodes: list[ir.Node], made: Mapping[str, Any]) -> list[Any]:
    """Spell stored weights as the plugin recognizes them; the operators that give their real values are returned."""
    found, numbers = [], {node: number for number, node in enumerate(nodes)}
    for number, node in enumerate(nodes):
        op = made.get(f"@{number}@")
        stored = node.inputs[0] if node.op_type == "DequantizeLinear" else None
        if op is None or stored is None or stored.const_value is None or stored.dtype not in _STORED:
            continue
        found.append(op)
        scale, zero = _constant(node, 1), _constant(node, 2)
        source = _source(op)
        if scale is None or source is None or "block_size" in node.attributes:
            continue
        opset, shape = ov.opset8, _along(node, stored)
        readers = [use.get_node() for use in op.output(0).get_target_inputs()]
        turned = len(stored.shape or ()) == 2 and bool(readers) and all(map(_takes_columns, readers))
        if turned:
            source = opset.constant(np.ascontiguousarray(source.get_data().T), source.get_element_type())
        reader = next((use.node for use in node.outputs[0].uses()), node)
        source.set_friendly_name(f"@{numbers[reader]}@{WEIGHTS}")

        def spread(array: np.ndarray, shape: Any = shape, turned: bool = turned) -> Any:
            real = array.astype(np.float32).reshape(shape(array.size))
            return ov.opset8.constant(np.ascontiguousarray(real.T if turned else real), np.float32)

        real = opset.convert(source, "f32")
        if zero is not None and np.any(zero != 0):
            real = opset.subtract(real, spread(zero))
        product = opset.multiply(real, spread(scale))
        product.set_friendly_name(op.get_friendly_name())
        op.output(0).replace(product.output(0))
        for old in readers if turned else ():
            factors = old.input_value(0), product
            new = opset.matmul(*factors, bool(old.get_attributes()["transpose_a"]), True)
            new.set_friendly_name(old.get_friendly_name())
            old.output(0).replace(new.output(0))
        found[-1] = product
    return found


def _takes_columns(op: Any) -> bool:
    """Whether an operator multiplies by a matrix on its right as it is written."""
    return bool(op.get_type_name() == "MatMul" and not op.get_attributes()["transpose_b"])


def _along(node: ir.Node, stored: ir.Value) -> Any:
    """Shape of a scale of so many elements that broadcasts against the stored tensor."""
    rank = 0 if stored.shape is None else len(stored.shape)
    axis = node.attributes.get_int("axis", 1) % max(rank, 1)
    return lambda size: (1,) * rank if size == 1 else tuple(size if a == axis else 1 for a in range(rank))


def _source(op: Any) -> Any | None:
    """The stored constant behind the operators that restore its values."""
    while op.get_type_name() != "Constant":
        if op.get_type_name() not in ("Multiply", "Subtract", "Convert"):
            return None
        op = op.input_value(0).get_node()
    return op


def _join_pairs(ov: Any, nodes: list[ir.Node], made: Mapping[str, Any]) -> None:
    """Each quantizer with the dequantizers behind it as one FakeQuantize."""
    numbers = {node: number for number, node in enumerate(nodes)}
    for number, node in enumerate(nodes):
        op = made.get(f"@{number}@")
        q = node.inputs[0].producer() if node.op_type == "DequantizeLinear" and node.inputs[0] is not None else None
        if op is None or q is None or q.op_type != "QuantizeLinear":
            continue
        rounded = made.get(f"@{numbers[q]}@")
        limits = _LIMITS.get(q.outputs[0].dtype or ir.DataType.FLOAT)
        grid, again = (_grid(pair) for pair in (q, node))
        if rounded is None or limits is None or grid is None or grid != again:
            continue
        rounding = rounded.input_value(0).get_node()
        if rounding.get_type_name() != "FakeQuantize":
            continue
        scale, zero = grid
        low, high = (np.float32(scale) * np.float32(limit - zero) for limit in limits)
        ends = [ov.opset8.constant(np.array(end, np.float32)) for end in (low, high)]
        joined = ov.opset8.fake_quantize(rounding.input_value(0), *ends, *ends, 256)
        joined.set_friendly_name(rounded.get_friendly_name())
        op.output(0).replace(joined.output(0))


def _grid(node: ir.Node) -> tuple[float, int] | None:
    """Scale and zero point of a pair's half, where they are single constants."""
    scale, zero = _constant(node, 1), _constant(node, 2)
    if scale is None or scale.size != 1 or (zero is not None and zero.size != 1):
        return None
    return float(scale.reshape(-1)[0]), 0 if zero is None else int(zero.reshape(-1)[0])


def _fold(ov: Any, converted: Any, kept: list[Any]) -> None:
    """Fold what is constant, but for the real values of stored weights: inputs stand in for them meanwhile."""
    from openvino.passes import ConstantFolding, Manager

    stand_ins = []
    for op in kept:
        stand_in = ov.opset8.parameter(list(op.output(0).get_shape()), ov.Type.f32)
        op.output(0).replace(stand_in.output(0))
        stand_ins.append(stand_in)
    converted.add_parameters(stand_ins)
    manager = Manager()
    manager.register_pass(ConstantFolding())
    manager.run_passes(converted)
    for op, stand_in in zip(kept, stand_ins, strict=True):
        stand_in.output(0).replace(op.output(0))
        converted.remove_parameter(stand_in)
