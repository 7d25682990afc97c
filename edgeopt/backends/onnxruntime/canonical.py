"""One file for one graph: the order and the names that a runtime's optimizer leaves to chance, made a rule.

onnxruntime adds nodes in the order of hash tables whose seed changes from run to run, and numbers their names in that
order. Here the order and the numbers follow from what a node computes: its digest is that of its operator, its
attributes, and the digests of its inputs, down to graph inputs by name and weights by content.
"""

from __future__ import annotations

import hashlib
import heapq
import re
from collections.abc import Iterable, Iterator, Mapping, Set

import onnx_ir as ir

from edgeopt.errors import ModelError

_NUMBERED = re.compile(r"(_token_\d+)+$")
"""What onnxruntime puts behind a name that is taken."""

_FIRST = -1

Digests = dict[ir.Value, str]
Key = tuple[int, str, str, int]
"""Of a node, for ordering: its place in the graph before, its digest, its readers, and its place in the list."""


def canonical(model: ir.Model, kept: ir.Model) -> None:
    """Order nodes, weights and attributes of ``model`` in place, and name anew what has no name in ``kept``.

    Args:
        model: as the optimizer wrote it.
        kept: the graph before; its names stay, and its order as far as the nodes still exist.

    Raises:
        ModelError: the graph has a cycle.
    """
    positions: dict[str, int] = {}
    for index, node in enumerate(kept.graph.all_nodes()):
        for name in (node.name, *(value.name for value in node.outputs)):
            if name:
                positions.setdefault(name, index)
    known = {name for graph in kept.graphs() for value in graph.initializers.values() if (name := value.name)}
    known |= {value.name for value in (*kept.graph.inputs, *kept.graph.outputs) if value.name}
    digests: Digests = {}
    _arrange(model.graph, digests, positions, inside=False)
    _rename(model, known | set(positions))


def _arrange(graph: ir.Graph, digests: Digests, positions: Mapping[str, int], *, inside: bool) -> str:
    """Order a graph and those inside it; its digest."""
    for index, value in enumerate(graph.inputs):
        digests[value] = _digest("input", str(index) if inside else str(value.name))
    for name, value in graph.initializers.items():
        if value.const_value is not None and value not in digests:
            digests[value] = _tensor(value.const_value)
        elif value not in digests:
            digests[value] = _digest("initializer", name)
    wanted = {id(value): str(index) for index, value in enumerate(graph.outputs)}
    mine = list(graph)
    own = set(mine)
    needs = {node: {p for v in _read(node) if (p := v.producer()) is not None and p in own} for node in mine}
    keys: dict[ir.Node, Key] = {}
    for node in _sorted(needs, {node: (0, "", "", index) for index, node in enumerate(mine)}):
        named = [positions[n] for n in (node.name, *(v.name for v in node.outputs)) if n is not None and n in positions]
        place = min(named) if named else max((keys[before][0] for before in needs[node]), default=_FIRST)
        keys[node] = (place, _node(node, digests, positions, wanted), "", 0)
    for index, node in enumerate(mine):  # two nodes that compute the same: what reads them tells them apart
        uses = [(*keys[use.node][:2], use.idx) for v in node.outputs for use in v.uses() if use.node in own]
        keys[node] = (*keys[node][:2], str(sorted(uses)), index)
    order = _sorted(needs, keys)
    graph.remove(mine)
    graph.extend(order)
    used = {id(v): v for node in graph for v in _read(node) if v.is_initializer() and v.graph is graph}
    used |= {id(v): v for v in graph.outputs if v.is_initializer()}
    rest = sorted((v for v in graph.initializers.values() if id(v) not in used), key=lambda v: str(v.name))
    ordered = [*used.values(), *rest]
    graph.initializers.clear()
    for value in ordered:
        graph.initializers[str(value.name)] = value
    return _digest("graph", *(digests.get(v, "") for v in graph.outputs))


