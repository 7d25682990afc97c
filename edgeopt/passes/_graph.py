"""Small questions about a graph, and the few edits that every rewrite needs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from edgeopt.model import ABSORBED, NODE_KEY, node_key

DERIVED = "edgeopt.derived_shape"
"""Key in ``value.meta`` of a graph output: the shape that inference derived, beside the declared one."""

Array = npt.NDArray[Any]


def is_op(node: ir.Node | None, *ops: str) -> bool:
    """Whether ``node`` is one of ``ops`` of the default domain."""
    return node is not None and node.domain == "" and node.op_type in ops


def is_constant(value: ir.Value | None) -> bool:
    """Whether the value is an initializer that no caller can override."""
    return value is not None and value.is_initializer() and not value.is_graph_input() and value.const_value is not None


def constant(value: ir.Value | None) -> Array | None:
    """The array of a constant (see ``is_constant``), else None. Not a copy: do not write to it."""
    if value is None or not is_constant(value) or value.const_value is None:
        return None
    return value.const_value.numpy()


def constant_bytes(value: ir.Value | None) -> int:
    """Bytes of a constant, without loading it; 0 when it is not one."""
    return value.const_value.nbytes if value is not None and is_constant(value) and value.const_value else 0


def integers(value: ir.Value | None) -> list[int] | None:
    """The integers of a constant index vector, flattened; None when it is no constant, or holds other numbers."""
    array = constant(value)
    return None if array is None or array.dtype.kind not in "iub" else [int(i) for i in array.reshape(-1)]


def dims(value: ir.Value | None) -> tuple[int | None, ...] | None:
    """The shape with None for every dim that is not a known number; None when the rank is unknown.

    The shape that a file declares for a graph output is a claim, not a fact (exporters write a symbolic batch where
    the graph fixes it): for outputs only what ``infer_shapes`` derived counts.
    """
    if value is None:
        return None
    shape: ir.Shape | None = value.shape
    if value.is_graph_output() and not value.is_graph_input() and not value.is_initializer():
        shape = value.meta.get(DERIVED)
    return None if shape is None else tuple(d if isinstance(d, int) else None for d in shape)


def static_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape when every dim is a known number, else None."""
    shape = dims(value)
    return None if shape is None or None in shape else tuple(d for d in shape if d is not None)


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """The input, None when it is omitted or empty."""
    return node.inputs[index] if index < len(node.inputs) else None


def attr_int(node: ir.Node, name: str, default: int) -> int:
    """An integer attribute or its default."""
    attr = node.attributes.get(name)
    return default if attr is None else attr.as_int()


def attr_float(node: ir.Node, name: str, default: float) -> float:
    """A float attribute or its default."""
    attr = node.attributes.get(name)
    return default if attr is None else attr.as_float()


def attr_str(node: ir.Node, name: str, default: str) -> str:
    """A string attribute or its default."""
    attr = node.attributes.get(name)
    return default if attr is None else attr.as_string()


def attr_ints(node: ir.Node, name: str) -> list[int] | None:
    """A list attribute, None when it is absent."""
    attr = node.attributes.get(name)
    return None if attr is None else list(attr.as_ints())


def other_outputs_used(node: ir.Node) -> bool:
    """Whether an output besides the first is read or is a graph output."""
    return any(out.uses() or out.is_graph_output() for out in node.outputs[1:])


def why_not_private(value: ir.Value) -> str | None:
    """Why the node that makes ``value`` cannot take over its only user; None when it can."""
    if value.is_graph_output():
        return "its input is a graph output"
    if len(value.uses()) > 1:
        return "its input has a second consumer"
    return None


def drop_if_unused(*values: ir.Value | None) -> None:
    """Remove those of ``values`` that are initializers which nothing reads any more."""
    for value in values:
        if (
            value is not None
            and is_constant(value)
            and not (value.uses() or value.is_graph_output())
            and value.graph is not None
            and value.name is not None
        ):
            value.graph.initializers.pop(value.name, None)


