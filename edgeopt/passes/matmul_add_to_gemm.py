"""MatMul(A, B) + c = Gemm(A, B, c) for matrices A [M, K], constant B [K, N] and constant c of N values.

1. A is known to have rank 2 (Gemm takes matrices only) and B is a constant of rank 2.
2. c is a constant of shape [N] or [1, N]; [M, N], scalars and [M, 1] are left alone.
3. The MatMul output has no other consumer and is no graph output. B may be shared: it does not change.
4. The types are float types, and both nodes are in one graph.

Weight-only quantization loses nothing: Gemm(A, B, c) with alpha = beta = 1 says as much as the pair, whose other form
(A of rank 3 and more) stays a MatMul. Integer kernels gain: the bias goes into the product.
"""

from __future__ import annotations

import onnx_ir as ir

from edgeopt.model import node_key
from edgeopt.passes._graph import absorb, dims, is_constant, is_op, nodes_of, static_shape, why_not_private
from edgeopt.passes._pass import Pass, Refusal, Rewritten

FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
"""Types for which both operators are defined; no arithmetic is done here."""


def _candidate(node: ir.Node) -> tuple[ir.Node, ir.Value] | None:
    """The MatMul and the constant of an Add that joins the two."""
    if not is_op(node, "Add") or len(node.inputs) != 2:
        return None
    for index in (0, 1):
        value, bias = node.inputs[index], node.inputs[1 - index]
        matmul = value.producer() if value is not None else None
        if matmul is not None and is_op(matmul, "MatMul") and bias is not None and is_constant(bias):
            return matmul, bias
    return None


def _why_not(add: ir.Node, matmul: ir.Node, bias: ir.Value) -> str | None:
    left, right = matmul.inputs
    if len(dims(left) or ()) != 2:
        return "the MatMul input is not known to be a matrix"
    shape = static_shape(right)
    if not is_constant(right) or shape is None or len(shape) != 2:
        return "weights are not a constant matrix"
    if static_shape(bias) not in ((shape[1],), (1, shape[1])):
        return "bias is not one value per column"
    if right is not None and right.dtype not in FLOATS:
        return "type is not a float type"
    if matmul.graph is not add.graph:
        return "its input is in another graph"
    return why_not_private(matmul.outputs[0])


def _rewrite(model: ir.Model) -> Rewritten:
    count, refusals = 0, []
    for node in nodes_of(model):
        if (found := _candidate(node)) is None:
            continue
        matmul, bias = found
        if why := _why_not(node, matmul, bias):
            refusals.append(Refusal(node_key(node), why))
            continue
        matmul.op_type = "Gemm"
        matmul.resize_inputs(3)
        matmul.replace_input_with(2, bias)
        absorb(matmul, node)
        count += 1
    return Rewritten(count=count, refusals=tuple(refusals))


MATMUL_ADD_TO_GEMM = Pass(
    name="matmul-add-to-gemm", rewrite=_rewrite, tolerance=1e-5, gain="one operator and one buffer fewer"
)
