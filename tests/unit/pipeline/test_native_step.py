"""The step that puts the runtime's own graph in the place of a file, and what makes it stay away."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgeopt import pipeline
from edgeopt.backends import Artifact
from edgeopt.backends import onnxruntime as backend
from edgeopt.bundle import Bundle, verify
from edgeopt.errors import BundleError
from edgeopt.model import LAYOUTS, file_sha256
from edgeopt.pipeline import static
from edgeopt.pipeline.native import STEP
from tests.short_sets import NET

PORTABLE = 'schema = "edgeopt.target/1"\nname = "here"\ndescription = "x"\nextends = "host"\noptimized = "portable"\n'


def built(out: Path, target: str = "host", **changes: Any) -> Bundle:
    request = pipeline.Request(model=NET, target=target, out=out, effort="none", calib="random", **changes)
    return pipeline.build(request)


def step_of(found: Bundle) -> dict[str, Any]:
    return next(step for step in found.manifest["steps"] if step["name"] == STEP.name)


def damaged(artifact: Artifact, *args: Any) -> Artifact | str:
    """The runtime's graph with one weight tensor a hundredth larger."""
    made = REAL(artifact, *args)
    assert isinstance(made, Artifact)
    proto = onnx.load(made.path)
    tensor = max(proto.graph.initializer, key=lambda t: len(t.raw_data))
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(1.01), tensor.name))
    onnx.save(proto, made.path)
    return dataclasses.replace(made, bytes=made.path.stat().st_size, sha256=file_sha256(made.path))


REAL = backend.native


def test_a_bundle_for_this_machine_holds_the_runtimes_graph_and_says_how_to_load_it(tmp_path: Path) -> None:
    found = built(tmp_path / "out")
    step = step_of(found)
    assert (step["kind"], step["status"]) == ("lower", "kept")
    assert step["reason"].startswith("float32: the same outputs as the portable file, ")
    path = found.manifest["default_artifact"]
    native = found.manifest["run"]["native"]
    assert list(native) == [path]
    assert native[path]["options"] == {"optimizer": "off"}
    blocked = any(node.domain in LAYOUTS for node in onnx.load(found.root / path).graph.node)
    assert blocked == bool(native[path]["bound"])
    assert found.manifest["artifacts"][0]["built_on_device"] is True
    assert found.manifest["placement"]["note"]
    assert all(node["key"] for node in found.manifest["placement"]["nodes"])
    assert verify(found)["ok"]
    readme = (found.root / "README.md").read_text()
    assert "options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL" in readme
    assert ("holds the runtime's own graph and runs on" in readme) == blocked
    assert ('"onnxruntime==' in readme) == blocked
    report = (found.root / "report.md").read_text()
    assert "native-graph" in report
    assert ("float32 is bound to" in report) == blocked
    again = built(tmp_path / "again", locked=found.root)
    assert again.manifest["identity"] == found.manifest["identity"]


def test_outputs_that_differ_leave_the_portable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = built(tmp_path / "good")
    monkeypatch.setattr(backend, "native", damaged)
    found = built(tmp_path / "out")
    step = step_of(found)
    assert step["status"] == "rolled-back"
    assert "of their range from the portable file's, more than 1e-04 allowed" in step["reason"]
    assert "native" not in found.manifest["run"]
    assert found.manifest["artifacts"][0]["built_on_device"] is False
    assert not any(n.domain in LAYOUTS for n in onnx.load(found.root / found.manifest["default_artifact"]).graph.node)
    diary = [json.loads(line) for line in (found.root / "diary.jsonl").read_text().splitlines()]
    assert diary[-1]["step"]["name"] == STEP.name
    with pytest.raises(BundleError, match="the lock has native-graph as kept, and here it is rolled-back: float32"):
        built(tmp_path / "locked", locked=good.root)
    monkeypatch.setattr(backend, "native", REAL)
    replayed = built(tmp_path / "replayed", locked=found.root)
    assert step_of(replayed) == {**step, "reason": "as locked"}
    assert replayed.manifest["identity"] == found.manifest["identity"]


def test_a_reason_of_the_backend_is_kept_in_the_diary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "native", lambda *_: "it cannot be")
    assert step_of(built(tmp_path / "out"))["reason"] == "float32: it cannot be"
    monkeypatch.delattr(backend, "native")
    assert step_of(built(tmp_path / "other"))["reason"] == "float32: onnxruntime has no such file"


def test_portable_profiles_have_no_such_step(tmp_path: Path) -> None:
    profile = tmp_path / "here.toml"
    profile.write_text(PORTABLE)
    for index, target in enumerate((str(profile), "raspberry-pi-5")):
        found = built(tmp_path / str(index), target)
        assert all(step["name"] != STEP.name for step in found.manifest["steps"])
        assert "native" not in found.manifest["run"]
    names = {
        target: [
            planned.step.name for planned in static.plan(pipeline.Request(model=NET, target=target, out=tmp_path)).steps
        ]
        for target in ("host", str(profile))
    }
    assert names["host"] == [*names[str(profile)], STEP.name]
