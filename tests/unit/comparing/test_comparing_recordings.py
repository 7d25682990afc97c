"""compare on recorded measurements: what is paired, what is refused, and that no file can do harm."""

from __future__ import annotations

import copy
import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeopt.comparing import markdown
from edgeopt.comparing.recording import MAX_BYTES, check_measurement, read_measurement
from edgeopt.errors import BenchError, EdgeoptError, ModelError
from tests.unit.recordings import compared, groups, measurement, recording, subject
from tests.unit.runtime_bench import simulate
from tests.unit.runtime_bench.conftest import dense_model

Json = dict[str, Any]


def test_two_recordings_are_compared_without_pairs(tmp_path: Path) -> None:
    a, b = recording(tmp_path / "a.json"), recording(tmp_path / "b.json", 1.1, seed=2)
    found = compared(a, b)
    assert (found["schema"], found["how"], found["verdict"]) == ("edgeopt.comparison/1", "apart", "slower")
    median = found["latency"]["median"]
    assert median["low"] < 1.1 < median["high"]
    assert "Welch" in median["method"]
    assert found["latency"]["p95"]["verdict"] == "slower"
    assert found["a"]["grade"] == "stable"
    assert found["memory"]["peak"]["verdict"] == "equivalent"
    assert found["memory"]["peak"]["a_bytes"] == 17_010_000
    assert found["artifact"] == {"a_bytes": 1_000_000, "b_bytes": 1_000_000, "ratio": 1.0}
    assert found["quality"]["compared"] is False
    assert "measurement" not in found
    json.dumps(found, allow_nan=False)


def two(tmp_path: Path, factor: float = 1.0) -> Path:
    """One file with the subjects float32 and int8, whose processes share what disturbed their round."""
    path = tmp_path / "two.json"
    rng = random.Random(4)
    rounds = [1 + rng.gauss(0, 0.05) for _ in range(10)]

    def side(scale: float) -> list[list[int]]:
        return [[round(5e6 * scale * r * (1 + rng.gauss(0, 0.02))) for _ in range(150)] for r in rounds]

    path.write_text(json.dumps(measurement(subject("float32", side(1)), subject("int8", side(factor)))))
    return path


def test_two_subjects_of_one_file_are_paired(tmp_path: Path) -> None:
    path = two(tmp_path, 0.9)
    found = compared(Path(f"{path}#float32"), Path(f"{path}#int8"))
    assert (found["how"], found["verdict"]) == ("paired", "faster")
    assert found["latency"]["median"]["high"] - found["latency"]["median"]["low"] < 0.01
    copied = tmp_path / "copy.json"
    copied.write_bytes(path.read_bytes())
    assert compared(Path(f"{path}#float32"), Path(f"{copied}#int8"))["how"] == "paired"


def test_one_recording_is_not_compared_with_itself(tmp_path: Path) -> None:
    """A release script that names one file twice must not pass for ever."""
    a = recording(tmp_path / "a.json")
    b = tmp_path / "b.json"
    b.write_bytes(a.read_bytes())
    for other in (a, b):
        with pytest.raises(BenchError, match="one recording"):
            compared(a, other)


def test_a_file_with_several_subjects_wants_a_choice(tmp_path: Path) -> None:
    path = two(tmp_path)
    with pytest.raises(BenchError, match="holds 2 subjects") as caught:
        compared(path, path)
    assert f"{path}#float32 or {path}#int8" in str(caught.value)
    with pytest.raises(BenchError, match='no subject "int9". Did you mean "int8"'):
        compared(Path(f"{path}#int9"), Path(f"{path}#float32"))


def test_a_name_with_a_hash_is_found_as_it_is(tmp_path: Path) -> None:
    a = recording(tmp_path / "run #1.json")
    b = recording(tmp_path / "run #2.json", seed=9)
    assert compared(a, b)["verdict"] == "equivalent"
    assert compared(a, Path(f"{b}#model"))["verdict"] == "equivalent"


def test_unlike_conditions_are_refused_with_every_difference(tmp_path: Path) -> None:
    a = recording(tmp_path / "a.json")
    b = recording(tmp_path / "b.json", seed=2, threads=4, environment={"cpu": "Cortex-A72", "governor": "ondemand"})
    with pytest.raises(BenchError) as caught:
        compared(a, b)
    for text in (
        "CPU: Cortex-A76 against Cortex-A72",
        "governor: performance against ondemand",
        "threads: 1 against 4",
    ):
        assert text in str(caught.value)
    assert "--allow-unlike" in str(caught.value)
    found = compared(a, b, allow_unlike=True)
    assert len(found["unlike"]) == 3
    assert markdown(found).startswith("**Unlike conditions: CPU: Cortex-A76 against Cortex-A72")


def test_an_invalid_measurement_is_refused_and_a_noisy_one_told(tmp_path: Path) -> None:
    good, bad = recording(tmp_path / "good.json"), tmp_path / "bad.json"
    bad.write_text(json.dumps(measurement(subject("model", [[]] * 3))))
    for a, b, name in ((good, bad, "B"), (bad, good, "A")):
        with pytest.raises(BenchError, match=f"the measurement of {name} is invalid: .*no timed call"):
            compared(a, b, allow_unlike=True)
    noisy = recording(tmp_path / "noisy.json", seed=2, environment={"steal_share": 0.3})
    found = compared(good, noisy)
    assert found["b"]["grade"] == "unstable"
    assert "virtual machine" in markdown(found)


