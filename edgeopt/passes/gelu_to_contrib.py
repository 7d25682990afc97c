"""Gelu of opset 20 -> Gelu or FastGelu of com.microsoft, for devices whose onnxruntime reads older opsets only.

Gelu(x) = com.microsoft.Gelu(x)                         Gelu(x; approximate = "tanh") = com.microsoft.FastGelu(x)

1. x is float32.
2. Off where the target reads opset 20: there the runtime takes ONNX's own operator as far.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeopt.model import Model
from edgeopt.passes._chain import fuse, rewrite_each
from edgeopt.passes._graph import attr_str, input_at, is_op
from edgeopt.passes._pass import Pass
from edgeopt.target import Target

_DOMAIN = "com.microsoft"
_OPSET = 20


def _match(model: ir.Model, node: ir.Node) -> bool | str:
    if not is_op(node, "Gelu") or (x := input_at(node, 0)) is None:
        return False
    if x.dtype != ir.DataType.FLOAT:
        return "type is not float32"
    op = "FastGelu" if attr_str(node, "approximate", "none") == "tanh" else "Gelu"
    return fuse(model, [node], op, [x], domain=_DOMAIN) or True


def _refuses(model: Model, target: Target | None) -> str | None:
    if target is None or target.opset_max >= _OPSET:
        return f"the runtime reads Gelu of opset {_OPSET}"
    return None


GELU_TO_CONTRIB = Pass(
    name="gelu-to-contrib",
    rewrite=rewrite_each(_match),
    tolerance=1e-5,
    gain="one operator on runtimes that do not read opset 20",
    refuses=_refuses,
)
