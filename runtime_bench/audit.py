"""What a runtime really ran, from its own profile: which provider each node was on, in which type, how many MACs.

A session that was asked for an accelerator runs on the CPU whatever the accelerator lacks, and says so nowhere but in
its profile. Everything here is a pure function of that profile's events.
"""

from __future__ import annotations

from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from runtime_bench.errors import BenchFailure

CONVOLUTIONS = frozenset(("Conv", "FusedConv", "NhwcConv", "NhwcFusedConv", "QLinearConv", "ConvInteger"))
PRODUCTS = frozenset(
    (
        *("MatMul", "FusedMatMul", "FusedMatMulActivation", "TransposeMatMul", "Gemm", "FusedGemm", "GemmFastGelu"),
        *("MatMulNBits", "MatMulBnb4", "MatMulFpQ4", "QLinearMatMul", "QGemm", "MatMulInteger", "MatMulInteger16"),
        *("MatMulIntegerToFloat", "DynamicQuantizeMatMul"),
    )
)
UNCOUNTED = frozenset(
    (
        *("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM", "Einsum", "DeformConv", "Attention", "QAttention"),
        *("MultiHeadAttention", "GroupQueryAttention", "DecoderMaskedMultiHeadAttention", "PackedAttention"),
        *("PackedMultiHeadAttention", "SparseAttention", "LinearAttention", "MoE", "QMoE"),
    )
)
"""Operators that multiply and accumulate in a way that shapes alone do not tell."""

MOVES = frozenset(
    (
        *("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Concat", "Slice", "Split", "Gather"),
        *("GatherND", "GatherElements", "ScatterND", "ScatterElements", "Pad", "Expand", "Tile", "Shape", "Size"),
        *("Cast", "DepthToSpace", "SpaceToDepth", "ReorderInput", "ReorderOutput", "MemcpyFromHost", "MemcpyToHost"),
        *("Constant", "ConstantOfShape", "If", "Loop", "Scan", "QuantizeLinear", "DequantizeLinear"),
        *("DynamicQuantizeLinear",),
    )
)
"""Operators that move or convert values: neither integer nor float arithmetic."""

NARROW = frozenset(("int8", "uint8", "int16", "uint16", "int4", "uint4"))
REAL = frozenset(("float", "float16", "bfloat16", "double"))
INDEX = frozenset(("int32", "int64", "uint32", "uint64", "bool"))
_INTEGER_INSIDE = frozenset(("DynamicQuantizeMatMul", "DynamicQuantizeLSTM"))
_SUFFIX = "_kernel_time"

Shapes = List[Tuple[str, List[int]]]


class _Node(NamedTuple):
    """One node of one run. ``macs`` is None where it cannot be told; ``why`` then says why."""

    key: tuple[str, str]
    op: str
    provider: str
    kind: str
    macs: Optional[int]
    why: Optional[str]


def from_profile(events: Sequence[Mapping[str, Any]], asked: str) -> dict[str, Any]:
    """Sum up the node events of one run.

    Args:
        events: of onnxruntime's profile; a node event has ``args`` with ``op_name``, ``provider``,
            ``input_type_shape`` and ``output_type_shape``. Constants that a kernel packed for itself are missing
            there, so the session that is profiled must not pack.
        asked: full name of the provider that was asked for.

    Returns ``asked``; ``nodes`` and ``providers`` (nodes by provider); ``outside``: ``{"op", "provider", "count",
    "macs"}`` of nodes on another provider than asked, without ``shape_nodes_outside``, the shape arithmetic that
    runtimes put on the CPU on purpose; ``opaque_nodes``: subgraphs that a provider compiled, whose contents are not
    told; ``macs`` (by provider, for one run, as executed: the padding of blocked layouts counts) or None with
    ``macs_reason``; ``integer_nodes``, ``float_nodes``, ``integer_macs``, ``float_macs`` of nodes that compute.
    """
    runs = [_node(event) for event in events if _is_node(event)]
    nodes = list({node.key: node for node in runs}.values())
    providers: dict[str, int] = {}
    for node in nodes:
        providers[node.provider] = providers.get(node.provider, 0) + 1
    away = [node for node in nodes if node.provider != asked]
    reasons = sorted({node.why for node in runs if node.why})
    known = not reasons
    macs = {provider: sum(node.macs or 0 for node in runs if node.provider == provider) for provider in providers}
    return {
        "asked": asked,
        "nodes": len(nodes),
        "providers": providers,
        "outside": _outside([node for node in away if node.kind != "shape"], runs),
        "shape_nodes_outside": sum(node.kind == "shape" for node in away),
        "opaque_nodes": sum(node.kind == "opaque" for node in nodes),
        "macs": macs if known else None,
        "macs_reason": None if known else "; ".join(reasons[:3]),
        "integer_nodes": sum(node.kind == "integer" for node in nodes),
        "float_nodes": sum(node.kind == "float" for node in nodes),
        "integer_macs": sum(node.macs or 0 for node in runs if node.kind == "integer") if known else None,
        "float_macs": sum(node.macs or 0 for node in runs if node.kind == "float") if known else None,
    }