def test_a_provider_that_was_not_asked_for_is_refused(tmp_path: Path) -> None:
    a, b = recording(tmp_path / "a.json"), recording(tmp_path / "b.json", seed=2)
    made = json.loads(b.read_text())
    made["subjects"][0]["runtime"]["asked"] = "CUDAExecutionProvider"
    b.write_text(json.dumps(made))
    with pytest.raises(BenchError, match="asked for CUDAExecutionProvider"):
        compared(a, b)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON"),
        ('{"schema": "edgeopt.measurement/2", "subj', "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"schema": "edgeopt.measurement/2", "threads": NaN}', "NaN is not a JSON number"),
        ('{"schema": "edgeopt.measurement/2", "schema": "x"}', "given twice"),
        ("[]", "no measurement: it has no schema"),
        ('{"schema": "edgeopt.report/1"}', "no measurement: its schema is 'edgeopt.report/1'"),
        ('{"schema": ["edgeopt.measurement/1"]}', "no measurement"),
        ('{"schema": "edgeopt.measurement/1", "advice": []}', "older version"),
        ('{"schema": "edgeopt.measurement/3"}', "newer version"),
        ('{"schema": "edgeopt.measurement/2"}', "damaged: effort is missing"),
    ],
)
def test_what_is_no_measurement_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "m.json"
    path.write_text(text)
    with pytest.raises(BenchError, match=r"m\.json") as caught:
        read_measurement(path)
    assert words in str(caught.value)
    assert caught.value.remedy