def _read(node: ir.Node) -> Iterator[ir.Value]:
    """What a node reads, inside its graphs too."""
    yield from (value for value in node.inputs if value is not None)
    for attribute in node.attributes.values():
        for graph in _graphs(attribute):
            for inner in graph:
                yield from _read(inner)
            yield from graph.outputs


def _graphs(attribute: ir.Attr) -> Iterable[ir.Graph]:
    if attribute.type == ir.AttributeType.GRAPH:
        return (attribute.as_graph(),)
    return tuple(attribute.as_graphs()) if attribute.type == ir.AttributeType.GRAPHS else ()


def _node(node: ir.Node, digests: Digests, positions: Mapping[str, int], wanted: Mapping[int, str]) -> str:
    """The digest of a node, whose inputs have theirs; its attributes are put in order on the way."""
    parts = [node.domain, node.op_type, node.overload]
    parts += ["" if v is None else digests.get(v, str(v.name)) for v in node.inputs]
    attributes = [node.attributes[name] for name in sorted(node.attributes)]
    node.attributes.clear()
    for attribute in attributes:
        node.attributes[attribute.name] = attribute
        graphs = list(_graphs(attribute))
        if graphs:
            parts += [attribute.name, *(_arrange(graph, digests, positions, inside=True) for graph in graphs)]
        else:
            parts.append(ir.to_proto(attribute).SerializeToString(deterministic=True).hex())
    own = _digest(*parts)
    for index, value in enumerate(node.outputs):
        digests[value] = _digest(own, str(index))
    return _digest(own, *(wanted.get(id(value), "") for value in node.outputs))


def _tensor(tensor: ir.TensorProtocol) -> str:
    if tensor.dtype == ir.DataType.STRING:
        return _digest("strings", ir.to_proto(tensor).SerializeToString(deterministic=True).hex())
    digest = hashlib.sha256(f"{tensor.dtype.name}{list(tensor.shape.numpy())}".encode())
    digest.update(tensor.tobytes())
    return digest.hexdigest()


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _sorted(needs: Mapping[ir.Node, Set[ir.Node]], keys: Mapping[ir.Node, Key]) -> list[ir.Node]:
    """Every node behind those that it needs; of those that are free, the one with the least key first."""
    waiting = {node: len(before) for node, before in needs.items()}
    readers: dict[ir.Node, list[ir.Node]] = {}
    for node, before in needs.items():
        for one in before:
            readers.setdefault(one, []).append(node)
    by_index = {keys[node][3]: node for node in needs}
    free = [keys[node] for node, count in waiting.items() if not count]
    heapq.heapify(free)
    order = []
    while free:
        node = by_index[heapq.heappop(free)[3]]
        order.append(node)
        for reader in readers.get(node, ()):
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(free, keys[reader])
    if len(order) < len(needs):
        raise ModelError("the runtime's optimized graph has a cycle, so no order of its nodes can be written.")
    return order


def _rename(model: ir.Model, known: Set[str]) -> None:
    """Give nodes, values and weights that are not ``known`` their names by their place."""
    nodes, values = set(known), set(known)
    for graph in model.graphs():
        for node in graph:
            if node.name not in known:
                node.name = _free(node.name or node.op_type, nodes)
    for graph in model.graphs():
        new: list[ir.Value] = []
        for value in graph.initializers.values():
            if value.name not in known:
                new.append(value)
        held = list(graph.initializers.values())
        graph.initializers.clear()
        for value in new:
            value.name = _free(str(value.name), values)
        for value in held:
            graph.initializers[str(value.name)] = value
        inputs = [] if graph is model.graph else list(graph.inputs)
        for value in (*inputs, *(v for node in graph for v in node.outputs)):
            if value.name and value.name not in known:
                value.name = _free(value.name, values)


def _free(name: str, taken: set[str]) -> str:
    base = _NUMBERED.sub("", name)
    found, count = base, 1
    while found in taken:
        count += 1
        found = f"{base}#{count}"
    taken.add(found)
    return found
