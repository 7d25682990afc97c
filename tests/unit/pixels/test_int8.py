"""Raw pixels are the first grid of an int8 network: nothing is rounded, no float copy of a frame is made."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeopt import quantize
from edgeopt.backends import onnxruntime as backend
from edgeopt.interpreter import Interpreter
from edgeopt.memory import footprint
from edgeopt.model import Model, node_key
from edgeopt.passes import FUSIONS, NORMALIZE
from edgeopt.quality import compare
from edgeopt.quantize.pixels import on_grid, pixel_grid
from edgeopt.target import Int8Scheme
from tests.unit.passes.helpers import apply_all, build, run

from . import frames
from .frames import Case, frame, fused, int8, net, pixels, prepared, readers_of_bytes

SCHEMES = [Int8Scheme(activation="uint8"), Int8Scheme(activation="int8"), Int8Scheme(activation="uint8", weight_bits=7)]
schemes = pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: f"{s.activation}-{s.weight_bits}")

LITE = pixels(scale=1.0, mean=(127.0,) * 3, std=(128.0,))
"""The arithmetic of EfficientNet-Lite: a whole number of steps."""

HALF = pixels(scale=1 / 255, mean=(0.5,), std=(0.5,))
"""The arithmetic of MobileNet: 127.5 steps."""


def feeds(case: Case, count: int = 6) -> list[dict[str, np.ndarray]]:
    return [{"x": frame(case, seed)} for seed in range(count)]


def plain(case: Case, count: int = 6) -> list[dict[str, np.ndarray]]:
    return [{"x": prepared(case, frame(case, seed))} for seed in range(count)]


def sqnr(
    reference: Model, reference_feeds: list[dict[str, np.ndarray]], test: Model, fed: list[dict[str, np.ndarray]]
) -> float:
    float_model, int8_model = Interpreter(reference), Interpreter(test)
    pairs = iter(list(zip(reference_feeds, fed, strict=True)))
    expected = {id(a): float_model.run(a) for a in reference_feeds}
    by_test = {id(b): id(a) for a, b in pairs}
    return compare(lambda f: expected[by_test[id(f)]], int8_model.run, fed).sqnr_db


@schemes
@pytest.mark.parametrize(
    ("case", "borders"),
    [
        (Case(pixels=LITE), 0),
        (Case(pixels=LITE, stride=2, pads=(0, 0, 1, 1)), 0),
        (Case(pixels=HALF), 0),
        (Case(pixels=pixels()), 3),
        (Case(pixels=pixels(wants="bgr")), 3),
        (Case(pixels=pixels("NCHW"), auto_pad="SAME_UPPER", stride=2), 3),
        (Case(pixels=pixels(), groups=3), 3),
        (Case(pixels=pixels(), pads=(0, 0, 0, 0)), 0),
        (Case(pixels=pixels(inner="NHWC"), batch="N", side="S"), 3),
        (Case(pixels=pixels("NHWC", color="gray", mean=(0.286,), std=(0.353,))), 0),
        (Case(pixels=pixels(mean=(0.0,), std=(1.0,))), 0),
        (Case(pixels=pixels(scale=-1 / 255, mean=(-1.0,), std=(1.0,))), 0),
    ],
)
def test_no_float_copy_of_a_frame_and_nothing_lost(case: Case, borders: int, scheme: Int8Scheme) -> None:
    made = int8(fused(case), scheme, feeds(case)).model
    onnx.checker.check_model(ir.to_proto(made.ir), full_check=True)
    assert quantize.float_copies(made) == {}
    assert sum(n.op_type == "Pad" for n in made.graph) == borders
    signed = scheme.activation == "int8"
    for level in ("EXTENDED", "ALL"):
        with frames.optimized(made, level, signed) as graph:
            assert readers_of_bytes(graph) == {"QLinearConv"}, level
    stem = next(n for n in made.graph if node_key(n) == "stem")
    assert stem.inputs[0].producer().op_type == "DequantizeLinear"
    ours = sqnr(net(case), plain(case), made, feeds(case))
    theirs = sqnr(
        net(case),
        plain(case),
        int8(apply_all((*NORMALIZE, *FUSIONS), net(case)), scheme, plain(case)).model,
        plain(case),
    )
    assert ours >= min(theirs - 1.5, 38), (ours, theirs)


@given(frames.cases(), st.sampled_from(SCHEMES))
@settings(max_examples=30)
def test_int8_of_pixels_is_as_good_as_int8_of_floats(case: Case, scheme: Int8Scheme) -> None:
    made = int8(fused(case), scheme, feeds(case))
    ours = sqnr(net(case), plain(case), made.model, feeds(case))
    theirs = sqnr(
        net(case),
        plain(case),
        int8(apply_all((*NORMALIZE, *FUSIONS), net(case)), scheme, plain(case)).model,
        plain(case),
    )
    assert ours >= min(theirs - 3, 30), (ours, theirs)


def test_the_pixels_are_not_rounded() -> None:
    """Only bytes reach the first Conv: with weights that int8 holds exactly its result is exact to its own grid."""
    case = Case(pixels=LITE)
    model = fused(case)
    grid = pixel_grid(next(n for n in model.graph if n.op_type == "Conv").inputs[0])
    assert grid is not None
    assert (float(grid[1].scale), grid[1].zero_point) == (1.0, 127)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = Mul(c, k)", (0.5, 0)),
        ("a = Sub(c, z)\n x = Mul(a, k)", (0.5, 3)),
        ("a = Mul(c, k)\n x = Sub(a, k)", (0.5, 1)),
        ("a = Div(c, k)\n x = Sub(a, k)", None),  # zero point 0.25
        ("a = Add(c, z)\n x = Mul(a, k)", None),  # zero point -3
        ("a = Sub(z, c)\n x = Mul(a, k)", None),  # the scale would be negative
        ("a = Neg(c)\n x = Mul(a, k)", None),
        ("x = Sub(c, m)", None),  # unlike by channel
        ("x = Add(c, big)", None),  # it broadcasts to something larger
    ],
)
def test_the_grid_of_a_value(text: str, expected: tuple[float, int] | None) -> None:
    model = build(
        f"g (uint8[1,3,4,4] u) => (float[A,3,4,4] x) {{ c = Cast<to = 1>(u)\n {text} }}",
        k=np.float32(0.5).reshape(()),
        z=np.float32(3).reshape(()),
        m=np.array([1, 2, 3], np.float32).reshape(1, 3, 1, 1),
        big=np.zeros((2, 3, 4, 4), np.float32),
    )
    model = apply_all(NORMALIZE, model)
    found = pixel_grid(model.graph.outputs[0])
    assert (None if found is None else (float(found[1].scale), found[1].zero_point)) == expected


def inner(array: np.ndarray) -> np.ndarray:
    return array[:, :, 2:-2, 2:-2]


def stem_only(case: Case) -> Model:
    """The network up to its first Conv."""
    model = fused(case).clone()
    stem = next(n for n in model.graph if node_key(n) == "stem")
    model.graph.outputs.clear()
    model.graph.outputs.append(stem.outputs[0])
    return model


@pytest.mark.parametrize("arithmetic", [pixels(), pixels("NCHW", wants="bgr"), HALF, pixels(mean=(0.1,), std=(1.0,))])
@pytest.mark.parametrize("pads", [(1, 1, 1, 1), (0, 2, 1, 0), (0, 0, 0, 0)])
@pytest.mark.parametrize("groups", [1, 3])
def test_moving_the_offset_is_exact_inside_and_bounded_in_the_border(
    arithmetic: frames.Pixels, pads: tuple[int, int, int, int], groups: int
) -> None:
    case = Case(pixels=arithmetic, pads=pads, groups=groups)
    model = stem_only(case)
    moved = on_grid(model, {"stem"})
    assert moved is not model
    weight = next(n for n in model.graph if node_key(n) == "stem").inputs[1].const_value.numpy()
    bound = np.abs(weight).reshape(len(weight), -1).sum(axis=1).reshape(1, -1, 1, 1) / 2
    for seed in range(3):
        raw = {"x": frame(case, seed)}
        expected, actual = (next(iter(run(m, raw).values())) for m in (model, moved))
        np.testing.assert_allclose(inner(actual), inner(expected), rtol=1e-4, atol=1e-3)
        assert (np.abs(actual - expected) <= bound * (1 + 1e-4) + 1e-3).all()


def test_an_offset_outside_the_bytes_stays_in_float_and_is_reported() -> None:
    """x = u / 255 + 1 is no pixel value at u = 0: what a padded Conv reads for 0 has no byte."""
    case = Case(pixels=pixels(mean=(-1.0,), std=(1.0,)))
    made = int8(fused(case), SCHEMES[0], feeds(case)).model
    assert quantize.float_copies(made) == {"x": frames.SIDE**2 * 3 * 4}
    assert sqnr(net(case), plain(case), made, feeds(case)) > 30


def test_an_excluded_stem_keeps_its_floats() -> None:
    case = Case(pixels=LITE)
    calibrated = quantize.calibrate(fused(case), backend.TABLE, SCHEMES[0], feeds(case), exclude={"stem"})
    assert calibrated is not None
    made = quantize.quantize(calibrated, quantize.Choice()).model
    assert list(quantize.float_copies(made)) == ["x"]
    assert sqnr(net(case), plain(case), made, feeds(case)) > 30


SHARED = """g (uint8[1,8,8,3] u) => (float[1,4,8,8] y, float[1,3,4,4] z) {
    t = Transpose<perm = [0, 3, 1, 2]>(u)
    c = Cast<to = 1>(t)
    a = Sub(c, m)
    x = Mul(a, k)
    y = Conv<pads = [1, 1, 1, 1]>(x, w)
    z = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)
}"""


@schemes
def test_two_readers_of_the_prepared_frame(scheme: Int8Scheme) -> None:
    """The arithmetic is not folded, and it is the grid: the pool, which has float readers only, keeps the floats."""
    rng = np.random.default_rng(0)
    model = build(
        SHARED,
        m=np.full((1, 3, 1, 1), 127, np.float32),
        k=np.float32(1 / 128).reshape(()),
        w=rng.normal(size=(4, 3, 3, 3)).astype(np.float32),
    )
    model = apply_all((*NORMALIZE, *FUSIONS), model)
    fed = [{"u": rng.integers(0, 256, (1, 8, 8, 3)).astype(np.uint8)} for _ in range(4)]
    made = int8(model, scheme, fed).model
    conv = next(n for n in made.graph if n.op_type == "Conv")
    assert conv.inputs[0].producer().op_type == "DequantizeLinear"
    expected, actual = run(model, fed[0]), run(made, fed[0])
    assert np.abs(actual["z"] - expected["z"]).max() <= 1e-6 or scheme is not SCHEMES[0]
    assert np.abs(actual["y"] - expected["y"]).max() <= 0.03 * np.abs(expected["y"]).max()


MOVED = """g (uint8[1,8,8,3] u) => (float[1,4,1,1] y) {
    c = Cast<to = 1>(u)
    x = Mul(c, k)
    t = Transpose<perm = [0, 3, 1, 2]>(x)
    p = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(t)
    q = Conv(p, w)
    y = GlobalAveragePool(q)
}"""


@schemes
def test_what_only_moves_pixels_keeps_their_grid(scheme: Int8Scheme) -> None:
    rng = np.random.default_rng(0)
    model = build(MOVED, k=np.float32(1 / 255).reshape(()), w=rng.normal(size=(4, 3, 1, 1)).astype(np.float32))
    model = apply_all((*NORMALIZE, *FUSIONS), model)
    fed = [{"u": rng.integers(0, 200, (1, 8, 8, 3)).astype(np.uint8)} for _ in range(4)]
    made = int8(model, scheme, fed).model
    assert quantize.float_copies(made) == {}
    scales = {float(n.inputs[1].const_value.numpy()) for n in made.graph if n.op_type == "QuantizeLinear"}
    assert len(scales - {float(np.float32(1 / 255))}) <= 1, "only the result has a scale of its own"
    assert np.abs(run(made, fed[0])["y"] - run(model, fed[0])["y"]).max() < 0.03


FOCUS = """g (uint8[1,8,8,3] u) => (float[1,4,1,1] y) {
    t = Transpose<perm = [0, 3, 1, 2]>(u)
    c = Cast<to = 1>(t)
    x = Mul(c, k)
    a = Slice(x, zero, far, rows, two)
    b = Slice(x, one, far, rows, two)
    d = Slice(a, zero, far, columns, two)
    e = Slice(b, one, far, columns, two)
    f = Concat<axis = 1>(d, e)
    q = Conv<pads = [1, 1, 1, 1]>(f, w)
    r = Relu(q)
    y = GlobalAveragePool(r)
}"""


@schemes
def test_a_frame_that_is_cut_and_put_together_is_never_rounded(scheme: Int8Scheme) -> None:
    """The first layers of some detectors: slices of the picture side by side."""
    numbers = {"zero": [0], "one": [1], "two": [2], "rows": [2], "columns": [3], "far": [2**31]}
    model = build(
        FOCUS,
        k=np.float32(1 / 255).reshape(()),
        w=np.random.default_rng(0).normal(size=(4, 6, 3, 3)).astype(np.float32),
        **{name: np.array(value, np.int64) for name, value in numbers.items()},
    )
    model = apply_all((*NORMALIZE, *FUSIONS), model)
    rng = np.random.default_rng(1)
    fed = [{"u": rng.integers(0, 200, (1, 8, 8, 3)).astype(np.uint8)} for _ in range(4)]
    made = int8(model, scheme, fed).model
    assert quantize.float_copies(made) == {}
    concat = next(n for n in made.graph if n.op_type == "Concat")
    for value in (*concat.inputs, concat.outputs[0].uses()[0].node.outputs[0].uses()[0].node.outputs[0]):
        node = value.producer()
        assert node.op_type == "DequantizeLinear"
        assert float(node.inputs[1].const_value.numpy()) == np.float32(1 / 255)
    with frames.optimized(made, "EXTENDED", scheme.activation == "int8") as graph:
        assert not {"Mul", "QuantizeLinear"} & {n.op_type for n in graph.graph}
    assert np.abs(run(made, fed[0])["y"] - run(model, fed[0])["y"]).max() < 0.03


def test_the_peak_of_memory_falls() -> None:
    case = Case(pixels=LITE, side=64)
    ours = footprint(int8(fused(case), SCHEMES[0], feeds(case)).model)
    theirs = footprint(int8(apply_all((*NORMALIZE, *FUSIONS), net(case)), SCHEMES[0], plain(case)).model)
    assert ours.peak_activation_bytes is not None
    assert theirs.peak_activation_bytes is not None
    assert theirs.peak_activation_bytes - ours.peak_activation_bytes >= 64 * 64 * 3 * (4 - 1)


def test_signed_activations_need_an_operator_of_opset_18() -> None:
    case = Case(pixels=LITE)
    model, signed = fused(case), SCHEMES[1]
    assert quantize.scheme_for(model, signed, 18) == signed
    assert quantize.scheme_for(model, signed, 17) == dataclasses.replace(signed, activation="uint8")
    assert quantize.scheme_for(net(case), signed, 13) == signed
    ops = {n.op_type for n in int8(model, signed, feeds(case)).model.graph}
    assert "BitwiseXor" in ops
