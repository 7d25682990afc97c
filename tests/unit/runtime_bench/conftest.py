"""A tiny network and a hand-made bundle around it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import runtime_bench

SAMPLES = 3


def dense_model(weights: np.ndarray, *, output: str = "y") -> bytes:
    """y = Relu(x W), x float[1, 8], y float[1, 5]."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], [output])],
        "dense",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)]).SerializeToString()


SCALE, ZERO = np.float32(8 / 255), 128
"""How ``integer_model`` quantizes its input: uint8 over -4 to 4."""


def integer_weights(weights: np.ndarray) -> tuple[np.ndarray, np.float32]:
    """7-bit weights, so that no processor saturates, and their scale."""
    scale = np.float32(np.abs(weights).max() / 63)
    return np.round(weights / scale).astype(np.int8), scale


def integer_model(weights: np.ndarray) -> bytes:
    """``dense_model`` with Q/DQ pairs that onnxruntime fuses into an integer kernel."""
    values, scale = integer_weights(weights)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "x_scale", "x_zero"], ["x_q"]),
        helper.make_node("DequantizeLinear", ["x_q", "x_scale", "x_zero"], ["x_dq"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["w_dq"]),
        helper.make_node("MatMul", ["x_dq", "w_dq"], ["h"]),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    constants = {"x_scale": SCALE, "x_zero": np.uint8(ZERO), "w": values, "w_scale": scale, "w_zero": np.int8(0)}
    graph = helper.make_graph(
        nodes,
        "dense",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)]).SerializeToString()


def integer_output(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """What ``integer_model`` gives."""
    values, scale = integer_weights(weights)
    quantized = np.clip(np.round(x / SCALE) + ZERO, 0, 255).astype(np.int32) - ZERO
    return np.maximum((quantized @ values.astype(np.int32)).astype(np.float32) * (SCALE * scale), 0)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Bundle:
    """A bundle folder that can be edited and sealed again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.manifest: dict[str, Any] = {}

    def device_files(self) -> list[str]:
        folders = [*self.root.glob("model/*"), *self.root.glob("golden/*"), *self.root.glob("bench.pyz")]
        return sorted(path.relative_to(self.root).as_posix() for path in folders)

    def seal(self) -> None:
        """Write digests, lists, identity and manifest anew, as an honest writer would."""
        files = {name: sha256(self.root / name) for name in self.device_files()}
        for artifact in self.manifest["artifacts"]:
            artifact["sha256"] = files[artifact["path"]]
        self.manifest["identity"] = runtime_bench.identity(self.manifest, files)
        self.write_manifest()
        self.write_list("SHA256SUMS", files)
        self.write_list("RECORDS.sha256", {name: sha256(self.root / name) for name in ("README.md", "manifest.json")})

    def write_manifest(self) -> None:
        (self.root / "manifest.json").write_text(json.dumps(self.manifest, indent=1), encoding="utf-8")

    def write_list(self, name: str, files: dict[str, str]) -> None:
        text = "".join(f"{digest}  {path}\n" for path, digest in files.items())
        (self.root / name).write_text(text, encoding="utf-8")

    def save_golden(self, name: str, values: np.ndarray) -> str:
        np.save(self.root / "golden" / name, values)
        return f"golden/{name}"


def write_bundle(root: Path) -> Bundle:
    """A float and an int8 model, three golden samples, bench.pyz and a record."""
    bundle = Bundle(root)
    for folder in ("model", "golden"):
        (root / folder).mkdir(parents=True)
    weights = np.random.default_rng(3).normal(size=(8, 5)).astype(np.float32)
    (root / "model/m.float32.onnx").write_bytes(dense_model(weights))
    (root / "model/m.int8.onnx").write_bytes(integer_model(weights))
    samples = []
    for i in range(SAMPLES):
        x = np.random.default_rng(10 + i).normal(size=(1, 8)).astype(np.float32)
        files = {
            "input": bundle.save_golden(f"{i:03d}.input.0.npy", x),
            "float32": bundle.save_golden(f"{i:03d}.float32.0.npy", np.maximum(x @ weights, 0)),
            "int8": bundle.save_golden(f"{i:03d}.int8.0.npy", integer_output(x, weights)),
        }
        samples.append({"inputs": [files.pop("input")], "outputs": {k: [v] for k, v in files.items()}})
    runtime_bench.write_pyz(root / "bench.pyz")
    (root / "README.md").write_text("read me\n")
    bundle.manifest = {
        "schema": "edgeopt.bundle/1",
        "name": "tiny",
        "target": {"name": "a-board"},
        "backend": {"name": "onnxruntime"},
        "signature": {
            "inputs": [{"name": "x", "dtype": "float32", "shape": [1, 8]}],
            "outputs": [{"name": "y", "dtype": "float32", "shape": [1, 5]}],
        },
        "run": {
            "provider": "CPUExecutionProvider",
            "threads": 1,
            "options": {"session.intra_op.allow_spinning": "0"},
            "minimum": {"onnxruntime": "1.10.0", "opset": 13, "ir_version": 8},
        },
        "default_artifact": "model/m.int8.onnx",
        "artifacts": [
            {"path": "model/m.int8.onnx", "role": "default", "format": "onnx", "precision": "int8"},
            {"path": "model/m.float32.onnx", "role": "fallback", "format": "onnx", "precision": "float32"},
        ],
        "golden": {
            "count": SAMPLES,
            "samples": samples,
            "tolerance": {"int8": {"sqnr_db": 30.0}, "float32": {"sqnr_db": 80.0}},
        },
    }
    bundle.seal()
    return bundle


@pytest.fixture(scope="session")
def _pristine_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return write_bundle(tmp_path_factory.mktemp("pristine") / "bundle")


@pytest.fixture
def bundle(_pristine_bundle: Bundle, tmp_path: Path) -> Bundle:
    """A good bundle of its own, to damage."""
    root = tmp_path / "bündle (1)"
    shutil.copytree(_pristine_bundle.root, root)
    copy = Bundle(root)
    copy.manifest = json.loads((root / "manifest.json").read_text())
    return copy


@pytest.fixture
def tiny_model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.onnx"
    path.write_bytes(dense_model(np.eye(8, 5, dtype=np.float32)))
    onnx.checker.check_model(str(path))
    return path


@pytest.fixture
def spin() -> Callable[..., runtime_bench.Subject]:
    """Subjects that are busy for a while; no runtime needed."""

    def make(name: str, path: str = "spin:200us") -> runtime_bench.Subject:
        return runtime_bench.Subject(name=name, path=path, sha256="0" * 64, runner="null")

    return make
