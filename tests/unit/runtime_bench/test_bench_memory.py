"""The memory figures: what is read, the differences, and real processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import runtime_bench
from runtime_bench import memory, memory_job, process, rss
from runtime_bench.runners import onnxruntime as ort_runner
from runtime_bench.statistics import stats

STATUS = "VmHWM:\t   300 kB\nVmRSS:\t 200 kB\nRssAnon:\t  50 kB\nRssFile:\t 150 kB\nVmSwap:\t 7 kB\n"
ROLLUP = """00400000-7fff ---p 0 00:00 0 [rollup]
Rss:  201 kB
Pss: 100 kB
Shared_Clean: 90 kB
Private_Clean: 50 kB
Private_Dirty: 60 kB
Private_Hugetlb: 2 kB
Anonymous:  61 kB
Swap: 3 kB
"""


def test_usage_reads_status_and_the_exact_parts(tmp_path: Path) -> None:
    (tmp_path / "status").write_text(STATUS)
    (tmp_path / "rollup").write_text(ROLLUP)
    found = rss.usage(str(tmp_path / "status"), str(tmp_path / "rollup"))
    parts = {"peak": 300, "resident": 201, "anonymous": 61, "file": 140, "pss": 100, "uss": 112}
    assert {key: found[key] for key in parts} == {key: value * 1024 for key, value in parts.items()}
    assert found["missing"] == {}
    assert rss.peak(str(tmp_path / "status")) == 300 * 1024
    assert rss.anonymous(str(tmp_path / "status")) == 50 * 1024


def test_usage_without_a_rollup_falls_back_and_says_so(tmp_path: Path) -> None:
    status, none = str(tmp_path / "status"), str(tmp_path / "none")
    (tmp_path / "status").write_text(STATUS)
    found = rss.usage(status, none)
    assert (found["resident"], found["anonymous"], found["file"]) == (200 * 1024, 50 * 1024, 150 * 1024)
    assert found["source"].endswith("parts VmRSS, RssAnon and RssFile")
    assert found["pss"] is found["uss"] is None
    assert found["missing"] == {"pss": f"no {none}", "uss": f"no {none}"}
    (tmp_path / "status").write_text("VmHWM:\t   300 kB\nVmRSS:\t 200 kB\n")  # Linux before 4.5
    found = rss.usage(status, none)
    assert found["missing"]["anonymous"] == f"not in {status}"
    assert rss.anonymous(status) is None
    assert rss.own(status, none) is None


def test_own_memory_leaves_out_what_depends_on_others(tmp_path: Path) -> None:
    status, rollup, none = (str(tmp_path / name) for name in ("status", "rollup", "none"))
    (tmp_path / "status").write_text(STATUS)
    (tmp_path / "rollup").write_text(ROLLUP)
    assert rss.own(status, rollup) == (60 + 2 + 3) * 1024  # no clean file page, and what was swapped out
    assert rss.own_source(status, rollup) == f"{rollup} Private_Dirty + Private_Hugetlb + Swap"
    assert rss.own(status, none) == (50 + 7) * 1024
    assert rss.own_source(status, none) == f"{status} RssAnon + VmSwap (no {none}; the counters may lag)"


def test_usage_without_proc_gives_the_reason(tmp_path: Path) -> None:
    assert rss.usage(str(tmp_path / "status")) == {"reason": f"no VmHWM in {tmp_path / 'status'}"}
    assert rss.peak(str(tmp_path / "status")) is None
    assert rss.anonymous(str(tmp_path / "status")) is None


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
    before, after, later, method, told = json.loads(done.stdout)
    assert before - after > 50e6
    assert 35e6 < later - after < 45e6
    assert method == "fresh process, peak reset"
    assert told == "fresh process, peak since start (/proc/none: No such file or directory)"


def usages(*peaks: int, growth: Mapping[str, Any] | None = None) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """A run that gives peaks by stage and repeat: as many of interpreter, runtime, model."""

    def run(job: Mapping[str, Any]) -> Mapping[str, Any]:
        if job["job"] == "growth":
            return growth or {"reason": "no readings"}
        repeats = len(peaks) // 3
        peak = peaks[memory.STAGES.index(job["stage"]) * repeats + job["repeat"] % repeats]
        parts = {"resident": peak - 10, "anonymous": peak // 2, "file": None, "pss": peak - 5, "uss": peak - 6}
        loaded = {"load_peak": peak - 1, "calls_peak": peak - 2, "load_anonymous": peak - 3}
        missing = {"missing": {"file": "not told"}}
        return {"peak": peak, **parts, **(loaded if job["stage"] != "interpreter" else {}), **told(), **missing}

    return run


def told() -> dict[str, Any]:
    return {"source": "s", "method": "m"}


REQUEST: Mapping[str, Any] = {"runner": "null", "path": "spin:1us", "options": {}, "samples": []}


def test_figures_are_medians_of_differences() -> None:
    result = memory.figures(REQUEST, 1.0, usages(100, 101, 99, 150, 152, 149, 250, 260, 240))
    assert [result[stage]["bytes"] for stage in memory.STAGES] == [100, 50, 100]
    assert result["model"]["raw_bytes"] == [100, 108, 91]
    assert result["runtime"]["raw_bytes"] == [50, 51, 50]
    assert result["model"]["anonymous_bytes"] == 50
    assert result["model"]["file_bytes"] is None
    assert result["model"]["missing"] == {"file_bytes": "not told"}
    assert result["model"]["uss_bytes"] == result["model"]["pss_bytes"] == 100
    assert set(result) == set(memory.FIGURES)
    assert result["growth"] == {"bytes_per_call": None, "reason": "no readings"}


def test_load_calls_and_steady_are_figures_of_their_own() -> None:
    def run(job: Mapping[str, Any]) -> Mapping[str, Any]:
        found = usages(100, 100, 100, 150, 150, 150, 250, 250, 250)(job)
        if job["stage"] != "model" or job["job"] == "growth":
            return found
        return {**found, "load_peak": 250, "calls_peak": 225, "resident": 200, "load_anonymous": 180}

    result = memory.figures(REQUEST, 1.0, run)
    assert [result[name]["bytes"] for name in ("load", "calls", "steady")] == [101, 77, 60]
    assert result["load"]["anonymous_bytes"] == 33
    assert result["load"]["method"].startswith("m; peak while loading, reset before; its anonymous part polled, minus")
    assert result["calls"]["method"].startswith("m; peak of 3 calls of each set of shapes")
    assert (
        result["steady"]["method"]
        == "m; resident after the last call, no peak, minus the runtime stage; median of 3 repeats"
    )
    assert result["steady"]["raw_bytes"] == [60, 60, 60]


def test_a_model_is_never_below_zero_but_the_raw_values_are_kept() -> None:
    result = memory.figures(REQUEST, 1.0, usages(100, 100, 100, 150, 150, 150, 149, 149, 151))
    assert result["model"]["bytes"] == 0
    assert result["model"]["raw_bytes"] == [-1, -1, 1]


def megabytes(*values: float) -> list[int]:
    return [round(value * 1e6) for value in values]


def test_repeats_that_scatter_are_made_more_often_and_averaged() -> None:
    """Of two sizes the median is either; the mean of eleven is what repeats."""
    sizes = megabytes(*[10] * 11, *[50] * 11, *[95, 95, 103, 103, 95, 103, 95, 103, 95, 103, 103])
    result = memory.figures(REQUEST, 1.0, usages(*sizes))
    assert len(result["model"]["raw_bytes"]) == len(result["runtime"]["raw_bytes"]) == memory.SCATTERED_REPEATS
    assert result["model"]["bytes"] == round(stats.mean(result["model"]["raw_bytes"]))
    assert result["model"]["method"].endswith("mean of 11 repeats, which scatter")
    close = memory.figures(REQUEST, 1.0, usages(*megabytes(10, 10, 10, 50, 50, 50, 95, 97, 99)))
    assert (close["model"]["bytes"], len(close["model"]["raw_bytes"])) == (47e6, 3)
    assert close["model"]["method"].endswith("median of 3 repeats")
    small = memory.figures(REQUEST, 1.0, usages(*megabytes(10, 10, 10, 10, 10, 10, 10.1, 10.9, 10.2)))
    assert len(small["model"]["raw_bytes"]) == 3  # nine times as much, but less than a megabyte


def test_a_figure_that_fails_has_a_reason_and_the_lower_ones_stay() -> None:
    good = usages(100, 100, 100, 150, 150, 150, 0, 0, 0)
    tried: list[str] = []

    def run(job: Mapping[str, Any]) -> Mapping[str, Any]:
        tried.append(job["stage"])
        if job["stage"] == "model":
            raise process.WorkerError("killed by SIGKILL (out of memory?)")
        return good(job)

    result = memory.figures(REQUEST, 1.0, run)
    assert result["runtime"]["raw_bytes"] == [50, 50, 50]
    for name in ("model", "load", "calls", "steady"):
        assert result[name] == {"bytes": None, "reason": "killed by SIGKILL (out of memory?)"}
    assert result["growth"] == {"bytes_per_call": None, "reason": "killed by SIGKILL (out of memory?)"}
    assert tried.count("model") == 1


def test_a_repeat_that_fails_after_a_good_one_leaves_it() -> None:
    good = usages(100, 100, 100, 150, 150, 150, 250, 250, 250)

    def run(job: Mapping[str, Any]) -> Mapping[str, Any]:
        if job["stage"] == "model" and job["repeat"] == 1:
            raise process.WorkerError("killed by SIGBUS")
        return good(job)

    result = memory.figures(REQUEST, 1.0, run)
    assert (result["model"]["bytes"], result["model"]["raw_bytes"]) == (100, [100])
    assert result["model"]["method"].endswith("median of 1 repeat; one more failed: killed by SIGBUS")
    assert result["runtime"]["raw_bytes"] == [50, 50, 50]


def test_no_peak_in_the_system_is_told_in_every_figure() -> None:
    result = memory.figures(REQUEST, 1.0, lambda job: {"reason": "no VmHWM in /proc/self/status"})
    for name in memory.FIGURES[:-1]:
        assert result[name] == {"bytes": None, "reason": "no VmHWM in /proc/self/status"}
    assert memory.nothing("not asked for").keys() == result.keys()


def test_a_deadline_leaves_one_repeat_and_says_what_was_not_done() -> None:
    good = usages(100, 100, 100, 150, 150, 150, 250, 250, 250, growth={"points": [], "ended": "time", "source": "s"})
    jobs: list[Mapping[str, Any]] = []

    def run(job: Mapping[str, Any]) -> Mapping[str, Any]:
        jobs.append(job)
        return good(job)

    result = memory.figures(REQUEST, 1.0, run, deadline=time.monotonic() - 1)
    assert result["model"]["raw_bytes"] == [100]
    assert result["growth"] == {"bytes_per_call": None, "reason": "no time was left"}
    jobs.clear()
    memory.figures(REQUEST, 1.0, run, plan=memory.PLANS["standard"], deadline=time.monotonic() + 4)
    growth = next(job for job in jobs if job["job"] == "growth")
    assert 1.5 < growth["seconds"] <= 2.0  # half of what is left
    assert growth["timeout_s"] == 1.0 + growth["seconds"]
    assert len([job for job in jobs if job["job"] == "memory"]) == 3 * 5


def test_one_sample_of_each_set_of_shapes_is_called(tmp_path: Path) -> None:
    """B03: lengths 1, 256, 1, 512, 1 are three shapes."""
    samples = []
    for i, length in enumerate((1, 256, 1, 512, 1)):
        np.save(tmp_path / f"{i}.npy", np.zeros((length, 4), np.float32))
        samples.append({"x": str(tmp_path / f"{i}.npy")})
    assert memory.distinct_shapes(samples) == [samples[0], samples[1], samples[3]]
    assert memory.distinct_shapes([]) == []
    other = [{"x": str(tmp_path / "none.npy")}, {"x": __file__}]
    assert memory.distinct_shapes(other) == other[:1]
    many = []
    for length in range(1, 31):
        np.save(tmp_path / f"many{length}.npy", np.zeros((2, length), np.int8))
        many.append({"x": str(tmp_path / f"many{length}.npy")})
    assert memory.distinct_shapes(many) == many[-memory.MAX_SHAPES :]


def test_what_steers_the_allocator_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    found = process.run({**REQUEST, "job": "memory", "stage": "interpreter"}, 60)
    assert found["method"] == "fresh process, peak since its start, with MALLOC_ARENA_MAX set"


def test_polling_sees_a_peak_inside_the_block_and_stops() -> None:
    values = iter([1, 9, 3])
    with memory_job._polled(lambda: next(values, 2)) as most:
        time.sleep(0.05)
    assert most == [9]
    with memory_job._polled(lambda: None) as most:
        pass
    assert most == []


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


def gemm(size: int, precision: str = "float32") -> onnx.ModelProto:
    """y = x W, x float[n, size]; W in float32, or in int8 behind a DequantizeLinear."""
    weights = np.random.default_rng(1).normal(size=(size, size)).astype(np.float32)
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Gemm", ["x", "w"], ["y"])]
    held = [numpy_helper.from_array(weights, "w")]
    if precision == "int8":
        codes = np.clip(np.round(weights * 20), -127, 127).astype(np.int8)
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "sx", "zx"], ["qx"]),
            helper.make_node("DequantizeLinear", ["qx", "sx", "zx"], ["dx"]),
            helper.make_node("DequantizeLinear", ["w", "s", "z"], ["dw"]),
            helper.make_node("MatMul", ["dx", "dw"], ["y"]),
        ]
        named = {"w": codes, "s": np.float32(0.05), "z": np.int8(0), "sx": np.float32(0.05), "zx": np.uint8(128)}
        held = [numpy_helper.from_array(np.asarray(array), name) for name, array in named.items()]
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, ["n", size])],
        [value("y", TensorProto.FLOAT, ["n", size])],
        held,
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)])


def samples(folder: Path, size: int, lengths: Sequence[int]) -> list[dict[str, str]]:
    for length in lengths:
        np.save(folder / f"{size}.{length}.npy", np.zeros((length, size), np.float32))
    return [{"x": str(folder / f"{size}.{length}.npy")} for length in lengths]


@pytest.fixture(scope="module")
def shared() -> dict[Any, Any]:
    return {}


Measure = Callable[..., dict[str, Any]]


@pytest.fixture
def measure(shared: dict[Any, Any]) -> Measure:
    """Figures of a file with onnxruntime in real processes; the lower stages are shared by the tests."""

    def run(job: Mapping[str, Any]) -> Mapping[str, Any]:
        if job["stage"] == "model":
            return process.run(job, job["timeout_s"])
        key = (job["stage"], job["repeat"])
        if key not in shared:
            shared[key] = process.run(job, job["timeout_s"])
        return dict(shared[key])

    def figures(path: Path, found: Sequence[Mapping[str, str]], growth_s: float = 0.3) -> dict[str, Any]:
        request = {"runner": "onnxruntime", "path": str(path), "options": {"threads": 1}, "samples": list(found)}
        return memory.figures(request, 60, run, plan=memory.Plan(3, growth_s))

    return figures


def test_the_one_node_model_costs_about_nothing(tmp_path: Path, measure: Measure) -> None:
    """Measured as an artifact; and its runtime and interpreter cost something."""
    (tmp_path / "one.onnx").write_bytes(ort_runner.BASELINE)  # type: ignore[arg-type]
    np.save(tmp_path / "one.npy", np.zeros(1, np.float32))
    one = measure(tmp_path / "one.onnx", [{"x": str(tmp_path / "one.npy")}], 2.0)
    for name in ("model", "load", "calls", "steady"):
        assert one[name]["bytes"] < 1e6
        assert all(abs(value) < 1e6 for value in one[name]["raw_bytes"])
    assert one["runtime"]["bytes"] > 15e6
    assert 5e6 < one["interpreter"]["bytes"] < 30e6
    assert one["growth"]["verdict"] == "none"
    assert one["growth"]["calls"] >= 500
    assert one["growth"]["bytes_per_call"] < 200
    assert one["interpreter"]["source"] == "/proc/self/status VmHWM, parts from /proc/self/smaps_rollup"


WEIGHTS = 4096 * 4096 * 4


def scatter(values: Sequence[int]) -> float:
    return (max(values) - min(values)) / stats.percentile(list(values), 0.5)


def test_b03_load_steady_and_growth_apart_inline_external_and_int8(tmp_path: Path, measure: Measure) -> None:
    model = gemm(4096)
    onnx.save(model, tmp_path / "inline.onnx")
    onnx.save(model, tmp_path / "external.onnx", save_as_external_data=True, location="external.data")
    onnx.save(gemm(4096, "int8"), tmp_path / "int8.onnx")
    found = {
        name: measure(tmp_path / f"{name}.onnx", samples(tmp_path, 4096, [1]))
        for name in ("inline", "external", "int8")
    }
    for result in found.values():
        for name in ("model", "load", "calls", "steady"):
            assert scatter(result[name]["raw_bytes"]) < 0.05
        assert result["growth"]["verdict"] in ("none", "unknown")  # 0.3 s may be too few calls to clear it
        assert (result["growth"]["bytes_per_call"] or 0) < 1024
    inline, external, int8 = found["inline"], found["external"], found["int8"]
    assert inline["load"]["bytes"] > 1.9 * WEIGHTS  # the file's bytes and the weights, or the packed copy
    assert 0.95 * WEIGHTS < inline["steady"]["bytes"] < 1.3 * WEIGHTS
    assert inline["steady"]["bytes"] < 0.7 * inline["load"]["bytes"]
    assert abs(inline["calls"]["bytes"] - inline["steady"]["bytes"]) < 2e6
    # A mapped file is resident as well, but its pages can be dropped: what cannot is half as much.
    assert inline["load"]["anonymous_bytes"] > 1.9 * WEIGHTS
    assert external["load"]["anonymous_bytes"] < 0.6 * inline["load"]["anonymous_bytes"]
    assert external["load"]["bytes"] < 1.05 * inline["load"]["bytes"]
    assert int8["load"]["bytes"] < 0.35 * inline["load"]["bytes"]
    assert int8["steady"]["bytes"] < 0.35 * inline["steady"]["bytes"]


def test_b03_a_longer_input_shows_in_the_calls_and_stays(tmp_path: Path, measure: Measure) -> None:
    """Lengths 1, 256, 1, 512, 1: the largest decides, the arena keeps it, and turns of them do not grow it."""
    onnx.save(gemm(256), tmp_path / "model.onnx")
    short = measure(tmp_path / "model.onnx", samples(tmp_path, 256, [1]))
    varying = measure(tmp_path / "model.onnx", samples(tmp_path, 256, [1, 2560, 1, 5120, 1]), 2.0)
    least = 5120 * 256 * 4  # one input or output of the longest
    assert varying["calls"]["bytes"] - short["calls"]["bytes"] > 2 * least
    assert varying["steady"]["bytes"] - short["steady"]["bytes"] > least
    assert abs(varying["load"]["bytes"] - short["load"]["bytes"]) < 1e6
    assert varying["growth"]["verdict"] in ("none", "unknown")
    assert (varying["growth"]["bytes_per_call"] or 0) < 1024
    calls = [count for count, _ in varying["growth"]["points"]]
    assert all(count % 3 == 0 for count in calls)  # whole turns of the three shapes


BY_HAND = """
import sys
{ballast}
def high():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))

