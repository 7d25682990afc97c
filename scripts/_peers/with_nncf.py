"""One model through NNCF's post-training quantization, as its documentation recommends. Run in its environment.

    python with_nncf.py JOB.json

The job is that of ``with_onnxruntime``; its ``method`` is ``onnx`` or ``openvino``, the model's format while it is
quantized, and perhaps `` mixed``, the two settings that the documentation names for more accuracy. ``transformer``
says that the network is one. OpenVINO's form is written as ``.xml`` and ``.bin``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nncf
import numpy as np
import onnx
from with_onnxruntime import STATIC_OPSET, converted


def main(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Write the quantized model to ``out``."""
    form, *variant = job["method"].split()
    files = sorted(Path(job["samples"]).glob("*.npz"))
    data = nncf.Dataset(files, read)
    settings: dict[str, Any] = {"subset_size": max(len(files), 300)}
    if job["transformer"]:
        settings["model_type"] = nncf.ModelType.TRANSFORMER
    if variant:
        settings |= {"preset": nncf.QuantizationPreset.MIXED, "fast_bias_correction": False}
    said = ", ".join(f"{key}={getattr(value, 'value', value)}" for key, value in settings.items())
    if form == "onnx":
        model, steps = converted(onnx.load(job["model"]), job["shapes"], job["opset"] or STATIC_OPSET)
        onnx.save(nncf.quantize(model, data, **settings), job["out"])
        return {"steps": [*steps, f"nncf.quantize on ONNX, {said}"]}
    import openvino as ov

    core, steps = ov.Core(), []
    network = core.read_model(job["model"])
    if job["shapes"]:
        network.reshape({name: ov.PartialShape(list(shape)) for name, shape in job["shapes"].items()})
        steps.append("input shapes fixed")
    ov.save_model(nncf.quantize(network, data, **settings), job["out"], compress_to_fp16=False)
    return {"steps": [*steps, f"nncf.quantize on OpenVINO, {said}"]}


def read(file: Path) -> dict[str, np.ndarray]:
    with np.load(file) as arrays:
        return {name: arrays[name] for name in arrays.files}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))))
