"""Which nodes OpenVINO takes: ``operators.json``, asked of its importer and its CPU plugin.

``since`` lists the versions of an operator that the importer has a rule for. A type is ``refused`` when every test
model of the operator with that type was; where ``some`` were, attributes decide, and only the importer itself tells.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import onnx_ir as ir

from edgeopt.backends.operators import Missing, grouped, kind_of, read_table, scopes, spelled, version
from edgeopt.model import Model
from edgeopt.target import Target

_NEEDS_RANK = frozenset({"Conv", "ConvTranspose"})


@functools.cache
def table() -> dict[str, Any]:
    """The whole table; see scripts/kernel_tables for its form."""
    return read_table(Path(__file__).with_name("operators.json"))


def judge(model: Model, target: Target) -> tuple[Missing, ...]:
    """Why the device's OpenVINO does not take a graph."""
    for library in model.origin.libraries:
        return (
            Missing(
                operator="",
                why=f"the operators of {library.name} are made for onnxruntime",
                change="Build for onnxruntime: it takes the library.",
            ),
        )
    return missing(model)


def missing(model: Model) -> tuple[Missing, ...]:
    """The nodes that OpenVINO does not take, equal reasons together; shapes and types inferred before."""
    found = []
    for node, imports in scopes(model):
        reason = _reason(node, imports)
        if reason is not None:
            found.append((reason, node))
    return grouped(found)


def _reason(node: ir.Node, imports: dict[str, int]) -> Missing | None:
    release, name, since = table()["releases"][0], spelled(node), version(node, imports)
    entry = table()["operators"].get(name)

    def lacks(why: str, change: str, *, kind: str = "", certain: bool = True) -> Missing:
        why = f"OpenVINO {release} {why}"
        return Missing(operator=name, opset=since, kind=kind, why=why, change=change, certain=certain)

    if entry is None or since is None:
        return lacks("has no operator for it", "Build for onnxruntime, or export the model without it.")
    first = entry["since"][0]
    if since < first:
        return lacks(
            f"has version {first} of it and newer, not {since}",
            f"Export the model with an operator set that has version {first} of it.",
        )
    kind = kind_of(node.inputs[0]) if node.inputs else None
    if name in _NEEDS_RANK and node.inputs[0] is not None and node.inputs[0].shape is None:
        return lacks(
            "has to know how many dimensions its input has, and the graph does not tell",
            "Build it, with openvino installed: its importer tells; or fix shapes with --shape.",
            certain=False,
        )
    partly = entry.get("some", {}).get(kind)
    if partly is not None:
        return lacks(
            f"takes some forms of it; of another it said: {partly}",
            "Build it, with openvino installed: its importer tells.",
            kind=str(kind),
            certain=False,
        )
    said = entry.get("refused", {}).get(kind)
    if said is not None:
        return lacks(
            f"refuses it for {kind}: {said}",
            "Export the network in float32, or build for onnxruntime.",
            kind=str(kind),
        )
    return None
