"""The protocol end to end: alternation, raw samples, failures, time limits, loads, what is asked of the workers."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import runtime_bench
from runtime_bench import counters, memory, process, protocol, rounds, session, worker
from runtime_bench.machine import affinity

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


RECORD = {*session.NO_RECORD, "round"}


@pytest.mark.usefixtures("brief")
def test_null_runner_end_to_end(spin: Spin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before, told = children(), []
    measurement = runtime_bench.measure([spin("a", "spin:200us"), spin("b", "spin:400us")], [], progress=told.append)
    assert json.loads(json.dumps(measurement)) == measurement
    assert measurement["schema"] == "edgeopt.measurement/2"
    assert measurement["order"] == ["a", "b", "b", "a", "a", "b"]
    assert (measurement["threads"], measurement["load"], measurement["cut"]) == (1, {"kind": "back_to_back"}, [])
    assert measurement["clock"]["resolution_ns"] >= 1
    assert measurement["clock"]["overhead_ns"] >= 0
    assert told[:4] == ["a: audit", "b: audit", "a: process 1 of 3", "b: process 1 of 3"]
    for subject, least in zip(measurement["subjects"], (200000, 400000)):
        assert subject["runtime"] == {"name": "null", "version": "0", "provider": "none", "asked": "none"}
        assert set(subject["audit"]) == {"reason"}
        assert (subject["precision"], subject["bytes"], subject["sustained"]) == (None, None, None)
        assert [record["round"] for record in subject["processes"]] == [0, 1, 2]
        for record in subject["processes"]:
            assert set(record) == RECORD
            assert record["error"] is None
            assert set(record["phases_ns"]) == {"import", "load", "first"}
            assert len(record["steady_ns"]) >= 60
            assert min(record["steady_ns"] + record["warmup_ns"] + [record["phases_ns"]["first"]]) >= least
            assert all(isinstance(value, int) for value in record["steady_ns"])
            assert record["steady_span_ns"] >= sum(record["steady_ns"])
            assert record["steady_begin_ns"] > record["start_ns"] > 0
            assert set(record["events"]) == set(counters.NAMES)
            assert (record["service_ns"], record["burst_ns"]) == ([], [])
    begins = [record["start_ns"] for i in range(3) for s in measurement["subjects"] for record in [s["processes"][i]]]
    assert begins != sorted(begins)  # the second round runs backwards
    result = runtime_bench.compare(measurement, "a", "b")
    assert result["pairs"] == 3
    # both spin for a given time, so their ratio is 2 unless most calls of a process were interrupted
    assert result["ratio"] == pytest.approx(2.0, rel=0.2)
    assert result["low"] <= result["ratio"] <= result["high"]
    assert set(measurement["results"]) == {"summaries", "stability"}
    assert set(measurement["results"]["summaries"]) == {"a", "b"}
    assert children() <= before
    assert list(tmp_path.iterdir()) == []


def test_the_time_limit_ends_whole_rounds_and_the_sustained_processes(spin: Spin) -> None:
    begin = time.monotonic()
    measurement = runtime_bench.measure([spin("a"), spin("b")], [], effort="release", seconds=2.0, memory=False)
    taken = time.monotonic() - begin
    counts = {len(subject["processes"]) for subject in measurement["subjects"]}
    assert len(counts) == 1
    assert 1 <= counts.pop() < 20
    assert measurement["cut"] == ["timing", "sustained"]
    assert [subject["sustained"] for subject in measurement["subjects"]] == [None, None]
    assert taken < 30  # 2 s, and what a busy machine takes to start the processes of the last round


@pytest.mark.parametrize("effort", ["quick", "standard", "release"])
def test_efforts_promise(effort: str) -> None:
    values = runtime_bench.EFFORTS[effort]
    assert values.processes == {"quick": 3, "standard": 10, "release": 20}[effort]
    assert values.iterations >= {"quick": 50, "standard": 100, "release": 200}[effort]
    assert values.steady_s >= {"quick": 0.5, "standard": 1.5, "release": 1.5}[effort]
    assert values.warmup_s >= 0.5
    assert values.bursts == (0 if effort == "quick" else 1)
    assert values.sustained_s == (60 if effort == "release" else 0)
    if effort == "release":
        assert values.processes * values.iterations >= 4000


class Workers:
    """Answers like a worker, without one; timing processes of ``failing`` numbers (from 0) raise."""

    def __init__(self, failing: frozenset[int] = frozenset(), medians: tuple[int, ...] = (1000,), **told: Any) -> None:
        self.failing = failing
        self.medians = medians
        self.told = told
        self.audits: list[dict[str, Any]] = []
        self.requests: list[dict[str, Any]] = []

    def __call__(self, request: dict[str, Any], timeout: float, rng: object = None) -> dict[str, Any]:
        if request["job"] == "audit":
            self.audits.append(request)
            return dict(self.told.get("audit", {"reason": "not told"}))
        number = len(self.requests)
        self.requests.append(request)
        if number in self.failing:
            raise process.WorkerError("killed by SIGKILL (out of memory?)", {"phases_ns": {"import": 5, "load": 6}})
        median = self.medians[number % len(self.medians)]
        return {
            "not_pinned": self.told.get("not_pinned", ""),
            "phases_ns": {"import": 1, "load": 2, "first": 3},
            "warmup_ns": [median],
            "warmup_calls": 1,
            "warmup_stable": True,
            "fault_ns": 250,
            "steady_begin_ns": 10,
            "steady_span_ns": 50 * median,
            "steady_ns": [median] * 50,
            "every": 1,
            "service_ns": [],
            "events": counters.empty(),
            "unread": {},
            "runtime": {"name": "null", "version": "0", "provider": "none"},
        }


@pytest.mark.usefixtures("brief")
def test_killed_worker_is_recorded_and_the_others_survive(spin: Spin, monkeypatch: pytest.MonkeyPatch) -> None:
    real, count = process.run, [0]

    def run(request: dict[str, Any], *rest: Any) -> dict[str, Any]:
        count[0] += request["job"] == "time"
        return real({**request, "path": "kill:9"} if count[0] == 3 else request, *rest)

    monkeypatch.setattr(process, "run", run)
    measurement = runtime_bench.measure([spin("a"), spin("b")], [], memory=False)
    a, b = measurement["subjects"]
    assert [record["error"] for record in a["processes"]] == [None, None, None]
    assert [record["error"] for record in b["processes"]] == [None, "killed by SIGKILL (out of memory?)", None]
    assert b["processes"][1]["steady_ns"] == []
    assert runtime_bench.compare(measurement, "a", "b")["pairs"] == 2
    reasons = measurement["results"]["stability"]["reasons"]
    failed = next(reason for reason in reasons if reason["code"] == "process_failed")
    assert failed["subject"] == "b"
    assert "1 of 3 processes failed: killed by SIGKILL (out of memory?)" in failed["text"]


def test_a_worker_killed_in_its_steady_phase_leaves_its_phases_and_warm_up(spin: Spin) -> None:
    """Warm-up ends after 0.3 s, that is before call 2000 of 500 us, which kills."""
    plan = protocol.Effort(1, 100000, 60.0, 0.3, 0.5, 60.0)._asdict()
    request = {"runner": "null", "path": "spin:500us,killat:2000:9", "options": {"threads": 1}, "samples": []}
    told = {"threads": 1, "cpus": [], "cpu_stat": None, "epoch_ns": 0}
    workers = session.Session({"a": {**request, **told}}, {**plan, "fps": None}, 0, lambda text: None)
    record = workers.time_one("a", None)
    assert record["error"] == "killed by SIGKILL (out of memory?)"
    assert set(record["phases_ns"]) == {"import", "load", "first"}
    assert 20 <= record["warmup_calls"] < 2000
    assert len(record["warmup_ns"]) == min(record["warmup_calls"], 300)
    assert record["fault_ns"] is None or record["fault_ns"] > 0
    assert (record["steady_ns"], record["steady_span_ns"], record["burst_ns"]) == ([], 0, [])
    assert record["events"] == counters.empty()
    assert record["cut_short"]
    assert workers.runtimes["a"]["name"] == "null"


@pytest.mark.parametrize("path", ["spin:1us,rival:1:3600000ms,killat:3:9", "spin:1us,rival:1:3600000ms"])
def test_children_of_a_runner_die_with_it(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child spins for an hour and holds the worker's pipes open, whether the worker dies or ends well."""
    mark = f"RUNTIME_BENCH_TEST={os.getpid()}.{random.random()}"
    monkeypatch.setenv(*mark.split("="))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as seen:
        assert marked(mark) == {seen.pid}
        seen.kill()
    request = {"job": "memory", "stage": "model", "runner": "null", "path": path, "options": {}, "samples": []}
    begin = time.monotonic()
    if "killat" in path:
        with pytest.raises(process.WorkerError, match="SIGKILL"):
            process.run({**request, "calls": 4}, 60)
    else:
        assert process.run({**request, "calls": 4}, 60)
    assert time.monotonic() - begin < 50
    assert marked(mark) == set()


