"""Fixed dimensions that could be opened: tried by opening them and running, on seeded noise.

The batch is opened in all inputs at once; the axes behind the channels of an image or a sequence, input by input. What
counts as open is what ``baked`` asks of a dimension that is declared so.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from edgeopt.errors import ModelError
from edgeopt.findings import baked
from edgeopt.findings.finding import Finding
from edgeopt.model import Model, TensorSpec

Places = Mapping[tuple[str, int], str]
"""Symbol by (input, axis)."""

_AXES = "HWDT"


def find(model: Model, *, tolerance: float = baked.TOLERANCE) -> tuple[Finding, ...]:
    """One finding for the batch and one for each other axis that could be opened: it can, or why it cannot.

    Raises:
        ModelError: the model does not run at the sizes it has.
    """
    found = []
    for places in _candidates(model):
        trial = opened(model, places)
        probes = _noise(trial.inputs, {spec.name: spec for spec in model.inputs})
        shapes = " ".join(f"--shape {text}" for text in _texts(model, places))
        what = ", ".join(f"{name} axis {axis}" for name, axis in places)
        try:
            stuck = [one for one in baked.find(trial, probes, tolerance=tolerance) if set(one.places) & set(places)]
        except ModelError as error:
            text = f"{what} cannot be opened: {error.message}"
        else:
            text = f"{what} can be opened: {shapes}"
            if stuck:
                text = f"{what} cannot be opened: {stuck[0].why}"
        found.append(Finding(kind="fixed-dims", text=text))
    return tuple(found)


def noise(model: Model) -> list[dict[str, np.ndarray]]:
    """Seeded samples at the sizes the model has, 1 where the batch is open and 2 where anything else is."""
    return _noise(model.inputs, {})


def opened(model: Model, places: Places) -> Model:
    """The model with symbols at ``places``; every shape that followed from the old sizes is forgotten."""
    changed = model.clone()
    for value in changed.graph.inputs:
        if value.shape is not None:
            value.shape = ir.Shape([places.get((str(value.name), axis), d) for axis, d in enumerate(value.shape)])
    for graph in changed.ir.graphs():
        for node in graph:
            for out in node.outputs:
                if out.shape is not None:
                    out.shape = ir.Shape([None] * len(out.shape)) if out.is_graph_output() else None
    return changed


def _candidates(model: Model) -> list[Places]:
    specs = [spec for spec in model.inputs if spec.shape]
    taken = {d for spec in specs for d in spec.shape if isinstance(d, str)}

    def free(symbol: str) -> str:
        return symbol if symbol not in taken else free(f"{symbol}1")

    found: list[Places] = []
    fixed = {spec.shape[0] for spec in specs}
    if len(fixed) == 1 and all(isinstance(size, int) for size in fixed):
        found.append({(spec.name, 0): free("N") for spec in specs})
    for spec in specs:
        axes = [axis for axis in range(2, len(spec.shape)) if isinstance(spec.shape[axis], int)]
        found += [{(spec.name, axis): free(_AXES[axis - 2])} for axis in axes if axis - 2 < len(_AXES)]
    return found


def _texts(model: Model, places: Places) -> list[str]:
    names = dict.fromkeys(name for name, _ in places)
    specs = {spec.name: spec for spec in model.inputs}
    return [f"{n}={'x'.join(str(places.get((n, i), d)) for i, d in enumerate(specs[n].shape))}" for n in names]


def _noise(inputs: tuple[TensorSpec, ...], sizes: Mapping[str, TensorSpec]) -> list[dict[str, np.ndarray]]:
    """Two samples; an open first axis is 1, another one keeps the size it had in ``sizes``."""
    rng = np.random.default_rng(0)
    batch = {spec.shape[0] for spec in inputs if spec.shape and isinstance(spec.shape[0], str)}
    samples = []
    for _ in range(2):
        feeds = {}
        for spec in inputs:
            old = sizes[spec.name].shape if spec.name in sizes else spec.shape
            shape = [
                1 if d in batch else d if isinstance(d, int) else o if isinstance(o, int) else 2
                for d, o in zip(spec.shape, old)
            ]
            dtype = np.dtype(spec.dtype)
            values = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
            feeds[spec.name] = np.asarray(values).astype(dtype)
        samples.append(feeds)
    return samples
