"""OpenVINO alone: what its plugin makes of every rule, its files, its options, and what it must not do."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeopt import bundle, loaders
from edgeopt.backends import onnxruntime, registry
from edgeopt.backends import openvino as backend
from edgeopt.backends.openvino import conversion, ir_file, readback, runtime
from edgeopt.comparing import now, sources
from edgeopt.errors import BundleError, ModelError, ToolchainError
from edgeopt.interpreter import Interpreter
from edgeopt.model import Model, save
from edgeopt.pipeline import Request, build
from edgeopt.pipeline.choose import choose_backend, settle_backend
from edgeopt.quantize import Choice, calibrate, quantize
from edgeopt.target import load_target
from runtime_bench import runners
from runtime_bench.errors import BenchFailure, RuntimeMissing
from runtime_bench.layers import Layer, from_layers
from tests.backends import networks
from tests.unit.quantize import nets

pytest.importorskip("openvino")

TARGET = load_target("intel-n100")
SIGNED_MATTERS = ("ConvTranspose",)


def decibel(expected: np.ndarray, got: np.ndarray) -> float:
    error = float(((expected.astype(np.float64) - got) ** 2).sum())
    return 10 * float(np.log10(float((expected.astype(np.float64) ** 2).sum()) / error)) if error else np.inf


@pytest.mark.parametrize("relu", [True, False], ids=["one-sided", "signed"])
@pytest.mark.parametrize("name", list(networks.CASES))
def test_what_the_table_promises_is_what_runs(name: str, relu: bool, tmp_path: Path) -> None:
    model, samples = networks.case(name, relu=relu), networks.samples()
    calibrated = calibrate(model, backend.TABLE, TARGET.int8, iter(samples))
    assert calibrated is not None
    quantized = quantize(calibrated, Choice())
    artifact = backend.lower(quantized.model, TARGET, tmp_path / "q.onnx", precision="int8")
    found = backend.fused(artifact.path, model, TARGET, quantized)
    assert found.mismatches == ()
    runs = {n.key: n.runs for n in found.nodes}
    promised = {str(node.name) for node in quantized.placement.int8}
    alone = name in SIGNED_MATTERS and not relu
    middle = {str(node.name) for node in networks.CASES[name][0]}
    assert promised >= (middle - {"m"} if alone else middle)
    assert runs["z"] == "int8"
    assert runs["m"] == ("float" if alone else runs["m"])
    weighted = {n.key for n in found.nodes if n.op in readback.WEIGHTED}
    assert {runs[key] for key in weighted & promised} == {"int8"}
    assert "float" not in {runs[key] for key in promised}
    feeds = samples[0]
    emulated = Interpreter(quantized.model).run(feeds)["y"]
    got, exact = backend.interpreter(artifact.path).run(feeds)["y"], Interpreter(model).run(feeds)["y"]
    assert decibel(exact, got) > decibel(exact, emulated) - 1.5, "the runtime rounds as the Q/DQ graph says"


def test_the_ir_holds_no_trace_of_the_build(tmp_path: Path) -> None:
    model = networks.case("Conv, bias", relu=True)
    calibrated = calibrate(model, backend.TABLE, TARGET.int8, iter(networks.samples()))
    assert calibrated is not None
    made = backend.lower(quantize(calibrated, Choice()).model, TARGET, tmp_path / "q.onnx", precision="int8")
    text = made.path.read_text()
    assert "rt_info" not in text
    assert runtime.version() not in text
    assert "@" not in text
    assert str(tmp_path) not in text
    net = ET.fromstring(text)
    named = [port.get("names") for port in net.iter("port") if port.get("names")]
    assert sorted(named) == ["x", "y"]
    layers = [layer.get("name") for layer in net.iter("layer")]
    assert len(set(layers)) == len(layers)
    kinds = [layer.get("type") for layer in net.iter("layer")]
    assert kinds.count("FakeQuantize") == 3
    assert kinds.count("Subtract") == 0, "symmetric weights have no zero point"
    assert made.data is not None
    sizes = [int(data.get("size", 0)) for data in net.iter("data") if data.get("element_type") == "i8"]
    assert sum(sizes) == 16 * 4 + 16 * 16 * 9 + 12 * 16


@pytest.mark.parametrize(
    ("kind", "bounds", "scale", "zero", "stays"),
    [
        ("Clip", (0.0, 6.0), 6 / 255, 0, False),
        ("Clip", (0.0, 6.0), 6.01 / 255, 0, False),  # 6 is still the last integer
        ("Clip", (0.0, 6.0), 6.02 / 255, 0, True),
        ("Clip", (-1.0, 1.0), 2.02 / 255, 128, True),  # the grid begins more than half a step below -1
        ("Clip", (-1.0, 1.0), 1.98 / 255, 128, False),
        ("Relu", (0.0, np.inf), 0.02, 0, False),
        ("Relu", (0.0, np.inf), 0.02, 3, True),
    ],
)
def test_a_clip_goes_where_saturation_does_the_same(
    kind: str, bounds: tuple[float, float], scale: float, zero: int, stays: bool, tmp_path: Path
) -> None:
    arrays = {
        "low": np.array(bounds[0], np.float32),
        "high": np.array(bounds[1], np.float32),
        "s": np.array(scale, np.float32),
        "z": np.array(zero, np.uint8),
    }
    clip = helper.make_node(kind, ["x", "low", "high"] if kind == "Clip" else ["x"], ["c"], name="c")
    pair = [networks.op("QuantizeLinear", ["c", "s", "z"], "q"), networks.op("DequantizeLinear", ["q", "s", "z"], "y")]
    model = networks.wrap([clip, *pair], arrays)
    made = backend.lower(model, TARGET, tmp_path / "q.onnx", precision="int8")
    kinds = {layer.get("type") for layer in ET.fromstring(made.path.read_text()).iter("layer")}
    assert bool(kinds & {"Clamp", "ReLU", "Minimum", "Maximum"}) is stays
    feeds = {"x": np.linspace(-8, 8, 4 * 8 * 8, dtype=np.float32).reshape(1, 4, 8, 8)}
    np.testing.assert_allclose(
        backend.interpreter(made.path).run(feeds)["y"], Interpreter(model).run(feeds)["y"], atol=1e-5
    )


def test_stored_weights_lie_in_rows(tmp_path: Path) -> None:
    model = networks.case("MatMul", relu=True)
    calibrated = calibrate(model, backend.TABLE, TARGET.int8, iter(networks.samples()))
    assert calibrated is not None
    made = backend.lower(quantize(calibrated, Choice()).model, TARGET, tmp_path / "q.onnx", precision="int8")
    kinds = [layer.kind for layer in readback.layers(runtime.compile_model(made.path))]
    assert "FullyConnected" in kinds
    assert "Transpose" not in kinds


def test_weights_alone_stay_small_in_the_file_and_in_memory(tmp_path: Path) -> None:
    """DequantizeLinear on weights alone, int8 by channel, and 4 bits in blocks: a float network from stored weights."""
    generator = np.random.default_rng(0)
    for bits, low, high, kind in ((8, -127, 127, TensorProto.INT8), (4, -8, 7, TensorProto.INT4)):
        stored = generator.integers(low, high + 1, (64, 32), dtype=np.int8)
        block = {"axis": 0, "block_size": 16} if bits == 4 else {"axis": 1}
        scale = generator.uniform(0.01, 0.02, (4, 32) if bits == 4 else (32,)).astype(np.float32)
        weight = helper.make_tensor("w", kind, [64, 32], stored.reshape(-1))
        graph = helper.make_graph(
            [
                helper.make_node("DequantizeLinear", ["w", "s"], ["real"], name="dq", **block),
                helper.make_node("MatMul", ["x", "real"], ["y"], name="m"),
            ],
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 32])],
            [weight, numpy_helper.from_array(scale, "s")],
        )
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        path = tmp_path / f"{bits}.onnx"
        onnx.save(proto, path)
        model = loaders.load(path)
        made = backend.lower(model, TARGET, tmp_path / f"w{bits}.onnx", precision=f"int{bits}-weights")
        assert made.data is not None
        assert made.data.bytes < 64 * 32 * bits // 8 + scale.nbytes + 64
        x = generator.standard_normal((3, 64)).astype(np.float32)
        spread = np.repeat(scale, 16, axis=0) if bits == 4 else scale
        expected = x.astype(np.float64) @ (stored.astype(np.float64) * spread)
        got = backend.interpreter(made.path).run({"x": x})["y"]
        assert np.abs(got - expected).max() < 1e-4 * np.abs(expected).max()
        assert backend.fused(made.path, model, TARGET, None).mismatches == ()


def test_a_zero_point_is_taken_off_stored_weights(tmp_path: Path) -> None:
    stored = np.arange(24, dtype=np.uint8).reshape(4, 6)
    scale, zero = np.float32([0.5, 1, 2, 0.25, 1, 3]), np.uint8([0, 7, 3, 1, 200, 9])
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["w", "s", "z"], ["real"], name="dq", axis=1),
            helper.make_node("MatMul", ["x", "real"], ["y"], name="m"),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 6])],
        [numpy_helper.from_array(a, n) for n, a in (("w", stored), ("s", scale), ("z", zero))],
    )
    path = tmp_path / "n.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    made = backend.lower(loaders.load(path), TARGET, tmp_path / "w.onnx", precision="int8-weights")
    x = np.random.default_rng(1).standard_normal((2, 4)).astype(np.float32)
    expected = x.astype(np.float64) @ ((stored.astype(np.float64) - zero) * scale)
    np.testing.assert_allclose(backend.interpreter(made.path).run({"x": x})["y"], expected, rtol=1e-4, atol=1e-3)


def test_what_it_cannot_take_is_refused_with_its_words(tmp_path: Path) -> None:
    node = helper.make_node("NoSuch", ["x"], ["y"], name="odd one", domain="com.example")
    graph = helper.make_graph(
        [node],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    path = tmp_path / "n.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    folder = tmp_path / "out"
    folder.mkdir()
    model = loaders.load(path)
    with pytest.raises(ModelError, match="OpenVINO .* cannot take the model: .*NoSuch") as caught:
        backend.lower(model, TARGET, folder / "n.onnx", precision="float32")
    assert "@" not in caught.value.message
    assert not list(folder.iterdir())
    first = choose_backend(TARGET)
    settled = settle_backend(first, TARGET, model)
    assert (settled.name, settled.preferred) == ("onnxruntime", "openvino")
    assert "NoSuch" in str(settled.reason)
    assert settle_backend(first, TARGET, networks.named()) is first
    with pytest.raises(ModelError, match="NoSuch"):
        settle_backend(first, TARGET, model, "openvino")


def test_operators_of_a_library_are_refused() -> None:
    model = networks.named()
    own = dataclasses.replace(model.origin, libraries=(Path("libown.so"),))
    with pytest.raises(ToolchainError, match=r"libown\.so are made for onnxruntime"):
        conversion.convert(Model(ir=model.ir, origin=own))


def test_float_is_float_and_the_runtime_is_pinned(tmp_path: Path) -> None:
    made = backend.lower(networks.named(), TARGET, tmp_path / "n.onnx", precision="float32")
    compiled = runtime.compile_model(made.path)
    ov = runtime.import_openvino()
    assert compiled.get_property("INFERENCE_PRECISION_HINT") == ov.Type.f32
    assert compiled.get_property("NUM_STREAMS") == 1
    assert compiled.get_property("INFERENCE_NUM_THREADS") == 1


def test_importing_it_tells_nobody() -> None:
    """Left alone, its import starts a thread that reports it, and leaves an identifier in the home folder."""
    checks = (
        "import sys, threading; before = threading.active_count(); {}; "
        "assert 'openvino' in sys.modules; assert threading.active_count() == before; "
        "assert not [m for m in sys.modules if m.startswith('openvino_telemetry')], 'telemetry'; "
        "assert 'openvino.tools.ovc.telemetry_stub' in sys.modules"
    )
    root = str(Path(__file__).parents[2])
    for call in (
        "from edgeopt.backends.openvino.runtime import import_openvino; import_openvino()",
        "from runtime_bench.runners import openvino as r; r.import_runtime()",
    ):
        subprocess.run([sys.executable, "-c", checks.format(call)], check=True, cwd=root, env={"PYTHONPATH": root})


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"session.qdqisint8allowed": "1"}, BenchFailure, 'and not with "session.qdqisint8allowed"'),
        ({"precision": "f8"}, BenchFailure, "one of f32, f16, bf16"),
        ({"provider": "GPU"}, RuntimeMissing, "its CPU plugin"),
        ({"threads": 0}, ValueError, "at least 1"),
    ],
)
def test_options_are_checked(options: dict[str, object], kind: type[Exception], words: str) -> None:
    runner = runners.get("openvino")
    with pytest.raises(kind, match=words):
        runner.load(runner.BASELINE, options)


def test_macs_of_every_kind_of_layer() -> None:
    def one(kind: str, *shapes: list[int] | None, precision: str = "u8") -> dict[str, object]:
        return from_layers([Layer(kind, precision, "", shapes[:-1], shapes[-1:])], "CPU")

    assert one("Convolution", [1, 4, 8, 8], [6, 4, 3, 3], [1, 6, 8, 8])["integer_macs"] == 6 * 64 * 36
    assert one("Convolution", [1, 4, 8, 8], [4, 1, 1, 3, 3], [1, 4, 8, 8])["integer_macs"] == 4 * 64 * 9
    assert one("Deconvolution", [1, 4, 8, 8], [4, 6, 2, 2], [1, 6, 16, 16])["integer_macs"] == 256 * 24
    assert one("FullyConnected", [2, 3, 8], [5, 8], [2, 3, 5])["integer_macs"] == 30 * 8
    assert one("MatMul", [2, 3, 8], [2, 8, 5], [2, 3, 5], precision="f32")["float_macs"] == 30 * 8
    open_shape = one("Convolution", None, [6, 4, 3, 3], None)
    assert (open_shape["macs"], open_shape["macs_reason"]) == (None, "the shapes of Convolution are open")
    assert one("RNNSeq", [1, 2], [1, 2])["macs_reason"] == "the MACs of RNNSeq are not counted"
    assert one("Reorder", [1, 2], [1, 2])["integer_nodes"] == 0


def test_releases_follow_from_the_operator_set(tmp_path: Path) -> None:
    assert [ir_file.oldest(n) for n in (1, 12, 13, 15, 99)] == ["2023.1.0", "2023.1.0", "2023.3.0", "2024.4.0", None]
    path = tmp_path / "n.xml"
    path.write_text('<net><layers><layer id="0" version="opset15"/><layer id="1" version="opset1"/></layers></net>')
    assert backend.minimum(path) == {"openvino": "2024.4.0", "opset": 15}


def test_without_it_the_next_backend_of_the_target_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_backend(TARGET).name == "openvino"
    assert choose_backend(TARGET, "onnxruntime").name == "onnxruntime"
    assert choose_backend(load_target("raspberry-pi-5"), "openvino").name == "openvino"
    monkeypatch.setattr(backend, "probe", lambda: "openvino does not import: no module")
    chosen = choose_backend(TARGET)
    assert (chosen.name, chosen.preferred) == ("onnxruntime", "openvino")
    assert chosen.reason == "openvino does not import: no module"
    with pytest.raises(ToolchainError, match="the backend openvino can") as caught:
        choose_backend(TARGET, "openvino")
    assert registry.INSTALL["openvino"] in str(caught.value.remedy)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> bundle.Bundle:
    folder = tmp_path_factory.mktemp("built")
    nodes = [networks.conv("x", "w0", "c"), networks.op("Relu", ["c"], "a"), networks.conv("a", "w1", "m")]
    arrays = {"w0": networks.weights(0, 64, 4, 3, 3), "w1": networks.weights(1, 64, 64, 3, 3)}
    onnx.save(_proto(networks.wrap([*nodes, networks.op("Neg", ["m"], "y")], arrays)), folder / "net.onnx")
    np.save(folder / "x.npy", np.concatenate([s["x"] for s in networks.samples(24)]))
    text = 'schema = "edgeopt.set/1"\nname = "noise"\ndescription = "x"\nkind = "arrays"\n[inputs.x]\nfile = "x.npy"\n'
    (folder / "calib.toml").write_text(text)
    request = Request(
        model=folder / "net.onnx",
        target="intel-n100",
        out=folder / "out",
        calib=str(folder / "calib.toml"),
        effort="none",
        quantize="static",
    )
    return build(request)


def _proto(model: Model) -> onnx.ModelProto:
    import onnx_ir as ir

    return ir.to_proto(model.ir)


def test_a_target_that_lists_it_gets_two_files(built: bundle.Bundle) -> None:
    manifest = built.manifest
    assert manifest["backend"] == {"name": "openvino", "preferred": "openvino", "reason": None}
    assert manifest["default_artifact"] == "model/net.int8.xml"
    assert {a["path"] for a in manifest["artifacts"]} == {"model/net.int8.xml", "model/net.float32.xml"}
    for artifact in manifest["artifacts"]:
        data = artifact["data"]
        assert data["path"] == artifact["path"].replace(".xml", ".bin")
        assert artifact["bytes"] == sum((built.root / p).stat().st_size for p in (artifact["path"], data["path"]))
    assert built.lock.toolchain["openvino"] == runtime.version()
    assert bundle.verify(built)["ok"]
    readme = (built.root / "README.md").read_text()
    assert "import openvino" in readme
    assert "pip install" in readme
    assert "onnxruntime" not in readme


def test_a_second_file_that_was_touched_or_named_elsewhere_is_refused(built: bundle.Bundle, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(built.root, copy)
    data = copy / "model" / "net.int8.bin"
    data.write_bytes(data.read_bytes()[:-1] + b"?")
    with pytest.raises(BundleError, match=r"net\.int8\.bin is damaged"):
        bundle.verify(copy)
    for path, words in (
        ("model/net.float32.bin", "not the file of that name beside it"),
        ("../x.bin", "leaves the bundle"),
    ):
        manifest = json.loads((built.root / "manifest.json").read_text())
        manifest["artifacts"][0]["data"]["path"] = path
        (copy / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(BundleError, match=words):
            bundle.read(copy)
    manifest = json.loads((built.root / "manifest.json").read_text())
    manifest["artifacts"][0]["data"]["sha256"] = "0" * 64
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match="two digests"):
        bundle.read(copy)


def test_an_interrupt_after_a_build_is_no_crash(built: bundle.Bundle, tmp_path: Path) -> None:
    """The plugin leaves the thread with a signal stack that it unmaps: the runner puts back the one before."""
    folder = built.root.parent
    program = f"""
