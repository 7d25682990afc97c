"""Small networks that see a picture, their sets of raw pixels, and the chain from pixels to int8."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from edgeopt import quantize
from edgeopt.backends import onnxruntime as backend
from edgeopt.calibration.raw import Pixels
from edgeopt.interpreter import import_onnxruntime
from edgeopt.model import Model, save
from edgeopt.passes import FUSIONS, NORMALIZE
from edgeopt.passes.absorb_input import absorb_input
from edgeopt.target import Int8Scheme
from tests.unit.passes.helpers import apply_all, from_proto

SIDE = 12
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A first Conv and the arithmetic before it."""

    pixels: Pixels
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    stride: int = 1
    groups: int = 1
    bias: bool = True
    auto_pad: str = "NOTSET"
    batch: int | str = 1
    side: int | str = SIDE

    @property
    def channels(self) -> int:
        return 1 if self.pixels.inner_color == "gray" else 3


def pixels(
    layout: str = "NHWC",
    inner: str = "NCHW",
    color: str | None = "rgb",
    wants: str | None = None,
    scale: float = 1 / 255,
    mean: tuple[float, ...] = IMAGENET[0],
    std: tuple[float, ...] = IMAGENET[1],
) -> Pixels:
    return Pixels(
        name="x",
        layout=layout,
        inner_layout=inner,
        color=color,
        inner_color=wants or color,
        scale=scale,
        mean=mean,
        std=std,
    )


def net(case: Case) -> Model:
    """x -> (to NCHW) -> Conv 3x3 -> Relu -> Conv 3x3 -> mean over the picture."""
    rng = np.random.default_rng(7)
    c, side = case.channels, case.side
    shape = [case.batch, c, side, side] if case.pixels.inner_layout == "NCHW" else [case.batch, side, side, c]
    outputs = 6 * case.groups
    arrays = {
        "w": rng.normal(size=(outputs, c // case.groups, 3, 3)).astype(np.float32) / 4,
        "b": rng.normal(size=outputs).astype(np.float32),
        "v": rng.normal(size=(5, outputs, 3, 3)).astype(np.float32) / 8,
    }
    nodes = []
    read = "x"
    if case.pixels.inner_layout == "NHWC":
        nodes.append(helper.make_node("Transpose", ["x"], ["t"], name="first", perm=[0, 3, 1, 2]))
        read = "t"
    padding = {"pads": list(case.pads)} if case.auto_pad == "NOTSET" else {"auto_pad": case.auto_pad}
    nodes += [
        helper.make_node(
            "Conv",
            [read, "w", *(["b"] if case.bias else [])],
            ["c"],
            name="stem",
            group=case.groups,
            strides=[case.stride] * 2,
            **padding,
        ),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Conv", ["r", "v"], ["d"], name="second", pads=[1] * 4),
        helper.make_node("GlobalAveragePool", ["d"], ["y"], name="pool"),
    ]
    used = {n: a for n, a in arrays.items() if n != "b" or case.bias}
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [case.batch, 5, 1, 1])],
        [numpy_helper.from_array(a, n) for n, a in used.items()],
    )
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def frame(case: Case, seed: int = 0) -> np.ndarray:
    """Raw pixels of one frame, with the black and white that cameras clip to."""
    rng = np.random.default_rng(seed)
    side = SIDE if isinstance(case.side, str) else case.side
    made = np.clip(rng.normal(130, 80, (1, side, side, case.channels)), 0, 255).astype(np.uint8)
    return made if case.pixels.layout == "NHWC" else np.ascontiguousarray(made.transpose(0, 3, 1, 2))


def prepared(case: Case, raw: np.ndarray) -> np.ndarray:
    """What the model as it came is fed, written out on its own: float64, rounded once."""
    p = case.pixels
    last = raw if p.layout == "NHWC" else raw.transpose(0, 2, 3, 1)
    value = last[..., ::-1] if p.swapped else last
    value = (value.astype(np.float64) * p.scale - np.array(p.mean)) / np.array(p.std)
    return (value if p.inner_layout == "NHWC" else value.transpose(0, 3, 1, 2)).astype(np.float32)


def fused(case: Case) -> Model:
    return apply_all((*NORMALIZE, *FUSIONS), absorb_input(net(case), [case.pixels]))


def int8(model: Model, scheme: Int8Scheme, feeds: list[Mapping[str, np.ndarray]]) -> quantize.QuantizedModel:
    calibrated = quantize.calibrate(model, backend.TABLE, scheme, feeds)
    assert calibrated is not None
    return quantize.quantize(calibrated, quantize.Choice())


@contextlib.contextmanager
def optimized(model: Model, level: str, signed: bool) -> Iterator[ir.Model]:
    """The runtime's own graph."""
    ort = import_onnxruntime()
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    settings.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    settings.add_session_config_entry("session.qdqisint8allowed", str(int(signed)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        save(model, path)
        settings.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        ort.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
        yield ir.load(settings.optimized_model_filepath)


MOVES = frozenset({"Transpose", "Split", "Pad", "Concat", "BitwiseXor"})


def readers_of_bytes(model: ir.Model) -> set[str]:
    """The operators that the raw pixels of an optimized graph reach, past those that only move bytes."""
    waiting = [v for v in model.graph.inputs if v.dtype == ir.DataType.UINT8]
    found = set()
    while waiting:
        for use in waiting.pop().uses():
            node = use.node
            to_bytes = node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.INT8
            if node.op_type in MOVES or to_bytes:
                waiting.extend(node.outputs)
            else:
                found.add(node.op_type)
    return found


levels = st.floats(0, 1, width=32)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any layout, colour order, arithmetic and padding."""
    gray = draw(st.booleans())
    channels = 1 if gray else 3
    scale = draw(st.sampled_from([1.0, 1 / 255, 1 / 127.5, 2 / 255, -1 / 255]))
    unit = 255 * abs(scale)
    one = draw(st.booleans())
    size = 1 if one else channels
    mean = tuple(
        float(v) * unit * (1 if scale > 0 else -1) for v in draw(st.lists(levels, min_size=size, max_size=size))
    )
    if draw(st.booleans()):
        mean = tuple(round(m / scale) * scale for m in mean)
    std = tuple(float(v) for v in draw(st.lists(st.floats(0.25, 2, width=32), min_size=size, max_size=size)))
    color, wants = ("gray", "gray") if gray else draw(st.sampled_from([("rgb", "rgb"), ("rgb", "bgr"), ("bgr", "rgb")]))
    layouts = st.sampled_from(["NHWC", "NCHW"])
    pads = st.integers(0, 2)
    return Case(
        pixels=pixels(draw(layouts), draw(layouts), color, wants, scale, mean, std),
        pads=draw(st.tuples(pads, pads, pads, pads)),
        stride=draw(st.sampled_from([1, 2])),
        groups=draw(st.sampled_from([1, channels])),
        bias=draw(st.booleans()),
        auto_pad=draw(st.sampled_from(["NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])),
        batch=draw(st.sampled_from([1, "N"])),
        side=draw(st.sampled_from([SIDE, SIDE, "S"])),
    )
