"""The protocol end to end: alternation, raw samples, failures, budget, summaries, advice."""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runtime_bench
from runtime_bench import process, protocol, summary

Spin = Callable[..., runtime_bench.Subject]


def children() -> set[int]:
    """Process ids whose parent is this process."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == os.getpid():
                found.add(int(entry.name))
    return found


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes ``quick`` quicker: three processes of 60 calls."""
    monkeypatch.setitem(runtime_bench.EFFORTS, "quick", protocol.Effort(3, 60, 0.01, 0.01, 0.5, 1.0))


@pytest.mark.usefixtures("brief")
def test_null_runner_end_to_end(spin: Spin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before, told = children(), []
    measurement = runtime_bench.measure([spin("a", "spin:200us"), spin("b", "spin:400us")], [], progress=told.append)
    assert json.loads(json.dumps(measurement)) == measurement
    assert measurement["schema"] == "edgeopt.measurement/1"
    assert measurement["order"] == ["a", "b", "b", "a", "a", "b"]
    assert measurement["threads"] == 1
    assert told[:2] == ["a: process 1 of 3", "b: process 1 of 3"]
    for subject, least in zip(measurement["subjects"], (200000, 400000)):
        assert subject["runtime"] == {"name": "null", "version": "0", "provider": "none"}
        assert len(subject["processes"]) == 3
        for record in subject["processes"]:
            assert record["error"] is None
            assert set(record["phases_ns"]) == {"import", "load", "first"}
            assert len(record["steady_ns"]) >= 60
            assert min(record["steady_ns"] + record["warmup_ns"] + [record["phases_ns"]["first"]]) >= least
            assert all(isinstance(value, int) for value in record["steady_ns"])
    result = runtime_bench.compare(measurement, "a", "b")
    assert result["pairs"] == 3
    # both spin for a given time, so their ratio is 2 unless most calls of a process were interrupted
    assert result["ratio"] == pytest.approx(2.0, rel=0.2)
    assert result["low"] <= result["ratio"] <= result["high"]
    assert children() <= before
    assert list(tmp_path.iterdir()) == []


def test_the_time_limit_ends_whole_rounds(spin: Spin) -> None:
    measurement = runtime_bench.measure([spin("a"), spin("b")], [], effort="release", seconds=1.0, memory=False)
    counts = {len(subject["processes"]) for subject in measurement["subjects"]}
    assert len(counts) == 1
    assert 1 <= counts.pop() < 20
    assert "out_of_time" in {entry["code"] for entry in measurement["advice"]}


@pytest.mark.parametrize("effort", ["quick", "standard", "release"])
def test_efforts_promise(effort: str) -> None:
    values = runtime_bench.EFFORTS[effort]
    assert values.processes == {"quick": 3, "standard": 10, "release": 20}[effort]
    assert values.iterations >= 50
    assert values.steady_s >= 0.5
    assert values.warmup_s >= 0.5


class Workers:
    """Answers like a worker, without one; ``failing`` numbers (from 0) raise."""

    def __init__(self, failing: set[int] = frozenset(), medians: tuple[int, ...] = (1000,)) -> None:  # type: ignore[assignment]
        self.failing = failing
        self.medians = medians
        self.requests: list[dict[str, Any]] = []

    def __call__(self, request: dict[str, Any], timeout: float, rng: object = None) -> dict[str, Any]:
        number = len(self.requests)
        self.requests.append(request)
        if number in self.failing:
            raise process.WorkerError("killed by SIGKILL (out of memory?)")
        median = self.medians[number % len(self.medians)]
        return {
            "phases_ns": {"import": 1, "load": 2, "first": 3},
            "warmup_ns": [median],
            "warmup_calls": 1,
            "warmup_stable": True,
            "steady_ns": [median] * 50,
            "every": 1,
            "runtime": {"name": "null", "version": "0", "provider": "none"},
        }


@pytest.mark.usefixtures("brief")
def test_killed_worker_is_recorded_and_the_others_survive(spin: Spin, monkeypatch: pytest.MonkeyPatch) -> None:
    real, count = process.run, [0]

    def run(request: dict[str, Any], *rest: Any) -> dict[str, Any]:
        count[0] += 1
        return real({**request, "path": "kill:9"} if count[0] == 3 else request, *rest)

    monkeypatch.setattr(process, "run", run)
    measurement = runtime_bench.measure([spin("a"), spin("b")], [], memory=False)
    a, b = measurement["subjects"]
    assert [record["error"] for record in a["processes"]] == [None, None, None]
    assert [record["error"] for record in b["processes"]] == [None, "killed by SIGKILL (out of memory?)", None]
    assert b["processes"][1]["steady_ns"] == []
    assert runtime_bench.compare(measurement, "a", "b")["pairs"] == 2
    failed = next(entry for entry in measurement["advice"] if entry["code"] == "process_failed")
    assert failed["severity"] == "warning"
    assert failed["text"] == "b: 1 of 3 processes failed: killed by SIGKILL (out of memory?)"


@pytest.mark.usefixtures("brief")
def test_a_subject_that_never_works_is_a_failure(spin: Spin) -> None:
    with pytest.raises(
        runtime_bench.BenchFailure, match=r"bad: no process could measure it: ValueError: no such thing"
    ):
        runtime_bench.measure([spin("good"), spin("bad", "fail:no such thing")], [], memory=False)


def test_it_gives_up_after_three_failures(spin: Spin, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(failing=set(range(100)))
    monkeypatch.setattr(process, "run", workers)
    with pytest.raises(runtime_bench.BenchFailure, match="SIGKILL"):
        runtime_bench.measure([spin("a")], [], effort="release", memory=False)
    assert len(workers.requests) == 3


def test_missing_runtime_is_its_own_failure(spin: Spin) -> None:
    subject = runtime_bench.Subject(name="a", path="m", sha256="0", runner="abacus")
    with pytest.raises(runtime_bench.RuntimeMissing, match='no runner "abacus"') as caught:
        runtime_bench.measure([subject], [])
    assert caught.value.code == 6


def test_hanging_worker_is_killed() -> None:
    before = children()
    request = {"job": "memory", "stage": "model", "runner": "null", "path": "hang:", "options": {}, "samples": []}
    with pytest.raises(process.WorkerError, match=r"no answer after 1 s"):
        process.run({**request, "calls": 1}, 0.6)
    assert children() <= before


def test_padding_is_seeded_and_bounded() -> None:
    lengths = [random.Random(protocol.SEED).randint(0, process.MAX_PADDING) for _ in range(2)]
    assert lengths[0] == lengths[1]
    assert 0 <= lengths[0] <= 4095


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"effort": "heroic"}, "no effort"),
        ({"threads": 0}, "above 0"),
        ({"seconds": 0}, "above 0"),
        ({"subjects": []}, "names of their own"),
    ],
)
def test_bad_arguments(spin: Spin, changes: dict[str, Any], words: str) -> None:
    arguments = {"subjects": [spin("a")], "samples": [], **changes}
    with pytest.raises(ValueError, match=words):
        runtime_bench.measure(**arguments)
    with pytest.raises(ValueError, match="names of their own"):
        runtime_bench.measure([spin("a"), spin("a")], [])