def replace_node(node: ir.Node, source: ir.Value) -> str | None:
    """Remove ``node``: readers of its first output read ``source``, an equal value, instead.

    A graph output keeps its name: ``source`` takes it over, which needs a node of the same graph behind it.

    Returns:
        Why it cannot be done (then nothing changed), or None.
    """
    out, graph = node.outputs[0], node.graph
    if graph is None:
        return "node is in no graph"
    if out.is_graph_output():
        producer = source.producer()
        if producer is None or producer.graph is not graph:
            return "it wires an input, a constant or an outer value to a graph output"
        if source.is_graph_output():
            return "it makes a second graph output of one value"
        _take_over(source, out)
    out.replace_all_uses_with(source, replace_graph_outputs=True)
    inputs = node.inputs
    graph.remove(node, safe=True)
    drop_if_unused(*inputs)
    return None


def absorb(anchor: ir.Node, follower: ir.Node) -> None:
    """Remove ``follower``, whose work ``anchor`` now does: the anchor's output takes the name of the follower's.

    The caller has checked ``why_not_private(anchor.outputs[0])`` and that both are in one graph. The anchor
    keeps its key and records the follower's.
    """
    source, out = anchor.outputs[0], follower.outputs[0]
    graph = follower.graph
    assert graph is not None
    assert graph is anchor.graph
    record_absorbed(anchor, follower)
    _take_over(source, out)
    out.replace_all_uses_with(source, replace_graph_outputs=True)
    inputs = follower.inputs
    graph.remove(follower, safe=True)
    drop_if_unused(*inputs)


def record_absorbed(anchor: ir.Node, follower: ir.Node) -> None:
    """Note in the anchor's metadata that it does the work of ``follower`` and of what that one had absorbed."""
    keys = [anchor.metadata_props.get(ABSORBED, ""), node_key(follower), follower.metadata_props.get(ABSORBED, "")]
    joined = ",".join(k for k in keys if k)
    if joined:
        anchor.metadata_props[ABSORBED] = joined


def _take_over(source: ir.Value, out: ir.Value) -> None:
    """Give ``source`` the name, type and shape of ``out``, which is about to go."""
    name = out.name
    out.name = None
    source.name = name
    if out.type is not None:
        source.type = out.type
    if out.shape is not None:
        source.shape = out.shape
    if DERIVED in out.meta:
        source.meta[DERIVED] = out.meta[DERIVED]
    source.metadata_props.update(out.metadata_props)


def value_names(model: ir.Model) -> set[str]:
    """Names of all values of all graphs; names are never shadowed, so new ones must be unlike all of them."""
    names: set[str] = set()
    for graph in model.graphs():
        names.update(v.name or "" for v in graph.inputs)
        names.update(graph.initializers)
        names.update(out.name or "" for node in graph for out in node.outputs)
    return names


def new_constant(model: ir.Model, graph: ir.Graph, name: str, array: Array) -> ir.Value:
    """Register ``array`` as an initializer of ``graph`` under ``name`` or, where taken, ``name_2``, ``name_3``..."""
    taken = value_names(model)
    unique, n = name, 1
    while unique in taken:
        n += 1
        unique = f"{name}_{n}"
    return register(graph, unique, array)


def register(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    """Register ``array`` as an initializer under a name that the caller knows to be free."""
    tensor = ir.Tensor(array, name=name)
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
    graph.register_initializer(value)
    return value


def nodes_of(model: ir.Model) -> list[ir.Node]:
    """All nodes of the main graph and its subgraphs, as a list that survives edits."""
    return list(model.graph.all_nodes())


def complete_keys(model: ir.Model) -> None:
    """Give a key to nodes without one and a fresh key to the later nodes of one key; others keep theirs."""
    nodes = nodes_of(model)
    taken = {node_key(node) for node in nodes}
    seen: set[str] = set()
    for node in nodes:
        key = node.metadata_props.get(NODE_KEY)
        if key is not None and key not in seen:
            seen.add(key)
            continue
        base = key or f"{node.op_type}:{node.outputs[0].name if node.outputs else ''}"
        fresh, n = base, 1
        while fresh in taken:
            n += 1
            fresh = f"{base}#{n}"
        taken.add(fresh)
        seen.add(fresh)
        node.metadata_props[NODE_KEY] = node.name = fresh


def all_finite(*arrays: Array) -> bool:
    """Whether no element of any array is infinite or NaN."""
    return all(bool(np.isfinite(a).all()) for a in arrays)


def first_line(error: Exception) -> str:
    """The first line of an error of a tool, shortened; its class where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0][:160] if lines else type(error).__name__
