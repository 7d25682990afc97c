"""Give memory back to the system between stages: the compiler's own peak is a promise."""

from __future__ import annotations

import ctypes
import gc
import sys


def release() -> None:
    """Collect cycles (graphs point at their nodes and back) and return free heap pages, where the C library can."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not
        if trim is not None:
            trim(0)
