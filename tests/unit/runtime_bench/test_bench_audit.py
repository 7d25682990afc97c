"""B04: which provider each node ran on, in which type; from made-up profiles and from real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from runtime_bench import audit
from runtime_bench.errors import BenchFailure
from runtime_bench.runners import onnxruntime as runner
from tests.unit.runtime_bench.conftest import integer_model

CPU, CUDA, AZURE = "CPUExecutionProvider", "CUDAExecutionProvider", "AzureExecutionProvider"
Shape = tuple[str, list[int]]


def node(op: str, inputs: list[Shape], outputs: list[Shape], provider: str = CPU, name: str = "n") -> dict[str, Any]:
    """A node event as onnxruntime 1.32 writes it."""
    return {
        "cat": "Node",
        "name": f"{name}_kernel_time",
        "dur": 7,
        "args": {
            "op_name": op,
            "provider": provider,
            "node_index": "3",
            "input_type_shape": [{kind: shape} for kind, shape in inputs],
            "output_type_shape": [{kind: shape} for kind, shape in outputs],
        },
    }


CONV = node("Conv", [("float", [1, 3, 8, 8]), ("float", [4, 3, 3, 3]), ("float", [4])], [("float", [1, 4, 6, 6])])
CONV_MACS = 4 * 6 * 6 * 3 * 3 * 3


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "macs", "kind"),
    [
        ("Conv", [("float", [1, 8, 5, 5]), ("float", [8, 1, 3, 3])], [("float", [1, 8, 3, 3])], 8 * 9 * 9, "float"),
        (
            "Conv",
            [("float16", [2, 4, 9]), ("float16", [6, 2, 3])],
            [("float16", [2, 6, 7])],
            2 * 6 * 7 * 2 * 3,
            "float",
        ),
        (
            "QLinearConv",  # channels last
            [
                *(("uint8", [1, 10, 10, 3]), ("float", []), ("uint8", []), ("int8", [4, 3, 3, 3]), ("float", [4])),
                *(("int8", [4]), ("float", []), ("uint8", []), ("int32", [4])),
            ],
            [("uint8", [1, 8, 8, 4])],
            8 * 8 * 4 * 27,
            "integer",
        ),
        (
            "FusedConv",  # with an addend
            [("float", [1, 3, 8, 8]), ("float", [4, 3, 3, 3]), ("float", [4]), ("float", [1, 4, 6, 6])],
            [("float", [1, 4, 6, 6])],
            CONV_MACS,
            "float",
        ),
        (
            "ConvTranspose",
            [("float", [1, 6, 5, 5]), ("float", [6, 2, 4, 4])],
            [("float", [1, 2, 10, 10])],
            6 * 25 * 2 * 16,
            "float",
        ),
        (
            "ConvInteger",
            [("uint8", [1, 3, 8, 8]), ("int8", [4, 3, 3, 3])],
            [("int32", [1, 4, 6, 6])],
            CONV_MACS,
            "integer",
        ),
        ("MatMul", [("float", [2, 7, 16])], [("float", [2, 7, 10])], 2 * 7 * 10 * 16, "float"),
        ("MatMul", [("float", [16]), ("float", [16, 3])], [("float", [3])], 48, "float"),
        ("MatMulInteger", [("uint8", [7, 16]), ("int8", [16, 10])], [("int32", [7, 10])], 1120, "integer"),
        ("DynamicQuantizeMatMul", [("float", [7, 16])], [("float", [7, 10])], 1120, "integer"),
        ("MatMulNBits", [("float", [1, 64]), ("uint8", [32, 2, 16])], [("float", [1, 32])], 2048, "float"),
        ("Gemm", [("float", [1, 32]), ("float", [10])], [("float", [1, 10])], 320, "float"),
        ("Gemm", [("float", [32, 5]), ("float", [32, 10])], [("float", [5, 10])], 5 * 10 * 32, "float"),  # transA
        ("FusedMatMul", [("float", [2, 16, 7])], [("float", [2, 7, 10])], 2 * 7 * 10 * 16, "float"),  # transA
        ("QGemm", [("uint8", [1, 1280]), ("float", []), ("uint8", [])], [("float", [1, 1000])], 1280000, "integer"),
        ("QLinearConcat", [("float", []), ("uint8", []), ("uint8", [1, 2])], [("uint8", [1, 4])], 0, "integer"),
        ("Relu", [("float", [1, 4])], [("float", [1, 4])], 0, "float"),
        ("NhwcMaxPool", [("uint8", [1, 4, 4, 2])], [("uint8", [1, 2, 2, 2])], 0, "integer"),
        ("Transpose", [("uint8", [1, 4])], [("uint8", [4, 1])], 0, None),
        ("QuantizeLinear", [("float", [1, 4]), ("float", []), ("uint8", [])], [("uint8", [1, 4])], 0, None),
    ],
)
def test_macs_and_types_by_hand(
    op: str, inputs: list[Shape], outputs: list[Shape], macs: int, kind: str | None
) -> None:
    found = audit.from_profile([node(op, inputs, outputs)], CPU)
    assert (found["macs"], found["macs_reason"]) == ({CPU: macs}, None)
    assert (found["integer_nodes"], found["float_nodes"]) == (int(kind == "integer"), int(kind == "float"))
    assert (found["integer_macs"], found["float_macs"]) == (
        macs if kind == "integer" else 0,
        macs if kind == "float" else 0,
    )


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (node("Conv", [("float", [1, 3, 8, 8]), ("float", [4])], [("float", [1, 4, 6, 6])]), "lacks shapes of Conv"),
        # a packed weight is missing in the profile: the addend of the fusion must not be taken for it
        (
            node("FusedConv", [("float", [1, 3, 8, 8]), ("float", [1, 4, 6, 6])], [("float", [1, 4, 6, 6])]),
            "lacks shapes of FusedConv",
        ),
        (node("Conv", [], []), "lacks shapes of Conv"),
        (node("Gemm", [("float", [5])], [("float", [5, 10])]), "lacks shapes of Gemm"),
        (node("LSTM", [("float", [1, 2, 3])], [("float", [1, 1, 2, 3])]), "MACs of LSTM are not counted"),
    ],
)
def test_macs_that_cannot_be_told_have_a_reason(event: dict[str, Any], reason: str) -> None:
    found = audit.from_profile([event, node("Relu", [("float", [4])], [("float", [4])], name="r")], CPU)
    assert (found["macs"], found["integer_macs"], found["float_macs"]) == (None, None, None)
    assert reason in found["macs_reason"]
    assert found["nodes"] == 2


def test_old_profiles_without_shapes_and_foreign_events() -> None:
    bare = {"cat": "Node", "name": "c_kernel_time", "args": {"op_name": "Conv", "provider": CPU}}
    fence = {"cat": "Node", "name": "c_fence_before", "args": {"op_name": "Conv"}}
    session = {"cat": "Session", "name": "model_run", "args": {}}
    kernel = {"cat": "Kernel", "name": "gpu_kernel_time", "args": {"stream": "1"}}
    found = audit.from_profile([session, fence, bare, kernel, {}], CPU)
    assert (found["nodes"], found["providers"], found["macs"]) == (1, {CPU: 1}, None)
    assert audit.from_profile([], CPU)["nodes"] == 0


def test_a_node_in_a_loop_is_one_node_that_works_many_times() -> None:
    found = audit.from_profile([CONV, CONV, CONV], CPU)
    assert (found["nodes"], found["macs"]) == (1, {CPU: 3 * CONV_MACS})


def mixed() -> dict[str, Any]:
    """Asked for CUDA: one of two convolutions ran there, and a shape was computed on the CPU."""
    away = node("Conv", [("float", [1, 4, 6, 6]), ("float", [4, 4, 1, 1])], [("float", [1, 4, 6, 6])], CPU, "away")
    near = {**CONV, "args": {**CONV["args"], "provider": CUDA}}
    shape = node("Gather", [("int64", [4]), ("int64", [])], [("int64", [])], CPU, "shape")
    return audit.from_profile(
        [near, away, shape, node("Shape", [("float", [1, 4])], [("int64", [2])], CPU, "size")], CUDA
    )


def test_nodes_and_macs_outside_the_provider_that_was_asked_for() -> None:
    found = mixed()
    assert found["providers"] == {CUDA: 1, CPU: 3}
    assert found["outside"] == [{"op": "Conv", "provider": CPU, "count": 1, "macs": 576}]
    assert found["shape_nodes_outside"] == 2
    assert audit.outside_share(found) == (0.25, 576 / (576 + CONV_MACS))
    assert audit.main_provider(found) == CUDA
    with pytest.raises(
        BenchFailure, match=r"b: asked CUDA\S+, got CPU\S+: 1 of 4 nodes \(13 % of the MACs\) ran there: Conv;"
    ):
        audit.check("b", CUDA, found, allow_fallback=False)
    audit.check("b", CUDA, found, allow_fallback=True)


def test_shape_arithmetic_alone_is_no_fallback_but_nothing_on_the_provider_is() -> None:
    shape = node("Gather", [("int64", [4]), ("int64", [])], [("int64", [])], CPU, "shape")
    near = {**CONV, "args": {**CONV["args"], "provider": CUDA}}
    audit.check("b", CUDA, audit.from_profile([near, shape], CUDA), allow_fallback=False)
    with pytest.raises(BenchFailure, match=r"got CPUExecutionProvider: 1 of 1 nodes ran there"):
        audit.check("b", CUDA, audit.from_profile([shape], CUDA), allow_fallback=False)


def test_compiled_subgraphs_are_told_as_such() -> None:
    trt = "TensorrtExecutionProvider"
    engine = node(
        "TRTKernel_graph_g_1", [("float", [1, 3, 8, 8])], [("float", [1, 4])], trt, f"{trt}_TRTKernel_graph_g_1_0"
    )
    audit.check("b", trt, audit.from_profile([engine], trt), allow_fallback=False)
    nms = node("NonMaxSuppression", [("float", [1, 6, 4])], [("int64", [2, 3])], CPU, "nms")
    found = audit.from_profile([engine, nms], trt)
    assert found["opaque_nodes"] == 1
    assert (found["macs"], found["macs_reason"]) == (None, f"{trt} compiles subgraphs")
    assert found["outside"] == [{"op": "NonMaxSuppression", "provider": CPU, "count": 1, "macs": 0}]
    assert audit.main_provider(found) == trt
    assert audit.precision_error("int8", found) is None
    with pytest.raises(BenchFailure, match=r"1 of 2 nodes \(compiled subgraphs: 1\) ran there: NonMaxSuppression"):
        audit.check("b", trt, found, allow_fallback=False)


def test_what_cannot_be_told_is_believed_for_the_cpu_only() -> None:
    for asked in (CPU, "cpu", ""):
        audit.check("b", asked, {"reason": "no profile"}, allow_fallback=False)
    audit.check("b", CUDA, {"reason": "no profile"}, allow_fallback=True)
    with pytest.raises(BenchFailure, match=r"asked CUDA\S+, and what really ran cannot be told: no profile"):
        audit.check("b", CUDA, {"reason": "no profile"}, allow_fallback=False)
    assert audit.main_provider({"reason": "no profile"}) is None
    assert audit.precision_error("int8", {"reason": "no profile"}) is None


def test_int8_in_which_no_integer_kernel_ran() -> None:
    as_float = audit.from_profile([CONV, node("Relu", [("float", [4])], [("float", [4])], name="r")], CPU)
    assert audit.precision_error("int8", as_float) == (
        "int8 is claimed, and no integer kernel ran: all 2 nodes that compute did so in float"
    )
    assert audit.precision_error("float32", as_float) is None
    assert audit.precision_error(None, as_float) is None
    pool = node("MaxPool", [("uint8", [1, 4, 4, 4])], [("uint8", [1, 4, 2, 2])], name="p")
    assert "no multiplication ran on integers" in str(
        audit.precision_error("int8", audit.from_profile([CONV, pool], CPU))
    )
    gemm = node("QGemm", [("uint8", [1, 4])], [("uint8", [1, 2])], name="g")
    assert audit.precision_error("int8", audit.from_profile([CONV, gemm], CPU)) is None


def network(path: Path) -> Path:
    """Conv 3x3, depthwise Conv, ConvTranspose, pool, Gemm: float, with MACs that are easy to count."""
    rng = np.random.default_rng(2)
    shapes = {"w1": (16, 3, 3, 3), "w2": (16, 1, 3, 3), "w3": (16, 8, 2, 2), "w4": (10, 8)}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w2"], ["c"], group=16, pads=[1, 1, 1, 1]),
        helper.make_node("ConvTranspose", ["c", "w3"], ["d"], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("Gemm", ["f", "w4"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(rng.normal(size=s).astype(np.float32), name) for name, s in shapes.items()],
    )
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)]), str(path))
    return path


NETWORK_MACS = 16 * 144 * 27 + 16 * 144 * 9 + 16 * 144 * 8 * 4 + 8 * 10
FEEDS = {"x": np.ones((1, 3, 12, 12), np.float32)}


@pytest.mark.parametrize("level", ["all", "none"])
def test_b04_a_real_session_that_fell_back_in_silence(
    tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU wheel has an Azure provider that runs nothing; the session names it first all the same."""
    import onnxruntime

    if level == "none":
        monkeypatch.setattr(onnxruntime, "SessionOptions", unoptimized)
    path = str(network(tmp_path / "n.onnx"))
    options = {"provider": "azure", "threads": 1}
    assert runner.load(path, options).runtime["provider"] == AZURE
    found = runner.audit(path, options, FEEDS)
    assert found["asked"] == AZURE
    assert found["providers"] == {CPU: found["nodes"]}
    assert found["macs"] == {CPU: NETWORK_MACS}
    assert sum(entry["count"] for entry in found["outside"]) == found["nodes"]
    assert audit.main_provider(found) == CPU
    everything = (
        rf"asked {AZURE}, got {CPU}: {found['nodes']} of {found['nodes']} nodes \(100 % of the MACs\) ran there"
    )
    with pytest.raises(BenchFailure, match=everything):
        audit.check("float32", AZURE, found, allow_fallback=False)
    own = runner.audit(path, {"provider": "cpu", "threads": 1}, FEEDS)
    assert own["outside"] == []
    audit.check("float32", CPU, own, allow_fallback=False)


