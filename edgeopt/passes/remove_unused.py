"""Dead code: nodes, initializers, local functions and opset imports that no graph output depends on.

1. Graph inputs stay, read or not: they are part of the interface.
2. Outputs of a node that nothing reads are dropped where the operator allows it.
3. The default domain stays imported.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedFunctionsPass, RemoveUnusedNodesPass, RemoveUnusedOpsetsPass

from edgeopt.passes._graph import drop_if_unused, nodes_of
from edgeopt.passes._pass import Pass


def _size(model: ir.Model) -> int:
    initializers = sum(len(graph.initializers) for graph in model.graphs())
    return len(nodes_of(model)) + initializers + len(model.functions) + len(model.graph.opset_imports)


def _rewrite(model: ir.Model) -> int:
    before = _size(model)
    RemoveUnusedNodesPass()(model)
    for graph in list(model.graphs()):
        drop_if_unused(*graph.initializers.values())
    RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    RemoveUnusedOpsetsPass()(model)
    return before - _size(model)


REMOVE_UNUSED = Pass(name="remove-unused", rewrite=_rewrite, tolerance=1e-6, gain="nothing is kept that nobody reads")
