"""The planner on a network of three matrices: what it tries, where it stops, what a lock replays, how it ends."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edgeopt.budget import Budget
from edgeopt.bundle import Bundle
from edgeopt.errors import BenchError, BudgetError, BundleError, QualityError
from edgeopt.pipeline import Request, build, planner
from edgeopt.pipeline.limits import Check
from edgeopt.plan import candidates
from edgeopt.target import load_target
from tests.conftest import ROOT
from tests.unit.findings import nets
from tests.unit.pipeline.builds import built
from tests.unit.pipeline.test_frontier import point

INT4 = 130_000
"""Bytes that only weights in four bits fit in: float takes 787 kB, int8 200 kB."""


def net() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    arrays = {f"w{i}": (rng.normal(size=(256, 256)) / 16).astype(np.float32) for i in range(3)}
    nodes = [
        nets.node("MatMul", ["x", "w0"], ["a"]),
        nets.node("Relu", ["a"], ["b"]),
        nets.node("MatMul", ["b", "w1"], ["c"]),
        nets.node("Relu", ["c"], ["d"]),
        nets.node("MatMul", ["d", "w2"], ["y"]),
    ]
    return nets.proto(nodes, [nets.value("x", [1, 256])], [nets.value("y", [1, 256])], arrays)


def both(folder: Path, more: str = "") -> str:
    """A profile with two runtimes."""
    text = (ROOT / "targets/x86-avx512-vnni.toml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith(("aliases", "name", "backends"))]
    lines[1:1] = ['name = "both"', 'backends = ["onnxruntime", "openvino"]']
    path = folder / "both.toml"
    path.write_text("\n".join(lines) + more)
    return str(path)


def tried(found: Bundle) -> dict[str, str]:
    return {s["name"]: s["status"] for s in found.manifest["steps"] if s["kind"] == "candidate"}


def chosen(found: Bundle) -> dict[str, Any]:
    (point,) = [p for p in found.manifest["frontier"]["points"] if p["chosen"]]
    return dict(point)


def test_other_runtimes_come_before_more_loss() -> None:
    found = [s.name for s in candidates(("a", "b"), reducible=True, known=False)]
    assert found[:4] == ["a auto", "b auto", "a float16", "b float16"]
    assert found[-2:] == ["a weights-int4", "b weights-int4"]
    assert "a dynamic" not in found
    assert [s.name for s in candidates(("a",), "static", reducible=True, known=True)] == ["a static"]
    assert [s.name for s in candidates(("a",), reducible=False, known=True)] == ["a auto"]


def test_a_build_that_nothing_presses_is_what_it_was(tmp_path: Path) -> None:
    found = built(tmp_path, net())
    assert tried(found) == {}
    assert chosen(found)["precision"] == "float32"
    assert (
        built(tmp_path, net(), budget=Budget(artifact_bytes=10**6)).manifest["identity"] == found.manifest["identity"]
    )


def test_it_goes_on_until_the_budget_holds_and_a_lock_replays_the_choice(tmp_path: Path) -> None:
    found = built(tmp_path, net(), budget=Budget(artifact_bytes=INT4))
    assert tried(found) == {
        "onnxruntime auto": "rolled-back",
        "onnxruntime float16": "rolled-back",
        "onnxruntime weights-int8": "rolled-back",
        "onnxruntime weights-int4": "kept",
    }
    point = chosen(found)
    assert point["precision"] == "int4-weights"
    assert found.manifest["default_artifact"] == "model/net.int4-weights.onnx"
    assert point["bytes"] == (found.root / found.manifest["default_artifact"]).stat().st_size <= INT4
    assert found.manifest["budget"]["checked"][0]["ok"] is True
    assert json.loads((found.root / "report.json").read_text())["frontier"] == found.manifest["frontier"]
    lock = (found.root / "decisions.lock").read_bytes()
    request = Request(model=tmp_path / "net.onnx", target="raspberry-pi-5", out=tmp_path / "again", effort="none")
    again = build(dataclasses.replace(request, locked=found.root))
    assert again.manifest["identity"] == found.manifest["identity"]
    assert (again.root / "decisions.lock").read_bytes() == lock
    assert len(again.manifest["frontier"]["points"]) == 2  # nothing else was made


def test_what_cannot_be_met_names_the_nearest_and_what_was_tried(tmp_path: Path) -> None:
    with pytest.raises(
        BudgetError, match=r"smallest size reached is 12\d,\d{3} bytes.*\(int4-weights\).*50,000"
    ) as caught:
        built(tmp_path, net(), budget=Budget(artifact_bytes=50_000))
    error = caught.value
    assert not (tmp_path / "out").exists()
    assert error.remedy is not None
    assert "Raise the budget (size=12" in error.remedy
    assert "--calib" in error.remedy
    rows = [row["step"] for row in error.diary if isinstance(row["step"], dict)]
    assert [row["name"] for row in rows if row["kind"] == "candidate"][-1] == "onnxruntime weights-int4"
    assert any(row["kind"] == "pass" for row in rows)
    json.dumps(list(error.diary), allow_nan=False)
    with pytest.raises(BudgetError, match="float32") as caught:
        built(tmp_path, net(), budget=Budget(artifact_bytes=50_000), quantize="none")
    assert "Without --quantize none" in str(caught.value.remedy)


def test_the_floor_is_held_on_the_way(tmp_path: Path) -> None:
    calib = tmp_path / "calib.npz"
    np.savez(calib, x=np.random.default_rng(1).normal(size=(32, 256)).astype(np.float32))
    limits = Budget(artifact_bytes=INT4, min_sqnr_db=30.0)
    with pytest.raises(QualityError, match="budget needs int4-weights.*SQNR"):
        built(tmp_path, net(), str(calib), budget=limits)
    found = built(tmp_path, net(), str(calib), objective="size", budget=Budget(min_sqnr_db=30.0))
    points = found.manifest["frontier"]["points"]
    refused = {p["precision"] for p in points if p["refused"]}
    assert "int4-weights" in refused
    assert chosen(found)["precision"] not in refused
    assert chosen(found)["bytes"] == min(p["bytes"] for p in points if not p["refused"])


@pytest.mark.parametrize(("objective", "precision"), [("size", "int4-weights"), ("quality", "float32")])
def test_an_objective_tries_everything_and_a_lock_replays_it(tmp_path: Path, objective: str, precision: str) -> None:
    found = built(tmp_path, net(), objective=objective)
    assert chosen(found)["precision"] == precision
    assert list(tried(found).values()).count("kept") == 1
    request = Request(model=tmp_path / "net.onnx", target="raspberry-pi-5", out=tmp_path / "again", effort="none")
    again = build(dataclasses.replace(request, locked=found.root, objective=objective))
    assert again.manifest["identity"] == found.manifest["identity"]
    assert (again.root / "decisions.lock").read_bytes() == (found.root / "decisions.lock").read_bytes()


def test_an_objective_without_its_figure_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="objective memory needs"):
        built(tmp_path, net(), objective="memory")


def test_all_runtimes_of_the_target_are_tried(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    target = both(tmp_path)
    found = built(tmp_path, net(), target=target, budget=Budget(artifact_bytes=INT4))
    assert (
        list(tried(found))
        == [
            f"{backend} {kind}"
            for kind in ("auto", "float16", "weights-int8", "weights-int4")
            for backend in ("onnxruntime", "openvino")
        ][:-1]
    )
    assert {p["backend"] for p in found.manifest["frontier"]["points"]} == {"onnxruntime", "openvino"}
    named = built(tmp_path, net(), target=target, backend="openvino", budget=Budget(artifact_bytes=400_000))
    assert list(tried(named)) == ["openvino auto", "openvino float16"]


def test_a_choice_of_another_runtime_is_told_and_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    target = both(tmp_path)
    monkeypatch.setattr("edgeopt.pipeline.planner._pointless", _only_openvino_after_the_first)
    found = built(tmp_path, net(), target=target, budget=Budget(artifact_bytes=400_000))
    assert found.manifest["backend"] == {
        "name": "openvino",
        "preferred": "onnxruntime",
        "reason": "onnxruntime does not hold the budget",
    }
    assert chosen(found)["backend"] == "openvino"
    request = Request(model=tmp_path / "net.onnx", target=target, out=tmp_path / "again", effort="none")
    again = build(dataclasses.replace(request, locked=found.root))
    assert again.manifest["identity"] == found.manifest["identity"]
    text = (found.root / "decisions.lock").read_text().replace('"backend":"openvino"', '"backend":"unknown"')
    (tmp_path / "bad.lock").write_text(text)
    with pytest.raises(BundleError, match="the lock chose unknown"):
        build(dataclasses.replace(request, out=tmp_path / "bad", locked=tmp_path / "bad.lock"))


def _only_openvino_after_the_first(walk: Any, backend: str, brief: Any) -> str | None:
    return None if backend == "openvino" else "planted"


def test_limits_of_the_profile_hold_where_the_build_states_none(tmp_path: Path) -> None:
    target = both(tmp_path, f'\n[budget]\nsize = "{INT4}B"\nmemory = "1GB"\n')
    assert load_target(target).budget == Budget(artifact_bytes=INT4, peak_bytes=10**9)
    found = built(tmp_path, net(), target=target, backend="onnxruntime")
    assert chosen(found)["precision"] == "int4-weights"
    assert [c["name"] for c in found.manifest["budget"]["checked"]] == ["size"]  # nothing is measured here
    found = built(tmp_path, net(), target=target, backend="onnxruntime", budget=Budget(artifact_bytes=10**6))
    assert chosen(found)["precision"] == "float32"


def test_run_options_are_tried_where_memory_alone_is_missing() -> None:
    def over(limit: float, measured: float, name: str = "memory") -> Check:
        return Check(name=name, limit=limit, measured=measured, ok=measured <= limit)

    light, heavy = over(60e6, 50e6), over(45e6, 50e6)
    assert planner._too_heavy([point(checks=(light,))], None) is None
    assert planner._too_heavy([point(checks=(heavy,))], None) == point(checks=(heavy,))
    assert planner._too_heavy([point(checks=(heavy, over(1, 2, "size")))], None) is None
    assert planner._too_heavy([point(checks=(over(39e6, 50e6),))], None) is None  # the runtime alone takes 40 MB
    assert planner._too_heavy([point(checks=(heavy,), refused="bad")], None) is None
    assert planner._too_heavy([point(checks=(light,))], "memory") == point(checks=(light,))
    assert planner._too_heavy([point(checks=(heavy,), memory=None)], None) is None
