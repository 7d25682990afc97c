"""What the tables say about single operators, against what the installed runtimes do with them."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from edgeopt.backends.onnxruntime import kernels
from edgeopt.backends.onnxruntime.judging import judge
from edgeopt.backends.openvino import operators
from edgeopt.backends.stated import stated
from edgeopt.errors import ToolchainError
from edgeopt.interpreter import session_errors
from edgeopt.model import Model, Origin
from edgeopt.target import load_target

F, H, B, D = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE


def proto(
    op: str, kind: int, *, opset: int, inputs: int = 1, domain: str = "", **attributes: object
) -> onnx.ModelProto:
    """One node on tensors of 1 x 4 x 6 x 6."""
    names = [f"x{i}" for i in range(inputs)]
    node = helper.make_node(op, names, ["y"], name="the_node", domain=domain, **attributes)
    values = [helper.make_tensor_value_info(name, kind, [1, 4, 6, 6]) for name in names]
    graph = helper.make_graph([node], "g", values, [helper.make_tensor_value_info("y", kind, None)])
    imports = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def model(made: onnx.ModelProto) -> Model:
    origin = Origin(path=Path("x.onnx"), format="onnx", files=())
    return Model(ir=ir.serde.deserialize_model(made), origin=origin)


def loads(made: onnx.ModelProto) -> bool:
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    try:
        ort.InferenceSession(made.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    except session_errors():
        return False
    return True


CASES = [
    ("Add", 2, 14, (F, H, B, D), {}),
    ("Relu", 1, 14, (F, H, B, D), {}),
    ("Softmax", 1, 13, (F, H, B, D), {}),
    ("HardSwish", 1, 14, (F, H, D), {}),
    ("Mish", 1, 18, (F, H, D), {}),
    ("Elu", 1, 13, (F, H, D), {}),
    ("Conv", 2, 11, (F, H, D), {}),
    ("MaxPool", 1, 12, (F, H, D), {"kernel_shape": [2, 2]}),
    ("GlobalAveragePool", 1, 13, (F, H, D), {}),
    ("Selu", 1, 22, (F, H, B, D), {}),
    ("RegexFullMatch", 1, 20, (TensorProto.STRING,), {"pattern": "a"}),
    ("BitwiseNot", 1, 18, (TensorProto.INT32, TensorProto.UINT8), {}),
    ("Where", 3, 16, (TensorProto.BOOL,), {}),
    ("Cos", 1, 7, (F, H, D), {}),
    ("Det", 1, 11, (F, D), {}),
]


def test_table_and_runtime_say_the_same_of_every_case() -> None:
    """The table of the installed release against its sessions; both answers occur."""
    seen = set()
    for op, inputs, opset, kinds, attributes in CASES:
        for kind in kinds:
            made = proto(op, kind, opset=opset, inputs=inputs, **attributes)
            if op == "Where":
                made.graph.input[0].type.tensor_type.elem_type = TensorProto.BOOL
            found = kernels.missing(model(made), ort.__version__)
            assert (not found) == loads(made), (op, kind, found)
            seen.add(not found)
    assert seen == {True, False}


def test_the_installed_release_is_one_of_the_table() -> None:
    assert ort.__version__ in kernels.table()["releases"]


def test_bfloat16_is_refused_with_the_node_and_a_way_out() -> None:
    (one,) = kernels.missing(model(proto("Add", B, opset=14, inputs=2)), "1.17.0")
    assert (one.operator, one.opset, one.kind, one.nodes) == ("Add", 14, "bfloat16", ("the_node",))
    assert one.certain
    assert one.change == "Export the network in float32."


def test_a_release_that_has_it_later_is_named() -> None:
    """Kernels of opset 22 came after 1.19.2."""
    made = model(proto("Elu", F, opset=22))
    (old,) = kernels.missing(made, "1.19.2")
    assert "Update onnxruntime on the device to 1." in old.change
    named = old.change.split()[6]
    assert kernels.missing(made, named) == ()
    assert kernels.missing(made, "1.32.0") == ()


def test_a_release_between_two_is_judged_by_the_older() -> None:
    assert kernels.judged_by("1.19.0")[1] == "1.18.0"
    assert kernels.judged_by("1.16.3")[1] == "1.17.0"
    assert kernels.judged_by("1.99.0")[1] == kernels.table()["releases"][-1]


def test_operators_of_a_library_are_left_open() -> None:
    (one,) = kernels.missing(model(proto("Swirl", F, opset=17, domain="acme")), "1.17.0")
    assert (one.operator, one.certain) == ("acme:Swirl", False)


def test_batch_first_recurrence_is_refused_as_the_runtime_does() -> None:
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=2, layout=1)
    values = [helper.make_tensor_value_info(n, F, s) for n, s in (("x", [3, 5, 4]), ("w", [1, 8, 4]), ("r", [1, 8, 2]))]
    graph = helper.make_graph([node], "g", values, [helper.make_tensor_value_info("y", F, None)])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    assert len(kernels.missing(model(made), ort.__version__)) == 1
    assert not loads(made)
    made.graph.node[0].attribute[1].i = 0
    assert kernels.missing(model(made), ort.__version__) == ()
    assert loads(made)


def test_a_part_of_the_heads_is_turned_by_newer_releases_alone() -> None:
    shapes = {"x": [2, 4, 3, 8], "c": [50, 2], "s": [50, 2]}
    values = [helper.make_tensor_value_info(name, F, shape) for name, shape in shapes.items()]
    values.append(helper.make_tensor_value_info("p", TensorProto.INT64, [2, 3]))
    for given, runs in (({}, True), ({"rotary_embedding_dim": 4}, False)):
        node = helper.make_node("RotaryEmbedding", ["x", "c", "s", "p"], ["y"], **given)
        graph = helper.make_graph([node], "g", values, [helper.make_tensor_value_info("y", F, None)])
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
        assert (kernels.missing(model(made), "1.23.2") == ()) is runs
        assert kernels.missing(model(made), "1.32.0") == ()


def test_a_node_in_a_branch_is_seen() -> None:
    inner = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["b"], name="deep")],
        "branch",
        [],
        [helper.make_tensor_value_info("b", B, [2])],
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    values = [helper.make_tensor_value_info("c", TensorProto.BOOL, []), helper.make_tensor_value_info("x", B, [2])]
    graph = helper.make_graph([node], "g", values, [helper.make_tensor_value_info("y", B, [2])])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = kernels.missing(model(made), "1.17.0")
    assert [(one.operator, one.kind, one.nodes) for one in found] == [("Add", "bfloat16", ("deep", "deep"))]


def test_judge_says_what_reading_the_file_needs() -> None:
    """GridSample came with opset 16, and the first board reads 13."""
    made = proto("GridSample", F, opset=16, inputs=2)
    (one,) = judge(model(made), load_target("jetson-nano"))
    assert one.operator == ""
    assert one.certain
    assert "reads up to 13" in one.why
    assert "Update onnxruntime on the device" in one.change
    assert judge(model(made), load_target("raspberry-pi-5")) == ()


def test_lower_refuses_what_the_release_has_no_kernel_for(tmp_path: Path) -> None:
    """The host loads it, the device does not: no file."""
    from edgeopt.backends import onnxruntime as backend

    made = proto("GreaterOrEqual", TensorProto.INT16, opset=16, inputs=2)
    made.graph.output[0].type.tensor_type.elem_type = TensorProto.BOOL
    assert loads(made)
    with pytest.raises(ToolchainError, match="does not run GreaterOrEqual.*the_node"):
        backend.lower(model(made), load_target("raspberry-pi-5"), tmp_path / "m.onnx", precision="float32")
    assert list(tmp_path.iterdir()) == []


def test_openvino_table_and_importer_say_the_same(tmp_path: Path) -> None:
    ov = pytest.importorskip("openvino")
    seen = set()
    for op, inputs, opset, kind, domain in (
        ("Add", 2, 14, F, ""),
        ("Gelu", 1, 1, F, "com.microsoft"),
        ("QAttention", 1, 1, F, "com.microsoft"),
        ("DeformConv", 3, 19, F, ""),
        ("Mish", 1, 18, H, ""),
        ("Celu", 1, 12, F, ""),
        ("RegexFullMatch", 1, 20, TensorProto.STRING, ""),
    ):
        path = tmp_path / f"{op}.onnx"
        made = proto(op, kind, opset=max(opset, 13), inputs=inputs, domain=domain)
        onnx.save(made, path)
        core = ov.Core()
        try:
            core.compile_model(core.read_model(str(path)), "CPU")
            runs = True
        except RuntimeError:
            runs = False
        found = operators.missing(model(made))
        assert (not found) == runs, (op, found)
        seen.add(runs)
    assert seen == {True, False}


def test_what_is_written_about_tensorrt_is_never_certain() -> None:
    made = model(proto("DynamicQuantizeLinear", F, opset=17))
    found = stated(made, "tensorrt", "8.2")
    assert [one.operator for one in found] == ["DynamicQuantizeLinear", ""]
    assert not any(one.certain for one in found)
    assert stated(made, "litert", None)[-1].why == "this version of edgeopt does not build for litert"


def test_a_wrong_entry_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted error: without the rule on float16 the comparison above fails."""
    monkeypatch.setattr(kernels, "_runs", kernels._has_kernel)
    made = proto("Softmax", H, opset=13)
    assert loads(made)
    assert kernels.missing(model(made), ort.__version__) != ()
