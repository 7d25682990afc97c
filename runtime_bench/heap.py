"""The C library's heap: what is free in it and still counts as this process's memory."""

from __future__ import annotations

from typing import Any

LARGE = 128 << 10
"""Bytes. Blocks from this size on get a mapping of their own, which goes back to the system when they are freed."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt, as <malloc.h> numbers them


def keep_small() -> bool:
    """Have large blocks mapped one by one; whether the C library can (glibc, and no other).

    Left to itself glibc raises the size from which it does so, up to 32 MB, with each large block that is freed; blocks
    below it share a heap, whose holes are seldom given back.
    """
    call = _function("mallopt")
    if call is None:
        return False
    return bool(call(_MMAP_THRESHOLD, LARGE)) and bool(call(_TRIM_THRESHOLD, LARGE))


def trim() -> bool:
    """Give free pages of the heap back to the system; whether the C library can (glibc, and no other)."""
    call = _function("malloc_trim")
    if call is None:
        return False
    call(0)
    return True


def _function(name: str) -> Any:
    import ctypes  # no worker that does not need it pays for it

    try:
        call = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):  # musl, macOS; Windows knows no library without a name
        return None
    call.argtypes = [ctypes.c_size_t] if name == "malloc_trim" else [ctypes.c_int, ctypes.c_int]
    call.restype = ctypes.c_int
    return call
