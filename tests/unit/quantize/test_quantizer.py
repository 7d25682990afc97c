from __future__ import annotations

import collections
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from edgeopt.backends import onnxruntime as backend
from edgeopt.errors import CalibrationError, ModelError
from edgeopt.interpreter import Interpreter
from edgeopt.model import Model, node_key, save, select_keys
from edgeopt.quantize import Choice, QuantizedModel, calibrate, quantize
from edgeopt.target import Int8Scheme, load_target

from . import nets

SCHEMES = {"x86": Int8Scheme(activation="uint8"), "arm": Int8Scheme(activation="int8")}


def samples(model: Model, count: int = 24, seed: int = 0, low: float | None = None) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        feeds = {}
        for spec in model.inputs:
            shape = [d if isinstance(d, int) else 1 for d in spec.shape]
            values = rng.standard_normal(shape) if low is None else rng.uniform(low, 1, shape)
            feeds[spec.name] = values.astype(np.float32)
        found.append(feeds)
    return found


def build(
    model: Model,
    data: list[dict[str, np.ndarray]],
    scheme: Int8Scheme = SCHEMES["x86"],
    exclude: set[str] = frozenset(),
    **choice,
) -> QuantizedModel:  # type: ignore[assignment]
    calibrated = calibrate(model, backend.TABLE, scheme, iter(data), exclude=exclude)
    assert calibrated is not None
    return quantize(calibrated, Choice(**choice))


def errors(model: Model, quantized: QuantizedModel, data: list[dict[str, np.ndarray]]) -> dict[str, float]:
    """Relative RMS error by output, over all samples."""
    reference, test = Interpreter(model), Interpreter(quantized.model)
    found = collections.defaultdict(lambda: [0.0, 0.0])
    for feeds in data:
        expected, got = reference.run(feeds), test.run(feeds)
        assert list(expected) == list(got)
        for name in expected:
            found[name][0] += float(((expected[name] - got[name]).astype(np.float64) ** 2).sum())
            found[name][1] += float((expected[name].astype(np.float64) ** 2).sum())
    return {name: float(np.sqrt(e / s)) for name, (e, s) in found.items()}


def scales(quantized: QuantizedModel) -> Iterator[np.ndarray]:
    for node in quantized.model.graph:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            yield node.inputs[1].const_value.numpy()  # type: ignore[union-attr]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("bias", ["none", "mean"])
def test_q02_large_bias_and_q03_dead_channels(scheme: str, per_channel: bool, bias: str) -> None:
    model = nets.tiny_weights()
    chosen = Int8Scheme(activation=SCHEMES[scheme].activation, per_channel=per_channel)
    quantized = build(model, samples(model, low=-1), chosen, bias=bias)
    means = np.concatenate([Interpreter(quantized.model).run(f)["y"] for f in samples(model, 4, 1, low=-1)]).mean(
        (0, 2, 3)
    )
    for channel, wanted in ((0, 6.25), (2, -3.0), (3, 0.5)):
        assert abs(means[channel] - wanted) <= 0.01 * abs(wanted) + (0.03 if not per_channel else 0.0)
    for node in quantized.model.graph:
        if node.op_type == "DequantizeLinear" and node.inputs[0].dtype == ir.DataType.INT32:  # type: ignore[union-attr]
            assert np.abs(node.inputs[0].const_value.numpy().astype(np.int64)).max() < 2**31 - 1  # type: ignore[union-attr]
    for scale in scales(quantized):
        assert np.isfinite(scale).all()
        assert (scale > 0).all()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_q05_boxes_and_scores_do_not_share_a_scale(scheme: str) -> None:
    model = nets.head()
    quantized = build(model, samples(model, low=0), SCHEMES[scheme])
    reference, test = Interpreter(model), Interpreter(quantized.model)
    for feeds in samples(model, 4, 9, low=0):
        expected, got = reference.run(feeds)["output0"], test.run(feeds)["output0"]
        assert np.abs(expected[:, 4:] - got[:, 4:]).max() <= 0.05
        boxes = expected[:, :4] - got[:, :4]
        assert np.sqrt((boxes**2).mean() / (expected[:, :4] ** 2).mean()) <= 0.02
    assert "concat" in quantized.placement.stays_float


@pytest.mark.parametrize("scheme", SCHEMES)
def test_dy03_outputs_in_the_middle_keep_their_values(scheme: str) -> None:
    model = nets.outputs_in_the_middle()
    data = samples(model)
    quantized = build(model, data, SCHEMES[scheme])
    assert [o.name for o in quantized.model.outputs] == [o.name for o in model.outputs]
    found = errors(model, quantized, samples(model, 4, 5))
    assert max(found.values()) <= 0.03, found
    assert Interpreter(quantized.model).run(data[0])["conv_b"].min() < -0.5