def main_provider(audit: Mapping[str, Any]) -> Optional[str]:
    """The provider that did most of the work: by MACs, by nodes where they are unknown. None where nothing is known.

    A provider that compiled subgraphs counts as the one, because a compiled subgraph stands for many nodes.
    """
    providers = audit.get("providers") or {}
    if not providers:
        return None
    if audit["opaque_nodes"] and audit["asked"] in providers:
        return str(audit["asked"])
    macs = audit["macs"] or {}
    return str(max(providers, key=lambda name: (macs.get(name, 0), providers[name], name == audit["asked"], name)))


def outside_share(audit: Mapping[str, Any]) -> tuple[float, Optional[float]]:
    """Share of the nodes, and of the MACs (None where they are unknown), on another provider than was asked for."""
    nodes = sum(entry["count"] for entry in audit["outside"]) / max(audit["nodes"], 1)
    total = None if audit["macs"] is None else sum(audit["macs"].values())
    return nodes, sum(entry["macs"] for entry in audit["outside"]) / total if total else None


def check(name: str, asked: str, audit: Mapping[str, Any], allow_fallback: bool) -> None:
    """Raise BenchFailure when a subject did not run where it was asked to, unless that is allowed.

    A runtime that does not tell where it ran is taken at its word for the CPU only.
    """
    if allow_fallback:
        return
    if "providers" not in audit:
        if asked.lower() not in ("", "none", "cpu", "cpuexecutionprovider"):
            text = "{}: asked {}, and what really ran cannot be told: {}; --allow-fallback measures it all the same"
            raise BenchFailure(text.format(name, asked, audit.get("reason", "no reason is given")))
        return
    outside = audit["outside"]
    if not outside and (asked in audit["providers"] or not audit["nodes"]):
        return
    others = sorted({entry["provider"] for entry in outside} or set(audit["providers"]))
    count = sum(entry["count"] for entry in outside) or audit["nodes"]
    ops = sorted({entry["op"] for entry in outside})
    which = ": " + ", ".join(ops[:5]) + (", ..." if len(ops) > 5 else "") if asked in audit["providers"] else ""
    text = "{}: asked {}, got {}: {} of {} nodes{} ran there{}; --allow-fallback measures it all the same"
    raise BenchFailure(text.format(name, asked, " and ".join(others), count, audit["nodes"], _weight(audit), which))


def precision_error(precision: Optional[str], audit: Mapping[str, Any]) -> Optional[str]:
    """Why a subject that is called int8 is none: no integer kernel ran in it. None when one did or nothing is known.

    Where there are MACs they decide: an integer pooling layer between float convolutions makes no int8 model.
    """
    if precision != "int8" or "providers" not in audit or audit["opaque_nodes"]:
        return None
    by_macs = audit["macs"] is not None and sum(audit["macs"].values()) > 0
    integer = audit["integer_macs"] if by_macs else audit["integer_nodes"]
    if integer or not audit["float_nodes"]:
        return None
    text = "int8 is claimed, and no integer kernel ran: all {} nodes that compute did so in float"
    if audit["integer_nodes"]:
        text = "int8 is claimed, and no multiplication ran on integers: {} nodes computed in float"
    return text.format(audit["float_nodes"])


def _weight(audit: Mapping[str, Any]) -> str:
    """How much of the work lies outside the provider that was asked for, in brackets; empty where it is unknown."""
    share = outside_share(audit)[1]
    if share is not None and audit["outside"]:
        return " ({:.0f} % of the MACs)".format(share * 100)
    return " (compiled subgraphs: {})".format(audit["opaque_nodes"]) if audit["opaque_nodes"] else ""


