"""The float reference: a model run by onnxruntime's CPU provider, with any tensor of the graph as output.

One thread by default: the reference is compared bit by bit between builds, and a thread count is not
part of a model.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from edgeopt.errors import ModelError, ToolchainError
from edgeopt.model import Model, save, shown

Feeds = Mapping[str, np.ndarray]

INLINE_LIMIT = 4_000_000
"""Above this many weight bytes a model goes to the runtime through a temporary file with its data beside it: a
protobuf and its bytes would be two more copies of the weights in memory, and end at 2 GB."""

AHEAD = 32_000_000
"""Bytes of inner tensors of one sample up to which a second one is made meanwhile, where no budget says it."""


class Interpreter:
    """A loaded session: ``run(feeds)`` returns the outputs by name, in the order asked for.

    Args:
        source: a model, or the path of an ``.onnx`` file.
        tensors: names to return; the graph outputs when None. Tensors of the main graph only.
        threads: intra-op threads.
        libraries: shared libraries with custom operators; a model brings its own. Loading one runs its code.
        optimize: let the runtime rewrite the graph; off for a file that holds the runtime's own.
        simulate: round where Q/DQ pairs stand and compute in float: no integer kernels, and nothing else in integers.

    Raises:
        ModelError: the runtime refuses the model; its own words are quoted.
    """

    def __init__(
        self,
        source: Model | Path,
        *,
        tensors: Iterable[str] | None = None,
        threads: int = 1,
        libraries: Iterable[Path] = (),
        optimize: bool = True,
        simulate: bool = False,
    ) -> None:
        ort = import_onnxruntime()
        settings = ort.SessionOptions()
        settings.intra_op_num_threads = threads
        settings.inter_op_num_threads = 1
        settings.log_severity_level = 4  # what fails is raised
        settings.enable_cpu_mem_arena = settings.enable_mem_pattern = False  # an arena keeps its peak until the end
        if not optimize:
            settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        if simulate:
            settings.add_session_config_entry("session.disable_quant_qdq", "1")
        wanted = None if tensors is None else tuple(tensors)
        model = source if isinstance(source, Path) else _exposing(source, wanted)
        for library in (*libraries, *(() if isinstance(model, Path) else model.origin.libraries)):
            register_library(settings, library)
        try:
            self._session = _session_of(ort, model, settings)
        except session_errors() as error:
            reason = _first_line(error)
            self._session = None if isinstance(model, Path) else _unoptimized(ort, model, settings)
            if self._session is None:
                raise ModelError(
                    f"onnxruntime {ort.__version__} does not load the model: {reason}",
                    remedy=_remedy(reason),
                ) from error
        self.outputs: tuple[str, ...] = wanted or tuple(o.name for o in self._session.get_outputs())
        self.inputs: tuple[str, ...] = tuple(i.name for i in self._session.get_inputs())

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Run once.

        Raises:
            ModelError: the runtime fails on these inputs (a shape baked into the graph, say).
        """
        try:
            values = self._session.run(list(self.outputs), {name: feeds[name] for name in self.inputs})
        except session_errors() as error:
            raise ModelError(f"the model fails on a sample: {_first_line(error)}") from error
        return dict(zip(self.outputs, values))

    def ahead(
        self, samples: Iterable[Feeds], fits: Callable[[int], bool] = lambda size: True
    ) -> Iterator[tuple[Feeds, dict[str, np.ndarray]]]:
        """Each sample with its outputs, in order: the next one runs on another thread while the caller reads this one.

        The outputs are those of ``run``. Samples are read on the caller's thread.

        Args:
            fits: whether the outputs of two samples of so many bytes each may be held at a time.

        Raises:
            ModelError: the runtime fails on a sample.
        """
        waiting: tuple[Feeds, Future[dict[str, np.ndarray]]] | None = None
        with ThreadPoolExecutor(max_workers=1) as worker:
            for feeds in samples:
                if waiting is None:
                    waiting = feeds, worker.submit(self.run, feeds)
                    continue
                before, found = waiting[0], waiting[1].result()
                waiting = None
                two = fits(sum(value.nbytes for value in found.values()))
                following = worker.submit(self.run, feeds) if two else None
                yield before, found
                del before, found
                waiting = feeds, following or worker.submit(self.run, feeds)
            if waiting is not None:
                yield waiting[0], waiting[1].result()


