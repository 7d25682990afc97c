"""OpenVINO through its Python package, on the CPU: an IR (``.xml`` with the ``.bin`` beside it) or an ``.onnx`` file.

Options: ``threads`` (default 1), ``precision`` of what is not quantized (``f32``, the default, ``f16`` or ``bf16``:
left to itself the plugin computes float networks in the lowest that the processor has), ``dynamic`` (in groups of how
many values the plugin may round what it multiplies by stored weights to 8 bits; 0, the default, is not at all),
``provider`` (the CPU), and ``allow_fallback``, which means nothing here. There is one stream, and nothing is cached on
disk. Any other option is refused.
"""

from __future__ import annotations

import re
import sys
from functools import partial
from typing import Any, Callable, Mapping, Optional, Union

from runtime_bench.arrays import load_array
from runtime_bench.errors import BenchFailure, RuntimeMissing
from runtime_bench.layers import Layer, from_layers
from runtime_bench.runners import Loaded
from runtime_bench.signal_stack import kept_signal_stack

# y = Relu(x), float[1]
BASELINE: Union[str, bytes] = (
    b'<?xml version="1.0"?><net name="g" version="11"><layers>'
    b'<layer id="0" name="x" type="Parameter" version="opset1"><data shape="1" element_type="f32"/>'
    b'<output><port id="0" precision="FP32" names="x"><dim>1</dim></port></output></layer>'
    b'<layer id="1" name="r" type="ReLU" version="opset1"><input><port id="0" precision="FP32"><dim>1</dim></port>'
    b'</input><output><port id="1" precision="FP32" names="y"><dim>1</dim></port></output></layer>'
    b'<layer id="2" name="y/sink" type="Result" version="opset1"><input><port id="0" precision="FP32"><dim>1</dim>'
    b'</port></input></layer></layers><edges><edge from-layer="0" from-port="0" to-layer="1" to-port="0"/>'
    b'<edge from-layer="1" from-port="1" to-layer="2" to-port="0"/></edges></net>'
)

PRECISIONS = ("f32", "f16", "bf16")
OPTIONS = ("threads", "precision", "dynamic", "provider", "allow_fallback")

GROUP = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
"""Property of the plugin. Left to itself it rounds what is multiplied by stored weights to 8 bits, in groups of 32."""

_PLACES = (
    *("Exception from ", "Check '", "[ GENERAL_ERROR", "FrontEnd API failed", "Model wasn't fully converted"),
    *("While validating ", "Summary:", "To facilitate "),
)
"""How lines begin that say where something failed, and not what."""

TELEMETRY = "openvino_telemetry"
"""A package that ``import openvino`` uses to tell a server that it was imported; a stub stands in where it is not."""


def import_runtime() -> None:
    """Import numpy and openvino, without its telemetry. Raises RuntimeMissing where one of them cannot be imported."""
    modules = sys.modules  # type: dict[str, Any]
    blocks = TELEMETRY not in modules
    if blocks:
        modules[TELEMETRY] = None
    try:
        import numpy  # noqa: F401
        import openvino  # noqa: F401
    except (ImportError, OSError) as error:
        name = getattr(error, "name", None) or "openvino"
        raise RuntimeMissing("cannot import {}: {}".format(name, error)) from error
    finally:
        if blocks:
            del modules[TELEMETRY]


def runtime_info() -> Mapping[str, Any]:
    """Version and devices of the installed package."""
    import_runtime()
    import openvino

    with kept_signal_stack():
        return {"name": "openvino", "version": _version(), "providers": list(openvino.Core().available_devices)}


