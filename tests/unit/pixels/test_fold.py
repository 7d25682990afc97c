"""absorb_input and fold-pixels: raw pixels give what the prepared ones gave, for every arithmetic and border."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from onnx import helper, numpy_helper

from edgeopt.memory import footprint
from edgeopt.model import Model, node_key
from edgeopt.passes import Applied, apply
from edgeopt.passes.absorb_input import absorb_input
from edgeopt.passes.fold_pixels import FOLD_PIXELS
from edgeopt.passes.infer_shapes import INFER_SHAPES
from tests.unit.passes.helpers import build, from_proto, ops, run

from . import frames
from .frames import Case, frame, net, pixels, prepared

ERROR = 2e-6


def assert_same(case: Case, changed: Model, tolerance: float = ERROR) -> None:
    onnx.checker.check_model(ir.to_proto(changed.ir), full_check=True)
    for seed in range(2):
        raw = frame(case, seed)
        expected, actual = run(net(case), {"x": prepared(case, raw)})["y"], run(changed, {"x": raw})["y"]
        assert actual.shape == expected.shape
        error = np.abs(actual - expected).max() / np.abs(expected).max()
        assert error <= tolerance, f"{error:.3g}"


@given(frames.cases())
@settings(max_examples=60)
def test_raw_pixels_give_what_prepared_ones_gave(case: Case) -> None:
    wrapped = absorb_input(net(case), [case.pixels])
    assert [(s.name, s.dtype) for s in wrapped.inputs] == [("x", "uint8")]
    assert_same(case, wrapped)
    assert_same(case, frames.fused(case), 2e-5)


def folded(case: Case) -> Applied:
    return apply(FOLD_PIXELS, apply(INFER_SHAPES, absorb_input(net(case), [case.pixels])).model)


@pytest.mark.parametrize(
    ("case", "left"),
    [
        (Case(pixels=pixels()), ["Transpose", "Cast", "Sub"]),
        (Case(pixels=pixels(), pads=(0, 0, 0, 0)), ["Transpose", "Cast"]),
        (Case(pixels=pixels(mean=(0.0,), std=(0.5,))), ["Transpose", "Cast"]),
        (Case(pixels=pixels("NCHW")), ["Cast", "Sub"]),
        (Case(pixels=pixels(wants="bgr")), ["Transpose", "Cast", "Sub"]),
        (Case(pixels=pixels(inner="NHWC")), ["Transpose", "Cast", "Sub"]),
        (Case(pixels=pixels("NCHW", "NHWC")), ["Cast", "Sub"]),
        (Case(pixels=pixels(scale=-1 / 255, mean=(-1.0,), std=(1.0,))), ["Transpose", "Cast", "Sub"]),
        (Case(pixels=pixels(), auto_pad="SAME_UPPER"), ["Transpose", "Cast", "Sub"]),
        (Case(pixels=pixels(), auto_pad="VALID"), ["Transpose", "Cast"]),
        (Case(pixels=pixels(), groups=3), ["Transpose", "Cast", "Sub"]),
        (Case(pixels=pixels(), bias=False, pads=(0, 0, 0, 0)), ["Transpose", "Cast"]),
    ],
)
def test_what_is_left_before_the_conv(case: Case, left: list[str]) -> None:
    done = folded(case)
    assert done.count == 1, done.reason
    assert [n.op_type for n in done.model.graph][: len(left) + 1] == [*left, "Conv"]
    assert_same(case, done.model)
    again = apply(FOLD_PIXELS, done.model)
    assert (again.count, again.reason) == (0, "nothing to rewrite")
    stem = next(n for n in done.model.graph if n.op_type == "Conv")
    assert node_key(stem) == "stem"
    assert "Cast" in stem.metadata_props["edgeopt.absorbed"]


def test_a_pixel_transpose_is_done_on_bytes() -> None:
    done = folded(Case(pixels=pixels(inner="NHWC", color="rgb", wants="bgr"))).model
    (transpose,) = [n for n in done.graph if n.op_type == "Transpose"]
    assert transpose.outputs[0].dtype == ir.DataType.UINT8
    assert "Gather" not in ops(done)


def test_the_peak_of_memory_falls() -> None:
    """The caller holds bytes, not floats; the widest place of the network lies behind its first Conv, as a rule."""
    case = Case(pixels=pixels(), side=96)
    before, after = (
        footprint(m).peak_activation_bytes for m in (apply(INFER_SHAPES, net(case)).model, folded(case).model)
    )
    assert before is not None
    assert after is not None
    assert before - after == 96 * 96 * 3 * (4 - 1)


def planted(case: Case) -> Model:
    """The arithmetic with the means of two channels swapped."""
    mean = case.pixels.mean
    return absorb_input(net(case), [dataclasses.replace(case.pixels, mean=(mean[1], mean[0], mean[2]))])


def test_a_planted_swap_of_means_is_caught() -> None:
    case = Case(pixels=pixels())
    with pytest.raises(AssertionError, match=r"0\.0"):
        assert_same(case, planted(case), 1e-4)


GRAPH = """g (uint8[1,3,8,8] u) => (float[1,O,P,Q] y) {
    c = Cast<to = 1>(u)
    a = Sub(c, m)
    x = Mul(a, k)
    y = Conv<pads = [1, 1, 1, 1]>(x, w)
}"""


def graph(text: str = GRAPH, m: object = (1, 2, 3), k: object = (2, 3, 4), **more: np.ndarray) -> Model:
    vectors = {name: np.array(values, np.float32) for name, values in (("m", m), ("k", k))}
    arrays = {n: v.reshape(1, -1, 1, 1) if v.ndim == 1 else v for n, v in vectors.items()}
    weight = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32)
    return apply(INFER_SHAPES, build(text, **({"w": weight} | arrays | more))).model


def test_the_graph_of_the_negative_tests_does_fold() -> None:
    assert apply(FOLD_PIXELS, graph()).count == 1


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (graph(k=(2, 0, 4)), "a channel is multiplied by 0"),
        (
            graph(GRAPH.replace("y = Conv", "z = Relu(x)\n y = Conv").replace(" => (", " => (float[1,3,8,8] z, ")),
            "second",
        ),
        (graph(GRAPH.replace(" => (", " => (float[1,3,8,8] x, ")), "its input is a graph output"),
        (graph(GRAPH.replace(" => (", " => (float[1,3,8,8] c, ")), "its input is a graph output"),
        (
            graph(GRAPH.replace("y = Conv", "y0 = Relu(w)\n y = Conv").replace(" => (", " => (float[4,3,3,3] y0, ")),
            "shared",
        ),
    ],
)
def test_what_cannot_be_folded_says_why(model: Model, why: str) -> None:
    done = apply(FOLD_PIXELS, model)
    assert done.count == 0
    assert why in done.reason


@pytest.mark.parametrize(
    "model",
    [
        graph(GRAPH.replace("uint8", "int32")),
        graph(GRAPH.replace("Mul(a, k)", "Div(k, a)"), k=(2, 3, 4)),
        graph(m=np.zeros((1, 1, 8, 1))),
        # one channel that broadcasting makes three: the bytes have not what the Conv reads
        graph(GRAPH.replace("uint8[1,3,8,8] u", "uint8[1,1,8,8] u")),
    ],
)
def test_what_is_no_arithmetic_of_pixels_stays(model: Model) -> None:
    before = [n.op_type for n in model.graph]
    done = apply(FOLD_PIXELS, model).model
    assert [n.op_type for n in done.graph] == before


@pytest.mark.parametrize("where", ["bytes", "floats", "between"])
def test_any_order_of_channels_goes_into_the_weights(where: str) -> None:
    """A rotation of three: unlike a swap it is not its own inverse."""
    gather = "Gather<axis = 1>"
    text = {
        "bytes": GRAPH.replace("c = Cast", f"v = {gather}(u, i)\n c = Cast").replace("(u)", "(v)"),
        "floats": GRAPH.replace("y = Conv", f"v = {gather}(x, i)\n y = Conv").replace("(x, w)", "(v, w)"),
        "between": GRAPH.replace("x = Mul(a", f"v = {gather}(a, i)\n x = Mul(v"),
    }[where]
    model = graph(text, i=np.array([1, 2, 0]))
    done = apply(FOLD_PIXELS, model).model
    assert [n.op_type for n in done.graph] == ["Cast", "Sub", "Conv"]
    raw = {"u": np.random.default_rng(0).integers(0, 256, (1, 3, 8, 8)).astype(np.uint8)}
    np.testing.assert_allclose(run(done, raw)["y"], run(model, raw)["y"], rtol=1e-4, atol=5e-3)


def test_channels_picked_out_of_more_stay_picked() -> None:
    text = GRAPH.replace("uint8[1,3", "uint8[1,6").replace("c = Cast", "v = Gather<axis = 1>(u, i)\n c = Cast")
    model = graph(text.replace("(u)", "(v)"), i=np.array([4, 0, 2]))
    done = apply(FOLD_PIXELS, model).model
    assert [n.op_type for n in done.graph] == ["Gather", "Cast", "Sub", "Conv"]
    raw = {"u": np.random.default_rng(0).integers(0, 256, (1, 6, 8, 8)).astype(np.uint8)}
    np.testing.assert_allclose(run(done, raw)["y"], run(model, raw)["y"], rtol=1e-5, atol=1e-3)


def test_a_new_channel_order_before_a_grouped_conv_stays_on_the_bytes() -> None:
    case = Case(pixels=pixels(wants="bgr"), groups=3)
    done = folded(case)
    assert [n.op_type for n in done.model.graph][:5] == ["Transpose", "Gather", "Cast", "Sub", "Conv"]
    assert_same(case, done.model)


def test_a_second_consumer_keeps_the_arithmetic() -> None:
    text = GRAPH.replace("y = Conv", "z = Conv(x, v)\n y = Conv").replace(" => (", " => (float[1,2,8,8] z, ")
    model = graph(text, v=np.ones((2, 3, 1, 1), np.float32))
    done = apply(FOLD_PIXELS, model)
    assert done.count == 0
    assert "its input has a second consumer" in done.reason


def test_two_pictures_and_a_number_beside_them() -> None:
    """Only what the set states is absorbed; every other input and the names of all stay."""
    arrays = {"w": np.ones((2, 3, 3, 3), np.float32)}
    text = """g (float[1,3,8,8] left, float[1,3,8,8] right, float[1,2,6,6] gain) => (float[1,2,6,6] y) {
        a = Conv(left, w)
        b = Conv(right, w)
        d = Sub(a, b)
        y = Mul(d, gain)
    }"""
    model = build(text, **arrays)
    first, second = (dataclasses.replace(pixels(), name=name) for name in ("left", "right"))
    wrapped = absorb_input(model, [first, second])
    assert [(s.name, s.dtype, s.shape) for s in wrapped.inputs] == [
        ("left", "uint8", (1, 8, 8, 3)),
        ("right", "uint8", (1, 8, 8, 3)),
        ("gain", "float32", (1, 2, 6, 6)),
    ]
    rng = np.random.default_rng(0)
    raw = {n: rng.integers(0, 256, (1, 8, 8, 3)).astype(np.uint8) for n in ("left", "right")}
    gain = rng.normal(size=(1, 2, 6, 6)).astype(np.float32)
    case = Case(pixels=pixels())
    plain = {n: prepared(case, v) for n, v in raw.items()}
    np.testing.assert_allclose(
        run(wrapped, raw | {"gain": gain})["y"], run(model, plain | {"gain": gain})["y"], atol=1e-4
    )


def test_an_input_that_is_an_output_is_refused() -> None:
    from edgeopt.errors import ModelError

    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 4, 4])
    other = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 3, 4, 4])
    proto = helper.make_model(
        helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [value], [value, other]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    with pytest.raises(ModelError, match="an input and an output"):
        absorb_input(from_proto(proto), [pixels()])


def test_a_half_precision_model_gets_its_own_type() -> None:
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT16, [1, 3, 4, 4])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT16, [1, 2, 4, 4])
    weight = numpy_helper.from_array(np.ones((2, 3, 1, 1), np.float16), "w")
    proto = helper.make_model(
        helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"])], "g", [x], [y], [weight]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    wrapped = absorb_input(from_proto(proto), [pixels()])
    assert [n.op_type for n in wrapped.graph] == ["Transpose", "Cast", "Sub", "Mul", "Cast", "Conv"]
    onnx.checker.check_model(ir.to_proto(wrapped.ir), full_check=True)
