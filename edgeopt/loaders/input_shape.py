"""``--shape`` as text: sizes of an input, and, where a file does not tell, its type and which sizes stay open."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

LARGEST_DIM = 2**31 - 1

DTYPES = ("float32", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
"""Types that may stand behind the sizes."""

OPEN_SIZE = 2
"""What an open size is while a network is exported; 1 would be taken for a size that never changes."""

_OPEN = re.compile(r"[A-Z][A-Z0-9_]*", re.ASCII)


class InputShape(tuple[int, ...]):
    """Sizes of one input; a plain tuple of sizes means the same without type and open sizes.

    Attributes:
        dtype: numpy name of the element type; None when it was not given.
        open: names of open sizes by their position; the tuple holds ``OPEN_SIZE`` there.
    """

    dtype: str | None
    open: Mapping[int, str]

    def __new__(
        cls, sizes: tuple[int, ...], *, dtype: str | None = None, open: Mapping[int, str] | None = None
    ) -> InputShape:
        """Sizes as a tuple, with what else is known."""
        made = super().__new__(cls, sizes)
        made.dtype = dtype
        made.open = dict(open or {})
        return made


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Read ``name=1x3x224x224``; ``name=`` alone is a scalar. The name may hold any character, ``=`` included.

    ``ids=1x64:int64`` gives the type too. ``x=Nx3x224x224`` leaves a size open: a name in capitals, without an x.

    Raises:
        ValueError: says what is wrong with the text.
    """
    name, equals, rest = text.rpartition("=")
    if not equals or not name:
        raise ValueError(f'"{text}" is not NAME=SIZES; write for example input=1x3x224x224')
    dims, colon, dtype = rest.partition(":")
    if colon and dtype not in DTYPES:
        raise ValueError(f'"{dtype}" in "{text}" is not a type; known are {", ".join(DTYPES)}')
    sizes: list[int] = []
    names: dict[int, str] = {}
    for position, part in enumerate(re.split("[x×,]", dims) if dims else ()):
        if _OPEN.fullmatch(part):
            names[position] = part
            sizes.append(OPEN_SIZE)
            continue
        if not (part.isascii() and part.isdigit()):
            raise ValueError(f'"{part}" in "{text}" is not a whole number; write sizes as in 1x3x224x224')
        size = int(part)
        if not 1 <= size <= LARGEST_DIM:
            raise ValueError(f'the size {size} in "{text}" is not between 1 and {LARGEST_DIM}')
        sizes.append(size)
    if dtype or names:
        return name, InputShape(tuple(sizes), dtype=dtype or None, open=names)
    return name, tuple(sizes)


def as_json(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """For a process that exports: by name ``{"sizes", "dtype", "open"}``."""
    return {
        name: {
            "sizes": list(sizes),
            "dtype": getattr(sizes, "dtype", None),
            "open": [[position, symbol] for position, symbol in getattr(sizes, "open", {}).items()],
        }
        for name, sizes in shapes.items()
    }
