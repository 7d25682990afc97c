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
from edgeopt.quantize.ranges import SUB
from edgeopt.target import Int8Scheme
from tests.conftest import clean_environment

from . import nets

PROGRAM = """
import sys, json
import numpy as np
from edgeopt.backends import onnxruntime as backend
from edgeopt.loaders import load
from edgeopt.quantize import calibrate
from edgeopt.quantize.moments import collect_moments
from edgeopt.target import Int8Scheme

model, count, budget = load(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) or None
def samples():
    rng = np.random.default_rng(0)
    return ({"x": rng.standard_normal((1, 16, 128, 128)).astype(np.float32)} for _ in range(count))
def peak():
    return int(next(l.split()[1] for l in open("/proc/self/status") if l.startswith("VmHWM")))
found = calibrate(model, backend.TABLE, Int8Scheme(activation="uint8"), samples, budget=budget)
assert found is not None and len(found.statistics) == 7
assert len(collect_moments(found.model, list(found.model.graph), samples, budget=budget)) == 6
print(json.dumps(peak()))
"""


STEADY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
"""glibc raises its threshold as it sees large blocks freed: what its heap keeps varies by a twentieth of the peak."""


def peak_kb(path: Path, count: int, budget: int) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), str(count), str(budget)],
        env={**clean_environment(), **STEADY},
        capture_output=True,
        check=True,
    )
    return int(json.loads(done.stdout))


@pytest.fixture(scope="module")
def six_convs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each sample makes 6 MB of activations."""
    from edgeopt.model import save

    names = ["x", *(f"t{i}" for i in range(5)), "y"]
    nodes = [
        helper.make_node("Conv", [a, f"w{i}"], [b], name=f"c{i}", kernel_shape=[3, 3], pads=[1] * 4)
        for i, (a, b) in enumerate(itertools.pairwise(names))
    ]
    arrays = {f"w{i}": nets.normal(i, 16, 16, 3, 3) for i in range(6)}
    model = nets.make(nodes, [("x", [1, 16, 128, 128])], [("y", [1, 16, 128, 128])], arrays)
    path = tmp_path_factory.mktemp("memory") / "net.onnx"
    save(model, path)
    return path


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_q09_peak_memory_is_flat_in_samples(six_convs: Path) -> None:
    """Keeping the activations of 120 samples would take 750 MB, of 30 samples 190."""
    few, many = (peak_kb(six_convs, count, 256_000_000) for count in (30, 120))
    assert many <= 1.05 * few, (few, many)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_q09_a_smaller_budget_takes_less_memory(six_convs: Path) -> None:
    """Five tensors of 1 MB are held together, or one or two at a time."""
    wide, narrow = (peak_kb(six_convs, 4, budget) for budget in (256_000_000, 2_500_000))
    assert narrow < wide - 1_000, (narrow, wide)


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
    low, high = seen.percentile_range(99.0)
    tail, ordered = int(together.size * 0.005), np.sort(together)
    for bound, exact in ((low, ordered[tail]), (high, ordered[-1 - tail])):
        assert abs(exact) <= abs(bound) <= abs(exact) * (1 + 1 / SUB)
    reverse = calibrate(model, backend.TABLE, Int8Scheme(activation="uint8"), iter(data[::-1]))
    assert reverse is not None
    for choice in (Choice(), Choice(ranges="percentile", percentile=99.9), Choice(ranges="mse"), Choice(ranges="kl")):
        assert tensor_params(calibrated, choice) == tensor_params(reverse, choice)