def refusal(model: Model) -> str | None:
    """What the runtime has against a model when it optimizes it as on a device; None where it loads.

    ``Interpreter`` also takes a model in memory that loads only as it is written.
    """
    ort = import_onnxruntime()
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    settings.log_severity_level = 4
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    for library in model.origin.libraries:
        register_library(settings, library)
    try:
        _session_of(ort, model, settings)
    except session_errors() as error:
        return _first_line(error)
    return None


def import_onnxruntime() -> Any:
    """The onnxruntime module.

    Raises:
        ToolchainError: it is missing or does not import.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when the library loads
    try:
        import onnxruntime
    except ImportError as error:
        raise ToolchainError(f"onnxruntime does not import: {error}", remedy="pip install onnxruntime") from error
    return onnxruntime


def register_library(settings: Any, library: Path) -> None:
    """Let sessions of these options use the custom operators of a shared library. This runs its code.

    Raises:
        ModelError: there is no such file, or it holds no operators for this runtime and machine.
    """
    if not library.is_file():
        raise ModelError(f"{shown(library)} is not there, or no file.", remedy="--custom-ops takes a shared library.")
    try:
        settings.register_custom_ops_library(str(library.resolve()))
    except session_errors() as error:
        raise ModelError(
            f"onnxruntime cannot use the custom operators of {shown(library)}: {_first_line(error)}",
            remedy="The library must be built for this machine and for this release of onnxruntime.",
        ) from error


def session_errors() -> tuple[type[Exception], ...]:
    """The classes that onnxruntime raises; they share no base of their own."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    named = [value for value in vars(state).values() if isinstance(value, type) and issubclass(value, Exception)]
    return (*named, RuntimeError)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _exposing(model: Model, tensors: Sequence[str] | None) -> Model:
    """The model with ``tensors`` as its only outputs; dead nodes are left to the runtime."""
    if tensors is None:
        return model
    changed = model.clone()
    values = {v.name: v for v in changed.graph.inputs}
    for node in changed.graph:
        values.update({v.name: v for v in node.outputs})
    changed.graph.outputs.clear()
    for name in tensors:
        value = values[name]
        if value.is_graph_input():
            raise ModelError(f"{name} is a graph input, not a computed tensor")
        if value.type is None:
            value.type = ir.TensorType(ir.DataType.FLOAT)
        changed.graph.outputs.append(value)
    return changed


def _remedy(reason: str) -> str:
    if "InferenceError" in reason:
        return "Shapes contradict each other, perhaps in a branch that is never taken: fix fewer of them with --shape."
    return "Run `edgeopt inspect` on it; a custom operator or a newer opset is the usual cause."


def _unoptimized(ort: Any, model: Model, settings: Any) -> Any | None:
    """A session without the runtime's own rewrites, which stumble over some graphs with inner tensors as outputs.

    For models in memory only: a file is loaded as a device loads it.
    """
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return _session_of(ort, model, settings)
    except session_errors():
        return None


def _session_of(ort: Any, model: Model | Path, settings: Any) -> Any:
    if isinstance(model, Path):
        return ort.InferenceSession(str(model), settings, providers=["CPUExecutionProvider"])
    weight_bytes = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
    if weight_bytes < INLINE_LIMIT:
        return ort.InferenceSession(
            ir.to_proto(model.ir).SerializeToString(), settings, providers=["CPUExecutionProvider"]
        )
    with tempfile.TemporaryDirectory(prefix="edgeopt-") as folder:
        path = Path(folder) / "model.onnx"
        save(model, path, external_data=True)
        return ort.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
