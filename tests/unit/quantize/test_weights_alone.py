"""Weights alone in 8 and 4 bits: where they are stored, in which form, and what reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from edgeopt.model import Model, node_key, save
from edgeopt.quantize import QuantizedModel
from edgeopt.quantize.moments import collect_moments
from edgeopt.quantize.sites import find
from edgeopt.quantize.stored import store
from edgeopt.quantize.weights_alone import quantize_weights
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

node = helper.make_node


def alone(model: Model, bits: int, backend: str = "onnxruntime", **how: object) -> QuantizedModel:
    made = quantize_weights(model, bits=bits, backend=backend, **how)  # type: ignore[arg-type]
    assert made is not None
    assert made.precision == f"int{bits}-weights"
    assert made.placement.int8 == ()
    return made


def samples(*shape: int, count: int = 6) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(count)]


def convolutions() -> Model:
    """Conv1d on raw values, a grouped Conv1d and a ConvTranspose: nothing with a 4-bit kernel."""
    arrays = {"a": normal(1, 16, 1, 24), "b": normal(2, 64, 8, 5), "c": normal(3, 64, 16, 4), "d": normal(4, 16, fan=1)}
    nodes = [
        node("Conv", ["x", "a"], ["h"], name="first", strides=[4]),
        node("Conv", ["h", "b"], ["g"], name="grouped", group=2),
        node("ConvTranspose", ["g", "c", "d"], ["y"], name="up", strides=[2]),
    ]
    return build(nodes, {"x": ["N", 1, 200]}, ["y"], arrays)


def tied(head: str) -> Model:
    """An embedding and an output layer that read one table."""
    nodes = [node("Gather", ["table", "ids"], ["e"], name="embed")]
    if head == "transposed":
        nodes += [node("Transpose", ["table"], ["t"], perm=[1, 0]), node("MatMul", ["e", "t"], ["y"], name="head")]
    else:
        nodes += [
            node("Reshape", ["e", "flat"], ["f"]),
            node("Gemm", ["f", "table"], ["y"], name="head", transB=1, alpha=0.5),
        ]
    arrays = {"table": normal(5, 96, 64, fan=1), "flat": np.array([-1, 64], np.int64)}
    return build(nodes, {"ids": (TensorProto.INT64, ["N", 5])}, ["y"], arrays)


def matrices() -> Model:
    arrays = {
        "w": normal(1, 80, 48),
        "v": normal(2, 48, 48),
        "b": normal(3, 48, fan=1),
        "folds": np.array([-1, 4, 12], np.int64),
        "u": normal(4, 12, 20),
    }
    nodes = [node("MatMul", ["x", "w"], ["h"], name="wide"), node("Relu", ["h"], ["r"])]
    nodes += [node("Gemm", ["r", "v", "b"], ["s"], name="fc", transB=1, alpha=2.0, beta=0.5)]
    nodes += [node("Reshape", ["s", "folds"], ["t"]), node("MatMul", ["t", "u"], ["y"], name="short")]
    return build(nodes, {"x": ["N", 80]}, ["y"], arrays)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 999), st.integers(2, 9), st.integers(1, 40), st.integers(1, 3), st.sampled_from([1e-35, 1.0, 1e20])
)
def test_every_weight_comes_back_within_half_a_step(
    seed: int, outputs: int, inputs: int, kernel: int, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    weight = (rng.standard_t(3, (outputs, inputs, kernel)) * scale).astype(np.float32)
    weight = np.tile(weight, (1, -(-256 // weight[0].size), 1))
    model = build([node("Conv", ["x", "w"], ["y"], name="c")], {"x": [1, weight.shape[1], 8]}, ["y"], {"w": weight})
    (found,) = find(model, frozenset()).weights
    stored = store(found, 8)
    restored = stored.rows.astype(np.float64) * stored.scales[:, None, None]
    assert (np.abs(restored - weight) <= 0.5001 * stored.scales[:, None, None]).all()


def test_convolutions_of_every_kind_keep_their_weights_in_8_bits() -> None:
    for backend, bits in (("onnxruntime", 8), ("onnxruntime", 4), ("openvino", 8), ("openvino", 4)):
        made = alone(convolutions(), bits, backend)
        assert stored_bytes(made.model)["INT8"] >= 64 * 8 * 5 + 64 * 16 * 4
        assert floats_of(made.model) == []
        assert made.weight_scale_counts == {"first": 0, "grouped": 64, "up": 16}
        assert "16 bits" in made.notes["first"]
        assert (bits == 8) == ("grouped" not in made.notes)
        assert relative_rms(convolutions(), made.model, samples(2, 1, 200)) <= 0.015


def test_the_first_layer_hears_what_is_quiet_beside_what_is_loud() -> None:
    """A Fourier basis in 8 bits spreads a loud tone over every band; in 16 bits the empty bands stay empty."""
    time, bands = np.arange(128), np.arange(1, 33)[:, None]
    basis = np.cos(2 * np.pi * bands * time / 128)[:, None].astype(np.float32) * np.hanning(128).astype(np.float32)
    nodes = [node("Conv", ["x", "basis"], ["h"], name="basis"), node("Conv", ["h", "w"], ["y"], name="next")]
    arrays = {"basis": basis, "w": normal(2, 512, 32, 3)}
    model = build(nodes, {"x": [1, 1, 160]}, ["y", "h"], arrays)
    tone = {"x": np.cos(2 * np.pi * 3 * np.arange(160) / 128).astype(np.float32)[None, None]}
    whole = alone(model, 8)
    large = build([*nodes], {"x": [1, 1, 160]}, ["y", "h"], {**arrays, "w": normal(2, 64, 32, 3)})
    coarse = alone(large, 8)  # here the basis is most of the weights, and 16 bits would not be cheap
    assert "16 bits" in whole.notes["basis"]
    assert "basis" not in coarse.notes
    assert relative_rms(model, whole.model, [tone]) < 0.1 * relative_rms(large, coarse.model, [tone]) + 0.01


def test_products_in_4_bits_are_the_runtimes_own_operator_or_blocks() -> None:
    own, standard = alone(matrices(), 4), alone(matrices(), 4, "openvino")
    assert operators(own.model).count("MatMulNBits") == 2
    assert standard.model.ir.opset_imports[""] == 21
    assert own.model.ir.opset_imports[""] == 20
    assert stored_bytes(standard.model)["UINT4"] >= (80 * 48 + 48 * 48) // 2
    for made in (own, standard):
        assert made.weight_scale_counts == {"wide": 48 * 3, "fc": 48 * 2, "short": 20}
        assert made.notes == {"short": "its weight is stored in 8 bits: no 4-bit kernel"}
        assert floats_of(made.model, 2048) == []
        assert relative_rms(matrices(), made.model, samples(7, 80)) <= 0.12
    assert relative_rms(own.model, standard.model, samples(7, 80)) <= 0.02  # the same integers, other kernels


def test_an_older_runtime_gets_8_bits_and_a_note() -> None:
    for how in ({"release": "1.16.3"}, {"backend": "other", "opset_max": 20}):
        made = alone(matrices(), 4, **how)  # type: ignore[arg-type]
        assert "MatMulNBits" not in operators(made.model)
        assert made.model.ir.opset_imports[""] == 20
        assert made.notes["wide"] == "its weight is stored in 8 bits: no 4-bit kernel"
    assert "MatMulNBits" in operators(alone(matrices(), 4, release="1.17.0").model)


@pytest.mark.parametrize("head", ["transposed", "gemm"])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_tied_weights_stay_tied(head: str, bits: int, backend: str) -> None:
    model = tied(head)
    made = alone(model, bits, backend)
    whole = stored_bytes(made.model)
    table = 96 * 64 // (8 // bits)
    copies = sum(v.const_value.nbytes == table for v in made.model.graph.initializers.values() if v.const_value)
    assert copies == (1 if backend == "onnxruntime" or bits == 8 else 1 + (head == "transposed"))
    assert floats_of(made.model, 96 * 64) == []
    assert sum(whole.values()) < 96 * 64 * 4 // 2
    feeds = [{"ids": np.random.default_rng(s).integers(0, 96, (3, 5))} for s in range(4)]
    assert relative_rms(model, made.model, feeds) <= (0.02 if bits == 8 else 0.15)


def test_an_excluded_reader_keeps_its_tied_weight_for_all() -> None:
    made = quantize_weights(tied("gemm"), bits=8, backend="onnxruntime", exclude={"embed"})
    assert made is None
    made = alone(matrices(), 4, exclude={"wide"})
    assert made.notes["wide"] == "excluded by request"
    assert floats_of(made.model, 2048) == ["w"]


def test_look_ups_of_rows_in_4_bits_give_the_rows() -> None:
    table = normal(7, 50, 64, fan=1)
    for ids in (np.array(7), np.array([[3, 49], [-1, 0]]), np.zeros((0, 2), np.int64)):
        nodes = [node("Gather", ["table", "ids"], ["y"], name="embed")]
        model = build(nodes, {"ids": (TensorProto.INT64, list(ids.shape))}, ["y"], {"table": table})
        made = alone(model, 4)
        assert floats_of(made.model) == []
        if ids.size:
            assert relative_rms(model, made.model, [{"ids": ids}]) <= 0.1


def test_weights_inside_branches_are_stored_once() -> None:
    for bits in (8, 4):
        made = alone(branches(), bits)
        assert sum(n for t, n in stored_bytes(made.model).items() if t != "FLOAT") < 32 * 32 + 256
        for first, second in ((True, True), (False, True), (False, False)):
            flags = {"first": np.array(first), "second": np.array(second)}
            feeds = [{**sample, **flags} for sample in samples(3, 32)]
            assert relative_rms(branches(), made.model, feeds) <= (0.02 if bits == 8 else 0.15)


def test_weights_that_are_put_in_order_are_stored_as_they_are_read(tmp_path: Path) -> None:
    model = reordered_lstm(inside=True)
    made = alone(model, 8)
    assert operators(made.model).count("DequantizeLinear") == 4
    assert stored_bytes(made.model)["INT8"] == 64 * (24 + 16) + 64
    for path, which in ((tmp_path / "a", model), (tmp_path / "b", made.model)):
        save(which, path)
    assert (tmp_path / "b").stat().st_size < 0.5 * (tmp_path / "a").stat().st_size
    for flag in (True, False):
        feeds = [{**sample, "flag": np.array(flag)} for sample in samples(7, 2, 24)]
        assert relative_rms(model, made.model, feeds) <= 0.02


def test_moments_lower_the_error_of_the_output() -> None:
    rng = np.random.default_rng(4)
    mix = rng.standard_normal((80, 80)) @ np.diag(np.geomspace(1, 0.02, 80)) @ rng.standard_normal((80, 80))
    feeds = [{"x": (rng.standard_normal((40, 80)) @ mix).astype(np.float32)} for _ in range(12)]
    model = matrices()
    known = collect_moments(model, list(model.graph), lambda: feeds, budget=1 << 26)
    assert set(known) >= {"wide", "fc"}
    for bits, share in ((4, 0.8), (8, 0.9)):
        plain, better = alone(model, bits), alone(model, bits, moments=known)
        assert relative_rms(model, better.model, feeds) < share * relative_rms(model, plain.model, feeds)


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    for bits in (8, 4):
        for name in ("a", "b"):
            save(alone(matrices(), bits).model, tmp_path / name)
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_graph_input_with_a_default_is_no_weight() -> None:
    model = build([node("MatMul", ["x", "w"], ["y"], name="fc")], {"x": [3, 32], "w": [32, 32]}, ["y"], {})
    value = model.graph.inputs[1]
    value.const_value = ir.tensor(normal(1, 32, 32), name="w")
    model.graph.register_initializer(value)
    assert quantize_weights(model, bits=8, backend="onnxruntime") is None
    assert {node_key(n): n for n in model.graph}.keys() == {"fc"}
