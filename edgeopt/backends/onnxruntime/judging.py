"""Why the release on a device does not take a graph, from tables alone."""

from __future__ import annotations

from edgeopt.backends.onnxruntime.kernels import missing
from edgeopt.backends.onnxruntime.lowering import at_opset, check
from edgeopt.backends.operators import Missing
from edgeopt.errors import ToolchainError
from edgeopt.model import Model
from edgeopt.target import Target


def judge(model: Model, target: Target) -> tuple[Missing, ...]:
    """Why the release of a profile does not take a finished graph: what reading the file needs, then its operators."""
    try:
        levelled = at_opset(model, target)
        check(levelled, target)
    except ToolchainError as refusal:
        return (Missing(operator="", why=refusal.message, change=refusal.remedy or ""),)
    release = target.runtime.get("onnxruntime")
    return () if release is None else missing(levelled, release)
