"""DataSet -> samples, streamed: one at a time, each checked, memory independent of their number."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeopt.calibration import arrays, folders, tokens, wav
from edgeopt.calibration.conform import conform, fit, input_dtype
from edgeopt.calibration.finish import module_beside
from edgeopt.calibration.given import Feed, Run, completed, starts
from edgeopt.calibration.images import pictures
from edgeopt.calibration.labelling import groups
from edgeopt.calibration.types import ONLY_INPUT, DataSet, Source, Transform
from edgeopt.errors import CalibrationError, did_you_mean
from edgeopt.foreign import users_code
from edgeopt.model import TensorSpec

Array = npt.NDArray[np.generic]


def samples(dataset: DataSet, inputs: tuple[TensorSpec, ...], run: Run | None = None) -> Iterator[Feed]:
    """Yield the set's samples in order, in the model's types and shapes, each a batch of one.

    Names and stored shapes are checked at the call, every sample when it is read.

    Args:
        run: the float model, for sets with inputs that are carried over from one sample to the next.

    Raises:
        CalibrationError: an input without data, data without an input, or a bad sample; names file, sample and input.
    """
    own = own_inputs(dataset, inputs)
    feeds = _stored(dataset, own)
    if not dataset.given:
        return feeds
    if dataset.carried and run is None:
        raise CalibrationError(
            f"{dataset.path}: carries {', '.join(c.name for c in dataset.carried)} over from one sample to the next, "
            "and there is no model to run."
        )
    return completed(dataset, inputs, feeds, run, starts(dataset, groups(dataset) if dataset.carried else None))


def own_inputs(dataset: DataSet, inputs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """The inputs that the set's files hold: all but the constant ones and those carried over.

    Raises:
        CalibrationError: a constant or a state is none of the inputs.
    """
    known = tuple(spec.name for spec in inputs)
    for name in sorted(dataset.given):
        if name not in known:
            raise _no_input(dataset, name, inputs)
    return tuple(spec for spec in inputs if spec.name not in dataset.given)


def _stored(dataset: DataSet, inputs: tuple[TensorSpec, ...]) -> Iterator[Feed]:
    match dataset.kind:
        case "arrays":
            sources = bind(dataset, inputs)
            _check_headers(sources, inputs)
            return _from_arrays(dataset, sources, inputs)
        case "folder":
            return _from_folders(dataset, bind(dataset, inputs), inputs)
        case "images":
            return _from_images(dataset, bind(dataset, inputs), inputs)
        case "tokens":
            return _from_tokens(dataset, bind(dataset, inputs), inputs)
        case "wav":
            return _from_wav(dataset, bind(dataset, inputs), inputs)
        case "python":
            return _from_python(dataset, inputs)
        case _:
            return _from_random(dataset, inputs)


def _no_input(dataset: DataSet, name: str, inputs: tuple[TensorSpec, ...]) -> CalibrationError:
    return CalibrationError(
        f'{dataset.path}: "{name}" is no input of the model.{did_you_mean(name, tuple(spec.name for spec in inputs))}',
        remedy=f"The inputs are {', '.join(map(str, inputs))}.",
    )


def bind(dataset: DataSet, inputs: tuple[TensorSpec, ...]) -> dict[str, Source]:
    """The source of every model input but the constant ones and those carried over.

    Raises:
        CalibrationError: a name of the set is no input, or an input has no source.
    """
    known = tuple(spec.name for spec in inputs if spec.name not in dataset.given)
    if dataset.inputs == (ONLY_INPUT,):
        if len(known) != 1:
            raise CalibrationError(
                f"{dataset.path}: one array for a model with {len(known)} inputs ({', '.join(known)}).",
                remedy="Use a .npz file with one array for each, named like the inputs.",
            )
        return {known[0]: dataset.sources[0]}
    for name in dataset.inputs:
        if name not in known:
            raise _no_input(dataset, name, inputs)
    missing = [name for name in known if name not in dataset.inputs]
    if missing:
        raise CalibrationError(
            f"{dataset.path}: has no data for input {', '.join(missing)}.",
            remedy="Every input of the model needs data.",
        )
    return {source.name: source for source in dataset.sources}


def _check_headers(sources: Mapping[str, Source], inputs: tuple[TensorSpec, ...]) -> None:
    """Compare stored shapes with the inputs before any sample is read."""
    sizes: dict[str, int] = {}
    for spec in inputs:
        source = sources[spec.name]
        assert source.file is not None
        found = arrays.header(source.file)
        row = found.shape[1:]
        if len(source.transform.transpose) == len(row):
            row = tuple(row[axis] for axis in source.transform.transpose)
        fit(row, found.dtype, spec, f'{source.file}: input "{spec.name}"', sizes)


def _from_arrays(dataset: DataSet, sources: Mapping[str, Source], inputs: tuple[TensorSpec, ...]) -> Iterator[Feed]:
    files = [(spec, sources[spec.name]) for spec in inputs]
    streams = [arrays.rows(source.file, dataset.indices) for _, source in files if source.file is not None]
    for index, row in zip(dataset.indices, zip(*streams, strict=True), strict=True):
        sizes: dict[str, int] = {}
        yield {
            spec.name: conform(raw, spec, source.transform, _where(source.file, index, spec), sizes)
            for (spec, source), raw in zip(files, row, strict=True)
        }


def _from_folders(dataset: DataSet, sources: Mapping[str, Source], inputs: tuple[TensorSpec, ...]) -> Iterator[Feed]:
    for index in dataset.indices:
        sizes: dict[str, int] = {}
        feed: Feed = {}
        for spec in inputs:
            source = sources[spec.name]
            assert source.folder is not None
            path, raw = folders.read(source.folder, index)
            feed[spec.name] = conform(raw, spec, source.transform, _where(path, index, spec), sizes)
        yield feed


def _from_tokens(dataset: DataSet, sources: Mapping[str, Source], inputs: tuple[TensorSpec, ...]) -> Iterator[Feed]:
    assert dataset.tokens is not None
    for where, found in tokens.rows(dataset.tokens, inputs, dataset.indices):
        sizes: dict[str, int] = {}
        yield {
            spec.name: conform(
                found[spec.name], spec, sources[spec.name].transform, f'{where}, input "{spec.name}"', sizes
            )
            for spec in inputs
        }


def _from_wav(dataset: DataSet, sources: Mapping[str, Source], inputs: tuple[TensorSpec, ...]) -> Iterator[Feed]:
    (spec,) = inputs
    assert dataset.audio is not None
    for where, _, values in wav.frames(dataset.audio):
        yield {spec.name: conform(values, spec, sources[spec.name].transform, f'{where}, input "{spec.name}"', {})}


def _from_images(dataset: DataSet, sources: Mapping[str, Source], inputs: tuple[TensorSpec, ...]) -> Iterator[Feed]:
    (spec,) = inputs
    transform = sources[spec.name].transform
    color = transform.color
    assert dataset.images is not None
    assert color is not None
    transform = dataclasses.replace(transform, transpose=(2, 0, 1) if transform.layout == "NCHW" else ())
    found = pictures(dataset.images, color, dataset.indices)
    for index, (path, pixels) in zip(dataset.indices, found, strict=True):
        yield {spec.name: conform(pixels, spec, transform, _where(path, index, spec), {})}


def _from_python(dataset: DataSet, inputs: tuple[TensorSpec, ...]) -> Iterator[Feed]:
    """Feeds of a user's function, called anew for every pass."""
    taken = itertools.islice(_made(dataset), dataset.start, dataset.total, dataset.stride)
    yielded = 0
    for index, feed in zip(dataset.indices, taken, strict=False):
        yielded += 1
        yield _check_feed(dataset, index, feed, inputs)
    if yielded < dataset.count:
        raise CalibrationError(
            f"{dataset.path}: {dataset.factory} gave {yielded} samples and count says {dataset.count}.",
            remedy="Correct count, start and stride, or let the function yield more.",
        )


