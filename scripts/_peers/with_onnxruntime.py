"""One model through onnxruntime's quantization tools, as their documentation recommends. Run in their environment.

    python with_onnxruntime.py JOB.json

The job holds ``model`` and ``out`` (files), ``samples`` (a folder of .npz files, one a sample), ``method``
(``min-max``, ``percentile``, ``dynamic`` or ``dynamic per channel``), ``shapes`` (fixed ones by input name) and
``opset`` (what an older model is converted to first). The last line of stdout is JSON: the steps that were taken.
"""

from __future__ import annotations

import json
import platform
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import version_converter

STATIC_OPSET = 13
"""The first one in which QuantizeLinear takes an axis, which quantization per channel needs."""


def main(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Write the quantized model to ``out``."""
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    steps = []
    with tempfile.TemporaryDirectory() as scratch:
        source, prepared = Path(scratch) / "source.onnx", Path(scratch) / "prepared.onnx"
        model, taken = converted(onnx.load(job["model"]), job["shapes"], job["opset"])
        onnx.save(model, source)
        del model
        steps += taken
        steps.append(pre_processed(quant_pre_process, source, prepared))
        signed, narrow = types()
        reduced = " with 7-bit weights" if narrow else ""
        method, _, each = job["method"].partition(" per ")
        if method == "dynamic":
            quantization.quantize_dynamic(prepared, job["out"], per_channel=bool(each), reduce_range=narrow)
            return {"steps": [*steps, f"quantize_{job['method'].replace(' ', ', ', 1)}{reduced}"]}
        methods = {
            "min-max": quantization.CalibrationMethod.MinMax,
            "percentile": quantization.CalibrationMethod.Percentile,
        }
        quantization.quantize_static(
            prepared,
            job["out"],
            reader(quantization.CalibrationDataReader, Path(job["samples"])),
            quant_format=quantization.QuantFormat.QDQ,
            per_channel=True,
            calibrate_method=methods[job["method"]],
            activation_type=quantization.QuantType.QInt8 if signed else quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            reduce_range=narrow,
        )
    kind = "int8" if signed else "uint8"
    return {"steps": [*steps, f"quantize_static, {job['method']}, per channel, QDQ, {kind} activations{reduced}"]}


def types() -> tuple[bool, bool]:
    """Whether activations are signed, whether weights get 7 bits: what ``quantize_static`` advises for this processor.

    On x86-64 activations are unsigned, and weights are narrowed where there is no 8-bit dot product.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return True, False
    return False, "vnni" not in Path("/proc/cpuinfo").read_text(encoding="utf-8")


def converted(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]], opset: int | None
) -> tuple[onnx.ModelProto, list[str]]:
    """The model with fixed input shapes and at least this opset, and what was done."""
    steps = []
    if shapes:
        for value in model.graph.input:
            for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ())):
                dim.dim_value = size
        for value in model.graph.output:
            value.type.tensor_type.ClearField("shape")
        del model.graph.value_info[:]
        steps.append("input shapes fixed")
    present = next(one.version for one in model.opset_import if one.domain in ("", "ai.onnx"))
    if opset is not None and present < opset:
        model = version_converter.convert_version(model, opset)
        steps.append(f"onnx.version_converter from opset {present} to {opset}")
    return model, steps


def pre_processed(quant_pre_process: Any, source: Path, prepared: Path) -> str:
    """Shape inference and optimization; without the symbolic inference where that fails, as its message advises."""
    try:
        quant_pre_process(source, prepared)
    except Exception as error:  # noqa: BLE001 - a tool of others that raises whatever it likes
        print(f"quant_pre_process failed: {error}", file=sys.stderr)
        quant_pre_process(source, prepared, skip_symbolic_shape=True)
        return "quant_pre_process without symbolic shapes, with which it failed"
    return "quant_pre_process"


def samples(folder: Path) -> Iterator[dict[str, np.ndarray]]:
    """One at a time, so that no more than one is in memory."""
    for file in sorted(folder.glob("*.npz")):
        with np.load(file) as arrays:
            yield {name: arrays[name] for name in arrays.files}


def reader(base: Any, folder: Path) -> Any:
    class Reader(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = samples(folder)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.left, None)

    return Reader()


if __name__ == "__main__":
    print(json.dumps(main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
