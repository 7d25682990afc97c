"""Whole builds of networks that are something special: refused with a reason, or built and honest about it."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from edgeopt import bundle
from edgeopt.bundle import VerificationError
from edgeopt.interpreter import Interpreter
from tests.unit.findings import nets
from tests.unit.pipeline.builds import artifact, built, rand, refused, rms, warnings

# IN04


def test_in04_branches_share_one_weight_in_int8(tmp_path: Path) -> None:
    proto = nets.shared_branches()
    flags = {"flag_a": np.arange(24) % 2 == 0, "flag_b": np.arange(24) // 2 % 2 == 0}
    found = built(tmp_path, proto, nets.calibration(tmp_path / "c.npz", x=rand(0, 24, 3, 32), **flags))
    assert artifact(found).stat().st_size <= 0.7 * (tmp_path / "net.onnx").stat().st_size
    ours, theirs = Interpreter(artifact(found)), Interpreter(tmp_path / "net.onnx")
    for a in (True, False):
        for b in (True, False):
            feeds = {"x": rand(1, 3, 32), "flag_a": np.array(a), "flag_b": np.array(b)}
            assert rms(theirs.run(feeds)["y"], ours.run(feeds)["y"]) <= 0.02
    stored = onnx.load(artifact(found)).graph.initializer
    assert [t.data_type for t in stored if list(t.dims) == [32, 32]] == [TensorProto.INT8]


def test_in04_static_int8_says_that_branches_stay_float(tmp_path: Path) -> None:
    proto = nets.shared_branches()
    flags = {"flag_a": np.arange(24) % 2 == 0, "flag_b": np.arange(24) // 2 % 2 == 0}
    calib = nets.calibration(tmp_path / "c.npz", x=rand(0, 24, 3, 32), **flags)
    found = built(tmp_path, proto, calib, quantize="static")
    assert artifact(found).stat().st_size <= (tmp_path / "net.onnx").stat().st_size
    assert "3 subgraphs not quantized: calibration sees" in warnings(found)
    assert "3 subgraphs not quantized" in (found.root / "report.md").read_text()
    stored = [t.name for t in onnx.load(artifact(found)).graph.initializer]
    assert sorted(stored) == ["b1", "w1"]


# IN05


def test_in05_weights_by_every_route_become_int8(tmp_path: Path) -> None:
    rng = np.random.default_rng(91)

    def w(*shape: int, fan: int) -> np.ndarray:
        return (rng.normal(size=shape) / np.sqrt(fan)).astype(np.float32)

    first = w(16, 3, 3, 3, fan=27)
    arrays = {
        "w1": w(16, 64, fan=16),
        "w2_half": w(64, 64, fan=64).astype(np.float16),
        "w3_rows": w(32, 64, fan=64),
        "w4_flat": w(320, fan=32),
        "w4_shape": np.array([32, 10], np.int64),
    }
    nodes = [
        nets.node("Constant", [], ["w0"], name="w0_const", value=numpy_helper.from_array(first)),
        nets.node("Conv", ["x", "w0"], ["c"], name="conv"),
        nets.node("Relu", ["c"], ["cr"], name="relu0"),
        nets.node("GlobalAveragePool", ["cr"], ["g"], name="gap"),
        nets.node("Flatten", ["g"], ["f"], name="flat"),
        nets.node("Gemm", ["f", "w1"], ["h1"], name="fc1"),
        nets.node("Relu", ["h1"], ["h1r"], name="relu1"),
        nets.node("Cast", ["w2_half"], ["w2"], name="w2_cast", to=TensorProto.FLOAT),
        nets.node("MatMul", ["h1r", "w2"], ["h2"], name="fc2"),
        nets.node("Transpose", ["w3_rows"], ["w3_t"], name="w3_transpose", perm=[1, 0]),
        nets.node("Identity", ["w3_t"], ["w3"], name="w3_identity"),
        nets.node("MatMul", ["h2", "w3"], ["h3"], name="fc3"),
        nets.node("Reshape", ["w4_flat", "w4_shape"], ["w4"], name="w4_reshape"),
        nets.node("Gemm", ["h3", "w4"], ["y"], name="fc4"),
    ]
    inputs = [nets.value("x", ["N", 3, 12, 12]), nets.value("w1", [16, 64])]
    proto = nets.proto(nodes, inputs, [nets.value("y", ["N", 10])], arrays)
    found = built(tmp_path, proto, nets.calibration(tmp_path / "c.npz", x=rand(2, 16, 3, 12, 12)))
    assert found.manifest["artifacts"][0]["precision"] == "int8"
    assert artifact(found).stat().st_size <= 0.6 * (tmp_path / "net.onnx").stat().st_size
    assert [i["name"] for i in found.manifest["signature"]["inputs"]] == ["x"]
    feeds = {"x": rand(3, 3, 3, 12, 12)}
    assert rms(Interpreter(tmp_path / "net.onnx").run({**feeds, "w1": arrays["w1"]})["y"],
               Interpreter(artifact(found)).run(feeds)["y"]) <= 0.03  # fmt: skip
    graph = onnx.load(artifact(found)).graph
    assert [i.name for i in graph.input] == ["x"]
    matrices = {t.name: t.data_type for t in graph.initializer if len(t.dims) >= 2}
    assert len(matrices) == 5
    assert set(matrices.values()) == {TensorProto.INT8}


# IN06


@pytest.mark.parametrize("kind", ["qdq", "uint8", "qoperator", "half", "residual"])
def test_in06_what_came_quantized_is_not_quantized_again(kind: str, tmp_path: Path) -> None:
    proto = nets.quantized(kind)
    found = built(tmp_path, proto, nets.calibration(tmp_path / "c.npz", x=rand(0, 16, 4, 8, 8)))
    (shipped,) = found.manifest["artifacts"]
    assert shipped["precision"] == "prequantized"
    assert "the model came quantized (" in warnings(found)
    assert "float32" not in found.manifest["verdict"]["text"]
    after = onnx.load(artifact(found))
    for op in ("QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearAdd"):
        assert sum(n.op_type == op for n in after.graph.node) == sum(n.op_type == op for n in proto.graph.node), op
    feeds = {"x": rand(1, 1, 4, 8, 8)}
    expected = Interpreter(tmp_path / "net.onnx").run(feeds)["y"]
    assert np.abs(expected - Interpreter(artifact(found)).run(feeds)["y"]).max() <= 0.051
    assert bundle.verify(found.root)["ok"]


def test_in06_the_float_part_of_half_a_network_is_named(tmp_path: Path) -> None:
    found = built(tmp_path, nets.quantized("half"), nets.calibration(tmp_path / "c.npz", x=rand(0, 16, 4, 8, 8)))
    assert "1 weighted operator (float_conv) left in float" in warnings(found)


def test_in06_the_rules_of_tensorrt_are_checked_for_who_prefers_it(tmp_path: Path) -> None:
    found = built(tmp_path, nets.quantized("uint8"), target="jetson")
    assert "uint8 in q_in, dq_in, q_out, dq_out: TensorRT takes signed int8 only" in warnings(found)


# IN10


@pytest.mark.parametrize("where", ["acme", "default", "branch"])
def test_in10_an_unknown_operator_is_refused_by_name(where: str, tmp_path: Path) -> None:
    error = refused(tmp_path, nets.plugin(where), "does not know MyPlugin .*node plug")
    assert error.exit_code == 3
    assert error.remedy is not None
    assert "--custom-ops" in error.remedy


@pytest.mark.parametrize("where", ["acme", "default", "branch"])
def test_in10_kept_as_it_is_with_the_rest_rewritten_and_nothing_claimed(where: str, tmp_path: Path) -> None:
    proto = nets.plugin(where)
    calib = nets.calibration(tmp_path / "c.npz", x=rand(0, 8, 4, 8, 8)) if where != "branch" else None
    found = built(tmp_path, proto, calib, keep_custom_ops=True, effort="quick")
    assert "UNVERIFIED: nothing could be run" in warnings(found)
    assert found.manifest["golden"]["count"] == 0
    assert found.manifest["quality"]["verified"] is False
    domain = "ai.onnx" if where == "default" else "acme"
    assert found.manifest["run"]["custom_operators"] == {"names": [f"{domain}:MyPlugin"], "libraries": []}
    after = onnx.load(artifact(found))
    before_node, after_node = (next(iter(plugins(m.graph))) for m in (proto, after))
    assert before_node.SerializeToString(deterministic=True) == after_node.SerializeToString(deterministic=True)
    ops = [n.op_type for n in after.graph.node]
    assert "BatchNormalization" not in ops, "the Conv before it is folded as ever"
    assert ops.count("Conv") == 2
    with pytest.raises(VerificationError, match="built unverified"):
        bundle.verify(found.root)


def plugins(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    nested = [a.g for n in graph.node for a in n.attribute if a.HasField("g")]
    return [n for n in graph.node if n.op_type == "MyPlugin"] + [n for g in nested for n in plugins(g)]


def test_in10_a_library_is_loaded_named_and_not_copied(tmp_path: Path) -> None:
    extensions = pytest.importorskip("onnxruntime_extensions")
    library = Path(extensions.get_library_path())
    nodes = [
        nets.node("Relu", ["x"], ["r"], name="relu"),
        nets.node("NegPos", ["r"], ["n", "p"], name="parts", domain="ai.onnx.contrib"),
        nets.node("Sub", ["p", "n"], ["y"], name="join"),
    ]
    proto = nets.proto(nodes, [nets.value("x", [1, 4])], [nets.value("y", [1, 4])], domains=["ai.onnx.contrib"])
    refused(tmp_path, proto, r"does not know NegPos of domain ai.onnx.contrib \(node parts\)")
    found = built(tmp_path, proto, custom_ops=library)
    assert found.manifest["run"]["custom_operators"] == {
        "names": ["ai.onnx.contrib:NegPos"],
        "libraries": [library.name],
    }
    assert not list(found.root.rglob("*.so"))
    assert f"needs the operators ai.onnx.contrib:NegPos from a library like {library.name}" in warnings(found)
    assert bundle.verify(found.root, custom_ops=library)["ok"]
    runner = importlib.import_module("runtime_bench.runners.onnxruntime")
    loaded = runner.load(str(artifact(found)), {"custom_ops": str(library)})
    np.testing.assert_array_equal(loaded.infer({"x": np.float32([[1, -1, 2, 0]])})["y"], [[1, 0, 2, 0]])
    with pytest.raises(VerificationError, match="does not run"):
        bundle.verify(found.root)


def test_in10_a_library_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lib.so").write_bytes(b"\x7fELF not really")
    refused(tmp_path, nets.plugin("acme"), "cannot use the custom operators", custom_ops=tmp_path / "lib.so")
    refused(tmp_path, nets.plugin("acme"), "is not there", custom_ops=tmp_path / "none.so")


def test_a_bundle_cannot_name_a_library_to_load() -> None:
    from runtime_bench import manifest

    assert "custom_ops" in manifest.OURS


# IN11


def test_in11_refused_or_forced(tmp_path: Path) -> None:
    error = refused(tmp_path, nets.training(), r"captured in training mode: live Dropout \(drop\)")
    assert error.remedy is not None
    assert "--force-eval" in error.remedy
    refused(tmp_path, nets.training(use="running_mean"), "uses its batch statistics", force_eval=True)
    found = built(tmp_path, nets.training(), force_eval=True)
    assert "--force-eval: 1 live Dropout switched off (drop)" in warnings(found)
    assert (
        "--force-eval: 1 BatchNormalization set to the stored statistics (norm)"
        in (found.root / "report.md").read_text()
    )


def test_in11_two_runs_that_differ_are_found(tmp_path: Path) -> None:
    proto = nets.proto(
        [nets.node("Dropout", ["x", "", "mode"], ["y"], name="drop")],
        [nets.value("x", [1, 64]), nets.value("mode", [], TensorProto.BOOL)],
        [nets.value("y", [1, 64])],
    )
    calib = nets.calibration(tmp_path / "c.npz", x=rand(0, 8, 64), mode=np.ones(8, bool))
    refused(tmp_path, proto, "two runs on one input differ in y", calib)


# IN12


def hadamard(size: int) -> np.ndarray:
    found = np.ones((1, 1))
    while found.shape[0] < size:
        found = np.block([[found, found], [found, -found]])
    return found


@pytest.mark.parametrize(("through", "target"), [("transpose", "raspberry-pi-5"), ("gemm", "x86-avx512-vnni")])
def test_in12_a_tied_table_is_stored_once(through: str, target: str, tmp_path: Path) -> None:
    rng, size = np.random.default_rng(111), 64
    arrays = {
        "table": (hadamard(size) * 0.25 + rng.normal(size=(size, size)) * 0.01).astype(np.float32),
        "lin": (np.eye(size) + rng.normal(size=(size, size)) * 0.02).astype(np.float32),
        "twenty": np.float32(20),
        "to2d": np.array([-1, size], np.int64),
    }
    nodes = [
        nets.node("Gather", ["table", "ids"], ["e"], name="embed", axis=0),
        nets.node("MatMul", ["e", "lin"], ["h1"], name="lin_first"),
        nets.node("Mul", ["h1", "twenty"], ["h1s"], name="grow"),
        nets.node("MatMul", ["h1s", "lin"], ["h2"], name="lin_second"),
    ]
    if through == "gemm":
        nodes += [
            nets.node("Reshape", ["h2", "to2d"], ["h2d"], name="to_2d"),
            nets.node("Gemm", ["h2d", "table"], ["logits"], name="lm_head", transB=1),
        ]
    else:
        nodes += [
            nets.node("Transpose", ["table"], ["table_t"], name="tie", perm=[1, 0]),
            nets.node("MatMul", ["h2", "table_t"], ["logits"], name="lm_head"),
        ]
    shape = ["T", size] if through == "gemm" else ["N", "S", size]
    proto = nets.proto(nodes, [nets.value("ids", ["N", "S"], TensorProto.INT64)], [nets.value("logits", shape)], arrays)
    ids = rng.integers(0, size, (2, 7))
    calib = np.concatenate([np.arange(size), rng.integers(0, size, 48)]).reshape(16, 7)
    found = built(tmp_path, proto, nets.calibration(tmp_path / "c.npz", ids=calib), target=target)
    assert found.manifest["artifacts"][0]["precision"] == "int8"
    assert artifact(found).stat().st_size <= 0.4 * (tmp_path / "net.onnx").stat().st_size
    expected = Interpreter(tmp_path / "net.onnx").run({"ids": ids})["logits"]
    logits = Interpreter(artifact(found)).run({"ids": ids})["logits"]
    assert rms(expected, logits) <= 0.06
    np.testing.assert_array_equal(logits.reshape(-1, size).argmax(-1), ids.ravel())
    large = [
        (t.data_type, list(t.dims)) for t in onnx.load(artifact(found)).graph.initializer if len(t.raw_data) > 1024
    ]
    assert large == [(TensorProto.INT8, [size, size])] * 2
    fallback = onnx.load(found.root / found.manifest["artifacts"][1]["path"])
    assert sum(list(t.dims) == [size, size] for t in fallback.graph.initializer) == 2, "no transposed copy in float"