def _made(dataset: DataSet) -> Iterator[object]:
    with users_code(f"{dataset.path}: {dataset.factory}"):
        feeds = iter(import_factory(dataset)())
    end = object()
    while True:
        with users_code(f"{dataset.path}: {dataset.factory}"):
            feed = next(feeds, end)
        if feed is end:
            return
        yield feed


def import_factory(dataset: DataSet) -> Callable[[], Iterable[object]]:
    """Import the user's function; its module may stand beside the description. This runs the module's code.

    Raises:
        CalibrationError: not importable, or another module of that name is loaded already.
    """
    assert dataset.factory is not None
    found: Callable[[], Iterable[object]] = import_function(dataset, "factory", dataset.factory)
    return found


def import_function(dataset: DataSet, key: str, function: str) -> Callable[..., Any]:
    """Import ``package.module:function`` that ``key`` of a description names.

    Raises:
        CalibrationError: as :func:`import_factory`.
    """
    assert dataset.path is not None
    module_name, _, name = function.partition(":")
    folder = dataset.path.parent.resolve()
    loaded = sys.modules.get(module_name)
    beside = module_beside(dataset.path, function).resolve()
    if loaded is not None and beside.is_file() and Path(getattr(loaded, "__file__", None) or "").resolve() != beside:
        raise CalibrationError(
            f'{dataset.path}: a module called "{module_name}" is loaded already.',
            remedy=f"Give {beside.name} a name of its own.",
        )
    sys.path.insert(0, str(folder))
    try:
        with users_code(f"{dataset.path}: importing {module_name}"):
            try:
                found: Callable[..., Any] = getattr(importlib.import_module(module_name), name)
            except (ImportError, AttributeError) as problem:
                raise CalibrationError(
                    f'{dataset.path}: {key} = "{function}" cannot be imported ({problem}).',
                    remedy=f"The module is looked for in {folder} and in the environment.",
                ) from problem
    finally:
        sys.path.remove(str(folder))
    return found


