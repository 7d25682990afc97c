"""Q09: calibration with varying shapes, and memory that does not grow with the number of samples."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from edgeopt.backends import onnxruntime as backend
from edgeopt.quantize import Choice, calibrate
from edgeopt.quantize.quantizer import tensor_params
from edgeopt.target import Int8Scheme
from tests.conftest import clean_environment

from . import nets

PROGRAM = """
import sys, json
import numpy as np
from edgeopt.backends import onnxruntime as backend
from edgeopt.loaders import load
from edgeopt.quantize import calibrate
from edgeopt.target import Int8Scheme

model, count = load(sys.argv[1]), int(sys.argv[2])
rng = np.random.default_rng(0)
shape = (1, 16, 128, 128)
def peak():
    return int(next(l.split()[1] for l in open("/proc/self/status") if l.startswith("VmHWM")))
assert calibrate(model, backend.TABLE, Int8Scheme(activation="uint8"),
                 ({"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(count))) is not None
print(json.dumps(peak()))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_peak_memory_is_flat_in_samples(tmp_path: Path) -> None:
    """Each sample makes 28 MB of activations; keeping them for 60 samples would take 1.7 GB."""
    from edgeopt.model import save

    names = ["x", *(f"t{i}" for i in range(5)), "y"]
    nodes = [
        helper.make_node("Conv", [a, f"w{i}"], [b], name=f"c{i}", kernel_shape=[3, 3], pads=[1] * 4)
        for i, (a, b) in enumerate(itertools.pairwise(names))
    ]
    arrays = {f"w{i}": nets.normal(i, 16, 16, 3, 3) for i in range(6)}
    model = nets.make(nodes, [("x", [1, 16, 128, 128])], [("y", [1, 16, 128, 128])], arrays)
    save(model, tmp_path / "net.onnx")
    peaks = []
    for count in (4, 60):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "net.onnx"), str(count)],
            env=clean_environment(),
            capture_output=True,
            check=True,
        )
        peaks.append(json.loads(done.stdout))
    assert peaks[1] <= 1.1 * peaks[0], peaks


def test_q09_ranges_of_varying_shapes_equal_those_of_all_values_together() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h"], name="m0"),
        helper.make_node("Gelu", ["h"], ["g"], name="gelu"),
        helper.make_node("MatMul", ["g", "w1"], ["y"], name="m1"),
    ]
    arrays = {"w0": nets.normal(0, 16, 32, fan=16), "w1": nets.normal(1, 32, 8, fan=32)}
    model = nets.make(nodes, [("x", ["N", "S", 16])], [("y", ["N", "S", 8])], arrays, opset=20)
    rng = np.random.default_rng(0)
    data = [{"x": rng.standard_normal((n, s, 16)).astype(np.float32)} for n, s in ((1, 5), (1, 17), (1, 64), (3, 5))]
    calibrated = calibrate(model, backend.TABLE, Int8Scheme(activation="uint8"), iter(data))
    assert calibrated is not None
    together = np.concatenate([d["x"].ravel() for d in data])
    seen = calibrated.statistics["x"]
    assert (seen.minimum, seen.maximum) == (float(together.min()), float(together.max()))
    width = 2.0 ** (seen.log2_width or 0)
    low, high = seen.percentile_range(99.0)
    tail, ordered = int(together.size * 0.005), np.sort(together)
    assert low == np.floor(ordered[tail] / width) * width
    assert high == (np.floor(ordered[-1 - tail] / width) + 1) * width
    reverse = calibrate(model, backend.TABLE, Int8Scheme(activation="uint8"), iter(data[::-1]))
    assert reverse is not None
    for choice in (Choice(), Choice(percentile=99.9)):
        assert tensor_params(calibrated, choice) == tensor_params(reverse, choice)
