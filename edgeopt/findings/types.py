"""Types of a network's numbers and of its interface that a build has to know."""

from __future__ import annotations

import onnx_ir as ir

from edgeopt.findings.finding import Finding, listed
from edgeopt.model import Model

_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def float_bytes(model: Model) -> dict[str, int]:
    """Bytes of stored floating-point tensors by type name, largest first."""
    totals: dict[str, int] = {}
    for graph in model.ir.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and tensor.dtype.is_floating_point():
                name = tensor.dtype.name.lower()
                totals[name] = totals.get(name, 0) + tensor.nbytes
        for node in graph:
            attribute = node.attributes.get("value") if node.op_type == "Constant" else None
            if attribute is not None and attribute.type == ir.AttributeType.TENSOR:
                tensor = attribute.as_tensor()
                if tensor.dtype.is_floating_point():
                    totals[tensor.dtype.name.lower()] = totals.get(tensor.dtype.name.lower(), 0) + tensor.nbytes
    return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))


def computes_in(model: Model) -> str:
    """``float16``, ``bfloat16`` or ``float64`` where weighted operators take it, else ``float32``."""
    found: dict[str, int] = {}
    for node in model.nodes():
        if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul") and node.inputs:
            kinds = [
                v.dtype for v in node.inputs if v is not None and v.dtype is not None and v.dtype.is_floating_point()
            ]
            for kind in kinds[:1]:
                found[kind.name.lower()] = found.get(kind.name.lower(), 0) + 1
    name = max(found, key=lambda key: (found[key], key), default="float32")
    return {"float": "float32", "double": "float64"}.get(name, name)


def find(model: Model) -> tuple[Finding, ...]:
    """Strings in the interface, and networks of half or double floats."""
    found = []
    strings = [v.name or "" for v in (*model.graph.inputs, *model.graph.outputs) if v.dtype == ir.DataType.STRING]
    if strings:
        found.append(
            Finding(
                kind="strings",
                text=f"strings at {listed(strings)}: no set can feed or compare them",
                level="refusal",
                remedy="Export the network without its text processing, from the first tensor of numbers on.",
            )
        )
    kind = computes_in(model)
    if kind != "float32":
        found.append(Finding(kind="floats", text=f"computes in {kind}: int8 needs float32 operators to start from"))
    return tuple(found)
