"""Runs a model in the runtime it was made for: one thread, float32 arithmetic where something stays in float."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Run = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]

OPENVINO = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}


class Reference(NamedTuple):
    """The float original in onnxruntime, and its inputs as edgeopt states them."""

    run: Run
    inputs: Any


def reference(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Reference:
    from edgeopt import loaders
    from edgeopt.interpreter import Interpreter

    model = loaders.load(path, shapes=shapes)
    return Reference(Interpreter(model).run, model.inputs)


def load(entry: Mapping[str, Any]) -> Run:
    """``{"runtime", "path", "options"}`` -> what runs it."""
    return {"onnxruntime": in_onnxruntime, "openvino": in_openvino}[entry["runtime"]](entry)


def in_onnxruntime(entry: Mapping[str, Any]) -> Run:
    from runtime_bench.runners import get

    loaded = get("onnxruntime").load(
        entry["path"], {"provider": "CPUExecutionProvider", **entry["options"], "threads": 1}
    )
    return loaded.infer


def in_openvino(entry: Mapping[str, Any]) -> Run:
    compiled = compile_openvino(entry["path"])
    names = {name: port for port in compiled.inputs for name in port.get_names()}
    request = compiled.create_infer_request()

    def run(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        taken = {names[name].get_any_name(): value for name, value in feeds.items() if name in names}
        request.infer(taken)
        return {name: np.array(request.get_tensor(port).data) for port in compiled.outputs for name in port.get_names()}

    return run


def compile_openvino(path: str) -> Any:
    import openvino

    core = openvino.Core()
    core.set_property({"ENABLE_MMAP": True})
    return core.compile_model(core.read_model(path), "CPU", OPENVINO)
