"""Q13: what float16 cannot hold stays in float32, with its reason; the rest is half the bytes and within 1 %."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeopt.backends import onnxruntime as backend
from edgeopt.errors import ModelError, QualityError, ToolchainError
from edgeopt.interpreter import Feeds, Interpreter
from edgeopt.model import Model, node_key, save
from edgeopt.quantize import QuantizedModel, calibrate, half, half_graph, half_rules
from edgeopt.quantize.half import error_of, to_half
from edgeopt.target import Int8Scheme, load_target

from . import nets

ARM, X86 = load_target("raspberry-pi-5"), load_target("x86-avx2")
Samples = Callable[[], Iterable[Feeds]]


def op(kind: str, sources: list[str], result: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(kind, sources, [result], name=result, **attributes)


def feeding(*samples: Feeds) -> Samples:
    return lambda: iter(samples)


def noise(*shape: int, scale: float = 1.0, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def checked(model: Model, samples: Samples, folder: Path, seen: Samples | None = None, **how: object) -> QuantizedModel:
    """Convert (``seen`` calibrates), load what is written with full checks, and compare on ``samples``."""
    made = to_half(model, "float16", ARM, seen or samples, **how)  # type: ignore[arg-type]
    path = folder / "half.onnx"
    save(made.model, path)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    assert [(s.name, s.dtype, s.shape) for s in made.model.inputs] == [(s.name, s.dtype, s.shape) for s in model.inputs]
    assert [(s.name, s.dtype) for s in made.model.outputs] == [(s.name, s.dtype) for s in model.outputs]
    for feeds in samples():
        for test in (Interpreter(path), Interpreter(half.rounded(made.model))):
            expected, got = Interpreter(model).run(feeds), test.run(feeds)
            for name, array in expected.items():
                assert np.isfinite(got[name][np.isfinite(array)]).all()
                assert error_of(array, got[name]) <= 1e-2, name
    return made


def blindly(model: Model, feeds: Feeds) -> float:
    """The worst output error when everything is converted: each trap has to be one."""
    made = half_graph.write(model, {}, lambda node: False, interface=False)
    expected, got = Interpreter(model).run(feeds), Interpreter(half.rounded(made)).run(feeds)
    return max(error_of(array, got[name]) for name, array in expected.items())


def types(made: QuantizedModel) -> dict[str, str]:
    return {node_key(n): n.outputs[0].dtype.name for n in made.model.nodes() if n.outputs[0].dtype is not None}


def normalized(eps: float) -> Model:
    """A LayerNormalization spelled out, then a Conv-like MatMul."""
    nodes = [
        op("ReduceMean", ["x"], "mean", axes=[-1]),
        op("Sub", ["x", "mean"], "centred"),
        op("Pow", ["centred", "two"], "squared"),
        op("ReduceMean", ["squared"], "variance", axes=[-1]),
        op("Add", ["variance", "eps"], "guarded"),
        op("Sqrt", ["guarded"], "deviation"),
        op("Div", ["centred", "deviation"], "normal"),
        op("MatMul", ["normal", "w"], "y"),
    ]
    arrays = {"two": np.array(2, np.float32), "eps": np.array(eps, np.float32), "w": nets.normal(1, 64, 16, fan=64)}
    return nets.make(nodes, [("x", ["N", 64])], [("y", ["N", 16])], arrays)


def test_q13a_resize_keeps_float_scales_and_an_empty_region(tmp_path: Path) -> None:
    nodes = [
        op("Conv", ["x", "w"], "c"),
        op("Resize", ["c", "roi", "scales"], "r", mode="linear"),
        op("Conv", ["r", "v"], "y"),
    ]
    arrays = {
        "w": nets.normal(1, 8, 3, 3, 3),
        "v": nets.normal(2, 4, 8, 1, 1),
        "roi": np.zeros(0, np.float32),
        "scales": np.float32([1, 1, 2, 2]),
    }
    model = nets.make(nodes, [("x", [1, 3, 8, 8])], [("y", [1, 4, 12, 12])], arrays)
    made = checked(model, feeding({"x": noise(1, 3, 8, 8)}), tmp_path)
    assert types(made)["r"] == "FLOAT16"
    assert {v.dtype for n in made.model.graph if n.op_type == "Resize" for v in n.inputs[1:] if v is not None} == {
        ir.DataType.FLOAT
    }
    assert set(made.notes) == set()


@pytest.mark.parametrize("calibrated", [True, False])
def test_q13b_a_variance_of_large_values_and_a_tiny_epsilon(calibrated: bool, tmp_path: Path) -> None:
    model = normalized(1e-12)
    constant = np.full((4, 64), 400, np.float32)  # variance 0: only the epsilon is there
    mixed = np.concatenate([noise(4, 64, scale=100) + 400, constant]).astype(np.float32)
    assert blindly(model, {"x": mixed}) > 0.1
    large = feeding({"x": noise(4, 64, scale=300)})
    if calibrated:
        made = checked(model, feeding({"x": mixed}), tmp_path, seen=large)
    else:
        made = to_half(model, "float16", ARM, None)
        got = Interpreter(half.rounded(made.model)).run({"x": mixed})["y"]
        assert error_of(Interpreter(model).run({"x": mixed})["y"], got) <= 1e-2
    for key in ("squared", "guarded", "deviation", "normal"):
        assert key in made.notes, key
    assert "epsilon" in made.notes["deviation"]
    assert "y" not in made.notes


@pytest.mark.parametrize("calibrated", [True, False])
def test_q13c_a_long_sum(calibrated: bool, tmp_path: Path) -> None:
    arrays = {"w": np.full((4096, 4), 8, np.float32), "v": np.full((4, 4), 1 / 262144, np.float32)}
    nodes = [op("MatMul", ["x", "w"], "long"), op("MatMul", ["long", "v"], "y")]
    model = nets.make(nodes, [("x", ["N", 4096])], [("y", ["N", 4])], arrays)
    feeds = {"x": np.full((2, 4096), 8, np.float32)}
    assert blindly(model, feeds) > 0.1
    if calibrated:
        made = checked(model, feeding(feeds), tmp_path)
    else:
        made = to_half(model, "float16", ARM, None)
        assert (
            error_of(Interpreter(model).run(feeds)["y"], Interpreter(half.rounded(made.model)).run(feeds)["y"]) <= 1e-2
        )
    assert "long" in made.notes
    weights = [v for v in made.model.graph.initializers.values() if v.shape is not None and v.shape[0] == 4096]
    assert [v.dtype for v in weights] == [ir.DataType.FLOAT16]  # stored in half the bytes all the same


def test_q13d_a_huge_constant_times_zero(tmp_path: Path) -> None:
    nodes = [op("Sub", ["x", "x"], "zero"), op("Mul", ["zero", "huge"], "still"), op("Add", ["still", "x"], "s"),
             op("MatMul", ["s", "w"], "y")]  # fmt: skip
    arrays = {"huge": np.array(1e30, np.float32), "w": nets.normal(1, 32, 8, fan=32)}
    model = nets.make(nodes, [("x", ["N", 32])], [("y", ["N", 8])], arrays)
    feeds = {"x": noise(2, 32)}
    assert blindly(model, feeds) == np.inf
    made = checked(model, feeding(feeds), tmp_path)
    assert "1e+30" in made.notes["still"]
    assert set(made.notes) == {"still"}


def test_q13e_a_model_that_is_half_already() -> None:
    made = to_half(nets.head(), "float16", ARM, None, interface=True)
    assert {s.dtype for s in (*made.model.inputs, *made.model.outputs)} == {"float16"}
    scheme = Int8Scheme(activation="uint8")
    data = [{"images": np.ones((1, 3, 10, 10), np.float16)}]
    assert calibrate(made.model, backend.TABLE, scheme, iter(data)) is None
    typed = nets.make([op("Relu", ["x"], "y")], [("x", [4])], [("y", [4])], {})
    for value in (*typed.graph.inputs, *typed.graph.outputs):
        value.type = ir.TensorType(ir.DataType.FLOAT16)
    with pytest.raises(ModelError, match="no float32 tensors"):
        to_half(typed, "float16", ARM, None)


def looping() -> Model:
    """A Loop whose body multiplies its state by an own and an outer weight; an If that reads what the Loop made."""
    state, weights = [4, 16], {"inner": nets.normal(3, 16, 16, fan=16), "outer": nets.normal(4, 16, 16, fan=16)}
    body = helper.make_graph(
        [
            op("MatMul", ["state", "inner"], "a"),
            op("Tanh", ["a"], "b"),
            op("MatMul", ["b", "outer"], "c"),
            op("Add", ["c", "h"], "next"),
            op("Identity", ["go"], "on"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, state),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, state),
            helper.make_tensor_value_info("b", TensorProto.FLOAT, state),
        ],
        [numpy_helper.from_array(weights["inner"], "inner")],
    )
    body.output[2].name = "b"
    branches = {}
    for name, kind in (("then_branch", "Relu"), ("else_branch", "Sigmoid")):
        branches[name] = helper.make_graph(
            [op("MatMul", ["last", "outer"], f"{name}_m"), op(kind, [f"{name}_m"], f"{name}_out")],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, state)],
        )
    nodes = [
        op("MatMul", ["x", "outer"], "h"),
        helper.make_node("Loop", ["count", "", "h"], ["last", "all"], name="loop", body=body),
        helper.make_node("If", ["flag"], ["picked"], name="if", **branches),
        op("MatMul", ["picked", "outer"], "y"),
        op("ReduceMean", ["all"], "mean", axes=[0], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, state),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, state),
            helper.make_tensor_value_info("last", TensorProto.FLOAT, state),
            helper.make_tensor_value_info("mean", TensorProto.FLOAT, state),
        ],
        [numpy_helper.from_array(weights["outer"], "outer"), numpy_helper.from_array(np.array(3, np.int64), "count")],
    )
    return nets.wrap(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def test_q13f_bodies_of_loop_and_if(tmp_path: Path) -> None:
    model = looping()
    samples = feeding(*({"x": noise(4, 16, seed=i), "flag": np.array(i % 2 == 0)} for i in range(4)))
    made = checked(model, samples, tmp_path)
    kinds = types(made)
    assert {made.notes["loop"], made.notes["if"]} == {"values enter and leave its bodies in float32"}
    assert kinds["a"] == kinds["c"] == kinds["then_branch_m"] == "FLOAT16"
    stored = [v for g in made.model.ir.graphs() for v in g.initializers.values() if len(v.shape or ()) == 2]
    assert {v.dtype for v in stored} == {ir.DataType.FLOAT16}
    assert len(stored) == 2


def attention() -> Model:
    """Scores with a mask of the smallest float32 added where a key is padding."""
    nodes = [
        op("MatMul", ["x", "wq"], "q"),
        op("MatMul", ["x", "wk"], "k"),
        op("Transpose", ["k"], "kt", perm=[0, 2, 1]),
        op("MatMul", ["q", "kt"], "scores"),
        op("Sub", ["one", "keep"], "drop"),
        op("Mul", ["drop", "least"], "mask"),
        op("Add", ["scores", "mask"], "masked"),
        op("Softmax", ["masked"], "weights", axis=-1),
        op("MatMul", ["weights", "x"], "y"),
    ]
    arrays = {
        "wq": nets.normal(1, 16, 16, fan=16),
        "wk": nets.normal(2, 16, 16, fan=16),
        "one": np.array(1, np.float32),
        "least": np.array(np.finfo(np.float32).min, np.float32),
    }
    inputs = [("x", [1, 6, 16]), ("keep", [1, 1, 6])]
    return nets.make(nodes, inputs, [("y", [1, 6, 16])], arrays)


def test_a_mask_that_no_sample_shows(tmp_path: Path) -> None:
    model = attention()
    full = {"x": noise(1, 6, 16), "keep": np.ones((1, 1, 6), np.float32)}
    padded = {"x": noise(1, 6, 16, seed=1), "keep": np.float32([[[1, 1, 1, 0, 0, 0]]])}
    nothing = {"x": noise(1, 6, 16, seed=2), "keep": np.zeros((1, 1, 6), np.float32)}
    assert blindly(model, nothing) > 0.1
    made = checked(model, feeding(padded, nothing), tmp_path, seen=feeding(full))
    assert {"mask", "masked", "weights"} <= set(made.notes)
    assert types(made)["scores"] == types(made)["q"] == "FLOAT16"


def test_an_excluded_node_is_left_alone(tmp_path: Path) -> None:
    model = nets.head()
    made = checked(model, feeding({"images": noise(1, 3, 10, 10)}), tmp_path, exclude={"stem"})
    assert made.notes == {"stem": "excluded by request"}
    assert made.model.graph.initializers["wf"].dtype == ir.DataType.FLOAT
    assert types(made)["stem"] == "FLOAT"


def test_a_trial_sends_what_overflows_back_to_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranges say nothing here: the comparison alone has to find the operator."""
    nodes = [op("MatMul", ["x", "w"], "a"), op("Mul", ["a", "a"], "b"), op("Sqrt", ["b"], "c"), op("Relu", ["c"], "y")]
    model = nets.make(nodes, [("x", [2, 8])], [("y", [2, 8])], {"w": np.eye(8, dtype=np.float32) * 1000})
    samples = feeding({"x": np.abs(noise(2, 8)) + 1})
    monkeypatch.setattr(half_rules, "_by_values", lambda node, seen: None)
    made = to_half(model, "float16", ARM, samples)
    assert made.notes["b"] == "it overflows on a sample"
    got = Interpreter(half.rounded(made.model)).run(next(iter(samples())))["y"]
    assert error_of(Interpreter(model).run(next(iter(samples())))["y"], got) <= 1e-2
    monkeypatch.setattr(half, "_culprits", lambda *found: {})
    with pytest.raises(QualityError, match="not finite"):
        to_half(model, "float16", ARM, samples)


