"""OpenVINO's runtime on the build host, loaded, pinned and fed by the runner that a bundle carries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgeopt.errors import ModelError, ToolchainError
from edgeopt.model import TensorSpec
from runtime_bench.errors import BenchFailure, RuntimeMissing
from runtime_bench.runners import openvino as runner

Feeds = Mapping[str, np.ndarray]

DEVICE = "CPU"


def import_openvino() -> Any:
    """The openvino module, imported without its telemetry.

    Raises:
        ToolchainError: it is missing or does not import.
    """
    try:
        runner.import_runtime()
    except RuntimeMissing as error:
        raise ToolchainError(f"openvino is not here: {error}", remedy='pip install "edgeopt[openvino]"') from error
    import openvino

    return openvino


def version() -> str:
    """The release that is installed, such as ``"2026.4.1"``."""
    return str(import_openvino().__version__).partition("-")[0]


def compile_model(path: Path, *, threads: int = 1, options: Mapping[str, str] | None = None) -> Any:
    """Compile an IR, or an ``.onnx`` file, for the CPU as the runner does.

    Raises:
        ModelError: the runtime refuses it.
    """
    import_openvino()
    try:
        return runner.compiled(str(path), {"threads": threads, **(options or {})})
    except BenchFailure as error:
        raise ModelError(
            f"OpenVINO does not load the model: {error}",
            remedy="Build for onnxruntime, or run `edgeopt inspect` on the model.",
        ) from error


class Compiled:
    """A loaded artifact: ``run(feeds)`` returns the outputs by name, in order.

    Args:
        path: an IR, or an ``.onnx`` file.
        libraries: refused: operators made for onnxruntime do not run here.

    Raises:
        ModelError: the runtime refuses the model.
    """

    def __init__(self, path: Path, *, libraries: Iterable[Path] = (), threads: int = 1) -> None:
        refuse_libraries(libraries)
        self._compiled = compile_model(path, threads=threads)
        self._request = self._compiled.create_infer_request()
        self.inputs: tuple[str, ...] = tuple(port_name(port) for port in self._compiled.inputs)
        self.outputs: tuple[str, ...] = tuple(port_name(port) for port in self._compiled.outputs)

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Run once.

        Raises:
            ModelError: the runtime fails on these inputs.
        """
        try:
            runner.fill(self._compiled, self._request, feeds)
            self._request.infer()
        except (BenchFailure, RuntimeError) as error:
            raise ModelError(f"the model fails on a sample: {runner.sentence(str(error))}") from error
        found = [self._request.get_output_tensor(index).data for index in range(len(self.outputs))]
        return {name: np.array(value) for name, value in zip(self.outputs, found)}


def signature(path: Path) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs and outputs of an IR.

    Raises:
        ModelError: the runtime refuses it.
        ToolchainError: the runtime is missing.
    """
    model = compile_model(path)

    def spec(port: Any) -> TensorSpec:
        shape = port.get_partial_shape()
        dims = ["..."] if shape.rank.is_dynamic else [d.get_length() if d.is_static else "?" for d in shape]
        return TensorSpec(name=port_name(port), dtype=str(port.get_element_type().to_dtype()), shape=tuple(dims))

    return tuple(map(spec, model.inputs)), tuple(map(spec, model.outputs))


def port_name(port: Any) -> str:
    """The name of an input or output; the tensor's, which is what a caller knows."""
    return runner.names_of(port)[0]


def refuse_libraries(libraries: Iterable[Path]) -> None:
    """Refuse operators that come in a shared library for onnxruntime.

    Raises:
        ToolchainError: there are some.
    """
    for library in libraries:
        raise ToolchainError(
            f"the operators of {library.name} are made for onnxruntime, and OpenVINO does not run them",
            remedy="Build for onnxruntime: it takes the library.",
        )
