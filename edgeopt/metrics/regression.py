"""Mean absolute error and root mean square error, over all numbers of all samples alike."""

from __future__ import annotations

import numpy as np

from edgeopt.errors import CalibrationError
from edgeopt.metrics.scorer import Label, Numbers, Outputs, Scorer, Weighted, pick, weighted_mean


def _differences(outputs: Outputs, output: str | None, label: Label, name: str) -> Numbers:
    where, value = pick(outputs, output, name)
    truth = np.asarray(label)
    if truth.dtype.kind not in "biuf":
        raise CalibrationError(f"metric {name}: a label is {label!r:.40}, wanted numbers.")
    if truth.size != value.size or not truth.size or truth.squeeze().shape != value.squeeze().shape:
        got = f"label of shape {list(truth.shape)}, output {where} of {list(value.shape)}"
        raise CalibrationError(f"metric {name}: {got}.")
    return (value.astype(np.float64).reshape(-1) - truth.astype(np.float64).reshape(-1)).reshape(-1)


def mae(*, output: str | None = None) -> Scorer:
    """Mean absolute error, in the output's own unit."""

    def reduce(outputs: Outputs, feeds: Outputs, label: Label) -> tuple[float, float]:
        found = _differences(outputs, output, label, "MAE")
        return float(np.mean(np.abs(found))), float(len(found))

    return Scorer(name="MAE", better="lower", unit="number", reduce=reduce, prepare=weighted_mean, weighted_mean=True)


def rmse(*, output: str | None = None) -> Scorer:
    """Root mean square error, in the output's own unit."""

    def reduce(outputs: Outputs, feeds: Outputs, label: Label) -> tuple[float, float]:
        found = _differences(outputs, output, label, "RMSE")
        return float(np.mean(found * found)), float(len(found))

    def prepare(rows: Numbers) -> Weighted:
        squares = weighted_mean(rows)
        return lambda weights: float(np.sqrt(squares(weights)))

    return Scorer(name="RMSE", better="lower", unit="number", reduce=reduce, prepare=prepare)
