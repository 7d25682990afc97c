"""Where a network stores its weights, in every graph it has, and who reads them.

A weight may be read as it is, through a chain of operators that only arrange values (exporters reorder the gates of an
LSTM with Slice and Concat), by several operators, and from inside an If or Loop. Operators whose output channels are
the same rows of numbers share one weight: it is quantized once and stored once.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence, Set

import numpy as np
import onnx_ir as ir

from edgeopt.model import Model, node_key
from edgeopt.quantize.placement import keys_of

MIN_BYTES = 512
"""A smaller float weight is not worth the operators that restore it."""

RECURRENT = ("LSTM", "GRU", "RNN")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Site:
    """One operator that reads a weight.

    Attributes:
        index: of the input.
        axis: of the output channels in what it reads.
        turned: it reads the transpose of the rows.
    """

    node: ir.Node
    index: int
    axis: int
    turned: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weight:
    """One stored weight.

    Attributes:
        rows: float32; for a matrix [output channels, inputs], else as its operators read it.
        axis: axis of the output channels in ``rows``.
        sites: its readers, in the order of the graph.
        name: of the tensor in the file.
    """

    rows: np.ndarray
    axis: int
    sites: tuple[Site, ...]
    name: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """All weights, and the reason by node key for every operator whose weight stays as it is."""

    weights: tuple[Weight, ...]
    stays_float: Mapping[str, str]


def find(model: Model, exclude: Set[str]) -> Found:
    """Every weight that can be stored in fewer bits. Nothing is changed.

    Args:
        exclude: node keys that stay in float; a weight that one of them reads does, for all its readers.
    """
    groups: dict[tuple[str, int, tuple[int, ...]], list[tuple[Site, ir.Value]]] = {}
    held: dict[tuple[str, int, tuple[int, ...]], np.ndarray] = {}
    reasons: dict[str, str] = {}
    barred: dict[tuple[str, int, tuple[int, ...]], str] = {}
    for node in model.graph.all_nodes():
        roles = _roles(node)
        for index, axis in roles.items():
            value = node.inputs[index] if index < len(node.inputs) else None
            if value is None:
                continue
            array = constant_array(value)
            reason = _refusal(node, index, array)
            if reason is not None:
                reasons[node_key(node)] = reason
                continue
            assert array is not None
            axis %= array.ndim
            turned = array.ndim == 2 and axis == 1
            rows = np.ascontiguousarray(array.T if turned else array)
            row_axis = 0 if turned else axis
            key = (hashlib.sha256(rows.data).hexdigest(), row_axis, rows.shape)
            if key not in held:
                held[key] = rows
            groups.setdefault(key, []).append((Site(node=node, index=index, axis=axis, turned=turned), value))
            if not exclude.isdisjoint(keys_of(node)):
                reasons[node_key(node)] = "excluded by request"
                barred[key] = node_key(node)
    weights = []
    for key, members in groups.items():
        if key in barred:
            for site, _ in members:
                why = f"shares its weight with {barred[key]}, which is excluded"
                reasons.setdefault(node_key(site.node), why)
            continue
        name = _source_name(members[0][1])
        weights.append(Weight(rows=held[key], axis=key[1], sites=tuple(s for s, _ in members), name=name))
    return Found(weights=tuple(weights), stays_float=reasons)


def _roles(node: ir.Node) -> dict[int, int]:
    """Inputs of an operator that hold weights, and the axis of the output channels of each."""
    if node.domain not in ("", "ai.onnx"):
        return {}
    if node.op_type == "Conv":
        return {1: 0}
    if node.op_type == "ConvTranspose":
        return {1: 1}
    if node.op_type == "Gemm":
        return {1: 0 if node.attributes.get_int("transB", 0) else 1}
    if node.op_type == "MatMul":
        return {1: -1}
    if node.op_type == "Gather":
        return {0: 0}
    if node.op_type in RECURRENT:
        return {1: 1, 2: 1}
    return {}


def _refusal(node: ir.Node, index: int, array: np.ndarray | None) -> str | None:
    if array is None:
        return "its weight is not a constant"
    if array.dtype != np.float32:
        return f"its weight is {array.dtype}, not float32"
    if array.nbytes < MIN_BYTES:
        return "its weight is small"
    if array.ndim < 2:
        return "its weight is a vector"
    if not np.isfinite(array).all():
        return "its weight holds NaN or infinity"
    if node.op_type == "Gather" and (array.ndim != 2 or node.attributes.get_int("axis", 0) not in (0, -2)):
        return "it does not look up rows of a table"
    if any(value is not None and value.is_graph_output() for value in (node.inputs[index],)):
        return "its weight is a graph output"
    return None


def constant_array(value: ir.Value | None) -> np.ndarray | None:
    """The value of an initializer, or of operators that arrange constants; None for anything else.

    A graph input's default is not a constant.
    """
    if value is None or value.is_graph_input():
        return None
    if value.const_value is not None:
        return None if value.const_value.dtype == ir.DataType.STRING else value.const_value.numpy()
    node = value.producer()
    if node is None or node.domain not in ("", "ai.onnx") or node.op_type not in _ARRANGING:
        return None
    arrays = [constant_array(v) if v is not None else None for v in node.inputs]
    if not arrays or any(a is None and v is not None for a, v in zip(arrays, node.inputs, strict=True)):
        return None
    try:
        return _arranged(node, arrays)
    except (ValueError, IndexError, TypeError):  # shapes that contradict each other, in a branch that is never taken
        return None


_ARRANGING = ("Identity", "Transpose", "Slice", "Concat", "Squeeze", "Unsqueeze", "Reshape", "Flatten")


def _arranged(node: ir.Node, arrays: list[np.ndarray | None]) -> np.ndarray | None:
    data = arrays[0]
    assert data is not None
    extra = [None if a is None else [int(i) for i in a.reshape(-1)] for a in arrays[1:] if node.op_type != "Concat"]
    if node.op_type == "Identity":
        return data
    if node.op_type == "Transpose":
        return data.transpose(list(node.attributes.get_ints("perm", list(range(data.ndim))[::-1])))
    if node.op_type == "Concat":
        return np.concatenate([a for a in arrays if a is not None], axis=node.attributes["axis"].as_int())
    if node.op_type == "Squeeze":
        return data.squeeze(tuple(extra[0]) if extra and extra[0] is not None else None)
    if node.op_type == "Unsqueeze" and extra and extra[0] is not None:
        return np.expand_dims(data, tuple(extra[0]))
    if node.op_type == "Reshape" and extra and extra[0] is not None:
        copied = [data.shape[i] if d == 0 else d for i, d in enumerate(extra[0])]
        return None if node.attributes.get_int("allowzero", 0) else data.reshape(copied)
    if node.op_type == "Flatten":
        axis = node.attributes.get_int("axis", 1) % (data.ndim + 1)
        return data.reshape(int(np.prod(data.shape[:axis])), -1)
    if node.op_type == "Slice" and len(extra) >= 2 and extra[0] is not None and extra[1] is not None:
        axes = extra[2] if len(extra) > 2 and extra[2] is not None else list(range(len(extra[0])))
        steps = extra[3] if len(extra) > 3 and extra[3] is not None else [1] * len(axes)
        if any(step < 1 for step in steps):
            return None
        cut = [slice(None)] * data.ndim
        for axis, start, end, step in zip(axes, extra[0], extra[1], steps, strict=True):
            cut[axis] = slice(start, end, step)
        return data[tuple(cut)]
    return None


def _source_name(value: ir.Value) -> str:
    """Name of the tensor that a weight comes from, through what arranges it."""
    while value.const_value is None and (node := value.producer()) is not None and node.inputs[0] is not None:
        value = node.inputs[0]
    return str(value.name)


def first_layers(weights: Sequence[Weight], share: float) -> list[bool]:
    """Whether a weight is that of a Conv that a float input of the network reaches and no other weight does.

    Args:
        share: of all weights; a larger one is no first layer.
    """
    total = sum(w.rows.nbytes for w in weights)
    weighted = {site.node for weight in weights for site in weight.sites}
    return [
        weight.rows.nbytes <= share * total
        and all(site.node.op_type == "Conv" and _reads_input(site.node, weighted) for site in weight.sites)
        for weight in weights
    ]


def reads_matrix(node: ir.Node) -> bool:
    """Whether the first factor of a product has two axes or more: kernels for integers do not take vectors."""
    source = node.inputs[0]
    return node.op_type == "Gemm" or (source is not None and source.shape is not None and len(source.shape) >= 2)


def _reads_input(node: ir.Node, weighted: Set[ir.Node]) -> bool:
    """Whether a float graph input reaches an operator, and nothing that comes from weights does."""
    pending, seen, reached = [node.inputs[0]], set[ir.Value](), False
    while pending:
        value = pending.pop()
        if value is None or value in seen or value.const_value is not None:
            continue
        seen.add(value)
        maker = value.producer()
        if maker is None:
            reached |= value.dtype == ir.DataType.FLOAT
        elif maker in weighted:
            return False
        else:
            pending += list(maker.inputs)
            for attribute in maker.attributes.values():
                if attribute.type == ir.AttributeType.GRAPH:
                    pending += list(attribute.as_graph().outputs)
    return reached