@pytest.mark.parametrize("groups", [1, 2])
def test_q01_conv_transpose(groups: int) -> None:
    model = nets.transposed(groups)
    quantized = build(model, samples(model))
    assert max(errors(model, quantized, samples(model, 4, 3)).values()) <= 0.03
    weight = next(n for n in quantized.model.graph if n.op_type == "DequantizeLinear")
    assert weight.attributes.get_int("axis", 0) == 1
    found = weight.inputs[1].const_value.numpy()  # type: ignore[union-attr]
    assert found.size == 6 // groups
    real = model.graph.initializers["w"].const_value.numpy()  # type: ignore[union-attr]
    back = weight.inputs[0].const_value.numpy() * found.reshape(1, -1, 1, 1)  # type: ignore[union-attr]
    for channel in range(6 // groups):
        assert np.abs(back[:, channel] - real[:, channel]).max() <= 0.51 * np.abs(real[:, channel]).max() / 127


def test_in03_names_that_look_generated(tmp_path: Path) -> None:
    model = nets.named_badly()
    before = {str(v.name) for n in model.graph for v in n.outputs}
    quantized = build(model, samples(model))
    save(quantized.model, tmp_path / "q.onnx")
    # Six layers of rounding: the bound is that of noise, and a swapped tensor would be far outside.
    assert max(errors(model, quantized, samples(model, 4, 3)).values()) <= 0.06
    keys = [node_key(n) for n in quantized.model.graph]
    assert len(keys) == len(set(keys))
    after = {str(v.name) for n in quantized.model.graph for v in n.outputs}
    assert before - after <= {"y"} | before & {str(o.name) for o in model.graph.outputs}
    assert len([n for n in quantized.placement.int8 if n.op_type == "Conv"]) == 6
    excluded = select_keys(model, ["conv"])
    assert excluded == {"conv", "conv#2"}
    kept = build(model, samples(model), exclude=excluded)
    assert {k for k in kept.placement.stays_float if "conv" in k} >= excluded
    unnamed = build(model, samples(model), exclude=select_keys(model, ["Conv:x_scale"]))
    assert unnamed.placement.stays_float["Conv:x_scale"] == "excluded by request"
    with pytest.raises(ModelError, match="did you mean|Did you mean|no node"):
        select_keys(model, ["post_quant_con"])


@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 2.0)])
@pytest.mark.parametrize("bias", [None, (10,), (1, 10), (), (1,)])
def test_q12_gemm_in_all_its_forms(trans_b: int, alpha: float, beta: float, bias: tuple[int, ...] | None) -> None:
    model = nets.gemm(trans_b, alpha, beta, bias)
    data = samples(model)
    for quantized in (build(model, data), build(model, data, bias="mean")):
        assert max(errors(model, quantized, samples(model, 8, 2)).values()) <= 0.03
        assert quantized.weight_scale_counts == {"fc": 10}


def test_bias_correction_removes_the_mean_shift() -> None:
    rng = np.random.default_rng(2)
    model = nets.make(
        [nets.helper.make_node("Conv", ["x", "w"], ["y"], name="conv", kernel_shape=[3, 3], group=4)],
        [("x", [1, 8, 12, 12])],
        [("y", [1, 16, 10, 10])],
        {"w": np.abs(nets.normal(40, 16, 2, 3, 3))},
    )
    data = [{"x": rng.uniform(2, 3, (1, 8, 12, 12)).astype(np.float32)} for _ in range(16)]
    shift = {}
    for corrected in (False, True):
        scheme = Int8Scheme(activation="uint8", weight_bits=7)
        quantized = build(model, data, scheme, bias="mean" if corrected else "none")
        reference, test = Interpreter(model), Interpreter(quantized.model)
        gaps = [test.run(f)["y"] - reference.run(f)["y"] for f in data]
        shift[corrected] = float(np.abs(np.concatenate(gaps).mean((0, 2, 3))).max())
    assert shift[True] < 0.4 * shift[False], shift


def test_order_of_samples_has_no_influence() -> None:
    model = nets.outputs_in_the_middle()
    data = samples(model, 12)
    one, other = (build(model, d, bias="mean", ranges="percentile", percentile=99.9) for d in (data, data[::-1]))
    assert ir.to_proto(one.model.ir).SerializeToString(deterministic=True) == ir.to_proto(
        other.model.ir
    ).SerializeToString(deterministic=True)