open("/proc/self/clear_refs", "w").write("5")
stage, path, feed = sys.argv[1:]
if stage != "interpreter":
    import numpy, onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    for _ in range(3):
        session.run(None, {{"x": numpy.load(feed)}})
print(high())
"""


def by_hand(path: Path, feed: Path, stage: str, ballast: str = "") -> int:
    command = [sys.executable, "-c", BY_HAND.format(ballast=ballast), stage, str(path), str(feed)]
    peaks = [int(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(3)]
    return stats.percentile(peaks, 0.5)


def test_figures_equal_those_of_a_process_run_by_hand(tmp_path: Path, measure: Measure) -> None:
    """VmHWM of plain Python processes that know nothing of this program, within 3 %; and 8 MB more would be seen."""
    (tmp_path / "one.onnx").write_bytes(ort_runner.BASELINE)  # type: ignore[arg-type]
    np.save(tmp_path / "one.npy", np.zeros(1, np.float32))
    onnx.save(gemm(2048), tmp_path / "model.onnx")
    feeds = samples(tmp_path, 2048, [1])
    found = measure(tmp_path / "model.onnx", feeds)
    nothing = by_hand(tmp_path, tmp_path, "interpreter")
    one = by_hand(tmp_path / "one.onnx", tmp_path / "one.npy", "runtime")
    model = by_hand(tmp_path / "model.onnx", Path(feeds[0]["x"]), "model")
    assert found["runtime"]["bytes"] == pytest.approx(one - nothing, rel=0.03)
    assert found["model"]["bytes"] == pytest.approx(model - one, rel=0.03)
    ballast = "held = bytearray(8_000_000)\nheld[::4096] = b'x' * len(held[::4096])"
    heavier = by_hand(tmp_path / "model.onnx", Path(feeds[0]["x"]), "model", ballast)
    assert found["model"]["bytes"] != pytest.approx(heavier - one, rel=0.03)


def test_measure_has_memory_for_each_subject_and_shares_the_lower_stages(
    monkeypatch: pytest.MonkeyPatch, spin: Callable[..., runtime_bench.Subject]
) -> None:
    stages: list[str] = []
    real = process.run

    def run(request: Mapping[str, Any], *rest: Any) -> dict[str, Any]:
        if request["job"] in ("memory", "growth"):
            stages.append(request["stage"] if request["job"] == "memory" else "growth")
        return real(request, *rest)

    monkeypatch.setattr(process, "run", run)
    quick = runtime_bench.EFFORTS["quick"]._replace(iterations=5, steady_s=0.02, warmup_s=0.02, warmup_cap_s=0.1)
    monkeypatch.setitem(runtime_bench.EFFORTS, "quick", quick)
    measurement = runtime_bench.measure([spin("a"), spin("b")], [])
    assert stages.count("interpreter") == stages.count("runtime") == 3
    assert stages.count("model") == 6
    assert stages.count("growth") == 2
    for subject in measurement["subjects"]:
        assert subject["memory"]["interpreter"]["bytes"] > 3e6
        assert subject["memory"]["model"]["bytes"] < 1e6
        assert subject["memory"]["growth"]["verdict"] == "none"


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
