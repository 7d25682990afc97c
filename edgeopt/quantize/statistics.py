"""One streaming pass of the float model over the calibration set: the statistics of every tensor asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from edgeopt.errors import CalibrationError
from edgeopt.interpreter import Interpreter
from edgeopt.model import Model
from edgeopt.quantize.ranges import Statistics


def collect(
    model: Model,
    values: Iterable[ir.Value],
    channel_axes: Mapping[str, int],
    samples: Iterable[Mapping[str, np.ndarray]],
) -> dict[str, Statistics]:
    """Statistics by tensor name. Memory: one sample's tensors and 32 KB a tensor, whatever the sample count.

    Args:
        values: graph inputs or computed tensors of the main graph.
        channel_axes: axis along which means are kept, by tensor name.
        samples: feeds by input name.

    Raises:
        CalibrationError: no samples, or a tensor becomes NaN or infinite.
    """
    wanted = list(values)
    statistics = {str(v.name): Statistics(channel_axis=channel_axes.get(str(v.name))) for v in wanted}
    computed = [str(v.name) for v in wanted if not v.is_graph_input()]
    fed = [str(v.name) for v in wanted if v.is_graph_input()]
    interpreter = Interpreter(model, tensors=computed) if computed else None
    count = 0
    tensors: dict[str, np.ndarray] = {}
    for index, feeds in enumerate(samples):
        tensors.clear()  # before the next run makes as many again
        tensors = {**(interpreter.run(feeds) if interpreter else {}), **{name: feeds[name] for name in fed}}
        for name in statistics:
            try:
                statistics[name].add(tensors[name])
            except FloatingPointError as error:
                raise CalibrationError(
                    f"calibration sample {index}: tensor {name} of the float model holds {error}",
                    remedy="The model overflows on it, or the preprocessing is not the one it was trained with.",
                ) from error
        count += 1
    if count == 0:
        raise CalibrationError("the calibration set is empty", remedy="Give a set with at least one sample.")
    return statistics