def _check_feed(dataset: DataSet, index: int, feed: object, inputs: tuple[TensorSpec, ...]) -> Feed:
    where = f"{dataset.factory}: sample {index}"
    if not isinstance(feed, Mapping):
        raise CalibrationError(f"{where}: is a {type(feed).__name__}, wanted a dict of input name to array.")
    known = tuple(spec.name for spec in inputs)
    for name in feed:
        if name not in known:
            raise CalibrationError(f'{where}: "{name}" is no input of the model.{did_you_mean(str(name), known)}')
    sizes: dict[str, int] = {}
    found: Feed = {}
    for spec in inputs:
        if spec.name not in feed:
            raise CalibrationError(f"{where}: has no data for input {spec.name}.")
        raw = np.asarray(feed[spec.name])
        if raw.dtype.kind not in "biufV" or raw.size == 0:
            raise CalibrationError(f'{where}, input "{spec.name}": holds {raw.dtype}{list(raw.shape)}, not numbers.')
        found[spec.name] = conform(raw, spec, Transform(), f'{where}, input "{spec.name}"', sizes)
    return found


def _from_random(dataset: DataSet, inputs: tuple[TensorSpec, ...]) -> Iterator[Feed]:
    """Standard normal values for float inputs, zeros and ones for integers; the seed and the order decide them."""
    shapes = {spec.name: _fixed_shape(spec) for spec in inputs}
    generator = np.random.default_rng(dataset.seed)
    for _ in range(dataset.count):
        feed: Feed = {}
        for spec in inputs:
            dtype = input_dtype(spec, f'random, input "{spec.name}"')
            if dtype.kind in "biu":
                feed[spec.name] = generator.integers(0, 2, shapes[spec.name]).astype(dtype)
            else:
                feed[spec.name] = generator.standard_normal(shapes[spec.name], dtype=np.float32).astype(dtype)
        yield feed


def _fixed_shape(spec: TensorSpec) -> tuple[int, ...]:
    """The input's shape with a symbolic first dim as 1."""
    dims = (
        (1 if spec.shape and isinstance(spec.shape[0], str) else spec.shape[0], *spec.shape[1:]) if spec.shape else ()
    )
    unknown = [dim for dim in dims if not isinstance(dim, int)]
    if unknown:
        raise CalibrationError(
            f'random: input "{spec.name}" has no fixed shape ({spec}).',
            remedy=f"Give it one: --shape {spec.name}=1x...",
        )
    return tuple(dim for dim in dims if isinstance(dim, int))


def _where(file: object, index: int, spec: TensorSpec) -> str:
    return f'{file}: sample {index}, input "{spec.name}"'
