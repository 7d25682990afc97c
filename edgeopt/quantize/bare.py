"""The model with its activations as floats: what rounding weights alone does.

y = DQ(Q(x)) with x computed  ->  y = x. Weights and biases stay what they are, DQ of integers. Roundings of activations
are noise that hides by several decibels what a choice about weights gains.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeopt.model import Model


def without_activations(model: Model) -> Model:
    """A copy without the Q/DQ pairs on computed tensors."""
    changed = model.clone()
    for node in list(changed.graph):
        quantizer = node.inputs[0].producer() if node.op_type == "DequantizeLinear" and node.inputs[0] else None
        if quantizer is None or quantizer.op_type != "QuantizeLinear":
            continue
        exact, rounded = quantizer.inputs[0], node.outputs[0]
        assert exact is not None
        if rounded.is_graph_output():
            continue
        for use in list(rounded.uses()):
            use.node.replace_input_with(use.idx, exact)
    _sweep(changed.graph)
    return changed


def _sweep(graph: ir.Graph) -> None:
    for node in reversed(list(graph)):
        dead = not any(out.uses() or out.is_graph_output() for out in node.outputs)
        if dead and node.op_type in ("DequantizeLinear", "QuantizeLinear"):
            graph.remove(node, safe=True)
