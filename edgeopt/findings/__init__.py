"""What a network is, seen before any work: Model -> findings. Only ``try_dimensions`` runs it."""

from __future__ import annotations

from edgeopt.findings import baked, custom, opening, quantized, subgraphs, training, types
from edgeopt.findings.finding import Finding
from edgeopt.model import Model

__all__ = ["Finding", "look", "try_dimensions"]

_LOOKS = (training.find, quantized.find, custom.find, subgraphs.find, types.find)
"""In the order of the report."""


def look(model: Model) -> tuple[Finding, ...]:
    """Everything that the graph alone tells."""
    return tuple(finding for one in _LOOKS for finding in one(model))


def try_dimensions(model: Model) -> tuple[Finding, ...]:
    """Run the model on noise: open dimensions that are fixed inside, and fixed ones that could be opened.

    Nothing is tried where operators are unknown.

    Raises:
        ModelError: the runtime does not run it.
    """
    if custom.unknown_nodes(model):
        return ()
    tolerance = baked.QUANTIZED_TOLERANCE if quantized.count(model) else baked.TOLERANCE
    stuck = baked.find(model, opening.noise(model), tolerance=tolerance)
    found = [
        Finding(kind="baked-dims", text=one.text, nodes=(one.node,) if one.node else (), level="warning")
        for one in stuck
    ]
    return (*found, *opening.find(model, tolerance=tolerance))