def subject(*processes: list[int], memory: list[int] | None = None) -> dict[str, Any]:
    records = [
        {"phases_ns": {"import": 10, "load": 20 + i, "first": 30}, "steady_ns": list(p), "error": None if p else "x"}
        | {"warmup_stable": True, "cut_short": False}
        for i, p in enumerate(processes)
    ]
    return {"name": "s", "processes": records, "memory": {"model": {"bytes": 1, "raw_bytes": memory or [1]}}}


def test_summary_by_hand() -> None:
    result = runtime_bench.summarize(subject([100] * 30 + [200] * 6, [], [110] * 36))
    assert (result["n"], result["processes"], result["failed"]) == (72, 2, 1)
    assert (result["median_ns"], result["p90_ns"], result["p95_ns"]) == (110, 110, 200)
    assert (result["p99_ns"], result["p99_needs"]) == (None, 368)
    assert "p95_needs" not in result
    assert (result["min_ns"], result["max_ns"], result["mad_ns"]) == (100, 200, 0)
    assert result["mean_ns"] == pytest.approx((3000 + 1200 + 3960) / 72)
    assert result["cv"] == pytest.approx(np.std([100] * 30 + [200] * 6 + [110] * 36, ddof=1) / result["mean_ns"])
    assert (result["import_median_ns"], result["load_median_ns"], result["first_median_ns"]) == (10, 20, 30)
    assert result["median_low_ns"] < 105 < result["median_high_ns"]


