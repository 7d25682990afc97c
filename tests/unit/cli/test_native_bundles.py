"""Commands on a bundle that holds the runtime's own graph, and on that graph alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest

from edgeopt import pipeline
from edgeopt.comparing import now, sources
from edgeopt.model import LAYOUTS
from runtime_bench.native import BLOCKS
from tests.short_sets import NET
from tests.unit.cli.conftest import Call
from tests.unit.runtime_bench.conftest import Bundle, sha256


@pytest.fixture(scope="module")
def _made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("native") / "bundle"
    pipeline.build(pipeline.Request(model=NET, target="host", out=root, effort="none", calib="random"))
    return root


@pytest.fixture
def root(_made: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "bundle"
    shutil.copytree(_made, copy)
    return copy


def rebound(root: Path, bound: Mapping[str, Any]) -> str:
    """The bundle, honestly sealed, with another binding; the path of the artifact."""
    bundle = Bundle(root)
    bundle.manifest = json.loads((root / "manifest.json").read_text())
    [(path, entry)] = bundle.manifest["run"]["native"].items()
    entry["bound"] = dict(bound)
    bundle.seal()
    records = (root / "RECORDS.sha256").read_text()
    listed = sorted({p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()})
    names = [n for n in listed if n not in ("RECORDS.sha256", *bundle.device_files())]
    bundle.write_list("RECORDS.sha256", {name: sha256(root / name) for name in names})
    assert (root / "RECORDS.sha256").read_text() != records
    return str(path)


OTHER = {"arch": "riscv64"}


@pytest.mark.parametrize("command", [["verify"], ["bench"], ["compare"]])
@pytest.mark.parametrize(
    ("bound", "says"),
    [
        (OTHER, "is built for riscv64 and computes wrong numbers elsewhere; this machine is"),
        ({"onnxruntime": "1.10.0"}, "holds operators inside onnxruntime 1.10.0 and runs in no other release; here is"),
    ],
)
def test_a_bundle_that_is_bound_elsewhere_ends_with_9_and_a_remedy(
    command: list[str], bound: Mapping[str, Any], says: str, call: Call, root: Path
) -> None:
    path = rebound(root, bound)
    more = [NET] if command == ["compare"] else []
    code, out, err = call(*command, root, *more)
    assert (code, out) == (9, "")
    assert f"{path} {says}" in err
    assert "Build it again on this machine, or for a named profile" in err
    assert "Copy the whole folder" not in err


def test_inspect_names_what_it_is_bound_to(call: Call, root: Path) -> None:
    path = rebound(root, {"arch": "x86_64", "block": 16, "onnxruntime": "1.32.0"})
    code, out, _ = call("inspect", root)
    assert code == 0
    assert f"{path} to x86_64 with avx512f (blocks of 16 channels), onnxruntime 1.32.0" in out
    rebound(root, {})
    assert "bound  " not in call("inspect", root)[1]


def test_only_the_artifact_is_run_without_the_optimizer(root: Path) -> None:
    a, b = (sources.open_artifact(sources.locate(path)) for path in (NET, root))
    seen: list[Any] = []

    def measure(subjects: Any, *_: Any, **__: Any) -> Mapping[str, Any]:
        seen.extend(subjects)
        return {}

    now.run_now(a, b, effort="quick", threads=1, measure=measure)
    assert [subject.options.get("optimizer") for subject in seen] == [None, "off"]
    assert (a.optimize, b.optimize) == (True, False)


def test_the_graph_alone_is_no_model_to_build_from(call: Call, root: Path, tmp_path: Path) -> None:
    path = root / json.loads((root / "manifest.json").read_text())["default_artifact"]
    if not any(node.domain in LAYOUTS for node in onnx.load(path).graph.node):
        assert not BLOCKS
        pytest.skip("no blocked convolutions on this kind of processor")
    copy = shutil.copy(path, tmp_path / "model.onnx")
    for command in (["build", "--target", "host", "-o", tmp_path / "out"], ["inspect"], ["bench"]):
        code, out, err = call(command[0], copy, *command[1:])
        assert (code, out) == (3, "")
        assert "a graph that onnxruntime optimized for one kind of processor: the node" in err
        assert "Give the model that it was made from" in err
    assert not (tmp_path / "out").exists()