def test_an_older_measurement_says_measure_again(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text('{"schema": "edgeopt.measurement/1"}')
    with pytest.raises(BenchError, match="Measure again"):
        read_measurement(path)


def test_a_huge_file_is_not_read_and_a_pipe_not_waited_for(tmp_path: Path) -> None:
    huge, pipe = tmp_path / "huge.json", tmp_path / "pipe.json"
    with huge.open("wb") as stream:
        stream.truncate(MAX_BYTES + 1)
    with pytest.raises(BenchError, match="larger than 64 MiB"):
        read_measurement(huge)
    os.mkfifo(pipe)
    with pytest.raises(BenchError, match="no plain file"):
        read_measurement(pipe)
    with pytest.raises(EdgeoptError, match="no plain file"):
        compared(pipe, huge)


def at(made: Json, *keys: Any, value: Any) -> Json:
    """A copy with one value replaced."""
    changed = copy.deepcopy(made)
    place = changed
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return changed


P = ("subjects", 0, "processes", 0)


@pytest.mark.parametrize(
    ("keys", "value", "words"),
    [
        (("threads",), "1", "threads is no whole number"),
        (("threads",), True, "threads is no whole number"),
        (("threads",), 0, "threads is out of range"),
        (("subjects",), [], "subjects is no list of at least 1"),
        (("subjects", 0), [], "subjects[0] is no object"),
        ((*P, "steady_ns", 3), -1, "subjects[0].processes[0].steady_ns[3] is out of range"),
        ((*P, "steady_ns", 3), 1e300, "steady_ns[3] is no whole number"),
        ((*P, "steady_ns", 3), 10**400, "steady_ns[3] is out of range"),
        ((*P, "error"), 5, "processes[0].error is no text"),
        ((*P, "events", "wait_ns"), [[1]], "events.wait_ns[0] is no pair"),
        (("subjects", 0, "memory", "model"), {}, "memory.model.bytes is missing"),
        (("subjects", 0, "memory", "model", "raw_bytes"), ["1"], "raw_bytes[0] is no whole number"),
        (("subjects", 0, "runtime"), {"name": "x"}, "runtime.version is missing"),
        (("environment", "steal_share"), float("inf"), "environment.steal_share is out of range"),
        (("isa",), 5, "isa is no list"),
        (("isa",), [5], "isa[0] is no text"),
        ((*P, "every"), 0, "processes[0].every is out of range"),
        (("load",), {"kind": "burst"}, "load.kind is none of back_to_back, periodic"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(keys: tuple[Any, ...], value: Any, words: str) -> None:
    made = at(measurement(subject("model", groups(processes=2, calls=5))), *keys, value=value)
    with pytest.raises(BenchError) as caught:
        check_measurement(made, "m.json")
    assert str(caught.value).startswith("m.json is damaged: ")
    assert words in str(caught.value)


def test_a_process_says_how_many_calls_it_made_for_each_timed_one() -> None:
    """Energy a call is divided by it."""
    made = measurement(subject("model", groups(processes=2, calls=5)))
    del made["subjects"][0]["processes"][1]["every"]
    with pytest.raises(BenchError, match=r"processes\[1\].every is missing"):
        check_measurement(made, "m.json")


def test_two_subjects_of_one_name_are_damage() -> None:
    with pytest.raises(BenchError, match="one name"):
        check_measurement(measurement(subject("x", [[1]]), subject("x", [[1]])), "m.json")


def test_results_that_a_file_claims_are_not_believed(tmp_path: Path) -> None:
    a, b = recording(tmp_path / "a.json"), tmp_path / "b.json"
    made = measurement(subject("model", [[]] * 3))
    made["results"] = {"summaries": {"model": {"median_ns": 1}}, "stability": {"grade": "stable", "reasons": []}}
    b.write_text(json.dumps(made))
    with pytest.raises(BenchError, match="invalid"):
        compared(a, b)


def places(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Keys of every value in a document; of a list the first three."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    found = [prefix] if prefix else []
    for key, entry in inner:
        found += places(entry, (*prefix, key))
    return found


ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**61, 10**400, 1.5, 1e308, float("inf"), "x", "", "periodic"),
    *([], [[]], [0], {}, {"a": 1}, [{}], [None], [[0, 1]]),
)


def everything() -> Json:
    """A measurement in which every part has something in it."""
    sides = [
        subject(name, groups(factor, processes=3, calls=20), precision=precision)
        for name, factor, precision in (("a", 1.0, "int8"), ("b", 1.1, "float32"))
    ]
    for side in sides:
        record = simulate.process(groups(processes=1, calls=60)[0], start_ns=10**9)
        side["sustained"] = {key: record[key] for key in record if key not in ("round", "phases_ns", "burst_ns")}
        side["audit"] = {
            "asked": "CPUExecutionProvider",
            "nodes": 3,
            "providers": {"CPUExecutionProvider": 2, "X": 1},
            "outside": [{"op": "Resize", "provider": "X", "count": 1, "macs": 1}],
            "opaque_nodes": 0,
            "macs": {"CPUExecutionProvider": 5, "X": 1},
            "integer_nodes": 2,
            "float_nodes": 1,
            "integer_macs": 4,
            "float_macs": 1,
        }
        side["memory"]["growth"] = {
            "bytes_per_call": 2e3,
            "low": 1.5e3,
            "high": 2.5e3,
            "calls": 600,
            "verdict": "leak",
            "points": [[0, 1], [300, 600_000], [600, 1_200_000]],
        }
        for process in side["processes"]:
            process |= {"service_ns": list(process["steady_ns"]), "burst_ns": [[9, 8, 7]]}
        side["processes"][0]["events"] |= {"wait_ns": [[3, 500_000]], "throttled_ns": [[4, 9000]]}
        side["processes"].append(simulate.process([]))
    made = measurement(*sides, load={"kind": "periodic", "fps": 100.0, "period_ns": 10_000_000}, cut=["timing"])
    made |= {"threads_requested": 4, "seconds": 10.0}
    made["environment"] |= {"steal_share": 0.2, "pressure_cpu_some_us": 5_000_000, "throttled_periods": 3}
    made["environment"]["samples"] |= {"energy_uj": {"package-0": [0, 10**6, 10**7]}, "power_uw": {"VDD": [5, 6, 7]}}
    return made


def test_a_mutated_measurement_is_compared_or_refused_and_nothing_else(tmp_path: Path) -> None:
    """400 documents with one to three values removed or replaced: a result or an error of ours, no other exception."""
    base = everything()
    keys, rng, outcomes = places(base), random.Random(1), {"compared": 0, "refused": 0}
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    b.write_text(json.dumps(measurement(subject("model", groups(processes=2, calls=20)))))
    for _ in range(400):
        made = copy.deepcopy(base)
        for path in rng.sample(keys, rng.choice([1, 1, 2, 3])):
            place: Any = made
            try:
                for key in path[:-1]:
                    place = place[key]
                if rng.random() < 0.25:
                    del place[path[-1]]
                else:
                    place[path[-1]] = copy.deepcopy(rng.choice(ODD))
            except (KeyError, IndexError, TypeError):
                continue
        a.write_text(json.dumps(made).replace("Infinity", "1e999"))
        try:
            json.dumps(compared(Path(f"{a}#a"), b, allow_unlike=True, slowdown=0.03), allow_nan=False)
            outcomes["compared"] += 1
        except EdgeoptError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 50, outcomes


@pytest.mark.parametrize(("name", "error"), [("no.json", BenchError), ("no.onnx", ModelError), ("no#int8", ModelError)])
def test_a_missing_path_is_named_with_the_nearest(tmp_path: Path, name: str, error: type[EdgeoptError]) -> None:
    (tmp_path / "nn.json").touch()
    there = recording(tmp_path / "there.json")
    with pytest.raises(error, match="does not exist"):
        compared(tmp_path / name, there)
    with pytest.raises(BenchError, match='Did you mean "there.json"'):
        compared(tmp_path / "thre.json", there)


def test_a_model_has_no_recording(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(dense_model(np.eye(8, 5, dtype=np.float32)))
    with pytest.raises(BenchError, match="edgeopt bench"):
        compared(model, recording(tmp_path / "a.json"))
    with pytest.raises(ModelError, match="chooses nothing"):
        compared(Path(f"{model}#int8"), model)