def test_summary_of_fifty_calls_promises_no_tail() -> None:
    result = runtime_bench.summarize(subject([1] * 35))
    assert [result[f"{p}_ns"] for p in ("p90", "p95", "p99")] == [None] * 3
    assert [result[f"{p}_needs"] for p in ("p90", "p95", "p99")] == [36, 72, 368]
    assert result["median_low_ns"] is None


def test_summary_of_nothing() -> None:
    result = runtime_bench.summarize(subject([], []))
    assert (result["n"], result["failed"], result["median_ns"], result["load_median_ns"]) == (0, 2, None, None)


ENVIRONMENT = {"load1": 0.1, "cpus_online": 2, "governor": "performance"}
FACTS = {"threads": 1, "requested": 1, "throttled": 0, "out_of_time": False}


def codes(*subjects: dict[str, Any], environment: dict[str, Any] = ENVIRONMENT, **facts: Any) -> set[str]:
    return {entry["code"] for entry in summary.advice(subjects, environment, {**FACTS, **facts})}


def test_advice_is_quiet_on_good_data_and_names_each_problem() -> None:
    good = subject(*[[1000] * 80] * 5)
    assert codes(good) == set()
    assert codes(subject(*[[1000] * 200] * 3)) == {"few_processes"}
    assert codes(subject(*[[1000] * 20] * 5)) == {"no_p99"}
    assert codes(subject(*[[1000, 1400] * 40] * 5)) == {"high_cv"}
    assert codes(subject([1200] * 80, *[[1000] * 400] * 4)) == {"slow_first_process"}
    assert codes(subject([], *[[1000] * 80] * 5)) == {"process_failed"}
    assert codes(subject(*[[1000] * 80] * 5, memory=[40000000, 41000000, 47000000])) == {"memory_varies"}
    assert codes(good, environment={**ENVIRONMENT, "load1": 2.5}) == {"load_above_cpus"}
    assert codes(good, environment={**ENVIRONMENT, "governor": "ondemand"}) == {"governor"}
    assert codes(good, environment={**ENVIRONMENT, "governor": None, "load1": None}) == set()
    assert codes(good, throttled=3) == {"throttled"}
    assert codes(good, requested=4) == {"threads_limited"}
    assert codes(good, out_of_time=True) == {"out_of_time"}
    good["processes"][0]["warmup_stable"] = False
    good["processes"][1]["cut_short"] = True
    assert codes(good) == {"not_settled", "cut_short"}


def test_planted_slowdown_of_ten_percent_is_found(spin: Spin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two subjects in ABBA on a machine that drifts by 5 % a process: the paired ratio still says 1.1."""
    drift = [1.05**i for i in range(20)]
    order = ["a", "b", "b", "a"] * 5
    medians = tuple(round(1e6 * d * (1.1 if name == "b" else 1.0)) for d, name in zip(drift, order))
    monkeypatch.setattr(process, "run", Workers(medians=medians))
    measurement = runtime_bench.measure([spin("a"), spin("b")], [], effort="standard", memory=False)
    assert measurement["order"] == order
    result = runtime_bench.compare(measurement, "a", "b")
    assert result["pairs"] == 10
    assert result["ratio"] == pytest.approx(1.1, rel=1e-3)
    assert result["verdict"] == "slower"


def test_samples_and_options_reach_the_workers_with_absolute_paths(
    spin: Spin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    workers = Workers()
    monkeypatch.setattr(process, "run", workers)
    monkeypatch.chdir(tmp_path)
    one = runtime_bench.Subject(
        name="a", path="model.onnx", sha256="1", options={"session.x": "1"}, file="model/m.onnx"
    )
    measurement = runtime_bench.measure([one], [{"x": "x.npy"}], threads=1, memory=False)
    request = workers.requests[0]
    assert request["path"] == str(tmp_path / "model.onnx")
    assert request["samples"] == [{"x": str(tmp_path / "x.npy")}]
    assert request["options"] == {"session.x": "1", "threads": 1}
    assert measurement["subjects"][0]["file"] == "model/m.onnx"
    assert measurement["subjects"][0]["memory"]["model"] == {"bytes": None, "reason": "not asked for"}
