"""Constant nodes become initializers: y = Constant(value) -> the initializer y.

1. Every form is lifted: value, value_int(s), value_float(s), value_string(s).
2. A Constant that is a graph output stays a node.
3. Refused for sparse_value, which initializers cannot hold.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from edgeopt.model import Model, node_key
from edgeopt.passes._graph import is_op, nodes_of
from edgeopt.passes._pass import Pass
from edgeopt.target import Target


def _refuses(model: Model, target: Target | None) -> str | None:
    sparse = [node for node in nodes_of(model.ir) if is_op(node, "Constant") and "sparse_value" in node.attributes]
    return f"Constant {node_key(sparse[0])} is sparse" if sparse else None


def lift(model: ir.Model) -> int:
    """Lift every Constant node in place; returns how many."""
    before = len(nodes_of(model))
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    model.ir_version = max(model.ir_version, 4)
    return before - len(nodes_of(model))


LIFT_CONSTANTS = Pass(
    name="lift-constants",
    rewrite=lift,
    tolerance=1e-6,
    refuses=_refuses,
    gain="weights in one place, read and not copied",
)
