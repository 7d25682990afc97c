"""Dynamic int8: what runs in integers, what the runtime makes of it, and what stays as it was."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from edgeopt.backends import onnxruntime as backend
from edgeopt.errors import CalibrationError
from edgeopt.interpreter import Interpreter
from edgeopt.model import Model, node_key, save
from edgeopt.passes import apply
from edgeopt.passes.matmul_add_to_gemm import MATMUL_ADD_TO_GEMM
from edgeopt.quantize import QuantizedModel
from edgeopt.quantize.dynamic import quantize_dynamic
from edgeopt.quantize.loudness import channel_peaks
from edgeopt.target import Int8Scheme, load_target
from tests.unit.quantize.nets import normal
from tests.unit.quantize.weight_nets import (
    branches,
    build,
    floats_of,
    operators,
    relative_rms,
    reordered_lstm,
    stored_bytes,
)

UINT8 = Int8Scheme(activation="uint8")
node = helper.make_node


def dynamic(model: Model, scheme: Int8Scheme = UINT8, **how: object) -> QuantizedModel:
    made = quantize_dynamic(model, backend.TABLE, scheme, **how)  # type: ignore[arg-type]
    assert made is not None
    assert made.precision == "int8-dynamic"
    return made


def feeds(count: int = 6, *shape: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal(shape or (3, 24)).astype(np.float32)} for _ in range(count)]


def layers() -> Model:
    """Three layers that read one tensor, one of them with a bias before it, and a layer behind them."""
    arrays = {"q": normal(1, 32, 40), "k": normal(2, 32, 40), "v": normal(3, 32, 40), "o": normal(4, 40, 24)}
    arrays |= {"b": normal(5, 40, fan=1), "c": normal(6, 24, fan=1)}
    nodes = [node("MatMul", ["x", n], [f"{n}0"], name=n) for n in "qkv"]
    nodes += [
        node("Add", ["b", "q0"], ["q1"], name="bias"),
        node("Add", ["q1", "k0"], ["s"]),
        node("Mul", ["s", "v0"], ["m"]),
    ]
    nodes += [node("MatMul", ["m", "o"], ["o0"], name="o"), node("Add", ["c", "o0"], ["y"], name="last")]
    return build(nodes, {"x": ["N", 5, 32]}, ["y"], arrays)


@pytest.mark.parametrize(
    ("turned", "crossed", "bias"),
    [*itertools.product((0, 1), (0,), ("none", "row", "one", "scalar", "full")), (0, 1, "row"), (1, 1, "none")],
)
def test_q12_gemm_in_all_its_forms(turned: int, crossed: int, bias: str) -> None:
    shapes = {"row": (10,), "one": (1, 10), "scalar": (), "full": (3, 10)}
    arrays = {"w": normal(1, *((10, 24) if turned else (24, 10)), fan=24)}
    if bias != "none":
        arrays["b"] = np.asarray(normal(2, *shapes[bias], fan=1) if shapes[bias] else np.float32(0.7))
    names = ["x", "w", *(["b"] if bias != "none" else [])]
    gemm = node("Gemm", names, ["y"], name="fc", transB=turned, transA=crossed, alpha=0.5, beta=2.0)
    model = build([gemm], {"x": [24, 3] if crossed else [3, 24]}, ["y"], arrays)
    made = dynamic(model)
    assert [node_key(n) for n in made.placement.int8] == ["fc"]
    assert made.weight_scale_counts == {"fc": 10}
    assert "Gemm" not in operators(made.model)
    samples = feeds(6, *((24, 3) if crossed else (3, 24)))
    assert relative_rms(model, made.model, samples) <= 0.03


def test_the_runtime_joins_products_and_biases(tmp_path: Path) -> None:
    made = dynamic(layers())
    path = tmp_path / "m.onnx"
    save(made.model, path)
    target = load_target("host")
    read = backend.fused(path, layers(), target, made)
    assert read.mismatches == ()
    assert {n.key: n.runs for n in read.nodes if n.op == "MatMul"} == dict.fromkeys("qkvo", "int8")
    optimized = Counter(n.op_type for n in backend.readback._optimized(path, target, ()).graph)
    assert (optimized["DynamicQuantizeMatMul"], optimized["MatMulIntegerToFloat"]) == (1, 3)
    assert optimized["DynamicQuantizeLinear"] == 1  # the three layers share it
    assert optimized["Add"] == 1  # both biases went into their products
    assert relative_rms(layers(), made.model, feeds(6, 2, 5, 32)) <= 0.03


def test_a_planted_error_is_seen_by_the_comparison() -> None:
    made = dynamic(layers())
    weight = next(v for v in made.model.graph.initializers.values() if v.dtype == ir.DataType.INT8)
    assert weight.const_value is not None
    wrong = -weight.const_value.numpy()
    weight.const_value = ir.tensor(wrong, name=weight.name)
    assert relative_rms(layers(), made.model, feeds(6, 2, 5, 32)) > 0.3


def test_an_excluded_node_stays_float_after_rewrites() -> None:
    arrays = {"w": normal(1, 24, 32), "b": normal(2, 32, fan=1), "v": normal(3, 32, 32)}
    nodes = [node("MatMul", ["x", "w"], ["h"], name="fc"), node("Add", ["h", "b"], ["g"], name="bias")]
    nodes.append(node("MatMul", ["g", "v"], ["y"], name="head"))
    model = build(nodes, {"x": [3, 24]}, ["y"], arrays)
    rewritten = apply(MATMUL_ADD_TO_GEMM, model, load_target("host")).model
    assert "Gemm" in operators(rewritten)
    for name in ("fc", "bias"):
        made = dynamic(rewritten, exclude={name})
        assert [node_key(n) for n in made.placement.int8] == ["head"]
        assert "Gemm" in operators(made.model)
        assert "excluded by request" in made.notes.values()
        assert [len(floats_of(made.model))] == [1]


def test_a_layer_in_float_nodes_keeps_float_activations_and_int8_weights() -> None:
    made = dynamic(layers(), float_nodes={"o"})
    assert sorted(node_key(n) for n in made.placement.int8) == ["k", "q", "v"]
    assert [node_key(n) for n in made.placement.weight_only] == ["o"]
    assert floats_of(made.model) == []
    assert relative_rms(layers(), made.model, feeds(6, 2, 5, 32)) < relative_rms(
        layers(), dynamic(layers()).model, feeds(6, 2, 5, 32)
    )


@pytest.mark.parametrize("bits", [8, 7])
def test_weights_use_the_bits_of_the_profile(bits: int) -> None:
    made = dynamic(layers(), Int8Scheme(activation="int8", weight_bits=bits))
    weights = [v.const_value.numpy() for v in made.model.graph.initializers.values() if v.dtype == ir.DataType.INT8]  # type: ignore[union-attr]
    assert max(int(np.abs(w.astype(int)).max()) for w in weights) == 2 ** (bits - 1) - 1
    assert relative_rms(layers(), made.model, feeds(6, 2, 5, 32)) <= 0.04
    one = dynamic(layers(), Int8Scheme(activation="uint8", weight_bits=bits, per_channel=False))
    assert set(one.weight_scale_counts.values()) == {1}
    assert relative_rms(layers(), one.model, feeds(6, 2, 5, 32)) <= 0.05


def test_a_loud_channel_is_made_quieter_where_calibration_tells() -> None:
    model = layers()
    samples = feeds(8, 2, 5, 32)
    for sample in samples:
        sample["x"][..., 3] *= 60
    peaks = channel_peaks(model, lambda: samples)
    assert peaks["x"].argmax() == 3
    np.testing.assert_array_equal(peaks["x"], np.max([np.abs(s["x"]).max((0, 1)) for s in samples], axis=0))
    plain, quiet = dynamic(model), dynamic(model, peaks=peaks)
    assert operators(quiet.model).count("Mul") == operators(plain.model).count("Mul") + 2
    before, after = (relative_rms(model, made.model, samples) for made in (plain, quiet))
    assert after < 0.5 * before
    planted = {**peaks, "x": 1 / peaks["x"]}
    assert relative_rms(model, dynamic(model, peaks=planted).model, samples) > after
    with pytest.raises(CalibrationError, match="NaN"):
        channel_peaks(model, [{"x": np.full((1, 5, 32), np.nan, np.float32)}])


def test_branches_share_one_stored_weight() -> None:
    model = branches()
    made = dynamic(model)
    assert stored_bytes(made.model)["INT8"] == 32 * 32
    assert floats_of(made.model) == []
    assert operators(made.model).count("MatMulInteger") == 3
    for first, second in ((True, True), (False, True), (False, False)):
        flags = {"first": np.array(first), "second": np.array(second)}
        samples = [{**sample, **flags} for sample in feeds(4, 3, 32)]
        assert relative_rms(model, made.model, samples) <= 0.02


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_an_lstm_whose_gates_are_put_in_order(direction: str) -> None:
    model = reordered_lstm(direction=direction)
    made = dynamic(model)
    ways = 2 if direction == "bidirectional" else 1
    assert "DynamicQuantizeLSTM" in operators(made.model)
    assert "Slice" not in operators(made.model)
    assert made.weight_scale_counts == {"lstm": 2 * ways * 64}
    assert [node_key(n) for n in made.placement.int8] == ["lstm"]
    assert floats_of(made.model) == (["bias"] if ways == 2 else [])
    assert relative_rms(model, made.model, feeds(4, 7, 2, 24)) <= 0.03


def test_equal_weights_in_two_branches_are_stored_once() -> None:
    model = reordered_lstm(inside=True)
    made = dynamic(model)
    assert stored_bytes(made.model)["INT8"] == 64 * (24 + 16) + 64  # and zero points
    assert operators(made.model).count("DynamicQuantizeLSTM") == 2
    for flag in (True, False):
        samples = [{**sample, "flag": np.array(flag)} for sample in feeds(4, 7, 2, 24)]
        assert relative_rms(model, made.model, samples) <= 0.03


def test_what_has_no_kernel_computes_in_float_from_integers() -> None:
    arrays = {"table": normal(1, 60, 24, fan=1), "w": normal(2, 3 * 16, 24)[None], "r": normal(3, 3 * 16, 16)[None]}
    nodes = [node("Gather", ["table", "ids"], ["e"], name="embed")]
    nodes.append(node("GRU", ["e", "w", "r"], ["h"], name="gru", hidden_size=16))
    model = build(nodes, {"ids": (TensorProto.INT64, ["S", 2])}, ["h"], arrays)
    made = dynamic(model)
    assert made.placement.int8 == ()
    assert sorted(node_key(n) for n in made.placement.weight_only) == ["embed", "gru"]
    assert floats_of(made.model) == []
    samples = [{"ids": np.random.default_rng(s).integers(0, 60, (5, 2))} for s in range(4)]
    assert relative_rms(model, made.model, samples) <= 0.02


def test_a_vector_and_a_half_are_left_alone() -> None:
    arrays = {"w": normal(1, 32, 40), "h": normal(2, 40, 40).astype(np.float16)}
    nodes = [node("MatMul", ["x", "w"], ["a"], name="vector"), node("Cast", ["a"], ["c"], to=TensorProto.FLOAT16)]
    nodes += [node("MatMul", ["c", "h"], ["d"], name="half"), node("Cast", ["d"], ["y"], to=TensorProto.FLOAT)]
    model = build(nodes, {"x": [32]}, ["y"], arrays)
    made = dynamic(model)
    assert [node_key(n) for n in made.placement.weight_only] == ["vector"]
    assert made.notes["half"] == "its weight is float16, not float32"
    assert relative_rms(model, made.model, feeds(3, 32)) <= 0.02


def test_a_network_without_weights_gives_none() -> None:
    model = build([node("Relu", ["x"], ["y"])], {"x": [3]}, ["y"], {})
    assert quantize_dynamic(model, backend.TABLE, UINT8) is None


def test_the_model_given_is_not_changed_and_the_result_is_the_same_again(tmp_path: Path) -> None:
    model = layers()
    before = operators(model)
    for name in ("a", "b"):
        save(dynamic(model).model, tmp_path / name)
    assert operators(model) == before
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    sizes = [v.const_value.nbytes >= 16_384 for v in dynamic(model).model.graph.initializers.values()]  # type: ignore[union-attr]
    assert sizes == sorted(sizes)
    Interpreter(dynamic(model).model)
