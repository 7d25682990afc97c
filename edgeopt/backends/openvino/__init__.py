"""OpenVINO on CPU: an IR of two files, with int8 as FakeQuantize and stored weights."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from edgeopt.backends.openvino.conversion import convert
from edgeopt.backends.openvino.lowering import baseline, lower, minimum
from edgeopt.backends.openvino.memory import predict
from edgeopt.backends.openvino.operators import judge
from edgeopt.backends.openvino.readback import fused
from edgeopt.backends.openvino.runtime import DEVICE, Compiled, import_openvino
from edgeopt.backends.openvino.table import TABLE
from edgeopt.errors import ModelError, ToolchainError
from edgeopt.model import Model
from edgeopt.passes import Pass
from edgeopt.target import Target

__all__ = ["NAME", "PROVIDER", "TABLE", "baseline", "fused", "interpreter", "lower", "minimum", "passes", "probe"]
__all__ += ["judge", "predict", "refuses"]

NAME = "openvino"
PROVIDER = DEVICE


def passes(target: Target) -> tuple[Pass, ...]:
    """None: the importer takes every operator set, and the plugin has its own fusions."""
    return ()


def probe() -> str | None:
    """Why this backend cannot build here, or None."""
    try:
        import_openvino()
    except ToolchainError as error:
        return error.message
    return None


def refuses(model: Model) -> str | None:
    """Why OpenVINO does not take a model, or None. It is converted for the answer."""
    try:
        convert(model)
    except (ModelError, ToolchainError) as error:
        return error.message
    return None


def interpreter(path: Path, libraries: Iterable[Path] = (), *, optimize: bool = True) -> Compiled:
    """An artifact as this runtime runs it, one thread, float parts in float32: what its quality is judged by.

    Args:
        optimize: means nothing here: this runtime always does.

    Raises:
        ModelError: the runtime refuses it.
    """
    return Compiled(path, libraries=libraries)
