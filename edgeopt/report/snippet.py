"""A Python program that runs the default artifact as its contract says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgeopt.report.contract import native_of
from edgeopt.report.summary import default_artifact

_MODES = {"rgb": "RGB", "bgr": "RGB", "gray": "L"}


def golden_snippet(manifest: Mapping[str, Any]) -> str:
    """Run the first golden sample and compare with what the build host got. All names are Python literals."""
    lines = _compiled(manifest) if _is_openvino(manifest) else _session(manifest)
    samples = (manifest.get("golden") or {}).get("samples") or []
    if not samples:
        return "\n".join(lines) + "\n"
    names = [i["name"] for i in manifest["signature"]["inputs"]]
    pairs = ", ".join(f"{n!r}: np.load({p!r})" for n, p in zip(names, samples[0]["inputs"], strict=True))
    lines += ["", f"feeds = {{{pairs}}}", f"outputs = {_run(manifest, 'feeds')}"]
    expected = samples[0]["outputs"].get(default_artifact(manifest)["precision"]) or []
    if expected:
        lines.append(f"expected = [{', '.join(f'np.load({p!r})' for p in expected)}]  # from the build host")
        lines += ["for value, there in zip(outputs, expected):"]
        lines.append("    print(value.shape, abs(value.astype(np.float64) - there).max())")
    else:
        lines.append("print([value.shape for value in outputs])")
    return "\n".join(lines) + "\n"


def _is_openvino(manifest: Mapping[str, Any]) -> bool:
    return bool((manifest.get("backend") or {}).get("name") == "openvino")


def _run(manifest: Mapping[str, Any], feeds: str) -> str:
    """The expression that gives the outputs in order."""
    return f"list(model({feeds}).values())" if _is_openvino(manifest) else f"session.run(None, {feeds})"


def _compiled(manifest: Mapping[str, Any]) -> list[str]:
    threads = f'"INFERENCE_NUM_THREADS": {int(manifest["run"]["threads"])}'
    return [
        *("import numpy as np", "import openvino as ov", ""),
        f'settings = {{{threads}, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}}',
        f'model = ov.Core().compile_model({default_artifact(manifest)["path"]!r}, "CPU", settings)',
    ]


def _session(manifest: Mapping[str, Any]) -> list[str]:
    run, default = manifest["run"], default_artifact(manifest)
    lines = ["import numpy as np", "import onnxruntime as ort", "", "options = ort.SessionOptions()"]
    lines.append(f"options.intra_op_num_threads = {int(run['threads'])}")
    for key, value in sorted(run["options"].items()):
        lines.append(f"options.add_session_config_entry({str(key)!r}, {str(value)!r})")
    own = native_of(manifest, default["path"]).get("options", {})
    for key, value in sorted(own.items()):
        lines += _OWN.get((str(key), str(value)), ())
    lines.append(f"session = ort.InferenceSession({default['path']!r}, options, providers=[{str(run['provider'])!r}])")
    if own.get("heap") == "small":
        lines.append("libc.malloc_trim(0)  # what loading left free goes back to the system")
    return lines


_OWN: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("optimizer", "off"): (
        "# the file holds the runtime's own optimized graph: there is nothing left to do",
        "options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL",
    ),
    ("arena", "off"): ("options.enable_cpu_mem_arena = False",),
    ("memory_pattern", "off"): ("options.enable_mem_pattern = False",),
    ("prepacking", "off"): ("options.add_session_config_entry('session.disable_prepacking', '1')",),
    ("order", "file"): ("options.execution_order = ort.ExecutionOrder.PRIORITY_BASED  # as in the file",),
    ("heap", "small"): (
        "import ctypes",
        "libc = ctypes.CDLL(None)  # glibc: large blocks go back to the system when they are freed",
        "libc.mallopt(-3, 131072), libc.mallopt(-1, 131072)  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD",
    ),
}
"""Lines for an option of the artifact's own; those of the runner are in ``runtime_bench.runners.onnxruntime``."""


def image_snippet(manifest: Mapping[str, Any]) -> str | None:
    """From a picture to the first input that states how; None where no input does. Continues ``golden_snippet``."""
    for entry in manifest["signature"]["inputs"]:
        steps = entry.get("preprocessing") or {}
        if "interpolation" in steps and steps.get("color") in _MODES:
            feeds = f'{{**feeds, {entry["name"]!r}: prepare("photo.jpg")}}'
            return "\n".join([*_image_lines(entry, steps), "", "", f"outputs = {_run(manifest, feeds)}"]) + "\n"
    return None


def _image_lines(entry: Mapping[str, Any], steps: Mapping[str, Any]) -> Sequence[str]:
    method = f"Image.Resampling.{str(steps['interpolation']).upper()}"
    lines = ["from PIL import Image", "", "", "def prepare(path):"]
    lines.append(f"    picture = Image.open(path).convert({_MODES[steps['color']]!r})")
    if steps.get("size"):
        height, width = steps["size"]
        lines.append(f"    picture = picture.resize(({int(width)}, {int(height)}), {method})")
    elif steps.get("resize"):
        side = int(steps["resize"])
        lines.append("    short = min(picture.size)")
        lines.append(f"    sides = [{side} if side == short else {side} * side // short for side in picture.size]")
        lines.append(f"    picture = picture.resize(sides, {method})")
    if steps.get("crop"):
        height, width = (int(side) for side in steps["crop"])
        lines.append(f"    left, top = round((picture.width - {width}) / 2), round((picture.height - {height}) / 2)")
        lines.append(f"    picture = picture.crop((left, top, left + {width}, top + {height}))")
    raw = entry["dtype"] == "uint8"
    lines.append(f"    x = np.asarray(picture, np.{'uint8' if raw else 'float64'})  # height, width, channels")
    if steps["color"] == "bgr":
        lines.append("    x = x[:, :, ::-1]  # RGB to BGR")
    if steps["color"] == "gray":
        lines.append("    x = x[:, :, np.newaxis]")
    if "scale" in steps:
        mean, std = [float(v) for v in steps["mean"]], [float(v) for v in steps["std"]]
        lines.append(f"    x = (x * {float(steps['scale'])!r} - {mean!r}) / {std!r}")
    if (entry.get("layout") or steps.get("layout")) == "NCHW":
        lines.append("    x = x.transpose(2, 0, 1)  # to channels, height, width")
    lines.append("    return x[np.newaxis]" if raw else f"    return x[np.newaxis].astype(np.{entry['dtype']})")
    return lines
