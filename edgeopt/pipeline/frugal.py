"""Give memory back to the system between stages: the compiler's own peak is a promise."""

from __future__ import annotations

import ctypes
import gc
import sys

SMALL = 4_000_000
"""Bytes of weights below which a model that lingers until the next collection is not worth looking for."""


def release(weight_bytes: int) -> None:
    """Collect cycles (graphs point at their nodes and back) and return free heap pages, where the C library can.

    Collecting looks at every object of the process and every module it loaded: for a small model that is most of the
    time of a step.

    Args:
        weight_bytes: what the model that may have become garbage holds.
    """
    if weight_bytes >= SMALL:
        gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not
        if trim is not None:
            trim(0)
