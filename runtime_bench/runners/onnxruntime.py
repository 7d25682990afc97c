"""ONNX Runtime through its Python package.

Options: ``threads`` (intra-op, default 1), ``provider`` (a short or full name, default the CPU's), ``allow_fallback``
(run on the CPU where the provider is not there), ``custom_ops`` (path of a shared library with operators of one's own;
its code runs), ``optimizer`` (``"off"`` for a file that holds the runtime's own optimized graph; ``"on"``, all of its
optimizations, is the default), and what trades memory for time: ``arena`` (``"off"``: what a node no longer needs goes
back at once, and is asked for anew in each call), ``memory_pattern`` (``"off"``: no block of its own for what the first
call took, which would be held beside the arena), ``prepacking`` (``"off"``: no second copy of weights in the order that
kernels like best), ``order`` (``"file"``: nodes run in the order of the file as far as the optimizer left it;
``"depth-first"`` is the default) and ``heap`` (``"small"``: large blocks are mapped one by one for the whole process,
and what loading left free goes back to the system; glibc only). Every other entry is a session config entry, such as
``session.qdqisint8allowed``.
"""

from __future__ import annotations

import json
import os
import re
from functools import partial
from typing import Any, Callable, Mapping, Optional, Sequence, Union

from runtime_bench import heap, providers
from runtime_bench.arrays import load_array
from runtime_bench.errors import BenchFailure, RuntimeMissing
from runtime_bench.runners import Loaded

# y = Identity(x), float[1], IR 8, opset 13, made with:
#   value = lambda n: helper.make_tensor_value_info(n, TensorProto.FLOAT, [1])
#   graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [value("x")], [value("y")])
#   helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)]).SerializeToString()
BASELINE: Union[str, bytes] = bytes.fromhex(
    "08083a370a100a017812017922084964656e746974791201675a0f0a0178120a0a08080112040a02"
    "0801620f0a0179120a0a08080112040a02080142040a00100d"
)

SWITCHES: Mapping[str, Sequence[str]] = {
    "optimizer": ("on", "off"),
    "arena": ("on", "off"),
    "memory_pattern": ("on", "off"),
    "prepacking": ("on", "off"),
    "order": ("depth-first", "file"),
    "heap": ("usual", "small"),
}
"""Options with two values each, the default first."""

OWN_OPTIONS = ("provider", "threads", "allow_fallback", "custom_ops", *SWITCHES)
"""Options that are no session config entries."""

_ERRORS = (
    *("Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NoModel", "NoSuchFile", "NotFound"),
    *("NotImplemented", "RuntimeException", "EPFail", "EngineError", "ModelRequiresCompilation"),
)
_REFUSALS = (
    (r"Could not find an implementation for (\S+) node with name '([^']*)'", '{0} has no kernel for {1} (node "{2}")'),
    (r"Opset (\d+) is under development.* till opset (\d+)", "the model has opset {1}, {0} reads {2} at most"),
    (
        r"model IR version: (\d+), max supported IR version: (\d+)",
        "the model has IR version {1}, {0} reads {2} at most",
    ),
    (
        r"ORT format model version \[(\w+)\] is not supported",
        "the model is in .ort format {1}, which {0} does not read",
    ),
    (r"ORT model verification failed", "{0} finds the .ort file damaged or cut off"),
    (r"No Op registered for (\S+) with domain_version of (\d+)", "{0} knows no operator {1} in opset {2}"),
    (r"Fatal error: (\S+) is not a registered", "{0} knows no operator {1}"),
)
"""What onnxruntime says of a model that it cannot run -> a sentence with its version and the facts."""