def load(path: Union[str, bytes], options: Mapping[str, Any]) -> Loaded:
    """Compile a model for the CPU, with as many threads as ``options`` say.

    Raises BenchFailure where an option is unknown or the runtime refuses the model.
    """
    model = compiled(path, options)
    request = model.create_infer_request()
    names = [(index, name) for index, port in enumerate(model.outputs) for name in names_of(port)]

    def infer(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        import numpy

        fill(model, request, feeds)
        _understood(request.infer)
        return {name: numpy.array(request.get_output_tensor(index).data) for index, name in names}

    def bind(feeds: Mapping[str, Any]) -> Callable[[], Any]:
        own = model.create_infer_request()
        fill(model, own, feeds)
        return partial(own.infer, None, False, True)  # the outputs stay in the request's own memory

    runtime = {"name": "openvino", "version": _version(), "provider": "CPU", "asked": "CPU", "spinning": False}
    return Loaded(bind, infer, runtime)


def audit(path: Union[str, bytes], options: Mapping[str, Any], feeds: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the compiled model runs, layer by layer; see ``layers.from_layers``.

    The graph is the one that ``load`` gets from the same options. Its layers are told without a run.
    """
    found = []
    for node in compiled(path, options).get_runtime_model().get_ordered_ops():
        told = _told(node.get_rt_info())
        shapes = [_shape(port) for port in (*node.inputs(), *node.outputs())]
        count = len(node.inputs())
        found.append(
            Layer(told("layerType"), told("runtimePrecision"), told("primitiveType"), shapes[:count], shapes[count:])
        )
    return from_layers(found, "CPU")


def baseline_feeds() -> Mapping[str, Any]:
    """The input of ``BASELINE``."""
    import numpy

    return {"x": numpy.zeros(1, numpy.float32)}


def read_feeds(files: Mapping[str, str]) -> Mapping[str, Any]:
    """Read ``.npy`` files, contiguous and aligned for the runtime."""
    return {name: load_array(path) for name, path in files.items()}


def compiled(path: Union[str, bytes], options: Mapping[str, Any]) -> Any:
    """Compile a model, with the options that ``load`` takes; raises as it does."""
    import_runtime()
    import openvino

    with kept_signal_stack():
        core = openvino.Core()
        settings = _settings(options, core.get_property("CPU", "SUPPORTED_PROPERTIES"))
        model = core.read_model(path, b"") if isinstance(path, bytes) else _understood(partial(core.read_model, path))
        return _understood(partial(core.compile_model, model, "CPU", settings))


def _settings(options: Mapping[str, Any], known: Any) -> "dict[str, Any]":
    """Properties of the plugin; ``known`` are those that the installed one has."""
    unknown = sorted(key for key in options if key not in OPTIONS)
    if unknown:
        text = 'OpenVINO is run with the options {}, and not with "{}"'
        raise BenchFailure(text.format(", ".join(OPTIONS), unknown[0]))
    asked = str(options.get("provider", "CPU"))
    if asked.upper() != "CPU":
        raise RuntimeMissing('asked for "{}": bundles for OpenVINO run on its CPU plugin'.format(asked[:40]))
    threads = int(options.get("threads", 1))
    if threads < 1:
        raise ValueError("threads must be at least 1, not {}".format(threads))
    precision, dynamic = str(options.get("precision", "f32")), str(options.get("dynamic", "0"))
    if precision not in PRECISIONS:
        raise BenchFailure("the option precision is one of {}, not {!r:.40}".format(", ".join(PRECISIONS), precision))
    if not dynamic.isdigit():
        raise BenchFailure("the option dynamic is a number of values, not {!r:.40}".format(dynamic))
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": precision,
        "CACHE_DIR": "",
    }  # type: dict[str, Any]
    if GROUP in known:
        settings[GROUP] = int(dynamic)
    return settings


def fill(model: Any, request: Any, feeds: Mapping[str, Any]) -> None:
    """Give a request its inputs, without a copy where it can be.

    Raises BenchFailure where one is missing or does not fit: a request for open shapes takes any tensor, and the
    runtime would read beyond its end.
    """
    import openvino

    for index, port in enumerate(model.inputs):
        known = [name for name in names_of(port) if name in feeds]
        if not known:
            raise BenchFailure("no value for the input {}".format(names_of(port)[0]))
        value, wanted = feeds[known[0]], port.get_partial_shape()
        if not wanted.compatible(openvino.PartialShape(list(value.shape))):
            text = "the input {} has the shape {}, and the model takes {}"
            raise BenchFailure(text.format(known[0], list(value.shape), wanted))
        shared = value.flags.writeable and value.flags.c_contiguous
        tensor = openvino.Tensor(value, shared_memory=bool(shared))
        _understood(partial(request.set_input_tensor, index, tensor))


def names_of(port: Any) -> "list[str]":
    """Names of an input or output, one at least."""
    return sorted(port.get_names()) or [port.get_node().get_friendly_name()]


def _told(info: Any) -> Callable[[str], str]:
    def told(name: str) -> str:
        value = info[name] if name in info else ""  # noqa: SIM401 - no mapping
        return str(value if isinstance(value, str) else value.astype(str))

    return told


def _shape(port: Any) -> "Optional[list[int]]":
    shape = port.get_partial_shape()
    return [int(size) for size in shape.to_shape()] if shape.is_static else None


def _understood(call: Callable[[], Any]) -> Any:
    """Call, and turn what the runtime raises into one sentence."""
    try:
        return call()
    except RuntimeError as error:
        raise BenchFailure("openvino {} refuses the model: {}".format(_version(), sentence(str(error)))) from error


def sentence(text: str) -> str:
    """What tells a reader something in the words of OpenVINO, which begin with places in its own sources."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(_PLACES)] or lines or ["it gives no reason"]
    first = telling[0]
    if first.startswith("-- ") and first.endswith(" with a message:") and len(telling) > 1:
        first = "{}: {}".format(first[3 : -len(" with a message:")], telling[1])
    return re.sub(r"^-- ", "", first)[:300]


def _version() -> str:
    import openvino

    return str(openvino.__version__).partition("-")[0]
