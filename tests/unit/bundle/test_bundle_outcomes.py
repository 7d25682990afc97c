"""outcomes.json: written by a build, read with suspicion."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeopt import bundle
from edgeopt.bundle import JudgedOn, outcome_files, read_outcomes
from edgeopt.errors import BundleError
from edgeopt.outcomes import Outcomes, pack
from tests.unit.bundle.content import sample_content


def judged(**right: list[int]) -> JudgedOn:
    outcomes = {
        precision: Outcomes(kind="top1", samples_sha256="5" * 64, count=len(bits), right=pack(bytearray(bits)))
        for precision, bits in right.items()
    }
    return JudgedOn(set_name="photos", set_sha256="3" * 64, source_sha256="4" * 64, outcomes=outcomes)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    made = judged(int8=[1, 0, 1, 1, 1, 1, 1, 1, 0], float32=[1] * 9)
    (name, data), *rest = outcome_files(made).items()
    assert (name, rest) == ("outcomes.json", [])
    (tmp_path / name).write_bytes(data)
    assert read_outcomes(tmp_path) == made
    assert json.loads(data)["right"] == {"int8": "bf00", "float32": "ff80"}
    assert outcome_files(made) == outcome_files(made)


def test_no_outcomes_no_file(tmp_path: Path) -> None:
    assert outcome_files(judged()) == {}
    assert read_outcomes(tmp_path) is None


def test_the_file_is_hashed_among_the_records(tmp_path: Path) -> None:
    content = sample_content()
    files = {**content.record_files, **outcome_files(judged(int8=[1, 0]))}
    root = bundle.write(tmp_path / "out", bundle.Content(
        manifest=content.manifest, device_files=content.device_files, record_files=files
    )).root  # fmt: skip
    assert "outcomes.json" in (root / "RECORDS.sha256").read_text()
    assert "outcomes.json" not in (root / "SHA256SUMS").read_text()
    assert read_outcomes(root) == judged(int8=[1, 0])


DAMAGE: dict[str, Any] = {
    "no object": lambda row: [],
    "other schema": lambda row: {**row, "schema": "edgeopt.set/1"},
    "newer": lambda row: {**row, "schema": "edgeopt.outcomes/3"},
    "no count": lambda row: {k: v for k, v in row.items() if k != "count"},
    "count is a flag": lambda row: {**row, "count": True},
    "count is huge": lambda row: {**row, "count": 10**12},
    "count of nothing": lambda row: {**row, "count": 0},
    "bits for other samples": lambda row: {**row, "count": 40},
    "no hex": lambda row: {**row, "right": {"int8": "zz"}},
    "right is a list": lambda row: {**row, "right": ["80"]},
    "bits are no text": lambda row: {**row, "right": {"int8": 5}},
    "kind": lambda row: {**row, "kind": "map"},
    "kind is a list": lambda row: {**row, "kind": []},
    "set is a text": lambda row: {**row, "set": "photos"},
    "name is a number": lambda row: {**row, "set": {"name": 5, "sha256": ""}},
}


@pytest.mark.parametrize("fault", DAMAGE)
def test_damage_is_an_error_of_the_bundle(tmp_path: Path, fault: str) -> None:
    row = json.loads(outcome_files(judged(int8=[1, 0]))["outcomes.json"])
    (tmp_path / "outcomes.json").write_text(json.dumps(DAMAGE[fault](row)))
    with pytest.raises(BundleError, match=r"outcomes\.json"):
        read_outcomes(tmp_path)


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outcomes.json").symlink_to("/etc/hostname")
    with pytest.raises(BundleError):
        read_outcomes(tmp_path)


VALUES = np.array([0.5, 0, 0.25], "<f4")


def valued(**changes: Any) -> JudgedOn:
    given: dict[str, Any] = {
        "kind": "CER",
        "samples_sha256": "5" * 64,
        "count": 3,
        "right": b"",
        "values": VALUES.tobytes(),
        "weights": np.array([2, 8, 4], "<f4").tobytes(),
        "groups": np.array([0, 0, 1], "<i4").tobytes(),
        "better": "lower",
    }
    outcomes = {"int8": Outcomes(**(given | changes))}
    return JudgedOn(set_name="lines", set_sha256="3" * 64, source_sha256="4" * 64, outcomes=outcomes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"groups": b""},
        {"kind": "top5", "values": b"", "weights": b"", "right": b"\xa0", "better": "higher"},
        {"kind": "agreement", "values": b"", "weights": b"", "right": b"\xa0", "judged_by": "AUC", "better": "higher"},
    ],
)
def test_other_metrics_are_a_second_version(changes: dict[str, Any], tmp_path: Path) -> None:
    made = valued(**changes)
    (tmp_path / "outcomes.json").write_bytes(outcome_files(made)["outcomes.json"])
    assert json.loads((tmp_path / "outcomes.json").read_text())["schema"] == "edgeopt.outcomes/2"
    assert read_outcomes(tmp_path) == made


def test_what_the_first_version_can_say_is_written_as_before() -> None:
    assert json.loads(outcome_files(judged(int8=[1, 0]))["outcomes.json"]).keys() == {
        "schema", "set", "source_sha256", "kind", "samples_sha256", "count", "right",
    }  # fmt: skip


DAMAGE_2: dict[str, Any] = {
    "no metric": lambda row: {k: v for k, v in row.items() if k != "metric"},
    "direction": lambda row: {**row, "metric": {**row["metric"], "better": "up"}},
    "judged by a number": lambda row: {**row, "metric": {**row["metric"], "judged_by": 3}},
    "no values": lambda row: {k: v for k, v in row.items() if k != "values"},
    "values of other samples": lambda row: {**row, "count": 4},
    "values are no base64": lambda row: {**row, "values": {"int8": "?"}},
    "values of nan": lambda row: {**row, "values": {"int8": _base64(np.full(3, np.nan, "<f4"))}},
    "a weight of zero": lambda row: {**row, "weights": _base64(np.zeros(3, "<f4"))},
    "groups are too few": lambda row: {**row, "groups": _base64(np.zeros(2, "<i4"))},
    "kind is empty": lambda row: {**row, "kind": ""},
    "kind is long": lambda row: {**row, "kind": "x" * 10_000},
}


def _base64(values: np.ndarray) -> str:
    return base64.b64encode(values.tobytes()).decode()


@pytest.mark.parametrize("fault", DAMAGE_2)
def test_damage_of_the_second_version(tmp_path: Path, fault: str) -> None:
    row = json.loads(outcome_files(valued())["outcomes.json"])
    (tmp_path / "outcomes.json").write_text(json.dumps(DAMAGE_2[fault](row)))
    with pytest.raises(BundleError, match=r"outcomes\.json"):
        read_outcomes(tmp_path)
