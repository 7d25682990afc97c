"""Random networks through the quantizer: they load, nothing is planned that the runtime does not do, little is lost."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from edgeopt.backends import onnxruntime as backend
from edgeopt.interpreter import Interpreter
from edgeopt.model import Model
from edgeopt.passes import FUSIONS, NORMALIZE
from edgeopt.quantize import Choice, calibrate, plan_placement, quantize
from edgeopt.target import load_target
from tests.unit.passes.helpers import apply_all

from . import nets

SIDE, CHANNELS = 6, 8
CLIPS = ((-1.0, 1.0), (-0.5, 0.7), (0.0, 1.5), (0.1, 0.6), (-1.0, -0.1))
KINDS = (
    *("conv", "conv", "conv", "depthwise", "grouped", "pointwise", "relu", "clip", "leaky", "sigmoid", "hardswish"),
    *("tanh", "softmax", "add", "add", "mul", "max", "twice", "constant", "concat", "maxpool", "avgpool", "excite"),
    *("swap", "double", "slice", "split", "shuffle", "offset", "where", "gather", "tile", "extremes", "hardsigmoid"),
)


class Maker:
    """Grows a graph whose values all have the shape [1, 8, 6, 6], so that any may meet any."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.live = ["x"]

    def op(self, kind: str, *sources: str, **attributes: object) -> str:
        result = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(sources), [result], name=result, **attributes))
        return result

    def array(self, values: object, dtype: type = np.float32) -> str:
        name = f"c{len(self.arrays)}"
        self.arrays[name] = np.array(values, dtype)
        return name

    def weight(self, *shape: int) -> str:
        """A new weight, or one that another Conv has already."""
        same = [n for n, a in self.arrays.items() if a.shape == shape and a.dtype == np.float32]
        if same and self.rng.random() < 0.3:
            return str(self.rng.choice(same))
        return self.array(nets.normal(int(self.rng.integers(1000)), *shape, fan=math.prod(shape[1:])))

    def pick(self) -> str:
        return self.live[max(0, len(self.live) - 1 - int(self.rng.exponential(1.5)))]

    def conv(self, source: str, out: int, into: int, kernel: int, group: int = 1) -> str:
        inputs = [source, self.weight(out, into // group, kernel, kernel)]
        if self.rng.random() < 0.6:
            inputs.append(self.weight(out))
        pads = [kernel // 2] * 4
        return self.op("Conv", *inputs, kernel_shape=[kernel] * 2, pads=pads, group=group)

    def grow(self) -> str:
        kind, a, b = str(self.rng.choice(KINDS)), self.pick(), self.pick()
        plain = {"relu": "Relu", "leaky": "LeakyRelu", "sigmoid": "Sigmoid", "hardswish": "HardSwish", "tanh": "Tanh"}
        plain["hardsigmoid"] = "HardSigmoid"
        pool = {"kernel_shape": [3, 3], "pads": [1] * 4}
        if kind in ("conv", "depthwise", "grouped", "pointwise"):
            group = {"depthwise": CHANNELS, "grouped": 2}.get(kind, 1)
            return self.conv(a, CHANNELS, CHANNELS, 1 if kind == "pointwise" else 3, group)
        if kind in plain:
            return self.op(plain[kind], a)
        if kind == "softmax":
            return self.op("Softmax", a, axis=1)
        if kind == "clip":
            low, high = CLIPS[self.rng.integers(len(CLIPS))]
            return self.op("Clip", a, self.array(low), self.array(high))
        if kind in ("add", "mul", "max"):
            return self.op(kind.capitalize(), a, b)
        if kind == "twice":
            return self.op(str(self.rng.choice(["Add", "Mul"])), a, a)
        if kind == "constant":
            return self.op("Mul", a, self.array(self.rng.uniform(0.5, 1.5, (1, CHANNELS, 1, 1))))
        if kind == "offset":
            return self.op("Add", self.array(self.rng.uniform(-0.5, 1.5, (CHANNELS, 1, 1))), a)
        if kind == "where":
            cond = self.array(self.rng.integers(0, 2, (1, 1, SIDE, SIDE)), bool)
            return self.op("Where", cond, a, b if self.rng.random() < 0.5 else self.array(0.5))
        if kind == "gather":
            return self.op("Gather", a, self.array(self.rng.permutation(CHANNELS), np.int64), axis=1)
        if kind == "tile":
            ends = [self.array([v], np.int64) for v in (0, 3, 2)]
            return self.op("Tile", self.op("Slice", a, *ends), self.array([1, 1, 2, 1], np.int64))
        if kind == "extremes":
            best = self.op(str(self.rng.choice(["ReduceMax", "ReduceMin"])), a, self.array([2], np.int64))
            return self.op("Expand", best, self.array([1, CHANNELS, SIDE, SIDE], np.int64))
        if kind == "concat":
            return self.conv(self.op("Concat", a, b, axis=1), CHANNELS, 2 * CHANNELS, 1)
        if kind == "maxpool":
            return self.op("MaxPool", a, **pool)
        if kind == "avgpool":
            return self.op("AveragePool", a, count_include_pad=int(self.rng.integers(2)), **pool)
        if kind == "excite":
            squeezed = self.conv(self.op("GlobalAveragePool", a), CHANNELS, CHANNELS, 1)
            return self.op("Mul", a, self.op("Sigmoid", squeezed))
        if kind == "swap":
            return self.op("Transpose", a, perm=[0, 1, 3, 2])
        if kind == "double":
            doubled = self.op(
                "Resize", a, "", self.array([1, 1, 2, 2]), mode=str(self.rng.choice(["nearest", "linear"]))
            )
            return self.op("MaxPool", doubled, kernel_shape=[2, 2], strides=[2, 2])
        if kind == "slice":
            ends = [self.array([v], np.int64) for v in (0, 3, 2)]
            return self.op("Concat", self.op("Slice", a, *ends), self.op("Slice", b, *ends), axis=2)
        if kind == "split":
            one, two = f"s{len(self.nodes)}", f"u{len(self.nodes)}"
            sizes = self.array([CHANNELS // 2] * 2, np.int64)
            self.nodes.append(helper.make_node("Split", [a, sizes], [one, two], name=one, axis=1))
            return self.op("Concat", two, one, axis=1)
        shape = self.array([1, 2, CHANNELS // 2, SIDE, SIDE], np.int64)
        moved = self.op("Transpose", self.op("Reshape", a, shape), perm=[0, 2, 1, 3, 4])
        return self.op("Reshape", moved, self.array([1, CHANNELS, SIDE, SIDE], np.int64))


def random_net(seed: int) -> Model:
    maker = Maker(seed)
    for _ in range(int(maker.rng.integers(4, 14))):
        maker.live.append(maker.grow())
    read = {name for node in maker.nodes for name in node.input}
    outputs = [v for v in maker.live[1:] if v not in read or maker.rng.random() < 0.1]
    read |= set(outputs)
    shape = [1, CHANNELS, SIDE, SIDE]
    return nets.make(maker.nodes, [("x", shape)], [(v, shape) for v in outputs], maker.arrays, opset=20)


@pytest.mark.parametrize("target", ["raspberry-pi-5", "x86-avx512-vnni", "x86-avx2"])
@pytest.mark.parametrize("seed", range(28))
def test_random_nets(seed: int, target: str, tmp_path: Path) -> None:
    original = random_net(seed)
    model = apply_all((*NORMALIZE, *FUSIONS), original)
    rng = np.random.default_rng(seed)
    data = [{"x": rng.standard_normal((1, CHANNELS, SIDE, SIDE)).astype(np.float32)} for _ in range(6)]
    profile = load_target(target)
    calibrated = calibrate(model, backend.TABLE, profile.int8, iter(data))
    if calibrated is None:
        assert not plan_placement(model.ir, backend.TABLE).int8
        return
    reference = [Interpreter(original).run(feeds) for feeds in data]
    for choice in (Choice(), Choice(ranges="percentile", percentile=99.99, bias="mean")):
        quantized = quantize(calibrated, choice)
        artifact = backend.lower(quantized.model, profile, tmp_path / "q.onnx", precision="int8")
        assert backend.fused(artifact.path, model, profile, quantized).mismatches == ()
        test = Interpreter(artifact.path)
        for name in reference[0]:
            pairs = [
                (expected[name].astype(np.float64), test.run(feeds)[name]) for expected, feeds in zip(reference, data)
            ]
            signal = sum(float((a**2).sum()) for a, _ in pairs)
            error = sum(float(((a - b) ** 2).sum()) for a, b in pairs)
            assert error <= 0.02 * signal, f"{name}: {10 * math.log10(signal / error):.1f} dB"
