"""ONNX Runtime through its Python package.

Options: ``threads`` (intra-op, default 1), ``provider`` (default ``CPUExecutionProvider``); every other entry is a
session config entry, such as ``session.qdqisint8allowed``.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any, Mapping, Union

from runtime_bench.arrays import load_array
from runtime_bench.errors import RuntimeMissing
from runtime_bench.runners import Loaded

# y = Identity(x), float[1], IR 8, opset 13, made with:
#   value = lambda n: helper.make_tensor_value_info(n, TensorProto.FLOAT, [1])
#   graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [value("x")], [value("y")])
#   helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)]).SerializeToString()
BASELINE: Union[str, bytes] = bytes.fromhex(
    "08083a370a100a017812017922084964656e746974791201675a0f0a0178120a0a08080112040a02"
    "0801620f0a0179120a0a08080112040a02080142040a00100d"
)

DEFAULT_PROVIDER = "CPUExecutionProvider"


def pip_line(provider: str = DEFAULT_PROVIDER, minimum: str = "") -> str:
    """The command that installs the runtime for a provider."""
    package = "onnxruntime" if provider == DEFAULT_PROVIDER else "onnxruntime-gpu"
    return 'python3 -m pip install numpy "{}{}"'.format(package, ">=" + minimum if minimum else "")


def import_runtime() -> None:
    """Import numpy and onnxruntime. Raises RuntimeMissing where one of them cannot be imported."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when the library loads; it adds a thread and files
    try:
        import numpy  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise RuntimeMissing("cannot import {}: {}".format(error.name or "onnxruntime", error)) from error


def runtime_info() -> Mapping[str, Any]:
    """Version and providers of the installed package."""
    import_runtime()
    import onnxruntime

    version, providers = onnxruntime.__version__, onnxruntime.get_available_providers()
    return {"name": "onnxruntime", "version": version, "providers": providers}


def load(path: Union[str, bytes], options: Mapping[str, Any]) -> Loaded:
    """Create a session on exactly the wanted provider.

    Raises RuntimeMissing where the provider is not in the installed package, or the session does not use it.
    """
    import_runtime()
    import onnxruntime

    provider = str(options.get("provider", DEFAULT_PROVIDER))
    _require(provider, onnxruntime.get_available_providers(), "this onnxruntime has")
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = int(options.get("threads", 1))
    settings.inter_op_num_threads = 1
    for key, value in options.items():
        if key not in ("provider", "threads"):
            settings.add_session_config_entry(key, str(value))
    session = onnxruntime.InferenceSession(path, settings, providers=[provider])
    session.disable_fallback()
    used = session.get_providers()
    _require(provider, used[:1], "the session uses")
    names = [output.name for output in session.get_outputs()]

    def infer(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        return dict(zip(names, session.run(None, dict(feeds))))

    def bind(feeds: Mapping[str, Any]) -> Any:
        return partial(session.run, None, dict(feeds))

    return Loaded(bind, infer, {"name": "onnxruntime", "version": onnxruntime.__version__, "provider": used[0]})


def baseline_feeds() -> Mapping[str, Any]:
    """The input of ``BASELINE``."""
    import numpy

    return {"x": numpy.zeros(1, numpy.float32)}


def read_feeds(files: Mapping[str, str]) -> Mapping[str, Any]:
    """Read ``.npy`` files, contiguous and aligned for the runtime."""
    return {name: load_array(path) for name, path in files.items()}


def _require(provider: str, found: Any, where: str) -> None:
    if provider not in found:
        raise RuntimeMissing(
            "asked for {}, {}: {}. Install a package that has it: {}".format(
                provider, where, ", ".join(found) or "none", pip_line(provider)
            )
        )
