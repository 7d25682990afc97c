"""What the tests write as a bundle. ``sample_content`` is also the example in docs/bundle-format.md."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgeopt.bundle import Content

Json = dict[str, Any]


def filler(size: int, seed: int) -> bytes:
    """Bytes that stand for a file."""
    return np.random.default_rng(seed).bytes(size)


def listing(folder: Path) -> list[str]:
    """Names in a folder, sorted."""
    return sorted(path.name for path in folder.iterdir())


def npy(array: np.ndarray) -> bytes:
    """The bytes of a ``.npy`` file."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def artifact(path: str, data: bytes, role: str, precision: str) -> Json:
    """An entry of ``artifacts``."""
    return {
        "path": path,
        "role": role,
        "format": "onnx",
        "precision": precision,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "toolchain": {"onnx": "1.23.0", "onnx-ir": "1.1.0", "edgeopt": "0.1.0"},
        "built_on_device": False,
    }


def sample_content() -> Content:
    """A small int8 build for a Raspberry Pi 5; the models are filler."""
    int8, float32 = filler(41_812, 1), filler(149_346, 2)
    device: dict[str, Path | bytes] = {
        "model/gesture-net.int8.onnx": int8,
        "model/gesture-net.float32.onnx": float32,
        "golden/000.input.0.npy": filler(3_264, 3),
        "golden/000.float32.0.npy": filler(168, 4),
        "golden/000.int8.0.npy": filler(168, 5),
        "bench.pyz": filler(60_000, 6),
    }
    records: dict[str, Path | bytes] = {
        "README.md": b"# gesture-net for raspberry-pi-5\n",
        "decisions.lock": b"{}\n",
        "diary.jsonl": b"",
        "outcomes.json": b"{}\n",
        "measurements/quick.json": b'{"schema": "edgeopt.measurement/1"}\n',
        "report.html": b"<!doctype html>\n",
        "report.json": b"{}\n",
        "report.md": b"# Report\n",
    }
    return Content(manifest=sample_manifest(int8, float32), device_files=device, record_files=records)


def sample_manifest(int8: bytes, float32: bytes) -> Json:
    """The manifest of ``sample_content`` without what the writer adds."""
    figure = {"source": "/proc/self/status VmHWM", "method": "fresh process, peak reset"}
    shared = {
        "interpreter": {"bytes": 31_457_280, "anonymous_bytes": 18_874_368, "file_bytes": 12_582_912, **figure},
        "runtime": {"bytes": 34_603_008, "anonymous_bytes": 12_582_912, "file_bytes": 22_020_096, **figure},
    }
    return {
        "schema": "edgeopt.bundle/1",
        "edgeopt": "0.1.0",
        "name": "gesture-net",
        "source": {"file": "gesture-net.pt2", "format": "pt2", "sha256": "5a" * 32, "bytes": 187_904},
        "target": {
            "name": "raspberry-pi-5",
            "description": "Raspberry Pi 5, 4 x Cortex-A76 at 2.4 GHz",
            "backends": ["onnxruntime"],
            "arch": "aarch64",
            "isa": ["asimd", "asimddp"],
            "threads": 4,
            "int8": {"activation": "int8", "weight_bits": 8, "per_channel": True},
            "opset_max": 20,
            "ir_version_max": 9,
            "runtime": {"onnxruntime": "1.17.0"},
            "facts": {"memory_bytes": {"value": 8_589_934_592, "source": "data sheet", "verified": True}},
            "notes": [],
        },
        "backend": {"name": "onnxruntime", "preferred": "onnxruntime", "reason": None},
        "signature": {
            "inputs": [
                {
                    "name": "x",
                    "dtype": "float32",
                    "shape": [1, 1, 28, 28],
                    "layout": "NCHW",
                    "preprocessing": {"color": "grey", "scale": 255, "mean": [0.286], "std": [0.353]},
                }
            ],
            "outputs": [{"name": "y", "dtype": "float32", "shape": [1, 10]}],
        },
        "run": {
            "provider": "CPUExecutionProvider",
            "threads": 4,
            "options": {"session.qdqisint8allowed": "1"},
            "minimum": {"onnxruntime": "1.17.0", "opset": 20, "ir_version": 9},
        },
        "default_artifact": "model/gesture-net.int8.onnx",
        "artifacts": [
            artifact("model/gesture-net.int8.onnx", int8, "default", "int8"),
            artifact("model/gesture-net.float32.onnx", float32, "fallback", "float32"),
        ],
        "golden": {
            "count": 1,
            "samples": [
                {
                    "inputs": ["golden/000.input.0.npy"],
                    "outputs": {"float32": ["golden/000.float32.0.npy"], "int8": ["golden/000.int8.0.npy"]},
                }
            ],
            "tolerance": {"int8": {"sqnr_db": 31.2}, "float32": {"sqnr_db": 80.0}},
        },
        "steps": [
            {
                "kind": "pass",
                "name": "fold-batchnorm",
                "status": "kept",
                "reason": "12 of 12 BatchNormalization folded",
            },
            {"kind": "quantize", "name": "quantize-int8", "status": "kept", "reason": "3.6x smaller, SQNR 34.2 dB"},
            {"kind": "quantize", "name": "percentile-ranges", "status": "rolled-back", "reason": "SQNR fell by 1.1 dB"},
        ],
        "quality": {
            "verified": True,
            "set": "gestures-2000",
            "samples": 2000,
            "outputs": [{"output": "y", "sqnr_db": 34.2, "cosine": 0.99981, "max_abs": 0.412}],
            "agreement": {"top1": 0.9915, "ties": 0.0},
            "metric": {"name": "top1", "float": 0.9095, "artifact": 0.909, "drop": 0.0005, "half_width": 0.0021},
        },
        "placement": {
            "int8": 11,
            "fused": 9,
            "float": 1,
            "nodes": [{"key": "Gemm_21", "op": "Gemm", "runs": "float", "why": "graph output, kept exact"}],
            "note": "as optimized on the host",
        },
        "memory": {
            "float32": {
                **shared,
                "model": {"bytes": 1_048_576, "anonymous_bytes": 917_504, "file_bytes": 131_072, **figure},
            },
            "int8": {**shared, "model": {"bytes": None, "reason": "below what the kernel counts"}},
        },
        "budget": {
            "peak_bytes": 67_108_864,
            "artifact_bytes": None,
            "latency_ms": None,
            "latency_percentile": 0.95,
            "max_drop": 0.01,
            "checked": [{"name": "memory", "limit": 67_108_864, "measured": 35_651_584, "ok": True}],
        },
        "measured_on": {
            "is_target": False,
            "machine": "AMD EPYC x86_64, 2 CPUs, Linux 6.1",
            "note": "measured on the build host, not on the target",
        },
        "verdict": {
            "text": "int8: 3.6x smaller, top-1 0.05 % lower, not yet measured on the device",
            "warnings": ["int8 is not faster than float32 on the build host"],
        },
    }


