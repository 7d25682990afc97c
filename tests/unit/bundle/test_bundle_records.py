"""The diary and the lock: what is written is what is read, and a lock of something else is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeopt import bundle
from edgeopt.bundle import Lock
from edgeopt.errors import BundleError
from edgeopt.memory import Footprint
from edgeopt.plan import Drift, Step, StepResult

numbers = st.floats(allow_nan=False, allow_infinity=False)
words = st.text(st.characters(codec="utf-8"), max_size=12)
footprints = st.builds(
    Footprint,
    weight_bytes=st.integers(0),
    peak_activation_bytes=st.none() | st.integers(0),
    nodes=st.integers(0),
    assumed=st.lists(words, max_size=2).map(tuple),
)
results = st.builds(
    StepResult,
    step=st.builds(
        Step,
        kind=st.sampled_from(["pass", "quantize"]),
        name=words,
        params=st.dictionaries(words, st.none() | st.booleans() | st.integers() | words, max_size=3),
        why=words,
    ),
    status=st.sampled_from(["kept", "rolled-back", "skipped"]),
    reason=words,
    before=footprints,
    after=footprints,
    drift=st.lists(
        st.builds(Drift, output=words, sqnr_db=st.floats(allow_nan=False), cosine=numbers, max_abs=numbers), max_size=2
    ).map(tuple),
    latency_ratio=st.none() | st.tuples(numbers, numbers, numbers),
    seconds=numbers,
)


def result(**changes: object) -> StepResult:
    size = Footprint(weight_bytes=10, peak_activation_bytes=None, nodes=2)
    values: dict[str, object] = {
        "step": Step(kind="quantize", name="quantize-int8", params=MappingProxyType({"ranges": "min-max"})),
        "status": "kept",
        "reason": "smaller",
        "before": size,
        "after": size,
        "drift": (Drift(output="y", sqnr_db=math.inf, cosine=1.0, max_abs=0.0),),
        "latency_ratio": (0.5, 0.4, 0.6),
        "seconds": 1.5,
    }
    return StepResult(**{**values, **changes})  # type: ignore[arg-type]


def a_lock(**changes: object) -> Lock:
    values: dict[str, object] = {
        "source_sha256": "ab" * 32,
        "target": "raspberry-pi-5",
        "toolchain": {"onnx": "1.23.0", "edgeopt": "0.1.0"},
        "decisions": bundle.decisions([result()], {"quantize-int8": "smaller"}),
    }
    return Lock(**{**values, **changes})  # type: ignore[arg-type]


@given(st.lists(results, max_size=3))
def test_diary_round_trips(tmp_path_factory: pytest.TempPathFactory, rows: list[StepResult]) -> None:
    path = tmp_path_factory.mktemp("diary") / "diary.jsonl"
    path.write_bytes(bundle.diary_lines(rows))
    assert bundle.read_diary(path) == tuple(rows)


def test_diary_is_one_plain_object_a_line() -> None:
    text = bundle.diary_lines([result(), result(status="skipped")]).decode()
    rows = [json.loads(line, parse_constant=lambda name: pytest.fail(name)) for line in text.splitlines()]
    assert [row["status"] for row in rows] == ["kept", "skipped"]
    assert rows[0]["drift"][0]["sqnr_db"] is None
    assert rows[0]["latency_ratio"] == [0.5, 0.4, 0.6]
    assert rows[0]["step"]["params"] == {"ranges": "min-max"}
    below = bundle.diary_lines([result(drift=(Drift(output="y", sqnr_db=-math.inf, cosine=0.0, max_abs=1.0),))])
    assert json.loads(below)["drift"][0]["sqnr_db"] == "-inf"
    with pytest.raises(ValueError):
        bundle.diary_lines([result(seconds=math.nan)])


@pytest.mark.parametrize(
    "line", ["{", "[]", "{}", '{"status": "kept"}', '{"status": "maybe", "latency_ratio": null}', "null"]
)
def test_damaged_diary_names_the_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "diary.jsonl"
    path.write_bytes(bundle.diary_lines([result()]) + line.encode() + b"\n")
    with pytest.raises(BundleError, match=r"diary\.jsonl, line 2"):
        bundle.read_diary(path)


def test_lock_round_trips_from_a_file_and_from_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "decisions.lock").write_bytes(bundle.lock_text(a_lock()))
    for path in (tmp_path, tmp_path / "decisions.lock"):
        found = bundle.read_lock(path, source_sha256="ab" * 32, target="raspberry-pi-5")
        assert found == a_lock()
        assert bundle.lock_text(found) == bundle.lock_text(a_lock())
    assert found.decisions[0].reason_code == "smaller"


def test_lock_bytes_do_not_depend_on_order_or_on_what_was_measured() -> None:
    other = a_lock(
        toolchain={"edgeopt": "0.1.0", "onnx": "1.23.0"},
        decisions=bundle.decisions([result(seconds=9.0, reason="faster by 3.1 %")], {"quantize-int8": "smaller"}),
    )
    assert bundle.lock_text(other) == bundle.lock_text(a_lock())
    assert bundle.lock_text(a_lock(decisions=bundle.decisions([result(status="skipped")]))) != bundle.lock_text(
        a_lock()
    )


def test_lock_of_another_model_or_target_is_refused(tmp_path: Path) -> None:
    (tmp_path / "decisions.lock").write_bytes(bundle.lock_text(a_lock()))
    with pytest.raises(BundleError, match="is of another model: sha256 abababababab, not cdcdcdcdcdcd"):
        bundle.read_lock(tmp_path, source_sha256="cd" * 32)
    with pytest.raises(BundleError, match="is of the target 'raspberry-pi-5', not 'host'") as caught:
        bundle.read_lock(tmp_path, target="host")
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"schema": "edgeopt.lock/2"}, "newer edgeopt"),
        ({"schema": "npm"}, "not a lock of edgeopt"),
        ({"decisions": [{"kind": "pass"}]}, "is damaged"),
        ({"decisions": 3}, "is damaged"),
        ({"toolchain": {"onnx": 1}}, "wrong type"),
        ({"target": None}, "wrong type"),
        ({"decisions": [{"kind": "pass", "name": "n", "params": [], "status": "kept"}]}, "wrong type"),
        ({"decisions": [{"kind": "pass", "name": "n", "params": {}, "status": "maybe"}]}, "a status is none of"),
    ],
)
def test_damaged_lock_is_refused(tmp_path: Path, change: dict[str, object], text: str) -> None:
    row = {**json.loads(bundle.lock_text(a_lock())), **change}
    (tmp_path / "my.lock").write_text(json.dumps(row))
    with pytest.raises(BundleError, match=text):
        bundle.read_lock(tmp_path / "my.lock")


def test_absent_lock(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"decisions\.lock does not exist"):
        bundle.read_lock(tmp_path)


def test_changes_of_the_tool_chain_are_listed() -> None:
    now = {"onnx": "1.24.0", "edgeopt": "0.1.0", "numpy": "2.4"}
    assert a_lock().toolchain_changes(now) == ("numpy absent -> 2.4", "onnx 1.23.0 -> 1.24.0")
    assert a_lock().toolchain_changes(a_lock().toolchain) == ()


def test_a_lock_replays_with_its_own_sets_only() -> None:
    lock = Lock(source_sha256="", target="t", toolchain={}, decisions=(), data={"calibration": "a", "evaluation": "b"})
    lock.check_data({"calibration": "a", "evaluation": "b"})
    for now, said in (
        ({"evaluation": "b"}, "with a calibration set, and here there is none"),
        ({"calibration": "a", "evaluation": "c"}, "with an evaluation set, and here there is another"),
    ):
        with pytest.raises(BundleError, match=said):
            lock.check_data(now)
    with pytest.raises(BundleError, match="without a calibration set, and here there is one"):
        Lock(source_sha256="", target="t", toolchain={}, decisions=()).check_data({"calibration": "a"})
