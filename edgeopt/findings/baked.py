"""Dimensions declared dynamic although a constant inside the graph fixes them: found by running.

1. Batch: two samples alone, then both in one call. Every output of the call must be the two outputs put together along
   one axis, or not depend on the samples at all.
2. Any other symbol: a sample, then the same sample twice as long (its own values again). The run must succeed, and
   every Reshape must group the axes as before: one that does not has a size of the first sample in it.

A batch symbol is one that stands on axis 0 of an input and is 1 in the samples; where it stands elsewhere (the state
of a recurrent network, ``[2, N, 128]``) it is followed there. Many files give no names (``[?, ?]`` and
``[2, ?, 128]``): where those axes alone do not work, other open axes that are 1 in the samples are tried as the batch
of their inputs. What the data varies by itself is open.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from edgeopt.errors import ModelError
from edgeopt.findings.tracing import Feeds, Shape, Traced, kept_boundaries, reshapes
from edgeopt.model import Model, TensorSpec, node_key

TOLERANCE = 1e-3
"""Largest difference of an output by its largest value: kernels for a batch round differently."""

QUANTIZED_TOLERANCE = 0.05
"""The same where values are rounded to 8 bits inside, or ranges are taken from the whole batch."""

MAX_WAYS = 16
"""Most sets of axes that are tried as the batch, two runs each or three."""

_FAILED_NODE = re.compile(r"running (\S+) node\. Name:'(.*?)' Status")

Places = Mapping[str, Sequence[tuple[str, int]]]
"""Places (input, axis) of every open dimension, by symbol; unnamed ones are called ``input[axis]``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Baked:
    """A dimension that is open in name only.

    Attributes:
        symbols: what the file calls it; several when unlike names stand for the batch.
        places: (input, axis) of each.
        size: the size that works.
        why: what another size did, naming the node.
        node: key of the node that fixes it, where it could be found.
    """

    symbols: tuple[str, ...]
    places: tuple[tuple[str, int], ...]
    size: int
    why: str
    node: str | None

    @property
    def text(self) -> str:
        """One sentence for reports."""
        names = ", ".join(self.symbols)
        return f"{names} is declared dynamic and is fixed at {self.size} inside: {self.why}"


def open_dims(inputs: Iterable[TensorSpec]) -> dict[str, list[tuple[str, int]]]:
    """The open dimensions of the inputs."""
    places: dict[str, list[tuple[str, int]]] = {}
    for spec in inputs:
        for axis, dim in enumerate(spec.shape):
            if isinstance(dim, str) and dim != "...":
                places.setdefault(f"{spec.name}[{axis}]" if dim == "?" else dim, []).append((spec.name, axis))
    return places


def batch_symbols(places: Places) -> list[str]:
    """The symbols that stand on axis 0 of an input."""
    return [symbol for symbol, where in places.items() if any(axis == 0 for _, axis in where)]


def find(model: Model, probes: Sequence[Feeds], *, tolerance: float = TOLERANCE) -> tuple[Baked, ...]:
    """Try every open dimension on the probes.

    Args:
        probes: at least one sample, with a batch of 1.

    Raises:
        ModelError: the model does not run on the probes as they are.
    """
    places = open_dims(model.inputs)
    if not places or not probes:
        return ()
    traced = Traced(model, reshapes(model))
    sizes = {s: {feeds[name].shape[axis] for feeds in probes for name, axis in where} for s, where in places.items()}
    batch = [symbol for symbol in batch_symbols(places) if sizes[symbol] == {1}]
    found = []
    if batch:
        where = _where(places, batch)
        problem = _try_batch(model, traced, probes, where, tolerance)
        if problem is not None:
            ways = (way for way in _ways(places, sizes, batch) if way != batch)
            works = (w for w in ways if _try_batch(model, traced, probes, _where(places, w), tolerance) is None)
            way = next(works, None)
            if way is None:
                found.append(Baked(symbols=tuple(batch), places=where, size=1, why=problem[0], node=problem[1]))
            batch = way or batch
    for symbol, spots in places.items():
        if symbol in batch or len(sizes[symbol]) > 1 or sizes[symbol] == {0}:
            continue
        problem = _try_longer(model, traced, probes[0], spots)
        if problem is not None:
            (size,) = sizes[symbol]
            found.append(Baked(symbols=(symbol,), places=tuple(spots), size=size, why=problem[0], node=problem[1]))
    return tuple(found)