def test_types_of_the_interface_on_request(tmp_path: Path) -> None:
    model = nets.outputs_in_the_middle()
    feeds = {"x": noise(1, 3, 10, 10)}
    made = to_half(model, "float16", ARM, feeding(feeds), interface=True)
    assert {s.dtype for s in (*made.model.inputs, *made.model.outputs)} == {"float16"}
    assert [s.name for s in made.model.outputs] == [s.name for s in model.outputs]
    got = Interpreter(half.rounded(made.model)).run({"x": feeds["x"].astype(np.float16)})
    for name, array in Interpreter(model).run(feeds).items():
        assert error_of(array, got[name]) <= 1e-2
    kept = checked(model, feeding(feeds), tmp_path)
    assert [s.name for s in kept.model.outputs] == [s.name for s in model.outputs]


def test_half_the_bytes_the_same_bytes_and_what_it_brings(tmp_path: Path) -> None:
    model = nets.make(
        [op("Conv", ["x", "w"], "c"), op("Relu", ["c"], "y")],
        [("x", [1, 16, 8, 8])],
        [("y", [1, 64, 6, 6])],
        {"w": nets.normal(1, 64, 16, 3, 3)},
    )
    samples = feeding({"x": noise(1, 16, 8, 8)})
    first, second = (to_half(model, "float16", target, samples) for target in (ARM, X86))
    save(model, tmp_path / "float.onnx")
    sizes = []
    for index, made in enumerate((first, second)):
        save(made.model, tmp_path / f"{index}.onnx")
        sizes.append((tmp_path / f"{index}.onnx").read_bytes())
        assert made.precision == "float16"
    assert sizes[0] == sizes[1]
    assert len(sizes[0]) < 0.52 * (tmp_path / "float.onnx").stat().st_size
    assert "for size, and for GPUs" in second.notes["float16"]
    assert "float16" not in first.notes


def test_bfloat16_is_refused_because_the_runtime_has_no_kernels() -> None:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    with pytest.raises(ToolchainError, match="Conv, Gemm, MatMul, Add, Relu"):
        to_half(nets.head(), "bfloat16", ARM, None)
    for kernel in state.get_all_opkernel_def():
        if kernel.provider == backend.PROVIDER and kernel.op_name in ("Conv", "Gemm", "MatMul", "Add", "Relu"):
            assert not any("tensor(bfloat16)" in taken for taken in kernel.type_constraints.values()), kernel.op_name


@pytest.mark.parametrize("seed", range(12))
def test_random_nets(seed: int, tmp_path: Path) -> None:
    from .test_random_nets import random_net

    model = random_net(seed)
    checked(model, feeding(*({"x": noise(1, 8, 6, 6, seed=i)} for i in range(3))), tmp_path)