def unoptimized() -> Any:
    """Session options under which onnxruntime changes nothing in the graph: the MACs must be the same."""
    import onnxruntime.capi._pybind_state as state

    settings = state.SessionOptions()
    settings.graph_optimization_level = state.GraphOptimizationLevel.ORT_DISABLE_ALL
    return settings


def test_a_real_int8_model_and_one_that_is_none(tmp_path: Path) -> None:
    weights = np.random.default_rng(3).normal(size=(8, 5)).astype(np.float32)
    (tmp_path / "q.onnx").write_bytes(integer_model(weights))
    feeds = {"x": np.ones((1, 8), np.float32)}
    found = runner.audit(str(tmp_path / "q.onnx"), {}, feeds)
    assert (found["integer_nodes"] >= 1, found["integer_macs"], found["float_macs"]) == (True, 40, 0)
    assert audit.precision_error("int8", found) is None
    off = {"session.disable_quant_qdq": "1"}  # the runtime leaves the Q/DQ pairs as they are and multiplies in float
    slow = runner.audit(str(tmp_path / "q.onnx"), off, feeds)
    assert (slow["integer_macs"], slow["float_macs"]) == (0, 40)
    assert "no integer kernel ran" in str(audit.precision_error("int8", slow))


def test_the_profile_is_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch, here = tmp_path / "scratch", tmp_path / "here"
    scratch.mkdir()
    here.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    monkeypatch.chdir(here)
    runner.audit(str(network(tmp_path / "n.onnx")), {}, FEEDS)
    assert [*scratch.iterdir(), *here.iterdir()] == []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    assert "cannot be written" in runner.audit(str(tmp_path / "n.onnx"), {}, FEEDS)["reason"]
