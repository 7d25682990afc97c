"""Which nodes the CPU provider of a release has a kernel for: ``kernels.json``, asked of each release itself.

A node of version v, with operand types t, runs when the release has a kernel ``[first, last]`` of the operator with
``first = v``, or ``first < v <= last`` where ``last`` is stated, whose constraints hold all of t. Two rules go on top:

1. float16 without a kernel is computed in float32 between casts that the runtime puts in, where that has one. bfloat16
   is not.
2. An operator without a kernel that onnx spells out by smaller ones runs for types with which the release loads every
   test model of onnx; where it loads some of them, the table does not tell.
3. A kernel of LSTM, GRU or RNN refuses ``layout = 1`` when the file is loaded; one of RotaryEmbedding refuses
   ``rotary_embedding_dim`` without ``num_heads`` up to ``HEADS``.

A release between two of the table is judged by the older one.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from edgeopt.backends.onnxruntime.releases import version_key
from edgeopt.backends.operators import Missing, grouped, kind_of, read_table, scopes, spelled, version
from edgeopt.errors import ToolchainError
from edgeopt.model import LAYOUTS, Model
from edgeopt.target import Target

_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
_WITHOUT_KERNEL = frozenset({"Constant"})  # stored tensors before kernels are looked for
_BATCH_FIRST = frozenset({"LSTM", "GRU", "RNN"})

HEADS = "1.23.2"
"""The last release of the table whose RotaryEmbedding wants to know the heads of a tensor that has an axis for them."""

Places = dict[str, str | None]


@functools.cache
def table() -> dict[str, Any]:
    """The whole table; see scripts/kernel_tables for its form."""
    return read_table(Path(__file__).with_name("kernels.json"))


def judged_by(release: str) -> tuple[int, str]:
    """Place and name of the release of the table that speaks for this one; the oldest for older ones."""
    releases: Sequence[str] = table()["releases"]
    known = [i for i, name in enumerate(releases) if version_key(name) <= version_key(release)]
    place = known[-1] if known else 0
    return place, releases[place]


def missing(model: Model, release: str) -> tuple[Missing, ...]:
    """The nodes that a release has no kernel for, equal reasons together; shapes and types inferred before."""
    place, _ = judged_by(release)
    found = []
    for node, imports in scopes(model):
        if spelled(node) in _WITHOUT_KERNEL or node.domain in LAYOUTS:
            continue
        reason = _reason(node, imports, place, known_library=bool(model.origin.libraries))
        if reason is not None:
            found.append((reason, node))
    return grouped(found)


def require(model: Model, target: Target) -> None:
    """Refuse a graph with a node that the device's release has no kernel for; what the table leaves open passes.

    Raises:
        ToolchainError: there is one.
    """
    release = target.runtime.get("onnxruntime")
    found = () if release is None else missing(model, release)
    for one in (one for one in found if one.certain):
        raise ToolchainError(
            f"{target.name} does not run {one.operator} (node {one.nodes[0]}): {one.why}", remedy=one.change
        )


def _reason(node: ir.Node, imports: dict[str, int], place: int, *, known_library: bool) -> Missing | None:
    name, since = spelled(node), version(node, imports)
    brought = known_library and name not in table()["operators"] and name not in table()["functions"]
    if node.domain not in _DOMAINS or brought:
        library = "the device needs the library that has it"
        why = library if known_library else "no part of the runtime"
        return Missing(operator=name, why=why, change="Give the device the library, or replace it.", certain=False)
    if since is None:
        why = "is in no operator set that the model imports"
        known = onnx.defs.has(node.op_type, node.domain)  # else it is a custom one, which a library may bring
        return Missing(operator=name, why=why, change="Export the model again.", certain=known)
    places = _operands(node)
    if node.op_type in _BATCH_FIRST and node.attributes.get_int("layout", 0) == 1:
        why, change = "its kernel does not take layout = 1", "Export it with the sequence first, layout = 0."
        return Missing(operator=name, opset=since, why=why, change=change)
    if name == "RotaryEmbedding" and place <= table()["releases"].index(HEADS):
        given = {key: node.attributes.get_int(key, 0) for key in ("rotary_embedding_dim", "num_heads")}
        if given["rotary_embedding_dim"] > 0 and given["num_heads"] == 0 and _runs(name, since, places, place):
            why, change = "its kernel wants num_heads beside rotary_embedding_dim", "Export it with num_heads."
            return Missing(operator=name, opset=since, why=why, change=change)
    if _runs(name, since, places, place):
        return None
    return _explained(name, since, places, place)


def _operands(node: ir.Node) -> Places:
    """Types by place: ``"0"`` is the first input, ``">0"`` the first output."""
    given = {str(i): kind_of(v) for i, v in enumerate(node.inputs) if v is not None}
    made = {f">{i}": kind_of(v) for i, v in enumerate(node.outputs) if v.name}
    return {**given, **made}


def _runs(name: str, since: int, places: Places, place: int) -> bool:
    if _has_kernel(name, since, places, place):
        return True
    if "float16" in places.values():
        in_float32: Places = {k: "float" if kind == "float16" else kind for k, kind in places.items()}
        if _has_kernel(name, since, in_float32, place):
            return True
    return _spelled_out(name, since, places, place) == "all"


def _spelled_out(name: str, since: int, places: Places, place: int) -> str | None:
    """Which test models a release loads where onnx spells the operator out: ``"all"``, ``"some"``, or None."""
    kinds = table()["functions"].get(name, {}).get(str(since), {})
    first = places.get("0") or places.get(">0")
    if first is None and places:  # nothing is known of the types, and nothing is held against them
        return "all" if any(place in every for every, _ in kinds.values()) else None
    every, some = kinds.get(first or "float", ((), ()))
    return "all" if place in every else "some" if place in some else None


def _has_kernel(name: str, since: int, places: Places, place: int) -> bool:
    types = table()["types"]
    for first, last, releases, constraints in table()["operators"].get(name, ()):
        versions = first == since or (last is not None and first < since <= last)
        held = (_held(where, types[number], places) for where, number in constraints.items())
        if place in releases and versions and all(held):
            return True
    return False


def _held(where: str, allowed: Sequence[str], places: Places) -> bool:
    """Whether the operands at these places have an allowed type; one whose type is not known has."""
    for spot in where.split():
        kinds = _from(spot[:-1], places) if spot.endswith("*") else [places.get(spot)]
        if any(kind is not None and kind not in allowed for kind in kinds):
            return False
    return True


def _from(spot: str, places: Places) -> list[str | None]:
    """The operands of a side from a place on."""
    side, least = (">", int(spot[1:])) if spot.startswith(">") else ("", int(spot))
    return [kind for key, kind in places.items() if key.startswith(">") == bool(side) and int(key.strip(">")) >= least]


def _explained(name: str, since: int, places: Places, place: int) -> Missing:
    releases: Sequence[str] = table()["releases"]
    later = next((releases[i] for i in range(place + 1, len(releases)) if _runs(name, since, places, i)), None)
    kinds = sorted({kind for kind in places.values() if kind is not None})
    if _spelled_out(name, since, places, place) == "some":
        return Missing(
            operator=name,
            opset=since,
            kind=", ".join(kinds),
            why=f"onnxruntime {releases[place]} has no kernel for it and runs some forms of it by smaller operators",
            change="Build it here and load it on the device.",
            certain=False,
        )
    entries = [entry for entry in table()["operators"].get(name, ()) if place in entry[2]]
    anything: Places = {}
    if not entries and name not in table()["functions"]:
        why, kind = f"onnxruntime {releases[place]} has no kernel for it", ""
    elif not _runs(name, since, anything, place):
        newest = _newest(entries)
        why, kind = f"onnxruntime {releases[place]} has kernels up to version {newest} of it, not for {since}", ""
    else:
        kind = ", ".join(kinds)
        why = f"onnxruntime {releases[place]} has no kernel for {kind}"
    if later is not None:
        change = f"Update onnxruntime on the device to {later} or newer."
    elif kind and _runs(name, since, {k: "float" if _is_float(v) else v for k, v in places.items()}, place):
        change = "Export the network in float32."
    else:
        change = "Export the model without it, or give a library that has it with --custom-ops."
    return Missing(operator=name, opset=since, kind=kind, why=why, change=change)


def _is_float(kind: str | None) -> bool:
    return kind in ("float16", "bfloat16", "double") or (kind is not None and kind.startswith("float"))


def _newest(entries: Sequence[Any]) -> int:
    return max((first if last is None else last for first, last, _, _ in entries), default=0)
