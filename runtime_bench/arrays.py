"""Reading ``.npy`` files of unknown origin. numpy is imported inside: workers that need none do without."""

from __future__ import annotations

from typing import Any


def load_array(path: str) -> Any:
    """Read a ``.npy`` file. Raises ValueError for pickled objects, or a header that promises more than the file holds.

    The file is mapped first, which fails on a false size before anything is allocated, and then copied.
    """
    import numpy

    mapped = numpy.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(mapped, numpy.ndarray):
        raise ValueError("{} is not a .npy file".format(path))
    return numpy.array(mapped)
