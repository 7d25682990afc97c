"""`edgeopt plan --target all`: every profile and backend, from tables; nothing is run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeopt.budget import Budget
from edgeopt.cli import group
from edgeopt.cli._run import run
from edgeopt.errors import ModelError
from edgeopt.pipeline import Request
from edgeopt.pipeline.survey import Survey, Verdict, survey

ZOO = Path.home() / ".cache" / "edgeopt" / "zoo" / "models"


def written(path: Path, *nodes: onnx.NodeProto, kind: int = TensorProto.FLOAT, batch: object = "N") -> Path:
    """x: batch x 3 x 16 x 16 through a 3 x 3 Conv to 8 channels, then ``nodes`` from "c" to "y"."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    w = np.random.default_rng(0).normal(size=(8, 3, 3, 3)).astype(dtype)
    conv = helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1])
    graph = helper.make_graph(
        [conv, *nodes],
        "g",
        [helper.make_tensor_value_info("x", kind, [batch, 3, 16, 16])],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(w, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def relu() -> onnx.NodeProto:
    return helper.make_node("Relu", ["c"], ["y"], name="last")


def asked(model: Path, **changes: object) -> Survey:
    return survey(dataclasses.replace(Request(model=model, target="all", out=Path("unused")), **changes))


def of(found: Survey, target: str, backend: str = "onnxruntime") -> Verdict:
    (one,) = [v for v in found.verdicts if (v.target, v.backend) == (target, backend)]
    return one


def test_a_small_network_runs_everywhere_that_is_built_for(tmp_path: Path) -> None:
    found = asked(written(tmp_path / "m.onnx", relu()))
    built = [v for v in found.verdicts if v.builds]
    assert len({v.target for v in found.verdicts}) >= 30
    assert all(v.runs for v in built), [v for v in built if not v.runs]
    assert {v.backend for v in built} == {"onnxruntime", "openvino"}
    others = [v for v in found.verdicts if not v.builds]
    assert others
    assert all(v.runs is None and v.missing for v in others)


def test_the_opset_that_edgeopt_lowers_is_told(tmp_path: Path) -> None:
    found = asked(written(tmp_path / "m.onnx", relu()))
    assert of(found, "jetson-nano").done == ("opset 17 to 13",)


def test_memory_is_at_least_what_the_arithmetic_says(tmp_path: Path) -> None:
    """Weights 8*3*3*3 floats; at the peak the input and the Conv's output are alive: (3 + 8) * 256 floats."""
    need = of(asked(written(tmp_path / "m.onnx", relu())), "raspberry-pi-5").needs[0]
    assert need.form == "float"
    assert need.weights == 216 * 4
    assert need.model is not None
    assert need.model >= (216 + 8 * 256) * 4
    assert need.model <= 8 * (216 + 11 * 256) * 4 + 2_000_000


def test_a_budget_that_no_form_is_within_is_named(tmp_path: Path) -> None:
    model = written(tmp_path / "m.onnx", relu())
    tight = of(asked(model, budget=Budget(artifact_bytes=100)), "raspberry-pi-5")
    assert tight.fits is False
    assert ("size", 100, "budget") in tight.limits
    assert of(asked(model, budget=Budget(peak_bytes=10**9)), "raspberry-pi-5").fits is True


def test_int8_is_named_where_only_it_fits(tmp_path: Path) -> None:
    model = written(tmp_path / "m.onnx", relu(), batch=1)
    needs = {need.form: need for need in of(asked(model), "raspberry-pi-5").needs}
    assert needs["int8"].weights < needs["float"].weights
    between = (needs["int8"].weights + needs["float"].weights) // 2
    found = of(asked(model, budget=Budget(artifact_bytes=between)), "raspberry-pi-5")
    assert found.fits is True
    assert "fits in int8, not in float" in found.done


def test_the_board_is_the_limit_where_nobody_states_one(tmp_path: Path) -> None:
    found = asked(written(tmp_path / "m.onnx", relu()))
    pi = of(found, "raspberry-pi-5")
    assert pi.limits == (("memory", 4_294_967_296, "the board has"),)
    assert pi.fits is True
    assert of(found, "x86-avx2").fits is None


def test_an_open_size_inside_leaves_memory_open_and_shape_closes_it(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    written(model, relu())
    made = onnx.load(model)
    made.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "H"
    onnx.save(made, model)
    found = asked(model)
    need = of(found, "raspberry-pi-5").needs[0]
    assert need.model is None
    assert of(found, "raspberry-pi-5").fits is None
    assert "H" in found.inputs[0]
    fixed = asked(model, shapes={"x": (1, 3, 16, 16)})
    assert of(fixed, "raspberry-pi-5").needs[0].model is not None
    over = asked(model, budget=Budget(peak_bytes=100))
    assert of(over, "raspberry-pi-5").fits is False  # the weights alone


def test_bfloat16_is_refused_by_name_and_node(tmp_path: Path) -> None:
    sin = helper.make_node("Erf", ["c"], ["y"], name="wave")
    found = asked(written(tmp_path / "m.onnx", sin, kind=TensorProto.BFLOAT16))
    verdict = of(found, "raspberry-pi-5")
    assert verdict.runs is False
    operators = {one.operator: one for one in verdict.missing if one.certain}
    assert "wave" in operators["Erf"].nodes
    assert operators["Erf"].change == "Export the network in float32."


def test_no_model_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    def refuse(*args: object, **given: object) -> None:
        raise AssertionError("a session was made")

    monkeypatch.setattr(onnxruntime, "InferenceSession", refuse)
    assert asked(written(tmp_path / "m.onnx", relu())).verdicts


def test_what_is_no_model_is_refused_as_ever(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"no")
    with pytest.raises(ModelError):
        asked(path)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def runs(*args: str | Path) -> tuple[int, str, str]:
        return run(group, [str(a) for a in args]), *capsys.readouterr()

    return runs


def test_command_prints_a_table_and_json(tmp_path: Path, call: Callable[..., tuple[int, str, str]]) -> None:
    model = written(tmp_path / "m.onnx", relu())
    code, out, _ = call("plan", model, "--target", "all")
    assert code == 0
    assert "raspberry-pi-5" in out
    assert "[1]" in out
    code, out, _ = call("plan", model, "--target", "all", "--json")
    assert code == 0
    found = json.loads(out)
    assert {v["runs"] for v in found["verdicts"]} == {True, None}
    code, out, _ = call("plan", model, "--target", "raspberry-pi-5", "--json")
    assert code == 0
    assert set(json.loads(out)) >= {"target", "backend", "before", "steps"}


def test_memory_is_predicted_for_other_shapes_of_an_input(
    tmp_path: Path, call: Callable[..., tuple[int, str, str]]
) -> None:
    model = written(tmp_path / "m.onnx", relu())
    asked = ("plan", model, "--target", "host", "--memory-at", "x=500x3x16x16")
    code, out, err = call(*asked, "--json")
    assert code == 0, err
    plain, large = json.loads(out)["memory"]
    assert (plain["shapes"], large["shapes"]) == ({}, {"x": [500, 3, 16, 16]})
    assert large["float"]["activations"] - plain["float"]["activations"] > 4_000_000
    assert plain["int8"] is None
    code, out, _ = call(*asked)
    assert code == 0
    assert "x=500x3x16x16" in out
    code, _, err = call("plan", model, "--target", "host", "--memory-at", "z=1")
    assert (code, "no input" in err) == (3, True)
    code, _, err = call("plan", model, "--target", "host", "--memory-at", "x")
    assert (code, "--memory-at" in err) == (2, True)
    assert call("plan", model, "--target", "all", "--memory-at", "x=1")[0] == 2


def test_a_project_gives_the_model_and_its_own_limits(
    tmp_path: Path, call: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings of single targets do not count: all of them are asked for."""
    written(tmp_path / "m.onnx", relu())
    text = 'schema = "edgeopt.project/1"\nmodel = "m.onnx"\n[budget]\nsize = "100B"\n'
    (tmp_path / "edgeopt.toml").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    code, out, err = call("plan", "--target", "all", "--json")
    assert code == 0, err
    assert {v["fits"] for v in json.loads(out)["verdicts"] if v["builds"]} == {False}


def test_build_does_not_take_all(tmp_path: Path, call: Callable[..., tuple[int, str, str]]) -> None:
    code, _, err = call("build", written(tmp_path / "m.onnx", relu()), "--target", "all", "-o", tmp_path / "out")
    assert code == 4
    assert "all" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not (ZOO / "squeezenet" / "model.onnx").is_file(), reason="the zoo is not here")
def test_a_network_of_the_zoo_runs_wherever_it_is_built_for() -> None:
    found = asked(ZOO / "squeezenet" / "model.onnx")
    assert all(v.runs for v in found.verdicts if v.builds)
