"""Through the command line: the embedded network for this machine, measured, verified, compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

ROOT = Path(__file__).parents[2]
NET = ROOT / "calibration" / "fashion-mnist.onnx"


def edgeopt(*arguments: object, seed: str = "0") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
    command = [sys.executable, "-m", "edgeopt", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)


def manifest_of(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "manifest.json").read_text())
    return found


def test_the_embedded_network_for_this_machine(tmp_path: Path) -> None:
    out = tmp_path / "out"
    edgeopt("build", NET, "--target", "host", "--effort", "quick", "--seconds", 8, "-o", out)
    manifest = manifest_of(out)
    native = manifest["run"]["native"]
    assert set(native) == {artifact["path"] for artifact in manifest["artifacts"]}
    assert all(entry["options"] == {"optimizer": "off"} for entry in native.values())
    measured = json.loads((out / "measurements" / "build.json").read_text())
    names = {subject["name"]: subject for subject in measured["subjects"]}
    assert names["float32"]["audit"]["macs"] == names["original"]["audit"]["macs"]
    assert names["int8"]["audit"]["integer_macs"] > 0
    assert "ok" in edgeopt("verify", out).stdout
    done = subprocess.run([sys.executable, out / "bench.pyz", "verify"], capture_output=True, text=True, check=True)
    shipped = Path(manifest["default_artifact"]).name  # float where int8 was clearly slower: a timing decides that
    assert f"golden model/{shipped}: SQNR" in done.stdout
    assert "int8" not in shipped or "identical to the build host's" in done.stdout
    again = tmp_path / "again"
    edgeopt("build", NET, "--target", "host", "--effort", "none", "--locked", out, "-o", again, seed="7")
    assert manifest_of(again)["identity"] == manifest["identity"]
    compared = json.loads(edgeopt("compare", NET, f"{out}#float32", "--seconds", 6, "--json").stdout)
    assert [subject["sha256"] for subject in compared["measurement"]["subjects"]][1] == next(
        artifact["sha256"] for artifact in manifest["artifacts"] if artifact["precision"] == "float32"
    )


def test_the_readme_runs_as_it_stands(tmp_path: Path) -> None:
    out = tmp_path / "out"
    edgeopt("build", NET, "--target", "host", "--calib", "random", "--effort", "none", "-o", out)
    text = (out / "README.md").read_text()
    program = text.split("```python\n", 1)[1].split("```", 1)[0]
    done = subprocess.run([sys.executable, "-c", program], cwd=out, capture_output=True, text=True, check=True)
    assert float(done.stdout.split()[-1]) < 1e-5
    broken = program.replace("ORT_DISABLE_ALL", "ORT_NO_SUCH_LEVEL")
    assert subprocess.run([sys.executable, "-c", broken], cwd=out, capture_output=True, check=False).returncode != 0
    sample = manifest_of(out)["golden"]["samples"][0]
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(out / manifest_of(out)["default_artifact"]), settings)
    [y] = session.run(None, {"x": np.load(out / sample["inputs"][0])})
    assert np.abs(y - np.load(out / sample["outputs"]["float32"][0])).max() < 1e-4
