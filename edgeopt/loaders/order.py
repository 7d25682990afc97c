"""A stable order of nodes in which every value is computed before it is used."""

from __future__ import annotations

import heapq

import onnx


def sort_nodes(graph: onnx.GraphProto) -> bool:
    """Order the nodes of the graph and of its subgraphs; nodes that need not move keep their order.

    Returns False when there is a cycle; the graph is then left as it was.
    """
    for node in graph.node:
        for attribute in node.attribute:
            nested = [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]
            if not all(sort_nodes(g) for g in nested):
                return False
    producers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    needs = [{producers[name] for name in _used(node) if name in producers} for node in graph.node]
    if all(all(need < i for need in wanted) for i, wanted in enumerate(needs)):
        return True
    users: list[list[int]] = [[] for _ in needs]
    for i, wanted in enumerate(needs):
        for need in wanted:
            users[need].append(i)
    left = [len(wanted) for wanted in needs]
    ready = [i for i, count in enumerate(left) if count == 0]
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for user in users[i]:
            left[user] -= 1
            if left[user] == 0:
                heapq.heappush(ready, user)
    if len(order) < len(needs):
        return False
    nodes = list(graph.node)
    sorted_nodes = [onnx.NodeProto.FromString(nodes[i].SerializeToString()) for i in order]
    del graph.node[:]
    graph.node.extend(sorted_nodes)
    return True


def _used(node: onnx.NodeProto) -> set[str]:
    """Names a node reads: its inputs, and what its subgraphs capture from outside."""
    names = set(node.input)
    for attribute in node.attribute:
        for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
            inner: set[str] = {v.name for v in graph.output}
            for child in graph.node:
                inner |= _used(child)
            own = {name for child in graph.node for name in child.output}
            own |= {v.name for v in graph.input} | {t.name for t in graph.initializer}
            names |= inner - own
    return names
