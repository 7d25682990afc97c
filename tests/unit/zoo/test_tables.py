"""scripts/zoo_builds and scripts/fusions: what they run, what counts as a failure, what the tables say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

SCRIPTS = str(Path(__file__).resolve().parents[3] / "scripts")


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SCRIPTS)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A zoo of one network: y = Relu(Identity(x) w), with sets."""
    from _zoo import sets

    folder = tmp_path / "models" / "magika"
    folder.mkdir(parents=True)
    weight = numpy_helper.from_array(np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32), "w")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Identity", ["x"], ["same"]),
            helper.make_node("MatMul", ["same", "w"], ["product"]),
            helper.make_node("Relu", ["product"], ["y"]),
        ],
        "g",
        [value("x", TensorProto.FLOAT, [1, 4])],
        [value("y", TensorProto.FLOAT, [1, 3])],
        [weight],
    )
    onnx.save(
        helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), folder / "model.onnx"
    )
    for name, seed in (("calib", 1), ("eval", 2)):
        np.save(folder / f"{name}.npy", np.random.default_rng(seed).normal(size=(20, 4)).astype(np.float32))
        inputs = {"x": {"file": f"{name}.npy"}}
        sets.describe(folder / f"{name}.toml", name=f"tiny-{name}", description="noise", inputs=inputs)
    sets.write_build(folder, ("model.onnx",))
    return folder.parent


def test_jobs_are_the_lines_of_build_txt_for_each_target(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from _zoo import builds

    jobs = list(builds.found_jobs(models, ["magika", "minilm"], ["host", "raspberry-pi-5"]))
    assert [(job.network, job.source, job.target) for job in jobs] == [
        ("magika", "model.onnx", "host"),
        ("magika", "model.onnx", "raspberry-pi-5"),
    ]
    assert jobs[0].arguments == ("model.onnx", "--calib", "calib.toml", "--eval", "eval.toml")
    assert "skipped: minilm is not in" in capsys.readouterr().err


def test_a_build_is_run_and_its_float_artifact_compared(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from _zoo import builds

    arguments = ["magika", "--cache", str(models.parent), "--target", "host", "--out", str(tmp_path / "out")]
    assert builds.main(arguments, "usage") == 0
    out = capsys.readouterr().out
    assert "3 -> 2" in out
    assert "remove-identity" in out
    assert "1 of 1 builds are good" in out
    bundle = tmp_path / "out" / "magika-model-onnx-host"
    (job,) = builds.found_jobs(models, ["magika"], ["host"])
    report = json.loads((bundle / "report.json").read_text(encoding="utf-8"))
    golden = next((bundle / "golden").glob("000.float32.0.npy"))
    np.save(golden, np.load(golden) + 0.1)
    error, allowed = builds.float_error(job, bundle, report)
    assert error > 10 * allowed


def test_a_refused_build_is_a_failure_with_its_reason(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from _zoo import builds

    (models / "magika" / "model.onnx").write_bytes(b"not a model")
    assert builds.main(["magika", "--cache", str(models.parent), "--target", "host"], "usage") == 1
    out = capsys.readouterr().out
    assert "error: model.onnx" in out
    assert "0 of 1 builds are good" in out


def comparison(*, latency: str = "equivalent", loads: tuple[int, int] = (2_000_000, 1_000_000)) -> dict[str, Any]:
    processes = [
        [{"round": n, "error": None, "phases_ns": {"load": load + 100 * n}} for n in range(5)] for load in loads
    ]
    return {
        "a": {
            "machine": {"cpu": "some CPU", "machine": "x86_64"},
            "runtime": {"name": "onnxruntime", "version": "1.32.0"},
            "threads": 1,
            "effort": "quick",
            "processes": 5,
        },
        "latency": {
            "median": {"a_ns": 4e6, "b_ns": 2e6, "ratio": 0.5, "low": 0.49, "high": 0.51, "verdict": latency},
        },
        "memory": {"peak": {"a_bytes": 3e7, "b_bytes": 2e7, "ratio": 0.67, "low": None, "high": None}},
        "measurement": {"subjects": [{"processes": found} for found in processes]},
    }


def test_a_row_says_what_was_compared() -> None:
    from _zoo import fusions

    row = fusions.row({"network": "net", "nodes": "9 -> 3", "comparison": comparison(latency="faster")})
    assert row[:5] == ("net", "9 -> 3", "4 -> 2 ms", "0.500 (0.490 to 0.510)", "faster")
    assert row[5] == "2 -> 1 ms"
    assert row[6].startswith("0.500 (")
    assert row[7] == "faster"
    assert row[8:] == ("30.0 -> 20.0 MB", "0.670")
    assert len(row) == len(fusions.HEAD)


@pytest.mark.parametrize(
    ("changes", "trouble"),
    [
        ({}, None),
        ({"latency": "slower"}, "net is slower"),
        ({"loads": (1_000_000, 2_000_000)}, "net loads more slowly"),
        ({"latency": "slower", "loads": (1_000_000, 2_000_000)}, "net is slower and loads more slowly"),
        ({"loads": (1_000_000, 1_001_000)}, None),
    ],
)
def test_slower_is_trouble(changes: dict[str, Any], trouble: str | None) -> None:
    from _zoo import fusions

    result = {"network": "net", "nodes": "", "comparison": comparison(**changes)}
    assert fusions.trouble(result) == trouble
    assert fusions.trouble({"network": "net", "error": "exit 3"}) == "net: exit 3"


def test_kept_results_make_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from _zoo import fusions

    page = tmp_path / "fusions.md"
    page.write_text(
        "a\n<!-- steps -->\nwhat stood here\n<!-- /steps -->\nb\n<!-- measured -->\n<!-- /measured -->\nc\n"
    )
    monkeypatch.setattr(fusions, "PAGE", page)
    monkeypatch.setattr(fusions.builds, "ROOT", tmp_path)
    for name in ("squeezenet", "efficientnet-lite0"):
        result = {"network": name, "nodes": "9 -> 3", "comparison": comparison()}
        (tmp_path / f"{name}.json").write_text(json.dumps(result), encoding="utf-8")
    assert fusions.main(["--from", str(tmp_path), "--write"], "usage") == 0
    text = page.read_text(encoding="utf-8")
    assert text.index("efficientnet-lite0 |") < text.index("squeezenet |")
    assert "some CPU, 1 thread, onnxruntime 1.32.0, effort `quick`, 5 processes" in text
    assert "`remove-identity`" in text
    assert "what stood here" not in text
    assert text.endswith("c\n")
    before = text
    assert fusions.main(["--from", str(tmp_path), "--write"], "usage") == 0
    assert page.read_text(encoding="utf-8") == before
    capsys.readouterr()


def test_profiles_that_a_step_is_off_for_are_named() -> None:
    from _zoo import fusions

    class Profile:
        def __init__(self, name: str) -> None:
            self.name = name

    class Step:
        def __init__(self, *refused: str) -> None:
            self.refused = refused

        def refuses(self, model: object, target: Profile) -> str | None:
            return f"{target.name} reads no such thing" if target.name in self.refused else None

    profiles = [Profile(name) for name in ("a", "b", "c")]
    assert fusions.off_for(Step(), profiles) == ""
    assert fusions.off_for(Step("a", "b", "c"), profiles) == ""
    assert fusions.off_for(Step("b"), profiles) == "b: it reads no such thing"
    assert fusions.off_for(Step("a", "b"), profiles) == "2 profiles, not c: it reads no such thing"
