"""onnxruntime on CPU: ``.onnx`` or ``.ort``, with int8 as Q/DQ pairs that its optimizer fuses into integer kernels."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from edgeopt.backends import Artifact, Fused, NodeRun
from edgeopt.backends.onnxruntime.judging import judge
from edgeopt.backends.onnxruntime.lowering import lower, minimum
from edgeopt.backends.onnxruntime.memory import predict
from edgeopt.backends.onnxruntime.memory_options import run_options
from edgeopt.backends.onnxruntime.own_graph import native
from edgeopt.backends.onnxruntime.readback import PROVIDER, fused
from edgeopt.backends.onnxruntime.table import TABLE
from edgeopt.errors import ToolchainError
from edgeopt.interpreter import Interpreter, import_onnxruntime
from edgeopt.model import INTERNAL_OPSET, Model, file_sha256, save
from edgeopt.passes import Pass
from edgeopt.passes.fuse_attention import fuse_attention
from edgeopt.passes.gelu_to_contrib import GELU_TO_CONTRIB
from edgeopt.passes.lower_opset import OLDEST, lower_opset
from edgeopt.passes.older_average_pool import LAST, OLDER_AVERAGE_POOL
from edgeopt.passes.prelu_to_max import PRELU_TO_MAX
from edgeopt.passes.respell_rms_norm import RESPELL_RMS_NORM
from edgeopt.passes.spell_softplus import SPELL_SOFTPLUS
from edgeopt.passes.spread_softmax import SPREAD_SOFTMAX
from edgeopt.passes.sum_before_layer_norm import SUM_BEFORE_LAYER_NORM
from edgeopt.target import Target

__all__ = ["NAME", "PROVIDER", "TABLE", "Fused", "NodeRun", "baseline", "fused", "interpreter", "lower", "minimum"]
__all__ += ["judge", "native", "passes", "predict", "probe", "run_options"]

NAME = "onnxruntime"

OWN_OPERATORS: tuple[Pass, ...] = (
    RESPELL_RMS_NORM,
    GELU_TO_CONTRIB,
    PRELU_TO_MAX,
    SPELL_SOFTPLUS,
    SPREAD_SOFTMAX,
    SUM_BEFORE_LAYER_NORM,
)
"""Fusions into operators that only this runtime has, in order. They run last, on every artifact's graph."""


def passes(target: Target) -> tuple[Pass, ...]:
    """Rewrites that only this backend wants, after everything else; each one says itself where it does not pay."""
    if target.opset_max >= INTERNAL_OPSET:
        return (*OWN_OPERATORS, fuse_attention(target.runtime.get("onnxruntime")), OLDER_AVERAGE_POOL)
    lowered = (*OWN_OPERATORS, lower_opset(max(OLDEST, target.opset_max)))
    return (*lowered, OLDER_AVERAGE_POOL) if target.opset_max > LAST else lowered


def probe() -> str | None:
    """Why this backend cannot build here, or None."""
    try:
        import_onnxruntime()
    except ToolchainError as error:
        return error.message
    return None


def interpreter(path: Path, libraries: Iterable[Path] = (), *, optimize: bool = True) -> Interpreter:
    """An artifact as this runtime runs it, one thread: what its quality is judged by.

    Raises:
        ModelError: the runtime refuses it.
    """
    return Interpreter(path, libraries=libraries, optimize=optimize)


def baseline(model: Model, target: Target, out: Path) -> Artifact:
    """The model as loaded, in one file as this runtime reads it; it is measured and never shipped."""
    save(model, out)
    return Artifact(
        path=out,
        format="onnx",
        precision="original",
        bytes=out.stat().st_size,
        sha256=file_sha256(out),
        toolchain={},
    )
