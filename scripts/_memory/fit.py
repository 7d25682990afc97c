"""Constants that are not negative, with the least sum of absolute relative errors, by reweighted least squares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

MAPPED: dict[str, int] = {"openvino": 3}
"""How many of a backend's constants, the first ones, are pages of its library: fitted on file-backed memory alone."""

ROUNDS, LEAST = 60, 0.01


def constants(rows: Sequence[dict[str, Any]], backend: str) -> np.ndarray:
    """The constants, in the order of the counts of the rows."""
    counts = np.array([row["counts"] for row in rows], float)
    size = np.array([row["measured"] for row in rows], float)
    rest = size - np.array([row["simulated"] for row in rows], float)
    mapped = MAPPED.get(backend, 0)
    if not mapped:
        return least(counts / size[:, None], rest / size)
    library = np.array([row["file_backed"] - row["weights"] for row in rows], float)
    first = least(counts[:, :mapped] / size[:, None], library / size)
    second = least(counts[:, mapped:] / size[:, None], (rest - library) / size)
    return np.concatenate([first, second])


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
