"""The three memory figures: the reset, the parts, the differences, and real processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import runtime_bench
from runtime_bench import memory, process, rss
from runtime_bench.runners import onnxruntime as ort_runner

STATUS = "VmHWM:\t   300 kB\nVmRSS:\t 200 kB\nRssAnon:\t  50 kB\nRssFile:\t 150 kB\n"
ROLLUP = "00400000-7fff ---p 0 00:00 0 [rollup]\nRss:  201 kB\nPss: 100 kB\nAnonymous:  61 kB\n"


def test_usage_reads_status_and_the_exact_parts(tmp_path: Path) -> None:
    (tmp_path / "status").write_text(STATUS)
    (tmp_path / "rollup").write_text(ROLLUP)
    found = rss.usage(str(tmp_path / "status"), str(tmp_path / "rollup"))
    assert (found["peak"], found["anonymous"], found["file"]) == (300 * 1024, 61 * 1024, 140 * 1024)
    without = rss.usage(str(tmp_path / "status"), str(tmp_path / "none"))
    assert (without["anonymous"], without["file"]) == (50 * 1024, 150 * 1024)
    assert without["source"].endswith("parts RssAnon and RssFile")


def test_usage_without_proc_gives_the_reason(tmp_path: Path) -> None:
    assert rss.usage(str(tmp_path / "status")) == {"reason": f"no VmHWM in {tmp_path / 'status'}"}


def test_reset_is_real_and_its_refusal_is_told() -> None:
    """A process that held 60 MB before the reset does not show them after it, and shows 40 MB that came later."""
    code = """
