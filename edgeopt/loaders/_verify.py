"""Runs an exported network beside the torch program it came from; runs in the child process."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

OPSET = 20
"""The opset that the passes work on; torch keeps 18 where it cannot convert."""

EXTERNAL_BYTES = 1_500_000_000
"""Weights in bytes from which they are written beside the model: one protobuf file ends at 2 GiB."""

LARGEST_ERROR, LARGEST_ERROR_HALF = 1e-3, 2e-2
"""Largest allowed max|difference| / max|reference| between the program and its export, for 32 and for 16 bits."""

LARGEST_INPUT = 1 << 26
"""Elements from which no input is made up."""

DRAWS = ("randn", "rand")
"""Two distributions: behind a Relu one of them alone may give zeros everywhere."""


def open_session(exported: str) -> Any:
    """A session without graph optimization; None where the CPU has no kernel for a type."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(exported, options, providers=["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
        return None  # the baseline run will say so


def compare(got: Sequence[Any], wanted: Sequence[Any], what: str = "the program") -> None:
    """Exit with the difference where the outputs (numpy arrays) are not those of torch (tensors)."""
    if len(got) != len(wanted):
        sys.exit(f"the export has {len(got)} outputs, {what} {len(wanted)}")
    for position, (ours, theirs) in enumerate(zip(got, wanted)):
        _compare_output(position, ours, theirs)


def _compare_output(position: int, ours: Any, theirs: Any) -> None:
    import numpy as np

    if tuple(ours.shape) != tuple(theirs.shape):
        sys.exit(f"output {position} has shape {tuple(ours.shape)}, in torch {tuple(theirs.shape)}")
    if theirs.numel() == 0 or theirs.is_complex():
        return
    if not theirs.is_floating_point():
        differ = float((ours != theirs.numpy()).mean())
        # A near tie may turn an argmax; a wrong export turns most of them.
        if differ > 0.1:
            sys.exit(
                f"output {position} of the ONNX export differs from the torch program in {differ:.0%} of the values"
            )
        return
    reference = theirs.double().numpy()
    if not np.isfinite(reference).all():
        return
    error = float(np.abs(ours.astype(np.float64) - reference).max()) / max(float(np.abs(reference).max()), 1e-6)
    allowed = LARGEST_ERROR if theirs.element_size() >= 4 else LARGEST_ERROR_HALF
    if not error <= allowed:
        sys.exit(
            f"output {position} of the ONNX export differs from the torch program by {error:.1e} of its largest value "
            f"(allowed {allowed:.0e}): the exporter changed the network, or the program draws random numbers"
        )


def made_up(shape: Sequence[int], dtype: Any, draw: str) -> Any:
    """A tensor of ``shape`` (each a number); None for a type or a size that is not made up."""
    import torch

    if dtype == torch.bfloat16 or dtype.is_complex or math.prod(shape) > LARGEST_INPUT:
        return None
    if dtype.is_floating_point:
        return getattr(torch, draw)(list(shape), generator=torch.Generator().manual_seed(0)).to(dtype)
    # Ones are valid as token numbers, as masks and as sizes.
    return torch.ones(list(shape), dtype=dtype)
