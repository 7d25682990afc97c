"""A budget on the command line: what it may say, and how a build ends that cannot hold it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Call
from tests.unit.findings import nets
from tests.unit.pipeline.test_planner import net


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(nets.write(tmp_path / "net.onnx", net()))


def test_a_budget_that_nothing_holds_ends_with_5_the_shortfall_and_the_diary(
    call: Call, model: str, tmp_path: Path
) -> None:
    args = ("build", model, "-t", "raspberry-pi-5", "--effort", "none", "-o", str(tmp_path / "out"))
    code, out, err = call(*args, "--budget", "size=50KB", "--json")
    assert code == 5
    assert "error: over budget: the smallest size reached is 126,8" in err
    assert "Raise the budget (size=127kB) or take a smaller network." in err
    for name in ("onnxruntime auto", "onnxruntime weights-int4", "rolled-back"):
        assert name in err
    told = json.loads(out)
    assert told["error"].startswith("over budget")
    assert {row["step"]["kind"] for row in told["diary"]} >= {"pass", "candidate"}
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("args", [("--budget", "load=1ms"), ("--budget", "memory=1GB"), ("--objective", "latency")])
def test_figures_that_nobody_measures_are_refused_before_any_work(
    call: Call, model: str, args: tuple[str, str]
) -> None:
    code, _, err = call("build", model, "-t", "raspberry-pi-5", "--effort", "none", *args)
    assert code == 2
    assert "needs a measurement, and --effort none makes none" in err


def test_an_objective_is_taken(call: Call, model: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, _, err = call(
        "build", model, "-t", "raspberry-pi-5", "--effort", "none", "--objective", "size", "-o", str(out)
    )
    assert code == 0, err
    assert json.loads((out / "manifest.json").read_text())["default_artifact"] == "model/net.int4-weights.onnx"