def fix(model: Model, baked: Iterable[Baked]) -> Model:
    """The model with those dimensions as numbers, in inputs, outputs and every shape inside that names them."""
    sizes = {symbol: one.size for one in baked for symbol in one.symbols}
    at = {place: one.size for one in baked for place in one.places}
    changed = model.clone()
    for graph in changed.ir.graphs():
        values = [*graph.inputs, *graph.outputs, *(out for node in graph for out in node.outputs)]
        for value in values:
            if value.shape is not None:
                value.shape = ir.Shape([sizes.get(_name(d), d) for d in value.shape])
    for value in changed.graph.inputs:
        if value.shape is not None:
            value.shape = ir.Shape([at.get((str(value.name), axis), d) for axis, d in enumerate(value.shape)])
    return changed


def _name(dim: int | ir.SymbolicDim) -> str:
    return "" if isinstance(dim, int) or dim.value is None else dim.value


def _try_batch(
    model: Model, traced: Traced, probes: Sequence[Feeds], where: Sequence[tuple[str, int]], tolerance: float
) -> tuple[str, str | None] | None:
    """Rule 1; None when the batch is open, else what went wrong and where."""
    first, second = probes[0], _partner(probes, {name for name, _ in where})
    axes = dict(where)
    both = {n: np.concatenate([v, second[n]], axes[n]) if n in axes else v for n, v in first.items()}
    (one, shapes), (two, _) = traced.run(first), traced.run(second)
    try:
        together, wider = traced.run(both)
    except ModelError as error:
        return _stop(error, "a batch of 2")
    for name, value in together.items():
        wrong = _unlike(one[name], two[name], value, tolerance)
        if wrong is not None:
            key = _first_lost(model, first, both, shapes, wider)
            behind = f" (behind {key})" if key else ""
            return f"with a batch of 2 the output {name} {wrong}{behind}", key
    return None


def _where(places: Places, symbols: Iterable[str]) -> tuple[tuple[str, int], ...]:
    return tuple(place for symbol in symbols for place in places[symbol])


def _ways(places: Places, sizes: Mapping[str, set[int]], batch: Sequence[str]) -> list[list[str]]:
    """Sets of symbols that may be the batch, the fullest first: one of every input at most, one of ``batch`` at least.

    A symbol of several places in ``batch`` is in all of them.
    """
    fixed = [symbol for symbol in batch if len(places[symbol]) > 1]
    taken = {name for name, _ in _where(places, fixed)}
    by_input: dict[str, list[str]] = {}
    for symbol, spots in places.items():
        if sizes[symbol] == {1} and len(spots) == 1 and spots[0][0] not in taken:
            by_input.setdefault(spots[0][0], []).append(symbol)
    choices = itertools.islice(itertools.product(*([*symbols, ""] for symbols in by_input.values())), MAX_WAYS)
    ways = [[*fixed, *filter(None, choice)] for choice in choices]
    return sorted((way for way in ways if set(way) & set(batch)), key=len, reverse=True)


def _partner(probes: Sequence[Feeds], batched: set[str]) -> dict[str, np.ndarray]:
    """A second sample of the same shapes: another probe, or the first one backwards; what has no batch stays."""
    first = probes[0]
    for other in probes[1:]:
        alike = all(other[n].shape == v.shape for n, v in first.items())
        if alike and any(not np.array_equal(other[n], first[n]) for n in batched):
            return {n: other[n] if n in batched else v for n, v in first.items()}
    return {n: np.ascontiguousarray(np.flip(v)) if n in batched else v for n, v in first.items()}


