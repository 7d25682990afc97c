"""Operators that the runtime does not know: found by name, never dropped, renamed or guessed at."""

from __future__ import annotations

import functools

import onnx

from edgeopt.findings.finding import Finding, listed
from edgeopt.interpreter import import_onnxruntime
from edgeopt.model import Model, node_key

_REMEDY = (
    "Give the library that implements it with --custom-ops LIBRARY, or build around it, unverified, with "
    "--keep-custom-ops."
)


@functools.cache
def known_operators() -> frozenset[tuple[str, str]]:
    """(domain, operator) of everything that ``onnx`` or the installed onnxruntime has a definition for."""
    import_onnxruntime()
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    theirs = {(schema.domain, schema.name) for schema in state.get_all_operator_schema()}
    ours = {(s.domain, s.name) for s in onnx.defs.get_all_schemas_with_history() if "training" not in s.domain}
    return frozenset(theirs | ours)


def unknown_nodes(model: Model) -> tuple[tuple[str, str, str], ...]:
    """(key, domain, operator) of every node, in subgraphs too, whose operator nobody here knows."""
    known = known_operators()
    return tuple(
        (node_key(node), node.domain, node.op_type)
        for node in model.nodes()
        if (node.domain, node.op_type) not in known and "training" not in node.domain
    )


def find(model: Model) -> tuple[Finding, ...]:
    """One refusal that names operator, domain and node of every custom operator."""
    unknown = unknown_nodes(model)
    if not unknown:
        return ()
    words = [
        f"{op} of {f'domain {domain}' if domain else 'the default domain'} (node {key})" for key, domain, op in unknown
    ]
    return (
        Finding(
            kind="custom-operators",
            text=f"onnxruntime {import_onnxruntime().__version__} does not know {listed(words)}",
            nodes=tuple(key for key, _, _ in unknown),
            level="refusal",
            remedy=_REMEDY,
        ),
    )


def operators(model: Model) -> tuple[str, ...]:
    """``domain:operator`` of every custom operator, sorted, for the manifest."""
    return tuple(sorted({f"{domain or 'ai.onnx'}:{op}" for _, domain, op in unknown_nodes(model)}))