def test_graph_outputs_are_never_clipped() -> None:
    """An outlier in an output stays representable whatever the percentile."""
    model = nets.outputs_in_the_middle()
    data = samples(model)
    data[3] = {"x": data[3]["x"] * 40}
    quantized = build(model, data, ranges="percentile", percentile=99.0)
    for name in ("conv_b", "conv_a"):
        top = max(float(Interpreter(model).run(f)[name].max()) for f in data)
        node = next(n for n in quantized.model.graph if n.op_type == "DequantizeLinear" and n.outputs[0].name == name)
        scale, zero = (v.const_value.numpy() for v in node.inputs[1:])  # type: ignore[union-attr]
        assert float(scale) * (255 - int(zero)) >= top - float(scale)


def test_a_planted_wrong_scale_is_caught() -> None:
    model = nets.outputs_in_the_middle()
    quantized = build(model, samples(model))
    scale = quantized.model.graph.initializers[
        "w_scale" if "w_scale" in quantized.model.graph.initializers else "wb_scale"
    ]
    array = scale.const_value.numpy().copy()  # type: ignore[union-attr]
    array[1] *= 1.2
    scale.const_value = ir.tensor(array, name=scale.name)
    assert max(errors(model, quantized, samples(model, 4, 5)).values()) > 0.03


def test_empty_and_non_finite_calibration() -> None:
    model = nets.tiny_weights()
    with pytest.raises(CalibrationError, match="empty"):
        calibrate(model, backend.TABLE, SCHEMES["x86"], iter([]))
    bad = {"x": np.full((1, 3, 8, 8), np.nan, np.float32)}
    with pytest.raises(CalibrationError, match="sample 0"):
        calibrate(model, backend.TABLE, SCHEMES["x86"], iter([bad]))


def test_nothing_to_quantize_is_said() -> None:
    relu = nets.make([nets.helper.make_node("Relu", ["x"], ["y"])], [("x", [1, 4])], [("y", [1, 4])], {})
    assert calibrate(relu, backend.TABLE, SCHEMES["x86"], iter(samples(relu))) is None


@pytest.mark.parametrize("target", ["raspberry-pi-5", "x86-avx512-vnni", "x86-avx2"])
def test_the_runtime_runs_what_was_planned(target: str, tmp_path: Path) -> None:
    profile = load_target(target)
    model = nets.outputs_in_the_middle()
    quantized = build(model, samples(model), profile.int8)
    artifact = backend.lower(quantized.model, profile, tmp_path / "q.onnx", precision="int8")
    fused = backend.fused(artifact.path, model, profile, quantized)
    assert fused.mismatches == ()
    runs = {n.key: n.runs for n in fused.nodes}
    assert runs["conv5"] == runs["conv3"] == runs["last"] == "int8"
    assert runs["pad0"] == "float"


def test_the_read_back_sees_a_planted_per_tensor_weight(tmp_path: Path) -> None:
    """Half a scale table would be the runtime's own per-tensor weights; the read-back must say so."""
    profile = load_target("x86-avx512-vnni")
    model = nets.outputs_in_the_middle()
    quantized = build(model, samples(model), Int8Scheme(activation="uint8", per_channel=False))
    artifact = backend.lower(quantized.model, profile, tmp_path / "q.onnx", precision="int8")
    import dataclasses

    claimed = dataclasses.replace(quantized, weight_scale_counts={"conv3": 4})
    assert "conv3: 4 weight scales" in backend.fused(artifact.path, model, profile, claimed).mismatches[0]


def test_a_float_conv_between_int8_ones_is_shielded(tmp_path: Path) -> None:
    model = nets.named_badly()
    profile = load_target("x86-avx512-vnni")
    quantized = build(model, samples(model), exclude={"conv"})
    artifact = backend.lower(quantized.model, profile, tmp_path / "q.onnx", precision="int8")
    fused = backend.fused(artifact.path, model, profile, quantized)
    assert fused.mismatches == ()
    assert {n.key: n.runs for n in fused.nodes}["conv"] == "float"
    bare = quantized.model.clone()
    for node in list(bare.graph):
        if node.op_type == "Max":
            for use in list(node.outputs[0].uses()):
                use.node.replace_input_with(use.idx, node.inputs[0])
            bare.graph.remove(node, safe=True)
    save(bare, tmp_path / "bare.onnx")
    assert "was to stay float" in backend.fused(tmp_path / "bare.onnx", model, profile, quantized).mismatches[0]