def marked(mark: str) -> set[int]:
    """Living processes with that entry in their environment at the start."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.usefixtures("brief")
def test_a_subject_that_never_works_is_a_failure(spin: Spin) -> None:
    with pytest.raises(
        runtime_bench.BenchFailure, match=r"bad: no process could measure it: ValueError: no such thing"
    ):
        runtime_bench.measure([spin("good"), spin("bad", "fail:no such thing")], [], memory=False)


def test_it_gives_up_after_three_failures(spin: Spin, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(failing=frozenset(range(100)))
    monkeypatch.setattr(process, "run", workers)
    with pytest.raises(runtime_bench.BenchFailure, match="SIGKILL"):
        runtime_bench.measure([spin("a")], [], effort="release", memory=False)
    assert len(workers.requests) == 3


def test_missing_runtime_is_its_own_failure(spin: Spin) -> None:
    subject = runtime_bench.Subject(name="a", path="m", sha256="0", runner="abacus")
    with pytest.raises(runtime_bench.RuntimeMissing, match='no runner "abacus"') as caught:
        runtime_bench.measure([subject], [])
    assert caught.value.code == 6


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b'{"part": {"a": 1}}\n', {"a": 1}),  # the runtime called exit(0)
        (b'{"part": {"a": 1}}\n{"part": {"b": 2}}\n', {"a": 1, "b": 2}),
        (b'{"part": {"a": 1}}\n{"part": {"b": 2', {"a": 1}),
        (b"", {}),
    ],
)
def test_an_answer_without_its_end_is_a_failure_with_what_was_told(answer: bytes, told: dict[str, int]) -> None:
    with pytest.raises(process.WorkerError, match="exit code 0 and no message") as caught:
        process.merged(answer, b"", 0)
    assert caught.value.partial == told
    with pytest.raises(process.WorkerError, match="^last words$"):
        process.merged(answer, b"words\nlast words\n", 1)
    if answer.endswith(b"\n"):
        assert process.merged(answer + b'{"complete": true}\n', b"noise", 0) == told


def test_hanging_worker_is_killed() -> None:
    before = children()
    request = {"job": "memory", "stage": "model", "runner": "null", "path": "hang:", "options": {}, "samples": []}
    with pytest.raises(process.WorkerError, match=r"no answer after 1 s"):
        process.run({**request, "calls": 1}, 0.6)
    assert children() <= before


def test_padding_is_seeded_and_bounded() -> None:
    lengths = [random.Random(session.SEED).randint(0, process.MAX_PADDING) for _ in range(2)]
    assert lengths[0] == lengths[1]
    assert 0 <= lengths[0] <= 4095


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"effort": "heroic"}, "no effort"),
        ({"threads": 0}, "above 0"),
        ({"seconds": 0}, "above 0"),
        ({"subjects": []}, "names of their own"),
        ({"fps": 0.09}, "fps must be from 0.1 to 10000"),
        ({"fps": float("nan")}, "fps must be from"),
        ({"fps": 1e6}, "to 10000"),
        ({"half_width": 0.01}, "needs two subjects"),
    ],
)
def test_bad_arguments(spin: Spin, changes: dict[str, Any], words: str) -> None:
    arguments = {"subjects": [spin("a")], "samples": [], **changes}
    with pytest.raises(ValueError, match=words):
        runtime_bench.measure(**arguments)
    with pytest.raises(ValueError, match="names of their own"):
        runtime_bench.measure([spin("a"), spin("a")], [])


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
    assert workers.audits[0]["samples"] == request["samples"]


def test_a_worker_gets_its_cpus_and_tells_why_it_is_not_there(spin: Spin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(affinity, "choose", lambda threads: [5])
    workers = Workers()
    monkeypatch.setattr(process, "run", workers)
    measurement = runtime_bench.measure([spin("a")], [], memory=False)
    assert workers.requests[0]["cpus"] == measurement["affinity"] == [5]
    assert "affinity" not in measurement["environment"]["missing"]
    monkeypatch.setattr(process, "run", Workers(not_pinned="sched_setaffinity: refused"))
    measurement = runtime_bench.measure([spin("a")], [], memory=False)
    assert measurement["affinity"] is None
    assert measurement["environment"]["missing"]["affinity"] == "sched_setaffinity: refused"
    workers = Workers()
    monkeypatch.setattr(process, "run", workers)
    measurement = runtime_bench.measure([spin("a")], [], memory=False, pin=False)
    assert (workers.requests[0]["cpus"], measurement["affinity"]) == ([], None)
    assert measurement["environment"]["missing"]["affinity"] == "not asked for"


AUDIT: dict[str, Any] = {
    "asked": "XExecutionProvider",
    "nodes": 4,
    "providers": {"XExecutionProvider": 3, "CPUExecutionProvider": 1},
    "outside": [{"op": "Resize", "provider": "CPUExecutionProvider", "count": 1, "macs": 0}],
    "shape_nodes_outside": 0,
    "opaque_nodes": 0,
    "macs": {"XExecutionProvider": 9, "CPUExecutionProvider": 0},
    "macs_reason": None,
    "integer_nodes": 0,
    "float_nodes": 3,
    "integer_macs": 0,
    "float_macs": 9,
}


def test_B04_nodes_outside_the_asked_provider_fail_unless_allowed(spin: Spin, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(audit=AUDIT)
    monkeypatch.setattr(process, "run", workers)
    one = runtime_bench.Subject(
        name="a", path="x", sha256="0", runner="null", options={"provider": "x"}, precision="float32"
    )
    with pytest.raises(runtime_bench.BenchFailure, match=r"asked XExecutionProvider, got CPU.*1 of 4 nodes"):
        runtime_bench.measure([one], [], memory=False)
    assert workers.requests == []  # before any timing
    measurement = runtime_bench.measure([one], [], memory=False, allow_fallback=True)
    assert workers.requests[0]["options"] == {"provider": "x", "threads": 1, "allow_fallback": True}
    subject = measurement["subjects"][0]
    assert (subject["audit"], subject["precision"]) == (AUDIT, "float32")


def test_a_dying_audit_is_a_reason_where_the_cpu_was_asked_for(spin: Spin, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers()

    def run(request: dict[str, Any], timeout: float, rng: object = None) -> dict[str, Any]:
        if request["job"] == "audit":
            raise process.WorkerError("killed by SIGSEGV")
        return workers(request, timeout)

    monkeypatch.setattr(process, "run", run)
    measurement = runtime_bench.measure([spin("a")], [], memory=False)
    assert measurement["subjects"][0]["audit"] == {"reason": "killed by SIGSEGV"}


def test_release_has_one_sustained_process_a_subject_after_all_others(
    spin: Spin, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = Workers(failing=frozenset({40}))
    monkeypatch.setattr(process, "run", workers)
    measurement = runtime_bench.measure([spin("a"), spin("b")], [], effort="release", memory=False)
    assert len(workers.requests) == 42
    assert all(request["plan"]["bursts"] == 1 for request in workers.requests[:40])
    assert [request["plan"]["steady_s"] for request in workers.requests[39:]] == [3.0, 60.0, 60.0]
    assert [request["plan"]["bursts"] for request in workers.requests[39:]] == [1, 0, 0]
    a, b = (subject["sustained"] for subject in measurement["subjects"])
    assert set(a) == set(b) == set(session.SUSTAINED_KEYS)
    assert (a["error"], a["steady_ns"], a["cut_short"]) == ("killed by SIGKILL (out of memory?)", [], True)
    assert (b["error"], len(b["steady_ns"])) == (None, 50)
    assert b["cut_short"]  # these workers came back at once
    assert measurement["cut"] == ["sustained"]


def test_rounds_are_added_until_the_ratio_is_narrow(spin: Spin, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same spread in every round: the interval shrinks with their number alone."""
    medians = (1000000, 1000000, 1030000, 1000000)
    workers = Workers(medians=medians)
    monkeypatch.setattr(process, "run", workers)
    pair = [spin("a"), spin("b")]
    measurement = runtime_bench.measure(pair, [], effort="standard", memory=False, half_width=0.005)
    rounds = len(measurement["order"]) // 2
    assert 10 < rounds < 40
    assert measurement["order"] == (["a", "b", "b", "a"] * rounds)[: 2 * rounds]
    found = runtime_bench.compare(measurement, "a", "b")
    assert (found["high"] - found["low"]) / 2 <= 0.005 * found["ratio"]
    cut = {**measurement, "subjects": [dict(s, processes=s["processes"][:-1]) for s in measurement["subjects"]]}
    before = runtime_bench.compare(cut, "a", "b")
    assert (before["high"] - before["low"]) / 2 > 0.005 * before["ratio"]  # not one round too many


