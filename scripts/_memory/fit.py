"""Constants that are not negative, with the least sum of absolute relative errors, by reweighted least squares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

LIBRARY: dict[str, int] = {"openvino": 3, "onnxruntime": 2}
"""How many of a backend's constants, the first ones, are pages of its library: fitted on file-backed memory alone."""

MAPS_WEIGHTS = frozenset({"openvino"})
"""Backends whose file-backed memory holds the weights too; the others copy them."""

BY_SIMULATED = frozenset({"onnxruntime"})
"""Backends whose simulated part errs in proportion to itself: what is left of a row weighs by one over that part, or
rows of 100 MB, where a node's few kilobytes are lost in the error, would set the cost of a node."""

ROUNDS, LEAST = 60, 0.01


def constants(rows: Sequence[dict[str, Any]], backend: str) -> np.ndarray:
    """The constants, bytes each, in the order of the counts of the rows.

    Args:
        rows: as ``rows.collect`` makes them, none without a simulated part.
    """
    counts = np.array([row["counts"] for row in rows], float)
    size = np.array([row["measured"] for row in rows], float)
    simulated = np.array([row["simulated"] for row in rows], float)
    mapped = np.array([row["weights"] if backend in MAPS_WEIGHTS else 0 for row in rows], float)
    library = np.array([row["file_backed"] for row in rows], float) - mapped
    first = LIBRARY[backend]
    scale = np.maximum(simulated, 1) if backend in BY_SIMULATED else size
    pages = least(counts[:, :first] / size[:, None], library / size)
    rest = least(counts[:, first:] / scale[:, None], (size - simulated - library) / scale)
    return np.concatenate([pages, rest])


def least(counts: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """``c >= 0`` with the least ``sum |counts @ c - rest|``; a constant that would be negative is 0."""
    weight = np.ones(len(rest))
    found = np.zeros(counts.shape[1])
    for _ in range(ROUNDS):
        kept = list(range(counts.shape[1]))
        while True:
            values, *_ = np.linalg.lstsq(counts[:, kept] * weight[:, None], rest * weight, rcond=None)
            if (values >= 0).all() or len(kept) == 1:
                break
            kept.pop(int(np.argmin(values)))
        found = np.zeros(counts.shape[1])
        found[kept] = np.maximum(values, 0)
        weight = 1 / np.sqrt(np.maximum(np.abs(rest - counts @ found), LEAST))
    return found
