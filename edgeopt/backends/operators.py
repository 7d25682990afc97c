"""Which nodes of a graph a runtime does not run, judged from tables that the runtimes were asked for. Nothing is run.

The tables are written by scripts/kernel_tables and lie beside each backend.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from edgeopt.model import Model, node_key

SCHEMA = "edgeopt.kernels/1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Missing:
    """One reason why a runtime does not take a network.

    Attributes:
        operator: ``"Gelu"``, ``"com.microsoft:Gelu"``; empty where it is the whole file.
        opset: the version of the operator that the network uses; None where that is not the matter.
        kind: element types of its inputs, ``"float16"``; empty where they are not the matter.
        nodes: keys of the nodes that it is about.
        why: what is wrong, a phrase.
        change: what would have to change, one sentence.
        certain: False where the table does not say, so that only a build can tell.
    """

    operator: str
    why: str
    change: str
    opset: int | None = None
    kind: str = ""
    nodes: tuple[str, ...] = ()
    certain: bool = True


def read_table(path: Path) -> dict[str, Any]:
    """A table as scripts/kernel_tables wrote it; it belongs to the package."""
    table: dict[str, Any] = json.loads(path.read_text(encoding="ascii"))
    assert table["schema"] == SCHEMA, path
    return table


def spelled(node: ir.Node) -> str:
    """How tables call an operator: its name, behind its domain where that is not the default one."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}:{node.op_type}"


def version(node: ir.Node, imports: dict[str, int]) -> int | None:
    """The version of a node's operator under these operator sets; 1 for domains that onnx does not define."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    opset = imports.get(domain, imports.get("ai.onnx", 0) if domain == "" else 1)
    if domain not in ("", "ai.onnx.ml"):
        return 1
    try:
        return int(onnx.defs.get_schema(node.op_type, opset, domain).since_version)
    except onnx.defs.SchemaError:
        return None


def kind_of(value: ir.Value | None) -> str | None:
    """The type of a value as tables spell it: ``"float"``, ``"seq(tensor(float))"``; None when it is not known."""
    if value is None:
        return None
    if value.const_value is not None:
        return value.const_value.dtype.name.lower()
    return None if value.type is None else _kind(value.type)


def _kind(held: ir.TypeProtocol) -> str | None:
    if isinstance(held, ir.SequenceType | ir.OptionalType):
        inner = _kind(held.elem_type)
        word = "seq" if isinstance(held, ir.SequenceType) else "optional"
        wrapped = inner if inner is None or "(" in inner else f"tensor({inner})"
        return None if wrapped is None else f"{word}({wrapped})"
    return None if held.dtype == ir.DataType.UNDEFINED else held.dtype.name.lower()


def grouped(found: Iterable[tuple[Missing, ir.Node]]) -> tuple[Missing, ...]:
    """Equal reasons as one, with the keys of all their nodes."""
    nodes: dict[Missing, list[str]] = {}
    for missing, node in found:
        nodes.setdefault(missing, []).append(node_key(node))
    return tuple(dataclasses.replace(missing, nodes=tuple(keys)) for missing, keys in nodes.items())


def scopes(model: Model) -> Iterator[tuple[ir.Node, dict[str, int]]]:
    """Every node, in subgraphs and local functions too, with the operator sets that hold for it.

    A node that calls a local function is none of the runtime's operators and is left out.
    """
    local = {(domain, name) for domain, name, _ in model.ir.functions}
    imports = dict(model.ir.opset_imports)
    bodies = [(model.graph.all_nodes(), imports)]
    bodies += [(f.all_nodes(), {**imports, **f.opset_imports}) for f in model.ir.functions.values()]
    for nodes, held in bodies:
        for node in nodes:
            if (node.domain, node.op_type) not in local:
                yield node, held