def test_rounds_for_a_narrow_ratio_have_an_end(spin: Spin, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = [spin("a"), spin("b")]
    medians = (1000000, 1000000, 1500000, 1000000)
    monkeypatch.setattr(process, "run", Workers(medians=medians))
    measurement = runtime_bench.measure(pair, [], memory=False, half_width=1e-6)
    assert len(measurement["order"]) == 2 * rounds.MOST_ROUNDS * 3
    workers = Workers(medians=medians)

    def slowly(*arguments: Any) -> dict[str, Any]:
        time.sleep(0.05)
        return workers(*arguments)

    monkeypatch.setattr(process, "run", slowly)
    measurement = runtime_bench.measure(pair, [], memory=False, half_width=1e-6, seconds=0.6)
    assert 2 <= len(measurement["order"]) < 2 * rounds.MOST_ROUNDS * 3


def test_a_narrow_ratio_adds_no_round(spin: Spin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "run", Workers(medians=(1000000, 1001000, 1000000, 1001000)))
    measurement = runtime_bench.measure([spin("a"), spin("b")], [], memory=False, half_width=0.01)
    assert len(measurement["order"]) == 6


def test_the_rounds_share_what_time_is_left() -> None:
    """Each process may take an equal part of what remains, and none is started that cannot end in time."""
    clock, untils = [100.0], []

    def time_one(name: str, until: float | None) -> dict[str, Any]:
        assert until is not None
        untils.append(until - clock[0])
        clock[0] += 2.0  # whatever it is told, a process needs two seconds to start
        return {**session.NO_RECORD, "steady_ns": [1]}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
        found = rounds.run(["a", "b"], time_one, processes=5, until=120.0)
    assert untils[:3] == [20.0 / 10, 18.0 / 9, 16.0 / 8]
    assert len(found.order) == 10
    clock[0], untils[:] = 100.0, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
        found = rounds.run(["a", "b"], time_one, processes=5, until=111.0)
    assert (len(found.order), found.cut) == (4, True)  # the third round would end at 112


@pytest.mark.usefixtures("brief")
def test_a_periodic_load_end_to_end(spin: Spin) -> None:
    measurement = runtime_bench.measure([spin("a", "spin:200us")], [], memory=False, fps=500.0)
    assert measurement["load"] == {"kind": "periodic", "fps": 500.0, "period_ns": 2000000}
    for record in measurement["subjects"][0]["processes"]:
        assert len(record["service_ns"]) == len(record["steady_ns"]) >= 60
        assert record["every"] == 1
        assert all(late >= own >= 200000 for late, own in zip(record["steady_ns"], record["service_ns"]))
        # 60 calls cannot be done before the 60th is due
        assert record["steady_span_ns"] >= 60 * 2000000


def test_bursts_end_to_end(spin: Spin, monkeypatch: pytest.MonkeyPatch) -> None:
    effort = protocol.Effort(1, 10, 0.01, 0.01, 0.5, 1.0, bursts=2, burst_calls=4, idle_s=0.01)
    monkeypatch.setitem(runtime_bench.EFFORTS, "quick", effort)
    measurement = runtime_bench.measure([spin("a", "spin:300us")], [], memory=False)
    bursts = measurement["subjects"][0]["processes"][0]["burst_ns"]
    assert [len(burst) for burst in bursts] == [4, 4]
    assert min(bursts[0] + bursts[1]) >= 300000


def test_the_scratch_of_an_audit_is_gone_whatever_ended_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime writes its profile there; a worker that is killed leaves it behind."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen: list[Path] = []

    def stopped(request: Any, *arguments: Any) -> dict[str, Any]:
        seen.append(Path(request["scratch"]))
        (seen[0] / "profile").write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "run", stopped)
    with pytest.raises(KeyboardInterrupt):
        session.Session({"a": {}}, {}, 0, lambda text: None).audit("a")
    assert seen[0].parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_an_audit_makes_its_files_in_the_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    runner = types.SimpleNamespace(import_runtime=lambda: None, audit=lambda *all_: {"reason": tempfile.gettempdir()})
    monkeypatch.setattr(worker, "get", lambda name: runner)
    request = {"runner": "x", "path": "", "options": {}, "samples": [], "scratch": str(tmp_path)}
    assert worker.job_audit(request) == {"reason": str(tmp_path)}