def _is_node(event: Mapping[str, Any]) -> bool:
    arguments = event.get("args")
    return (
        event.get("cat") == "Node"
        and isinstance(arguments, dict)
        and str(event.get("name", "")).endswith(_SUFFIX)
        and bool(arguments.get("op_name"))
    )


def _node(event: Mapping[str, Any]) -> _Node:
    arguments = event["args"]
    name, op, provider = str(event["name"])[: -len(_SUFFIX)], str(arguments["op_name"]), str(arguments["provider"])
    inputs, outputs = _shapes(arguments.get("input_type_shape")), _shapes(arguments.get("output_type_shape"))
    key = (name, str(arguments.get("node_index", "")))
    if name.startswith(provider + "_"):  # how onnxruntime names the node that stands for a compiled subgraph
        return _Node(key, "compiled subgraph", provider, "opaque", None, "{} compiles subgraphs".format(provider))
    kind = _kind(op, inputs, outputs)
    if op in UNCOUNTED:
        return _Node(key, op, provider, kind, None, "the MACs of {} are not counted".format(op))
    if op not in CONVOLUTIONS and op not in PRODUCTS and op != "ConvTranspose":
        return _Node(key, op, provider, kind, 0, None)
    macs = _macs(op, [shape for _, shape in inputs], [shape for _, shape in outputs])
    return _Node(key, op, provider, kind, macs, "the profile lacks shapes of {}".format(op) if macs is None else None)


def _kind(op: str, inputs: Shapes, outputs: Shapes) -> str:
    """``integer`` or ``float`` for arithmetic, ``shape`` for arithmetic on shapes, ``move`` for the rest."""
    tensors = inputs + outputs
    if op in ("Shape", "Size") or (tensors and all(t in INDEX and len(shape) <= 1 for t, shape in tensors)):
        return "shape"
    if op in MOVES:
        return "move"
    if op in _INTEGER_INSIDE or op.startswith("QLinear"):  # the first input of QLinearConcat is a scale
        return "integer"
    first = inputs[0][0] if inputs else ""
    return "integer" if first in NARROW else "float" if first in REAL else "move"


def _macs(op: str, inputs: list[list[int]], outputs: list[list[int]]) -> Optional[int]:
    """Multiply-accumulates of one node; None where a shape that they need is missing."""
    if not inputs or not outputs:
        return None
    x, y = inputs[0], outputs[0]
    if op in PRODUCTS:
        return _product_macs(op, x, y)
    weights = [shape for shape in inputs[1:] if len(shape) == len(y) >= 3]
    if not weights:
        return None
    weight = weights[0]
    if op == "ConvTranspose":
        return _size(x) * _size(weight[1:]) if weight[0] == x[1] else None
    return _size(y) * _size(weight[1:]) if weight[0] in (y[1], y[-1]) else None  # else it is the addend of a fusion


def _product_macs(op: str, x: list[int], y: list[int]) -> Optional[int]:
    """Every output element sums over the depth, which ``x`` tells; a transposed ``x`` has it in the other place."""
    if not x:
        return None
    depth = x[-1]
    if "Gemm" in op or op in ("FusedMatMul", "TransposeMatMul", "FusedMatMulActivation"):
        if len(x) < 2 or len(y) < 2 or not y[-2]:
            return None
        depth, rest = divmod(x[-1] * x[-2], y[-2])
        if rest:
            return None
    return _size(y) * depth


def _outside(away: Sequence[_Node], runs: Sequence[_Node]) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for node in away:
        new = {"op": node.op, "provider": node.provider, "count": 0, "macs": 0}
        found.setdefault((node.op, node.provider), new)["count"] += 1
    for node in runs:
        entry = found.get((node.op, node.provider))
        if entry is not None and node.kind != "shape":
            entry["macs"] = None if entry["macs"] is None or node.macs is None else entry["macs"] + node.macs
    return sorted(found.values(), key=lambda entry: (-(entry["macs"] or 0), -entry["count"], entry["op"]))


def _shapes(entries: Any) -> Shapes:
    """``[{"float": [1, 3]}, ...]`` as pairs; anything else is left out."""
    found: Shapes = []
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and len(entry) == 1:
            ((kind, shape),) = entry.items()
            if isinstance(shape, list) and all(isinstance(dim, int) for dim in shape):
                found.append((str(kind), list(shape)))
    return found


def _size(shape: Sequence[int]) -> int:
    product = 1
    for dim in shape:
        product *= dim
    return product