def _unlike(one: np.ndarray, two: np.ndarray, both: np.ndarray, tolerance: float) -> str | None:
    """Why ``both`` is not the two put together, or None."""
    if one.ndim != both.ndim or two.ndim != both.ndim:
        return f"has the shape {list(both.shape)}, alone it has {list(one.shape)}"
    if one.shape == two.shape == both.shape:
        same = np.array_equal(one, two) and np.array_equal(one, both)
        return None if same else f"keeps the shape {list(both.shape)}: both samples went into one"
    for axis in range(both.ndim):
        rest = [s[:axis] + s[axis + 1 :] for s in (one.shape, two.shape, both.shape)]
        if rest[0] == rest[1] == rest[2] and one.shape[axis] + two.shape[axis] == both.shape[axis]:
            return _differs(np.concatenate([one, two], axis), both, tolerance)
    return f"has the shape {list(both.shape)}, alone they have {list(one.shape)} and {list(two.shape)}"


def _differs(expected: np.ndarray, found: np.ndarray, tolerance: float) -> str | None:
    if expected.dtype.kind not in "fV":
        return None if np.array_equal(expected, found) else "has other values than each sample alone"
    reference, got = expected.astype(np.float64), found.astype(np.float64)
    known = np.isfinite(reference)
    if not np.array_equal(known, np.isfinite(got)):
        return "has other values than each sample alone"
    difference = float(np.abs(reference - got)[known].max(initial=0.0))
    peak = float(np.abs(reference)[known].max(initial=0.0))
    if difference <= tolerance * peak:
        return None
    share = f"{difference / peak:.2g} of its largest value" if peak else f"{difference:.2g}, and alone it is 0"
    return f"differs from each sample alone by {share}"


def _try_longer(
    model: Model, traced: Traced, feeds: Feeds, where: Sequence[tuple[str, int]]
) -> tuple[str, str | None] | None:
    """Rule 2; None when the dimension is open."""
    size = feeds[where[0][0]].shape[where[0][1]]
    _, shapes = traced.run(feeds)
    seen = []
    for times in (2, 4) if size == 1 else (2,):  # at 1 every border coincides with another one
        longer = dict(feeds)
        for name, axis in where:
            longer[name] = np.concatenate([feeds[name]] * times, axis)
        try:
            seen.append(traced.run(longer)[1])
        except ModelError as error:
            return _stop(error, f"{times * size}")
    shapes, wider = (shapes, *seen)[-2:]
    node = next((n for n in reshapes(model) if _regrouped(n, shapes, wider)), None)
    if node is None:
        return None
    key = node_key(node)
    return f"at {times * size} the Reshape {key} groups other elements together than at {size}", key


def _regrouped(node: ir.Node, shapes: Mapping[str, Shape], wider: Mapping[str, Shape]) -> bool:
    """Whether a reshape keeps other borders between axes than before."""
    names = [str(v.name) for v in (node.inputs[0], node.outputs[0]) if v is not None]
    if len(names) < 2 or any(name not in shapes or name not in wider for name in names):
        return False
    before, after = (kept_boundaries(seen[names[0]], seen[names[1]]) for seen in (shapes, wider))
    return before != after


def _stop(error: ModelError, what: str) -> tuple[str, str | None]:
    """The runtime's error as a reason, with the node it names."""
    found = _FAILED_NODE.search(error.message)
    key = found.group(2) if found and found.group(2) else None
    at = f" in {found.group(1)} {key}" if found and key else ""
    return f"{what} stops the run{at}", key


def _first_lost(
    model: Model, first: Feeds, both: Feeds, shapes: Mapping[str, Shape], wider: Mapping[str, Shape]
) -> str | None:
    """The first node that merges the batch with another axis, or whose result does not grow with it; None if unseen."""
    for node in reshapes(model):
        if _regrouped(node, shapes, wider):
            return node_key(node)
    try:
        traced = Traced(model, [n for n in model.graph if n.op_type not in ("Shape", "Size", "Constant")])
        (_, small), (_, large) = traced.run(first), traced.run(both)
    except ModelError:  # a value that is no tensor has no shape to read
        return None
    for node in model.graph:
        names = [
            [str(v.name) for v in values if v is not None and v.name in small] for values in (node.inputs, node.outputs)
        ]
        grown = [any(small[n] != large[n] for n in part) for part in names]
        if names[1] and grown[0] and not grown[1] and node.op_type not in ("Shape", "Size"):
            return node_key(node)
    return None
