"""An initializer that is also listed as a graph input becomes a plain constant.

Such an input has a default value that a caller may override; nobody deploys a model that way, and nothing may be
folded while it is possible.

1. An input goes only when an initializer of its name exists; the inputs a caller must feed stay, in order.
2. Files older than IR version 4 had to list every initializer; the model is stamped 4.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import RemoveInitializersFromInputsPass

from edgeopt.passes._pass import Pass


def _rewrite(model: ir.Model) -> int:
    before = sum(len(graph.inputs) for graph in model.graphs())
    RemoveInitializersFromInputsPass()(model)
    model.ir_version = max(model.ir_version, 4)
    return before - sum(len(graph.inputs) for graph in model.graphs())


# No value changes, but a runtime may now fold what it had to compute: BatchNormalization into Conv, say.
DROP_INITIALIZER_INPUTS = Pass(
    name="drop-initializer-inputs", rewrite=_rewrite, tolerance=1e-4, gain="weights that nobody feeds can be folded"
)