import signal
from pathlib import Path
from edgeopt.pipeline import Request, build

build(Request(model=Path({str(folder / "net.onnx")!r}), out=Path({str(tmp_path / "out")!r}), target="intel-n100",
              calib={str(folder / "calib.toml")!r}, effort="none", quantize="static"))
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


def test_a_graph_is_simulated_where_onnxruntime_would_round_more() -> None:
    conv = helper.make_node("Conv", ["x", "w"], ["c"], name="conv")
    sigmoid = helper.make_node("Sigmoid", ["c"], ["y"], name="sigmoid")
    arrays = {"w": np.ones((1, 1, 1, 1), np.float32)}
    graph = nets.make([conv, sigmoid], [("x", [1, 1, 4, 4])], [("y", [1, 1, 4, 4])], arrays).graph
    both = list(graph)
    assert not backend.TABLE.simulates(graph, both)
    assert backend.TABLE.simulates(graph, both[:1])
    assert not onnxruntime.TABLE.simulates(graph, [])


def test_onnxruntime_shields_what_the_other_lists() -> None:
    assert backend.TABLE.rounded == set(onnxruntime.TABLE.shielded)


def test_compare_takes_an_ir_as_it_is(tmp_path: Path) -> None:
    import openvino

    conv = helper.make_node("Conv", ["x", "w"], ["y"], name="conv")
    made = nets.make([conv], [("x", [1, 1, 4, 4])], [("y", [1, 1, 4, 4])], {"w": np.ones((1, 1, 1, 1), np.float32)})
    save(made, tmp_path / "m.onnx")
    openvino.save_model(openvino.Core().read_model(tmp_path / "m.onnx"), tmp_path / "m.xml", compress_to_fp16=False)
    found = sources.open_artifact(sources.locate(tmp_path / "m.xml"))
    assert (found.runner, found.options, found.data) == ("openvino", None, tmp_path / "m.bin")
    specs = [str(spec) for spec in (*found.inputs, *found.outputs)]
    assert specs == ["x: float32[1, 1, 4, 4]", "y: float32[1, 1, 4, 4]"]
    bundled = dataclasses.replace(
        sources.open_artifact(sources.locate(tmp_path / "m.onnx")), options={"provider": "CPUExecutionProvider"}
    )
    taken: list[Any] = []

    def measure(subjects: list[Any], *_: object, **__: object) -> dict[str, Any]:
        taken.extend(subjects)
        return {}

    now.run_now(bundled, found, effort="quick", threads=1, measure=measure)
    assert [subject.options for subject in taken] == [{"provider": "CPUExecutionProvider"}, {}]
    with pytest.raises(ModelError, match="has the shapes that it was written with"):
        sources.open_artifact(sources.locate(tmp_path / "m.xml"), {"x": (1, 1, 4, 4)})
    (tmp_path / "m.bin").unlink()
    with pytest.raises(ModelError, match=r"m\.bin is missing"):
        sources.open_artifact(sources.locate(tmp_path / "m.xml"))