def test_every_record_is_free_of_what_belongs_to_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that could not be pinned: neither keeps the reason in its record."""
    monkeypatch.setattr(process, "run", lambda *arguments: {"not_pinned": "refused"})
    plan = {**protocol.EFFORTS["quick"]._asdict(), "fps": None}
    workers = session.Session({"a": {"options": {}}}, plan, 0, lambda text: None)
    assert all(set(workers.time_one("a", None)) == set(session.NO_RECORD) for _ in range(2))
    assert workers.not_pinned == "refused"


def test_memory_has_its_share_of_the_time(spin: Spin, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def figures(request: Any, timeout: float, run: Any, **options: Any) -> dict[str, Any]:
        seen.append({**options, "now": time.monotonic()})
        return memory.nothing("not here")

    monkeypatch.setattr(memory, "figures", figures)
    monkeypatch.setattr(process, "run", Workers())
    runtime_bench.measure([spin("a"), spin("b")], [], seconds=100.0, effort="standard")
    assert [entry["plan"] for entry in seen] == [memory.PLANS["standard"]] * 2
    first, second = (entry["deadline"] - entry["now"] for entry in seen)
    assert 40 < first < 50  # the timing took no time here: half of all that is left
    assert 90 < second <= 100
    seen.clear()
    measurement = runtime_bench.measure([spin("a")], [])
    assert [entry["deadline"] for entry in seen] == [None]
    assert measurement["cut"] == []
    monkeypatch.setattr(memory, "figures", lambda *arguments, **options: memory.nothing(memory.LATE))
    assert runtime_bench.measure([spin("a")], [], seconds=100.0)["cut"] == ["memory"]


def test_under_a_time_limit_a_hanging_worker_is_waited_for_by_the_slowest_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first start may take minutes, as an engine that is built on the device; those after it are known."""
    plan = {"warmup_cap_s": 10.0, "steady_cap_s": 60.0, "iterations": 1}
    waited: list[float] = []

    def run(request: dict[str, Any], timeout: float, rng: object = None) -> dict[str, Any]:
        waited.append(timeout)
        return {"steady_begin_ns": time.perf_counter_ns() - epoch + 4_000_000_000}  # as if it started 4 s late

    monkeypatch.setattr(process, "run", run)
    epoch = time.perf_counter_ns()
    workers = session.Session({"a": {"options": {}}}, plan, epoch, lambda text: None)
    for until in (time.monotonic() + 5, time.monotonic() + 5, None):
        workers.time_one("a", until)
    assert waited[0] == pytest.approx(session.STARTUP_S + 10, abs=1)
    assert waited[1] == pytest.approx(40 + 10, abs=1)
    assert waited[2] == session.STARTUP_S + 140