def runnable_content() -> Content:
    """A float and an int8 graph that onnxruntime runs, with true golden files and ``bench.pyz``."""
    import onnxruntime

    import runtime_bench

    float32, int8 = _model(quantized=False), _model(quantized=True)
    x = np.random.default_rng(7).standard_normal((1, 1, 28, 28)).astype(np.float32)
    outputs = {
        precision: onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for precision, data in (("float32", float32), ("int8", int8))
    }
    pyz = io.BytesIO()
    runtime_bench.write_pyz(pyz)
    sample = sample_content()
    files: dict[str, Path | bytes] = {
        "model/gesture-net.int8.onnx": int8,
        "model/gesture-net.float32.onnx": float32,
        "golden/000.input.0.npy": npy(x),
        "golden/000.float32.0.npy": npy(outputs["float32"]),
        "golden/000.int8.0.npy": npy(outputs["int8"]),
        "bench.pyz": pyz.getvalue(),
    }
    return Content(manifest=sample_manifest(int8, float32), device_files=files, record_files=sample.record_files)


def _model(*, quantized: bool) -> bytes:
    weight = np.random.default_rng(8).standard_normal((10, 784)).astype(np.float32) / 28
    scale = np.float32(np.abs(weight).max() / 127)
    q = np.clip(np.rint(weight / scale), -127, 127).astype(np.int8)
    named = {"w": q, "ws": scale, "xs": np.float32(0.04), "zero": np.int8(0)} if quantized else {"w": weight}
    nodes = [helper.make_node("Flatten", ["x"], ["f"])]
    if quantized:
        nodes += [
            helper.make_node("QuantizeLinear", ["f", "xs", "zero"], ["fq"]),
            helper.make_node("DequantizeLinear", ["fq", "xs", "zero"], ["fd"]),
            helper.make_node("DequantizeLinear", ["w", "ws", "zero"], ["wd"]),
        ]
    nodes.append(helper.make_node("Gemm", ["fd", "wd"] if quantized else ["f", "w"], ["y"], transB=1))
    graph = helper.make_graph(
        nodes,
        "gesture-net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 28, 28])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in named.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))