import json, sys
from runtime_bench import rss
block = bytearray(60_000_000); block[::4096] = b"x" * len(block[::4096]); before = rss.usage()["peak"]; del block
rss.reset_peak(); after = rss.usage()
block = bytearray(40_000_000); block[::4096] = b"x" * len(block[::4096]); later = rss.usage()["peak"]
rss.reset_peak("/proc/none"); told = rss.usage()["method"]
print(json.dumps([before, after["peak"], later, after["method"], told]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after, later, method, told = __import__("json").loads(done.stdout)
    assert before - after > 50e6
    assert 35e6 < later - after < 45e6
    assert method == "fresh process, peak reset"
    assert told == "fresh process, peak since start (/proc/none: No such file or directory)"


def usages(*peaks: int) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """A run that gives peaks by stage and repeat: three each of interpreter, runtime, model."""

    def run(job: Mapping[str, Any]) -> Mapping[str, Any]:
        peak = peaks[memory.STAGES.index(job["stage"]) * 3 + job["repeat"]]
        return {"peak": peak, "anonymous": peak // 2, "file": None, "source": "s", "method": "m"}

    return run


def test_figures_are_medians_of_differences() -> None:
    result = memory.figures({}, 1.0, usages(100, 101, 99, 150, 152, 149, 250, 260, 240))
    assert [result[stage]["bytes"] for stage in memory.STAGES] == [100, 50, 100]
    assert result["model"]["raw_bytes"] == [100, 108, 91]
    assert result["runtime"]["raw_bytes"] == [50, 51, 50]
    assert result["model"]["anonymous_bytes"] == 50
    assert result["model"]["file_bytes"] is None


def test_a_model_is_never_below_zero_but_the_raw_values_are_kept() -> None:
    result = memory.figures({}, 1.0, usages(100, 100, 100, 150, 150, 150, 149, 149, 151))
    assert result["model"]["bytes"] == 0
    assert result["model"]["raw_bytes"] == [-1, -1, 1]


def test_a_figure_that_fails_has_a_reason_and_the_lower_ones_stay() -> None:
    good = usages(100, 100, 100, 150, 150, 150, 0, 0, 0)

    def run(job: Mapping[str, Any]) -> Mapping[str, Any]:
        if job["stage"] == "model":
            raise process.WorkerError("killed by SIGKILL (out of memory?)")
        return good(job)

    result = memory.figures({}, 1.0, run)
    assert result["runtime"]["bytes"] == 50
    assert result["model"] == {"bytes": None, "reason": "killed by SIGKILL (out of memory?)"}


def test_the_one_node_model_is_what_it_says() -> None:
    assert isinstance(ort_runner.BASELINE, bytes)
    model = onnx.load_from_string(ort_runner.BASELINE)
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["Identity"]
    assert (model.ir_version, model.opset_import[0].version) == (8, 13)
    assert len(ort_runner.BASELINE) < 100
    value = model.graph.input[0]
    assert value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert [dim.dim_value for dim in value.type.tensor_type.shape.dim] == [1]


def big_model(megabytes: int) -> bytes:
    weights = np.ones((megabytes * 250, 1000), np.float32)
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "big",
        [value("x", onnx.TensorProto.FLOAT, [1, weights.shape[0]])],
        [value("y", onnx.TensorProto.FLOAT, [1, 1000])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    opset = [onnx.helper.make_opsetid("", 13)]
    return onnx.helper.make_model(graph, ir_version=8, opset_imports=opset).SerializeToString()


def test_real_figures_of_the_one_node_model_itself_and_of_sixteen_megabytes(tmp_path: Path) -> None:
    """Measured as an artifact the one-node model costs about nothing; 16 MB of weights cost at least themselves."""
    (tmp_path / "one.onnx").write_bytes(ort_runner.BASELINE)  # type: ignore[arg-type]
    (tmp_path / "big.onnx").write_bytes(big_model(16))
    np.save(tmp_path / "one.npy", np.zeros(1, np.float32))
    np.save(tmp_path / "big.npy", np.zeros((1, 4000), np.float32))
    cache: dict[Any, Any] = {}

    def run(job: Mapping[str, Any]) -> Mapping[str, Any]:
        key = (job["stage"], job["repeat"], job["path"] if job["stage"] == "model" else "")
        if key not in cache:
            cache[key] = process.run(job, 60)
        return cache[key]

    def figures(name: str) -> dict[str, Any]:
        path, sample = tmp_path / f"{name}.onnx", {"x": str(tmp_path / f"{name}.npy")}
        options = {"threads": 1}
        request = {"runner": "onnxruntime", "path": str(path), "options": options, "samples": [sample]}
        return memory.figures(request, 60, run)

    one, big = figures("one"), figures("big")
    assert abs(one["model"]["raw_bytes"][0]) < 1.5e6
    assert one["model"]["bytes"] < 1.5e6
    assert one["runtime"]["bytes"] > 5e6
    assert one["interpreter"]["bytes"] > 5e6
    assert 16e6 < big["model"]["bytes"] < 80e6
    assert big["model"]["anonymous_bytes"] > 15e6
    assert one["interpreter"]["source"].startswith("/proc/self/status VmHWM")


def test_measure_has_memory_for_each_subject_and_shares_the_lower_stages(
    monkeypatch: pytest.MonkeyPatch, spin: Callable[..., runtime_bench.Subject]
) -> None:
    stages: list[str] = []
    real = process.run

    def run(request: Mapping[str, Any], *rest: Any) -> dict[str, Any]:
        stages.append(str(request.get("stage")))
        return real(request, *rest)

    monkeypatch.setattr(process, "run", run)
    measurement = runtime_bench.measure([spin("a"), spin("b")], [], seconds=0.3)
    assert stages.count("interpreter") == stages.count("runtime") == 3
    assert stages.count("model") == 6
    for subject in measurement["subjects"]:
        assert subject["memory"]["interpreter"]["bytes"] > 3e6
        assert subject["memory"]["model"]["bytes"] < 1e6


def test_what_a_budget_counts_is_the_worst_repeat_of_runtime_and_model() -> None:
    found = {
        "interpreter": {"bytes": 1000, "raw_bytes": [1000, 1000, 1000]},
        "runtime": {"bytes": 50, "raw_bytes": [50, 60, 40]},
        "model": {"bytes": 100, "raw_bytes": [100, 95, 120]},
    }
    assert runtime_bench.charged_bytes(found) == 160  # the third repeat, not 60 + 120, which never was
    assert runtime_bench.charged_bytes(found, worst=False) == 150
    assert runtime_bench.charged_bytes({**found, "model": {"bytes": 200}}) == 250
    below = {**found, "runtime": {"bytes": 0, "raw_bytes": [-9]}, "model": {"bytes": 0, "raw_bytes": [-9]}}
    assert runtime_bench.charged_bytes(below) == 0
    for worst in (True, False):
        assert runtime_bench.charged_bytes({**found, "model": {"bytes": None, "reason": "x"}}, worst=worst) is None
