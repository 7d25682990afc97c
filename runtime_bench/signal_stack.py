"""The stack that signal handlers of this thread run on, kept over a call into a library that changes it."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from typing import Iterator


class _Stack(ctypes.Structure):
    """stack_t of Linux."""

    _fields_ = (("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextlib.contextmanager
def kept_signal_stack() -> Iterator[None]:
    """Put back the alternate signal stack of the calling thread.

    OpenVINO's CPU plugin gives the thread that loads it a stack of its own for signals, and later unmaps it without
    taking it back. The next signal that is handled, an interrupt from the keyboard say, is a segmentation fault.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    libc, before = ctypes.CDLL(None), _Stack()
    libc.sigaltstack(None, ctypes.byref(before))
    try:
        yield
    finally:
        libc.sigaltstack(ctypes.byref(before), None)
