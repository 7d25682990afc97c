"""A model and a bundle to run commands on, and the way to run them in this process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgeopt.cli import group
from edgeopt.cli._run import run
from tests.unit.runtime_bench.conftest import Bundle, dense_model, sha256, write_bundle

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """``call("inspect", path)``: exit code, stdout, stderr."""

    def runs(*args: str | Path) -> tuple[int, str, str]:
        code = run(group, [str(a) for a in args])
        return code, *capsys.readouterr()

    return runs


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """8 x 5 MatMul + Relu, in a folder with an awkward name (C03)."""
    folder = tmp_path / "mödel dir"
    folder.mkdir()
    path = folder / "模型 v1 (final).onnx"
    path.write_bytes(dense_model(np.eye(8, 5, dtype=np.float32)))
    return path


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that runs, with every section of a manifest."""
    bundle = write_bundle(tmp_path_factory.mktemp("pristine") / "bündle")
    bundle.manifest |= {
        "edgeopt": "0.1.0",
        "source": {"file": "m.onnx", "format": "onnx", "sha256": "0", "bytes": 1},
        "backend": {"name": "onnxruntime", "preferred": "tensorrt", "reason": "not built by this version"},
        "steps": [{"kind": "quantize", "name": "quantize-int8", "status": "kept", "reason": ""}],
        "quality": {"verified": False},
        "measured_on": {"is_target": False, "machine": "a desk", "note": "measured on the build host"},
        "verdict": {"text": "int8: 3.7x smaller", "warnings": ["not verified"]},
    }
    for artifact in bundle.manifest["artifacts"]:
        artifact["bytes"] = (bundle.root / artifact["path"]).stat().st_size
    seal(bundle)
    return bundle.root


def seal(bundle: Bundle) -> None:
    """List the files anew in the manifest, then seal."""
    bundle.manifest["files"] = {
        name: {"sha256": sha256(bundle.root / name), "bytes": (bundle.root / name).stat().st_size}
        for name in bundle.device_files()
    }
    bundle.seal()


@pytest.fixture
def bundle(pristine: Path, tmp_path: Path) -> Bundle:
    root = tmp_path / "a bündle"
    shutil.copytree(pristine, root)
    copy = Bundle(root)
    copy.manifest = json.loads((root / "manifest.json").read_text())
    return copy
