"""Compares outputs with golden ones. numpy is imported inside: only worker processes and the host need it."""

from __future__ import annotations

import math
from typing import Any, Callable, Mapping, Optional, Sequence

from runtime_bench.arrays import load_array
from runtime_bench.runners import Loaded

EXACT_DB = 200.0
"""What an error of zero is reported as; JSON has no infinity."""

BLOCK = 1 << 18
"""Elements compared at once, so that no second copy of a large output is made in double precision."""


class Tally:
    """Sums over the samples of one output.

    Attributes:
        signal, noise: sums of squares of the reference and of the error.
        fault: the first reason why the output cannot be compared, such as NaN or another shape.
        rows, agree: rows (last axis) seen, and rows with the same single greatest element; a tie counts as wrong.
    """

    def __init__(self) -> None:
        self.signal = 0.0
        self.noise = 0.0
        self.fault: Optional[str] = None
        self.rows = 0
        self.agree = 0

    def add(self, reference: Any, actual: Any) -> None:
        """Count one sample. Infinite elements must be equal and do not enter the sums; NaN is a fault."""
        import numpy

        if self.fault is None:
            self.fault = difference_in_kind(reference, actual)
        if self.fault is not None:
            return
        a, b = reference.reshape(-1), actual.reshape(-1)
        for start in range(0, a.size, BLOCK):
            x = a[start : start + BLOCK].astype(numpy.float64)
            y = b[start : start + BLOCK].astype(numpy.float64)
            if numpy.isnan(y).any() or numpy.isnan(x).any():
                self.fault = "NaN in the {}".format("output" if numpy.isnan(y).any() else "golden output")
                return
            infinite = numpy.isinf(x) | numpy.isinf(y)
            if (x[infinite] != y[infinite]).any():
                self.fault = "infinite elements differ from the golden output"
                return
            x, y = x[~infinite], y[~infinite]
            self.signal += float(numpy.dot(x, x))
            self.noise += float(numpy.dot(x - y, x - y))
        if reference.ndim and reference.shape[-1] > 1 and reference.dtype.kind == "f":
            x, y = reference.reshape(-1, reference.shape[-1]), actual.reshape(-1, reference.shape[-1])
            single = (y == y.max(axis=1, keepdims=True)).sum(axis=1) == 1
            self.rows += len(x)
            self.agree += int((single & (x.argmax(axis=1) == y.argmax(axis=1))).sum())

    @property
    def sqnr_db(self) -> float:
        """Signal to error ratio in decibels; ``-EXACT_DB`` for a fault."""
        return -EXACT_DB if self.fault is not None else decibels(self.signal, self.noise)


def decibels(signal: float, noise: float) -> float:
    """``10 log10(signal / noise)`` within plus or minus ``EXACT_DB``. Nothing expected and nothing got is exact."""
    if noise == 0:
        return EXACT_DB
    if signal == 0:
        return -EXACT_DB
    return max(-EXACT_DB, min(EXACT_DB, 10 * math.log10(signal / noise)))


def pooled_sqnr_db(references: Sequence[Sequence[Any]], outputs: Sequence[Sequence[Any]]) -> float:
    """SQNR in dB as a bundle's tolerance means it: per output over all samples, then the worst output.

    Args:
        references: one list of arrays (in the order of the signature's outputs) a sample.
        outputs: the same, to judge.
    """
    return min(sqnr_by_output_db(references, outputs))


def sqnr_by_output_db(references: Sequence[Sequence[Any]], outputs: Sequence[Sequence[Any]]) -> list[float]:
    """The SQNR of each output in dB over all samples, in the order of the outputs. Arguments as above."""
    tallies = [Tally() for _ in references[0]]
    for expected, actual in zip(references, outputs):
        for tally, x, y in zip(tallies, expected, actual):
            tally.add(x, y)
    return [tally.sqnr_db for tally in tallies]


def difference_in_kind(reference: Any, actual: Any) -> Optional[str]:
    """Why two arrays cannot be compared, or None."""
    if reference.shape != actual.shape:
        return "shape {} where the golden output has {}".format(actual.shape, reference.shape)
    if reference.dtype != actual.dtype:
        return "{} where the golden output is {}".format(actual.dtype, reference.dtype)
    return None


def check(
    loaded: Loaded,
    read_feeds: Callable[[Mapping[str, str]], Mapping[str, Any]],
    names: Sequence[str],
    samples: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Run a loaded artifact on golden inputs.

    Args:
        names: output names in the order of the signature.
        samples: ``{"inputs": {name: file}, "float": [file], "own": [file] or None}``, files in the order of names.

    Returns ``{"outputs": [{"name", "sqnr_db", "fault", "agreement"}], "own": {"max_abs", "identical"} or None,
    "runtime"}``. ``own`` compares with what this artifact gave where it was built.
    """
    tallies = [Tally() for _ in names]
    largest, identical, compared = 0.0, True, False
    for sample in samples:
        outputs = loaded.infer(read_feeds(sample["inputs"]))
        for i, name in enumerate(names):
            if name not in outputs:
                tallies[i].fault = "the artifact has no output of this name; it has: {}".format(", ".join(outputs))
                continue
            tallies[i].add(load_array(sample["float"][i]), outputs[name])
            if sample["own"] is not None:
                distance, same = _distance(load_array(sample["own"][i]), outputs[name])
                largest, identical, compared = max(largest, distance), identical and same, True
    rows = [
        {
            "name": name,
            "sqnr_db": tally.sqnr_db,
            "fault": tally.fault,
            "agreement": tally.agree / tally.rows if tally.rows else None,
        }
        for name, tally in zip(names, tallies)
    ]
    own = {"max_abs": largest if math.isfinite(largest) else None, "identical": identical} if compared else None
    return {"outputs": rows, "own": own, "runtime": dict(loaded.runtime)}


def _distance(own: Any, actual: Any) -> tuple[float, bool]:
    """Largest absolute difference (infinite where it has no meaning) and whether the bytes are the same."""
    import numpy

    if difference_in_kind(own, actual) is not None:
        return math.inf, False
    if own.tobytes() == actual.tobytes():
        return 0.0, True
    gap = float(numpy.max(numpy.abs(own.astype(numpy.float64) - actual.astype(numpy.float64)), initial=0.0))
    return (gap if math.isfinite(gap) else math.inf), False