SPINNING = "session.intra_op.allow_spinning"
"""Session entry, on by default: idle threads burn their CPU for a while before they sleep."""


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
    """Create a session on the wanted provider, with as many threads as ``options`` say.

    ``runtime["provider"]`` is what the session names first. Only ``audit`` tells where the nodes really run.

    Raises RuntimeMissing where the provider is not in the installed package or the session does not use it, and no
    fallback is allowed; BenchFailure where the runtime refuses the model.
    """
    session, asked = _session(path, options, profile=None)
    import onnxruntime

    names = [output.name for output in session.get_outputs()]

    def infer(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        return dict(zip(names, session.run(None, dict(feeds))))

    def bind(feeds: Mapping[str, Any]) -> Any:
        return partial(session.run, None, dict(feeds))

    runtime = {
        "name": "onnxruntime",
        "version": onnxruntime.__version__,
        "provider": session.get_providers()[0],
        "asked": asked,
        "spinning": int(options.get("threads", 1)) > 1 and str(options.get(SPINNING, "1")) != "0",
    }
    return Loaded(bind, infer, runtime)


def audit(path: Union[str, bytes], options: Mapping[str, Any], feeds: Mapping[str, Any]) -> Mapping[str, Any]:
    """Run the model once with the runtime's profile and say what ran where; see ``audit.from_profile``.

    The graph is the one that ``load`` gets from the same options. Kernels do not pack their constants here, because
    packed ones are missing in the profile. Returns ``{"reason"}`` where no profile can be read; raises as ``load``.
    """
    import tempfile

    from runtime_bench.audit import from_profile

    try:
        with tempfile.TemporaryDirectory(prefix="runtime-bench-") as folder:
            session, asked = _session(path, options, profile=os.path.join(folder, "profile"))
            _understood(lambda: session.run(None, dict(feeds)))
            with open(session.end_profiling(), encoding="utf-8", errors="replace") as stream:
                events = json.load(stream)
    except OSError as error:
        return {"reason": "the runtime's profile cannot be written: {}".format(error)}
    except ValueError as error:
        return {"reason": "the runtime's profile is not JSON: {}".format(error)}
    return from_profile(events, asked)


def baseline_feeds() -> Mapping[str, Any]:
    """The input of ``BASELINE``."""
    import numpy

    return {"x": numpy.zeros(1, numpy.float32)}


def read_feeds(files: Mapping[str, str]) -> Mapping[str, Any]:
    """Read ``.npy`` files, contiguous and aligned for the runtime."""
    return {name: load_array(path) for name, path in files.items()}


def _session(path: Union[str, bytes], options: Mapping[str, Any], profile: Optional[str]) -> "tuple[Any, str]":
    """A session and the full name of the provider that was asked for; with ``profile``, it writes one to there."""
    import_runtime()
    import onnxruntime

    threads, available = int(options.get("threads", 1)), onnxruntime.get_available_providers()
    if threads < 1:
        raise ValueError("threads must be at least 1, not {}".format(threads))
    may_fall_back = bool(options.get("allow_fallback"))
    asked = providers.full_name(str(options.get("provider", providers.CPU)), available)
    provider = providers.usable(asked, available, allow_fallback=may_fall_back)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads  # 0 would mean all cores, each thread pinned to one
    settings.inter_op_num_threads = 1
    _switch(settings, options)
    for key, value in options.items():
        if key not in OWN_OPTIONS:
            settings.add_session_config_entry(key, str(value))
    if options.get("custom_ops"):
        library = os.path.abspath(str(options["custom_ops"]))  # a bare name would be looked for on the loader's path
        _understood(lambda: settings.register_custom_ops_library(library))
    if profile is not None:
        settings.enable_profiling = True
        settings.profile_file_prefix = profile
        settings.add_session_config_entry("session.disable_prepacking", "1")
    own = {providers.THREADS[provider]: str(threads)} if provider in providers.THREADS else {}
    wanted = [(provider, own)] if own else [provider]
    session = _understood(lambda: onnxruntime.InferenceSession(path, settings, providers=wanted))
    session.disable_fallback()
    if options.get("heap") == "small":
        heap.trim()
    used = session.get_providers()
    if provider not in used[:1] and not may_fall_back:
        text = "asked for {}, the session uses: {}. The provider could not start here; the runtime's log says why"
        raise RuntimeMissing(text.format(asked, used[0]))
    return session, asked


def _switch(settings: Any, options: Mapping[str, Any]) -> None:
    """Set what ``SWITCHES`` names. Raises BenchFailure for another value of one of them."""
    import onnxruntime

    for name, (usual, other) in SWITCHES.items():
        if options.get(name, usual) not in (usual, other):
            text = 'the option {} is "{}" or "{}", not {!r:.40}'
            raise BenchFailure(text.format(name, usual, other, options[name]))
    changed = {name for name, (usual, other) in SWITCHES.items() if options.get(name, usual) == other}
    if "optimizer" in changed:
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if "arena" in changed:
        settings.enable_cpu_mem_arena = False
    if "memory_pattern" in changed:
        settings.enable_mem_pattern = False
    if "prepacking" in changed:
        settings.add_session_config_entry("session.disable_prepacking", "1")
    if "heap" in changed:
        heap.keep_small()
    if "order" in changed:
        settings.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED


def _understood(call: Callable[[], Any]) -> Any:
    """Call, and turn what the runtime raises into one sentence."""
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    kinds = tuple(getattr(state, name) for name in _ERRORS if hasattr(state, name))
    try:
        return call()
    except kinds as error:
        raise BenchFailure(refusal(str(error), "onnxruntime " + onnxruntime.__version__)) from error


def refusal(text: str, runtime: str) -> str:
    """One sentence from the words with which onnxruntime refuses a model."""
    for pattern, words in _REFUSALS:
        match = re.search(pattern, text)
        if match:
            return words.format(runtime, *match.groups())
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : (\w+) : ", "", " ".join(text.split()))
    text = re.sub(r"Load model from .* failed: ?", "", text)
    text = re.sub(r"/onnxruntime_src/\S+ .*?\) (?=[A-Z])", "", text)
    return "{} refuses the model: {}".format(runtime, text[:300])
