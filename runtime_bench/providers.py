"""Execution providers of onnxruntime: short names, spelling, and the package that has each."""

from __future__ import annotations

from typing import Sequence

from runtime_bench.errors import RuntimeMissing

CPU = "CPUExecutionProvider"

SHORT = {
    "cpu": CPU,
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "trt": "TensorrtExecutionProvider",
    "nvtensorrtrtx": "NvTensorRTRTXExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "dml": "DmlExecutionProvider",
    "directml": "DmlExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
    "xnnpack": "XnnpackExecutionProvider",
    "azure": "AzureExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "migraphx": "MIGraphXExecutionProvider",
    "dnnl": "DnnlExecutionProvider",
    "qnn": "QNNExecutionProvider",
    "nnapi": "NnapiExecutionProvider",
    "acl": "ACLExecutionProvider",
    "armnn": "ArmNNExecutionProvider",
    "vitisai": "VitisAIExecutionProvider",
    "vsinpu": "VSINPUExecutionProvider",
    "rknpu": "RknpuExecutionProvider",
    "cann": "CANNExecutionProvider",
    "webgpu": "WebGpuExecutionProvider",
}
"""Short name -> full name."""

PACKAGES = {
    CPU: "onnxruntime",
    "AzureExecutionProvider": "onnxruntime",
    "CoreMLExecutionProvider": "onnxruntime",
    "CUDAExecutionProvider": "onnxruntime-gpu",
    "TensorrtExecutionProvider": "onnxruntime-gpu",
    "OpenVINOExecutionProvider": "onnxruntime-openvino",
    "DmlExecutionProvider": "onnxruntime-directml",
    "QNNExecutionProvider": "onnxruntime-qnn",
    "CANNExecutionProvider": "onnxruntime-cann",
}
"""Full name -> package on PyPI that has the provider; the others need a build of their own."""

THREADS = {"OpenVINOExecutionProvider": "num_of_threads", "XnnpackExecutionProvider": "intra_op_num_threads"}
"""Providers with a thread pool of their own -> their option for its size."""

_SUFFIX = "ExecutionProvider"


def full_name(word: str, available: Sequence[str] = ()) -> str:
    """The full name of a provider from its short or full name, in any case.

    Raises RuntimeMissing, with the nearest known name, for a word that names no provider, known or ``available``.
    """
    known = {name.lower(): name for name in (*SHORT.values(), *available)}
    found = SHORT.get(word.lower()) or known.get(word.lower()) or known.get((word + _SUFFIX).lower())
    if found is not None:
        return found
    import difflib

    near = difflib.get_close_matches(word.lower(), [*SHORT, *known], n=1, cutoff=0.5)
    hint = ' Did you mean "{}"?'.format(known.get(near[0], near[0])) if near else ""
    there = "This onnxruntime has: {}".format(", ".join(available) or "none") if available else ""
    there = there or "Known names: {}".format(", ".join(sorted(SHORT)))
    text = 'no provider is called "{}".{} {}'
    shown = "".join(c if c.isprintable() else "?" for c in word[:80])
    raise RuntimeMissing(text.format(shown, hint, there))


def pip_line(provider: str = CPU, minimum: str = "") -> str:
    """The command that installs onnxruntime with a provider, of at least a version."""
    package = PACKAGES.get(provider, "onnxruntime")
    return 'python3 -m pip install numpy "{}{}"'.format(package, ">=" + minimum if minimum else "")


def remedy(provider: str, minimum: str = "") -> str:
    """What to do where the installed package lacks a provider."""
    if provider in PACKAGES:
        return "Install a package that has it: {}".format(pip_line(provider, minimum))
    return "No package on PyPI has it: onnxruntime must be built with it"


def usable(asked: str, available: Sequence[str], *, allow_fallback: bool = False) -> str:
    """The provider to ask a session for: ``asked``, or the CPU's where it is not there and a fallback is allowed.

    Args:
        asked: a full name.
        available: what the installed package has.
        allow_fallback: run on the CPU rather than raise.

    Raises RuntimeMissing with the pip line.
    """
    if asked in available:
        return asked
    if allow_fallback and CPU in available:
        return CPU
    text = "asked for {}, this onnxruntime has: {}. {}"
    raise RuntimeMissing(text.format(asked, ", ".join(available) or "none", remedy(asked)))
